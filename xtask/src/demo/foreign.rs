// SPDX-License-Identifier: MIT OR Apache-2.0
//! tinygrad from PyPI trains on the software device, is frozen in the middle of a kernel, and goes on from a file: the losses are
//! those of an undisturbed run, to the bit.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use stasis_plot::{Axis, Chart, Figure, Mark, Series, Size, Span};

use super::{DemoArgs, exists, follow, fresh_directory, number, stasis, wait_until};
use crate::setup::Installed;
use crate::workspace::{self, BuiltForeign};

/// Steps of the training.
const STEPS: usize = 40;
/// How many checkpoints are made at the most until one finds waves in the middle of a kernel.
const TRIES: usize = 8;
/// TIMEOUT: how long a run may take; a second or so for each step on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A step: its number, the loss, and the loss's bits.
type Step = (usize, f64, String);

/// One training.
struct Run {
    log: PathBuf,
}

impl Run {
    fn start(&self, built: &BuiltForeign, python: &Path) -> Result<Child> {
        let log = File::create(&self.log)?;
        let mut command = Command::new("setsid");
        command.arg(&built.stasis).args(["run", "--device", "soft:gfx1100", "--"]).arg(python);
        command.arg(workspace::root().join("examples/tinygrad/train.py")).arg(STEPS.to_string());
        command.env("DEV", "KFD+AMD:LLVM").env("STASIS_SOFTGPUD", &built.softgpud);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().context("Cannot start stasis run through setsid (util-linux)")
    }

    /// The steps that it has said so far.
    fn steps(&self) -> Result<Vec<Step>> {
        let text = fs::read_to_string(&self.log)?;
        let step = |line: &str| {
            let mut words = line.strip_prefix("step ")?.split(' ');
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.to_owned()))
        };
        Ok(text.lines().filter_map(step).collect())
    }

    fn is_done(&self) -> bool {
        fs::read_to_string(&self.log).is_ok_and(|text| text.lines().any(|line| line == "done"))
    }

    /// Waits until so many steps are done, or all.
    fn follow(&self, until: usize, alive: &mut dyn FnMut() -> bool) -> Result<()> {
        let reached = || Ok(self.is_done() || until < STEPS && self.steps()?.len() >= until);
        follow(&self.log, PATIENCE, alive, reached)
    }
}

/// The program that a `stasis run` has started, and its softgpud.
fn children(run: u32) -> Result<(u32, Vec<u32>)> {
    let of = |pid: u32| -> Vec<u32> {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let is_device =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("softgpud"));
    let (brokers, programs): (Vec<u32>, Vec<u32>) = of(run).into_iter().partition(is_device);
    let executors = brokers.iter().flat_map(|broker| of(*broker)).collect::<Vec<_>>();
    let program = programs.first().context("stasis run has started no program")?;
    Ok((*program, [brokers, executors].concat()))
}

/// Runs the demo; the last line it prints is the verdict.
pub(super) fn run(args: &DemoArgs, built: &BuiltForeign, installed: &Installed) -> Result<()> {
    let python = &installed.clients.as_ref().context("tinygrad was not installed")?.python;
    let image = fresh_directory(args, "checkpoint")?;
    let make = |name: &str| Run { log: args.out.join(format!("tinygrad-{name}.log")) };

    println!("\n1. tinygrad from PyPI, unmodified, trains a network on the software device: {STEPS} steps");
    let plain = make("uninterrupted");
    let mut child = plain.start(built, python)?;
    plain.follow(STEPS, &mut || matches!(child.try_wait(), Ok(None)))?;
    ensure!(child.wait()?.success(), "The training failed, see {}", plain.log.display());
    let expected = plain.steps()?;
    let (first, last) = (expected.first().context("no step")?, expected.last().context("no step")?);
    println!("   loss {:.6} after step {}, {:.6} after step {}", first.1, first.0, last.1, last.0);

    println!("2. The same again, frozen in the middle of a kernel");
    let frozen = make("frozen");
    let mut child = frozen.start(built, python)?;
    frozen.follow(STEPS / 3, &mut || matches!(child.try_wait(), Ok(None)))?;
    let (pid, devices) = children(child.id())?;
    let image_text = image.to_string_lossy().into_owned();
    let mut restores = 0;
    let checkpoint = loop {
        let checkpoint = stasis(&built.stasis, installed, &["checkpoint", &pid.to_string(), &image_text])?;
        if restores == 0 {
            // It ends when its program has ended.
            child.wait()?;
        }
        wait_until("the end of the frozen process", Duration::from_secs(10), || !exists(pid))?;
        if number(&checkpoint, "waves_saved")? > 0.0 {
            break checkpoint;
        }
        restores += 1;
        ensure!(restores < TRIES, "No checkpoint of {TRIES} found waves in the middle of a kernel");
        // Between two kernels: it goes on from there, and is frozen again a little later.
        stasis(&built.stasis, installed, &["restore", &image_text])?;
        std::thread::sleep(Duration::from_millis(37));
        fs::remove_dir_all(&image)?;
    };
    let at = frozen.steps()?.len();
    let waves = number(&checkpoint, "waves_saved")?;
    wait_until("the end of the device", Duration::from_secs(10), || !devices.iter().any(|pid| exists(*pid)))?;
    println!(
        "   after step {at}: {image_text} written, with {waves:.0} waves in the middle of a kernel; process {pid}: gone, \
         softgpud {devices:?}: gone"
    );

    println!("3. Thawed");
    let restore = stasis(&built.stasis, installed, &["restore", &image_text])?;
    println!("   process {pid}: {}", if exists(pid) { "runs" } else { "has ended" });
    frozen.follow(STEPS, &mut || exists(pid))?;
    wait_until("the end of the thawed process", Duration::from_secs(20), || !exists(pid))?;

    println!("4. Comparing the losses with those of the uninterrupted run");
    let found = frozen.steps()?;
    let picture = args.out.join("tinygrad-losses.png");
    draw(&expected, &found, at, &picture)?;
    println!("   {}", picture.display());
    if let Some((wanted, other)) = expected.iter().zip(&found).find(|(wanted, other)| wanted != other) {
        bail!("The losses differ: {wanted:?} uninterrupted, {other:?} frozen");
    }
    ensure!(found.len() == expected.len(), "{} steps instead of {}", found.len(), expected.len());
    println!(
        "demo: OK foreign=tinygrad losses=identical waves_saved={waves:.0} checkpoint_ms={:.0} restore_ms={:.0}",
        number(&checkpoint, "checkpoint_ms")?,
        number(&restore, "restore_ms")?,
    );
    Ok(())
}

fn draw(expected: &[Step], found: &[Step], at: usize, path: &Path) -> Result<()> {
    // CAST: a step's number.
    let points =
        |steps: &[Step]| steps.iter().map(|(step, loss, _)| (*step as f64, *loss)).collect::<Vec<_>>();
    let (expected, found) = (points(expected), points(found));
    let losses = || expected.iter().chain(&found).map(|(_, loss)| *loss);
    let (least, most) = (losses().fold(f64::MAX, f64::min), losses().fold(f64::MIN, f64::max));
    let chart = Chart {
        title: "tinygrad trains, is frozen in the middle of a kernel, and goes on".to_owned(),
        notes: vec!["Line: uninterrupted. Points: frozen and thawed.".to_owned()],
        x: Axis::linear("step", 0.0, STEPS as f64 + 1.0),
        y: Axis::log("loss", least, most),
        spans: vec![Span {
            name: "frozen".to_owned(),
            colour: [0xd0, 0xe0, 0xff],
            from: at as f64 + 0.3,
            to: at as f64 + 0.7,
        }],
        series: vec![
            Series {
                name: "uninterrupted".to_owned(),
                colour: [0x90, 0x90, 0x90],
                mark: Mark::Line,
                points: expected,
            },
            Series {
                name: "frozen and thawed".to_owned(),
                colour: [0xc0, 0x30, 0x20],
                mark: Mark::Points { radius: 3 },
                points: found,
            },
        ],
    };
    let png = Figure::from(chart).png(Size { width: 960, height: 540 }).context("Cannot draw the losses")?;
    fs::write(path, png).with_context(|| format!("Cannot write {}", path.display()))
}
