// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: pools, what they count, device fills and copies to the byte.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use stasis::checkpoint::Mode;
use stasis::{Arg, CopyError, FreeError, PoolKind, Signal};
use stasis_tests::gpu::{
    Gpu, Numbers, SOON, floats, machine_file, open, open_on, skip_on_kernel_driver, values,
};

const MIB: u64 = 1 << 20;

#[test]
fn freed_memory_comes_back_to_the_last_byte() {
    let agent = open().agent(0).unwrap();
    let before = agent.vram_available().unwrap();
    let sizes = [1, 4096, 5000, MIB, 3 * MIB + 1, 64 * MIB];
    let buffers: Vec<_> = sizes.iter().map(|&bytes| agent.vram().alloc(bytes).unwrap()).collect();
    let taken = before - agent.vram_available().unwrap();
    assert!(taken >= sizes.iter().sum::<u64>(), "{taken} bytes are counted for {sizes:?}");
    for buffer in &buffers[..3] {
        buffer.free().unwrap();
    }
    drop(buffers);
    assert_eq!(agent.vram_available().unwrap(), before);
}

#[test]
fn allocations_by_the_thousand_neither_leak_nor_overlap() {
    let agent = open().agent(0).unwrap();
    let before = agent.vram_available().unwrap();
    for _ in 0..3 {
        let mut ranges: Vec<_> = Numbers(1)
            .take(300)
            .map(|number| agent.vram().alloc(u64::from(number % 100_000) + 1).unwrap())
            .collect();
        ranges.sort_unstable_by_key(stasis::Buffer::va);
        assert!(ranges.windows(2).all(|pair| pair[0].va() + pair[0].len() <= pair[1].va()));
    }
    assert_eq!(agent.vram_available().unwrap(), before);
}

#[test]
fn pools_say_what_they_are() {
    let runtime = open();
    let agent = runtime.agent(0).unwrap();
    assert_eq!(agent.vram().kind(), PoolKind::Vram);
    assert_eq!((runtime.gtt().kind(), runtime.kernarg().kind()), (PoolKind::Gtt, PoolKind::Kernarg));
    assert!(runtime.gtt().is_visible() && runtime.kernarg().is_visible());
    assert!(agent.vram_bytes() >= agent.vram_available().unwrap());
    let buffer = runtime.gtt().alloc(10).unwrap();
    assert_eq!((buffer.len(), buffer.is_empty(), buffer.is_visible()), (10, false, true));
}

#[test]
fn agent_lists_its_pools_with_what_is_in_them() {
    let runtime = open();
    let agent = runtime.agent(0).unwrap();
    let pools = agent.pools();
    let kinds: Vec<_> = pools.iter().map(stasis::Pool::kind).collect();
    let own = if agent.vram().is_visible() {
        vec![PoolKind::Vram, PoolKind::FineVram]
    } else {
        vec![PoolKind::Vram]
    };
    assert_eq!(kinds, [own, vec![PoolKind::Gtt, PoolKind::Kernarg]].concat());
    for pool in &pools {
        assert!(pool.available().unwrap() <= pool.bytes() && pool.bytes() > 0, "{pool:?}");
        assert_eq!((pool.granularity(), pool.agent()), (4096, 0));
        let buffer = pool.alloc(5000).unwrap();
        buffer.upload(4000, b"pool").unwrap();
        assert_eq!(&values::<u8>(&buffer)[4000..4004], b"pool");
    }
    assert_eq!(pools[0].bytes(), agent.vram_bytes());
}

/// Pages of the process's own, whole.
struct Pages {
    start: *mut u8,
    layout: std::alloc::Layout,
}

#[allow(unsafe_code)]
impl Pages {
    fn new(bytes: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY: the layout has bytes.
        Self { start: unsafe { std::alloc::alloc_zeroed(layout) }, layout }
    }

    fn word(&self, at: usize) -> u32 {
        // SAFETY: inside the pages.
        unsafe { self.start.cast::<u32>().add(at).read_volatile() }
    }

    fn set(&self, at: usize, value: u32) {
        // SAFETY: inside the pages.
        unsafe { self.start.cast::<u32>().add(at).write_volatile(value) }
    }
}

#[allow(unsafe_code)]
impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.start, self.layout) }
    }
}

#[test]
fn memory_of_the_process_is_registered_used_and_carried_through_a_checkpoint() {
    let gpu = Gpu::new();
    let pages = Pages::new(16 * 4096);
    pages.set(100, 11);
    let misplaced = pages.start.wrapping_add(4);
    // SAFETY: refused before anything is done with it.
    #[allow(unsafe_code)]
    let error = unsafe { gpu.runtime.register(misplaced, 4096, &[]) }.unwrap_err();
    assert!(matches!(error, stasis::AllocError::Pages { bytes: 4096, .. }), "{error}");
    // SAFETY: the pages live longer than the registration, and only one thread touches them.
    #[allow(unsafe_code)]
    let registered = unsafe { gpu.runtime.register(pages.start, 16 * 4096, &[&gpu.agent]) }.unwrap();
    assert_ne!(registered.va(), pages.start as u64);
    let store = gpu.kernel("store");
    gpu.run(&store, [64, 1, 1], [64, 1, 1], &[Arg::Buffer(registered.buffer()), Arg::U32(0xfeed)]);
    assert_eq!((pages.word(0), pages.word(63), pages.word(64), pages.word(100)), (0xfeed, 0xfeed, 0, 11));
    for address in [registered.va() + 8, pages.start as u64 + 8] {
        let info = gpu.runtime.pointer_info(address).unwrap();
        assert_eq!(
            (info.kind, info.key, info.offset),
            (stasis::PointerKind::Registered, registered.key(), 8)
        );
        assert_eq!(info.is_visible, address == pages.start as u64 + 8);
    }
    let directory = tempfile::tempdir().unwrap();
    gpu.runtime.lock(stasis::checkpoint::Mode::Drain, Duration::from_secs(60)).unwrap();
    gpu.runtime.checkpoint(directory.path()).unwrap();
    gpu.runtime.restore(None).unwrap();
    gpu.runtime.unlock().unwrap();
    assert_eq!((pages.word(0), pages.word(63), pages.word(64), pages.word(100)), (0xfeed, 0xfeed, 0, 11));
    pages.set(1, 5);
    let to = gpu.runtime.gtt().alloc(16 * 4096).unwrap();
    gpu.runtime.copy(to.all(), registered.buffer().all(), &[]).unwrap().wait(SOON).unwrap();
    let copied = values::<u32>(&to);
    assert_eq!((copied[0], copied[1], copied[100]), (0xfeed, 5, 11));
    gpu.run(&store, [64, 1, 1], [64, 1, 1], &[Arg::Buffer(registered.buffer()), Arg::U32(3)]);
    assert_eq!(gpu.runtime.memory_stats().at(stasis::MemoryPlace::Registered).unwrap().bytes, 16 * 4096);
    registered.unregister().unwrap();
    assert_eq!((pages.word(1), pages.word(100)), (3, 11));
    assert_eq!(gpu.runtime.pointer_info(pages.start as u64), None);
}

#[test]
fn agent_says_what_the_topology_says() {
    let agent = open().agent(0).unwrap();
    assert!(agent.uuid().starts_with("GPU-") && agent.uuid().len() == 20, "{}", agent.uuid());
    assert!(agent.name().starts_with("gfx"));
    assert!(agent.compute_units() > 0 && !agent.caches().is_empty() && agent.links().next().is_some());
}

#[test]
fn buffer_is_the_same_memory_for_host_and_device() {
    let gpu = Gpu::new();
    let buffer = gpu.runtime.gtt().alloc(64 * 4).unwrap();
    gpu.run(&gpu.kernel("store"), [64, 1, 1], [64, 1, 1], &[Arg::Buffer(&buffer), Arg::U32(0xfeed)]);
    let host = buffer.host().unwrap();
    assert_eq!(host.as_ptr() as u64, buffer.va());
    // SAFETY: the buffer lives, has 256 bytes, and no packet that writes it is in flight.
    let word = unsafe { host.as_ptr().cast::<u32>().add(63).read_volatile() };
    assert_eq!(word, 0xfeed);
}

#[test]
fn device_fill_is_exact_at_every_alignment() {
    let gpu = Gpu::new();
    let buffer = gpu.agent.vram().alloc(70_000).unwrap();
    let mut expected = vec![0xeeu8; 70_000];
    buffer.upload(0, &expected).unwrap();
    let ranges = (0u64..64, 0u64..67_000, 0usize..5, any::<[u8; 16]>());
    // Deterministic: a failure is the same on every machine.
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 60, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let state = std::cell::RefCell::new(&mut expected);
    runner
        .run(&ranges, |(offset, bytes, width, pattern)| {
            let pattern = &pattern[..1 << width];
            let bytes = bytes / pattern.len() as u64 * pattern.len() as u64;
            let filled = gpu.runtime.fill(buffer.span(offset, bytes), pattern, &[]).unwrap();
            filled.wait(SOON).unwrap();
            let mut expected = state.borrow_mut();
            for (at, byte) in expected[offset as usize..(offset + bytes) as usize].iter_mut().enumerate() {
                *byte = pattern[at % pattern.len()];
            }
            prop_assert!(values::<u8>(&buffer) == **expected, "{} bytes at {}", bytes, offset);
            Ok(())
        })
        .unwrap();
}

#[test]
fn device_copy_is_exact_at_every_pair_of_alignments() {
    let gpu = Gpu::new();
    let source: Vec<u8> = Numbers(3).take(40_000).map(|number| (number >> 7) as u8).collect();
    let (from, to) = (gpu.buffer(&source), gpu.runtime.gtt().alloc(40_000).unwrap());
    for (case, bytes) in [0u64, 1, 3, 15, 16, 17, 63, 64, 255, 4099, 33_333].into_iter().enumerate() {
        for skew in 0..5u64 {
            let (at, onto) = (case as u64 * 3 + skew, 7 * skew + case as u64);
            to.write(0, &vec![0x11; 40_000]).unwrap();
            let copied = gpu.runtime.copy(to.span(onto, bytes), from.span(at, bytes), &[]).unwrap();
            copied.wait(SOON).unwrap();
            let mut expected = vec![0x11u8; 40_000];
            expected[onto as usize..(onto + bytes) as usize]
                .copy_from_slice(&source[at as usize..(at + bytes) as usize]);
            assert!(values::<u8>(&to) == expected, "{bytes} bytes from {at} to {onto}");
        }
    }
}

#[test]
fn transfers_wait_for_what_they_are_told_to() {
    let gpu = Gpu::new();
    let (a, b) = (gpu.buffer(&[1u8; 1000]), gpu.buffer(&[2u8; 1000]));
    let signals: Vec<Signal> = (0..7).map(|_| Signal::new(&gpu.runtime, 1).unwrap()).collect();
    let filled = gpu.runtime.fill(a.all(), &[9], &signals.iter().collect::<Vec<_>>()).unwrap();
    let copied = gpu.runtime.copy(b.all(), a.all(), &[filled.signal()]).unwrap();
    assert!(copied.wait(Some(std::time::Duration::from_millis(30))).is_err());
    assert_eq!(values::<u8>(&b), [2; 1000]);
    signals.iter().for_each(|signal| signal.store(0).unwrap());
    copied.wait(SOON).unwrap();
    assert_eq!(values::<u8>(&b), [9; 1000]);
}

#[test]
fn ranges_outside_a_buffer_are_refused_with_the_numbers() {
    let gpu = Gpu::new();
    let (small, large) = (gpu.buffer(&[0u8; 100]), gpu.buffer(&[0u8; 200]));
    let range = small.write(90, &[0; 11]).unwrap_err();
    assert!(matches!(range, CopyError::Range { offset: 90, bytes: 11, len: 100, .. }), "{range}");
    assert!(matches!(small.read(u64::MAX, &mut [0; 2]), Err(CopyError::Range { .. })));
    let fill = gpu.runtime.fill(small.span(1, 100), &[0], &[]).unwrap_err();
    assert!(matches!(fill, CopyError::Range { .. }), "{fill}");
    let copy = gpu.runtime.copy(small.all(), large.all(), &[]).unwrap_err();
    assert!(matches!(copy, CopyError::Length { to: 100, from: 200 }), "{copy}");
    let within = gpu.runtime.copy(large.span(10, 100), large.span(50, 100), &[]).unwrap_err();
    assert!(matches!(within, CopyError::Overlap { bytes: 100, .. }), "{within}");
    let pattern = gpu.runtime.fill(small.all(), &[1, 2, 3], &[]).unwrap_err();
    assert!(matches!(pattern, CopyError::Pattern { found: 3 }), "{pattern}");
    small.free().unwrap();
    assert!(matches!(small.write(0, &[1]), Err(CopyError::Freed { .. })));
    assert!(matches!(gpu.runtime.fill(small.all(), &[1], &[]), Err(CopyError::Freed { .. })));
}

#[test]
fn buffer_in_use_is_not_freed_and_then_is_once() {
    let gpu = Gpu::new();
    let buffer = gpu.buffer(&[0u32]);
    let hold = Signal::new(&gpu.runtime, 1).unwrap();
    gpu.queue.barrier(&[&hold], None).unwrap();
    let kernel = gpu.kernel("increment");
    gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&[Arg::Buffer(&buffer)]).submit().unwrap();
    let pending = buffer.free().unwrap_err();
    assert!(matches!(pending, FreeError::Pending { queue, .. } if queue == gpu.queue.key()), "{pending}");
    hold.store(0).unwrap();
    gpu.queue.wait_idle(SOON).unwrap();
    assert_eq!(values::<u32>(&buffer), [1], "the refused free must not have harmed it");
    buffer.free().unwrap();
    let again = buffer.clone().free().unwrap_err();
    assert!(matches!(again, FreeError::Stale { key } if key == buffer.key()), "{again}");
    let freed = gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&[Arg::Buffer(&buffer)]).submit();
    assert!(matches!(freed, Err(stasis::SubmitError::FreedBuffer { index: 0, .. })), "{freed:?}");
}

#[test]
fn buffer_dropped_while_in_use_lives_until_its_packets_are_done() {
    let gpu = Gpu::new();
    let before = gpu.agent.vram_available().unwrap();
    let hold = Signal::new(&gpu.runtime, 1).unwrap();
    gpu.queue.barrier(&[&hold], None).unwrap();
    let (kernel, buffer) = (gpu.kernel("store"), gpu.agent.vram().alloc(MIB).unwrap());
    let with_kernel = gpu.agent.vram_available().unwrap();
    let args = [Arg::Buffer(&buffer), Arg::U32(1)];
    gpu.queue.dispatch(&kernel).grid([64, 1, 1]).block([64, 1, 1]).args(&args).submit().unwrap();
    drop(buffer);
    assert_eq!(gpu.agent.vram_available().unwrap(), with_kernel, "it is still needed");
    hold.store(0).unwrap();
    gpu.queue.wait_idle(SOON).unwrap();
    assert!(gpu.queue.fault().is_none());
    drop(kernel);
    // A deferred release is done by a later allocation, when the queue has reported that it is idle.
    let deadline = Instant::now() + Duration::from_secs(10);
    while gpu.agent.vram_available().unwrap() != before {
        assert!(Instant::now() < deadline, "{before} bytes were free before");
        drop(gpu.agent.vram().alloc(1).unwrap());
    }
}

#[test]
fn typed_buffers_are_arguments_and_keep_their_elements_through_a_checkpoint() {
    let gpu = Gpu::new();
    let (on_x, on_y) = (floats(1, 5000), floats(2, 5000));
    let (x, y) = (gpu.agent.vram().upload(&on_x).unwrap(), gpu.agent.vram().upload(&on_y).unwrap());
    let args = [Arg::from(&x), Arg::from(&y), Arg::F32(-0.5), Arg::U32(5000)];
    gpu.run(&gpu.kernel("axpy"), [5120, 1, 1], [256, 1, 1], &args);
    let expected: Vec<f32> = on_x.iter().zip(&on_y).map(|(x, y)| x.mul_add(-0.5, *y)).collect();
    assert_eq!(y.download().unwrap(), expected);

    let (directory, va) = (tempfile::tempdir().unwrap(), y.va());
    gpu.runtime.lock(Mode::Drain, Duration::from_secs(60)).unwrap();
    gpu.runtime.checkpoint(directory.path()).unwrap();
    gpu.runtime.restore(None).unwrap();
    gpu.runtime.unlock().unwrap();
    assert_eq!((y.download().unwrap(), y.va()), (expected, va));
    assert_eq!(x.download().unwrap(), on_x);
}

#[test]
fn typed_buffers_are_copied_where_the_cpu_does_not_see_them() {
    if skip_on_kernel_driver("its memory is behind a small BAR on the software device") {
        return;
    }
    let (_directory, machine) = machine_file("[[gpu]]\nchip = \"gfx1100\"\nbar = \"small\"\n");
    let runtime = open_on(&format!("soft:{}", machine.display()), None);
    let numbers: Vec<u64> = Numbers(3).take(700_001).map(u64::from).collect();
    let buffer = runtime.agent(0).unwrap().vram().upload(&numbers).unwrap();
    assert!(!buffer.buffer().is_visible());
    buffer.write(699_999, &[1, 2]).unwrap();
    let mut back = [0; 3];
    buffer.read(699_998, &mut back).unwrap();
    assert_eq!(back, [numbers[699_998], 1, 2]);
    assert_eq!(buffer.download().unwrap()[..699_999], numbers[..699_999]);
    let late = buffer.write(700_000, &[1, 2]);
    assert!(matches!(late, Err(CopyError::Elements { at: 700_000, count: 2, len: 700_001, .. })), "{late:?}");
}
