// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of instructions, bytes and lanes, and the line of JSON for a dispatch.
//!
//! INVARIANT: only instructions that were completed are counted; one that stopped its wave is not.

use std::fmt::Write;
use std::time::Duration;

use super::facts::{Class, Fact, Space};
use super::occupancy::Occupancy;
use crate::launch::{Launch, Plan};
use crate::outcome::Outcome;
use crate::wave::Wave;

/// The counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Instructions by [`Class`].
    counts: [u64; Class::NAMES.len()],
    /// Bytes by [`Space`].
    loaded: [u64; Space::NAMES.len()],
    stored: [u64; Space::NAMES.len()],
    /// Instructions that EXEC applies to, and the sum of the lanes that were active in them.
    vector: u64,
    lanes: u64,
    /// Waves that ended, and workgroups whose first wave ended.
    waves: u64,
    workgroups: u64,
    /// Host CPU time.
    pub cpu: Duration,
}

impl Tally {
    /// Counts one instruction that ran with `lanes` active and moved these bytes.
    pub(super) fn note(&mut self, fact: &Fact, lanes: u32, [loaded, stored]: [[u64; 4]; 2]) {
        self.counts[fact.class as usize] += 1;
        if fact.is_vector {
            self.vector += 1;
            self.lanes += u64::from(lanes);
        }
        for space in 0..Space::NAMES.len() {
            self.loaded[space] += loaded[space];
            self.stored[space] += stored[space];
        }
    }

    /// Counts a wave that has ended.
    pub(super) fn note_end(&mut self, w: &Wave) {
        self.waves += 1;
        self.workgroups += u64::from(w.wave_in_group == 0);
    }

    /// Adds what another worker counted.
    pub(super) fn add(&mut self, other: &Tally) {
        let sum =
            |into: &mut [u64], from: &[u64]| into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
        sum(&mut self.counts, &other.counts);
        sum(&mut self.loaded, &other.loaded);
        sum(&mut self.stored, &other.stored);
        self.vector += other.vector;
        self.lanes += other.lanes;
        self.waves += other.waves;
        self.workgroups += other.workgroups;
        self.cpu += other.cpu;
    }

    /// One line: a JSON object; its numbers are bytes, lanes and seconds.
    pub(super) fn json(&self, launch: &Launch, plan: &Plan, outcome: &Outcome, took: Duration) -> String {
        let total: u64 = self.counts.iter().sum();
        let outcome = match outcome {
            Outcome::Completed => "completed",
            Outcome::Paused(_) => "paused",
            Outcome::Aborted => "aborted",
            Outcome::Exception(_) => "exception",
        };
        let mut text = format!(
            "{{\"dispatch_id\":{},\"kernel_object\":{},\"outcome\":\"{outcome}\",\"workgroups\":{},\"waves\":{},\
             \"lanes\":{},\"instructions\":{{\"total\":{total}",
            launch.dispatch_id,
            launch.kernel_object,
            self.workgroups,
            self.waves,
            plan.shape.halves * 32,
        );
        // Writing to a string cannot fail.
        for (name, count) in Class::NAMES.iter().zip(&self.counts) {
            let _ = write!(text, ",\"{name}\":{count}");
        }
        text.push_str("},\"bytes\":{");
        for (k, name) in Space::NAMES.iter().enumerate() {
            let comma = if k == 0 { "" } else { "," };
            let (loaded, stored) = (self.loaded[k], self.stored[k]);
            let _ = write!(text, "{comma}\"{name}\":{{\"loaded\":{loaded},\"stored\":{stored}}}");
        }
        let seconds = self.cpu.as_secs_f64();
        let rate = if seconds > 0.0 { total as f64 / seconds } else { 0.0 };
        let _ = writeln!(
            text,
            "}},\"vector_instructions\":{},\"average_active_lanes\":{:.3},\"occupancy\":{},\
             \"host\":{{\"seconds\":{:.6},\"cpu_seconds\":{seconds:.6},\"instructions_per_cpu_second\":{rate:.0}}}}}",
            self.vector,
            self.lanes as f64 / self.vector.max(1) as f64,
            Occupancy::new(launch, plan).json(),
            took.as_secs_f64(),
        );
        text
    }
}
