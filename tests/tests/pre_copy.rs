// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints of processes whose buffers were copied while they ran: every byte is the one that the process had when it was stopped.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use stasis::checkpoint::{
    CheckpointError, CheckpointOptions, CheckpointReport, IMAGE_FILE, Mode, PreCopyOptions, RestoreOptions,
};
use stasis::{Arg, Buffer, FreeError, Signal};
use stasis_tests::criu;
use stasis_tests::gpu::{Gpu, Numbers, SOON, machine_file, open_on, skip_on_kernel_driver, values};
use stasis_tests::tree::Tree;
use stasis_tests::worker::{Worker, refused, stasis, succeeded};

const DEADLINE: Duration = Duration::from_secs(60);
const CHUNK: usize = 2 << 20;

/// Checkpoints upon what was copied, takes that away, and restores.
fn down_and_up(gpu: &Gpu, before: &Path, into: &Path) -> CheckpointReport {
    gpu.runtime.lock(Mode::Drain, DEADLINE).unwrap();
    let options = CheckpointOptions { parent: Some(before.into()), ..CheckpointOptions::default() };
    let report = gpu.runtime.checkpoint_with(into, &options).unwrap();
    fs::remove_dir_all(before).unwrap();
    // Without what the keepers hold: of the files alone.
    let from = RestoreOptions { directory: Some(into.into()), ..RestoreOptions::default() };
    gpu.runtime.restore_with(&from).unwrap();
    gpu.runtime.unlock().unwrap();
    report
}

fn directory(of: &Path, name: &str) -> std::path::PathBuf {
    let path = of.join(name);
    fs::create_dir(&path).unwrap();
    path
}

#[test]
fn what_changed_after_it_was_copied_is_written_again_and_the_rest_is_not() {
    let (gpu, temporary) = (Gpu::new(), tempfile::tempdir().unwrap());
    let mut numbers: Vec<u32> = Numbers(3).take(16 * CHUNK / 4).collect();
    let (buffer, zeros) = (gpu.buffer(&numbers), gpu.runtime.gtt().alloc(CHUNK as u64).unwrap());
    let small: Vec<Buffer> = (0..50).map(|n| gpu.buffer(&[n; 100])).collect();
    for round in 0..3u8 {
        let before = directory(temporary.path(), &format!("before{round}"));
        let copied = gpu.runtime.pre_copy(&before, &PreCopyOptions::default()).unwrap();
        assert!(copied.content_bytes > buffer.len() && copied.left_bytes == 0, "{copied:?}");
        assert!(copied.rounds[0] >= buffer.len(), "{copied:?}");
        // Two chunks, and one that was zeros.
        for at in [5 * CHUNK, 11 * CHUNK + 77 * 4] {
            numbers[at / 4] ^= 0x55;
            buffer.upload(at as u64, &numbers[at / 4].to_le_bytes()).unwrap();
        }
        zeros.write(100, &[round + 1]).unwrap();
        let into = directory(temporary.path(), &format!("images{round}"));
        let report = down_and_up(&gpu, &before, &into);
        assert!(report.stored_bytes < 4 * CHUNK as u64, "{report:?}");
        assert!(report.unchanged_bytes >= 13 * CHUNK as u64, "{report:?}");
        assert!(values::<u32>(&buffer) == numbers, "round {round}");
        assert_eq!(values::<u8>(&zeros)[99..102], [0, round + 1, 0]);
        for (n, buffer) in small.iter().enumerate() {
            assert_eq!(values::<u32>(buffer)[..100], [n as u32; 100]);
        }
    }
}

#[test]
fn kernels_and_threads_go_on_while_buffers_are_copied() {
    let (gpu, temporary) = (Gpu::new(), tempfile::tempdir().unwrap());
    let (kernel, counter) = (gpu.kernel("increment"), gpu.buffer(&[0u32]));
    let ballast: Vec<u32> = Numbers(9).take(8 * CHUNK / 4).collect();
    let kept = gpu.buffer(&ballast);
    let stop = AtomicBool::new(false);
    let (counts, allocations) = (AtomicU32::new(0), AtomicU64::new(0));
    let mut during = (0, 0);
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let done = Signal::new(&gpu.runtime, 1).unwrap();
                let args = [Arg::Buffer(&counter)];
                let dispatch = gpu.queue.dispatch(&kernel).grid([10, 1, 1]).args(&args).completion(&done);
                dispatch.submit().unwrap();
                done.wait_done(SOON).unwrap();
                counts.fetch_add(10, Ordering::Relaxed);
            }
        });
        // Buffers come and go, at addresses that others had, while they are read.
        let allocating = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let bytes = 4096 + allocations.load(Ordering::Relaxed) * 7919 % 3_000_000;
                let buffer = gpu.agent.vram().alloc(bytes).unwrap();
                gpu.runtime.fill(buffer.all(), &[7], &[]).unwrap().wait(SOON).unwrap();
                while let Err(error) = buffer.free() {
                    assert!(matches!(error, FreeError::Pending { .. }), "{error}");
                }
                allocations.fetch_add(1, Ordering::Relaxed);
            }
        });
        let now = || (counts.load(Ordering::Relaxed), allocations.load(Ordering::Relaxed));
        for round in 0..6 {
            let before = directory(temporary.path(), &format!("before{round}"));
            let options = PreCopyOptions { rounds: 2, ..PreCopyOptions::default() };
            let begun = now();
            gpu.runtime.pre_copy(&before, &options).unwrap();
            let ended = now();
            during = (during.0 + ended.0 - begun.0, during.1 + ended.1 - begun.1);
            down_and_up(&gpu, &before, &directory(temporary.path(), &format!("images{round}")));
        }
        stop.store(true, Ordering::Relaxed);
        counting.join().unwrap();
        allocating.join().unwrap();
    });
    assert!(during.0 > 0 && during.1 > 0, "they stood still while buffers were copied: {during:?}");
    assert_eq!(values::<u32>(&counter), [counts.load(Ordering::Relaxed)]);
    assert!(values::<u32>(&kept) == ballast);
}

#[test]
fn memory_that_only_a_copy_engine_reads_is_copied_by_one() {
    if skip_on_kernel_driver("its machine is one of the software device") {
        return;
    }
    for machine in ["bar = \"small\"", "bar_read_mbytes = 50"] {
        let (_file, path) = machine_file(&format!("[[gpu]]\nchip = \"gfx1100\"\n{machine}\n"));
        let gpu = Gpu::on(&open_on(&format!("soft:{}", path.display()), None), 0);
        let temporary = tempfile::tempdir().unwrap();
        let mut numbers: Vec<u32> = Numbers(4).take(8 * CHUNK / 4).collect();
        let buffer = gpu.buffer(&numbers);
        let before = directory(temporary.path(), "before");
        let copied = gpu.runtime.pre_copy(&before, &PreCopyOptions::default()).unwrap();
        assert!(copied.rounds[0] >= buffer.len() && copied.left_bytes == 0, "{machine}: {copied:?}");
        numbers[3 * CHUNK / 4] ^= 1;
        buffer.upload(3 * CHUNK as u64, &numbers[3 * CHUNK / 4].to_le_bytes()).unwrap();
        let report = down_and_up(&gpu, &before, &directory(temporary.path(), "images"));
        assert!(report.unchanged_bytes >= 7 * CHUNK as u64, "{machine}: {report:?}");
        let mut found = vec![0; numbers.len() * 4];
        buffer.download(0, &mut found).unwrap();
        assert!(bytemuck::pod_collect_to_vec::<u8, u32>(&found) == numbers, "{machine}");
    }
}

#[test]
fn pre_copy_that_cannot_be_made_leaves_nothing_and_the_process_runs() {
    let (gpu, temporary) = (Gpu::new(), tempfile::tempdir().unwrap());
    let counter = gpu.buffer(&[1u32]);
    let _large = gpu.buffer(&Numbers(2).take(4 * CHUNK / 4).collect::<Vec<_>>());
    let late = PreCopyOptions { deadline: Duration::ZERO, ..PreCopyOptions::default() };
    let error = gpu.runtime.pre_copy(temporary.path(), &late).unwrap_err();
    assert!(matches!(error, CheckpointError::Stopped { verb: "pre-copy", .. }), "{error}");
    let error = gpu.runtime.pre_copy(Path::new("/nowhere/at/all"), &PreCopyOptions::default()).unwrap_err();
    assert!(matches!(error, CheckpointError::Image(_)), "{error}");
    let missing = PreCopyOptions { parent: Some("/nowhere".into()), ..PreCopyOptions::default() };
    let error = gpu.runtime.pre_copy(temporary.path(), &missing).unwrap_err();
    assert!(matches!(error, CheckpointError::Image(_)), "{error}");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    gpu.runtime.lock(Mode::Drain, DEADLINE).unwrap();
    let error = gpu.runtime.pre_copy(temporary.path(), &PreCopyOptions::default()).unwrap_err();
    assert!(matches!(error, CheckpointError::State { verb: "pre-copy", .. }), "{error}");
    gpu.runtime.unlock().unwrap();
    gpu.run(&gpu.kernel("increment"), [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [11]);
}

#[test]
fn pre_copy_that_is_cancelled_or_late_after_a_round_is_removed_or_counts() {
    let (gpu, temporary) = (Gpu::new(), tempfile::tempdir().unwrap());
    let changing = gpu.buffer(&Numbers(2).take(16 * CHUNK / 4).collect::<Vec<_>>());
    let image = temporary.path().join(IMAGE_FILE);
    let options = PreCopyOptions { rounds: 1000, ..PreCopyOptions::default() };
    let stop = AtomicBool::new(false);
    let copied = std::thread::scope(|scope| {
        let change = scope.spawn(|| {
            let mut sizes = [16, 8].into_iter().cycle().zip((1..=u8::MAX).cycle());
            while let Some((chunks, byte)) = sizes.next().filter(|_| !stop.load(Ordering::Relaxed)) {
                changing.upload(0, &vec![byte; chunks * CHUNK]).unwrap();
            }
        });
        let cancel = scope.spawn(|| {
            while !image.exists() {
                std::thread::yield_now();
            }
            gpu.runtime.cancel();
        });
        let copied = gpu.runtime.pre_copy(temporary.path(), &options);
        cancel.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        change.join().unwrap();
        copied
    });
    // It may have ended before it heard of it.
    match copied {
        Err(error) => {
            assert!(matches!(error, CheckpointError::Stopped { verb: "pre-copy", .. }), "{error}");
            assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
        }
        Ok(copied) => assert!(image.exists(), "{copied:?}"),
    }
}

#[test]
fn command_copies_before_it_stops_the_process_and_leaves_one_checkpoint() {
    let mut worker = Worker::start(&["--threads", "2"]);
    let outcome = succeeded(&worker.checkpoint("first", &["--pre-copy"]));
    worker.bury();
    assert!(outcome["pre_copied"]["rounds"][0].as_u64().unwrap() > 0, "{outcome}");
    assert!(outcome["unchanged_bytes"].as_u64().unwrap() > 0, "{outcome}");
    assert!(!worker.path("first/before").exists());
    succeeded(&worker.restore("first"));
    worker.wait_rounds(2);
    // Upon an earlier one, which is gone afterwards.
    let first = worker.path("first");
    let outcome =
        succeeded(&worker.checkpoint("second", &["--pre-copy=2", "--parent", first.to_str().unwrap()]));
    worker.bury();
    assert!(outcome["unchanged_bytes"].as_u64().unwrap() > 0, "{outcome}");
    fs::remove_dir_all(first).unwrap();
    succeeded(&worker.restore("second"));
    worker.wait_rounds(2);
    let error = refused(&worker.checkpoint("third", &["--pre-copy", "--self-contained"]));
    assert!(error.contains("--pre-copy") && !worker.path("third").exists(), "{error}");
    succeeded(&worker.checkpoint("third", &["--pre-copy", "--leave-running"]));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn tree_is_copied_before_it_stops_and_one_that_cannot_be_frozen_runs_on() {
    let mut tree = Tree::start(&["", "--threads 2", ""], &[]);
    let (root, images) = (tree.root().to_string(), tree.path("images"));
    let words = ["checkpoint", "--json", &root, images.to_str().unwrap(), "--pre-copy"];
    let outcome = succeeded(&stasis(&words, &criu()));
    tree.bury();
    assert_eq!(outcome["processes"].as_array().unwrap().len(), 3, "{outcome}");
    assert!(outcome["unchanged_bytes"].as_u64().unwrap() > 0, "{outcome}");
    for pid in tree.worker_pids() {
        assert!(!images.join(format!("stasis-{pid}/before")).exists());
    }
    succeeded(&stasis(&["restore", "--json", images.to_str().unwrap()], &criu()));
    tree.goes_on();

    let tree = Tree::start(&["", "--io-uring"], &[]);
    let (root, images) = (tree.root().to_string(), tree.path("images"));
    let words = ["checkpoint", "--json", &root, images.to_str().unwrap(), "--pre-copy", "--no-preflight"];
    let error = refused(&stasis(&words, &criu()));
    assert!(error.contains("io_uring") && !images.exists(), "{error}");
    tree.goes_on();
}
