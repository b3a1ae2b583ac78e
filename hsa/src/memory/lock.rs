// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locking: memory of the program's own, made reachable for agents.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use stasis::svm::{SvmAttribute, SvmUse};

use super::{Block, Given, Locked, PAGE, address_of, agents_of, pointer_to, status_of, svm, whole_pages};
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
    let Range { start, end } = whole_pages(address, bytes)?;
    let mut locks = instance.memory.locks.lock();
    let all: Vec<_> = instance.agents.gpus().collect();
    let agents = if agents.is_empty() { &all } else { agents };
    if instance.runtime.has_svm() {
        let given = give(instance, &(start..end), agents)?;
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

/// Has agents use the program's own memory where it is; the parts of it that they could not use before.
fn give(instance: &Instance, pages: &Range<u64>, agents: &[&stasis::Agent]) -> Outcome<Vec<Given>> {
    let mut given = Vec::new();
    for agent in agents {
        for (part, how) in instance.runtime.svm_uses(agent, pages.start, pages.end - pages.start) {
            // What is noted is set again: other memory may be there since.
            let is_new = how == SvmUse::No;
            set(instance, &part, agent.svm_access(if is_new { SvmUse::InPlace } else { how }))?;
            if is_new {
                given.push(Given { pages: part, agent: agent.index() });
            }
        }
    }
    Ok(given)
}

/// Sets an attribute of shared memory.
fn set(instance: &Instance, pages: &Range<u64>, attribute: SvmAttribute) -> Outcome {
    // SAFETY: the program says that the memory is its own and stays until it is unlocked (`hsa_amd_memory_lock`).
    let set = unsafe { instance.runtime.set_svm(pages.start, pages.end - pages.start, &[attribute]) };
    set.map_err(svm::refused)
}

/// Takes away what an ended lock has given; where others are, it is theirs to take.
fn take(instance: &Instance, locks: &mut BTreeMap<u64, Locked>, ended: &Locked) {
    for Given { pages, agent } in &ended.given {
        let mut at = pages.start;
        for other in locks.values_mut() {
            let Some(held) = other.blocks.last().map(|block| block.base()..block.base() + block.bytes())
            else {
                continue;
            };
            let (start, end) = (held.start.max(at), held.end.min(pages.end));
            if start >= end {
                continue;
            }
            withdraw(instance, &(at..start), *agent);
            other.given.push(Given { pages: start..end, agent: *agent });
            at = end;
        }
        withdraw(instance, &(at..pages.end), *agent);
    }
}

/// Takes an agent's access away.
fn withdraw(instance: &Instance, pages: &Range<u64>, agent: usize) {
    let Some(agent) = instance.agents.gpus().find(|gpu| gpu.index() == agent) else { return };
    if !pages.is_empty()
        && let Err(status) = set(instance, pages, agent.svm_access(SvmUse::No))
    {
        // The program may have unmapped it before.
        tracing::debug!(target: "hsa", %status, "unlocked memory stays shared");
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
    take(instance, &mut locks, &ended);
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
