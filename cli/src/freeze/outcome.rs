// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `stasis checkpoint` and `stasis restore` print: sums first, then, where there are several processes, each.

use std::fs;
use std::path::Path;

use serde::Serialize;
use stasis::checkpoint::{CheckpointReport, PreCopyReport, RestoreReport};
use stasis::criu::{CRIU_DIRECTORY, DumpStats};

use super::party::Party;
use crate::progress::mebibytes;
use crate::timings;
use crate::transfer::Delivered;

/// A process among several, with what was moved of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row<R> {
    pub pid: i32,
    /// The root of its tree.
    pub tree: i32,
    /// How it has ended since, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    #[serde(flatten)]
    pub report: R,
}

/// What `stasis checkpoint --json` prints.
#[derive(Debug, Serialize)]
pub(super) struct CheckpointOutcome {
    /// The root, of the first tree.
    pub pid: i32,
    pub checkpoint_ms: f64,
    pub criu_ms: f64,
    #[serde(flatten)]
    pub report: CheckpointReport,
    pub criu_bytes: u64,
    pub left_running: bool,
    /// What was copied before it was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_copied: Option<PreCopyReport>,
    /// What became of it, if it went into a store or over a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered: Option<Delivered>,
    /// What CRIU says of its dump, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub criu_stats: Option<DumpStats>,
    /// Each process with a runtime, if the root is not the only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Row<CheckpointReport>>,
}

/// Bytes are added; the phases ran at the same time, so of each the longest counts.
pub(super) fn sum(reports: &[CheckpointReport]) -> CheckpointReport {
    reports.iter().fold(CheckpointReport::default(), |sum, report| CheckpointReport {
        lock_ms: sum.lock_ms.max(report.lock_ms),
        write_ms: sum.write_ms.max(report.write_ms),
        close_ms: sum.close_ms.max(report.close_ms),
        content_bytes: sum.content_bytes + report.content_bytes,
        stored_bytes: sum.stored_bytes + report.stored_bytes,
        unchanged_bytes: sum.unchanged_bytes + report.unchanged_bytes,
        unread_bytes: sum.unread_bytes + report.unread_bytes,
        image_bytes: sum.image_bytes + report.image_bytes,
        engine_bytes: sum.engine_bytes + report.engine_bytes,
        // It is for the manifest only.
        secret: None,
    })
}

/// The same of a restore.
pub(super) fn sum_restored<'r>(reports: impl Iterator<Item = &'r RestoreReport>) -> RestoreReport {
    reports.fold(RestoreReport::default(), |sum, report| RestoreReport {
        open_ms: sum.open_ms.max(report.open_ms),
        rebuild_ms: sum.rebuild_ms.max(report.rebuild_ms),
        fill_ms: sum.fill_ms.max(report.fill_ms),
        content_bytes: sum.content_bytes + report.content_bytes,
        read_bytes: sum.read_bytes + report.read_bytes,
        engine_bytes: sum.engine_bytes + report.engine_bytes,
        lazy_bytes: sum.lazy_bytes + report.lazy_bytes,
        not_lazy: sum.not_lazy.or_else(|| report.not_lazy.clone()),
    })
}

/// `Process 7`, or `The tree of process 7 (3 runtimes)`.
pub(super) fn named(pid: i32, runtimes: usize, is_plain: bool) -> String {
    match (is_plain, runtimes) {
        (true, _) => format!("Process {pid}"),
        (false, 1) => format!("The tree of process {pid} (1 runtime)"),
        (false, count) => format!("The tree of process {pid} ({count} runtimes)"),
    }
}

/// Bytes of the files in a directory, without those further down.
pub fn directory_bytes(directory: &Path) -> u64 {
    fs::read_dir(directory)
        .map(|entries| entries.flatten().filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum())
        .unwrap_or(0)
}

impl CheckpointOutcome {
    /// What became of a party in `directory`; the reports are those of its members.
    pub fn new(party: &Party, directory: &Path, reports: &[CheckpointReport]) -> Self {
        let images = party.trees.iter().map(|tree| directory.join(&tree.place).join(CRIU_DIRECTORY));
        let images: Vec<_> = images.collect();
        let rows = party.trees.iter().flat_map(|tree| tree.members.iter().map(move |member| (tree, member)));
        let rows = rows.zip(reports).filter(|((tree, _), _)| party.trees.len() > 1 || !tree.is_plain());
        let row =
            |((tree, member), report): ((&super::party::Tree, &super::party::Member), &CheckpointReport)| {
                let report = CheckpointReport { secret: None, ..report.clone() };
                Row { pid: member.pid, tree: tree.pid, ended: None, report }
            };
        Self {
            pid: party.trees.first().map_or(0, |tree| tree.pid),
            checkpoint_ms: 0.0,
            criu_ms: 0.0,
            report: sum(reports),
            criu_bytes: images.iter().map(|images| directory_bytes(images)).sum(),
            left_running: false,
            pre_copied: None,
            delivered: None,
            criu_stats: match &images[..] {
                [only] => DumpStats::read(only).ok(),
                _ => None,
            },
            processes: rows.map(row).collect(),
        }
    }

    /// How long the process stood still for what, milliseconds.
    fn phases(&self) -> Vec<(&'static str, f64)> {
        let stats = self.criu_stats.unwrap_or_default();
        let frozen = stats.freezing_ms + stats.frozen_ms;
        vec![
            ("stop the queues", self.report.lock_ms),
            ("write the buffers", self.report.write_ms),
            ("close the device", self.report.close_ms),
            ("frozen by CRIU", frozen),
            ("CRIU around it", (self.criu_ms - frozen).max(0.0)),
        ]
    }

    /// The same as prose.
    pub fn prose(&self, party: &Party, directory: &Path, with_timings: bool) -> String {
        let trees: Vec<_> =
            party.trees.iter().map(|tree| named(tree.pid, tree.members.len(), tree.is_plain())).collect();
        let (is, it) = if trees.len() > 1 { ("are", "they") } else { ("is", "it") };
        let unchanged = match (self.report.unchanged_bytes, &self.pre_copied) {
            (0, _) => String::new(),
            (bytes, None) => format!(" beside {:.1} MiB that the parent has", mebibytes(bytes)),
            (bytes, Some(_)) => format!(" beside {:.1} MiB that were there before", mebibytes(bytes)),
        };
        let after = match (self.left_running, trees.len()) {
            (true, 1) => "it runs on".to_owned(),
            (true, _) => "they run on".to_owned(),
            (false, _) => format!("{it} {is} gone"),
        };
        let mut text = format!(
            "{} {is} in {}: {:.1} MiB of buffers in {:.1} MiB{unchanged}, {:.0} ms ({:.0} lock, {:.0} write, {:.0} close, {:.0} \
             CRIU); {after}\n",
            trees.join(" and "),
            directory.display(),
            mebibytes(self.report.content_bytes),
            mebibytes(self.report.image_bytes + self.criu_bytes),
            self.checkpoint_ms,
            self.report.lock_ms,
            self.report.write_ms,
            self.report.close_ms,
            self.criu_ms,
        );
        if let Some(pre_copied) = &self.pre_copied {
            text.push_str(&said_of(pre_copied));
        }
        for row in &self.processes {
            text.push_str(&format!(
                "  process {}: {:.1} MiB of buffers in {:.1} MiB, {:.0} ms lock, {:.0} write, {:.0} close\n",
                row.pid,
                mebibytes(row.report.content_bytes),
                mebibytes(row.report.image_bytes),
                row.report.lock_ms,
                row.report.write_ms,
                row.report.close_ms,
            ));
        }
        if with_timings {
            text.push_str(&timings::bars(&self.phases()));
        }
        text
    }
}

/// What was copied while processes ran, and why no more.
fn said_of(report: &PreCopyReport) -> String {
    let PreCopyReport { pre_copy_ms, rounds, left_bytes, outpaced, ended, .. } = report;
    let rounds: Vec<String> = rounds.iter().map(|bytes| format!("{:.1}", mebibytes(*bytes))).collect();
    let mut text =
        format!("  before it was stopped, {pre_copy_ms:.0} ms: {} MiB were copied\n", rounds.join(", then "));
    if *outpaced {
        text.push_str(
            "  its buffers change about as fast as they are copied: more rounds would not have helped\n",
        );
    }
    if let Some(why) = ended {
        text.push_str(&format!("  another round came to nothing: {why}\n"));
    }
    if *left_bytes > 0 {
        let left = mebibytes(*left_bytes);
        text.push_str(&format!("  {left:.1} MiB can only be read fast when the process stands still\n"));
    }
    text
}

/// What `stasis restore --json` prints of a tree.
#[derive(Debug, Serialize)]
pub(super) struct RestoreOutcome {
    pub pid: i32,
    pub restore_ms: f64,
    pub criu_ms: f64,
    /// From the order to stop, where it came from, until it ran again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_ms: Option<f64>,
    /// How the root has ended since, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    #[serde(flatten)]
    pub report: RestoreReport,
    /// Each process with a runtime, if the root is not the only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Row<RestoreReport>>,
}

impl RestoreOutcome {
    /// The same as prose.
    pub fn prose(&self) -> String {
        let is_plain = self.processes.is_empty();
        let mut text = format!(
            "{} {}: {:.1} MiB of buffers, {:.0} ms ({:.0} CRIU, {:.0} open, {:.0} rebuild, {:.0} fill)\n",
            named(self.pid, self.processes.len(), is_plain),
            match &self.ended {
                None => "runs again".to_owned(),
                Some(how) => format!("was restored and has ended since ({how})"),
            },
            mebibytes(self.report.content_bytes),
            self.restore_ms,
            self.criu_ms,
            self.report.open_ms,
            self.report.rebuild_ms,
            self.report.fill_ms,
        );
        if let Some(stopped_ms) = self.stopped_ms {
            text.push_str(&format!("  it stood still for {stopped_ms:.0} ms\n"));
        }
        if self.report.lazy_bytes > 0 {
            let left = mebibytes(self.report.lazy_bytes);
            text.push_str(&format!("  {left:.1} MiB more come while it runs\n"));
        }
        if let Some(why) = &self.report.not_lazy {
            text.push_str(&format!("  not lazy: {why}\n"));
        }
        for row in &self.processes {
            text.push_str(&format!(
                "  process {}: {:.1} MiB of buffers, {:.0} ms open, {:.0} rebuild, {:.0} fill{}\n",
                row.pid,
                mebibytes(row.report.content_bytes),
                row.report.open_ms,
                row.report.rebuild_ms,
                row.report.fill_ms,
                row.ended.as_ref().map_or_else(String::new, |how| format!("; it has ended since ({how})")),
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_add_bytes_and_take_the_longest_time() {
        let report = |ms: f64, bytes| CheckpointReport {
            lock_ms: ms,
            write_ms: 10.0 - ms,
            content_bytes: bytes,
            ..CheckpointReport::default()
        };
        let all = sum(&[report(1.0, 5), report(3.0, 7)]);
        assert_eq!((all.lock_ms, all.write_ms, all.content_bytes), (3.0, 9.0, 12));
        let report =
            |ms: f64, bytes| RestoreReport { fill_ms: ms, read_bytes: bytes, ..RestoreReport::default() };
        let all = sum_restored([report(1.0, 5), report(3.0, 7)].iter());
        assert_eq!((all.fill_ms, all.read_bytes), (3.0, 12));
    }

    #[test]
    fn tree_is_called_one_only_where_it_is() {
        assert_eq!(named(7, 1, true), "Process 7");
        assert_eq!(named(7, 1, false), "The tree of process 7 (1 runtime)");
        assert_eq!(named(7, 3, false), "The tree of process 7 (3 runtimes)");
    }
}
