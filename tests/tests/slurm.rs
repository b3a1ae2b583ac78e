// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs of Slurm that leave their node, lose it, or are started twice (`stasis slurm-run`): what they compute is what an
//! undisturbed run computes, bit for bit, and no checkpoint is half a one.
//!
//! Nodes are namespaces. `slurm_cluster.rs` has a real Slurm.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::Signal;
use stasis_tests::program;
use stasis_tests::sample::{numbers_of, setting};
use stasis_tests::slurm::{Job, LEFT, Node};

const STEPS: u32 = 120;
/// Trials with nodes that fail unless STASIS_SLURM_TRIALS asks for more.
const TRIALS: u32 = 4;

/// The weights of a run that nobody disturbed.
fn undisturbed() -> &'static [u8] {
    static WEIGHTS: OnceLock<Vec<u8>> = OnceLock::new();
    WEIGHTS.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let weights = directory.path().join("weights");
        let mut train = Command::new(program("train"));
        train
            .arg(format!("--steps={STEPS}"))
            .arg("--weights")
            .arg(&weights)
            .env("STASIS_DEVICE", "soft:gfx1100");
        let instance = format!("undisturbed-{}", std::process::id());
        assert!(train.env("STASIS_SOFTGPU_INSTANCE", instance).output().unwrap().status.success());
        fs::read(weights).unwrap()
    })
}

fn is_right(job: &Job) {
    assert!(fs::read(job.path("weights")).unwrap() == undisturbed(), "other weights");
}

/// The steps that a job has printed.
fn steps(said: &str) -> Vec<u32> {
    said.lines().filter_map(|line| line.strip_prefix("step ")?.split(' ').next()?.parse().ok()).collect()
}

#[test]
fn job_leaves_three_nodes_and_computes_the_same_and_prints_each_line_once() {
    let job = Job::training(STEPS, 20, &[]);
    let mut said = String::new();
    for (node, until) in [("one", "step 20 "), ("two", "step 50 "), ("three", "step 80 ")] {
        let mut node = job.start(node);
        node.wait_for(until);
        node.tell(Signal::SIGUSR1);
        assert_eq!(node.wait(), LEFT, "{}", node.said());
        said.push_str(&node.said());
    }
    let mut last = job.start("four");
    assert_eq!(last.wait(), 0, "{}", last.said());
    said.push_str(&last.said());
    is_right(&job);
    let expected: Vec<u32> = (0..STEPS).filter(|step| step % 10 == 0 || step + 1 == STEPS).collect();
    assert_eq!(steps(&said), expected, "{said}");
    assert_eq!(job.calls(), ["requeue 7"; 3]);
    assert_eq!(job.state(), None, "a job that is complete leaves nothing");
}

#[test]
fn preempted_kernels_go_on_elsewhere() {
    // No kernel of today can restore preempted queues of these GPUs: one that can is imitated.
    let job = Job::training(STEPS, 20, &["--preempt"]).with("SOFTGPU_KERNEL", "fixed");
    let mut node = job.start("one");
    node.wait_for("step 20 ");
    node.tell(Signal::SIGUSR1);
    assert_eq!(node.wait(), LEFT, "{}", node.said());
    let mut node = job.start("two");
    assert_eq!(node.wait(), 0, "{}", node.said());
    is_right(&job);
}

/// Nodes fail at moments that are drawn: while the program starts, runs, is checkpointed, leaves or is restored.
#[test]
fn job_whose_nodes_fail_at_any_moment_computes_the_same() {
    let mut numbers = numbers_of(1);
    for trial in 0..setting("STASIS_SLURM_TRIALS").unwrap_or(TRIALS) {
        let job = Job::training(STEPS, 10, &["--every=1s"]);
        let mut said = String::new();
        let mut starts = 0;
        loop {
            starts += 1;
            let mut node = job.start(&format!("node{starts}"));
            let mut draw = |limit: u32| numbers.next().unwrap() % limit;
            // The first starts end early, later ones have the time to get on.
            let life = u64::from(draw(1500)) + starts * 300;
            let leaves = draw(3) == 0;
            std::thread::sleep(Duration::from_millis(life));
            if leaves && node.ended().is_none() {
                node.tell(Signal::SIGUSR1);
                std::thread::sleep(Duration::from_millis(u64::from(draw(800))));
            }
            let ended = node.ended();
            node.fail();
            said.push_str(&format!("--- {life} ms, {leaves}, {ended:?}\n{}", node.said()));
            match ended {
                Some(0) => break,
                None | Some(LEFT) => {}
                Some(other) => panic!("trial {trial}: status {other}\n{said}"),
            }
            assert!(starts < 60, "trial {trial} does not get on\n{said}");
        }
        assert!(
            fs::read(job.path("weights")).unwrap() == undisturbed(),
            "trial {trial}: other weights\n{said}"
        );
        // Each start goes on at or before where the last one was seen: nothing is left out.
        let mut seen = 0;
        for part in said.split("---").map(steps).filter(|part| !part.is_empty()) {
            assert!(part[0] <= seen + 10, "trial {trial}: from {seen} to {}\n{said}", part[0]);
            assert!(part.windows(2).all(|two| two[0] < two[1]), "trial {trial}\n{said}");
            seen = *part.last().unwrap();
        }
    }
}

#[test]
fn start_that_was_thought_lost_ends_and_its_later_checkpoints_are_never_used() {
    let job = Job::training(STEPS, 50, &["--every=1s"]);
    let mut lost = job.start("lost");
    lost.wait_for("step 10 ");
    while job.images().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut node = job.start("newer");
    let status = lost.wait();
    assert!(lost.said().contains("was started again elsewhere"), "{}", lost.said());
    assert!(status != 0 && status != LEFT, "{status}");
    assert_eq!(node.wait(), 0, "{}", node.said());
    is_right(&job);
    assert_eq!(job.calls(), Vec::<String>::new(), "nobody asked for another start");
}

#[test]
fn program_that_slurm_ends_goes_on_from_its_last_checkpoint() {
    let job = Job::training(STEPS, 50, &["--every=1s"]);
    let mut node = job.start("one");
    while job.images().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    node.wait_for("step 30 ");
    // The time of a job is over that has asked for no signal of its own: all its processes are ended.
    node.tell_all(Signal::SIGTERM);
    assert_eq!(node.wait(), LEFT, "{}", node.said());
    assert_eq!(job.calls().last().map(String::as_str), Some("requeue 7"));
    let mut node = job.start("two");
    assert_eq!(node.wait(), 0, "{}", node.said());
    assert!(node.said().contains("goes on from"), "{}", node.said());
    is_right(&job);
    // Without a checkpoint it ends as the program does, and one that ends well is not taken for complete.
    let job = Job::running(&["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"], &[]);
    let mut node = job.start("one");
    std::thread::sleep(Duration::from_millis(300));
    node.tell_all(Signal::SIGTERM);
    assert_eq!(node.wait(), 0, "{}", node.said());
    assert!(job.state().is_some(), "it may have been half done");
}

#[test]
fn checkpoints_of_an_earlier_job_of_the_same_number_are_put_aside() {
    let job = Job::training(STEPS, 20, &[]);
    let mut node = job.start("one");
    node.wait_for("step 10 ");
    node.tell(Signal::SIGUSR1);
    assert_eq!(node.wait(), LEFT, "{}", node.said());
    let job = job.anew();
    let mut node = job.start("two");
    assert_eq!(node.wait(), 0, "{}", node.said());
    let said = node.said();
    assert!(said.contains("was another one's number before") && said.contains("begins"), "{said}");
    is_right(&job);
    let left = fs::read_dir(job.path("jobs")).unwrap().flatten().next().unwrap();
    assert!(left.path().join("epoch-1/image-1/manifest.json").exists());
}

#[test]
fn job_that_is_cancelled_does_not_start_again() {
    let job = Job::training(STEPS, 100, &[]);
    let mut node = job.start("one");
    node.wait_for("step 0 ");
    fs::write(job.path("state"), "CANCELLED by 0").unwrap();
    node.tell(Signal::SIGTERM);
    assert_eq!(node.wait(), 128 + Signal::SIGTERM as i32, "{}", node.said());
    assert!(job.calls().iter().all(|call| call == "-o show job 7"), "{:?}", job.calls());
    assert_eq!(job.images(), Vec::<PathBuf>::new());
}

#[test]
fn job_whose_controller_is_down_is_checkpointed_and_says_how_it_goes_on() {
    let job = Job::training(STEPS, 20, &[]);
    fs::write(job.path("down"), "").unwrap();
    let mut node = job.start("one");
    node.wait_for("step 10 ");
    // Whether it is cancelled cannot be asked: then it is kept.
    node.tell(Signal::SIGTERM);
    assert_eq!(node.wait(), LEFT, "{}", node.said());
    assert!(node.said().contains("`scontrol requeue 7` has it go on"), "{}", node.said());
    fs::remove_file(job.path("down")).unwrap();
    let mut node = job.start("two");
    assert_eq!(node.wait(), 0, "{}", node.said());
    is_right(&job);
}

#[test]
fn damaged_image_is_passed_over_for_the_one_before() {
    let job = Job::training(STEPS, 50, &["--every=1s"]);
    let mut node = job.start("one");
    while job.images().len() < 2 {
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(node.ended(), None, "{}", node.said());
    }
    node.fail();
    let newest = job.images().pop().unwrap();
    let contents = newest.join("runtime-0.img");
    let mut bytes = fs::read(&contents).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    // A file of its own: an earlier image may have the same one under another name.
    fs::remove_file(&contents).unwrap();
    fs::write(&contents, bytes).unwrap();
    let mut node = job.start("two");
    assert_eq!(node.wait(), 0, "{}", node.said());
    assert!(
        node.said().contains(&format!("cannot be restored from {}", newest.display())),
        "{}",
        node.said()
    );
    is_right(&job);
}

#[test]
fn job_that_can_be_restored_nowhere_is_tried_on_three_nodes_and_keeps_its_images() {
    let job = Job::training(STEPS, 20, &[]);
    let leave = |node: &mut Node| {
        node.wait_for("step 10 ");
        node.tell(Signal::SIGUSR1);
        assert_eq!(node.wait(), LEFT, "{}", node.said());
    };
    leave(&mut job.start("one"));
    let image = job.images().pop().unwrap();
    let (file, hidden) = (image.join("criu/inventory.img"), job.path("hidden"));
    fs::rename(&file, &hidden).unwrap();
    for node in ["two", "three"] {
        let mut node = job.start(node);
        assert_eq!(node.wait(), LEFT, "{}", node.said());
    }
    let mut node = job.start("four");
    assert_eq!(node.wait(), 1, "{}", node.said());
    assert!(node.said().contains("could not be restored from any image"), "{}", node.said());
    assert_eq!(job.calls(), ["requeue 7"; 3]);
    fs::rename(&hidden, &file).unwrap();
    let mut node = job.start("five");
    assert_eq!(node.wait(), 0, "{}", node.said());
    is_right(&job);
}

/// A file system of 256 KiB, as long as this lives.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        assert!(mount.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(&at).status().unwrap().success());
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn job_without_room_for_a_checkpoint_runs_on() {
    let job = Job::training(STEPS, 60, &["--every=1s"]);
    let _small = Small::mount(job.path("jobs"));
    let mut node = job.start("one");
    node.wait_for("is not checkpointed and runs on");
    node.tell(Signal::SIGUSR1);
    node.wait_for("runs on as long as it may");
    assert_eq!(node.wait(), 0, "{}", node.said());
    is_right(&job);
    assert_eq!(job.calls(), Vec::<String>::new());
}

#[test]
fn exit_status_of_the_program_is_the_jobs() {
    let job = Job::running(&["sh", "-c", "echo out; echo error >&2; exit 9"], &[]);
    let mut node = job.start("one");
    assert_eq!(node.wait(), 9);
    let said = node.said();
    assert!(said.contains("out\n") && said.contains("error\n"), "{said}");
    let job = Job::running(&["sh", "-c", "kill -KILL $$"], &[]);
    assert_eq!(job.start("one").wait(), 137);
    let job = Job::running(&["/nowhere/at-all"], &[]);
    let mut node = job.start("one");
    assert_eq!(node.wait(), 127, "{}", node.said());
    assert!(node.said().contains("/nowhere/at-all"), "{}", node.said());
}

#[test]
fn process_that_is_no_job_is_told_so() {
    let done = Command::new(program("stasis"))
        .args(["slurm-run", "--", "true"])
        .env_remove("SLURM_JOB_ID")
        .output()
        .unwrap();
    assert!(!done.status.success());
    assert!(String::from_utf8_lossy(&done.stderr).contains("this is no job of Slurm"), "{done:?}");
}
