// SPDX-License-Identifier: MIT OR Apache-2.0
//! What calls of an HSA runtime take: one C program on our `libhsa-runtime64.so.1`, and on AMD's of release 6.1 under `stasis run`, in
//! turns. AMD's calls of the driver go through `stasis run`'s library there, which a program on a GPU does not need.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{installed, source, stasis_run};
use crate::figure::{Report, median};
use crate::gpu::Gpu;

/// Processes whose hsa_init is timed, of each runtime.
const INITS: usize = 15;
/// Processes that time all calls, of each runtime; each takes a median of its own.
const RUNS: usize = 3;
/// Case and metric of what the program calls so.
const CASES: [(&str, &str, &str); 11] = [
    ("init", "the first hsa_init of a process", "init"),
    ("submit_each", "256 dispatches, each with a doorbell", "a_dispatch"),
    ("submit_batch", "256 dispatches, one doorbell", "a_dispatch"),
    ("trip_active", "empty kernel, active wait", "round_trip"),
    ("trip_blocked", "empty kernel, blocked wait", "round_trip"),
    ("wake", "a thread that waits for a signal since 5 ms", "wake_up"),
    ("allocate_device_64k", "64 KiB of the device", "allocate_and_free"),
    ("allocate_device_16m", "16 MiB of the device", "allocate_and_free"),
    ("allocate_host_64k", "64 KiB of the host, fine-grained", "allocate_and_free"),
    ("copy_4k", "4 KiB to the device by an engine", "copy"),
    ("copy_4m", "4 MiB to the device by an engine", "copy"),
];

/// Cases whose instructions are counted, and over how many dispatches; the case of none is what marks cost.
const STEPS: [(&str, &str); 2] =
    [("steps_each", "256 dispatches, each with a doorbell"), ("steps_batch", "256 dispatches, one doorbell")];
const NO_STEPS: &str = "steps_0";
const STEPPED: f64 = 256.0;

/// The name that programs load an HSA runtime by.
const NAME: &str = "libhsa-runtime64.so.1";

fn compile(compiler: &str, arguments: &[&str], made: &Path) -> Result<()> {
    let mut command = Command::new(compiler);
    command
        .args(["-O2", "-Wall", "-Wextra", "-Werror"])
        .arg(source("hsa.c"))
        .arg("-o")
        .arg(made)
        .args(arguments);
    let output = command.output().with_context(|| format!("Cannot start {compiler}"))?;
    ensure!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Nanoseconds or instructions, by the program's name of what took them.
type Times = BTreeMap<String, Vec<f64>>;

/// Runs a command and adds its lines, of a case and a number, to `times`.
fn add(mut command: Command, times: &mut Times) -> Result<()> {
    let output = command.output().with_context(|| format!("Cannot start {command:?}"))?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} failed ({}): {errors}", output.status);
    for line in text.lines() {
        let (name, time) = line.split_once(' ').with_context(|| format!("no time: {line}"))?;
        times.entry(name.to_owned()).or_default().push(time.parse()?);
    }
    Ok(())
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    // Stays open: neither runtime starts a device in what is timed.
    let gpu = Gpu::open()?;
    let own = std::env::current_exe()?;
    let (softgpud, libraries) = (own.with_file_name("softgpud"), own.with_file_name("hsa"));
    let library = libraries.join(NAME);
    ensure!(library.exists(), "{} is missing: `cargo xtask bench` links it", library.display());
    let rocm = installed("STASIS_ROCM_6_1", "rocm-6.1")?;
    let base = rocm.join("base/usr/lib/x86_64-linux-gnu");
    let of_amd = format!("{}:{}", base.display(), rocm.join("root/usr/lib/x86_64-linux-gnu").display());

    let directory = tempfile::tempdir()?;
    let (program, object) = (directory.path().join("hsa"), directory.path().join("hsa.co"));
    let search = format!("-L{}", libraries.display());
    compile("cc", &[&search, &format!("-l:{NAME}"), "-lpthread"], &program)?;
    let clang = std::env::var("STASIS_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let target = format!("-mcpu={}", gpu.agent.name());
    compile(&clang, &["--target=amdgcn-amd-amdhsa", &target, "-nogpulib", "-ffreestanding"], &object)?;

    let (mut ours, mut amds) = (Times::new(), Times::new());
    let mut both = |arguments: &[&Path]| -> Result<()> {
        let mut command = Command::new(&program);
        command.args(arguments).env("LD_LIBRARY_PATH", &libraries).env("STASIS_SOFTGPUD", &softgpud);
        add(command, &mut ours)?;
        let mut command = stasis_run()?;
        command.arg(base.join("ld-linux-x86-64.so.2")).arg("--library-path").arg(&of_amd);
        command.arg(&program).args(arguments);
        add(command, &mut amds)
    };
    for _ in 0..INITS {
        both(&[Path::new("init")])?;
    }
    for _ in 0..RUNS {
        both(&[Path::new("calls"), &object])?;
    }
    both(&[Path::new("steps"), &object])?;
    for (name, case) in STEPS {
        let of = |times: &Times| -> Result<f64> {
            let count = |name| times.get(name).with_context(|| format!("{name} was not counted"));
            Ok((median(count(name)?) - median(count(NO_STEPS)?)) / STEPPED)
        };
        report.versus(
            case,
            "instructions_a_dispatch",
            of(&ours)?,
            "1",
            ("rocr_under_stasis_run", of(&amds)?),
        );
    }
    for (name, case, metric) in CASES {
        let (of_ours, of_amds) = (ours.get(name), amds.get(name));
        let (of_ours, of_amds) = of_ours.zip(of_amds).with_context(|| format!("{name} was not timed"))?;
        report.versus(
            case,
            metric,
            median(of_ours) / 1e3,
            "us",
            ("rocr_under_stasis_run", median(of_amds) / 1e3),
        );
    }
    Ok(())
}
