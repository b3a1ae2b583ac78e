// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis doctor`: what works on this machine's device, found by trying it, a probe at a time.
//!
//! INVARIANT: every probe is a process of its own with a deadline. One that fails, hangs or dies says so in its row, and takes
//! nothing from the others.

mod bench;
mod counting;
mod print;
mod probe;
mod probes;

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kfd::DeviceSpec;
use stasis::Options;

use self::bench::Bench;
use self::probe::{Answer, Grade, Probe, Row, Verdict};
use crate::output;

/// TIMEOUT: how long a probe waits for the device, of its deadline: what is behind the wait must still be told.
const PATIENCE: u32 = 2;
/// How often the end of a probe's process is looked for.
const LOOK: Duration = Duration::from_millis(5);
/// A look that comes later than this after the one before counts as if it had come then.
const LATE: Duration = Duration::from_secs(1);

/// Arguments of `stasis doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The device, as in STASIS_DEVICE: kfd, soft, soft:gfx1100, ...
    #[arg(long)]
    device: Option<DeviceSpec>,
    /// Which agent, counted from 0.
    #[arg(long, default_value_t = 0)]
    agent: usize,
    /// Only these probes.
    #[arg(value_name = "PROBE")]
    only: Vec<String>,
    /// Say which probes there are, and run none.
    #[arg(long)]
    list: bool,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
    /// How long a probe may take.
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    deadline_ms: u64,
    /// Run one probe in this process and print its answer.
    #[arg(long, hide = true, value_name = "PROBE")]
    probe: Option<String>,
}

/// Runs the probes. Answers whether none that is required has failed.
///
/// # Errors
/// When a probe that was named does not exist, or a process cannot be started.
pub fn run(args: &DoctorArgs) -> Result<bool> {
    if let Some(name) = &args.probe {
        let answer = answer(find(name)?, args);
        output::show(serde_json::to_string(&answer)? + "\n");
        return Ok(true);
    }
    let probes: Vec<&Probe> = match &args.only[..] {
        [] => probes::all().collect(),
        names => names.iter().map(|name| find(name)).collect::<Result<_>>()?,
    };
    if args.list {
        output::show(print::list(&probes, args.json)?);
        return Ok(true);
    }
    let bar = progress(probes.len(), args.json);
    let mut rows = Vec::new();
    for probe in probes {
        bar.set_message(probe.name);
        rows.push(row(probe, args)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    output::show(print::rows(&rows, args.json)?);
    Ok(!rows.iter().any(|row| row.grade == Grade::Required && row.verdict.is_bad()))
}

fn find(name: &str) -> Result<&'static Probe> {
    probes::all()
        .find(|probe| probe.name == name)
        .with_context(|| format!("There is no probe {name:?}; `stasis doctor --list` names them"))
}

fn progress(length: usize, json: bool) -> ProgressBar {
    if json {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// What the probe finds, in this process.
fn answer(probe: &Probe, args: &DoctorArgs) -> Answer {
    let options = Options { device: args.device.clone(), agents: None };
    let patience = Duration::from_millis(args.deadline_ms) / PATIENCE;
    match (probe.run)(&Bench::new(options, args.agent, patience)) {
        Ok(seen) => Answer::Seen(seen),
        Err(error) => match error.downcast::<probe::Skip>() {
            Ok(skip) => Answer::Skipped(skip.0),
            Err(error) => {
                Answer::Failed(error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": "))
            }
        },
    }
}

/// What a process of its own says of the probe.
fn row(probe: &Probe, args: &DoctorArgs) -> Result<Row> {
    let program = std::env::current_exe().context("Cannot find this program to start it again")?;
    let mut command = Command::new(program);
    command.args(["doctor", "--probe", probe.name]);
    command.args(["--agent", &args.agent.to_string(), "--deadline-ms", &args.deadline_ms.to_string()]);
    if let Some(device) = &args.device {
        command.args(["--device", &device.to_string()]);
    }
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("Cannot start the process of the probe {}", probe.name))?;
    let ended = wait(&mut child, Duration::from_millis(args.deadline_ms))?;
    let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (verdict, seen) = match ended {
        None => (Verdict::Hung, format!("no answer after {} ms", args.deadline_ms)),
        Some(status) => judge(&mut child, status)?,
    };
    Ok(Row {
        name: probe.name,
        grade: probe.grade,
        expects: probe.expects,
        seen,
        verdict,
        advice: if verdict.is_bad() { Some(probe.advice) } else { None },
        millis,
    })
}

/// Time in which this machine ran. The clock goes on while a virtual machine is paused, which is no fault of the device.
struct Running {
    counted: Duration,
    looked: Instant,
}

impl Running {
    fn since(now: Instant) -> Self {
        Self { counted: Duration::ZERO, looked: now }
    }

    /// How long it ran until `now`, as far as somebody looked often enough.
    fn until(&mut self, now: Instant) -> Duration {
        self.counted += now.saturating_duration_since(self.looked).min(LATE);
        self.looked = now;
        self.counted
    }
}

/// The end of a process; `None`: it was killed at its deadline.
fn wait(child: &mut Child, deadline: Duration) -> Result<Option<ExitStatus>> {
    let mut running = Running::since(Instant::now());
    loop {
        if let Some(status) = child.try_wait().context("Cannot wait for a probe")? {
            return Ok(Some(status));
        }
        if running.until(Instant::now()) >= deadline {
            child.kill().context("Cannot end a probe")?;
            child.wait().context("Cannot wait for a probe")?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

fn judge(child: &mut Child, status: ExitStatus) -> Result<(Verdict, String)> {
    // An answer is a line, which fits a pipe: the process did not wait for its reader.
    let (mut said, mut complained) = (String::new(), String::new());
    if let (Some(stdout), Some(stderr)) = (&mut child.stdout, &mut child.stderr) {
        stdout.read_to_string(&mut said).context("Cannot read what a probe said")?;
        stderr.read_to_string(&mut complained).context("Cannot read what a probe said")?;
    } else {
        bail!("A probe's process has no output");
    }
    Ok(match serde_json::from_str(&said) {
        Ok(Answer::Seen(seen)) => (Verdict::Passed, seen),
        Ok(Answer::Skipped(why)) => (Verdict::Skipped, why),
        Ok(Answer::Failed(why)) => (Verdict::Failed, why),
        Err(_) => {
            let last = complained.lines().last().unwrap_or("without a word");
            (Verdict::Died, format!("its process ended ({status}): {last}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_of_the_machine_is_not_counted_and_waiting_is() {
        let begun = Instant::now();
        let mut running = Running::since(begun);
        assert_eq!(running.until(begun + LOOK), LOOK);
        assert_eq!(running.until(begun + LOOK + 92 * LATE), LOOK + LATE);
        assert_eq!(running.until(begun + LOOK + 93 * LATE), LOOK + 2 * LATE);
        // Clocks of two processors may differ by a little.
        assert_eq!(running.until(begun), LOOK + 2 * LATE);
    }

    #[test]
    fn probe_that_does_not_end_is_ended_at_its_deadline() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(wait(&mut child, 10 * LOOK).unwrap().is_none());
        let mut child = Command::new("true").spawn().unwrap();
        assert!(wait(&mut child, 1000 * LATE).unwrap().unwrap().success());
    }
}
