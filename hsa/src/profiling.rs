// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time: the system's clock, agents' clocks in terms of it, and when packets and copies ran.
#![allow(unsafe_code)]

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use stasis::Runtime;

use crate::abi::declared::*;
use crate::abi::{INVALID_SIGNAL, Out, Outcome, export};
use crate::instance::{Instance, instance};
use crate::system::SYSTEM_FREQUENCY;

/// Ticks of an agent's clock in a second where two readings are too close to tell.
const USUAL_FREQUENCY: u64 = 100_000_000;
/// Nanoseconds that two readings must be apart to tell the frequency.
const APART: u64 = 1_000_000;

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

/// Every agent's clock, as first read.
#[derive(Debug)]
pub struct Clocks {
    first: Vec<Mutex<Option<Reading>>>,
}

impl Clocks {
    pub fn new(runtime: &Runtime) -> Self {
        Clocks { first: runtime.agents().iter().map(|agent| Mutex::new(read(agent))).collect() }
    }

    /// The first reading of an agent's clock, and one of now. The first is taken anew where the clock has gone back: after a restore on
    /// another agent.
    fn pair(&self, agent: &stasis::Agent) -> Option<(Reading, Reading)> {
        let now = read(agent)?;
        let mut first = self.first.get(agent.index())?.lock();
        match *first {
            Some(first) if first.agent <= now.agent && first.system <= now.system => Some((first, now)),
            _ => {
                *first = Some(now);
                Some((now, now))
            }
        }
    }

    /// Ticks of an agent's clock in a second.
    pub fn frequency(&self, gpu: usize) -> u64 {
        let Ok(instance) = instance() else { return USUAL_FREQUENCY };
        let agent = instance.runtime.agent(gpu);
        let pair = agent.and_then(|agent| self.pair(&agent));
        pair.map_or(USUAL_FREQUENCY, |(first, now)| frequency(first, now))
    }

    /// The system's time of a tick of an agent's clock.
    fn convert(&self, agent: &stasis::Agent, ticks: u64) -> u64 {
        let Some((first, now)) = self.pair(agent) else { return 0 };
        let frequency = i128::from(frequency(first, now));
        let distance = i128::from(ticks) - i128::from(now.agent);
        let time = i128::from(now.system) + distance * i128::from(SYSTEM_FREQUENCY) / frequency;
        u64::try_from(time).unwrap_or(0)
    }
}

fn read(agent: &stasis::Agent) -> Option<Reading> {
    let clocks = agent.clocks().ok()?;
    Some(Reading { agent: clocks.gpu, system: clocks.system })
}

/// The frequency that two readings tell, as AMD's clocks have them: whole hundredths of a megahertz.
fn frequency(first: Reading, now: Reading) -> u64 {
    const GRAIN: u64 = 10_000;
    let (ticks, nanoseconds) = (now.agent - first.agent, now.system - first.system);
    if nanoseconds < APART {
        return USUAL_FREQUENCY;
    }
    let exact = u128::from(ticks) * u128::from(SYSTEM_FREQUENCY) / u128::from(nanoseconds);
    let exact = u64::try_from(exact).unwrap_or(USUAL_FREQUENCY);
    ((exact + GRAIN / 2) / GRAIN * GRAIN).max(GRAIN)
}

/// The system's times of a signal's last packet.
fn times(instance: &Instance, agent: &stasis::Agent, signal: hsa_signal_t) -> Outcome<(u64, u64)> {
    let slot = instance.signals.slot(signal.handle).ok_or(INVALID_SIGNAL)?;
    let (start, end) = slot.timestamps();
    Ok((instance.clocks.convert(agent, start), instance.clocks.convert(agent, end)))
}

export! {
    /// When the packet ran whose completion a signal tells.
    fn hsa_amd_profiling_get_dispatch_time(
        agent: hsa_agent_t,
        signal: hsa_signal_t,
        time: *mut hsa_amd_profiling_dispatch_time_t,
    ) {
        let instance = instance()?;
        let agent = instance.agents.get(agent)?.gpu()?;
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
        let agent = instance.agents.get(agent)?.gpu()?;
        // SAFETY: the caller's, by the header.
        unsafe { Out::new(system_tick) }?.put(instance.clocks.convert(agent, agent_tick));
        Ok(())
    }

    /// Performance counters in a stream: not offered.
    fn hsa_amd_spm_acquire(preferred_agent: hsa_agent_t) {
        instance()?.agents.get(preferred_agent)?.gpu()?;
        Err(crate::abi::NOT_SUPPORTED)
    }

    /// Ends what `hsa_amd_spm_acquire` began.
    fn hsa_amd_spm_release(preferred_agent: hsa_agent_t) {
        instance()?.agents.get(preferred_agent)?.gpu()?;
        Err(crate::abi::NOT_SUPPORTED)
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
        instance()?.agents.get(preferred_agent)?.gpu()?;
        Err(crate::abi::NOT_SUPPORTED)
    }
}
