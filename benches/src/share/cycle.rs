// SPDX-License-Identifier: MIT OR Apache-2.0
//! One checkpoint and restore of this process, alone or as one of a session's two, and how long its phases took.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytemuck::{Pod, Zeroable};
use stasis::Runtime;
use stasis::checkpoint::{CheckpointOptions, Mode, RestoreOptions};
use stasis::share::{Member, SessionOrder};

/// The names of a session's processes.
pub const NAMES: [&str; 2] = ["first", "second"];
/// TIMEOUT: for each verb, which waits for the other process.
const PATIENCE: Duration = Duration::from_secs(30);

/// Milliseconds of each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Phases {
    pub lock: f64,
    pub write: f64,
    pub close: f64,
    /// The whole of `checkpoint`, with what a session waits for.
    pub checkpoint: f64,
    pub open: f64,
    pub rebuild: f64,
    pub fill: f64,
    /// The whole of `restore`.
    pub restore: f64,
    /// What of it is in none of its phases: meeting the others, descriptors.
    pub rest: f64,
    pub unlock: f64,
}

impl Phases {
    /// The longer of each phase, of two that go on at the same time.
    pub fn longer(self, other: Self) -> Self {
        let pairs =
            bytemuck::cast::<_, [f64; 10]>(self).into_iter().zip(bytemuck::cast::<_, [f64; 10]>(other));
        let mut longer = [0.0; 10];
        for (slot, (a, b)) in longer.iter_mut().zip(pairs) {
            *slot = f64::max(a, b);
        }
        bytemuck::cast(longer)
    }
}

/// Where the processes of the `generation`th checkpoint write and meet.
pub fn directory(base: &Path, generation: u64) -> PathBuf {
    base.join(generation.to_string())
}

/// Makes its directories.
pub fn prepare(base: &Path, generation: u64) -> Result<()> {
    let all = directory(base, generation);
    for name in NAMES.into_iter().chain(["session"]) {
        fs::create_dir_all(all.join(name))?;
    }
    Ok(())
}

fn session(base: &Path, generation: u64, name: &str) -> SessionOrder {
    let member = |name: &str| Member { name: name.to_owned(), image: Path::new("..").join(name) };
    SessionOrder {
        id: format!("bench-{generation}"),
        directory: directory(base, generation).join("session"),
        from_image: "../session".into(),
        name: name.to_owned(),
        members: NAMES.map(member).to_vec(),
        // CAST: seconds.
        patience_ms: PATIENCE.as_millis() as u64,
    }
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Lock and checkpoint.
pub fn down(runtime: &Runtime, base: &Path, generation: u64, name: &str, alone: bool) -> Result<Phases> {
    let started = Instant::now();
    runtime.lock(Mode::Drain, PATIENCE)?;
    let lock = ms(started);
    let session = (!alone).then(|| session(base, generation, name));
    let options = CheckpointOptions { deadline: PATIENCE, session, ..CheckpointOptions::default() };
    let started = Instant::now();
    let report = runtime.checkpoint_with(&directory(base, generation).join(name), &options)?;
    let checkpoint = ms(started);
    Ok(Phases { lock, write: report.write_ms, close: report.close_ms, checkpoint, ..Phases::default() })
}

/// Restore and unlock, after a [`down`] that took `phases`.
pub fn up(runtime: &Runtime, phases: Phases) -> Result<Phases> {
    let options = RestoreOptions { deadline: PATIENCE, ..RestoreOptions::default() };
    let started = Instant::now();
    let report = runtime.restore_with(&options)?;
    let restore = ms(started);
    let started = Instant::now();
    runtime.unlock()?;
    let unlock = ms(started);
    let (open, rebuild, fill) = (report.open_ms, report.rebuild_ms, report.fill_ms);
    let rest = restore - open - rebuild - fill;
    Ok(Phases { open, rebuild, fill, restore, rest, unlock, ..phases })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_takes_each_phase_by_itself() {
        let a = Phases { lock: 1.0, restore: 5.0, ..Phases::default() };
        let b = Phases { lock: 2.0, unlock: 3.0, ..Phases::default() };
        assert_eq!(a.longer(b), Phases { lock: 2.0, restore: 5.0, unlock: 3.0, ..Phases::default() });
    }
}
