// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repository's own tasks, each a subcommand. A subcommand first sets up what a fresh machine lacks.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(unsafe_code)]

mod aarch64;
mod checks;
mod demo;
mod hsa;
mod inherited;
mod isa_coverage;
mod setup;
mod wheel;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::Subcommand;

/// Sets up the machine and runs the repository's tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Installs what the build, the tests and the demo need; does nothing where it is already there.
    Setup(setup::Options),
    /// Sets up, then freezes and thaws a process on the GPU and shows that nothing was lost.
    Demo(demo::DemoArgs),
    /// Sets up, then runs the whole test suite.
    Test {
        /// Also does at length what the suite only samples: moments to kill processes at, generations, graphs of shared
        /// memory, random programs, sentences. Takes hours.
        #[arg(long)]
        all: bool,
        /// Leave the programs out that run unmodified on the software device: ROCr and HIP, tinygrad, IREE.
        #[arg(long)]
        without_clients: bool,
        /// Arguments for `cargo nextest run`, such as a filter.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Sets up, then checks format, spelling, lints, documentation and dependencies.
    Check(checks::CheckOptions),
    /// Runs the tests that Miri can run: rings, registry, ELF files.
    Miri,
    /// Builds the CRIU plugin and puts it into a directory of its own, for `criu -L`.
    Plugin {
        /// Where to (default: .stasis/criu-plugins in the repository); CRIU loads every plugin in it.
        directory: Option<PathBuf>,
    },
    /// Builds libhsa-runtime64.so.1, which programs for AMD's HSA runtime load in its place.
    Hsa,
    /// Builds the Python package, with the programs that it starts, as a file for pip.
    Wheel,
    /// Builds the documentation of the Python package as a site.
    PythonDocs,
    /// Says which functions of AMD's HSA runtime that library has, which it refuses and with what, and who wants them.
    HsaCoverage,
    /// Sets up, then runs the semantic test of every instruction and says which have one.
    IsaCoverage,
    /// Sets up, then builds for aarch64 and runs the wave engine's tests there, under an emulator.
    Aarch64(aarch64::Options),
    /// Sets up, then runs every fuzz target for a while.
    Fuzz {
        /// How long each target runs.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Sets up, then measures: one benchmark by name, or all.
    Bench {
        /// Arguments for the benchmark program: names, --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        // Without the backtrace that RUST_BACKTRACE asks for: the place in this program says nothing about the failure.
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    if let Err(error) = inherited::close_on_exec() {
        eprintln!(
            "xtask: inherited descriptors stay open ({error}); CRIU may refuse processes that have them"
        );
    }
    match command {
        Command::Miri => return checks::miri(),
        Command::HsaCoverage => return hsa::coverage(),
        Command::PythonDocs => return wheel::document(),
        _ => {}
    }
    let options = match &command {
        Command::Setup(options) => options.clone(),
        Command::Plugin { .. } | Command::Hsa | Command::Wheel => setup::Options {
            without_criu: true,
            without_tests: true,
            without_model: true,
            without_triton: true,
            ..setup::Options::default()
        },
        // What checks build does not run, and these tests need no CRIU.
        Command::Check(_) | Command::IsaCoverage => setup::Options {
            without_criu: true,
            without_model: true,
            without_triton: true,
            ..setup::Options::default()
        },
        Command::Aarch64(_) => {
            setup::Options { without_criu: true, without_model: true, ..setup::Options::default() }
        }
        Command::Demo(arguments) => setup::Options {
            without_tests: true,
            without_model: !arguments.server,
            clients: arguments.foreign || arguments.hip,
            slurm: arguments.slurm,
            without_triton: true,
            ..setup::Options::default()
        },
        Command::Fuzz { .. } => setup::Options { without_triton: true, ..setup::Options::default() },
        Command::Bench { arguments } => {
            let clients = workspace::is_benched(arguments, &["clients", "hsa", "ray"]);
            let without_triton = !workspace::is_benched(arguments, &["python"]);
            let s3 = workspace::is_benched(arguments, &["checkpoint-store"]);
            setup::Options { without_triton, clients, s3, ..setup::Options::default() }
        }
        Command::Test { without_clients, .. } => {
            setup::Options { clients: !without_clients, slurm: true, s3: true, ..setup::Options::default() }
        }
        _ => setup::Options::default(),
    };
    let mut installed = setup::run(&options)?;
    match command {
        Command::Setup(_) => println!("{installed}"),
        Command::Demo(arguments) => demo::run(&arguments, &installed)?,
        Command::Test { all, arguments, .. } => workspace::test(all, &arguments, &installed)?,
        Command::Check(options) => checks::check(&options, &installed)?,
        Command::Miri => checks::miri()?,
        Command::Plugin { directory } => workspace::install_plugin(directory, &installed)?,
        Command::Aarch64(options) => aarch64::run(&options, &installed)?,
        Command::Wheel => wheel::tell(&wheel::build(&installed)?)?,
        Command::Hsa => hsa::install(&installed)?,
        Command::HsaCoverage => hsa::coverage()?,
        Command::PythonDocs => wheel::document()?,
        Command::IsaCoverage => isa_coverage::run(&installed)?,
        Command::Fuzz { seconds } => workspace::fuzz(seconds, &installed)?,
        Command::Bench { arguments } => {
            // The benchmark reports a missing peer beside the missing figures.
            if let Err(why) = installed.add_peers() {
                eprintln!("xtask: benchmarks will lack peers: {why:#}");
            }
            workspace::bench(&arguments, &installed)?;
        }
    }
    Ok(())
}
