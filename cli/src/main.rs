// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `stasis` command: freeze and thaw processes, look at agents and images, run a kernel from the shell.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(unsafe_code)]

mod agents;
mod archive;
mod beside;
mod dispatch;
mod doctor;
mod foreign;
mod freeze;
mod inspect;
mod library;
mod loopback;
mod output;
mod preflight;
mod progress;
mod run;
mod slurm;
mod squash;
mod timings;
mod together;
mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use stasis::checkpoint::contact::has_agent;
use stasis::checkpoint::{Done, Request, call};
use stasis::criu::{SEALED_LAYOUT, seal};
use stasis_criu::guard;

/// A compute runtime for AMD GPUs whose processes freeze and thaw.
#[derive(Debug, Parser)]
#[command(name = "stasis", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program that was written for AMD's driver on the software device.
    Run(run::RunArgs),
    /// Run the program of a Slurm job: checkpoint it when the job has to leave its node, and go on elsewhere.
    SlurmRun(slurm::SlurmArgs),
    /// Freeze a process into a directory; it is gone afterwards.
    Checkpoint(freeze::CheckpointArgs),
    /// Bring a process back from a directory.
    Restore(freeze::RestoreArgs),
    /// Have a process that is checkpointed, or whose restore failed, take its device back.
    Resume {
        /// The process.
        pid: i32,
        /// Where its images are now, if they were moved.
        directory: Option<PathBuf>,
        #[command(flatten)]
        terms: freeze::TermsArgs,
    },
    /// Have what another command ordered of a process give up; the process is then as before.
    Cancel {
        /// The process.
        pid: i32,
    },
    /// What a checkpoint of a process would move, and what stands in its way. Exits with 1 if something does.
    Preflight(preflight::PreflightArgs),
    /// What state a process is in, and what its runtime has.
    Status {
        /// The process.
        pid: i32,
        /// Print one JSON object instead of prose.
        #[arg(long)]
        json: bool,
    },
    /// What agents are here.
    Agents(agents::AgentsArgs),
    /// Try what the runtime needs of the device, a probe at a time. Exits with 1 if a required one fails.
    Doctor(doctor::DoctorArgs),
    /// What a checkpoint directory or image holds.
    Inspect(inspect::InspectArgs),
    /// Make a checkpoint that was made upon a parent whole by itself, in another directory.
    Squash(squash::SquashArgs),
    /// Keep checkpoints that share their chunks (`docs/store.md`).
    Store(transfer::StoreArgs),
    /// Look into the archives in which kubelet and podman keep checkpoints of containers, unpack and make them.
    Archive(archive::ArchiveArgs),
    /// Send a checkpoint to another machine or process.
    Send(transfer::SendArgs),
    /// Receive a checkpoint from another machine or process.
    Receive(transfer::ReceiveArgs),
    /// Complete the manifest of a checkpoint. CRIU calls it when its images are whole and the tasks still frozen.
    #[command(hide = true)]
    CommitImages {
        /// The checkpoint's directory.
        #[arg(required_unless_present = "layout")]
        directory: Option<PathBuf>,
        /// Say which layout this program writes, and do nothing.
        #[arg(long)]
        layout: bool,
    },
    /// Run one kernel of a code object; list its kernels.
    Dispatch(Box<dispatch::DispatchArgs>),
    /// What `restore` starts beside CRIU.
    #[command(hide = true)]
    Guard { order: String },
}

fn execute(command: Command) -> Result<ExitCode> {
    let done = match command {
        Command::Preflight(args) => {
            let tree = foreign::find(args.pid)?;
            let device =
                tree.map(|tree| Ok::<_, anyhow::Error>((tree.pid, foreign::survey(&tree)?))).transpose()?;
            return Ok(if preflight::run(&args, device)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Doctor(args) => {
            return Ok(if doctor::run(&args)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Run(args) => return run::run(&args),
        Command::SlurmRun(args) => return slurm::run(&args).map(ExitCode::from),
        Command::Checkpoint(args) => match foreign::find_all(&args.roots())? {
            Some(trees) => foreign::checkpoint(&args, trees),
            None => freeze::checkpoint(&args),
        },
        Command::Restore(mut args) => {
            args.obtain()?;
            match together::find(&args)? {
                Some((directory, index)) => together::run(&args, &directory, &index),
                None => match foreign::find_checkpoint(&args)? {
                    Some((directory, manifest)) => foreign::restore(&args, &directory, &manifest),
                    None => freeze::restore(&args),
                },
            }
        }
        Command::Resume { pid, directory, terms } => {
            let directory = directory.map(|d| d.canonicalize()).transpose()?;
            freeze::resume(pid, &[], directory, Some(terms.admission()?), Duration::from_secs(120))?;
            output::report(format_args!("Process {pid} runs\n"));
            Ok(())
        }
        Command::Status { pid, json } => match foreign::find(pid)? {
            Some(tree) if !has_agent(pid) => foreign::status(&tree, json),
            _ => preflight::status(pid, json),
        },
        Command::Agents(args) => agents::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Squash(args) => squash::run(&args),
        Command::Store(args) => transfer::store(&args),
        Command::Archive(args) => archive::run(&args),
        Command::Send(args) => transfer::send(&args),
        Command::Receive(args) => transfer::receive(&args),
        Command::Dispatch(args) => dispatch::run(*args),
        Command::CommitImages { directory: None, .. } | Command::CommitImages { layout: true, .. } => {
            println!("{SEALED_LAYOUT}");
            Ok(())
        }
        Command::CommitImages { directory: Some(directory), .. } => Ok(seal(&directory).map(drop)?),
        Command::Guard { order } => Ok(guard::run(&order)?),
        Command::Cancel { pid } => {
            if let Some(tree) = foreign::find(pid)?.filter(|_| !has_agent(pid)) {
                return foreign::cancel(&tree).map(|()| ExitCode::SUCCESS);
            }
            let (state, done) = call(pid, &Request::Cancel, Duration::from_secs(5))?;
            let was_at_work = matches!(done, Done::Cancelled { was_at_work: true });
            output::report(if was_at_work {
                "The order was told to give up\n".to_owned()
            } else {
                format!("Nothing is at work; process {pid} is {state}\n")
            });
            Ok(())
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        // Errors are printed where they end up; the log is for those who ask, but for a setting that nobody reads.
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("STASIS_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off,kfd::settings=warn")),
        )
        .with_writer(std::io::stderr)
        // It would say so by a panic where nobody reads the standard error.
        .log_internal_errors(false)
        .init();
    match execute(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // One line a cause: what was wanted, then why not.
            output::complain(format_args!("Error: {error}\n"));
            error.chain().skip(1).for_each(|cause| output::complain(format_args!("  because: {cause}\n")));
            ExitCode::FAILURE
        }
    }
}
