// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observes running grids: numbers about every dispatch, and a trace of its first wave.
//!
//! INVARIANT: observation changes nothing that a kernel can see except its time. A grid that is not observed pays one
//! branch each time a wave gets its turn.
//!
//! ```text
//! run         one wave, instruction by instruction          occupancy   waves that the chip would hold
//! facts       what an instruction counts as                 trace       instructions as lines of text
//! tally       counts, their sums, and the JSON of them
//! ```

mod facts;
mod occupancy;
mod run;
mod tally;
mod trace;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::launch::{Launch, Plan};
use crate::outcome::Outcome;
use crate::wave::Wave;

pub(crate) use run::Watch;
use tally::Tally;
use trace::Trace;

/// What is to be recorded about dispatches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observe {
    /// The file that gets one line of JSON per dispatch: instructions by class, bytes, lanes, occupancy, time.
    pub stats: Option<PathBuf>,
    /// The file that gets the first so many instructions of the first wave of every dispatch.
    pub trace: Option<(PathBuf, u64)>,
}

impl Observe {
    /// The settings of `SOFTGPU_STATS=FILE` and `SOFTGPU_TRACE=FILE:INSTRUCTIONS`; paths should be absolute.
    pub fn from_env() -> Observe {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Observe::parse(variable("SOFTGPU_STATS"), variable("SOFTGPU_TRACE"))
    }

    fn parse(stats: Option<String>, trace: Option<String>) -> Observe {
        let trace = trace.and_then(|text| {
            let parsed = text.rsplit_once(':').and_then(|(path, count)| {
                let count = count.parse().ok().filter(|&count: &u64| count > 0)?;
                (!path.is_empty()).then(|| (PathBuf::from(path), count))
            });
            if parsed.is_none() {
                tracing::warn!(
                    "SOFTGPU_TRACE={text} is not FILE:INSTRUCTIONS with a number above 0; no trace"
                );
            }
            parsed
        });
        Observe { stats: stats.map(PathBuf::from), trace }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.stats.is_some() || self.trace.is_some()
    }
}

/// One observed run of a grid.
#[derive(Debug)]
pub(crate) struct Observation {
    wishes: Arc<Observe>,
    /// The workgroup whose first wave is traced.
    first: [u32; 3],
    started: Instant,
    sum: Mutex<Tally>,
    trace: Mutex<Option<Trace>>,
}

impl Observation {
    /// The observation of a grid, if one is asked for. A resumed grid was traced when it started.
    pub(crate) fn new(
        wishes: &Arc<Observe>,
        launch: &Launch,
        plan: &Plan,
        resumed: bool,
    ) -> Option<Observation> {
        wishes.is_on().then(|| Observation {
            wishes: Arc::clone(wishes),
            first: plan.group_id(0),
            started: Instant::now(),
            sum: Mutex::default(),
            trace: Mutex::new(
                wishes.trace.as_ref().filter(|_| !resumed).map(|(_, count)| Trace::new(launch, *count)),
            ),
        })
    }

    /// One worker's counts for the observation; added to it when dropped.
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch::new(self)
    }

    fn counts(&self) -> bool {
        self.wishes.stats.is_some()
    }

    /// The trace, if `w` is the traced wave and the trace is not complete.
    fn trace_of(&self, w: &Wave) -> Option<MutexGuard<'_, Option<Trace>>> {
        // Workers contend for this lock only when a workgroup changes its worker: no other wave takes it.
        let is_first = w.wave_in_group == 0 && w.group == self.first;
        is_first.then(|| self.trace.lock()).filter(|trace| trace.is_some())
    }

    /// Writes the trace to its file and ends it.
    fn end_trace(&self, trace: &mut Option<Trace>) {
        if let (Some(trace), Some((path, _))) = (trace.take(), &self.wishes.trace) {
            append(path, &trace.finish());
        }
    }

    /// Writes the results when the run of the grid has ended.
    pub(crate) fn finish(&self, launch: &Launch, plan: &Plan, outcome: &Outcome) {
        self.end_trace(&mut self.trace.lock());
        if let Some(path) = &self.wishes.stats {
            append(path, &self.sum.lock().json(launch, plan, outcome, self.started.elapsed()));
        }
    }
}

/// Adds `text` to a file in one write, so that reports of several queues do not mix.
fn append(path: &Path, text: &str) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if let Err(error) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
        tracing::warn!("Cannot write to {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_as_documented() {
        let parse = |stats: Option<&str>, trace: Option<&str>| {
            Observe::parse(stats.map(str::to_owned), trace.map(str::to_owned))
        };
        assert!(!parse(None, None).is_on());
        assert_eq!(parse(Some("/a:b"), None).stats, Some(PathBuf::from("/a:b")));
        assert_eq!(parse(None, Some("/a:b:12")).trace, Some((PathBuf::from("/a:b"), 12)));
        for wrong in ["/a", "/a:", "/a:0", "/a:-1", ":5", "5"] {
            assert_eq!(parse(None, Some(wrong)).trace, None, "{wrong}");
        }
    }
}
