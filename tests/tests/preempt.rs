// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues stopped in the middle of their kernels: locked and unlocked, checkpointed in place, and carried by CRIU into
//! another process, where the waves go on at their next instruction.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::wait::{WaitPidFlag, waitpid};
use stasis::checkpoint::{CheckpointError, IMAGE_FILE, Metadata, Mode, Unavailable};
use stasis::image::Image;
use stasis::{Arg, Runtime};
use stasis_tests::gpu::{Gpu, imitate, on_a_future_kernel, skip_on_kernel_driver, values};
use stasis_tests::tally::{ITEMS, Tally};
use stasis_tests::worker::{devices, is_alive, refused, stasis, succeeded, wait_until};
use stasis_tests::{criu, program};

const DEADLINE: Duration = Duration::from_secs(30);

/// Reads while the gate is closed, through the mapping, which a locked process keeps.
#[allow(unsafe_code)]
fn words(address: u64, count: usize) -> Vec<u32> {
    let start: *const u32 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the buffer is alive and mapped for the CPU while the process is LOCKED; the loads are volatile.
    (0..count).map(|at| unsafe { start.add(at).read_volatile() }).collect()
}

#[test]
fn endless_kernel_stops_at_the_lock_and_goes_on_at_the_unlock() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    let tally = Tally::start(&gpu);
    for _ in 0..5 {
        let started = Instant::now();
        gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
        let took = started.elapsed();
        let stopped = words(tally.out.va(), ITEMS as usize);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(words(tally.out.va(), ITEMS as usize), stopped, "it counts while it is off the hardware");
        gpu.runtime.unlock().unwrap();
        assert!(took < Duration::from_secs(5), "{took:?}");
        tally.wait_for_more();
    }
    tally.finish();
}

#[test]
fn preempted_process_takes_its_device_back_with_waves_and_all() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    let tally = Tally::start(&gpu);
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let before = tally.counts();
        gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
        gpu.runtime.checkpoint(directory.path()).unwrap();
        gpu.runtime.restore(None).unwrap();
        gpu.runtime.unlock().unwrap();
        assert!(tally.counts().iter().zip(&before).all(|(now, old)| now >= old), "a count fell");
        tally.wait_for_more();
        let metadata: Metadata = Image::open(&directory.path().join(IMAGE_FILE)).unwrap().metadata().unwrap();
        assert!(metadata.preempted);
    }
    tally.finish();
}

#[test]
fn queues_with_nothing_to_do_can_be_preempted_too() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    let counter = gpu.buffer(&[0u32]);
    let kernel = gpu.kernel("increment");
    for round in 1..=3 {
        gpu.run(&kernel, [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
        gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
        gpu.runtime.unlock().unwrap();
        assert_eq!(values::<u32>(&counter), [10 * round]);
    }
}

#[test]
fn drained_and_preempted_locks_take_turns() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let tally = Tally::start(&gpu);
    let late = gpu.runtime.lock(Mode::Drain, Duration::from_millis(300)).unwrap_err();
    assert!(
        matches!(&late, CheckpointError::LockTimeout { running: Some(name), .. } if name == "tally"),
        "{late}"
    );
    gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
    gpu.runtime.checkpoint(directory.path()).unwrap();
    gpu.runtime.restore(None).unwrap();
    gpu.runtime.unlock().unwrap();
    tally.finish();
    gpu.runtime.lock(Mode::Drain, DEADLINE).unwrap();
    gpu.runtime.checkpoint(directory.path()).unwrap();
    gpu.runtime.restore(None).unwrap();
    gpu.runtime.unlock().unwrap();
    let metadata: Metadata = Image::open(&directory.path().join(IMAGE_FILE)).unwrap().metadata().unwrap();
    assert!(!metadata.preempted);
}

/// Page faults of this process's children that have ended: no child can end without some.
fn faults_of_children() -> i64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().minor_page_faults()
}

fn refuses_at_the_lock(kernel: &str, interface: u32) {
    if skip_on_kernel_driver("only the software device can imitate another kernel") {
        return;
    }
    imitate(kernel);
    let gpu = Gpu::new();
    let tally = Tally::start(&gpu);
    let before = faults_of_children();
    let error = gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap_err();
    let CheckpointError::Preempt(Unavailable::Kernel { minor, target: "gfx1100", .. }) = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*minor, interface);
    assert_eq!(faults_of_children(), before, "a kernel that is known to fail was tried");
    tally.wait_for_more();
    tally.finish();
}

#[test]
fn linux_7_3_refuses_at_the_lock_untried_and_the_process_runs_on() {
    refuses_at_the_lock("7.3", 23);
}

#[test]
fn linux_6_12_refuses_at_the_lock_untried_and_the_process_runs_on() {
    refuses_at_the_lock("6.12", 17);
}

#[test]
fn kernel_that_may_restore_queues_is_tried_once_in_processes_that_do_not_stay() {
    if skip_on_kernel_driver("only the software device imitates such a kernel") {
        return;
    }
    on_a_future_kernel();
    let gpu = Gpu::new();
    let tally = Tally::start(&gpu);
    let before = faults_of_children();
    gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
    gpu.runtime.unlock().unwrap();
    let after = faults_of_children();
    assert!(after > before, "nothing was tried");
    assert_eq!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Err(Errno::ECHILD), "a child is left");
    gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
    gpu.runtime.unlock().unwrap();
    assert_eq!(faults_of_children(), after, "it was tried again");
    tally.finish();
}

/// `endless`, with its log.
struct Endless {
    directory: tempfile::TempDir,
    child: Child,
    instance: String,
}

impl Endless {
    fn start(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = OpenOptions::new().create(true).append(true).open(directory.path().join("log")).unwrap();
        let instance = format!("preempt-{name}-{}", std::process::id());
        let child = Command::new("setsid")
            .arg(program("endless"))
            .arg("--until")
            .arg(directory.path().join("stop"))
            .args(["--every-ms", "10"])
            .env("STASIS_SOFTGPU_INSTANCE", &instance)
            .env("SOFTGPU_CACHE", directory.path().join("code"))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let endless = Self { directory, child, instance };
        endless.wait_for_counts(5);
        endless
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    fn counts(&self) -> Vec<u64> {
        self.log().lines().filter_map(|line| line.strip_prefix("count ")?.parse().ok()).collect()
    }

    /// The files with generated code, and whether each was used within minutes.
    fn code(&self) -> BTreeMap<PathBuf, bool> {
        let entries = fs::read_dir(self.path("code")).into_iter().flatten();
        let is_recent = |path: &Path| {
            let used = path.metadata().and_then(|metadata| metadata.modified());
            used.is_ok_and(|used| used.elapsed().is_ok_and(|age| age < Duration::from_secs(1000)))
        };
        entries.map(|entry| entry.unwrap().path()).map(|path| (path.clone(), is_recent(&path))).collect()
    }

    /// Makes these files look as if they had not been used for long.
    fn age_code(&self) {
        for path in self.code().keys() {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(5000)).unwrap();
        }
    }

    fn wait_for_counts(&self, more: usize) {
        let wanted = self.counts().len() + more;
        wait_until("counting", || self.counts().len() >= wanted || !is_alive(self.pid()));
        assert!(is_alive(self.pid()), "{}", self.log());
    }

    fn checkpoint(&self, images: &Path, more: &[&str]) -> std::process::Output {
        let pid = self.pid().to_string();
        let images = images.to_string_lossy();
        let order = ["checkpoint", "--preempt", "--deadline-ms", "2000", "--json", &pid, &images];
        stasis(&[&order[..], more].concat(), &criu())
    }

    fn finish(mut self) {
        fs::write(self.path("stop"), "").unwrap();
        wait_until("the end", || !is_alive(self.pid()));
        let _ = self.child.try_wait();
        let log = self.log();
        assert!(log.lines().any(|line| line == "done"), "{log}");
        assert!(self.counts().is_sorted(), "a count fell: {log}");
    }
}

#[test]
fn endless_kernel_goes_on_in_a_new_process_on_a_new_device() {
    on_a_future_kernel();
    if skip_on_kernel_driver("the test's kernel is to be stopped on the software device") {
        return;
    }
    let mut endless = Endless::start("carried");
    let images = endless.path("images");
    for round in 0..2 {
        let directory = images.join(round.to_string());
        fs::create_dir_all(&directory).unwrap();
        let old_device = devices(&endless.instance);
        succeeded(&endless.checkpoint(&directory, &[]));
        if round == 0 {
            endless.child.wait().unwrap();
        }
        wait_until("the end of process and device", || {
            !is_alive(endless.pid()) && devices(&endless.instance).is_empty()
        });
        let before = endless.counts();
        endless.age_code();
        let known = endless.code().len();
        succeeded(&stasis(&["restore", "--json", &directory.to_string_lossy()], &criu()));
        wait_until("counting", || endless.counts().len() > before.len());
        let after = endless.counts()[before.len()];
        assert!(after >= *before.last().unwrap(), "{after} after {before:?}");
        assert_ne!(devices(&endless.instance), old_device);
        endless.wait_for_counts(5);
        // Without AVX2 there is no generated code. Waves that were restored once have code of their own.
        let is_there = |used: &BTreeMap<_, bool>| used.values().any(|used| *used);
        if round == 0 && known > 0 {
            wait_until("code", || is_there(&endless.code()));
        } else if known > 0 {
            assert!(
                is_there(&endless.code()),
                "the new device did not use the code that the one before had saved"
            );
            assert_eq!(endless.code().len(), known, "the new device generated code again");
        }
    }
    endless.finish();
}

#[test]
fn preempted_process_that_is_left_running_runs_on() {
    on_a_future_kernel();
    if skip_on_kernel_driver("the test's kernel is to be stopped on the software device") {
        return;
    }
    let endless = Endless::start("left");
    succeeded(&endless.checkpoint(&endless.path("images"), &["--leave-running"]));
    endless.wait_for_counts(5);
    endless.finish();
}

#[test]
fn dump_that_fails_leaves_a_preempted_process_running() {
    on_a_future_kernel();
    if skip_on_kernel_driver("the test's kernel is to be stopped on the software device") {
        return;
    }
    let endless = Endless::start("vetoed");
    let output = endless.checkpoint(&endless.path("images"), &["--criu-arg", "--no-such-option"]);
    let error = refused(&output);
    assert!(error.contains("runs on"), "{error}");
    endless.wait_for_counts(5);
    endless.finish();
}

#[test]
fn runtime_is_one_and_the_same_after_a_preempted_lock() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    gpu.runtime.lock(Mode::Preempt, DEADLINE).unwrap();
    gpu.runtime.unlock().unwrap();
    assert_eq!(Runtime::current().unwrap().agents().len(), gpu.runtime.agents().len());
}
