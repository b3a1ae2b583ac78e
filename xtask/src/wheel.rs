// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask wheel`: the Python package, with the programs that it starts, as a file for pip.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::setup::process::shown;
use crate::setup::{self, Installed};
use crate::workspace::{cargo, root, target};

/// The packages of the programs and libraries in the wheel.
const PACKAGES: [&str; 4] = ["stasis-softgpu", "stasis-cli", "stasis-interpose", "stasis-criu-beside"];
/// The files that they make.
const FILES: [&str; 4] = ["softgpud", "stasis", "libstasis_kfd.so", "libstasis_criu_beside.so"];
/// The target of the demo's kernel: every GPU of the generation, which code objects have from version 6 on.
const DEMO_TARGET: [&str; 2] = ["-mcpu=gfx11-generic", "-mcode-object-version=6"];

/// Builds the wheel, with optimisation unless it is for `dev`elopment; its path.
pub fn build(dev: bool, installed: &Installed) -> Result<PathBuf> {
    let maturin = setup::maturin()?;
    let (profile, built) = if dev { ("dev", "debug") } else { ("release", "release") };
    let named = PACKAGES.iter().flat_map(|package| ["-p", *package]);
    // The development build is the workspace's: `cargo xtask test` has made it.
    let build: Vec<&str> = match dev {
        true => vec!["build", "--workspace", "--all-targets", "--locked"],
        false => ["build", "--release", "--locked"].into_iter().chain(named).collect(),
    };
    cargo(&build, installed)?;
    let package = root().join("python");
    let programs = package.join("stasis/bin");
    setup::process::remove(&programs)?;
    fs::create_dir_all(&programs).with_context(|| format!("Cannot make {}", programs.display()))?;
    for file in FILES {
        strip(&target().join(built).join(file), &programs.join(file))?;
    }
    let kernel = root().join("examples/custom_dispatcher/axpy.c");
    let mut clang = Command::new(&installed.clang);
    clang.arg("--target=amdgcn-amd-amdhsa").args(DEMO_TARGET);
    clang.args(["-O3", "-nogpulib", "-ffreestanding", "-o"]);
    shown(clang.arg(programs.join("axpy.co")).arg(kernel))?;
    let wheels = target().join("wheels").join(built);
    setup::process::remove(&wheels)?;
    let mut maturin = Command::new(maturin);
    installed.export(&mut maturin);
    maturin.args(["build", "--locked", "--quiet", "--profile", profile, "--out"]).arg(&wheels);
    shown(maturin.current_dir(&package))?;
    let found: Vec<PathBuf> = fs::read_dir(&wheels)?.flatten().map(|entry| entry.path()).collect();
    ensure!(found.len() == 1, "maturin made {} files in {}", found.len(), wheels.display());
    Ok(found.into_iter().next().unwrap_or_default())
}

/// Copies a program without its symbols.
fn strip(from: &Path, to: &Path) -> Result<()> {
    shown(Command::new("strip").arg("-o").arg(to).arg(from))
}

/// Says what was built and how it is installed.
pub fn tell(wheel: &Path) -> Result<()> {
    let bytes = fs::metadata(wheel).with_context(|| format!("Cannot read {}", wheel.display()))?.len();
    println!("{} is ready ({:.1} MB):", wheel.display(), bytes as f64 / 1e6);
    println!("  pip install {}", wheel.display());
    println!("  python -m stasis demo");
    Ok(())
}
