// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `stasis` command: freeze and thaw processes, look at agents and images, run a kernel from the shell.

mod agents;
mod beside;
mod criu;
mod dispatch;
mod freeze;
mod inspect;
mod loopback;
mod timings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use stasis::checkpoint::{Done, Request, call};

/// A compute runtime for AMD GPUs whose processes freeze and thaw.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
    /// What state a process is in.
    Status {
        /// The process.
        pid: i32,
    },
    /// What agents are here.
    Agents(agents::AgentsArgs),
    /// What a checkpoint directory or image holds.
    Inspect(inspect::InspectArgs),
    /// Run one kernel of a code object.
    Dispatch(dispatch::DispatchArgs),
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Checkpoint(args) => freeze::checkpoint(&args),
        Command::Restore(args) => freeze::restore(&args),
        Command::Resume { pid, directory, terms } => {
            let directory = directory.map(|d| d.canonicalize()).transpose()?;
            freeze::resume(pid, directory, Some(terms.admission()?), Duration::from_secs(120))?;
            println!("Process {pid} runs");
            Ok(())
        }
        Command::Status { pid } => {
            let (state, done) = call(pid, &Request::Status, Duration::from_secs(5))?;
            println!("{state}");
            if let Done::Status { activity, order, order_ms, last_error, .. } = done {
                if let Some(order) = order {
                    println!("At work on a {order} since {order_ms} ms: {activity}");
                }
                if let Some(error) = last_error {
                    println!("The last restore failed: {error}");
                }
            }
            Ok(())
        }
        Command::Agents(args) => agents::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Dispatch(args) => dispatch::run(&args),
        Command::Cancel { pid } => {
            let (state, done) = call(pid, &Request::Cancel, Duration::from_secs(5))?;
            let was_at_work = matches!(done, Done::Cancelled { was_at_work: true });
            println!(
                "{}",
                if was_at_work {
                    "The order was told to give up".into()
                } else {
                    format!("Nothing is at work; process {pid} is {state}")
                }
            );
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        // Errors are printed where they end up; the log is for those who ask.
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("STASIS_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off")),
        )
        .with_writer(std::io::stderr)
        .init();
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line a cause: what was wanted, then why not.
            eprintln!("Error: {error}");
            error.chain().skip(1).for_each(|cause| eprintln!("  because: {cause}"));
            ExitCode::FAILURE
        }
    }
}
