// SPDX-License-Identifier: MIT OR Apache-2.0
//! `softgpud`: the software GPU as a process. Clients start it on demand; it need not be started by hand.
#![deny(unsafe_code)]

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use softgpu::server::{
    Records, ServeOptions, TreeOptions, execute, execute_when_wanted, install_log, serve, write_tree,
};

/// The software GPU.
#[derive(Debug, Parser)]
#[command(
    name = "softgpud",
    version,
    about,
    after_help = "STASIS_LOG=FILTER logs to stderr, or to the file STASIS_LOG_FILE."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves devices on an abstract Unix socket until the last client is gone.
    Serve {
        /// The devices, comma separated, such as gfx1100*2,gfx1201, or a topology file that ends in .toml
        #[arg(long)]
        devices: String,
        /// The abstract socket's name
        #[arg(long)]
        socket: String,
        /// Go on without clients until standard input is closed
        #[arg(long)]
        while_stdin: bool,
        /// Write what is below /sys, /dev and /proc on this machine into a directory, which must be empty
        #[arg(long, value_name = "DIRECTORY")]
        machine: Option<PathBuf>,
        /// Remove a directory at the end
        #[arg(long, value_name = "DIRECTORY")]
        remove: Option<PathBuf>,
        /// Append a line of JSON for each client to a file when the client has ended
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
        /// Append a line of JSON for each ioctl and dispatch to a file
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
        /// Take the orders of `stasis checkpoint` and `stasis restore`
        #[arg(long)]
        controlled: bool,
    },
    /// Writes what programs read of the machine below /sys, /dev and /proc into a directory
    Tree {
        /// The devices, comma separated, such as gfx1100*2,gfx1201, or a topology file that ends in .toml
        #[arg(long)]
        devices: String,
        /// An existing, empty directory
        directory: PathBuf,
    },
    /// Executes for one client; started by `serve` with its end of a socket pair as stdin.
    #[command(hide = true)]
    Executor {
        /// The client; without it, one that the other end of stdin will tell
        client: Option<i32>,
        /// How often it has executed itself again
        #[arg(long, default_value_t = 0)]
        tries: u32,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    install_log();
    match arguments.command {
        Command::Serve { devices, socket, while_stdin, machine, remove, report, trace, controlled } => {
            let records = Records { report, trace };
            serve(&ServeOptions { devices, socket, while_stdin, machine, remove, records, controlled })
                .context("softgpud cannot serve")
        }
        Command::Tree { devices, directory } => write_tree(&TreeOptions { devices, directory })
            .context("softgpud cannot write the files of its machine"),
        Command::Executor { client, tries } => {
            let executed = client.map_or_else(execute_when_wanted, |client| execute(client, tries));
            executed.context("softgpud's executor cannot go on")
        }
    }
}
