// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contents that the CPU does not see, or reads slowly, are moved by copy engines, down and up.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use stasis::checkpoint::{CheckpointError, CheckpointReport, Mode, RestoreReport};
use stasis::{Arg, Buffer, Runtime};
use stasis_tests::gpu::{
    Gpu, Numbers, machine_file, on_a_future_kernel, open_on, skip_on_kernel_driver, values,
};
use tempfile::TempDir;

const REASON: &str = "its machine is one of the software device";
const DEADLINE: Duration = Duration::from_secs(60);
/// A board without resizable BAR.
const SMALL: &str = "[[gpu]]\nchip = \"gfx1100\"\nbar = \"small\"\n";
/// A board whose memory the CPU reads as slowly as real ones.
const SLOW: &str = "[[gpu]]\nchip = \"gfx1100\"\nbar_read_mbytes = 50\n";
const FAST: &str = "[[gpu]]\nchip = \"gfx1100\"\n";

struct Machine {
    gpu: Gpu,
    directory: TempDir,
}

impl Machine {
    fn new(text: &str) -> Self {
        let (directory, path) = machine_file(text);
        let runtime = open_on(&format!("soft:{}", path.display()), None);
        Machine { gpu: Gpu::on(&runtime, 0), directory }
    }

    fn runtime(&self) -> &Runtime {
        &self.gpu.runtime
    }

    fn down_and_up(&self) -> (CheckpointReport, RestoreReport) {
        self.runtime().lock(Mode::Drain, DEADLINE).unwrap();
        let down = self.runtime().checkpoint(self.directory.path()).unwrap();
        let up = self.runtime().restore(None).unwrap();
        self.runtime().unlock().unwrap();
        (down, up)
    }

    /// A large buffer, a small one, one of zeros, many tiny ones; with what is in them.
    fn buffers(&self) -> Vec<(Buffer, Vec<u32>)> {
        let lengths = [3_000_001, 5, 1 << 20].into_iter().chain(1..=100);
        let filled = lengths.enumerate().map(|(n, length)| {
            let numbers = match n {
                2 => vec![0; length],
                _ => Numbers(n as u64 + 1).take(length).collect(),
            };
            (self.gpu.buffer(&numbers), numbers)
        });
        filled.collect()
    }

    /// A kernel of a code object that was loaded before runs, and one that is loaded now.
    fn count(&self, kernel: &stasis::Kernel, counter: &Buffer, wanted: u32) {
        self.gpu.run(kernel, [10, 1, 1], [1, 1, 1], &[Arg::Buffer(counter)]);
        self.gpu.run(&self.gpu.kernel("increment"), [10, 1, 1], [1, 1, 1], &[Arg::Buffer(counter)]);
        assert_eq!(downloaded(counter), [wanted]);
    }
}

fn downloaded(buffer: &Buffer) -> Vec<u32> {
    let mut bytes = vec![0; usize::try_from(buffer.len()).unwrap()];
    buffer.download(0, &mut bytes).unwrap();
    bytemuck::pod_collect_to_vec(&bytes)
}

fn all_are_as_they_were(buffers: &[(Buffer, Vec<u32>)]) {
    for (n, (buffer, wanted)) in buffers.iter().enumerate() {
        assert!(downloaded(buffer)[..wanted.len()] == wanted[..], "buffer {n}");
    }
}

#[test]
fn small_bar_is_saved_and_restored_by_the_copy_engine() {
    if skip_on_kernel_driver(REASON) {
        return;
    }
    let machine = Machine::new(SMALL);
    let buffers = machine.buffers();
    let (counter, kernel) = (machine.gpu.buffer(&[0u32]), machine.gpu.kernel("increment"));
    machine.count(&kernel, &counter, 20);
    let code = machine.runtime().pointer_info(kernel.object_va()).unwrap();
    assert!(!code.is_visible && code.owner == Some(0), "code is in the agent's memory: {code:?}");
    let addresses: Vec<u64> = buffers.iter().map(|(buffer, _)| buffer.va()).collect();
    for round in 1..=3 {
        let (down, up) = machine.down_and_up();
        let hidden: u64 = buffers.iter().map(|(buffer, _)| buffer.len().next_multiple_of(4096)).sum();
        assert!(down.engine_bytes >= hidden, "{} of {hidden}", down.engine_bytes);
        assert_eq!(up.engine_bytes, down.engine_bytes);
        all_are_as_they_were(&buffers);
        machine.count(&kernel, &counter, 20 + 20 * round);
    }
    assert!(buffers.iter().map(|(buffer, _)| buffer.va()).eq(addresses));
}

#[test]
fn preempted_queues_leave_no_way_to_hidden_memory_and_that_is_said() {
    if skip_on_kernel_driver(REASON) {
        return;
    }
    on_a_future_kernel();
    let machine = Machine::new(SMALL);
    let (buffer, wanted) = (machine.gpu.buffer(&[7u32; 2048]), vec![7u32; 2048]);
    let locked = machine.runtime().lock(Mode::Preempt, DEADLINE);
    let refused = locked.and_then(|()| machine.runtime().checkpoint(machine.directory.path()).map(drop));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, CheckpointError::Hidden { .. }), "{refused}");
    assert!(refused.to_string().contains("drain the queues"), "{refused}");
    machine.runtime().unlock().unwrap();
    assert_eq!(downloaded(&buffer), wanted);
}

#[test]
fn slow_reads_are_left_to_the_copy_engine() {
    large_bar(SLOW, true);
}

#[test]
fn fast_reads_are_not_left_to_the_copy_engine() {
    large_bar(FAST, false);
}

fn large_bar(text: &str, by_engine: bool) {
    if skip_on_kernel_driver(REASON) {
        return;
    }
    let machine = Machine::new(text);
    let buffers = machine.buffers();
    let (counter, kernel) = (machine.gpu.buffer(&[0u32]), machine.gpu.kernel("increment"));
    machine.count(&kernel, &counter, 20);
    let (down, up) = machine.down_and_up();
    let vram: u64 = buffers.iter().map(|(buffer, _)| buffer.len().next_multiple_of(4096)).sum();
    match by_engine {
        true => {
            assert!(down.engine_bytes >= vram && up.engine_bytes == down.engine_bytes, "{down:?} {up:?}")
        }
        false => assert_eq!((down.engine_bytes, up.engine_bytes), (0, 0)),
    }
    for (buffer, wanted) in &buffers {
        assert!(values::<u32>(buffer)[..wanted.len()] == wanted[..]);
    }
    machine.count(&kernel, &counter, 40);
}

#[test]
fn little_that_is_read_slowly_is_read_all_the_same() {
    if skip_on_kernel_driver(REASON) {
        return;
    }
    let machine = Machine::new("[[gpu]]\nchip = \"gfx1100\"\nbar_read_mbytes = 500\n");
    let buffer = machine.gpu.buffer(&[9u32; 1024]);
    let (down, up) = machine.down_and_up();
    assert_eq!((down.engine_bytes, up.engine_bytes), (0, 0), "an engine costs more than 4 KiB");
    assert_eq!(values::<u32>(&buffer), [9; 1024]);
}
