// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that run before their buffers are filled, each call that looks at one, and what it brings.

use std::path::Path;
use std::time::{Duration, Instant};

use kfd::Errno;
use kfd::sys::AMDKFD_IOC_MAP_MEMORY_TO_GPU;

use crate::checkpoint::{Admission, Lazy, Mode, RestoreOptions, RestoreReport, State};
use crate::share::export_named;
use crate::testing::{TestDriver, TestTransport, runtime, runtime_on};
use crate::*;

/// TIMEOUT: a generous limit for what takes milliseconds.
const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const PIECE: u64 = super::PIECE_BYTES;

/// Freezes a runtime, and brings it back without the contents of its buffers.
fn thawed(runtime: &Runtime, directory: &Path, lazy: Lazy) -> RestoreReport {
    runtime.lock(Mode::Drain, SOON).unwrap();
    runtime.checkpoint(directory).unwrap();
    let admission = Some(Admission { lazy, ..Admission::default() });
    let report = runtime.restore_with(&RestoreOptions { admission, ..RestoreOptions::default() }).unwrap();
    runtime.unlock().unwrap();
    report
}

fn left(runtime: &Runtime) -> u64 {
    runtime.context().arriving.left_bytes()
}

/// Bytes of a buffer that are nowhere the same.
fn pattern(seed: u8, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|n| (n / 4096) as u8 ^ (n % 251) as u8 ^ seed | 1).collect()
}

struct Fixture {
    runtime: Runtime,
    kernel: std::sync::Arc<TestDriver>,
    agent: Agent,
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let (runtime, kernel) = runtime(1);
        let agent = runtime.agent(0).unwrap();
        Self { runtime, kernel, agent, directory: tempfile::tempdir().unwrap() }
    }

    fn filled(&self, seed: u8, bytes: u64) -> Buffer {
        let buffer = self.agent.vram().alloc(bytes).unwrap();
        buffer.write(0, &pattern(seed, bytes)).unwrap();
        buffer
    }

    fn thaw(&self) -> RestoreReport {
        thawed(&self.runtime, self.directory.path(), Lazy::Asked)
    }

    fn left(&self) -> u64 {
        left(&self.runtime)
    }

    /// Runs the copy kernel from one address to another.
    fn copy(&self, queue: &Queue, to: u64, from: u64, bytes: u64) -> Result<(), SubmitError> {
        let executable = Executable::load(&self.agent, device_lib::object_for("gfx1100").unwrap()).unwrap();
        let kernel = executable.kernel(device_lib::COPY).unwrap();
        let launch = device_lib::copy(to, from, bytes).unwrap();
        let done = Signal::new(&self.runtime, 1).unwrap();
        let arguments = launch.arguments.to_bytes();
        let dispatch = queue.dispatch(&kernel).grid(launch.grid).block(launch.workgroup);
        dispatch.raw_kernarg(&arguments).completion(&done).submit()?;
        done.wait(Condition::Equal(0), Some(SOON), WaitMode::Blocked).unwrap();
        Ok(())
    }
}

#[test]
fn reads_and_writes_bring_the_pieces_that_they_touch() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.filled(1, 3 * PIECE + 4096), fixture.filled(2, PIECE));
    let report = fixture.thaw();
    assert_eq!((report.lazy_bytes, report.not_lazy), (4 * PIECE + 4096, None));
    assert_eq!(fixture.left(), 4 * PIECE + 4096);
    let (first, second) = (pattern(1, 3 * PIECE + 4096), pattern(2, PIECE));
    let mut bytes = [0; 64];
    one.read(PIECE + 32, &mut bytes).unwrap();
    assert_eq!(bytes[..], first[(PIECE + 32) as usize..][..64]);
    assert_eq!(fixture.left(), 3 * PIECE + 4096);
    // Over the border between two pieces, of which one is there.
    one.write(2 * PIECE - 2, b"abcd").unwrap();
    assert_eq!(fixture.left(), 2 * PIECE + 4096);
    let mut wanted = first;
    wanted[(2 * PIECE - 2) as usize..][..4].copy_from_slice(b"abcd");
    assert_eq!(one.to_vec().unwrap(), wanted, "what was stored stays");
    assert_eq!(fixture.left(), PIECE);
    {
        let guard = other.host().unwrap();
        let mut seen = vec![0; PIECE as usize];
        mapped_read(&guard, &mut seen);
        assert_eq!(seen, second);
    }
    assert!(!fixture.runtime.context().arriving.is_active());
}

/// What the pointer of a guard shows.
#[allow(unsafe_code)]
fn mapped_read(guard: &HostGuard<'_>, into: &mut [u8]) {
    // SAFETY: the guard's buffer has at least as many bytes, and no agent writes them.
    unsafe { guard.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
}

#[test]
fn kernel_brings_what_its_arguments_name_and_what_that_names() {
    let fixture = Fixture::new();
    let queue = Queue::create(&fixture.agent, QueueOptions::default()).unwrap();
    let (from, to) = (fixture.filled(1, PIECE), fixture.filled(2, PIECE));
    let (named, unnamed) = (fixture.filled(3, PIECE), fixture.filled(4, PIECE));
    // A pointer into the middle of a buffer, in one that the kernel is given.
    from.write(4096, &(named.va() + 77).to_le_bytes()).unwrap();
    fixture.thaw();
    assert_eq!(fixture.left(), 4 * PIECE);
    fixture.copy(&queue, to.va(), from.va(), 8192).unwrap();
    assert_eq!(fixture.left(), PIECE, "what nothing names is still to come");
    let mut seen = [0; 8];
    to.read(4096, &mut seen).unwrap();
    assert_eq!(u64::from_le_bytes(seen), named.va() + 77);
    // What the pointer names that the process stores now is there first, and when it is stored in parts.
    let pointer = unnamed.va().to_le_bytes();
    to.write(8, &pointer[..4]).unwrap();
    assert_eq!(fixture.left(), PIECE);
    to.write(12, &pointer[4..]).unwrap();
    assert_eq!(fixture.left(), 0);
    fixture.copy(&queue, from.va(), to.va(), 8192).unwrap();
    assert_eq!(fixture.left(), 0);
    assert_eq!(unnamed.to_vec().unwrap(), pattern(4, PIECE));
}

#[test]
fn pointers_that_copies_and_fills_move_are_followed() {
    let fixture = Fixture::new();
    let queue = Queue::create(&fixture.agent, QueueOptions::default()).unwrap();
    let (table, copy, filled) =
        (fixture.filled(1, PIECE), fixture.filled(2, PIECE), fixture.filled(3, PIECE));
    let (named, other) = (fixture.filled(4, PIECE), fixture.filled(5, PIECE));
    table.write(0, &named.va().to_le_bytes()).unwrap();
    fixture.thaw();
    fixture.runtime.copy(copy.all(), table.all(), &[]).unwrap().wait(Some(SOON)).unwrap();
    assert_eq!(fixture.left(), 3 * PIECE);
    fixture.copy(&queue, copy.va() + 64, copy.va(), 64).unwrap();
    assert_eq!(fixture.left(), 2 * PIECE);
    // A pattern is an address: what it names is there before the fill.
    let pattern = other.va().to_le_bytes();
    fixture.runtime.fill(filled.span(0, 64), &pattern, &[]).unwrap().wait(Some(SOON)).unwrap();
    assert_eq!(fixture.left(), 0);
}

#[test]
fn whoever_may_store_anything_has_all_come_before_a_kernel_that_reaches_it() {
    let fixture = Fixture::new();
    let queue = Queue::create(&fixture.agent, QueueOptions::default()).unwrap();
    let (from, to, _other) = (fixture.filled(1, PIECE), fixture.filled(2, PIECE), fixture.filled(3, PIECE));
    fixture.thaw();
    drop(from.host().unwrap());
    assert_eq!(fixture.left(), 2 * PIECE);
    fixture.copy(&queue, to.va(), from.va(), 64).unwrap();
    assert_eq!(fixture.left(), 0);
    // A kernel that runs may wait for what is stored.
    fixture.thaw();
    fixture.copy(&queue, to.va(), from.va(), 64).unwrap();
    assert_eq!(fixture.left(), PIECE);
    drop(to.host().unwrap());
    assert_eq!(fixture.left(), 0);
}

#[test]
fn buffer_that_others_know_by_name_is_whole_when_one_asks_for_it() {
    let fixture = Fixture::new();
    let buffer = fixture.runtime.gtt().alloc(PIECE).unwrap();
    buffer.write(0, &pattern(1, PIECE)).unwrap();
    let name = buffer.name().unwrap();
    assert_eq!(fixture.thaw().lazy_bytes, PIECE);
    let context = fixture.runtime.context();
    let exported = export_named(context, &context.gate.enter().unwrap(), name.number).unwrap();
    assert!(exported.is_some() && fixture.left() == 0);
}

#[test]
fn batches_lists_and_raw_queues_bring_what_they_may_reach() {
    let fixture = Fixture::new();
    let queue = Queue::create(&fixture.agent, QueueOptions::default()).unwrap();
    let raw = raw::RawQueue::create(&fixture.agent, raw::RawOptions::default()).unwrap();
    let executable = Executable::load(&fixture.agent, device_lib::object_for("gfx1100").unwrap()).unwrap();
    let kernel = executable.kernel(device_lib::COPY).unwrap();
    let buffers: Vec<Buffer> = (0..6).map(|seed| fixture.filled(seed, PIECE)).collect();
    let launch = |to: usize, from: usize| device_lib::copy(buffers[to].va(), buffers[from].va(), 64).unwrap();
    let (first, second) = (launch(0, 1), launch(2, 3));
    let (one, two) = (first.arguments.to_bytes(), second.arguments.to_bytes());
    let dispatch = |arguments, launch: &device_lib::Launch<_>| {
        queue.dispatch(&kernel).grid(launch.grid).block(launch.workgroup).raw_kernarg(arguments)
    };
    let mut list = CommandList::new(&queue);
    list.dispatch(dispatch(&two, &second)).unwrap();
    fixture.thaw();
    queue.submit_batch(&[dispatch(&one, &first)]).unwrap();
    assert_eq!(fixture.left(), 4 * PIECE);
    list.submit().unwrap();
    assert_eq!(fixture.left(), 2 * PIECE);
    queue.wait_idle(Some(SOON)).unwrap();
    assert_eq!(buffers[2].to_vec().unwrap()[..64], pattern(3, PIECE)[..64]);
    drop(raw.access().unwrap());
    assert_eq!(fixture.left(), 0);
}

#[test]
fn exported_and_allowed_buffers_are_whole_and_a_freed_one_never_comes() {
    let (runtime, _) = runtime(2);
    let (agent, peer) = (runtime.agent(0).unwrap(), runtime.agent(1).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let make = |seed| {
        let buffer = runtime.gtt().alloc(PIECE).unwrap();
        buffer.write(0, &pattern(seed, PIECE)).unwrap();
        buffer
    };
    let (exported, allowed, freed) = (make(1), agent.vram().alloc(PIECE).unwrap(), make(3));
    allowed.write(0, &pattern(2, PIECE)).unwrap();
    thawed(&runtime, directory.path(), Lazy::Asked);
    drop(exported.export().unwrap());
    assert_eq!(left(&runtime), 2 * PIECE);
    allowed.allow(&peer).unwrap();
    assert_eq!(left(&runtime), PIECE);
    freed.free().unwrap();
    assert!(!runtime.context().arriving.is_active());
    assert_eq!(exported.to_vec().unwrap(), pattern(1, PIECE));
    assert_eq!(allowed.to_vec().unwrap(), pattern(2, PIECE));
}

#[test]
fn zeros_cost_nothing_and_are_mapped_when_they_are_used() {
    let fixture = Fixture::new();
    let queue = Queue::create(&fixture.agent, QueueOptions::default()).unwrap();
    let (zeros, from) = (fixture.agent.vram().alloc(64 * MIB).unwrap(), fixture.filled(1, 4096));
    let report = fixture.thaw();
    assert_eq!(report.lazy_bytes, 4096);
    fixture.copy(&queue, zeros.va() + 32 * MIB, from.va(), 4096).unwrap();
    let mut seen = vec![0; 4096];
    zeros.read(32 * MIB, &mut seen).unwrap();
    assert_eq!(seen, pattern(1, 4096));
}

#[test]
fn all_comes_in_the_background() {
    let fixture = Fixture::new();
    let buffers: Vec<Buffer> =
        (0..20).map(|seed| fixture.filled(seed, PIECE / 2 + u64::from(seed))).collect();
    thawed(&fixture.runtime, fixture.directory.path(), Lazy::Background);
    let until = Instant::now() + SOON;
    while fixture.runtime.context().arriving.is_active() {
        assert!(Instant::now() < until, "{} bytes do not come", fixture.left());
        std::thread::sleep(Duration::from_millis(1));
    }
    for (seed, buffer) in (0..).zip(&buffers) {
        assert_eq!(buffer.to_vec().unwrap(), pattern(seed, PIECE / 2 + u64::from(seed)));
    }
}

#[test]
fn next_checkpoint_has_all_of_it() {
    let fixture = Fixture::new();
    let (buffer, changed) = (fixture.filled(1, 2 * PIECE), fixture.filled(2, 2 * PIECE));
    for generation in 0..3u8 {
        fixture.thaw();
        assert_eq!(fixture.left(), 4 * PIECE);
        changed.write(u64::from(generation), &[generation]).unwrap();
    }
    // From LOCKED, too.
    fixture.thaw();
    fixture.runtime.lock(Mode::Drain, SOON).unwrap();
    fixture.runtime.unlock().unwrap();
    assert_eq!(fixture.left(), 0, "a lock brings it while the process runs");
    let mut wanted = pattern(2, 2 * PIECE);
    wanted[..3].copy_from_slice(&[0, 1, 2]);
    assert_eq!((buffer.to_vec().unwrap(), changed.to_vec().unwrap()), (pattern(1, 2 * PIECE), wanted));
}

#[test]
fn checkpoint_of_a_locked_process_has_all_of_it() {
    let fixture = Fixture::new();
    let buffer = fixture.filled(1, 2 * PIECE);
    let (runtime, directory) = (&fixture.runtime, fixture.directory.path());
    runtime.lock(Mode::Drain, SOON).unwrap();
    runtime.checkpoint(directory).unwrap();
    let admission = Some(Admission { lazy: Lazy::Asked, ..Admission::default() });
    runtime.restore_with(&RestoreOptions { admission, ..RestoreOptions::default() }).unwrap();
    assert_eq!(runtime.state(), State::Locked);
    runtime.checkpoint(directory).unwrap();
    runtime.restore(None).unwrap();
    runtime.unlock().unwrap();
    assert_eq!(buffer.to_vec().unwrap(), pattern(1, 2 * PIECE));
}

#[test]
fn what_cannot_come_later_comes_before_and_is_said() {
    let fixture = Fixture::new();
    let buffer = fixture.filled(1, PIECE);
    let queue = Queue::create(&fixture.agent, QueueOptions::default()).unwrap();
    let (gate, done) = (Signal::new(&fixture.runtime, 1).unwrap(), Signal::new(&fixture.runtime, 1).unwrap());
    queue.barrier(&[&gate], Some(&done)).unwrap();
    let report = fixture.thaw();
    assert!(report.not_lazy.unwrap().contains("packets wait in a queue"));
    assert_eq!((report.lazy_bytes, fixture.left()), (0, 0));
    assert_eq!(buffer.to_vec().unwrap(), pattern(1, PIECE));
    gate.store(0).unwrap();
    done.wait(Condition::Equal(0), Some(SOON), WaitMode::Blocked).unwrap();
    let _range = fixture.runtime.gtt().physical(4096).unwrap();
    assert!(fixture.thaw().not_lazy.unwrap().contains("physical memory"));
}

#[test]
fn mapping_that_the_driver_refuses_is_told_and_tried_again() {
    let fixture = Fixture::new();
    let (from, to) = (fixture.filled(1, PIECE), fixture.filled(2, PIECE));
    // So that the copy kernels are loaded.
    fixture.runtime.copy(to.span(0, 64), to.span(64, 64), &[]).unwrap().wait(Some(SOON)).unwrap();
    to.write(0, &pattern(2, 64)).unwrap();
    fixture.thaw();
    fixture.kernel.fail_once(AMDKFD_IOC_MAP_MEMORY_TO_GPU, Errno::ENOMEM);
    let refused = fixture.runtime.copy(to.all(), from.all(), &[]).unwrap_err();
    assert!(matches!(refused, CopyError::Contents(_)), "{refused}");
    fixture.runtime.copy(to.all(), from.all(), &[]).unwrap().wait(Some(SOON)).unwrap();
    assert_eq!(to.to_vec().unwrap(), pattern(1, PIECE));
}

#[test]
fn memory_that_nobody_asked_for_is_mapped_to_no_agent() {
    let fixture = Fixture::new();
    let queue = Queue::create(&fixture.agent, QueueOptions::default()).unwrap();
    let (to, hidden) = (fixture.filled(1, PIECE), fixture.filled(2, PIECE));
    fixture.thaw();
    // A kernel that has an address from elsewhere: no argument and no memory that it reaches names it.
    let executable = Executable::load(&fixture.agent, device_lib::object_for("gfx1100").unwrap()).unwrap();
    let kernel = executable.kernel(device_lib::COPY).unwrap();
    let launch = device_lib::copy(to.va(), hidden.va(), 64).unwrap();
    let arguments = launch.arguments.to_bytes();
    let dispatch = queue.dispatch(&kernel).grid(launch.grid).block(launch.workgroup).raw_kernarg(&arguments);
    fixture.runtime.context().arriving.pretend_nothing_is_named();
    dispatch.submit().unwrap();
    let fault = queue.wait_idle(Some(SOON)).unwrap_err();
    assert!(explain(&fault).contains("memory"), "{}", explain(&fault));
    assert!(fixture.left() >= PIECE);
    assert_eq!(hidden.to_vec().unwrap(), pattern(2, PIECE));
}

#[test]
fn restore_that_fails_later_leaves_nothing_to_come() {
    let transport = TestTransport::new(1);
    let (runtime, kernel) = runtime_on(std::sync::Arc::clone(&transport));
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let buffer = agent.vram().alloc(PIECE).unwrap();
    buffer.write(0, &pattern(1, PIECE)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    runtime.lock(Mode::Drain, SOON).unwrap();
    runtime.checkpoint(directory.path()).unwrap();
    kernel.fail_once(kfd::sys::AMDKFD_IOC_RESET_EVENT, Errno::ENOMEM);
    let options = RestoreOptions {
        admission: Some(Admission { lazy: Lazy::Asked, ..Admission::default() }),
        ..RestoreOptions::default()
    };
    runtime.restore_with(&options).unwrap_err();
    assert_eq!((runtime.state(), left(&runtime)), (State::Checkpointed, 0));
    runtime.restore_with(&options).unwrap();
    runtime.unlock().unwrap();
    assert_eq!(left(&runtime), PIECE);
    assert_eq!(buffer.to_vec().unwrap(), pattern(1, PIECE));
    drop(queue);
}
