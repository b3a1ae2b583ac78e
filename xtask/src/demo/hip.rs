// SPDX-License-Identifier: MIT OR Apache-2.0
//! A HIP program, compiled by hipcc and linked with AMD's HIP, runs on our `libhsa-runtime64.so.1`, is frozen in the middle of its loop, and
//! goes on from files: what it prints is what it prints undisturbed, to the bit.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{DemoArgs, exists, follow, fresh_directory, number, stasis, wait_until};
use crate::setup::Installed;
use crate::workspace::{self, BuiltHsa};

/// Steps of the program.
const STEPS: usize = 400;
/// TIMEOUT: how long a run may take; on a quiet machine it takes seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// Has hipcc make the program.
fn compile(installed: &Installed, out: &Path) -> Result<PathBuf> {
    let clients = installed.clients.as_ref().context("HIP was not installed")?;
    let program = out.join("waves");
    let mut hipcc = Command::new(clients.rocm_6_1.join("bin/hipcc"));
    installed.export(&mut hipcc);
    hipcc.args(["-O2", "--offload-arch=gfx1100"]).arg(workspace::root().join("examples/hip/waves.hip"));
    let status = hipcc.arg("-o").arg(&program).status().context("Cannot start hipcc")?;
    ensure!(status.success(), "hipcc failed ({status})");
    program.canonicalize().with_context(|| format!("Cannot resolve {}", program.display()))
}

fn start(built: &BuiltHsa, program: &Path, log: &Path) -> Result<Child> {
    File::create(log)?;
    // CRIU wants files that only grow.
    let output = OpenOptions::new().append(true).open(log)?;
    let mut command = Command::new("setsid");
    // The compiler here has put the path of AMD's libraries into the program, which goes before LD_LIBRARY_PATH.
    command
        .arg("env")
        .arg(format!("LD_PRELOAD={}", built.library.display()))
        .arg(program)
        .arg(STEPS.to_string());
    command.env("STASIS_DEVICE", "soft:gfx1100").env("STASIS_SOFTGPUD", &built.softgpud);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    command.spawn().context("Cannot start the program through setsid (util-linux)")
}

/// The lines of steps that it has printed.
fn steps(log: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(log)?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    Ok(whole.lines().filter(|line| line.starts_with("step ")).map(str::to_owned).collect())
}

/// Waits until so many steps are printed.
fn follow_steps(log: &Path, until: usize, alive: &mut dyn FnMut() -> bool) -> Result<()> {
    follow(log, PATIENCE, alive, || Ok(steps(log)?.len() >= until))
}

/// Runs the demo; the last line it prints is the verdict.
pub(super) fn run(args: &DemoArgs, built: &BuiltHsa, installed: &Installed) -> Result<()> {
    let program = compile(installed, &args.out)?;
    let image = fresh_directory(args, "checkpoint")?;
    let (plain, frozen) = (args.out.join("hip-uninterrupted.log"), args.out.join("hip-frozen.log"));

    println!("\n1. A HIP program on {}: {STEPS} steps", built.library.display());
    let mut child = start(built, &program, &plain)?;
    follow_steps(&plain, STEPS, &mut || matches!(child.try_wait(), Ok(None)))?;
    ensure!(child.wait()?.success(), "The program failed, see {}", plain.display());
    let expected = steps(&plain)?;
    println!("   {}", expected.last().context("no step")?);

    println!("2. The same again, frozen in the middle of its loop");
    let mut child = start(built, &program, &frozen)?;
    follow_steps(&frozen, STEPS / 3, &mut || matches!(child.try_wait(), Ok(None)))?;
    let (pid, image_text) = (child.id(), image.to_string_lossy().into_owned());
    let checkpoint = stasis(&built.stasis, installed, &["checkpoint", &pid.to_string(), &image_text])?;
    child.wait()?;
    wait_until("the end of the frozen process", Duration::from_secs(10), || !exists(pid))?;
    let at = steps(&frozen)?.len();
    println!("   after step {at}: {image_text} written; process {pid}: gone");

    println!("3. Thawed");
    let restore = stasis(&built.stasis, installed, &["restore", &image_text])?;
    println!("   process {pid}: {}", if exists(pid) { "runs" } else { "has ended" });
    follow_steps(&frozen, STEPS, &mut || exists(pid))?;
    wait_until("the end of the thawed process", Duration::from_secs(20), || !exists(pid))?;

    println!("4. Comparing what it printed with the uninterrupted run");
    let found = steps(&frozen)?;
    let different = expected.iter().zip(&found).find(|(wanted, found)| wanted != found);
    ensure!(different.is_none() && found.len() == expected.len(), "It printed something else: {different:?}");
    println!(
        "demo: OK hip=waves steps={STEPS} identical=true frozen_after={at} checkpoint_ms={:.0} restore_ms={:.0}",
        number(&checkpoint, "checkpoint_ms")?,
        number(&restore, "restore_ms")?,
    );
    Ok(())
}
