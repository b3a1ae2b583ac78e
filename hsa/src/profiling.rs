// SPDX-License-Identifier: MIT OR Apache-2.0
//! When packets and copies ran.
#![allow(unsafe_code)]

use crate::abi::declared::*;
use crate::abi::{ERROR, INVALID_SIGNAL, NOT_SUPPORTED, Out, Outcome, export};
use crate::instance::{Instance, instance};

/// The system's times of a signal's last packet.
fn times(instance: &Instance, agent: &stasis::Agent, signal: hsa_signal_t) -> Outcome<(u64, u64)> {
    let slot = instance.signals.slot(signal.handle).ok_or(INVALID_SIGNAL)?;
    let (start, end) = slot.timestamps();
    let clock = |ticks| instance.clocks.convert(agent, ticks).ok_or(ERROR);
    Ok((clock(start)?, clock(end)?))
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
        out.put(instance.clocks.convert(agent, agent_tick).ok_or(ERROR)?);
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
