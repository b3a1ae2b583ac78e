// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis slurm-run`: the program of a Slurm job. It is checkpointed when the job has to leave its node, and goes on where the
//! job starts again (`docs/slurm.md`).

mod epoch;
mod images;
mod job;
mod output;
mod pids;
mod program;
mod signals;
mod work;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::job::Job;
use crate::freeze::CriuArgs;

/// Where jobs are kept below the directory that a job was submitted from.
const STATE: &str = ".stasis-slurm";

/// Arguments of `stasis slurm-run`.
#[derive(Debug, Args)]
pub struct SlurmArgs {
    /// Where checkpoints of jobs are kept, a directory that all nodes see; .stasis-slurm-UID below the one that the job was
    /// submitted from unless given.
    #[arg(long, value_name = "DIR", env = "STASIS_SLURM_STATE")]
    state: Option<PathBuf>,
    /// Checkpoint the program so often while it runs, for nodes that fail: 90s, 15m, 2h.
    #[arg(long, value_name = "TIME", value_parser = time, overrides_with = "every")]
    every: Option<Duration>,
    /// Stop kernels in the middle instead of waiting for their end.
    #[arg(long)]
    preempt: bool,
    /// How long the queues may take to stop.
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    deadline_ms: u64,
    #[command(flatten)]
    criu: CriuArgs,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the program of this job, from the beginning or from its newest checkpoint; answers the job's exit status.
///
/// # Errors
/// This is no job of Slurm, the state directory cannot be used, or the program could be neither started nor restored.
pub fn run(args: &SlurmArgs) -> Result<u8> {
    let job = Job::of_environment(&args.command)?;
    let root = match &args.state {
        Some(root) => root.clone(),
        // Users may submit from one directory.
        None => PathBuf::from(std::env::var_os("SLURM_SUBMIT_DIR").unwrap_or_default())
            .join(format!("{STATE}-{}", nix::unistd::geteuid())),
    };
    work::run(args, &job, &root)
}

/// A time with its unit: seconds, minutes or hours.
fn time(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        unit => anyhow::bail!("{unit:?} is no unit: give s, m or h"),
    };
    let count: u64 = digits.parse().with_context(|| format!("{digits:?} is no number"))?;
    let seconds = count.checked_mul(unit).filter(|seconds| *seconds > 0);
    ensure!(seconds.is_some_and(|seconds| seconds <= 366 * 86_400), "it is not between a second and a year");
    Ok(Duration::from_secs(seconds.unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let seconds = |text| time(text).map(|time| time.as_secs()).map_err(|error| error.to_string());
        assert_eq!(
            [seconds("90"), seconds("90s"), seconds("15m"), seconds("2h")],
            [Ok(90), Ok(90), Ok(900), Ok(7200)]
        );
        assert_eq!(seconds("5d"), Err("\"d\" is no unit: give s, m or h".to_owned()));
        for wrong in ["", "m", "0s", "-5s", "1.5h", "99999999999999999999h", "9999999h"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
