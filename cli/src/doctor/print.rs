// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows for people and for scripts.

use anyhow::Result;
use serde::Serialize;

use super::probe::{Grade, Probe, Row, Verdict};
use crate::output::line;

#[derive(Serialize)]
struct Summary<'a> {
    passed: usize,
    failed: usize,
    skipped: usize,
    probes: &'a [Row],
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    grade: Grade,
    expects: &'static str,
}

/// The probes that there are.
pub(super) fn list(probes: &[&Probe], json: bool) -> Result<String> {
    if json {
        let listed = |probe: &&Probe| Listed { name: probe.name, grade: probe.grade, expects: probe.expects };
        return Ok(serde_json::to_string(&probes.iter().map(listed).collect::<Vec<_>>())? + "\n");
    }
    let mut text = String::new();
    for probe in probes {
        line!(text, "{:<18} {:<9} {}", probe.name, probe.grade.name(), probe.expects);
    }
    Ok(text)
}

/// What was found.
pub(super) fn rows(rows: &[Row], json: bool) -> Result<String> {
    let count = |is: fn(Verdict) -> bool| rows.iter().filter(|row| is(row.verdict)).count();
    let (passed, failed) = (count(|verdict| verdict == Verdict::Passed), count(Verdict::is_bad));
    let skipped = count(|verdict| verdict == Verdict::Skipped);
    if json {
        return Ok(serde_json::to_string(&Summary { passed, failed, skipped, probes: rows })? + "\n");
    }
    let mut text = String::new();
    for row in rows {
        line!(text, "{:<8} {:<18} {:<9} {}", row.verdict, row.name, row.grade.name(), row.seen);
        if let Some(advice) = row.advice {
            line!(text, "         expected: {}", row.expects);
            line!(text, "         what next: {advice}");
        }
    }
    line!(text, "{passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        line!(
            text,
            "Report the rows that failed with the output of `stasis doctor --json`, `uname -a` and the kernel's log."
        );
    }
    Ok(text)
}
