// SPDX-License-Identifier: MIT OR Apache-2.0
//! One agent's clock, by era.
//!
//! INVARIANT: the ticks that a clock tells are in the order of time, and until the first restore they are what the agent's counter says.
//! A counter's value of an earlier era is converted as it was then, as long as the era is remembered; of which era one is which the
//! present counter says again is a guess. The ticks of a signal's times are noted before their era ends ([`super::Stamps`]).

use super::SYSTEM_FREQUENCY;

/// Counts of an agent's counter in a second where the driver does not say it, until it is measured.
const USUAL_FREQUENCY: u64 = 100_000_000;
/// Counts in a second that a measured frequency is rounded to.
const GRAIN: u64 = 1_000_000;
/// Nanoseconds after which the two clocks are compared anew: crystals differ.
const COMPARED_FOR: u64 = 1_000_000_000;
/// Nanoseconds by which a clock that goes on may seem to have jumped.
const UNSURE: u64 = 1_000_000;
/// One part in so many is what crystals may differ by.
const DRIFT: u64 = 2_000;
/// Eras that are remembered.
const ERAS: usize = 64;

/// An agent's counter and the system's clock at one moment, nearly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    pub counter: u64,
    pub system: u64,
    /// Nanoseconds between the two at most: whoever reads them can lose the processor meanwhile.
    pub unsure: u64,
}

/// How an agent's counter stands to the system's clock.
#[derive(Clone, Copy, Debug)]
struct Relation {
    /// The reading that times are counted from.
    anchor: Reading,
    /// Counts in a second.
    frequency: u64,
}

/// `distance * times / by`, from `origin` on.
fn scaled(origin: u64, distance: i128, times: u64, by: u64) -> u64 {
    let moved = if times == by { distance } else { distance * i128::from(times) / i128::from(by) };
    let at = (i128::from(origin) + moved).clamp(0, i128::from(u64::MAX));
    u64::try_from(at).unwrap_or(u64::MAX)
}

fn distance(from: u64, to: u64) -> i128 {
    i128::from(to) - i128::from(from)
}

impl Relation {
    /// The system's time when the counter says this.
    fn time(&self, counter: u64) -> u64 {
        scaled(self.anchor.system, distance(self.anchor.counter, counter), SYSTEM_FREQUENCY, self.frequency)
    }

    /// What the counter says at a system's time.
    fn counter(&self, time: u64) -> u64 {
        scaled(self.anchor.counter, distance(self.anchor.system, time), self.frequency, SYSTEM_FREQUENCY)
    }

    /// Nanoseconds by which it may be off so long after its reading.
    fn unsure(&self, after: u64) -> u64 {
        self.anchor.unsure.saturating_add(after / DRIFT)
    }

    /// The relation after another reading, of the frequency that the driver `told` or that the two readings tell.
    fn after(self, now: Reading, told: Option<u64>) -> Self {
        let Self { anchor, frequency } = self;
        let (Some(counts), Some(time)) =
            (now.counter.checked_sub(anchor.counter), now.system.checked_sub(anchor.system))
        else {
            return self;
        };
        // A reading that was interrupted for longer than the clocks can have drifted apart tells less than the one before.
        if time < COMPARED_FOR || now.unsure > self.unsure(time) {
            return Self { anchor, frequency: told.unwrap_or(frequency) };
        }
        Self { anchor: now, frequency: told.or_else(|| measured(counts, time)).unwrap_or(frequency) }
    }
}

/// The frequency that counts and nanoseconds, which are not 0, between two readings tell, if they tell one.
fn measured(counts: u64, nanoseconds: u64) -> Option<u64> {
    let exact = u128::from(counts) * u128::from(SYSTEM_FREQUENCY) / u128::from(nanoseconds);
    let exact = u64::try_from(exact).ok()?;
    let rounded = (exact + GRAIN / 2) / GRAIN * GRAIN;
    (rounded > 0).then_some(rounded)
}

/// From a restore, or the beginning, until the next one; or until the counter's frequency turns out to be another.
#[derive(Clone, Copy, Debug)]
struct Era {
    /// The counter at its beginning.
    counter: u64,
    /// The ticks then.
    ticks: u64,
    /// The system's clock less the driver's reading of it, nanoseconds.
    ahead: i64,
    relation: Relation,
    /// Whether the frequency is no guess.
    is_known: bool,
}

impl Era {
    /// Whether a reading can be one of this era: without a restore in between, or after an undone checkpoint.
    fn goes_on(&self, now: Reading, ahead: i64) -> bool {
        let Relation { anchor, .. } = self.relation;
        let (Some(time), true) = (now.system.checked_sub(anchor.system), now.counter >= anchor.counter)
        else {
            return false;
        };
        let off = self.relation.time(now.counter).abs_diff(now.system);
        let unsure = UNSURE.saturating_add(now.unsure);
        self.ahead.abs_diff(ahead) < unsure.saturating_add(anchor.unsure)
            && (!self.is_known || off < unsure.saturating_add(self.relation.unsure(time)))
    }

    /// The ticks, of which there are `frequency` in a second, when the counter says this.
    fn ticks(&self, counter: u64, frequency: u64) -> u64 {
        scaled(self.ticks, distance(self.counter, counter), frequency, self.relation.frequency)
    }

    /// What the counter says at a tick.
    fn counter(&self, ticks: u64, frequency: u64) -> u64 {
        scaled(self.counter, distance(self.ticks, ticks), self.relation.frequency, frequency)
    }
}

/// An agent's clock.
#[derive(Debug, Default)]
pub struct Clock {
    eras: Vec<Era>,
    /// Ticks in a second: counts of the first era.
    frequency: u64,
    /// The latest ticks that were told.
    latest: u64,
    /// Restores before the last reading.
    restores: u32,
}

impl Clock {
    /// Whether it is time to compare it, at a system's time.
    pub fn is_old(&self, now: u64) -> bool {
        self.eras.last().is_none_or(|era| now.saturating_sub(era.relation.anchor.system) >= COMPARED_FOR)
    }

    /// Ticks in a second; 0 before it was compared.
    pub fn frequency(&self) -> u64 {
        self.frequency
    }

    /// Takes a reading after so many restores, in which the system's clock is `ahead` of the driver's: a new era, if the clocks have
    /// jumped. Of what frequency the counter is, the driver may have `told`.
    pub fn begin(&mut self, restores: u32, now: Reading, ahead: i64, told: Option<u64>) {
        let told = told.filter(|frequency| *frequency > 0);
        let is_same = std::mem::replace(&mut self.restores, restores) == restores;
        let Some((era, earlier)) = self.eras.split_last_mut() else {
            self.frequency = told.unwrap_or(USUAL_FREQUENCY);
            let relation = Relation { anchor: now, frequency: self.frequency };
            // From its first count on, before which it cannot have been read.
            let first = Era { counter: 0, ticks: 0, ahead, relation, is_known: told.is_some() };
            self.eras.push(first);
            self.latest = now.counter;
            return;
        };
        // A guess is no reason to take the clock of another machine for this one.
        let next = if era.goes_on(now, ahead) && (is_same || era.is_known) {
            let compared = era.relation.after(now, told);
            let is_known =
                era.is_known || told.is_some() || compared.anchor.system != era.relation.anchor.system;
            let is_other = compared.frequency != era.relation.frequency;
            if is_other && earlier.is_empty() {
                self.frequency = compared.frequency;
            }
            if !is_other || earlier.is_empty() {
                (era.relation, era.is_known) = (compared, is_known);
                self.latest = self.latest.max(era.ticks(now.counter, self.frequency));
                return;
            }
            let ticks = era.ticks(now.counter, self.frequency);
            Era { counter: now.counter, ticks, relation: compared, is_known, ..*era }
        } else {
            let ticks = era.ticks(era.relation.counter(now.system), self.frequency);
            let relation = Relation { anchor: now, frequency: told.unwrap_or(era.relation.frequency) };
            Era { counter: now.counter, ticks, ahead, relation, is_known: told.is_some() }
        };
        let ticks = next.ticks.max(self.latest);
        self.latest = ticks;
        if self.eras.len() >= ERAS {
            self.eras.remove(0);
        }
        self.eras.push(Era { ticks, ..next });
    }

    /// Takes what was just read of the counter and the driver's clock for the time now: ticks, and the system's time.
    pub fn reading(&mut self, counter: u64, driver: u64) -> (u64, u64) {
        let Some(era) = self.eras.last() else { return (counter, driver) };
        self.latest = self.latest.max(era.ticks(counter, self.frequency));
        (self.latest, driver.saturating_add_signed(era.ahead))
    }

    /// The ticks when the counter said this, at the system's time `now`.
    pub fn ticks(&self, counter: u64, now: u64) -> u64 {
        self.era_of(counter, now).map_or(counter, |era| era.ticks(counter, self.frequency))
    }

    fn era_of(&self, counter: u64, now: u64) -> Option<&Era> {
        let (current, earlier) = self.eras.split_last()?;
        let age = now.saturating_sub(current.relation.anchor.system);
        let unsure = UNSURE.saturating_add(current.relation.unsure(age));
        if counter >= current.counter && current.relation.time(counter) <= now.saturating_add(unsure) {
            return Some(current);
        }
        // What is still to come in this era is of an earlier one, if there is one that had begun by then.
        let begun = earlier.iter().rev().find(|era| era.counter <= counter);
        begun.or(earlier.first()).or(Some(current))
    }

    /// The system's time of a tick.
    pub fn time(&self, ticks: u64) -> u64 {
        let begun = self.eras.iter().rev().find(|era| era.ticks <= ticks);
        let era = begun.or(self.eras.first());
        era.map_or(0, |era| era.relation.time(era.counter(ticks, self.frequency)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = SYSTEM_FREQUENCY;
    const TOLD: Option<u64> = Some(USUAL_FREQUENCY);

    fn exact(counter: u64, system: u64) -> Reading {
        Reading { counter, system, unsure: 0 }
    }

    fn counts(seconds: u64) -> u64 {
        seconds * USUAL_FREQUENCY
    }

    #[test]
    fn counts_are_converted_in_their_order_until_the_clocks_are_compared_anew() {
        let anchor = exact(1_000, 5 * SECOND);
        let relation = Relation { anchor, frequency: USUAL_FREQUENCY };
        assert_eq!(relation.time(1_100), 5 * SECOND + 1_000);
        assert_eq!(relation.time(900), 5 * SECOND - 1_000);
        assert_eq!(relation.time(0), 5 * SECOND - 10_000);
        assert_eq!(relation.counter(5 * SECOND - 1_000), 900);
        // A reading that was interrupted changes nothing soon after.
        let soon = relation.after(exact(2_000, 5 * SECOND + 900_000), None);
        assert_eq!(soon.time(1_100), relation.time(1_100));
    }

    #[test]
    fn numbers_at_the_ends_of_their_range_are_borne() {
        let mut clock = Clock::default();
        assert_eq!((clock.ticks(7, 0), clock.time(7), clock.reading(7, 8)), (7, 0, (7, 8)));
        clock.begin(0, exact(u64::MAX, u64::MAX), i64::MIN, None);
        clock.begin(1, Reading::default(), i64::MAX, None);
        assert_eq!(clock.reading(u64::MAX, u64::MAX), (u64::MAX, u64::MAX));
        for number in [0, 1, u64::MAX] {
            clock.time(clock.ticks(number, number));
        }
    }

    #[test]
    fn other_frequency_is_measured_and_ticks_stay_what_the_counter_says() {
        let mut clock = Clock::default();
        clock.begin(0, exact(0, 0), 0, None);
        clock.begin(0, exact(50_003_000, 2 * SECOND), 0, None);
        assert_eq!((clock.frequency(), clock.eras.len()), (25_000_000, 1));
        assert_eq!(clock.ticks(50_003_000, 2 * SECOND), 50_003_000);
        assert_eq!(clock.time(50_003_000), 2 * SECOND);
    }

    #[test]
    fn frequency_that_the_driver_tells_is_not_measured() {
        let mut clock = Clock::default();
        clock.begin(0, exact(1000, SECOND), 0, Some(25_000_000));
        assert_eq!((clock.frequency(), clock.time(1025)), (25_000_000, SECOND + 1000));
        // A reading that was interrupted for long, and a restore onto the same GPU.
        clock.begin(0, exact(60_000_000, 3 * SECOND), 0, Some(25_000_000));
        assert_eq!(clock.frequency(), 25_000_000);
        // Another one, with a faster counter: the ticks go on at the first frequency.
        clock.begin(1, exact(5, 4 * SECOND), 0, Some(100_000_000));
        let (before, _) = clock.reading(5, 4 * SECOND);
        let (after, _) = clock.reading(100_000_005, 5 * SECOND);
        assert_eq!(after - before, 25_000_000);
    }

    #[test]
    fn counter_that_begins_again_begins_an_era() {
        let mut clock = Clock::default();
        clock.begin(0, exact(counts(1000), 10 * SECOND), 0, Some(USUAL_FREQUENCY));
        let (told, _) = clock.reading(counts(1001), 11 * SECOND);
        // After a reset of the GPU, or the machine's sleep.
        clock.begin(0, exact(counts(1), 13 * SECOND), 0, Some(USUAL_FREQUENCY));
        let (next, _) = clock.reading(counts(2), 14 * SECOND);
        assert_eq!((clock.eras.len(), next - told), (2, counts(3)));
    }

    #[test]
    fn counts_of_earlier_eras_are_converted_as_they_were_then() {
        let mut clock = Clock::default();
        clock.begin(0, exact(counts(1000), 10 * SECOND), 0, TOLD);
        let time = |clock: &Clock, counter, now| clock.time(clock.ticks(counter, now));
        assert_eq!(time(&clock, counts(1002), 12 * SECOND), 12 * SECOND);
        // The same moment, as a lock that is undone sees it.
        clock.begin(1, exact(counts(1003), 13 * SECOND), 0, TOLD);
        assert_eq!(clock.eras.len(), 1);
        // The process was away for a minute by the agent's counter, and for no time by its own clock.
        clock.begin(2, exact(counts(1063), 13 * SECOND), -60 * SECOND.cast_signed(), None);
        assert_eq!(time(&clock, counts(1002), 14 * SECOND), 12 * SECOND);
        assert_eq!(time(&clock, counts(1064), 14 * SECOND), 14 * SECOND);
        let older = clock.ticks(counts(1064), 14 * SECOND);
        // On another machine, which was started later.
        clock.begin(3, exact(counts(7), 15 * SECOND), -60 * SECOND.cast_signed(), TOLD);
        assert_eq!(time(&clock, counts(1002), 16 * SECOND), 12 * SECOND);
        assert_eq!(time(&clock, counts(1064), 16 * SECOND), 14 * SECOND);
        assert_eq!(time(&clock, counts(8), 16 * SECOND), 16 * SECOND);
        // Before everything.
        assert_eq!(time(&clock, counts(999), 0), 9 * SECOND);
        // The counter is there a second time; what was noted before that is of the older one.
        assert_eq!(time(&clock, counts(1064), 1072 * SECOND), 1072 * SECOND);
        assert_eq!((older, clock.time(older)), (counts(1004), 14 * SECOND));
    }

    #[test]
    fn ticks_go_on_over_restores_at_the_first_frequency() {
        let mut clock = Clock::default();
        clock.begin(0, exact(counts(1000), 10 * SECOND), 0, None);
        assert_eq!(clock.reading(counts(1001), 11 * SECOND), (counts(1001), 11 * SECOND));
        // To a machine whose counter is far behind, and another's is faster.
        let ahead = -100 * SECOND.cast_signed();
        clock.begin(1, exact(counts(5), 12 * SECOND), ahead, None);
        assert_eq!(clock.reading(counts(6), 113 * SECOND), (counts(1003), 13 * SECOND));
        clock.begin(1, exact(counts(9), 14 * SECOND), ahead, None);
        assert_eq!((clock.eras.len(), clock.frequency()), (3, USUAL_FREQUENCY));
        let (ticks, _) = clock.reading(counts(11), 115 * SECOND);
        // It counted 4 s' worth in 2 s: from the comparison on that is known, and the ticks told before stand.
        assert_eq!(ticks, counts(1007));
        assert_eq!(clock.time(ticks), 15 * SECOND);
    }

    #[test]
    fn clock_never_goes_back() {
        let mut clock = Clock::default();
        clock.begin(0, exact(counts(1000), 10 * SECOND), 0, None);
        // A counter that is a little fast: it has told more than the next era begins with.
        let (told, _) = clock.reading(counts(1001) + 1_000, 11 * SECOND);
        clock.begin(1, exact(0, 11 * SECOND), -SECOND.cast_signed(), None);
        let (next, _) = clock.reading(0, 12 * SECOND);
        assert!(next >= told, "{next} {told}");
        // Two threads' readings in the other order.
        let (later, _) = clock.reading(2_000, 12 * SECOND);
        assert_eq!(clock.reading(1_000, 12 * SECOND).0, later);
    }

    #[test]
    fn clock_that_drifts_or_has_another_frequency_has_not_jumped() {
        let mut clock = Clock::default();
        clock.begin(0, exact(0, SECOND), 0, None);
        // 25 MHz: a guess until it is measured.
        clock.begin(0, exact(1_250_000, SECOND + SECOND / 20), 0, None);
        clock.begin(0, exact(50_000_000, 3 * SECOND), 0, None);
        assert_eq!((clock.eras.len(), clock.frequency()), (1, 25_000_000));
        // Ten minutes later, at 20 parts in a million.
        let (ticks, time) = (600 * 25_000_000, 600 * SECOND + 12_000_000);
        clock.begin(0, exact(50_000_000 + ticks, 3 * SECOND + time), 0, None);
        assert_eq!(clock.eras.len(), 1);
        // A second on, by a minute of the agent's.
        let jumped = exact(50_000_000 + ticks + 60 * 25_000_000, 4 * SECOND + time);
        clock.begin(1, jumped, 0, None);
        assert_eq!(clock.eras.len(), 2);
    }

    #[test]
    fn so_many_eras_are_remembered_and_no_more() {
        let mut clock = Clock::default();
        for era in 0..2 * ERAS as u32 {
            let at = u64::from(era);
            clock.begin(era, exact(at << 40, at * SECOND), (at * SECOND).cast_signed(), None);
        }
        assert_eq!(clock.eras.len(), ERAS);
        // What is older than all that is remembered.
        assert!(clock.ticks(1 << 40, 0) < clock.latest);
    }

    #[test]
    fn counts_after_a_restore_are_of_its_era_though_its_reading_was_interrupted() {
        let mut clock = Clock::default();
        clock.begin(0, exact(counts(1000), 10 * SECOND), 0, TOLD);
        // 6 ms passed between the counter and the clock.
        let late = |counter, system, unsure| Reading { counter, system: system + 6_000_000, unsure };
        let away = -60 * SECOND.cast_signed();
        clock.begin(1, late(counts(1063), 13 * SECOND, 7_000_000), away, TOLD);
        assert_eq!(clock.eras.len(), 2);
        let (read, _) = clock.reading(counts(1064), 74 * SECOND);
        let told = clock.ticks(counts(1064), 14 * SECOND);
        assert_eq!(told, read);
        // The next reading is not so bad, and is no jump of the clock.
        let better = away + 5_000_000;
        clock.begin(1, exact(counts(1065), 15 * SECOND), better, TOLD);
        assert_eq!((clock.eras.len(), clock.time(clock.ticks(counts(1066), 16 * SECOND))), (2, 16 * SECOND));
        // A worse one is no comparison.
        clock.begin(1, late(counts(1067), 17 * SECOND, 7_000_000), better, TOLD);
        assert_eq!((clock.eras.len(), clock.time(clock.ticks(counts(1068), 18 * SECOND))), (2, 18 * SECOND));
    }
}
