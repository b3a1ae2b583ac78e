// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workspace: its path, and its built programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::hsa;
use crate::setup::{self, Installed};
use crate::wheel;

/// The programs the demo runs.
#[derive(Debug)]
pub struct Built {
    /// The software device.
    pub softgpud: PathBuf,
    /// The `stasis` command.
    pub stasis: PathBuf,
    /// The heat example.
    pub heat: PathBuf,
    /// The endless example.
    pub endless: PathBuf,
}

/// The programs that the demo of the server runs.
#[derive(Debug)]
pub struct BuiltServer {
    /// The software device.
    pub softgpud: PathBuf,
    /// The `stasis` command.
    pub stasis: PathBuf,
    /// The server.
    pub embed_server: PathBuf,
    /// Its clients.
    pub embed_load: PathBuf,
}

/// The programs of the demo of a cluster.
#[derive(Debug)]
pub struct BuiltTraining {
    /// The software device.
    pub softgpud: PathBuf,
    /// The command.
    pub stasis: PathBuf,
    /// The program that trains.
    pub train: PathBuf,
}

/// The programs that the demo of a program for AMD's driver runs.
#[derive(Debug)]
pub struct BuiltForeign {
    /// The software device.
    pub softgpud: PathBuf,
    /// The `stasis` command; the library that it preloads is beside it.
    pub stasis: PathBuf,
}

/// What a program for AMD's HSA runtime needs to run on ours.
#[derive(Debug)]
pub struct BuiltHsa {
    /// The software device.
    pub softgpud: PathBuf,
    /// The `stasis` command.
    pub stasis: PathBuf,
    /// `libhsa-runtime64.so.1`.
    pub library: PathBuf,
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// `cargo` with these arguments in the root, inheriting the terminal.
pub fn cargo(arguments: &[&str], installed: &Installed) -> Result<()> {
    cargo_with(arguments, installed, &[])
}

/// The same with more environment variables.
pub fn cargo_with(arguments: &[&str], installed: &Installed, environment: &[(&str, &str)]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    installed.export(&mut command);
    let status = command
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(root())
        .status()
        .with_context(|| format!("Cannot start cargo {}", arguments.join(" ")))?;
    ensure!(status.success(), "cargo {} failed ({status})", arguments.join(" "));
    Ok(())
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Builds packages with optimisation. Returns the directory of their programs.
pub fn build_packages(packages: &[&str], installed: &Installed) -> Result<impl Fn(&str) -> Result<PathBuf>> {
    let named = packages.iter().flat_map(|package| ["-p", package]);
    let all: Vec<&str> = ["build", "--release", "--locked"].into_iter().chain(named).collect();
    cargo(&all, installed)?;
    Ok(|name: &str| program("release", name))
}

/// The program of this name that was built with this profile.
pub fn program(profile: &str, name: &str) -> Result<PathBuf> {
    let path = target().join(profile).join(name);
    ensure!(path.exists(), "{} was not built", path.display());
    path.canonicalize().with_context(|| format!("Cannot resolve {}", path.display()))
}

/// Builds the four programs of the demo and nothing else, with the development profile: its crates that compute are
/// optimised, and what this command was built from is there already. This takes half the time of a release build.
pub fn build_demo(installed: &Installed) -> Result<Built> {
    let packages = ["-p", "stasis-softgpu", "-p", "stasis-cli", "-p", "stasis-examples"];
    let programs = ["--bin", "softgpud", "--bin", "stasis", "--bin", "heat", "--bin", "endless"];
    cargo(&[&["build", "--locked"][..], &packages, &programs].concat(), installed)?;
    let at = |name: &str| program("debug", name);
    Ok(Built { softgpud: at("softgpud")?, stasis: at("stasis")?, heat: at("heat")?, endless: at("endless")? })
}

/// Builds what the demo of a cluster needs, with the development profile.
pub fn build_training(installed: &Installed) -> Result<BuiltTraining> {
    let packages = ["-p", "stasis-softgpu", "-p", "stasis-cli", "-p", "stasis-examples"];
    let programs = ["--bin", "softgpud", "--bin", "stasis", "--bin", "train"];
    cargo(&[&["build", "--locked"][..], &packages, &programs].concat(), installed)?;
    let at = |name: &str| program("debug", name);
    Ok(BuiltTraining { softgpud: at("softgpud")?, stasis: at("stasis")?, train: at("train")? })
}

/// Builds what `stasis run` needs, with the development profile.
pub fn build_foreign(installed: &Installed) -> Result<BuiltForeign> {
    let packages =
        ["-p", "stasis-softgpu", "-p", "stasis-cli", "-p", "stasis-interpose", "-p", "stasis-criu-beside"];
    cargo(&[&["build", "--locked"][..], &packages].concat(), installed)?;
    let at = |name: &str| program("debug", name);
    Ok(BuiltForeign { softgpud: at("softgpud")?, stasis: at("stasis")? })
}

/// Builds what programs for AMD's HSA runtime need, with the development profile.
pub fn build_hsa(installed: &Installed) -> Result<BuiltHsa> {
    let packages = ["-p", "stasis-softgpu", "-p", "stasis-cli", "-p", "stasis-hsa"];
    cargo(&[&["build", "--locked"][..], &packages].concat(), installed)?;
    let at = |name: &str| program("debug", name);
    Ok(BuiltHsa { softgpud: at("softgpud")?, stasis: at("stasis")?, library: hsa::link("debug")? })
}

/// Builds the programs of the server's demo with optimisation.
pub fn build_server(installed: &Installed) -> Result<BuiltServer> {
    let at = build_packages(&["stasis-softgpu", "stasis-cli", "embed-server"], installed)?;
    Ok(BuiltServer {
        softgpud: at("softgpud")?,
        stasis: at("stasis")?,
        embed_server: at("embed-server")?,
        embed_load: at("embed-load")?,
    })
}

/// Builds the CRIU plugin with optimisation and puts it into `directory`, or one in the repository.
pub fn install_plugin(directory: Option<PathBuf>, installed: &Installed) -> Result<()> {
    const NAME: &str = "libstasis_criu_plugin.so";
    cargo(&["build", "--release", "--locked", "-p", "stasis-criu-plugin"], installed)?;
    let directory = directory.unwrap_or_else(|| root().join(".stasis/criu-plugins"));
    std::fs::create_dir_all(&directory).with_context(|| format!("Cannot make {}", directory.display()))?;
    // CRIU changes its working directory before it looks for plugins.
    let directory = directory.canonicalize()?;
    // The plugin is replaced by a rename: a criu that has the old one mapped keeps it.
    let (new, path) = (directory.join(format!("{NAME}.new")), directory.join(NAME));
    std::fs::copy(target().join("release").join(NAME), &new)
        .and_then(|_| std::fs::rename(&new, &path))
        .with_context(|| format!("Cannot write {}", path.display()))?;
    let directory = directory.display();
    println!(
        "{} is ready. With it (or CRIU_LIBS_DIR={directory} for what runs criu for you):",
        path.display()
    );
    // The CRIU that works here, which need not be the one on PATH.
    let found = setup::working_criu();
    let criu = found.as_deref().unwrap_or(Path::new("criu")).display();
    println!("  {criu} dump -t PID -D DIR -L {directory}");
    println!("  {criu} restore -d -D DIR -L {directory}");
    if found.is_none() {
        println!("No CRIU that works here was found: `cargo xtask setup` installs one.");
    }
    Ok(())
}

/// Runs the model checker on the freeze and thaw protocol (`protocol/tests/model`). The checked code is built with
/// other flags, so it has its own target directory.
fn check_models(installed: &Installed) -> Result<()> {
    let directory = target().join("loom");
    let directory = directory.to_str().context("The target directory's name is not UTF-8")?;
    let mut all = vec!["test", "--profile", "model", "--quiet", "--locked", "-p", "stasis-protocol"];
    all.extend(["--test", "model", "--target-dir", directory]);
    // The mutants of the models panic on purpose.
    cargo_with(&all, installed, &[("RUSTFLAGS", "--cfg loom"), ("RUST_BACKTRACE", "0")])
}

/// What the suite samples, at length: the variables that tests read, and values for a night. A variable that is set already
/// keeps its value.
const AT_LENGTH: [(&str, &str); 11] = [
    ("STASIS_BUCKET_TRIALS", "1000"),
    ("STASIS_CRIU_GRAPHS", "30"),
    ("STASIS_EVERY_SENTENCE", "1"),
    ("STASIS_FOREIGN", "100"),
    ("STASIS_FUZZ_SECONDS", "300"),
    ("STASIS_GRAPHS", "2000"),
    ("STASIS_KILL_POINTS", "100"),
    ("STASIS_RANKS_TRIALS", "100"),
    ("STASIS_SLURM_TRIALS", "200"),
    ("STASIS_SOAK", "1000"),
    ("STASIS_TINYGRAD_TRAINING", "1"),
];

/// The kernel that the software device imitates by default.
const DEFAULT_KERNEL: &str = "7.3";

/// The kernels other than the default under whose driver a part of the suite is run first, by the value of
/// `SOFTGPU_KERNEL`.
const OTHER_KERNELS: [&str; 2] = ["6.12", "fixed"];

/// The tests that are run under them: what depends on how kernels treat faults, checkpoints and restored processes, and a
/// few of everything that a process does with its device. Those that step through kills or take whole trees are left out.
const WHERE_KERNELS_DIFFER: &str =
    "package(stasis-tests) & test(/^(faults|preempt|in_place|self_checkpoint|share|device)::/)";

/// Runs the tests that a filter of nextest names, with one more variable.
fn test_some(filter: &str, variable: (&str, &str), installed: &Installed) -> Result<()> {
    // Of one package alone, cargo would compile the dependencies again, with that package's features.
    let run = ["nextest", "run", "--workspace", "--locked", "--no-fail-fast", "-E", filter];
    cargo_with(&run, installed, &[("RUST_BACKTRACE", "0"), variable])
}

/// Runs the tests of the Python package that need no other package on a newer Python.
fn test_on_newer_python(wheel: &Path, installed: &Installed) -> Result<()> {
    let Some(python) = setup::package_on_newer(wheel)? else {
        println!("There is no newer Python for the package's tests: name one by STASIS_NEWER_PYTHON");
        return Ok(());
    };
    println!("On a newer Python:");
    let filter = "test(/^package::(buffers|interpreter|kernels_take|sessions)/)";
    test_some(filter, ("STASIS_PACKAGE_PYTHON", &python.display().to_string()), installed)
}

/// Runs the tests of the Python package that compile by Triton with the Triton before the newest.
fn test_with_triton_before(wheel: &Path, installed: &Installed) -> Result<()> {
    let before = Installed { triton: Some(setup::triton_before()?), ..installed.clone() };
    let package = setup::package(wheel, &before)?.display().to_string();
    println!("With the Triton before the newest:");
    test_some("test(/^package::.*triton/)", ("STASIS_PACKAGE_PYTHON", &package), installed)
}

/// Runs the whole test suite: examples in the documentation and the models first, so that the runner's summary closes
/// the output.
pub fn test(at_length: bool, arguments: &[String], installed: &Installed) -> Result<()> {
    // The integration tests start softgpud, stasis and the examples from where cargo puts them. With the tests in one
    // build: without them dependencies have fewer features, and a third of them would be compiled twice.
    cargo(&["build", "--workspace", "--all-targets", "--locked"], installed)?;
    hsa::link("debug")?;
    let wheel = wheel::pack(installed)?;
    if at_length {
        test_on_newer_python(&wheel, installed)?;
        test_with_triton_before(&wheel, installed)?;
    }
    let package = setup::package(&wheel, installed)?.display().to_string();
    if arguments.is_empty() {
        cargo(&["test", "--workspace", "--doc", "--quiet", "--locked"], installed)?;
        check_models(installed)?;
    }
    // The run does not stop at a failure; all failures are reported at the end.
    let mut all = vec!["nextest", "run", "--workspace", "--locked", "--no-fail-fast"];
    all.extend(arguments.iter().map(String::as_str));
    // The first lines of a failure give the reason. Backtraces are switched off: they would hide it under frames of the
    // runner, and of programs in containers, which have no symbols.
    let mut environment = vec![("RUST_BACKTRACE", "0"), ("STASIS_PACKAGE_PYTHON", &package)];
    if installed.clients.is_none() {
        environment.push(("STASIS_WITHOUT_CLIENTS", "1"));
    }
    let is_set = |name: &str| std::env::var_os(name).is_some();
    if at_length {
        environment.extend(AT_LENGTH.into_iter().filter(|(name, _)| !is_set(name)));
    }
    if (at_length || AT_LENGTH.iter().any(|(name, _)| is_set(name))) && !is_set("NEXTEST_PROFILE") {
        environment.push(("NEXTEST_PROFILE", "at-length"));
    }
    if arguments.is_empty() {
        for kernel in OTHER_KERNELS {
            println!("Under the driver of kernel {kernel} (SOFTGPU_KERNEL={kernel}):");
            test_some(WHERE_KERNELS_DIFFER, ("SOFTGPU_KERNEL", kernel), installed)?;
        }
        println!("Under the driver of kernel {DEFAULT_KERNEL}, the default:");
    }
    cargo_with(&all, installed, &environment)
}

/// Runs the benchmarks, optimised. The programs that they start are built in the same cargo call: cargo gives a
/// dependency the features of all packages of a build, so several builds of fewer packages would compile it several
/// times.
pub fn bench(arguments: &[String], installed: &Installed) -> Result<()> {
    let packages = [
        "stasis-softgpu",
        "stasis-cli",
        "stasis-interpose",
        "stasis-criu-beside",
        "stasis-hsa",
        "stasis-examples",
        "embed-server",
        "stasis-benches",
    ];
    let at = build_packages(&packages, installed)?;
    // The path beside the other programs, for any working directory.
    at("softgpud")?;
    hsa::link("release")?;
    if is_benched(arguments, &["python", "ray"]) {
        setup::package(&wheel::build(installed)?, installed)?;
    }
    let mut command = Command::new(at("stasis-benches")?);
    installed.export(&mut command);
    let status =
        command.args(arguments).current_dir(root()).status().context("Cannot start the benchmarks")?;
    ensure!(status.success(), "The benchmarks failed ({status})");
    Ok(())
}

/// Whether arguments of the benchmarks ask for one of these: all are measured where none is named.
pub fn is_benched(arguments: &[String], any_of: &[&str]) -> bool {
    let mut names = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    names.peek().is_none() || names.any(|name| any_of.contains(&name.as_str()))
}

/// Runs every fuzz target for `seconds` each; inputs that fail are kept in `fuzz/artifacts`.
pub fn fuzz(seconds: u32, installed: &Installed) -> Result<()> {
    let found = Command::new("cargo-fuzz").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("Installing cargo-fuzz with cargo");
        cargo(&["install", "--locked", "cargo-fuzz"], installed)?;
    }
    let mut targets: Vec<String> = std::fs::read_dir(root().join("fuzz/fuzz_targets"))?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_owned()))
        .collect();
    targets.sort();
    let softgpud = build_foreign(installed)?.softgpud;
    let device = [("STASIS_DEVICE", "soft:gfx1100"), ("STASIS_SOFTGPUD", &softgpud.to_string_lossy())];
    let limit = format!("-max_total_time={seconds}");
    for target in &targets {
        println!("Fuzzing {target} for {seconds} s");
        // The stable toolchain has no sanitizers; the targets look for panics and failed assertions.
        cargo_with(&["fuzz", "run", "--sanitizer", "none", target, "--", &limit], installed, &device)?;
    }
    Ok(())
}
