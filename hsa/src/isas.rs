// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instruction sets: of each GPU the one of its processor; and their wavefronts.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};

use queues::words::count;

use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_ARGUMENT, Out, Outcome, Status, each, export, string};
use crate::agents::{Device, MAX_FBARRIERS, MAX_WORKGROUP};
use crate::handles::{Kind, fixed, number};
use crate::instance::{Instance, instance};

const INVALID_ISA: Status = Status(HSA_STATUS_ERROR_INVALID_ISA);
/// Wave sizes that an instruction set may have, of which handles are made.
const SIZES: usize = 4;
const PREFIX: &str = "amdgcn-amd-amdhsa--";

/// The name of a GPU's instruction set, its settings included.
fn name(agent: &stasis::Agent) -> String {
    let target = agent.target();
    let mut name = format!("{PREFIX}{}", target.name);
    let setting = |enabled: bool| if enabled { '+' } else { '-' };
    if target.sramecc {
        // Bit 26 of a node's capability (`kfd_sysfs.h`: HSA_CAP_SRAM_EDCSUPPORTED).
        let enabled = agent.node().properties.capability & 1 << 26 != 0;
        name.push_str(&format!(":sramecc{}", setting(enabled)));
    }
    if target.xnack {
        name.push_str(":xnack-");
    }
    name
}

fn handle(index: usize) -> hsa_isa_t {
    hsa_isa_t { handle: fixed(Kind::Isa, count(index)) }
}

/// The GPU whose instruction set a handle names.
fn find(instance: &Instance, isa: hsa_isa_t) -> Outcome<&stasis::Agent> {
    let index = number(Kind::Isa, isa.handle).ok_or(INVALID_ISA)?;
    instance.agents.at(index).and_then(|device| device.gpu().ok()).ok_or(INVALID_ISA)
}

/// The instruction set of a GPU.
///
/// # Errors
/// [`INVALID_AGENT`].
pub fn first_of(instance: &Instance, agent: &stasis::Agent) -> Outcome<hsa_isa_t> {
    let handle_of = instance.agents.handle_of_gpu(agent.index());
    Ok(handle(instance.agents.index(handle_of)?))
}

fn put_attribute(agent: &stasis::Agent, attribute: hsa_isa_info_t, answer: Answer) -> Outcome {
    let target = agent.target();
    match attribute {
        HSA_ISA_INFO_NAME_LENGTH => answer.put(count(name(agent).len() + 1)),
        HSA_ISA_INFO_NAME => {
            let mut bytes = name(agent).into_bytes();
            bytes.push(0);
            answer.bytes(&bytes)
        }
        HSA_ISA_INFO_CALL_CONVENTION_COUNT => answer.put(1_u32),
        HSA_ISA_INFO_CALL_CONVENTION_INFO_WAVEFRONT_SIZE => answer.put(target.wave_front_size()),
        HSA_ISA_INFO_CALL_CONVENTION_INFO_WAVEFRONTS_PER_COMPUTE_UNIT => {
            let properties = &agent.node().properties;
            answer.put(properties.simd_per_cu * properties.max_waves_per_simd)
        }
        HSA_ISA_INFO_MACHINE_MODELS => answer.put([false, true]),
        HSA_ISA_INFO_PROFILES => answer.put([true, false]),
        HSA_ISA_INFO_DEFAULT_FLOAT_ROUNDING_MODES
        | HSA_ISA_INFO_BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES => answer.put([false, false, true]),
        HSA_ISA_INFO_FAST_F16_OPERATION => answer.put(true),
        HSA_ISA_INFO_WORKGROUP_MAX_DIM => answer.put([MAX_WORKGROUP; 3]),
        HSA_ISA_INFO_WORKGROUP_MAX_SIZE => answer.put(u32::from(MAX_WORKGROUP)),
        HSA_ISA_INFO_GRID_MAX_DIM => answer.put([u32::MAX; 3]),
        HSA_ISA_INFO_GRID_MAX_SIZE => answer.put(u64::MAX),
        HSA_ISA_INFO_FBARRIER_MAX_SIZE => answer.put(MAX_FBARRIERS),
        _ => Err(INVALID_ARGUMENT),
    }
}

export! {
    /// Calls back for every instruction set of an agent.
    fn hsa_agent_iterate_isas(
        agent: hsa_agent_t,
        callback: Option<unsafe extern "C" fn(hsa_isa_t, *mut c_void) -> hsa_status_t>,
        data: *mut c_void,
    ) {
        let instance = instance()?;
        let index = instance.agents.index(agent)?;
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        let is_gpu = matches!(instance.agents.at(index), Some(Device::Gpu(_)));
        // SAFETY: the caller's function, with the caller's data.
        each(is_gpu.then(|| handle(index)), |isa| unsafe { callback(isa, data) })
    }

    /// The instruction set of a name.
    fn hsa_isa_from_name(text: *const c_char, isa: *mut hsa_isa_t) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let (text, out) = unsafe { (string(text)?, Out::new(isa)?) };
        let of_name = |index: &usize| {
            instance.agents.at(*index).and_then(|device| device.gpu().ok()).is_some_and(|gpu| name(gpu) == text)
        };
        let found = (0..instance.agents.len()).find(of_name);
        out.put(handle(found.ok_or(Status(HSA_STATUS_ERROR_INVALID_ISA_NAME))?));
        Ok(())
    }

    /// An attribute of an instruction set.
    fn hsa_isa_get_info_alt(isa: hsa_isa_t, attribute: hsa_isa_info_t, value: *mut c_void) {
        let instance = instance()?;
        let agent = find(instance, isa)?;
        // SAFETY: the caller's, by the header.
        put_attribute(agent, attribute, unsafe { Answer::new(value) }?)
    }

    /// The same by the old function; of the one call convention there is.
    fn hsa_isa_get_info(isa: hsa_isa_t, attribute: hsa_isa_info_t, index: u32, value: *mut c_void) {
        let instance = instance()?;
        let agent = find(instance, isa)?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        if index != 0 {
            return Err(Status(HSA_STATUS_ERROR_INVALID_INDEX));
        }
        put_attribute(agent, attribute, answer)
    }

    /// How exceptions may be handled: none can.
    fn hsa_isa_get_exception_policies(isa: hsa_isa_t, _profile: hsa_profile_t, mask: *mut u16) {
        find(instance()?, isa)?;
        // SAFETY: the caller's, by the header.
        unsafe { Out::new(mask) }?.put(0);
        Ok(())
    }

    /// How a kind of floating-point operation rounds.
    fn hsa_isa_get_round_method(
        isa: hsa_isa_t,
        fp_type: hsa_fp_type_t,
        flush_mode: hsa_flush_mode_t,
        round_method: *mut hsa_round_method_t,
    ) {
        find(instance()?, isa)?;
        let is_known = matches!(fp_type, HSA_FP_TYPE_16 | HSA_FP_TYPE_32 | HSA_FP_TYPE_64)
            && matches!(flush_mode, HSA_FLUSH_MODE_FTZ | HSA_FLUSH_MODE_NON_FTZ);
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(round_method) }?;
        if !is_known {
            return Err(INVALID_ARGUMENT);
        }
        out.put(HSA_ROUND_METHOD_SINGLE);
        Ok(())
    }

    /// Whether code for one instruction set runs on another.
    fn hsa_isa_compatible(code_object_isa: hsa_isa_t, agent_isa: hsa_isa_t, result: *mut bool) {
        let instance = instance()?;
        let (code, agent) = (find(instance, code_object_isa)?, find(instance, agent_isa)?);
        // SAFETY: the caller's, by the header.
        unsafe { Out::new(result) }?.put(name(code) == name(agent));
        Ok(())
    }

    /// Calls back for every wavefront of an instruction set.
    fn hsa_isa_iterate_wavefronts(
        isa: hsa_isa_t,
        callback: Option<unsafe extern "C" fn(hsa_wavefront_t, *mut c_void) -> hsa_status_t>,
        data: *mut c_void,
    ) {
        let instance = instance()?;
        let sizes = find(instance, isa)?.target().wave_sizes.len().min(SIZES);
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        let index = number(Kind::Isa, isa.handle).ok_or(INVALID_ISA)?;
        let wavefront =
            |nth: usize| hsa_wavefront_t { handle: fixed(Kind::Wavefront, count(index * SIZES + nth)) };
        // SAFETY: the caller's function, with the caller's data.
        each((0..sizes).map(wavefront), |wavefront| unsafe { callback(wavefront, data) })
    }

    /// An attribute of a wavefront.
    fn hsa_wavefront_get_info(wavefront: hsa_wavefront_t, attribute: hsa_wavefront_info_t, value: *mut c_void) {
        let instance = instance()?;
        let invalid = Status(HSA_STATUS_ERROR_INVALID_WAVEFRONT);
        let number = number(Kind::Wavefront, wavefront.handle).ok_or(invalid)?;
        let agent = find(instance, handle(number / SIZES)).map_err(|_| invalid)?;
        let size = agent.target().wave_sizes.get(number % SIZES).ok_or(invalid)?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        match attribute {
            HSA_WAVEFRONT_INFO_SIZE => answer.put(*size),
            _ => Err(INVALID_ARGUMENT),
        }
    }
}
