// SPDX-License-Identifier: MIT OR Apache-2.0
//! Agents' clocks as the process sees them: continuous over restores, and in terms of the system's clock.
//!
//! The system's clock is CLOCK_BOOTTIME of the process, which CRIU has go on for a restored process where it stopped. The driver's
//! readings are by the machine's clock, and an agent's counter counts what it likes: the time while the process was away too, or it is
//! another agent's. So there is an *era* from each restore on, and what an agent's counter says is converted by the era it is of.
//!
//! INVARIANT: a clock that was read is never behind an earlier reading of it, nor behind a signal's time.

mod clock;

use std::sync::atomic::{AtomicU32, Ordering};

use kfd::ioctl::ClockCounters;
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use queues::words::count;

pub use self::clock::Clock;
use self::clock::Reading;
use super::device::Device;
use super::error::DeviceError;
use super::registry::Registry;
use super::registry::state::AgentIndex;
use super::signal::live::SignalLive;

/// Ticks of the system's clock in a second.
pub const SYSTEM_FREQUENCY: u64 = 1_000_000_000;
/// Readings of which the quickest tells how far the driver's clock is behind the process's.
const READINGS: usize = 5;
/// As many at most, where other work leaves the process no time for a quick one.
const MOST_READINGS: usize = 20;
/// Nanoseconds of a quick one.
const QUICK: u64 = 500_000;

/// The system's clock of this process: nanoseconds of CLOCK_BOOTTIME. Goes on over a restore where it stood at the checkpoint.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).ok();
    time.map_or(0, |time| {
        let (seconds, nanoseconds) = (time.tv_sec().cast_unsigned(), time.tv_nsec().cast_unsigned());
        seconds.wrapping_mul(SYSTEM_FREQUENCY).wrapping_add(nanoseconds)
    })
}

/// A signal's times that were there when the process was checkpointed.
#[derive(Debug, Default)]
pub struct Stamps {
    start: u64,
    end: u64,
    /// The ticks of both by each agent's clock, which forgets the era that they are of; of none if there was no time.
    ticks: Box<[(u64, u64)]>,
}

/// What an agent's counter said, and the ticks then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    counter: u64,
    ticks: u64,
}

/// Every agent's clock.
#[derive(Debug)]
pub struct Clocks {
    agents: Vec<Mutex<Clock>>,
    /// Restores so far.
    restores: AtomicU32,
}

impl Clocks {
    pub fn new(agents: usize) -> Self {
        Clocks { agents: (0..agents).map(|_| Mutex::default()).collect(), restores: AtomicU32::new(0) }
    }

    fn of(&self, agent: AgentIndex) -> Result<&Mutex<Clock>, DeviceError> {
        self.agents.get(agent.at()).ok_or(DeviceError::Absent { what: "the agent's clock" })
    }

    /// Before a checkpoint: nothing runs that notes times.
    pub fn pause(&self, on: &Device, registry: &Registry) {
        self.compare_all(on);
        let now = now();
        for (_, signal) in registry.signals.iter() {
            let Some(live) = &signal.live else { continue };
            let (start, end) = live.raw_timestamps();
            let mut noted = live.stamps.lock();
            // What was noted before is of an earlier era.
            if (noted.start, noted.end) != (start, end) {
                *noted = Stamps::of(start, end, &self.agents, now);
            }
        }
    }

    /// After the device was opened again, before anything runs on it.
    pub fn go_on(&self, on: &Device) {
        self.restores.fetch_add(1, Ordering::Relaxed);
        self.compare_all(on);
    }

    fn compare_all(&self, on: &Device) {
        for (agent, clock) in self.agents.iter().enumerate() {
            if let Err(error) = self.compare(on, AgentIndex(count(agent)), &mut clock.lock()) {
                // Of a device that is lost there is nothing to compare.
                tracing::debug!(target: "clocks", agent, %error, "a clock was not read");
            }
        }
    }

    /// Compares an agent's clock with the system's.
    fn compare(&self, on: &Device, agent: AgentIndex, clock: &mut Clock) -> Result<(), DeviceError> {
        let (reading, ahead) = read(on, agent)?;
        clock.begin(self.restores.load(Ordering::Relaxed), reading, ahead, on.counter_frequency(agent));
        Ok(())
    }

    /// The clock, compared not long ago. The caller's pass keeps restores away.
    fn compared<T>(
        &self,
        on: &Device,
        agent: AgentIndex,
        then: impl FnOnce(&mut Clock) -> T,
    ) -> Result<T, DeviceError> {
        let mut clock = self.of(agent)?.lock();
        if clock.is_old(now()) {
            self.compare(on, agent, &mut clock)?;
        }
        Ok(then(&mut clock))
    }

    /// What an agent's clock and the system's are now: ticks and nanoseconds.
    pub fn read(&self, on: &Device, agent: AgentIndex) -> Result<(u64, u64), DeviceError> {
        self.compared(on, agent, |clock| on.clocks(agent).map(|read| clock.reading(read.gpu, read.system)))?
    }

    /// The ticks of what the agent's counter said: at a time of which nothing more is known.
    pub fn ticks(&self, on: &Device, agent: AgentIndex, counter: u64) -> Result<u64, DeviceError> {
        self.compared(on, agent, |clock| clock.ticks(counter, now()))
    }

    /// The system's time of a tick.
    pub fn time(&self, on: &Device, agent: AgentIndex, ticks: u64) -> Result<u64, DeviceError> {
        self.compared(on, agent, |clock| clock.time(ticks))
    }

    /// Ticks in a second.
    pub fn frequency(&self, on: &Device, agent: AgentIndex) -> Result<u64, DeviceError> {
        self.compared(on, agent, |clock| clock.frequency())
    }

    /// Ticks at the start and the end of the last packet of this agent that completed a signal, as `then` has them of the clock.
    pub fn timestamps<T>(
        &self,
        on: &Device,
        agent: AgentIndex,
        signal: &SignalLive,
        then: impl Fn(&Clock, u64) -> T,
    ) -> Result<(T, T), DeviceError> {
        let (start, end) = signal.raw_timestamps();
        let noted = signal.stamps.lock().by(agent);
        self.compared(on, agent, |clock| {
            let now = now();
            let ticks = |counter: u64, which: usize| match (counter, noted.map(|both| both[which])) {
                (0, _) => 0,
                (_, Some(noted)) if noted.counter == counter => noted.ticks,
                _ => clock.ticks(counter, now),
            };
            (then(clock, ticks(start, 0)), then(clock, ticks(end, 1)))
        })
    }
}

impl Stamps {
    /// What agents' counters said, in the ticks of these clocks at the system's time `now`.
    fn of(start: u64, end: u64, clocks: &[Mutex<Clock>], now: u64) -> Self {
        let ticks = |clock: &Mutex<Clock>| {
            let clock = clock.lock();
            (clock.ticks(start, now), clock.ticks(end, now))
        };
        let has_times = (start, end) != (0, 0);
        Self { start, end, ticks: clocks.iter().filter(|_| has_times).map(ticks).collect() }
    }

    /// The start and the end by an agent's clock.
    fn by(&self, agent: AgentIndex) -> Option<[Stamp; 2]> {
        let (start, end) = *self.ticks.get(agent.at())?;
        Some([Stamp { counter: self.start, ticks: start }, Stamp { counter: self.end, ticks: end }])
    }
}

/// The quickest of several readings, and how far the process's clock is ahead of the driver's, nanoseconds: that of a process
/// with time of its own.
fn read(on: &Device, agent: AgentIndex) -> Result<(Reading, i64), DeviceError> {
    let one = || -> Result<(Reading, i64), DeviceError> {
        let before = now();
        let ClockCounters { gpu, system, .. } = on.clocks(agent)?;
        let after = now();
        let took = after.saturating_sub(before);
        let middle = (before + took / 2).wrapping_sub(system).cast_signed();
        let ahead = if (before..=after).contains(&system) { 0 } else { middle };
        Ok((Reading { counter: gpu, system: system.saturating_add_signed(ahead), unsure: took }, ahead))
    };
    let (mut best, mut ahead) = one()?;
    for readings in 1..MOST_READINGS {
        if readings >= READINGS && best.unsure < QUICK {
            break;
        }
        let another = one()?;
        if another.0.unsure < best.unsure {
            (best, ahead) = another;
        }
    }
    Ok((best, ahead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_signal_stay_when_their_era_is_forgotten() {
        let (clocks, agent) = ([Mutex::new(Clock::default())], AgentIndex(0));
        let begin = |restores: u32, counter| {
            let system = (u64::from(restores) + 1) * SYSTEM_FREQUENCY;
            clocks[0].lock().begin(
                restores,
                Reading { counter, system, unsure: 0 },
                counter.cast_signed(),
                Some(1_000_000),
            );
            system
        };
        let now = begin(0, 7_000_000_000);
        let noted = Stamps::of(7_000_000_500, 7_000_000_900, &clocks, now);
        let found = noted.by(agent);
        let stamp = |counter| Stamp { counter, ticks: counter };
        assert_eq!(found, Some([stamp(7_000_000_500), stamp(7_000_000_900)]));
        // Each time on a machine that was started a little later.
        let mut latest = now;
        for restores in 1..200 {
            latest = begin(restores, 6_900_000_000 - u64::from(restores) * 10_000_000);
        }
        assert_eq!(noted.by(agent), found);
        assert_ne!(
            clocks[0].lock().ticks(7_000_000_500, latest),
            7_000_000_500,
            "the clock has forgotten it"
        );
        let none = Stamps::of(0, 0, &clocks, now);
        assert_eq!(none.by(agent), None);
    }
}
