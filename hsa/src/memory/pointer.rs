// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an address is.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering;

use queues::words::{count, size};

use super::{Block, Origin, address_of, pointer_to};
use crate::abi::declared::*;
use crate::abi::{INVALID_ARGUMENT, OUT_OF_RESOURCES, Outcome, export};
use crate::agents::Agents;
use crate::instance::{Instance, instance};

/// What is said of an address: without the struct's size.
fn describe(instance: &Instance, address: u64) -> hsa_amd_pointer_info_t {
    let locked = || instance.memory.find_locked(address);
    let Some((block, _)) = instance.memory.find(address).or_else(locked) else {
        return hsa_amd_pointer_info_t { type_: HSA_EXT_POINTER_TYPE_UNKNOWN, ..empty() };
    };
    let base = pointer_to(block.base());
    let (type_, host, owner, flags) = match block.origin {
        Origin::Pool(pool) => {
            let host = if block.is_visible(instance) { base } else { null_mut() };
            (HSA_EXT_POINTER_TYPE_HSA, host, Agents::handle(pool.agent), pool.place.flags())
        }
        Origin::Locked(address) => {
            let flags = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
            (HSA_EXT_POINTER_TYPE_LOCKED, pointer_to(address), instance.agents.host(), flags)
        }
        Origin::Code(agent) => {
            let host = if block.is_visible(instance) { base } else { null_mut() };
            let flags = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
            (HSA_EXT_POINTER_TYPE_HSA, host, Agents::handle(agent), flags)
        }
        Origin::Reserved => {
            let flags = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
            (HSA_EXT_POINTER_TYPE_HSA, base, owner_of(instance, &block), flags)
        }
        Origin::Imported | Origin::Attached => {
            let host = if block.is_visible(instance) { base } else { null_mut() };
            (
                HSA_EXT_POINTER_TYPE_IPC,
                host,
                owner_of(instance, &block),
                HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED,
            )
        }
    };
    hsa_amd_pointer_info_t {
        type_,
        agentBaseAddress: base,
        hostBaseAddress: host,
        sizeInBytes: size(block.bytes()),
        userData: block.user_data.load(Ordering::Acquire),
        agentOwner: owner,
        global_flags: flags,
        ..empty()
    }
}

fn empty() -> hsa_amd_pointer_info_t {
    hsa_amd_pointer_info_t {
        size: 0,
        type_: HSA_EXT_POINTER_TYPE_UNKNOWN,
        agentBaseAddress: null_mut(),
        hostBaseAddress: null_mut(),
        sizeInBytes: 0,
        userData: null_mut(),
        agentOwner: hsa_agent_t { handle: 0 },
        global_flags: 0,
    }
}

fn owner_of(instance: &Instance, block: &Block) -> hsa_agent_t {
    let info = instance.runtime.pointer_info(block.base());
    let owner = info.and_then(|info| info.owner);
    owner.map_or_else(|| instance.agents.host(), |gpu| instance.agents.handle_of_gpu(gpu))
}

/// The GPUs that may access an address.
fn accessible(instance: &Instance, address: u64) -> Vec<hsa_agent_t> {
    let Some((block, _)) = instance.memory.reach(address, 1) else { return Vec::new() };
    let Some(info) = instance.runtime.pointer_info(block.base()) else {
        // The program's own memory that is shared where it is.
        let can = |gpu: &&stasis::Agent| instance.runtime.svm_lets(gpu, block.base(), block.bytes());
        let gpus = instance.agents.gpus().filter(can);
        return gpus.map(|gpu| instance.agents.handle_of_gpu(gpu.index())).collect();
    };
    info.access.iter().map(|(gpu, _)| instance.agents.handle_of_gpu(*gpu)).collect()
}

type Alloc = Option<unsafe extern "C" fn(usize) -> *mut c_void>;

/// Puts the list of agents into memory that the program's function allocates.
///
/// # Safety
/// Pointers are null or the program's, as the header says.
unsafe fn put_accessible(
    agents: &[hsa_agent_t],
    alloc: Alloc,
    number: *mut u32,
    accessible: *mut *mut hsa_agent_t,
) -> Outcome {
    let (Some(alloc), Some(number), Some(accessible)) =
        (alloc, NonNull::new(number), NonNull::new(accessible))
    else {
        return Ok(());
    };
    // SAFETY: the program's function.
    let memory = unsafe { alloc(size_of_val(agents).max(1)) }.cast::<hsa_agent_t>();
    if memory.is_null() {
        return Err(OUT_OF_RESOURCES);
    }
    for (nth, agent) in agents.iter().enumerate() {
        // SAFETY: as long as was asked for.
        unsafe { memory.add(nth).write_unaligned(*agent) };
    }
    // SAFETY: not null, and the caller's.
    unsafe { number.write_unaligned(count(agents.len())) };
    // SAFETY: as above.
    unsafe { accessible.write_unaligned(memory) };
    Ok(())
}

export! {
    /// What an address is, and who may access it.
    fn hsa_amd_pointer_info(
        ptr: *const c_void,
        info: *mut hsa_amd_pointer_info_t,
        alloc: Alloc,
        num_agents_accessible: *mut u32,
        accessible_agents: *mut *mut hsa_agent_t,
    ) {
        let instance = instance()?;
        let info = NonNull::new(info).filter(|_| !ptr.is_null()).ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's, by the header; the first field says how long the struct is.
        let wanted = unsafe { info.cast::<u32>().read_unaligned() };
        if wanted == 0 {
            return Err(INVALID_ARGUMENT);
        }
        let address = address_of(ptr);
        let bytes = (wanted as usize).min(size_of::<hsa_amd_pointer_info_t>());
        let described = hsa_amd_pointer_info_t { size: count(bytes), ..describe(instance, address) };
        // SAFETY: the caller's struct has as many bytes as it says.
        unsafe { info.cast::<u8>().as_ptr().copy_from_nonoverlapping((&raw const described).cast(), bytes) };
        let agents = accessible(instance, address);
        // SAFETY: the caller's, by the header.
        unsafe { put_accessible(&agents, alloc, num_agents_accessible, accessible_agents) }
    }

    /// Keeps a pointer of the program's beside memory.
    fn hsa_amd_pointer_info_set_userdata(ptr: *const c_void, userdata: *mut c_void) {
        let instance = instance()?;
        if ptr.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let (block, _) = instance.memory.reach(address_of(ptr), 1).ok_or(INVALID_ARGUMENT)?;
        block.user_data.store(userdata, Ordering::Release);
        Ok(())
    }
}
