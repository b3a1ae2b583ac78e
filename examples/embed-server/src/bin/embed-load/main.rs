// SPDX-License-Identifier: MIT OR Apache-2.0
//! `embed-load`: clients of an embedding server that check every answer.
//!
//! ```text
//! drive ── client: one keep-alive connection, one request after the other ── connection: bytes and how they ended
//!   └── report: a line a request, a summary ── picture
//! ```
//!
//! INVARIANT: every request that was begun is in the report exactly once: as answered completely and, as far as it
//! could be checked, correctly; as wrong; or as lost. A request is tried again, under the same id, only if it failed
//! before its answer was complete.

#![forbid(unsafe_code)]

mod answer;
mod client;
mod connection;
mod drive;
mod expect;
mod first;
mod picture;
mod report;
mod sentences;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Drives an embedding server (OpenAI's interface) and checks every answer; fails if one is wrong or lost.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(flatten)]
    drive: Option<drive::Options>,
    #[command(subcommand)]
    act: Option<Act>,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Asks for each sentence by itself and writes down what the server says, for --expect
    Record(expect::Options),
    /// Asks again and again until the first answer, and says when it came
    First(first::Options),
    /// Draws the report of --json: latency over time
    Plot(picture::Options),
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    match (cli.act, cli.drive) {
        (Some(Act::Record(options)), _) => expect::record(&options),
        (Some(Act::First(options)), _) => first::run(&options),
        (Some(Act::Plot(options)), _) => picture::run(&options),
        (None, Some(options)) => drive::run(&options),
        (None, None) => anyhow::bail!("Say --url, or what else to do: see --help"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_drives_unless_it_says_otherwise() {
        Cli::command().debug_assert();
        let parse = |args: &[&str]| Cli::try_parse_from([&["embed-load"], args].concat());

        let cli = parse(&["--url", "http://127.0.0.1:1", "--sentences", "s"]).unwrap();
        assert!(cli.drive.is_some() && cli.act.is_none());
        let cli = parse(&["plot", "report", "picture"]).unwrap();
        assert!(cli.drive.is_none() && matches!(cli.act, Some(Act::Plot(_))));
        assert!(parse(&["--clients", "8"]).is_err());
        assert!(parse(&["--url", "http://h:1", "--sentences", "s", "--clients", "0"]).is_err());
    }
}
