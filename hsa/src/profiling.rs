// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time: the system's clock, agents' clocks in terms of it, and when packets and copies ran.
#![allow(unsafe_code)]

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use stasis::Runtime;

use crate::abi::declared::*;
use crate::abi::{ERROR, INVALID_SIGNAL, NOT_SUPPORTED, Out, Outcome, export};
use crate::instance::{Instance, instance};
use crate::system::SYSTEM_FREQUENCY;

/// Ticks of an agent's clock in a second: of all since gfx9 but the oldest, for which it is measured.
const USUAL_FREQUENCY: u64 = 100_000_000;
/// Nanoseconds that two readings must be apart to tell another frequency, and what they tell is rounded to.
const APART: u64 = 100_000_000;
const GRAIN: u64 = 1_000_000;
/// Nanoseconds after which the two clocks are compared anew: crystals differ.
const COMPARED_FOR: u64 = 1_000_000_000;

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
            // The clock has gone back: after a restore on another agent.
            return Self { anchor: now, frequency };
        };
        if time < COMPARED_FOR {
            return self;
        }
        Self { anchor: now, frequency: measured(ticks, time).unwrap_or(frequency) }
    }
}

/// Every agent's clock.
#[derive(Debug)]
pub struct Clocks(Vec<Mutex<Option<Relation>>>);

impl Clocks {
    pub fn new(runtime: &Runtime) -> Self {
        let relation = |anchor| Relation { anchor, frequency: USUAL_FREQUENCY };
        Clocks(runtime.agents().iter().map(|agent| Mutex::new(read(agent).map(relation))).collect())
    }

    /// How an agent's clock stands to the system's now. Calls that are close together give the same relation, so that what they
    /// convert is in the order of the ticks.
    fn relation(&self, agent: &stasis::Agent) -> Option<Relation> {
        let mut known = self.0.get(agent.index())?.lock();
        let now = read(agent)?;
        let relation =
            known.map_or(Relation { anchor: now, frequency: USUAL_FREQUENCY }, |known| known.after(now));
        *known = Some(relation);
        Some(relation)
    }

    /// Ticks of an agent's clock in a second.
    pub fn frequency(&self, gpu: usize) -> u64 {
        let known = self.0.get(gpu).and_then(|relation| *relation.lock());
        known.map_or(USUAL_FREQUENCY, |relation| relation.frequency)
    }
}

fn read(agent: &stasis::Agent) -> Option<Reading> {
    let clocks = agent.clocks().ok()?;
    Some(Reading { agent: clocks.gpu, system: clocks.system })
}

/// The frequency that ticks and nanoseconds between two readings tell, if they tell one.
fn measured(ticks: u64, nanoseconds: u64) -> Option<u64> {
    let exact = u128::from(ticks) * u128::from(SYSTEM_FREQUENCY) / u128::from(nanoseconds.max(1));
    let exact = u64::try_from(exact).ok()?;
    let rounded = (exact + GRAIN / 2) / GRAIN * GRAIN;
    (nanoseconds >= APART && rounded > 0).then_some(rounded)
}

/// The system's times of a signal's last packet.
fn times(instance: &Instance, agent: &stasis::Agent, signal: hsa_signal_t) -> Outcome<(u64, u64)> {
    let slot = instance.signals.slot(signal.handle).ok_or(INVALID_SIGNAL)?;
    let (start, end) = slot.timestamps();
    let relation = instance.clocks.relation(agent).ok_or(ERROR)?;
    Ok((relation.convert(start), relation.convert(end)))
}

export! {
    /// When the packet ran whose completion a signal tells.
    fn hsa_amd_profiling_get_dispatch_time(
        agent: hsa_agent_t,
        signal: hsa_signal_t,
        time: *mut hsa_amd_profiling_dispatch_time_t,
    ) {
        let instance = instance()?;
        let agent = instance.agents.gpu(agent)?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(time) }?;
        let (start, end) = times(instance, agent, signal)?;
        out.put(hsa_amd_profiling_dispatch_time_t { start, end });
        Ok(())
    }

    /// Says whether copies note their times: they do in any case.
    fn hsa_amd_profiling_async_copy_enable(_enable: bool) {
        instance().map(drop)
    }

    /// When the copy ran whose completion a signal tells.
    fn hsa_amd_profiling_get_async_copy_time(
        signal: hsa_signal_t,
        time: *mut hsa_amd_profiling_async_copy_time_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(time) }?;
        // Copy engines of all GPUs count alike from the same moment on the software device, and to the tick on hardware.
        let agent = instance.agents.gpus().next().ok_or(INVALID_SIGNAL)?;
        let (start, end) = times(instance, agent, signal)?;
        out.put(hsa_amd_profiling_async_copy_time_t { start, end });
        Ok(())
    }

    /// The system's time of a tick of an agent's clock.
    fn hsa_amd_profiling_convert_tick_to_system_domain(
        agent: hsa_agent_t,
        agent_tick: u64,
        system_tick: *mut u64,
    ) {
        let instance = instance()?;
        let agent = instance.agents.gpu(agent)?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(system_tick) }?;
        out.put(instance.clocks.relation(agent).ok_or(ERROR)?.convert(agent_tick));
        Ok(())
    }

    /// Performance counters in a stream: not offered.
    fn hsa_amd_spm_acquire(preferred_agent: hsa_agent_t) {
        instance()?.agents.gpu(preferred_agent)?;
        Err(NOT_SUPPORTED)
    }

    /// Ends what `hsa_amd_spm_acquire` began.
    fn hsa_amd_spm_release(preferred_agent: hsa_agent_t) {
        instance()?.agents.gpu(preferred_agent)?;
        Err(NOT_SUPPORTED)
    }

    /// Where performance counters go.
    fn hsa_amd_spm_set_dest_buffer(
        preferred_agent: hsa_agent_t,
        _size_in_bytes: usize,
        _timeout: *mut u32,
        _size_copied: *mut u32,
        _dest: *mut std::ffi::c_void,
        _is_data_loss: *mut bool,
    ) {
        instance()?.agents.gpu(preferred_agent)?;
        Err(NOT_SUPPORTED)
    }
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
    fn other_frequency_is_measured_and_a_clock_that_went_back_begins_anew() {
        let relation = Relation { anchor: Reading { agent: 0, system: 0 }, frequency: USUAL_FREQUENCY };
        let measured = relation.after(Reading { agent: 50_003_000, system: 2 * SECOND });
        assert_eq!((measured.frequency, measured.convert(50_003_000)), (25_000_000, 2 * SECOND));
        let restored = measured.after(Reading { agent: 7, system: 3 * SECOND });
        assert_eq!((restored.frequency, restored.convert(7)), (25_000_000, 3 * SECOND));
    }
}
