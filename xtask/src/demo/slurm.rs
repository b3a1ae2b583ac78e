// SPDX-License-Identifier: MIT OR Apache-2.0
//! A training job that needs more time than it may have at once, on a Slurm cluster of three nodes: it is preempted, its time ends,
//! its node fails, and each time it goes on elsewhere; its weights are those of an undisturbed run, to the bit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::{DemoArgs, fresh_directory};
use crate::setup::Installed;
use crate::workspace::{self, BuiltTraining};

const STEPS: u32 = 800;
const PACE_MS: u32 = 100;
/// TIMEOUT: how long the job may take in all; on a quiet machine three minutes.
const PATIENCE: Duration = Duration::from_secs(900);

/// A cluster, which ends with this.
#[derive(Debug)]
struct Cluster {
    script: PathBuf,
    slurm: PathBuf,
    directory: PathBuf,
}

impl Cluster {
    fn start(slurm: &Path, directory: &Path, nodes: u32) -> Result<Self> {
        let script = workspace::root().join("deploy/slurm/cluster.sh");
        let cluster = Self { script, slurm: slurm.into(), directory: directory.into() };
        cluster.act(&["start"], &[&nodes.to_string()]).context("A cluster needs root")?;
        Ok(cluster)
    }

    fn act(&self, act: &[&str], more: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.script);
        command.args(act).arg(&self.directory).args(more).env("STASIS_SLURM", &self.slurm);
        let output = command.output().with_context(|| format!("Cannot start {}", self.script.display()))?;
        ensure!(
            output.status.success(),
            "{} {} failed ({}): {}",
            self.script.display(),
            act.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// One of Slurm's programs, and what it prints.
    fn ask(&self, name: &str, set_up: impl FnOnce(&mut Command) -> &mut Command) -> Result<String> {
        let mut command = Command::new(self.slurm.join("bin").join(name));
        command.env("SLURM_CONF", self.directory.join("slurm.conf"));
        let output = set_up(&mut command).output().with_context(|| format!("Cannot start {name}"))?;
        ensure!(output.status.success(), "{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A field of the job's.
    fn field(&self, job: &str, name: &str) -> Result<String> {
        let text = self.ask("scontrol", |scontrol| scontrol.args(["-o", "show", "job", job]))?;
        let found = text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.map(str::to_owned).with_context(|| format!("scontrol does not say {name} of job {job}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.act(&["stop"], &[]) {
            eprintln!("demo: the cluster may still run: {error:#}");
        }
    }
}

/// What the job has printed.
struct Log(PathBuf);

impl Log {
    fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap_or_default()
    }

    /// The last step that it has printed.
    fn step(&self) -> u32 {
        let text = self.text();
        let step = |line: &str| line.strip_prefix("step ")?.split(' ').next()?.parse().ok();
        text.lines().rev().find_map(step).unwrap_or(0)
    }

    /// How often it went on.
    fn restores(&self) -> usize {
        self.text().matches(" goes on from ").count()
    }
}

/// Runs the demo; the last line it prints is the verdict.
pub(super) fn run(args: &DemoArgs, built: &BuiltTraining, installed: &Installed) -> Result<()> {
    let slurm = installed.slurm.as_ref().context("Slurm was not installed")?;
    let directory = fresh_directory(args, "slurm")?;
    fs::create_dir_all(&directory)?;
    let directory = directory.canonicalize()?;

    println!("\n1. Training undisturbed: {STEPS} steps");
    let expected = directory.join("weights-undisturbed");
    let mut train = Command::new(&built.train);
    train.arg(format!("--steps={STEPS}")).arg("--weights").arg(&expected);
    train.env("STASIS_DEVICE", "soft:gfx1100*2").env("STASIS_SOFTGPUD", &built.softgpud);
    ensure!(train.output()?.status.success(), "train failed");

    println!(
        "2. A cluster of three nodes, each with namespaces and two GPUs of its own ({})",
        directory.display()
    );
    let cluster = Cluster::start(slurm, &directory.join("cluster"), 3)?;

    println!("3. The same training as a job with a minute of time, and it needs more: deploy/slurm/job.sh");
    let (log, weights) = (Log(directory.join("job.log")), directory.join("weights"));
    let job = cluster.ask("sbatch", |sbatch| {
        installed.export(sbatch);
        let path = std::env::var("PATH").unwrap_or_default();
        let own = built.stasis.parent().unwrap_or(Path::new("/"));
        sbatch.env("PATH", format!("{}:{}:{path}", own.display(), slurm.join("bin").display()));
        sbatch.env("STASIS_DEVICE", "soft:gfx1100*2").env("STASIS_SOFTGPUD", &built.softgpud);
        sbatch
            .current_dir(&directory)
            .args(["--parsable", "--time=1", "--signal=B:USR1@10", "--output"])
            .arg(&log.0);
        sbatch
            .arg(workspace::root().join("deploy/slurm/job.sh"))
            .args(["--every=5s", "--"])
            .arg(&built.train);
        sbatch
            .arg(format!("--steps={STEPS}"))
            .arg(format!("--pace-ms={PACE_MS}"))
            .arg("--weights")
            .arg(&weights)
    })?;
    let events = watch(&cluster, job.trim(), &log)?;

    println!("4. Comparing its weights with the undisturbed run's");
    let is_same =
        fs::read(&weights).with_context(|| format!("see {}", log.0.display()))? == fs::read(&expected)?;
    ensure!(is_same, "The weights differ");
    println!(
        "demo: OK slurm=22.05 nodes=3 steps={STEPS} identical=true restores={} {events}",
        log.restores()
    );
    Ok(())
}

/// Follows the job to its end, has it preempted once and its node fail once.
fn watch(cluster: &Cluster, job: &str, log: &Log) -> Result<String> {
    let bar = ProgressBar::new(STEPS.into());
    if let Ok(style) = ProgressStyle::with_template("   step {pos} of {len} {bar} {msg}") {
        bar.set_style(style);
    }
    let deadline = Instant::now() + PATIENCE;
    let (mut preempted, mut failed, mut place) = (None, None, String::new());
    loop {
        ensure!(Instant::now() < deadline, "The job does not come to an end, see {}", log.0.display());
        bar.set_position(log.step().into());
        let state = cluster.field(job, "JobState")?;
        let (node, starts) = (cluster.field(job, "NodeList")?, cluster.field(job, "Restarts")?);
        let now = format!("{state} on {node}, restarts {starts}");
        if now != place && state == "RUNNING" {
            bar.suspend(|| println!("   job {job} runs on {node} (restarts: {starts}, step {})", log.step()));
        }
        bar.set_message(now.clone());
        place = now;
        match state.as_str() {
            "COMPLETED" => break,
            "FAILED" | "CANCELLED" | "TIMEOUT" | "DEADLINE" | "BOOT_FAIL" | "OUT_OF_MEMORY" => {
                bail!("The job is {state}, see {}", log.0.display())
            }
            _ => {}
        }
        let runs_anew = state == "RUNNING"
            && log.restores() == usize::from(preempted.is_some()) + usize::from(failed.is_some());
        if runs_anew && preempted.is_none() && log.step() >= 60 {
            bar.suspend(|| println!("   a job of higher priority wants {node} for itself"));
            let wants =
                ["--partition=high", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 15"];
            cluster.ask("sbatch", |sbatch| sbatch.args(wants).arg(format!("--nodelist={node}")))?;
            preempted = Some(log.step());
        } else if runs_anew && preempted.is_some() && failed.is_none() && has_periodic(log) {
            bar.suspend(|| println!("   {node} loses its power"));
            cluster.act(&["fail"], &[&node])?;
            failed = Some(log.step());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bar.finish_and_clear();
    let said = |step: Option<u32>| step.map_or_else(|| "no".to_owned(), |step| step.to_string());
    Ok(format!("preempted_after={} node_failed_after={}", said(preempted), said(failed)))
}

/// Whether enough steps were taken since the last restore that there is a later checkpoint.
fn has_periodic(log: &Log) -> bool {
    let text = log.text();
    let since = text.rsplit(" goes on from ").next().unwrap_or_default();
    since.lines().filter(|line| line.starts_with("step ")).count() >= 8
}
