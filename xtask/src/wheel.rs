// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask wheel`: the Python package, with the programs that it starts, as a file for pip; `cargo xtask python-docs`: its
//! documentation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::setup::process::{output, shown};
use crate::setup::{self, Installed};
use crate::workspace::{build_packages, program, root, target};

/// The packages of the programs and libraries in the wheel.
const PACKAGES: [&str; 4] = ["stasis-softgpu", "stasis-cli", "stasis-interpose", "stasis-criu-beside"];
/// The files that they make.
const FILES: [&str; 4] = ["softgpud", "stasis", "libstasis_kfd.so", "libstasis_criu_beside.so"];
/// The target of the demo's kernel: every GPU of the generation, which code objects have from version 6 on.
const DEMO_TARGET: [&str; 2] = ["-mcpu=gfx11-generic", "-mcode-object-version=6"];

/// The extension module, as cargo and as Python call it.
const MODULE: (&str, &str) = ("lib_stasis.so", "_stasis.abi3.so");

/// Builds the wheel with optimisation, by maturin; its path.
pub fn build(installed: &Installed) -> Result<PathBuf> {
    let python = setup::wheel()?;
    let at = build_packages(&PACKAGES, installed)?;
    put_programs(at, &package().join("stasis/bin"), installed)?;
    let wheels = emptied("release")?;
    let mut maturin = maturin(&python, installed);
    shown(maturin.args(["build", "--locked", "--quiet", "--release", "--out"]).arg(&wheels))?;
    only_file(&wheels)
}

/// Packs what `cargo build --workspace --all-targets` has made into a wheel for the tests: maturin would have the dependencies
/// compiled again, with the features that the package alone needs.
pub fn pack(installed: &Installed) -> Result<PathBuf> {
    let python = setup::wheel()?;
    let wheels = emptied("debug")?;
    let unpacked = wheels.join("unpacked");
    let inside = unpacked.join("stasis");
    fs::create_dir_all(&inside).with_context(|| format!("Cannot make {}", inside.display()))?;
    for entry in fs::read_dir(package().join("stasis"))? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.is_file(), path.file_name()) {
            fs::copy(&path, inside.join(name)).with_context(|| format!("Cannot copy {}", path.display()))?;
        }
    }
    strip(&program("debug", MODULE.0)?, &inside.join(MODULE.1))?;
    put_programs(|name| program("debug", name), &inside.join("bin"), installed)?;
    let mut described = maturin(&python, installed);
    described.args(["pep517", "write-dist-info", "--interpreter"]).arg(&python).arg("--metadata-directory");
    output(described.arg(&unpacked))?;
    let mut packed = Command::new(&python);
    packed.args(["-I", "-m", "wheel", "pack", "--dest-dir"]).arg(&wheels).arg(&unpacked);
    output(&mut packed)?;
    setup::process::remove(&unpacked)?;
    only_file(&wheels)
}

/// The package's directory.
fn package() -> PathBuf {
    root().join("python")
}

/// maturin in the package's directory.
fn maturin(python: &Path, installed: &Installed) -> Command {
    let mut maturin = Command::new(python.with_file_name("maturin"));
    installed.export(&mut maturin);
    maturin.current_dir(package());
    maturin
}

/// An empty directory for the wheels of a profile.
fn emptied(profile: &str) -> Result<PathBuf> {
    let wheels = target().join("wheels").join(profile);
    setup::process::remove(&wheels)?;
    fs::create_dir_all(&wheels).with_context(|| format!("Cannot make {}", wheels.display()))?;
    wheels.canonicalize().with_context(|| format!("Cannot resolve {}", wheels.display()))
}

/// The one file of a directory.
fn only_file(wheels: &Path) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(wheels)?.flatten().map(|entry| entry.path()).collect();
    ensure!(found.len() == 1, "{} has {} files, one wheel was expected", wheels.display(), found.len());
    Ok(found.remove(0))
}

/// Puts the programs, which are `at` these paths, and the demo's kernel into a directory.
fn put_programs(at: impl Fn(&str) -> Result<PathBuf>, programs: &Path, installed: &Installed) -> Result<()> {
    setup::process::remove(programs)?;
    fs::create_dir_all(programs).with_context(|| format!("Cannot make {}", programs.display()))?;
    for file in FILES {
        strip(&at(file)?, &programs.join(file))?;
    }
    let kernel = root().join("examples/custom_dispatcher/axpy.c");
    let mut clang = Command::new(&installed.clang);
    clang.arg("--target=amdgcn-amd-amdhsa").args(DEMO_TARGET);
    clang.args(["-O3", "-nogpulib", "-ffreestanding", "-o"]);
    // It warns that version 6 is new; the loader's tests know it.
    output(clang.arg(programs.join("axpy.co")).arg(kernel)).map(drop)
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

/// Makes a site of the package's documentation, with a reference that is read from its types.
pub fn document() -> Result<()> {
    let site = target().join("python-docs");
    let mut mkdocs = Command::new(setup::mkdocs()?);
    // A word of its authors on their other programs.
    mkdocs.current_dir(package()).env("NO_MKDOCS_2_WARNING", "1");
    shown(mkdocs.args(["build", "--strict", "--quiet", "--clean", "--site-dir"]).arg(&site))?;
    println!("The documentation is in {}", site.join("index.html").display());
    Ok(())
}
