// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel that never ends is frozen in the middle of its loop and goes on at the next instruction of a new process.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{DemoArgs, devices, exists, fresh_directory, number, stasis, wait_until};
use crate::setup::Installed;
use crate::workspace::Built;

/// The instance of the software device.
const INSTANCE: &str = "demo-preempt";
/// The kernel that the software device imitates: no released one restores queues of its GPU.
const KERNEL: &str = "fixed";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The counting process.
struct Counter {
    log: PathBuf,
    stop: PathBuf,
}

impl Counter {
    fn start(&self, built: &Built) -> Result<Child> {
        let log = File::create(&self.log)?;
        // A session of its own: CRIU takes no process that hangs on a terminal.
        Command::new("setsid")
            .arg(&built.endless)
            .arg("--until")
            .arg(std::path::absolute(&self.stop)?)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .env("STASIS_SOFTGPUD", &built.softgpud)
            .env("STASIS_SOFTGPU_INSTANCE", INSTANCE)
            .env("SOFTGPU_KERNEL", KERNEL)
            .spawn()
            .context("Cannot start endless through setsid (util-linux)")
    }

    /// All sums of counts that it has printed.
    fn counts(&self) -> Result<Vec<u64>> {
        let text = fs::read_to_string(&self.log)?;
        if let Some(error) = text.lines().find(|line| line.starts_with("Error")) {
            bail!("endless failed, see {}: {error}", self.log.display());
        }
        Ok(text.lines().filter_map(|line| line.strip_prefix("count ")?.parse().ok()).collect())
    }

    fn wait_for_counts(&self, more: usize) -> Result<Vec<u64>> {
        let wanted = self.counts()?.len() + more;
        wait_until("counting", PATIENCE, || self.counts().is_ok_and(|counts| counts.len() >= wanted))?;
        self.counts()
    }
}

/// Runs the demo; the last line it prints is the verdict.
pub(super) fn run(args: &DemoArgs, built: &Built, installed: &Installed) -> Result<()> {
    let image = fresh_directory(args, "preempted")?;
    let counter = Counter { log: args.out.join("endless.log"), stop: args.out.join("endless.stop") };
    if counter.stop.exists() {
        fs::remove_file(&counter.stop)?;
    }
    println!(
        "\nThis demo runs on a kernel that is not released (SOFTGPU_KERNEL={KERNEL}): no Linux up to 7.3 restores queues \
         of gfx11 and gfx12.\nOn a machine with such a GPU, `stasis checkpoint --preempt` is refused there before anything \
         is changed."
    );
    println!("\n1. A kernel counts on the GPU until it is told to stop");
    let mut child = counter.start(built)?;
    let pid = child.id();
    let before = counter.wait_for_counts(10)?;
    let device_before = devices(INSTANCE);
    ensure!(!device_before.is_empty(), "no softgpud serves the process: cannot show that it goes");
    println!("   process {pid} on softgpud {device_before:?} has counted to {}", before.last().unwrap_or(&0));

    println!("2. Frozen in the middle of its loop");
    let image_text = image.to_string_lossy().into_owned();
    let checkpoint =
        stasis(&built.stasis, installed, &["checkpoint", "--preempt", &pid.to_string(), &image_text])?;
    // CRIU killed the process; it must be reaped, or its pid would not be free.
    child.wait()?;
    wait_until("the end of the frozen process and its softgpud", Duration::from_secs(5), || {
        !exists(pid) && devices(INSTANCE).is_empty()
    })?;
    let frozen = counter.counts()?;
    let count_before = frozen.last().copied().unwrap_or(0);
    println!("   {image_text} written; process {pid}: gone, softgpud {device_before:?}: gone");
    println!("   the last count it printed: {count_before}");

    println!("3. Thawed");
    let restore = stasis(&built.stasis, installed, &["restore", &image_text])?;
    wait_until("counting", PATIENCE, || counter.counts().is_ok_and(|now| now.len() > frozen.len()))?;
    let count_after = counter.counts()?.get(frozen.len()).copied().unwrap_or(0);
    println!("   process {pid} on softgpud {:?} goes on from {count_after}", devices(INSTANCE));
    counter.wait_for_counts(5)?;

    println!("4. Told to stop: every lane's register must agree with its memory");
    File::create(&counter.stop)?;
    wait_until("the end of the thawed process", PATIENCE, || !exists(pid))?;
    let text = fs::read_to_string(&counter.log)?;
    ensure!(
        text.lines().any(|line| line == "done"),
        "endless did not end well, see {}",
        counter.log.display()
    );
    let counts = counter.counts()?;
    let continued = count_after >= count_before && counts.is_sorted();
    ensure!(continued, "the counts fell: {count_before} before, {count_after} after");
    println!("   counted to {} in the end", counts.last().unwrap_or(&0));
    println!(
        "demo: OK preempt=true kernel={KERNEL} checkpoint_ms={:.0} lock_ms={:.2} restore_ms={:.0} count_before={count_before} \
         count_after={count_after} continued={continued}",
        number(&checkpoint, "checkpoint_ms")?,
        number(&checkpoint, "lock_ms")?,
        number(&restore, "restore_ms")?,
    );
    Ok(())
}
