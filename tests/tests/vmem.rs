// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges, physical memory and mappings, as kernels, copies and the CPU see them, also through checkpoints.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use stasis::checkpoint::{IMAGE_FILE, Metadata, Mode};
use stasis::image::Image;
use stasis::{
    Access, Arg, CopyError, MemoryPlace, PointerKind, Queue, QueueFault, QueueOptions, Range, Runtime,
    Signal, VmemError, WaitError,
};
use stasis_tests::gpu::{Gpu, Numbers, SOON, on_a_future_kernel, open_on, skip_on_kernel_driver, values};
use stasis_tests::program;
use stasis_tests::worker::{Worker, succeeded, wait_until};

const PAGE: u64 = 4096;
const DEADLINE: Duration = Duration::from_secs(60);

/// Two agents of one runtime, which a machine may not have.
fn two() -> Option<(Gpu, Gpu)> {
    if skip_on_kernel_driver("it asks for two agents, which the machine may not have") {
        return None;
    }
    let runtime = open_on("soft:gfx1100,gfx1100", None);
    Some((Gpu::on(&runtime, 0), Gpu::on(&runtime, 1)))
}

fn word(range: &Range, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    range.read(offset, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

/// Writes a word at an address by a kernel; `Err` with the fault.
fn write_at(gpu: &Gpu, va: u64, value: u32) -> Result<(), Arc<QueueFault>> {
    run_at(gpu, "write_at", &[Arg::Address(va), Arg::U32(value)])
}

/// Reads a word at an address by a kernel; `Err` with the fault.
fn read_at(gpu: &Gpu, va: u64) -> Result<u32, Arc<QueueFault>> {
    let out = gpu.runtime.gtt().alloc(4).unwrap();
    run_at(gpu, "read_at", &[Arg::Buffer(&out), Arg::Address(va)])?;
    Ok(values::<u32>(&out)[0])
}

/// On a queue of its own: a queue that has faulted cannot be used again.
fn run_at(gpu: &Gpu, kernel: &str, args: &[Arg<'_>]) -> Result<(), Arc<QueueFault>> {
    let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
    let (done, kernel) = (Signal::new(&gpu.runtime, 1).unwrap(), gpu.kernel(kernel));
    queue.dispatch(&kernel).grid([1, 1, 1]).args(args).completion(&done).submit().unwrap();
    match done.wait_done(SOON) {
        Ok(_) => Ok(()),
        Err(WaitError::Queue(fault)) => Err(fault),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn parts_of_one_memory_at_several_places_are_the_same_bytes() {
    let gpu = Gpu::new();
    for pool in [gpu.agent.vram(), gpu.agent.fine_vram(), gpu.runtime.gtt()] {
        let range = gpu.runtime.reserve(16 * PAGE, 0).unwrap();
        let memory = pool.physical(4 * PAGE).unwrap();
        range.map(0, &memory, PAGE, 2 * PAGE).unwrap();
        range.map(8 * PAGE, &memory, 0, 4 * PAGE).unwrap();
        range.set_access(0, 2 * PAGE, &[(&gpu.agent, Access::ReadWrite)]).unwrap();
        range.set_access(8 * PAGE, 4 * PAGE, &[(&gpu.agent, Access::ReadWrite)]).unwrap();
        let numbers: Vec<u8> = Numbers(5).take(4 * PAGE as usize).map(|number| number as u8).collect();
        memory.write(0, &numbers).unwrap();
        let mut seen = vec![0; 2 * PAGE as usize];
        range.read(0, &mut seen).unwrap();
        assert!(seen == numbers[PAGE as usize..3 * PAGE as usize], "{:?}", pool.kind());
        // Written by a kernel at one place, and read by a kernel and the CPU at the others.
        write_at(&gpu, range.va() + PAGE + 12, 0xfeed_0001).unwrap();
        assert_eq!(read_at(&gpu, range.va() + 10 * PAGE + 12).unwrap(), 0xfeed_0001);
        assert_eq!((word(&range, PAGE + 12), word(&range, 10 * PAGE + 12)), (0xfeed_0001, 0xfeed_0001));
        let mut home = [0; 4];
        memory.read(2 * PAGE + 12, &mut home).unwrap();
        assert_eq!(home, 0xfeed_0001u32.to_le_bytes());
        // By the CPU through the pointer.
        let part = range.host(8 * PAGE, PAGE).unwrap();
        // SAFETY: the guard's part has a page, and no packet touches it.
        #[allow(unsafe_code)]
        unsafe {
            part.as_ptr().cast::<u32>().write_volatile(7);
        }
        drop(part);
        assert_eq!(read_at(&gpu, range.va() + 8 * PAGE).unwrap(), 7);
    }
}

#[test]
fn agent_without_access_faults_at_the_address() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    let gpu = Gpu::new();
    let (range, memory) =
        (gpu.runtime.reserve(1 << 21, 0).unwrap(), gpu.agent.vram().physical(2 * PAGE).unwrap());
    range.map(PAGE, &memory, 0, 2 * PAGE).unwrap();
    let fault = read_at(&gpu, range.va() + PAGE).unwrap_err();
    let found = fault.memory.unwrap();
    assert_eq!((found.address, found.not_present), (range.va() + PAGE, true), "{fault}");
    range.set_access(PAGE, PAGE, &[(&gpu.agent, Access::Read)]).unwrap();
    assert_eq!(read_at(&gpu, range.va() + PAGE).unwrap(), 0);
    assert!(read_at(&gpu, range.va() + 2 * PAGE).is_err(), "the second page was not granted");
}

#[test]
fn two_agents_have_the_rights_that_each_was_given() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    let Some((first, second)) = two() else { return };
    for pool in [first.agent.vram(), first.agent.host()] {
        let range = first.runtime.reserve(4 * PAGE, 0).unwrap();
        let memory = pool.physical(4 * PAGE).unwrap();
        range.map(0, &memory, 0, 4 * PAGE).unwrap();
        let both = [(&first.agent, Access::ReadWrite), (&second.agent, Access::Read)];
        range.set_access(0, 4 * PAGE, &both).unwrap();
        write_at(&first, range.va() + PAGE, 41).unwrap();
        assert_eq!(read_at(&second, range.va() + PAGE).unwrap(), 41);
        let fault = write_at(&second, range.va() + PAGE, 42).unwrap_err();
        let found = fault.memory.unwrap();
        assert_eq!((found.address, found.read_only), (range.va() + PAGE, true), "{fault}");
        assert_eq!(read_at(&first, range.va() + PAGE).unwrap(), 41);
        // Another right for a part, in place: the parts before and after it keep theirs.
        range.set_access(PAGE, PAGE, &[(&second.agent, Access::ReadWrite)]).unwrap();
        write_at(&second, range.va() + PAGE, 43).unwrap();
        assert_eq!(read_at(&first, range.va() + PAGE).unwrap(), 43);
        for page in [0, 2, 3] {
            let fault = write_at(&second, range.va() + page * PAGE, 1).unwrap_err();
            assert!(fault.memory.unwrap().read_only, "page {page}: {fault}");
        }
        // Taken from one of them.
        range.set_access(0, 4 * PAGE, &[(&first.agent, Access::None)]).unwrap();
        assert!(read_at(&first, range.va() + PAGE).unwrap_err().memory.unwrap().not_present);
        assert_eq!(read_at(&second, range.va() + PAGE).unwrap(), 43);
        let rights: Vec<_> = range.mappings().into_iter().map(|mapping| mapping.access).collect();
        assert_eq!(rights, [[(1, Access::Read)], [(1, Access::ReadWrite)], [(1, Access::Read)]]);
    }
}

#[test]
fn what_is_unmapped_faults_and_its_neighbours_stay() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    let gpu = Gpu::new();
    let range = gpu.runtime.reserve(8 * PAGE, 0).unwrap();
    let memory = gpu.agent.vram().physical(6 * PAGE).unwrap();
    range.map(PAGE, &memory, 0, 6 * PAGE).unwrap();
    range.set_access(PAGE, 6 * PAGE, &[(&gpu.agent, Access::ReadWrite)]).unwrap();
    for page in 1..7 {
        write_at(&gpu, range.va() + page * PAGE, page as u32).unwrap();
    }
    range.unmap(3 * PAGE, 2 * PAGE).unwrap();
    for page in [3, 4] {
        let fault = read_at(&gpu, range.va() + page * PAGE).unwrap_err();
        assert_eq!(fault.memory.unwrap().address, range.va() + page * PAGE);
        let error = range.read(page * PAGE, &mut [0]).unwrap_err();
        assert!(matches!(error, VmemError::NotMapped { offset, .. } if offset == page * PAGE), "{error}");
    }
    for page in [1, 2, 5, 6] {
        assert_eq!(read_at(&gpu, range.va() + page * PAGE).unwrap(), page as u32);
        assert_eq!(word(&range, page * PAGE), page as u32);
    }
    // The hole gets another part; the rights of the old one have ended with its mapping.
    range.map(3 * PAGE, &memory, 0, 2 * PAGE).unwrap();
    assert!(read_at(&gpu, range.va() + 3 * PAGE).is_err());
    range.set_access(PAGE, 6 * PAGE, &[(&gpu.agent, Access::Read)]).unwrap();
    assert_eq!(read_at(&gpu, range.va() + 3 * PAGE).unwrap(), 1);
    range.unmap(PAGE, 6 * PAGE).unwrap();
    assert!(range.mappings().is_empty());
    assert!(read_at(&gpu, range.va() + PAGE).is_err());
}

#[test]
fn range_grows_while_a_kernel_works_in_it() {
    let gpu = Gpu::new();
    let range = gpu.runtime.reserve(64 << 20, 0).unwrap();
    let grow = |at: u64| {
        let page = gpu.agent.vram().physical(2 << 20).unwrap();
        range.map(at, &page, 0, page.len()).unwrap();
        range.set_access(at, page.len(), &[(&gpu.agent, Access::ReadWrite)]).unwrap();
    };
    grow(0);
    range.write(0, &[0; 4]).unwrap();
    let (spin, done) = (gpu.kernel("spin"), Signal::new(&gpu.runtime, 1).unwrap());
    let busy = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
    busy.dispatch(&spin)
        .grid([1, 1, 1])
        .args(&[Arg::Buffer(range.buffer())])
        .completion(&done)
        .submit()
        .unwrap();
    for n in 1..6u64 {
        grow(n << 21);
        write_at(&gpu, range.va() + (n << 21), n as u32).unwrap();
    }
    // A range that a packet uses is not unmapped.
    let error = range.unmap(5 << 21, 2 << 20).unwrap_err();
    assert!(matches!(error, VmemError::Pending { .. }), "{error}");
    assert_eq!(word(&range, 5 << 21), 5);
    range.write(0, &[1; 4]).unwrap();
    done.wait_done(SOON).unwrap();
    for n in 1..6u64 {
        assert_eq!(read_at(&gpu, range.va() + (n << 21)).unwrap(), n as u32);
    }
    let stats = gpu.runtime.memory_stats();
    assert_eq!((stats.reserved, stats.mapped), (64 << 20, 6 << 21));
    range.unmap(0, 6 << 21).unwrap();
    assert_eq!(gpu.runtime.memory_stats().mapped, 0);
}

#[test]
fn memory_without_a_handle_lives_until_its_last_mapping_ends() {
    let gpu = Gpu::new();
    let before = gpu.agent.vram_available().unwrap();
    let (range, other) = (gpu.runtime.reserve(1 << 22, 0).unwrap(), gpu.runtime.reserve(1 << 22, 0).unwrap());
    let memory = gpu.agent.vram().physical(2 << 20).unwrap();
    for range in [&range, &other] {
        range.map(0, &memory, 0, 2 << 20).unwrap();
        range.set_access(0, 2 << 20, &[(&gpu.agent, Access::ReadWrite)]).unwrap();
    }
    assert_eq!(memory.mappings().unwrap(), 2);
    memory.free().unwrap_err();
    drop(memory);
    range.unmap(0, 2 << 20).unwrap();
    write_at(&gpu, other.va() + 4096, 9).unwrap();
    assert_eq!(word(&other, 4096), 9);
    assert!(gpu.agent.vram_available().unwrap() < before);
    range.free().unwrap();
    assert!(matches!(
        range.map(0, &gpu.agent.vram().physical(1).unwrap(), 0, PAGE),
        Err(VmemError::Freed { .. })
    ));
    // Dropping the range ends its mappings, and that ends the memory.
    drop(other);
    assert_eq!(gpu.agent.vram_available().unwrap(), before);
}

#[test]
fn copies_and_fills_reach_ranges_by_an_agent_that_may() {
    let Some((first, second)) = two() else { return };
    let runtime = &first.runtime;
    let range = runtime.reserve(1 << 21, 0).unwrap();
    let (own, host) =
        (second.agent.vram().physical(1 << 20).unwrap(), runtime.gtt().physical(4 * PAGE).unwrap());
    range.map(0, &own, 0, 1 << 20).unwrap();
    let from = runtime.gtt().alloc(1 << 20).unwrap();
    let numbers: Vec<u8> = Numbers(8).take(1 << 20).map(|number| (number >> 3) as u8).collect();
    from.write(0, &numbers).unwrap();
    let error = runtime.copy(range.span(0, 1 << 20), from.all(), &[]).unwrap_err();
    assert!(matches!(error, CopyError::NoAccess { act: "write", .. }), "{error}");
    range.set_access(0, 1 << 20, &[(&second.agent, Access::ReadWrite)]).unwrap();
    runtime.copy(range.span(0, 1 << 20), from.all(), &[]).unwrap().wait(SOON).unwrap();
    let mut found = vec![0; 1 << 20];
    range.read(0, &mut found).unwrap();
    assert!(found == numbers);
    let error = runtime.fill(range.span((1 << 20) - PAGE, 2 * PAGE), &[1], &[]).unwrap_err();
    assert!(matches!(error, CopyError::NotMapped { offset: 0x10_0000, .. }), "{error}");
    // Over two memories, back to a buffer.
    range.map(1 << 20, &host, 0, 4 * PAGE).unwrap();
    range.set_access(1 << 20, 4 * PAGE, &[(&second.agent, Access::ReadWrite)]).unwrap();
    let part = range.span((1 << 20) - PAGE, 3 * PAGE);
    runtime.fill(part, &[0xab, 0xcd], &[]).unwrap().wait(SOON).unwrap();
    let to = second.buffer(&vec![0u8; 3 * PAGE as usize]);
    runtime.copy(to.all(), part, &[]).unwrap().wait(SOON).unwrap();
    assert!(values::<u16>(&to).iter().all(|&half| half == 0xcdab));
}

/// Every page's first word, on the CPU; `None` where nothing is mapped.
fn picture(range: &Range) -> Vec<Option<u32>> {
    let word = |offset| {
        let mut bytes = [0; 4];
        range.read(offset, &mut bytes).ok().map(|()| u32::from_le_bytes(bytes))
    };
    (0..range.len() / PAGE).map(|page| word(page * PAGE)).collect()
}

fn there_and_back(runtime: &Runtime, mode: Mode) -> Metadata {
    let directory = tempfile::tempdir().unwrap();
    runtime.lock(mode, DEADLINE).unwrap();
    runtime.checkpoint(directory.path()).unwrap();
    runtime.restore(None).unwrap();
    runtime.unlock().unwrap();
    Image::open(&directory.path().join(IMAGE_FILE)).unwrap().metadata().unwrap()
}

fn survives(mode: Mode) {
    let Some((first, second)) = two() else { return };
    let range = first.runtime.reserve(32 * PAGE, 1 << 20).unwrap();
    let (own, host) =
        (first.agent.vram().physical(8 * PAGE).unwrap(), first.runtime.gtt().physical(8 * PAGE).unwrap());
    range.map(0, &own, 0, 8 * PAGE).unwrap();
    range.map(12 * PAGE, &own, 2 * PAGE, 3 * PAGE).unwrap();
    range.map(20 * PAGE, &host, PAGE, 6 * PAGE).unwrap();
    range.set_access(0, 8 * PAGE, &[(&first.agent, Access::ReadWrite)]).unwrap();
    range.set_access(PAGE, 2 * PAGE, &[(&second.agent, Access::Read)]).unwrap();
    range.set_access(20 * PAGE, 6 * PAGE, &[(&second.agent, Access::ReadWrite)]).unwrap();
    range.unmap(22 * PAGE, PAGE).unwrap();
    for page in 0..8 {
        range.write(page * PAGE, &(100 + page as u32).to_le_bytes()).unwrap();
        host.write(page * PAGE, &(200 + page as u32).to_le_bytes()).unwrap();
    }
    let (before, mappings) = (picture(&range), range.mappings());
    let (one, two) = (there_and_back(&first.runtime, mode), there_and_back(&first.runtime, mode));
    assert_eq!(one.registry.maps, two.registry.maps);
    assert_eq!(one.registry.maps.entries.len(), mappings.len());
    assert_eq!((picture(&range), range.mappings()), (before, mappings));
    // Aliases, rights and holes are as before.
    write_at(&first, range.va() + 2 * PAGE, 77).unwrap();
    assert_eq!((word(&range, 12 * PAGE), read_at(&second, range.va() + 2 * PAGE).unwrap()), (77, 77));
    assert!(write_at(&second, range.va() + 2 * PAGE, 1).unwrap_err().memory.unwrap().read_only);
    write_at(&second, range.va() + 23 * PAGE, 78).unwrap();
    let mut home = [0; 4];
    host.read(4 * PAGE, &mut home).unwrap();
    assert_eq!(home, 78u32.to_le_bytes());
    for page in [9, 12, 22] {
        assert!(read_at(&first, range.va() + page * PAGE).unwrap_err().memory.unwrap().not_present, "{page}");
    }
    // And it can be changed as before.
    range.map(22 * PAGE, &host, 3 * PAGE, PAGE).unwrap();
    assert_eq!(word(&range, 22 * PAGE), 203);
    range.unmap(0, 8 * PAGE).unwrap();
    assert!(read_at(&first, range.va()).is_err());
    assert_eq!(word(&range, 12 * PAGE), 77);
}

#[test]
fn mappings_rights_and_bytes_survive_a_drained_checkpoint() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    survives(Mode::Drain);
}

#[test]
fn mappings_rights_and_bytes_survive_a_preempted_checkpoint() {
    on_a_future_kernel();
    survives(Mode::Preempt);
}

#[test]
fn kernel_stopped_in_its_middle_goes_on_in_mapped_memory() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    let (range, memory) =
        (gpu.runtime.reserve(1 << 21, 0).unwrap(), gpu.agent.vram().physical(64 << 10).unwrap());
    range.map(64 << 10, &memory, 0, 64 << 10).unwrap();
    range.set_access(64 << 10, 64 << 10, &[(&gpu.agent, Access::ReadWrite)]).unwrap();
    let (tally, stop) = (gpu.kernel("tally"), gpu.buffer(&[0u32]));
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    const ITEMS: u32 = 64;
    let out = 64 << 10;
    let args = [Arg::Address(range.va() + out), Arg::Buffer(&stop), Arg::U32(ITEMS)];
    gpu.queue
        .dispatch(&tally)
        .grid([ITEMS, 1, 1])
        .block([64, 1, 1])
        .args(&args)
        .completion(&done)
        .submit()
        .unwrap();
    for _ in 0..2 {
        let before = word(&range, out);
        wait_until("counting", || word(&range, out) > before);
        let metadata = there_and_back(&gpu.runtime, Mode::Preempt);
        assert!(metadata.preempted);
    }
    let before = word(&range, out);
    wait_until("counting", || word(&range, out) > before);
    stop.write(0, &[1; 4]).unwrap();
    done.wait_done(SOON).unwrap();
    let of = |part: u64| {
        (0..u64::from(ITEMS)).map(|item| word(&range, out + (part * 64 + item) * 4)).collect::<Vec<_>>()
    };
    assert_eq!(of(0), of(1), "registers and memory");
    assert!(of(2).iter().all(|&wrong| wrong == 0));
}

#[test]
fn addresses_are_told_for_what_they_are() {
    let Some((first, second)) = two() else { return };
    let runtime = &first.runtime;
    let (range, memory) =
        (runtime.reserve(8 * PAGE, 0).unwrap(), second.agent.vram().physical(4 * PAGE).unwrap());
    let mapping = range.map(2 * PAGE, &memory, PAGE, 2 * PAGE).unwrap();
    range.set_access(3 * PAGE, PAGE, &[(&second.agent, Access::ReadExecute)]).unwrap();
    let info = runtime.pointer_info(range.va() + 3 * PAGE + 5).unwrap();
    let PointerKind::Mapping { memory: of, memory_offset, map } = info.kind else { panic!("{info:?}") };
    assert_eq!(
        (of, memory_offset, info.base, info.bytes),
        (memory.key(), 2 * PAGE, range.va() + 3 * PAGE, PAGE)
    );
    assert_ne!(map, mapping.key, "cut off by the change of access");
    assert_eq!((info.key, info.offset, info.owner, info.is_visible), (range.key(), 5, Some(1), true));
    assert_eq!(info.access, [(1, Access::ReadExecute)]);
    let kind = |address| runtime.pointer_info(address).map(|info| info.kind);
    assert_eq!(kind(range.va()), Some(PointerKind::Reserved));
    assert_eq!(kind(memory.home() + 1), Some(PointerKind::Physical));
    let buffer = first.buffer(&[1u32; 10]);
    let info = runtime.pointer_info(buffer.va() + 7).unwrap();
    assert_eq!((info.kind, info.key, info.owner), (PointerKind::Buffer, buffer.key(), Some(0)));
    assert_eq!(info.access, [(0, Access::ReadWrite)]);
    assert_eq!(kind(buffer.va() + PAGE), None, "the guard page");
    assert_eq!(kind(&raw const info as u64), None);
}

#[test]
fn out_of_memory_says_who_holds_what() {
    let gpu = Gpu::new();
    let held = gpu.agent.vram().alloc(3 << 30).unwrap();
    let pages: Vec<_> = (0..3).map(|_| gpu.agent.vram().physical(256 << 20).unwrap()).collect();
    let error = gpu.agent.vram().physical(1 << 38).unwrap_err().to_string();
    assert!(error.contains("buffers 3.0 GiB in 1"), "{error}");
    assert!(error.contains("physical memory 768.0 MiB in 3"), "{error}");
    let stats = gpu.runtime.memory_stats();
    let vram = stats.at(MemoryPlace::Agent(0)).unwrap();
    drop((held, pages));
    let after = gpu.runtime.memory_stats();
    let left = after.at(MemoryPlace::Agent(0)).unwrap();
    assert_eq!((left.bytes + (3 << 30) + (768 << 20), left.peak >= vram.bytes), (vram.bytes, true));
}

#[test]
fn cache_grows_by_mapping_and_is_frozen_in_the_middle() {
    let directory = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(program("kv_cache"))
        .args(["--tokens", "1500", "--page", "131072"])
        .env("STASIS_SOFTGPU_INSTANCE", format!("kv-{}", std::process::id()))
        .env("TMPDIR", directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("checkpointed and restored with 768 tokens"), "{text}");
    assert!(text.contains("OK: 1500 tokens verified in 12 pages of 131072 bytes"), "{text}");
    assert!(std::fs::read_dir(directory.path()).unwrap().next().is_none(), "its images are gone");
}

/// A cache that is frozen, thawed in a new process on a new device, and grows on.
fn carried(more: &[&str]) {
    if skip_on_kernel_driver("the cache is to be carried to another software device") {
        return;
    }
    let mut worker = Worker::start_program(&program("kv_cache"), &["--batch", "16", "--page", "65536"]);
    worker.wait_rounds(64);
    succeeded(&worker.checkpoint("images", more));
    worker.bury();
    let before = worker.rounds();
    succeeded(&worker.restore("images"));
    worker.wait_rounds(128);
    assert!(worker.rounds() > before);
    worker.finish();
}

#[test]
fn cache_goes_on_growing_in_a_new_process() {
    carried(&[]);
}

#[test]
fn preempted_cache_goes_on_growing_in_a_new_process() {
    on_a_future_kernel();
    carried(&["--preempt"]);
}
