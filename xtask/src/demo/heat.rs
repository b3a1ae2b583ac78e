// SPDX-License-Identifier: MIT OR Apache-2.0
//! Heat diffuses on the GPU; the process is frozen in the middle and thawed, and its result is that of an undisturbed
//! run.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::{DemoArgs, devices, exists, fresh_directory, number, stasis, wait_until};
use crate::setup::Installed;
use crate::workspace::{self, Built};

/// One heat process with what it writes.
struct Run<'a> {
    args: &'a DemoArgs,
    built: &'a Built,
    log: PathBuf,
    cells: PathBuf,
}

impl Run<'_> {
    fn start(&self, instance: &str) -> Result<Child> {
        let log = File::create(&self.log)?;
        drop(log);
        let append = || OpenOptions::new().append(true).open(&self.log);
        // A session of its own: CRIU takes no process that hangs on a terminal.
        let mut command = Command::new("setsid");
        command
            .arg(&self.built.heat)
            .args(["--steps", &self.args.steps.to_string(), "--size", &self.args.size.to_string()])
            .arg("--picture")
            .arg(workspace::root().join("examples/heat/snowflake.png"))
            .arg("--before")
            .arg(self.args.out.join("before.png"))
            .arg("--after")
            .arg(self.args.out.join("after.png"))
            .arg("--cells")
            .arg(&self.cells)
            .stdin(Stdio::null())
            .stdout(append()?)
            .stderr(append()?)
            .env("STASIS_SOFTGPUD", &self.built.softgpud)
            .env("STASIS_SOFTGPU_INSTANCE", instance);
        command.spawn().context("Cannot start heat through setsid (util-linux)")
    }

    /// The last step the log reports, and whether the run is over.
    fn progress(&self) -> Result<(u32, bool)> {
        let text = fs::read_to_string(&self.log)?;
        if let Some(error) = text.lines().find(|l| l.starts_with("Error")) {
            bail!("heat failed, see {}: {error}", self.log.display());
        }
        let step =
            text.lines().filter_map(|l| l.strip_prefix("step ")?.parse().ok()).next_back().unwrap_or(0);
        Ok((step, text.lines().any(|l| l == "done")))
    }

    /// Follows the run until `until` steps are done; `alive` tells whether the process still lives.
    fn follow(&self, bar: &ProgressBar, until: u32, alive: &mut dyn FnMut() -> bool) -> Result<()> {
        let mut said = 0;
        loop {
            let was_alive = alive();
            let (step, done) = self.progress()?;
            bar.set_position(u64::from(step));
            // Without a terminal there is no progress bar, but a line at intervals.
            if bar.is_hidden() && step >= said + self.args.steps.div_ceil(4) {
                said = step;
                println!("   step {step} of {}", self.args.steps);
            }
            if done || step >= until && until < self.args.steps {
                return Ok(());
            }
            ensure!(was_alive, "heat ended early, see {}", self.log.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn bar(steps: u32, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(u64::from(steps));
    if let Ok(style) = ProgressStyle::with_template("  {msg:<28} [{bar:40}] step {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// Runs the demo; the last line it prints is the verdict.
pub(super) fn run(args: &DemoArgs, built: &Built, installed: &Installed) -> Result<()> {
    let image = fresh_directory(args, "checkpoint")?;
    let make = |name: &str| Run {
        args,
        built,
        log: args.out.join(format!("{name}.log")),
        cells: args.out.join(format!("{name}.f32")),
    };

    println!("\n1. Heat on the GPU, uninterrupted: {0}x{0} cells, {1} steps", args.size, args.steps);
    let plain = make("uninterrupted");
    let progress = bar(args.steps, "uninterrupted");
    let mut child = plain.start("demo-uninterrupted")?;
    plain.follow(&progress, args.steps, &mut || matches!(child.try_wait(), Ok(None)))?;
    ensure!(child.wait()?.success(), "heat failed, see {}", plain.log.display());
    progress.finish();

    println!("2. The same again, frozen in the middle");
    let frozen = make("frozen");
    let progress = bar(args.steps, "before the freeze");
    let instance = "demo-frozen";
    let mut child = frozen.start(instance)?;
    let pid = child.id();
    frozen.follow(&progress, args.steps / 2, &mut || matches!(child.try_wait(), Ok(None)))?;
    progress.abandon();
    let device_before = devices(instance);
    ensure!(!device_before.is_empty(), "no softgpud serves the process: cannot show that it goes");
    println!("   process {pid} runs on softgpud {device_before:?}");
    let image_text = image.to_string_lossy().into_owned();
    let checkpoint = stasis(&built.stasis, installed, &["checkpoint", &pid.to_string(), &image_text])?;
    // CRIU killed the process; it must be reaped, or its pid would not be free.
    child.wait()?;
    wait_until("the end of the frozen process and its softgpud", Duration::from_secs(5), || {
        !exists(pid) && devices(instance).is_empty()
    })?;
    println!("   {image_text} written; process {pid}: gone, softgpud {device_before:?}: gone");

    println!("3. Thawed");
    let restore = stasis(&built.stasis, installed, &["restore", &image_text])?;
    println!(
        "   process {pid}: {}, softgpud {:?}",
        if exists(pid) { "runs" } else { "has ended" },
        devices(instance)
    );
    let progress = bar(args.steps, "after the thaw");
    frozen.follow(&progress, args.steps, &mut || exists(pid))?;
    progress.finish();
    wait_until("the end of the thawed process", Duration::from_secs(10), || !exists(pid))?;

    println!("4. Comparing with the uninterrupted run and with the CPU");
    let (a, b) = (fs::read(&plain.cells)?, fs::read(&frozen.cells)?);
    let identical = !a.is_empty() && a == b;
    let status = Command::new(&built.heat)
        .args(["--steps", &args.steps.to_string(), "--size", &args.size.to_string()])
        .arg("--picture")
        .arg(workspace::root().join("examples/heat/snowflake.png"))
        .arg("--compare")
        .arg(&frozen.cells)
        .status()?;
    ensure!(status.success(), "the result is not what the CPU computes");
    ensure!(identical, "the frozen run's cells differ from the uninterrupted run's");
    let image_bytes = number(&checkpoint, "image_bytes")? + number(&checkpoint, "criu_bytes")?;
    println!(
        "demo: OK steps={} checkpoint_ms={:.0} restore_ms={:.0} image_bytes={image_bytes:.0} identical={identical}",
        args.steps,
        number(&checkpoint, "checkpoint_ms")?,
        number(&restore, "restore_ms")?,
    );
    Ok(())
}
