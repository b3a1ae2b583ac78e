// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes of two XCCs: a quarter of an MI300X, whose kernels the software device does not execute, and a gfx1100 that nobody
//! makes, whose kernels it does.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use queues::aql::ExceptionCode;
use queues::cwsr::CwsrGeometry;
use stasis::checkpoint::{CheckpointError, Mode, Unavailable};
use stasis::{Arg, Buffer, Kernel, Queue, QueueOptions, Runtime, Signal, WaitError};
use stasis_tests::gpu::{Gpu, Numbers, SOON, compile, machine_file, open_on, skip_on_kernel_driver, values};
use stasis_tests::program;
use stasis_tests::tally::Tally;
use tempfile::TempDir;

const SOFT: &str = "it describes a software machine";
const DEADLINE: Duration = Duration::from_secs(30);

/// A machine with one GPU of two XCCs.
struct Machine {
    _directory: TempDir,
    path: PathBuf,
}

impl Machine {
    fn new(chip: &str) -> Self {
        let text = format!("[[gpu]]\nchip = \"{chip}\"\nnum_xcc = 2\nvram_bytes = \"4GiB\"\n");
        let (directory, path) = machine_file(&text);
        Self { _directory: directory, path }
    }

    fn device(&self) -> String {
        format!("soft:{}", self.path.display())
    }

    fn open(&self) -> Runtime {
        open_on(&self.device(), None)
    }
}

/// Ends the process when a test panics: handles that it drops would wait at a closed gate for ever.
fn checkpoint(runtime: &Runtime) {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(101);
    }));
    let directory = tempfile::tempdir().unwrap();
    runtime.lock(Mode::Drain, DEADLINE).unwrap();
    runtime.checkpoint(directory.path()).unwrap();
    runtime.restore(None).unwrap();
    runtime.unlock().unwrap();
}

fn barrier(gpu: &Gpu) {
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    gpu.queue.barrier(&[], Some(&done)).unwrap();
    done.wait_done(SOON).unwrap();
    assert_eq!(done.load().unwrap(), 0, "completed once, not by each XCC");
}

fn refused_preemption(runtime: &Runtime) {
    let refused = runtime.lock(Mode::Preempt, DEADLINE).unwrap_err();
    let CheckpointError::Preempt(Unavailable::SeveralXccs { xccs: 2, .. }) = refused else {
        panic!("{refused:?}")
    };
}

/// A dispatch of a kernel of `scratch.c`, and what it must compute.
struct Sums {
    from: Vec<u32>,
    on_from: Buffer,
    on_to: Buffer,
    done: Signal,
}

impl Sums {
    const ITEMS: u32 = 4096;
    /// Words of private memory that `deep` goes through.
    const LENGTH: u32 = 1000;

    fn submit(gpu: &Gpu, kernel: &Kernel) -> Self {
        let from: Vec<u32> = Numbers(7).take(Self::ITEMS as usize).collect();
        let (on_from, on_to) = (gpu.buffer(&from), gpu.buffer(&vec![0u32; Self::ITEMS as usize]));
        let done = Signal::new(&gpu.runtime, 1).unwrap();
        let args = [Arg::Buffer(&on_from), Arg::Buffer(&on_to)];
        let dispatch = gpu.queue.dispatch(kernel).grid([Self::ITEMS, 1, 1]).block([64, 1, 1]);
        dispatch.args(&args).completion(&done).submit().unwrap();
        Self { from, on_from, on_to, done }
    }

    fn check(&self) {
        self.done.wait_done(SOON).unwrap();
        let sum = |seed: &u32| {
            let at = |k: u32| {
                let place = seed.wrapping_add(k * 7) % Self::LENGTH;
                seed.wrapping_add(place * place)
            };
            (0..Self::LENGTH).fold(0u32, |sum, k| sum.wrapping_mul(31).wrapping_add(at(k)))
        };
        assert_eq!(values::<u32>(&self.on_to), self.from.iter().map(sum).collect::<Vec<_>>());
        assert_eq!(values::<u32>(&self.on_from), self.from);
    }
}

fn deep(gpu: &Gpu) -> Kernel {
    let object = compile("scratch.c", gpu.agent.name(), &["-std=c17"]);
    gpu.load(&object).kernel("deep").unwrap()
}

#[test]
fn agents_are_listed_with_what_all_xccs_have() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let machine = Machine::new("gfx942");
    let runtime = machine.open();
    let agent = runtime.agent(0).unwrap();
    let properties = &agent.node().properties;
    let shape = (properties.num_xcc, properties.simd_count, properties.array_count);
    assert_eq!((agent.name(), shape), ("gfx942", (2, 304, 8)));
    let geometry = CwsrGeometry::for_node(&properties.shape()).unwrap();
    assert_eq!((geometry.save_bytes, geometry.num_xcc), (23_203_840, 2));
    let listed = Command::new(program("stasis"))
        .arg("agents")
        .env("STASIS_DEVICE", machine.device())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.status.success() && text.contains("gfx942"), "{text}");
    assert!(text.contains(&format!("{}", agent.compute_units())), "{text}");
}

#[test]
fn queue_of_a_gfx942_processes_packets_before_and_after_a_checkpoint() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let gpu = Gpu::on(&Machine::new("gfx942").open(), 0);
    let numbers: Vec<u32> = Numbers(3).take(1 << 16).collect();
    let memory = gpu.buffer(&numbers);
    barrier(&gpu);
    // An indirect buffer, which each XCC executes.
    gpu.agent.invalidate_code().unwrap();
    refused_preemption(&gpu.runtime);
    let index = gpu.queue.write_index().unwrap();
    checkpoint(&gpu.runtime);
    assert!(gpu.queue.write_index().unwrap() >= index, "the index went back");
    barrier(&gpu);
    gpu.agent.invalidate_code().unwrap();
    assert_eq!(values::<u32>(&memory), numbers);
    assert!(gpu.queue.fault().is_none());
}

#[test]
fn kernel_of_a_gfx942_gets_scratch_for_both_xccs_and_is_then_refused_by_name() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let gpu = Gpu::on(&Machine::new("gfx942").open(), 0);
    let kernel = gpu.kernel("scratch");
    let wave = u64::from(kernel.metadata().private_bytes) * 64;
    let there = gpu.agent.vram_available().unwrap();
    let sums = Sums::submit(&gpu, &kernel);
    let refused = sums.done.wait_done(SOON).unwrap_err();
    let WaitError::Queue(fault) = refused else { panic!("{refused:?}") };
    // The device has looked at the memory first: all that both XCCs could reach is there, and none reaches the other's.
    assert_eq!(
        (fault.codes.as_slice(), fault.memory.is_none()),
        (&[ExceptionCode::PacketUnsupported][..], true)
    );
    // 76 compute units and 8 engines: as if each engine had 10 units, of 32 waves each.
    let slots = 80 * 32;
    let taken = there - gpu.agent.vram_available().unwrap();
    let buffers = 2 * u64::from(Sums::ITEMS) * 4;
    let whole = |bytes: u64| bytes.next_multiple_of(2 << 20);
    assert!(
        taken >= slots * wave && taken <= whole(slots * wave.next_multiple_of(4096)) + whole(buffers),
        "{taken} {wave}"
    );
    // Other queues go on.
    let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
    barrier(&Gpu { queue, ..gpu.clone() });
}

#[test]
fn kernels_run_on_both_xccs_with_private_memory_in_the_part_of_each() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let gpu = Gpu::on(&Machine::new("gfx1100").open(), 0);
    let kernel = deep(&gpu);
    Sums::submit(&gpu, &kernel).check();
    refused_preemption(&gpu.runtime);
    checkpoint(&gpu.runtime);
    Sums::submit(&gpu, &kernel).check();
    assert!(gpu.queue.fault().is_none());
}

#[test]
fn more_queues_than_the_hardware_holds_take_turns_through_the_areas_of_both_xccs() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let gpu = Gpu::on(&Machine::new("gfx1100").open(), 0);
    let others: Vec<_> = (0..gpu.agent.node().properties.num_cp_queues)
        .map(|_| {
            let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
            Gpu { queue, ..gpu.clone() }
        })
        .collect();
    // Two work-groups each: one on either XCC.
    let tallies: Vec<_> = others.iter().map(Tally::start).collect();
    let last = Tally::start(&gpu);
    tallies.iter().chain([&last]).for_each(Tally::wait_for_more);
    tallies.into_iter().chain([last]).for_each(Tally::finish);
}

#[test]
fn wave_of_the_second_xcc_is_named_in_the_report_of_its_fault() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let gpu = Gpu::on(&Machine::new("gfx1100").open(), 0);
    // Work-group 1 alone covers the hole behind the buffer, which ends with a page.
    let (buffer, kernel) = (gpu.buffer(&[0f32; 1024]), gpu.kernel("axpy"));
    let args = [Arg::Buffer(&buffer), Arg::Buffer(&buffer), Arg::F32(1.0), Arg::U32(1025)];
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    let dispatch = gpu.queue.dispatch(&kernel).grid([2048, 1, 1]).block([1024, 1, 1]);
    dispatch.args(&args).completion(&done).submit().unwrap();
    let failed = done.wait_done(SOON).unwrap_err();
    let WaitError::Queue(fault) = failed else { panic!("{failed:?}") };
    assert_eq!(fault.memory.unwrap().address, buffer.va() + 4096);
    let wave = fault.wave.as_ref().unwrap();
    assert_eq!((wave.workgroup, wave.kernel.as_ref().unwrap().0.as_str()), ([1, 0, 0], "axpy"), "{fault}");
}
