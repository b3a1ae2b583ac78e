// SPDX-License-Identifier: MIT OR Apache-2.0
//! When packets and copies ran.
#![allow(unsafe_code)]

use crate::abi::declared::*;
use crate::abi::{INVALID_SIGNAL, NOT_SUPPORTED, Out, Outcome, export};
use crate::instance::{Instance, instance};
use crate::memory::status_of;
use crate::signals::Signal;

/// The system's times of a signal's last packet, which ran on `agent`.
fn times(agent: &stasis::Agent, signal: &Signal) -> Outcome<(u64, u64)> {
    signal.of_runtime().system_times(agent).map_err(status_of)
}

fn signal_of(instance: &Instance, signal: hsa_signal_t) -> Outcome<Signal> {
    instance.signals.get(signal.handle).ok_or(INVALID_SIGNAL)
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
        let (start, end) = times(agent, &signal_of(instance, signal)?)?;
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
        let signal = signal_of(instance, signal)?;
        let mover = signal.copied_by();
        let agent = instance.agents.gpus().find(|agent| Some(agent.index()) == mover).ok_or(INVALID_SIGNAL)?;
        let (start, end) = times(agent, &signal)?;
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
        let ticks = agent.ticks_of_counter(agent_tick).map_err(status_of)?;
        out.put(agent.system_time(ticks).map_err(status_of)?);
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
