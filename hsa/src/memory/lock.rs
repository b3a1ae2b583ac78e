// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locking: memory of the program's own, made reachable for agents.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use stasis::svm::{SvmAttribute, SvmUse};

use super::{Block, Locked, PAGE, address_of, agents_of, pointer_to, status_of, svm};
use crate::abi::declared::*;
use crate::abi::{INVALID_ALLOCATION, INVALID_ARGUMENT, Out, Outcome, export, slice};
use crate::instance::{Instance, instance};
use crate::pools::Pool;

/// Locks a range; its address for agents.
fn lock(instance: &Instance, address: u64, bytes: u64, agents: &[&stasis::Agent]) -> Outcome<u64> {
    // What an agent reaches already is locked, as AMD's runtime answers with the same address.
    if let Some((block, offset)) = instance.memory.find(address) {
        let is_inside = bytes <= block.bytes() - offset;
        return if is_inside { Ok(address) } else { Err(INVALID_ALLOCATION) };
    }
    let end = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE));
    let (start, end) = (address & !(PAGE - 1), end.ok_or(INVALID_ARGUMENT)?);
    let mut locks = instance.memory.locks.lock();
    let all: Vec<_> = instance.agents.gpus().collect();
    let agents = if agents.is_empty() { &all } else { agents };
    if instance.runtime.has_svm() {
        let given = give(instance, start..end, agents)?;
        let locked = locks.entry(start).or_default();
        locked.given.extend(given);
        locked.count += 1;
        if locked.blocks.iter().all(|block| block.bytes() < end - start) {
            locked.blocks.push(Arc::new(Block::shared(start, end - start)));
        }
        return Ok(address);
    }
    if let Some(Locked { blocks, count, .. }) = locks.get_mut(&start)
        && let Some(block) = blocks.iter().find(|block| block.bytes() >= end - start)
    {
        for agent in agents {
            block.buffer()?.allow(agent).map_err(status_of)?;
        }
        *count += 1;
        return Ok(block.base() + (address - start));
    }
    let pages = pointer_to(start).cast::<u8>();
    // SAFETY: the program says that the memory is its own and stays until it is unlocked (`hsa_amd_memory_lock`).
    let registered = unsafe { instance.runtime.register(pages, end - start, agents) };
    let block = instance.memory.add(Block::locked(registered.map_err(status_of)?));
    let base = block.base();
    let locked = locks.entry(start).or_default();
    locked.blocks.push(block);
    locked.count += 1;
    Ok(base + (address - start))
}

/// Has agents use the program's own memory where it is; what takes away again what they could not do before.
fn give(instance: &Instance, pages: Range<u64>, agents: &[&stasis::Agent]) -> Outcome<Vec<SvmAttribute>> {
    let (start, bytes) = (pages.start, pages.end - pages.start);
    let found = instance.runtime.svm(start, bytes).map_err(svm::refused)?;
    // The driver does not count pages for which nothing was set, and alone knows which ones were unmapped since.
    let could = |agent: &stasis::Agent| {
        let how = found.uses.get(agent.index());
        how.is_some_and(|how| *how != SvmUse::No) && instance.runtime.svm_lets(agent, start, bytes)
    };
    let new = agents.iter().filter(|agent| !could(agent)).map(|agent| agent.svm_access(SvmUse::No)).collect();
    let access: Vec<_> = agents.iter().map(|agent| agent.svm_access(SvmUse::InPlace)).collect();
    // SAFETY: as in `lock`.
    unsafe { instance.runtime.set_svm(start, bytes, &access) }.map_err(svm::refused)?;
    Ok(new)
}

/// Takes away what locks have given, where no other lock is.
fn take(instance: &Instance, locks: &BTreeMap<u64, Locked>, ended: &Locked) {
    let blocks = |locked: &Locked| -> Vec<Range<u64>> {
        locked.blocks.iter().map(|block| block.base()..block.base() + block.bytes()).collect()
    };
    let Some(longest) = blocks(ended).pop() else { return };
    let mut at = longest.start;
    // In the order of their starts.
    for other in locks.values().flat_map(blocks).chain(std::iter::once(longest.end..longest.end)) {
        let gap = at..other.start.min(longest.end);
        if !gap.is_empty() {
            // SAFETY: access is taken, none is given.
            let taken = unsafe { instance.runtime.set_svm(gap.start, gap.end - gap.start, &ended.given) };
            if let Err(error) = taken {
                // The program may have unmapped it before.
                tracing::debug!(target: "hsa", error = %stasis::explain(&error), "unlocked memory stays shared");
            }
        }
        at = at.max(other.end);
    }
}

/// Takes a lock back whose first page this address is in. Which of several that begin there, nobody says: all end with the last.
fn unlock(instance: &Instance, address: u64) -> Outcome {
    let mut locks = instance.memory.locks.lock();
    let start = address & !(PAGE - 1);
    let Some(locked) = locks.get_mut(&start) else {
        // Memory that needed no lock may be unlocked.
        return if instance.memory.find(address).is_some() { Ok(()) } else { Err(INVALID_ARGUMENT) };
    };
    locked.count -= 1;
    if locked.count > 0 {
        return Ok(());
    }
    let Some(ended) = locks.remove(&start) else { return Ok(()) };
    if !ended.given.is_empty() {
        take(instance, &locks, &ended);
    }
    for block in ended.blocks.iter().filter(|block| block.buffer().is_ok()) {
        instance.memory.blocks.write().remove(&block.base());
        if let Err(error) = block.buffer()?.free() {
            tracing::debug!(target: "hsa", error = %stasis::explain(&error), "locked memory is released later");
        }
    }
    Ok(())
}

/// Locks a range for agents of a list, in a pool of the host if one is named; puts its address for them.
///
/// # Safety
/// Pointers are null or the program's, as the header says.
unsafe fn lock_for(
    instance: &Instance,
    (host_ptr, size): (*mut c_void, usize),
    (agents, count): (*mut hsa_agent_t, c_int),
    pool: Option<hsa_amd_memory_pool_t>,
    agent_ptr: *mut *mut c_void,
) -> Outcome {
    // SAFETY: by contract.
    let out = unsafe { Out::new(agent_ptr) }?;
    out.put(std::ptr::null_mut());
    if host_ptr.is_null() || size == 0 || (agents.is_null() != (count == 0)) {
        return Err(INVALID_ARGUMENT);
    }
    if let Some(pool) = pool
        && !Pool::find(instance, pool)?.place.is_host()
    {
        return Err(INVALID_ARGUMENT);
    }
    let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
    // SAFETY: by contract.
    let agents = agents_of(instance, unsafe { slice(agents.cast_const(), count) }?)?;
    out.put(pointer_to(lock(instance, address_of(host_ptr), size as u64, &agents)?));
    Ok(())
}

export! {
    /// Lets agents, or all if none are named, access memory of the program's own.
    fn hsa_amd_memory_lock(
        host_ptr: *mut c_void,
        size: usize,
        agents: *mut hsa_agent_t,
        num_agent: c_int,
        agent_ptr: *mut *mut c_void,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        unsafe { lock_for(instance, (host_ptr, size), (agents, num_agent), None, agent_ptr) }
    }

    /// The same with a pool of the host whose kind of coherence it is to have.
    fn hsa_amd_memory_lock_to_pool(
        host_ptr: *mut c_void,
        size: usize,
        agents: *mut hsa_agent_t,
        num_agent: c_int,
        pool: hsa_amd_memory_pool_t,
        _flags: u32,
        agent_ptr: *mut *mut c_void,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        unsafe { lock_for(instance, (host_ptr, size), (agents, num_agent), Some(pool), agent_ptr) }
    }

    /// Takes a lock back.
    fn hsa_amd_memory_unlock(host_ptr: *mut c_void) {
        let instance = instance()?;
        if host_ptr.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        unlock(instance, address_of(host_ptr))
    }
}
