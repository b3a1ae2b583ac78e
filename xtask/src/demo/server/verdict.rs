// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict: compares the clients' report with the server's, and shows both in words, numbers and a picture.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::load::{Report, Request};
use super::process::Served;
use super::{Connections, Stage};
use crate::demo::number;

/// The times of the demo, in milliseconds since 1970.
pub(super) struct Story {
    pub(super) connections: Connections,
    /// From the server's exec to its first answer.
    pub(super) cold_ms: f64,
    /// `stasis checkpoint` begins and ends.
    pub(super) freeze: f64,
    pub(super) gone: f64,
    /// `stasis restore` begins and ends.
    pub(super) thaw: f64,
    pub(super) thawed: f64,
    /// From the start of the restore to the first answer to a new client.
    pub(super) restore_ms: f64,
    /// Answered requests that the clients did not make.
    pub(super) others: u64,
    /// What `stasis` says.
    pub(super) checkpoint: Value,
    pub(super) restore: Value,
}

impl Story {
    fn checkpoint_bytes(&self) -> Result<f64> {
        Ok(number(&self.checkpoint, "image_bytes")? + number(&self.checkpoint, "criu_bytes")?)
    }
}

/// The clients' report about the freeze.
struct Seen<'a> {
    before: usize,
    after: usize,
    /// Requests begun before the freeze and answered after the thaw.
    across: Vec<&'a Request>,
    /// When the first answer after the thaw came.
    first: f64,
    /// From the last answer before the freeze to that one.
    downtime_ms: f64,
}

impl<'a> Seen<'a> {
    fn new(story: &Story, report: &'a Report) -> Result<Self> {
        let ok = || report.requests.iter().filter(|request| request.ok);
        let (before, after): (Vec<_>, Vec<_>) = ok().partition(|request| request.end <= story.gone);
        let last = before.iter().map(|request| request.end).fold(f64::NAN, f64::max);
        let first = after.iter().map(|request| request.end).fold(f64::NAN, f64::min);
        ensure!((first - last).is_finite(), "there was no answer before the freeze or none after it");
        Ok(Self {
            before: before.len(),
            after: after.len(),
            across: after.into_iter().filter(|request| request.start <= story.gone).collect(),
            first,
            downtime_ms: first - last,
        })
    }
}

/// Prints the report, draws the picture, and fails if a check fails.
pub(super) fn say(
    stage: &Stage,
    story: &Story,
    report: &Report,
    served: &Served,
    picture: &Path,
) -> Result<()> {
    let seen = Seen::new(story, report)?;
    println!(
        "   {} sentences a second, p50 {:.0} ms, p99 {:.0} ms, at most {:.0} ms",
        number(&report.summary, "sentences_per_s")?.round(),
        number(&report.summary, "p50_ms")?,
        number(&report.summary, "p99_ms")?,
        number(&report.summary, "max_ms")?,
    );
    println!("   the first of all answers came {:.0} ms after the thaw began", seen.first - story.thaw);
    let all = seen.across.iter().map(|request| request.end).fold(story.thaw, f64::max) - story.thaw;
    println!(
        "   {} requests were under way when it was frozen: all answered {all:.0} ms after the thaw began",
        seen.across.len()
    );
    let restore = |key: &str| number(&story.restore, key);
    println!(
        "   no answer for {:.0} ms, {:.0} of them on purpose; restore {:.0} ms: CRIU {:.0}, device opened {:.0}, rebuilt {:.0}, \
         filled {:.0}",
        seen.downtime_ms,
        story.thaw - story.gone,
        story.thawed - story.thaw,
        restore("criu_ms")?,
        restore("open_ms")?,
        restore("rebuild_ms")?,
        restore("fill_ms")?,
    );
    draw(stage, story, report, &seen, picture)?;
    println!("   latency over time: {}", picture.display());
    for request in report.requests.iter().filter(|request| !request.ok) {
        println!("   {}: {}", request.id, request.why.as_deref().unwrap_or("no reason given"));
    }
    let (lost, wrong) = (number(&report.summary, "lost")?, number(&report.summary, "wrong")?);
    ensure!(
        lost == 0.0 && wrong == 0.0,
        "{lost} requests lost, {wrong} answers wrong: see {}",
        stage.report.display()
    );
    once(story, report, served)
}

/// Checks in the server's log that every request was answered once.
fn once(story: &Story, report: &Report, served: &Served) -> Result<()> {
    let tries: HashMap<&str, f64> =
        report.requests.iter().map(|request| (request.id.as_str(), request.attempts)).collect();
    ensure!(tries.len() == report.requests.len(), "two requests have one id");
    let mut again = 0;
    for (id, attempts) in &tries {
        let answers = f64::from(served.answers.get(*id).copied().unwrap_or(0));
        ensure!(answers >= 1.0, "{id} was answered, but the server's log does not know of it");
        // An answer that was cut off with its connection is in the log, and so is that of the next attempt.
        ensure!(answers <= *attempts, "{id} was answered {answers} times, asked {attempts} times");
        again += u64::from(answers > 1.0);
    }
    let retried = number(&report.summary, "retried")?;
    ensure!(
        story.connections == Connections::Reset || retried == 0.0,
        "connections were to be kept, yet {retried} requests had to be tried again"
    );
    let logged: u64 = served.answers.values().map(|&times| u64::from(times)).sum();
    // CAST: usize to u64 is lossless here.
    let due = tries.len() as u64 + story.others;
    ensure!(
        logged == served.counted && (due..=due + again).contains(&logged),
        "the server's log has {logged} answers, its metrics {}, the clients {due}",
        served.counted
    );
    println!(
        "   {} requests answered once each; log, metrics and clients agree ({logged} with {} others)",
        tries.len(),
        story.others
    );
    Ok(())
}

fn draw(stage: &Stage, story: &Story, report: &Report, seen: &Seen, picture: &Path) -> Result<()> {
    let since = |unix_ms: f64| unix_ms - report.begin;
    let shade =
        |from: f64, to: f64, name: &str| format!("--shade={:.1},{:.1},{name}", since(from), since(to));
    let first = story.thaw + story.restore_ms;
    let output = Command::new(&stage.built.embed_load)
        .arg("plot")
        .args(["--title", &format!("{} clients of an embedding server frozen in mid-traffic", stage.args.clients)])
        .arg("--note")
        .arg(format!(
            "lost {:.0}  wrong {:.0}  no answer for {:.0} ms, {:.0} of them on purpose  restore to first {:.0} ms  cold start {:.0} ms",
            number(&report.summary, "lost")?,
            number(&report.summary, "wrong")?,
            seen.downtime_ms,
            story.thaw - story.gone,
            story.restore_ms,
            story.cold_ms
        ))
        .arg(shade(story.freeze, story.gone, "checkpoint"))
        .arg(shade(story.gone, story.thaw, "gone"))
        .arg(shade(story.thaw, first, "restore to first embedding"))
        .arg(&stage.report)
        .arg(picture)
        .output()
        .context("Cannot start embed-load")?;
    ensure!(output.status.success(), "no picture: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The last line.
pub(super) fn line(stage: &Stage, story: &Story, report: &Report, picture: &Path) -> Result<String> {
    let seen = Seen::new(story, report)?;
    let count = |key| number(&report.summary, key);
    Ok(format!(
        "demo: OK server=true clients={} requests_before={} requests_after={} lost={:.0} wrong={:.0} retried={:.0} \
         downtime_ms={:.0} checkpoint_ms={:.0} checkpoint_bytes={:.0} restore_to_first_ms={:.0} cold_to_first_ms={:.0} \
         ratio={:.2} plot={}",
        stage.args.clients,
        seen.before,
        seen.after,
        count("lost")?,
        count("wrong")?,
        count("retried")?,
        seen.downtime_ms,
        number(&story.checkpoint, "checkpoint_ms")?,
        story.checkpoint_bytes()?,
        story.restore_ms,
        story.cold_ms,
        story.cold_ms / story.restore_ms,
        picture.display()
    ))
}
