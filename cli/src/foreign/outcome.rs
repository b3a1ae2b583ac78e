// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `stasis checkpoint` prints of programs that know nothing of it: sums first, then, of several trees, each.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stasis::criu::{CRIU_DIRECTORY, DumpStats};
use stasis_criu_foreign::Paused;

use crate::freeze::directory_bytes;
use crate::transfer::Delivered;
use crate::{output, timings};

/// A tree that was checkpointed.
#[derive(Debug)]
pub(super) struct Frozen {
    /// Its root.
    pub pid: i32,
    /// Its processes with a device.
    pub clients: Vec<i32>,
    /// What the pause of each found.
    pub paused: Vec<Paused>,
    /// Where it is.
    pub directory: PathBuf,
    /// Bytes of memory that CRIU does not carry.
    pub stored_bytes: u64,
}

/// A tree among several.
#[derive(Debug, Serialize)]
struct Row {
    pid: i32,
    clients: usize,
    queues: u32,
    waves_saved: u64,
    waits: u32,
    criu_bytes: u64,
    stored_bytes: u64,
}

/// What `stasis checkpoint --json` prints.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    /// The root, of the first tree.
    pub pid: i32,
    pub foreign: bool,
    pub checkpoint_ms: f64,
    /// From the order to pause until all devices were paused.
    pub pause_ms: f64,
    /// CRIU, from its start to its end, the next included.
    pub criu_ms: f64,
    /// States and memory, while the tasks were frozen.
    pub save_ms: f64,
    clients: usize,
    queues: u32,
    waves_saved: u64,
    waits: u32,
    criu_bytes: u64,
    /// Of memory that CRIU does not carry.
    stored_bytes: u64,
    pub left_running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    criu_stats: Option<DumpStats>,
    /// What became of it, if it went into a store or over a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered: Option<Delivered>,
    /// Each tree, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trees: Vec<Row>,
    /// Whom the prose names.
    #[serde(skip)]
    named: String,
}

impl Row {
    fn of(frozen: &Frozen) -> Self {
        let sum = |count: fn(&Paused) -> u64| frozen.paused.iter().map(count).sum::<u64>();
        let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            pid: frozen.pid,
            clients: frozen.clients.len(),
            queues: narrow(sum(|paused| paused.queues.into())),
            waves_saved: sum(|paused| paused.waves),
            waits: narrow(sum(|paused| paused.waits.into())),
            criu_bytes: directory_bytes(&frozen.directory.join(CRIU_DIRECTORY)),
            stored_bytes: frozen.stored_bytes,
        }
    }
}

fn named(frozen: &Frozen) -> String {
    match &frozen.clients[..] {
        [only] if *only == frozen.pid => format!("Process {}", frozen.pid),
        clients => format!("The tree of process {} ({} with a device)", frozen.pid, clients.len()),
    }
}

impl Outcome {
    /// Of these trees; the times are missing.
    pub fn of(trees: Vec<Frozen>) -> Self {
        let rows: Vec<Row> = trees.iter().map(Row::of).collect();
        let names: Vec<String> = trees.iter().map(named).collect();
        let stats = match &trees[..] {
            [only] => DumpStats::read(&only.directory.join(CRIU_DIRECTORY)).ok(),
            _ => None,
        };
        Self {
            pid: rows.first().map_or(0, |row| row.pid),
            foreign: true,
            clients: rows.iter().map(|row| row.clients).sum(),
            queues: rows.iter().map(|row| row.queues).sum(),
            waves_saved: rows.iter().map(|row| row.waves_saved).sum(),
            waits: rows.iter().map(|row| row.waits).sum(),
            criu_bytes: rows.iter().map(|row| row.criu_bytes).sum(),
            stored_bytes: rows.iter().map(|row| row.stored_bytes).sum(),
            criu_stats: stats,
            named: names.join(" and "),
            trees: if rows.len() > 1 { rows } else { Vec::new() },
            ..Self::default()
        }
    }

    /// How long the processes stood still for what, milliseconds.
    fn phases(&self) -> Vec<(&'static str, f64)> {
        let Some(stats) = self.criu_stats else {
            // Of several CRIUs, whose times overlap, there are no sums.
            let (save, rest) = (self.save_ms, (self.criu_ms - self.save_ms).max(0.0));
            return vec![
                ("pause the devices", self.pause_ms),
                ("save the devices, frozen", save),
                ("CRIU around it", rest),
            ];
        };
        let frozen = stats.freezing_ms + stats.frozen_ms;
        vec![
            ("pause the devices", self.pause_ms),
            ("frozen by CRIU", (frozen - self.save_ms).max(0.0)),
            ("save the devices, frozen", self.save_ms),
            ("CRIU around it", (self.criu_ms - frozen).max(0.0)),
        ]
    }

    /// The same as prose.
    pub fn prose(&self, directory: &Path, with_timings: bool) -> String {
        let is = if self.trees.is_empty() { "is" } else { "are" };
        let how = match (self.left_running, self.trees.is_empty()) {
            (true, true) => " and goes on",
            (true, false) => " and go on",
            (false, _) => "",
        };
        let mut text = format!(
            "{} {is} checkpointed{how}: {} in {:.0} ms, {} in the middle of kernels, {:.1} MiB by CRIU, {:.1} MiB beside\n",
            self.named,
            directory.display(),
            self.checkpoint_ms,
            output::counted(self.waves_saved, "wave"),
            self.criu_bytes as f64 / f64::from(1 << 20),
            self.stored_bytes as f64 / f64::from(1 << 20),
        );
        if with_timings {
            text.push_str(&timings::bars(&self.phases()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_do_not_count_the_time_of_the_devices_twice() {
        let outcome = Outcome {
            checkpoint_ms: 110.0,
            pause_ms: 10.0,
            criu_ms: 90.0,
            save_ms: 20.0,
            criu_stats: Some(DumpStats { freezing_ms: 5.0, frozen_ms: 65.0, ..DumpStats::default() }),
            ..Outcome::default()
        };
        let times: Vec<f64> = outcome.phases().into_iter().map(|(_, ms)| ms).collect();
        assert_eq!(times, [10.0, 50.0, 20.0, 20.0]);
    }

    #[test]
    fn trees_are_added_up_and_listed_if_there_are_several() {
        let tree = |pid: i32, waves: u64| Frozen {
            pid,
            clients: vec![pid, pid + 1],
            paused: vec![Paused { waves, waits: 1, queues: 3 }; 2],
            directory: "/nowhere".into(),
            stored_bytes: 5,
        };
        let of = |trees| serde_json::to_value(Outcome::of(trees)).unwrap();
        let one = of(vec![tree(7, 4)]);
        assert_eq!((&one["pid"], &one["waves_saved"], &one["queues"]), (&7.into(), &8.into(), &6.into()));
        assert!(one.get("trees").is_none());
        let two = of(vec![tree(7, 4), tree(9, 1)]);
        assert_eq!(
            (&two["waves_saved"], &two["clients"], &two["stored_bytes"]),
            (&10.into(), &4.into(), &10.into())
        );
        assert_eq!((&two["trees"][1]["pid"], &two["trees"][1]["waits"]), (&9.into(), &2.into()));
        let prose = Outcome::of(vec![tree(7, 4), tree(9, 1)]).prose(Path::new("/d"), false);
        assert!(
            prose.starts_with("The tree of process 7 (2 with a device) and The tree of")
                || prose.contains("are checkpointed"),
            "{prose}"
        );
    }
}
