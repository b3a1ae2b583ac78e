// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis slurm-run` under a real Slurm, whose nodes are namespaces (`deploy/slurm/cluster.sh`).

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use stasis_tests::{criu, program};
use tempfile::TempDir;

/// TIMEOUT: Slurm waits for tens of seconds before it starts a job again.
const PATIENCE: Duration = Duration::from_secs(240);
const STEPS: u32 = 150;

struct Cluster(TempDir);

impl Cluster {
    fn start(nodes: u32) -> Self {
        let cluster = Self(tempfile::tempdir().unwrap());
        cluster.act("start", &nodes.to_string());
        cluster
    }

    fn directory(&self) -> &Path {
        self.0.path()
    }

    /// On which node a job is.
    fn node_of(&self, job: &str) -> String {
        let said = self.ask(&["scontrol", "-o", "show", "job", job]);
        said.split(" BatchHost=").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    }

    fn act(&self, act: &str, more: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/slurm/cluster.sh");
        let mut command = Command::new(script);
        command
            .arg(act)
            .arg(self.directory())
            .args((!more.is_empty()).then_some(more))
            .env("STASIS_SLURM", slurm());
        let done = command.output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    /// What one of Slurm's programs prints.
    fn ask(&self, words: &[&str]) -> String {
        let mut command = Command::new(slurm().join("bin").join(words[0]));
        command
            .args(&words[1..])
            .env("SLURM_CONF", self.directory().join("slurm.conf"))
            .current_dir(self.directory());
        let (own, path) = (program("stasis"), std::env::var("PATH").unwrap());
        let own = own.parent().unwrap().display();
        command
            .env("PATH", format!("{own}:{}:{path}", slurm().join("bin").display()))
            .env("STASIS_CRIU", criu());
        command.env("STASIS_DEVICE", "soft:gfx1100*2").env_remove("STASIS_SOFTGPU_INSTANCE");
        let done = command.output().unwrap();
        assert!(done.status.success(), "{words:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Submits the job that is documented, with more options; its id.
    fn submit(&self, options: &[&str]) -> String {
        self.submit_training(STEPS, options, &[])
    }

    /// The same of so many steps, with more options of `stasis slurm-run`.
    fn submit_training(&self, steps: u32, options: &[&str], of_run: &[&str]) -> String {
        let train = program("train").display().to_string();
        let weights = format!("--weights={}/weights-$SLURM_JOB_ID", self.directory().display());
        self.submit_shell(&format!("exec {train} --steps={steps} --pace-ms=50 {weights}"), options, of_run)
    }

    /// The same with another program, in words of the shell.
    fn submit_shell(&self, program: &str, options: &[&str], of_run: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/slurm/job.sh");
        let words = ["sbatch", "--parsable", "--output=job-%A-%a.log"];
        let run = [&[script.to_str().unwrap()], of_run, &["--", "sh", "-c", program]].concat();
        let words = [&words[..], options, &run].concat();
        self.ask(&words).trim().to_owned()
    }

    fn log(&self, job: &str) -> String {
        let (array, task) = job.split_once('_').unwrap_or((job, "4294967294"));
        fs::read_to_string(self.directory().join(format!("job-{array}-{task}.log"))).unwrap_or_default()
    }

    fn wait_for(&self, job: &str, what: &str) {
        until(|| {
            let log = self.log(job);
            if log.contains(what) { Ok(()) } else { Err(format!("no {what:?} of job {job}: {log}")) }
        });
    }

    fn wait_for_state(&self, job: &str, state: &str) {
        until(|| {
            let found = self.ask(&["scontrol", "-o", "show", "job", job]);
            match found.contains(&format!("JobState={state}")) {
                true => Ok(()),
                false => Err(format!("{found}\n{}", self.log(job))),
            }
        });
    }
}

/// Waits until it is so; what is so instead, if it does not come about.
fn until(look: impl Fn() -> Result<(), String>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(instead) = look() {
        assert!(Instant::now() < deadline, "{instead}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.act("stop", "");
    }
}

fn slurm() -> PathBuf {
    let named = std::env::var_os("STASIS_SLURM").map(PathBuf::from);
    let prefix = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.stasis/slurm");
    named
        .into_iter()
        .chain([prefix])
        .find(|path| path.join("bin/sbatch").is_file())
        .expect("no Slurm: run `cargo xtask setup --slurm`")
}

#[test]
fn tasks_of_an_array_move_to_the_other_node_and_a_cancelled_one_stays_away() {
    let cluster = Cluster::start(2);
    let array = cluster.submit(&["--array=1-3", "--nodelist=node1", "--signal=B:USR1@30"]);
    let tasks = [1, 2].map(|task| format!("{array}_{task}"));
    for task in &tasks {
        cluster.wait_for(task, "step 20 ");
    }
    // The third waits for a GPU.
    assert_eq!(cluster.log(&format!("{array}_3")), "");
    cluster.ask(&["scancel", &format!("{array}_3")]);
    for task in &tasks {
        cluster.ask(&["scancel", "--batch", "--signal=USR1", task]);
        cluster.wait_for(task, "is asked to leave");
    }
    for task in &tasks {
        cluster.wait_for(task, "CANCELLED");
        cluster.ask(&["scontrol", "update", &format!("job={task}"), "ReqNodeList=node2"]);
    }
    for task in &tasks {
        cluster.wait_for_state(task, "COMPLETED");
        let log = cluster.log(task);
        assert_eq!(log.matches(" goes on from ").count(), 1, "{log}");
        assert!(log.contains("done"), "{log}");
        let steps = log.lines().filter(|line| line.starts_with("step ")).count();
        assert_eq!(steps, STEPS as usize / 10 + 1, "each line once: {log}");
        assert!(cluster.ask(&["scontrol", "-o", "show", "job", task]).contains("NodeList=node2"));
    }
    let weights: Vec<Vec<u8>> = fs::read_dir(cluster.directory())
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("weights-"))
        .map(|entry| fs::read(entry.path()).unwrap())
        .collect();
    assert!(weights.len() == 2 && weights[0] == weights[1], "{} files", weights.len());
    // Both tasks had a GPU of their own.
    let agents: Vec<String> = tasks
        .iter()
        .map(|task| cluster.log(task).lines().find(|line| line.starts_with("agent ")).unwrap().to_owned())
        .collect();
    assert_ne!(agents[0], agents[1]);
    // A program that takes its time to end must not come back either.
    let stubborn = "trap 'echo told' TERM; echo begun; for n in $(seq 60); do sleep 0.1; done";
    let stubborn = cluster.submit_shell(stubborn, &["--nodelist=node1"], &[]);
    cluster.wait_for(&stubborn, "begun");
    cluster.ask(&["scancel", "--full", &stubborn]);
    let cancelled = cluster.submit(&["--nodelist=node1", "--signal=B:USR1@30"]);
    cluster.wait_for(&cancelled, "step 0 ");
    cluster.ask(&["scancel", "--full", &cancelled]);
    cluster.wait_for_state(&cancelled, "CANCELLED");
    cluster.wait_for_state(&stubborn, "CANCELLED");
    for job in [&cancelled, &stubborn] {
        assert!(!cluster.log(job).contains("requeued"), "{}", cluster.log(job));
    }
}

#[test]
fn job_whose_node_is_cut_off_goes_on_elsewhere_and_ends_there() {
    let cluster = Cluster::start(2);
    // More than half a minute: Slurm takes a node for lost after ten seconds.
    let steps = 800;
    let job = cluster.submit_training(steps, &["--nodelist=node1"], &["--every=1s"]);
    let undisturbed = cluster.submit_training(steps, &["--nodelist=node2"], &["--every=1h"]);
    cluster.wait_for(&job, "step 30 ");
    cluster.act("cut", "node1");
    // Slurm takes the node for lost.
    cluster.wait_for_state(&job, "PENDING");
    cluster.ask(&["scontrol", "update", &format!("job={job}"), "ReqNodeList=node2"]);
    // It is started elsewhere while it still runs there.
    cluster.wait_for(&job, " goes on from ");
    cluster.wait_for(&job, "was started again elsewhere: it is ended here");
    for job in [&job, &undisturbed] {
        cluster.wait_for_state(job, "COMPLETED");
    }
    assert_eq!(cluster.node_of(&job), "node2");
    cluster.act("join", "node1");
    until(|| {
        let nodes = cluster.ask(&["sinfo", "-h", "-N", "-t", "idle", "-p", "low"]);
        if nodes.contains("node1") { Ok(()) } else { Err(cluster.ask(&["sinfo", "-N"])) }
    });
    cluster.wait_for_state(&job, "COMPLETED");
    let log = cluster.log(&job);
    assert_eq!(
        (
            log.matches(" begins (").count(),
            log.matches(" goes on from ").count(),
            log.matches("done").count()
        ),
        (1, 1, 1),
        "{log}"
    );
    let weights =
        [&job, &undisturbed].map(|job| fs::read(cluster.directory().join(format!("weights-{job}"))).unwrap());
    assert!(weights[0] == weights[1], "other weights: {log}");
}
