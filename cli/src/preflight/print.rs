// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of `stasis preflight` and `stasis status`: short, aligned, the verdict last.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Error, Result, bail};
use serde::Serialize;
use stasis::checkpoint::{Activity, CallError, Done, Objects, Preempt, ProcessInfo, Request, State, call};

use super::finding::{Finding, Severity};
use super::stalled::{explain, is_stalled};
use super::{ProcessReport, Report, RunClient, RunDevice, stand};
use crate::output::{self, counted};
use crate::progress::mebibytes;

/// TIMEOUT: an agent at work on a verb answers after it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A size for people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1 << 10 {
        return format!("{bytes} B");
    }
    let (mut number, mut unit) = (bytes as f64 / 1024.0, 0);
    while number >= 1024.0 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    format!("{number:.1} {}", UNITS[unit])
}

/// The whole report.
pub(super) fn report(report: &Report) -> String {
    let mut text = String::new();
    for process in &report.processes {
        let memory = size(process.memory_bytes);
        if let Some(run) = &report.run {
            of_run(&mut text, process, &run.device);
            continue;
        }
        match &process.runtime {
            Some(info) => {
                let (state, device) = (info.state, &info.transport);
                line(
                    &mut text,
                    format_args!(
                        "Process {} {}: {state}, on {device}, {memory} of its own",
                        process.pid, process.name
                    ),
                );
                runtime(&mut text, info);
            }
            None => line(
                &mut text,
                format_args!("Process {} {}: no Stasis runtime, {memory}", process.pid, process.name),
            ),
        }
    }
    for (severity, title) in
        [(Severity::Refused, "Refused"), (Severity::Warning, "Warnings"), (Severity::Note, "Notes")]
    {
        let group: Vec<_> = report.findings.iter().filter(|f| f.severity == severity).collect();
        findings(&mut text, title, &group);
    }
    line(&mut text, format_args!("{}", verdict(report)));
    text
}

/// A process of a tree of a `stasis run`.
fn of_run(text: &mut String, process: &ProcessReport, device: &RunDevice) {
    let (pid, name, memory) = (process.pid, &process.name, size(process.memory_bytes));
    match device.clients.iter().find(|client| client.pid == pid) {
        None => line(text, format_args!("Process {pid} {name}: no device, {memory}")),
        Some(client) => {
            let devices = &device.devices;
            line(
                text,
                format_args!("Process {pid} {name}: under `stasis run`, on {devices}, {memory} of its own"),
            );
            line(text, format_args!("  device    {}", client_line(client)));
        }
    }
}

/// What is known of a client's device.
fn client_line(client: &RunClient) -> String {
    let queues =
        client.queues.map_or_else(|| "queues unknown".to_owned(), |count| counted(count.into(), "queue"));
    let executor = client.executor.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    format!("{}, executor {executor}, {queues}", client.state)
}

/// The devices of a tree of a `stasis run`, a line for each process that has one.
pub fn run_status(device: &RunDevice) -> String {
    let mut text = String::new();
    for client in &device.clients {
        let (pid, devices) = (client.pid, &device.devices);
        line(
            &mut text,
            format_args!("Process {pid} under `stasis run`, on {devices}: {}", client_line(client)),
        );
    }
    text
}

/// Writing to a string cannot fail.
fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{words}");
}

fn findings(text: &mut String, title: &str, group: &[&Finding]) {
    if group.is_empty() {
        return;
    }
    line(text, format_args!("{title}"));
    let place = |finding: &Finding| format!("{} {}", finding.pid, finding.place);
    let width = group.iter().map(|finding| place(finding).len()).max().unwrap_or(0);
    for finding in group {
        line(text, format_args!("  {:width$}  {}: {}", place(finding), finding.what, finding.why));
        if !finding.remedy.is_empty() {
            line(text, format_args!("  {:width$}  → {}", "", finding.remedy));
        }
    }
}

fn verdict(report: &Report) -> String {
    let refused = report.findings.iter().filter(|f| f.severity == Severity::Refused).count();
    if refused > 0 {
        return format!("Process {} cannot be checkpointed: {} in the way", report.pid, stand(refused));
    }
    if let Some(run) = &report.run {
        return format!(
            "Process {} can be checkpointed: about {} by CRIU, {} of them memory of the device, and {} beside",
            report.pid,
            size(report.memory_bytes),
            size(run.task_bytes),
            size(report.buffer_bytes)
        );
    }
    format!(
        "Process {} can be checkpointed: {} of buffers, about {} of process memory",
        report.pid,
        size(report.buffer_bytes),
        size(report.memory_bytes)
    )
}

fn runtime(text: &mut String, info: &ProcessInfo) {
    for (index, agent) in info.agents.iter().enumerate() {
        line(text, format_args!("  agent {index}   {} {}, gpu_id {}", agent.uuid, agent.name, agent.gpu_id));
    }
    match &info.objects {
        None => line(text, format_args!("  objects   unknown while a verb is at work")),
        Some(objects) => self::objects(text, objects),
    }
}

fn objects(text: &mut String, objects: &Objects) {
    let buffers: Vec<_> = objects
        .buffers
        .iter()
        .map(|(kind, amount)| format!("{} {} in {}", size(amount.bytes), kind, amount.count))
        .collect();
    line(text, format_args!("  buffers   {}", buffers.join(", ")));
    line(
        text,
        format_args!(
            "  saved     {}, an image of at most about {}",
            size(objects.saved_bytes),
            size(objects.image_bytes)
        ),
    );
    let shown = objects.queues.len() as u64;
    for queue in &objects.queues {
        let pending = match queue.pending {
            Some(pending) => format!("{pending} {} pending", queue.unit),
            None => format!("pending {} unknown while locked", queue.unit),
        };
        let notes = [
            queue.suspended.then_some(", suspended"),
            queue.internal.then_some(", the runtime's own"),
            queue.fault.is_some().then_some(", failed"),
        ];
        let notes: String = notes.into_iter().flatten().collect();
        line(
            text,
            format_args!(
                "  queue     {} {} on agent {}: {pending}{notes}",
                queue.queue, queue.kind, queue.agent
            ),
        );
    }
    if objects.queue_count > shown {
        line(text, format_args!("            and {} more", counted(objects.queue_count - shown, "queue")));
    }
    line(
        text,
        format_args!(
            "  others    {}, {}, {}",
            counted(objects.signals, "signal"),
            counted(objects.events, "event"),
            counted(objects.executables, "executable")
        ),
    );
    match &objects.preempt {
        Preempt::Available { saved_bytes } => {
            line(text, format_args!("  preempt   available, saves at most {}", size(*saved_bytes)));
        }
        Preempt::Unavailable { reason } => line(text, format_args!("  preempt   no: {reason}")),
        Preempt::Unknown => line(text, format_args!("  preempt   unknown while locked")),
    }
}

/// What `stasis status --json` prints.
#[derive(Debug, Serialize)]
struct Status {
    pid: i32,
    state: State,
    activity: Activity,
    /// The order at work, if one is, and since when.
    order: Option<String>,
    order_ms: u64,
    last_error: Option<String>,
    /// Bytes of buffers that are still to come after a lazy restore.
    lazy_bytes: u64,
    runtime: Option<ProcessInfo>,
}

/// Prints the state of a process and what its runtime has; the state alone where the agent knows no more.
pub(super) fn status(pid: i32, json: bool) -> Result<()> {
    let answer = call(pid, &Request::Status, PATIENCE).map_err(|error| match error {
        CallError::NoAnswer { .. } if is_stalled(pid) => Error::from(error).context(explain(pid)),
        error => error.into(),
    });
    let (state, done) = answer?;
    let Done::Status { activity, order, order_ms, last_error, lazy_bytes, .. } = done else {
        bail!("The agent of process {pid} answered out of turn: it is {state}");
    };
    let runtime = match call(pid, &Request::Info, PATIENCE) {
        Ok((_, Done::Info(info))) => Some(*info),
        _ => None,
    };
    let status = Status { pid, state, activity, order, order_ms, last_error, lazy_bytes, runtime };
    if json {
        output::show(serde_json::to_string(&status)? + "\n");
        return Ok(());
    }
    output::show(describe(&status));
    Ok(())
}

fn describe(status: &Status) -> String {
    let mut text = String::new();
    line(&mut text, format_args!("{}", status.state));
    if let Some(order) = &status.order {
        let (since, activity) = (status.order_ms, status.activity);
        line(&mut text, format_args!("  at work   on a {order} since {since} ms: {activity}"));
    }
    if status.lazy_bytes > 0 {
        let left = mebibytes(status.lazy_bytes);
        line(
            &mut text,
            format_args!("  restored  without {left:.1} MiB of its buffers, which come while it runs"),
        );
    }
    if let Some(info) = &status.runtime {
        line(&mut text, format_args!("  device    {}", info.transport));
        line(&mut text, format_args!("  activity  {}", activity(info)));
        runtime(&mut text, info);
        if let Some(lost) = &info.lost {
            line(&mut text, format_args!("The device is lost: {lost}"));
        }
    }
    if let Some(error) = &status.last_error {
        line(&mut text, format_args!("The last restore failed: {error}"));
    }
    text
}

/// What goes on in it at this moment.
fn activity(info: &ProcessInfo) -> String {
    let queues = info.objects.as_ref().map_or(&[][..], |objects| &objects.queues);
    let busy = queues.iter().filter(|queue| queue.pending.is_some_and(|pending| pending > 0)).count();
    match (info.calls_in_flight, busy) {
        (0, 0) => "idle".to_owned(),
        (calls, busy) => {
            format!("{} in flight, {} with work", counted(calls, "call"), counted(busy as u64, "queue"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::{DeviceState, RunReport};

    fn bare(findings: Vec<Finding>) -> Report {
        let process = ProcessReport { pid: 7, name: "sleep".into(), memory_bytes: 3 << 20, runtime: None };
        Report {
            pid: 7,
            possible: findings.is_empty(),
            criu: None,
            run: None,
            buffer_bytes: 512 << 20,
            memory_bytes: 3 << 20,
            processes: vec![process],
            findings,
        }
    }

    #[test]
    fn verdict_is_the_last_line() {
        let text = report(&bare(Vec::new()));
        assert_eq!(
            text,
            "Process 7 sleep: no Stasis runtime, 3.0 MiB\n\
             Process 7 can be checkpointed: 512.0 MiB of buffers, about 3.0 MiB of process memory\n"
        );
    }

    #[test]
    fn findings_are_grouped_and_aligned() {
        let finding = |severity, place| Finding::new(severity, 7, place, "a thing").why("it is").remedy("do");
        let text = report(&bare(vec![
            finding(Severity::Refused, "fd 3"),
            finding(Severity::Refused, "mapping 1000-2000"),
            finding(Severity::Note, "process"),
        ]));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "Refused");
        assert_eq!(lines[2], "  7 fd 3               a thing: it is");
        assert_eq!(lines[3], "                       → do");
        assert_eq!(lines[4], "  7 mapping 1000-2000  a thing: it is");
        assert_eq!(lines[6], "Notes");
        assert_eq!(*lines.last().unwrap(), "Process 7 cannot be checkpointed: 2 things stand in the way");
    }

    #[test]
    fn tree_of_a_run_is_told_by_its_devices_and_bytes() {
        let client = RunClient { pid: 7, executor: Some(9), state: DeviceState::Running, queues: Some(2) };
        let device = RunDevice {
            devices: "gfx1100".into(),
            socket: "s".into(),
            clients: vec![client],
            others: Vec::new(),
        };
        let mut told = bare(Vec::new());
        told.processes
            .insert(0, ProcessReport { pid: 6, name: "sh".into(), memory_bytes: 1024, runtime: None });
        told.run = Some(RunReport { device, task_bytes: 1 << 20 });
        assert_eq!(
            report(&told),
            "Process 6 sh: no device, 1.0 KiB\n\
             Process 7 sleep: under `stasis run`, on gfx1100, 3.0 MiB of its own\n  \
             device    running, executor 9, 2 queues\n\
             Process 7 can be checkpointed: about 3.0 MiB by CRIU, 1.0 MiB of them memory of the device, and 512.0 MiB \
             beside\n"
        );
        let mut device = told.run.unwrap().device;
        device.clients.push(RunClient { pid: 8, executor: None, state: DeviceState::Busy, queues: None });
        assert_eq!(
            run_status(&device),
            "Process 7 under `stasis run`, on gfx1100: running, executor 9, 2 queues\n\
             Process 8 under `stasis run`, on gfx1100: busy, executor unknown, queues unknown\n"
        );
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            (size(17), size(1536), size(512 << 20)),
            ("17 B".into(), "1.5 KiB".into(), "512.0 MiB".into())
        );
        assert_eq!(size(5 << 50), "5120.0 TiB");
    }
}
