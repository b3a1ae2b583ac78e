// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time: the system's clock, and agents' clocks in terms of it.
//!
//! The system's clock is CLOCK_BOOTTIME of the process, which CRIU has go on for a restored process where it stopped. The driver's
//! readings are by the machine's, and an agent's clock counts what it likes: the time while the process was away too, or another
//! agent's. So there is an *era* from each restore on.
//!
//! INVARIANT: what was converted in the order of its ticks is in that order, and a tick of an earlier era is converted as it was then,
//! unless a clock of the new era counts the same ticks again.

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use stasis::Runtime;

use crate::system::SYSTEM_FREQUENCY;

/// Ticks of an agent's clock in a second: of all since gfx9 but the oldest, for which it is measured.
const USUAL_FREQUENCY: u64 = 100_000_000;
/// Nanoseconds that two readings must be apart to tell another frequency, and what they tell is rounded to.
const APART: u64 = 100_000_000;
const GRAIN: u64 = 1_000_000;
/// Nanoseconds after which the two clocks are compared anew: crystals differ.
const COMPARED_FOR: u64 = 1_000_000_000;
/// Nanoseconds by which a clock that goes on may seem to have jumped.
const UNSURE: u64 = 1_000_000;
/// One part in so many is what crystals may differ by.
const DRIFT: u64 = 2_000;
/// Readings of which the quickest tells how far the driver's clock is ahead.
const READINGS: usize = 5;
/// Eras that are remembered.
const ERAS: usize = 64;

/// The system's clock: nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).ok();
    time.map_or(0, |time| {
        let (seconds, nanoseconds) = (time.tv_sec().cast_unsigned(), time.tv_nsec().cast_unsigned());
        seconds.wrapping_mul(SYSTEM_FREQUENCY).wrapping_add(nanoseconds)
    })
}

/// Ticks of an agent's clock and of the system's at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    agent: u64,
    system: u64,
}

/// How an agent's clock stands to the system's.
#[derive(Clone, Copy, Debug)]
struct Relation {
    /// The reading that times are counted from.
    anchor: Reading,
    /// Ticks of the agent's clock in a second.
    frequency: u64,
}

impl Relation {
    /// The system's time of a tick.
    fn convert(&self, ticks: u64) -> u64 {
        let distance = i128::from(ticks) - i128::from(self.anchor.agent);
        let time = distance * i128::from(SYSTEM_FREQUENCY) / i128::from(self.frequency);
        u64::try_from(i128::from(self.anchor.system) + time).unwrap_or(0)
    }

    /// The relation after another reading.
    fn after(self, now: Reading) -> Self {
        let Self { anchor, frequency } = self;
        let (Some(ticks), Some(time)) =
            (now.agent.checked_sub(anchor.agent), now.system.checked_sub(anchor.system))
        else {
            return self;
        };
        if time < COMPARED_FOR {
            return self;
        }
        Self { anchor: now, frequency: measured(ticks, time).unwrap_or(frequency) }
    }
}

/// The frequency that ticks and nanoseconds between two readings tell, if they tell one.
fn measured(ticks: u64, nanoseconds: u64) -> Option<u64> {
    let exact = u128::from(ticks) * u128::from(SYSTEM_FREQUENCY) / u128::from(nanoseconds.max(1));
    let exact = u64::try_from(exact).ok()?;
    let rounded = (exact + GRAIN / 2) / GRAIN * GRAIN;
    (nanoseconds >= APART && rounded > 0).then_some(rounded)
}

/// From a restore, or the beginning, until the next one.
#[derive(Clone, Copy, Debug)]
struct Era {
    /// The agent's clock at its beginning.
    first: u64,
    /// The system's clock less the driver's reading of it, nanoseconds.
    ahead: i64,
    relation: Relation,
    /// Whether the frequency was measured.
    is_measured: bool,
}

/// An agent's clock, by era.
#[derive(Debug)]
struct Clock(Vec<Era>);

impl Clock {
    /// The system's time of a tick, of which it is `now`.
    fn convert(&self, ticks: u64, now: u64) -> Option<u64> {
        let (current, earlier) = self.0.split_last()?;
        let time = current.relation.convert(ticks);
        if ticks >= current.first && time <= now.saturating_add(UNSURE) {
            return Some(time);
        }
        // A tick that is still to come in this era is one of an earlier era, if there is one that had begun by then.
        let begun = earlier.iter().rev().find(|era| era.first <= ticks);
        Some(begun.or(earlier.first()).unwrap_or(current).relation.convert(ticks))
    }

    /// Takes another reading, in which the system's clock is `ahead` of the driver's: a new era, if the clocks have jumped.
    fn begin(&mut self, now: Reading, ahead: i64) {
        let frequency = match self.0.last_mut() {
            Some(era) if era.goes_on(now, ahead) => {
                let compared = era.relation.after(now);
                era.is_measured |= compared.anchor.system != era.relation.anchor.system;
                era.relation = compared;
                return;
            }
            Some(era) => era.relation.frequency,
            None => USUAL_FREQUENCY,
        };
        if self.0.len() >= ERAS {
            self.0.remove(0);
        }
        let relation = Relation { anchor: now, frequency };
        self.0.push(Era { first: now.agent, ahead, relation, is_measured: false });
    }
}

impl Era {
    /// Whether a reading can be one of this era.
    fn goes_on(&self, now: Reading, ahead: i64) -> bool {
        let Relation { anchor, .. } = self.relation;
        let (Some(time), true) = (now.system.checked_sub(anchor.system), now.agent >= anchor.agent) else {
            return false;
        };
        // The frequency of an era that was not compared yet is a guess.
        let off = self.relation.convert(now.agent).abs_diff(now.system);
        self.ahead.abs_diff(ahead) < UNSURE && (!self.is_measured || off < UNSURE + time / DRIFT)
    }
}

/// Every agent's clock.
#[derive(Debug)]
pub struct Clocks(Vec<Mutex<Clock>>);

impl Clocks {
    pub fn new(runtime: &Runtime) -> Self {
        let clocks = Clocks(runtime.agents().iter().map(|_| Mutex::new(Clock(Vec::new()))).collect());
        clocks.go_on(runtime);
        clocks
    }

    /// Compares the clocks with the system's, which may have jumped: after a restore.
    pub fn go_on(&self, runtime: &Runtime) {
        for agent in runtime.agents() {
            // Of a device that is lost there is nothing to compare.
            let _ = self.compare(&agent);
        }
    }

    /// Compares an agent's clock with the system's. The readings are of one time: none is taken under the lock, where a restore
    /// could come in between.
    fn compare(&self, agent: &stasis::Agent) -> Option<()> {
        let ahead = ahead(agent)?;
        let now = read(agent, ahead)?;
        self.0.get(agent.index())?.lock().begin(now, ahead);
        Some(())
    }

    /// The system's time of an agent's tick.
    pub fn convert(&self, agent: &stasis::Agent, ticks: u64) -> Option<u64> {
        let compared = self.0.get(agent.index())?.lock().0.last().map(|era| era.relation.anchor.system);
        if compared.is_none_or(|compared| now().saturating_sub(compared) >= COMPARED_FOR) {
            self.compare(agent)?;
        }
        self.0.get(agent.index())?.lock().convert(ticks, now())
    }

    /// Ticks of an agent's clock in a second.
    pub fn frequency(&self, gpu: usize) -> u64 {
        let era = self.0.get(gpu).and_then(|clock| clock.lock().0.last().copied());
        era.map_or(USUAL_FREQUENCY, |era| era.relation.frequency)
    }
}

fn read(agent: &stasis::Agent, ahead: i64) -> Option<Reading> {
    let clocks = agent.clocks().ok()?;
    Some(Reading { agent: clocks.gpu, system: clocks.system.saturating_add_signed(ahead) })
}

/// How far the system's clock is ahead of the driver's reading of it, nanoseconds: of a process with time of its own.
fn ahead(agent: &stasis::Agent) -> Option<i64> {
    let mut best: Option<(u64, i64)> = None;
    for _ in 0..READINGS {
        let before = now();
        let driver = agent.clocks().ok()?.system;
        let after = now();
        let took = after.saturating_sub(before);
        let is_same = (before..=after).contains(&driver);
        let middle = (before + took / 2).wrapping_sub(driver).cast_signed();
        let ahead = if is_same { 0 } else { middle };
        if best.is_none_or(|(quickest, _)| took < quickest) {
            best = Some((took, ahead));
        }
    }
    best.map(|(_, ahead)| ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = SYSTEM_FREQUENCY;

    #[test]
    fn ticks_are_converted_in_their_order_until_the_clocks_are_compared_anew() {
        let anchor = Reading { agent: 1_000, system: 5 * SECOND };
        let relation = Relation { anchor, frequency: USUAL_FREQUENCY };
        assert_eq!(relation.convert(1_100), 5 * SECOND + 1_000);
        assert_eq!(relation.convert(900), 5 * SECOND - 1_000);
        assert_eq!(relation.convert(0), 5 * SECOND - 10_000);
        // A reading that was interrupted changes nothing soon after.
        let soon = relation.after(Reading { agent: 2_000, system: 5 * SECOND + 900_000 });
        assert_eq!(soon.convert(1_100), relation.convert(1_100));
    }

    #[test]
    fn other_frequency_is_measured() {
        let relation = Relation { anchor: Reading { agent: 0, system: 0 }, frequency: USUAL_FREQUENCY };
        let measured = relation.after(Reading { agent: 50_003_000, system: 2 * SECOND });
        assert_eq!((measured.frequency, measured.convert(50_003_000)), (25_000_000, 2 * SECOND));
    }

    #[test]
    fn ticks_of_earlier_eras_are_converted_as_they_were_then() {
        let mut clock = Clock(Vec::new());
        let tick = |seconds: u64| seconds * USUAL_FREQUENCY;
        clock.begin(Reading { agent: tick(1000), system: 10 * SECOND }, 0);
        assert_eq!(clock.convert(tick(1002), 12 * SECOND), Some(12 * SECOND));
        // The same moment, as a lock that is undone sees it.
        clock.begin(Reading { agent: tick(1003), system: 13 * SECOND }, 0);
        assert_eq!(clock.0.len(), 1);
        // The process was away for a minute by the agent's clock, and for no time by its own.
        clock.begin(Reading { agent: tick(1063), system: 13 * SECOND }, -60 * SECOND.cast_signed());
        assert_eq!(clock.convert(tick(1002), 14 * SECOND), Some(12 * SECOND));
        assert_eq!(clock.convert(tick(1064), 14 * SECOND), Some(14 * SECOND));
        // On another machine, which was started later.
        clock.begin(Reading { agent: tick(7), system: 15 * SECOND }, -60 * SECOND.cast_signed());
        assert_eq!(clock.convert(tick(1002), 16 * SECOND), Some(12 * SECOND));
        assert_eq!(clock.convert(tick(1064), 16 * SECOND), Some(14 * SECOND));
        assert_eq!(clock.convert(tick(8), 16 * SECOND), Some(16 * SECOND));
        // Before everything.
        assert_eq!(clock.convert(tick(999), 0), Some(9 * SECOND));
    }

    #[test]
    fn clock_that_drifts_or_has_another_frequency_has_not_jumped() {
        let mut clock = Clock(Vec::new());
        clock.begin(Reading { agent: 0, system: SECOND }, 0);
        // 25 MHz: a guess until it is measured.
        clock.begin(Reading { agent: 1_250_000, system: SECOND + SECOND / 20 }, 0);
        clock.begin(Reading { agent: 50_000_000, system: 3 * SECOND }, 0);
        assert_eq!((clock.0.len(), clock.0[0].relation.frequency), (1, 25_000_000));
        // Ten minutes later, at 20 parts in a million.
        let (ticks, time) = (600 * 25_000_000, 600 * SECOND + 12_000_000);
        clock.begin(Reading { agent: 50_000_000 + ticks, system: 3 * SECOND + time }, 0);
        assert_eq!(clock.0.len(), 1);
        // A second on, by a minute of the agent's.
        clock.begin(Reading { agent: 50_000_000 + ticks + 60 * 25_000_000, system: 4 * SECOND + time }, 0);
        assert_eq!(clock.0.len(), 2);
    }

    #[test]
    fn so_many_eras_are_remembered_and_no_more() {
        let mut clock = Clock(Vec::new());
        for era in 0..2 * ERAS as u64 {
            clock.begin(Reading { agent: era << 40, system: era * SECOND }, (era * SECOND).cast_signed());
        }
        assert_eq!(clock.0.len(), ERAS);
    }
}
