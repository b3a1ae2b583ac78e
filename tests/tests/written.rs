// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints on a device that tells what its GPUs have written (`SOFTGPU_WRITES=on`): what nobody wrote is not read again, and every
//! byte is the one that the process had when it was stopped, whoever wrote it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stasis::checkpoint::{CheckpointOptions, CheckpointReport, Mode, PreCopyOptions, RestoreOptions};
use stasis::{Access, Arg, Buffer, CopyEngine};
use stasis_tests::criu;
use stasis_tests::gpu::{
    Gpu, Numbers, SOON, machine_file, open_on, skip_on_kernel_driver, told_of_writes, values,
};
use stasis_tests::worker::{Worker, open_files, stasis, succeeded, wait_until};

const DEADLINE: Duration = Duration::from_secs(60);
const CHUNK: u64 = 2 << 20;
const ONLY_SOFT: &str = "no hardware tells what was written";

/// Checkpoints into `into` upon `parent`, and restores from the files.
fn down_and_up(gpu: &Gpu, parent: Option<&Path>, into: &Path) -> CheckpointReport {
    fs::create_dir(into).unwrap();
    gpu.runtime.lock(Mode::Drain, DEADLINE).unwrap();
    let options = CheckpointOptions { parent: parent.map(PathBuf::from), ..CheckpointOptions::default() };
    let report = gpu.runtime.checkpoint_with(into, &options).unwrap();
    let from = RestoreOptions { directory: Some(into.into()), ..RestoreOptions::default() };
    gpu.runtime.restore_with(&from).unwrap();
    gpu.runtime.unlock().unwrap();
    report
}

/// Bytes of the buffers that were read.
fn read(report: &CheckpointReport) -> u64 {
    report.content_bytes - report.unread_bytes
}

fn numbers(seed: u64, bytes: u64) -> Vec<u8> {
    bytemuck::cast_slice(&Numbers(seed).take(bytes as usize / 4).collect::<Vec<u32>>()).to_vec()
}

fn filled(gpu: &Gpu, seed: u64, bytes: u64) -> (Buffer, Vec<u8>) {
    let (buffer, bytes) = (gpu.agent.vram().alloc(bytes).unwrap(), numbers(seed, bytes));
    buffer.upload(0, &bytes).unwrap();
    (buffer, bytes)
}

#[test]
fn only_what_was_written_is_read_whoever_wrote_it() {
    if skip_on_kernel_driver(ONLY_SOFT) {
        return;
    }
    told_of_writes();
    let (gpu, temporary) = (Gpu::new(), tempfile::tempdir().unwrap());
    let (large, mut bytes) = filled(&gpu, 1, 28 * CHUNK);
    let zeros = gpu.runtime.gtt().alloc(8 * CHUNK).unwrap();
    let counter = gpu.buffer(&[0u32]);
    let before = temporary.path().join("before");
    fs::create_dir(&before).unwrap();
    let copied = gpu.runtime.pre_copy(&before, &PreCopyOptions::default()).unwrap();
    assert!(copied.rounds[0] >= 28 * CHUNK, "{copied:?}");
    // Each in a chunk of its own: the host through the runtime and by itself, a kernel, both kinds of engine.
    let mut change = |at: u64, new: &[u8]| bytes[at as usize..at as usize + new.len()].copy_from_slice(new);
    large.upload(3 * CHUNK + 5, &[7]).unwrap();
    change(3 * CHUNK + 5, &[7]);
    large.write(9 * CHUNK, &[8; 100]).unwrap();
    change(9 * CHUNK, &[8; 100]);
    for (n, engine) in [(15, CopyEngine::Shader), (17, CopyEngine::Sdma)] {
        gpu.runtime
            .fill_by(engine, large.span(n * CHUNK + 4, 8), &[n as u8; 4], &[])
            .unwrap()
            .wait(SOON)
            .unwrap();
        change(n * CHUNK + 4, &[n as u8; 8]);
        let source = gpu.buffer(&[0x0707_0707u32 + n as u32; 16]);
        let to = large.span((n + 4) * CHUNK, 64);
        gpu.runtime.copy_by(engine, to, source.all(), &[]).unwrap().wait(SOON).unwrap();
        change((n + 4) * CHUNK, bytemuck::bytes_of(&[0x0707_0707u32 + n as u32; 16]));
    }
    gpu.run(&gpu.kernel("increment"), [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    let report = down_and_up(&gpu, Some(&before), &temporary.path().join("into"));
    // Six chunks, and what the runtime and the small buffers have.
    assert!((6 * CHUNK..9 * CHUNK).contains(&read(&report)), "{report:?}");
    assert!(report.unread_bytes >= 30 * CHUNK, "{report:?}");
    assert!(values::<u8>(&large) == bytes);
    assert!(values::<u8>(&zeros).iter().all(|byte| *byte == 0));
    assert_eq!(values::<u32>(&counter), [10]);
    // What was filled by a restore is known, too.
    large.write(8 * CHUNK, &[1]).unwrap();
    bytes[8 * CHUNK as usize] = 1;
    let into = temporary.path().join("into");
    let report = down_and_up(&gpu, Some(&into), &temporary.path().join("next"));
    assert!((CHUNK..4 * CHUNK).contains(&read(&report)), "{report:?}");
    fs::remove_dir_all(&into).unwrap();
    fs::remove_dir_all(&before).unwrap();
    // Without a parent all is written, and right.
    let report = down_and_up(&gpu, None, &temporary.path().join("whole"));
    assert!(report.stored_bytes >= 28 * CHUNK, "{report:?}");
    assert!(values::<u8>(&large) == bytes);
}

/// One random act, on the buffers and on what they are to hold.
fn act(gpu: &Gpu, random: &mut Numbers, held: &mut [(Buffer, Vec<u8>)]) {
    let mut below = |limit: usize| random.next().unwrap() as usize % limit;
    let (kind, at, other) = (below(8), below(held.len()), below(held.len()));
    let length = held[at].1.len();
    let offset = below(length - 4096) / 8 * 8;
    let bytes = 8 + below(4080) / 8 * 8;
    let value = below(250) as u8 + 1;
    let engine = if below(2) == 0 { CopyEngine::Shader } else { CopyEngine::Sdma };
    let range = offset..offset + bytes;
    match kind {
        0 => {
            held[at].0.upload(offset as u64, &vec![value; bytes]).unwrap();
            held[at].1[range].fill(value);
        }
        1 => {
            let guard = held[at].0.host().unwrap();
            // SAFETY: inside of the buffer, which nothing else uses now.
            unsafe { guard.as_ptr().add(offset).write_bytes(value, bytes) };
            drop(guard);
            held[at].1[range].fill(value);
        }
        2 | 3 => {
            let span = held[at].0.span(offset as u64, bytes as u64);
            gpu.runtime.fill_by(engine, span, &[value; 4], &[]).unwrap().wait(SOON).unwrap();
            held[at].1[range].fill(value);
        }
        4 => {
            if at == other {
                return;
            }
            let from = below(held[other].1.len() - 4096) / 8 * 8;
            let (to, source) = (&held[at].0, &held[other].0);
            let spans = (to.span(offset as u64, bytes as u64), source.span(from as u64, bytes as u64));
            gpu.runtime.copy_by(engine, spans.0, spans.1, &[]).unwrap().wait(SOON).unwrap();
            let copied = held[other].1[from..from + bytes].to_vec();
            held[at].1[range].copy_from_slice(&copied);
        }
        5 => {
            // Another buffer at the same place.
            while held[at].0.free().is_err() {}
            held[at] = filled(gpu, u64::from(value), length as u64);
        }
        6 => {
            held[at].0.deny(&gpu.agent).unwrap();
            held[at].0.allow(&gpu.agent).unwrap();
        }
        _ => {
            // Written by the GPU, and then out of its reach for a while.
            let span = held[at].0.span(offset as u64, bytes as u64);
            gpu.runtime.fill_by(engine, span, &[value; 4], &[]).unwrap().wait(SOON).unwrap();
            held[at].1[range].fill(value);
            held[at].0.deny(&gpu.agent).unwrap();
        }
    }
}

#[test]
fn any_sequence_of_writes_and_checkpoints_keeps_every_byte() {
    if skip_on_kernel_driver(ONLY_SOFT) {
        return;
    }
    told_of_writes();
    let (gpu, temporary) = (Gpu::new(), tempfile::tempdir().unwrap());
    let mut random = Numbers(20_261_128);
    let sizes = [2 * CHUNK, CHUNK, 8192, CHUNK + 4096, 4 * CHUNK];
    let mut held: Vec<_> = (0..).zip(sizes).map(|(seed, bytes)| filled(&gpu, seed, bytes)).collect();
    let mut last: Option<PathBuf> = None;
    let (mut unread, mut all) = (0, 0);
    for round in 0..20 {
        let acts = random.next().unwrap() % 6;
        (0..acts).for_each(|_| act(&gpu, &mut random, &mut held));
        if random.next().unwrap().is_multiple_of(2) {
            let before = temporary.path().join(format!("before{round}"));
            fs::create_dir(&before).unwrap();
            let options = PreCopyOptions { parent: last.clone(), ..PreCopyOptions::default() };
            gpu.runtime.pre_copy(&before, &options).unwrap();
            let acts = random.next().unwrap() % 4;
            (0..acts).for_each(|_| act(&gpu, &mut random, &mut held));
            last = Some(before);
        }
        let into = temporary.path().join(format!("into{round}"));
        let report = down_and_up(&gpu, last.as_deref(), &into);
        (unread, all) = (unread + report.unread_bytes, all + report.content_bytes);
        last = Some(into);
        for (n, (buffer, bytes)) in held.iter().enumerate() {
            buffer.allow(&gpu.agent).unwrap();
            assert!(&values::<u8>(buffer) == bytes, "buffer {n} after round {round}");
        }
    }
    assert!(unread > all / 3, "{unread} of {all} bytes were not read");
}

#[test]
fn memory_that_others_may_write_is_read_always() {
    if skip_on_kernel_driver(ONLY_SOFT) {
        return;
    }
    told_of_writes();
    let (gpu, temporary) = (Gpu::new(), tempfile::tempdir().unwrap());
    let range = gpu.runtime.reserve(4 * CHUNK, 0).unwrap();
    let memory = gpu.agent.vram().physical(4 * CHUNK).unwrap();
    range.map(0, &memory, 0, 4 * CHUNK).unwrap();
    range.set_access(0, 4 * CHUNK, &[(&gpu.agent, Access::ReadWrite)]).unwrap();
    let first = temporary.path().join("first");
    down_and_up(&gpu, None, &first);
    // Not at the address that the memory has itself.
    range.write(CHUNK, &[9; 64]).unwrap();
    let report = down_and_up(&gpu, Some(&first), &temporary.path().join("second"));
    assert!(read(&report) >= 4 * CHUNK, "{report:?}");
    let mut found = [0; 64];
    range.read(CHUNK, &mut found).unwrap();
    assert_eq!(found, [9; 64]);
}

#[test]
fn child_that_shares_the_buffers_ends_what_is_known() {
    if skip_on_kernel_driver(ONLY_SOFT) {
        return;
    }
    told_of_writes();
    let (gpu, temporary) = (Gpu::new(), tempfile::tempdir().unwrap());
    let (buffer, mut bytes) = filled(&gpu, 1, 4 * CHUNK);
    let first = temporary.path().join("first");
    down_and_up(&gpu, None, &first);
    let guard = buffer.host().unwrap();
    let at = guard.as_ptr();
    // SAFETY: the child stores a byte into memory that nothing else uses now, and ends.
    unsafe {
        match nix::libc::fork() {
            0 => {
                at.add(CHUNK as usize).write_volatile(77);
                nix::libc::pause();
                nix::libc::_exit(0)
            }
            child => {
                let watches =
                    |pid: i32| open_files(pid).iter().filter(|name| name.contains("userfaultfd")).count();
                wait_until("the child's store", || at.add(CHUNK as usize).read_volatile() == 77);
                assert_eq!((watches(std::process::id().cast_signed()), watches(child)), (1, 0));
                assert_eq!(nix::libc::kill(child, nix::libc::SIGKILL), 0);
                assert_eq!(nix::libc::waitpid(child, std::ptr::null_mut(), 0), child);
            }
        }
    }
    drop(guard);
    bytes[CHUNK as usize] = 77;
    let report = down_and_up(&gpu, Some(&first), &temporary.path().join("second"));
    assert_eq!(report.unread_bytes, 0, "{report:?}");
    assert!(values::<u8>(&buffer) == bytes);
}

#[test]
fn several_gpus_and_memory_that_the_process_does_not_see_are_told_of() {
    if skip_on_kernel_driver(ONLY_SOFT) {
        return;
    }
    told_of_writes();
    let (_file, path) = machine_file(
        "pcie_p2p = true\n[[gpu]]\nchip = \"gfx1100\"\nbar = \"small\"\n[[gpu]]\nchip = \"gfx1100\"\n",
    );
    let runtime = open_on(&format!("soft:{}", path.display()), None);
    let (hidden, open) = (Gpu::on(&runtime, 0), Gpu::on(&runtime, 1));
    let temporary = tempfile::tempdir().unwrap();
    let (one, mut of_one) = filled(&hidden, 1, 8 * CHUNK);
    let (other, mut of_other) = filled(&open, 2, 8 * CHUNK);
    other.allow(&hidden.agent).unwrap();
    let first = temporary.path().join("first");
    down_and_up(&hidden, None, &first);
    runtime.fill(one.span(CHUNK, 4), &[1, 2, 3, 4], &[]).unwrap().wait(SOON).unwrap();
    of_one[CHUNK as usize..][..4].copy_from_slice(&[1, 2, 3, 4]);
    // The first GPU writes into the second one's memory.
    let args = [Arg::Buffer(&other)];
    hidden.run(&hidden.kernel("increment"), [1, 1, 1], [1, 1, 1], &args);
    let before = u32::from_le_bytes(of_other[..4].try_into().unwrap());
    of_other[..4].copy_from_slice(&before.wrapping_add(1).to_le_bytes());
    let report = down_and_up(&hidden, Some(&first), &temporary.path().join("second"));
    assert!((2 * CHUNK..5 * CHUNK).contains(&read(&report)), "{report:?}");
    for (buffer, bytes) in [(&one, of_one), (&other, of_other)] {
        let mut found = vec![0; bytes.len()];
        buffer.download(0, &mut found).unwrap();
        assert!(found == bytes);
    }
}

#[test]
fn process_that_is_restored_by_criu_knows_what_it_was_filled_with() {
    if skip_on_kernel_driver(ONLY_SOFT) {
        return;
    }
    told_of_writes();
    let mut worker = Worker::start(&["--threads", "2"]);
    succeeded(&worker.checkpoint("generation0", &["--pre-copy"]));
    worker.bury();
    let mut unread = Vec::new();
    for generation in 1..4 {
        succeeded(&worker.restore(&format!("generation{}", generation - 1)));
        worker.wait_rounds(2);
        let last = worker.path(&format!("generation{}", generation - 1));
        let words: &[&str] = if generation == 2 { &["--pre-copy", "--parent"] } else { &["--parent"] };
        let words = [words, &[last.to_str().unwrap()]].concat();
        let outcome = succeeded(&worker.checkpoint(&format!("generation{generation}"), &words));
        worker.bury();
        unread.push(outcome["unread_bytes"].as_u64().unwrap());
        fs::remove_dir_all(last).unwrap();
    }
    assert!(unread.iter().all(|bytes| *bytes > 0), "{unread:?}");
    let last = worker.path("generation3");
    succeeded(&stasis(&["inspect", "--json", "--verify", last.to_str().unwrap()], &criu()));
    succeeded(&worker.restore("generation3"));
    worker.wait_rounds(2);
    worker.finish();
}
