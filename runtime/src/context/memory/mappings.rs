// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is mapped into reserved ranges: ended with its range, and asked before a copy.
//!
//! INVARIANT: what is registered is mapped, for those who may.

use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::error::{CopyError, DeviceError};
use crate::context::registry::access::Access;
use crate::context::registry::maps::MapEntry;
use crate::context::registry::state::{AgentIndex, BoKey, BoKind, BoRole, MapKey};
use crate::context::registry::{Bo, Registry};

/// An entry and its memory.
pub fn entry_of(registry: &mut Registry, key: MapKey) -> Result<(&mut MapEntry, &mut Bo), DeviceError> {
    let Registry { maps, bos, .. } = registry;
    let entry = maps.get_mut(key).ok_or(DeviceError::Absent { what: "the mapping" })?;
    let memory = bos.get_mut(entry.state.memory).ok_or(DeviceError::Absent { what: "the memory" })?;
    Ok((entry, memory))
}

/// Ends mappings, on the agents and for the CPU, and forgets them.
///
/// # Errors
/// [`DeviceError`]; the mapping that could not be ended, and those after it, stay.
pub fn end_mappings(registry: &mut Registry, on: &Device, keys: Vec<MapKey>) -> Result<(), DeviceError> {
    for key in keys {
        let (entry, memory) = entry_of(registry, key)?;
        if let Err(error) = on.end_mapping(entry, memory) {
            // What is registered is there, for those who may.
            if let Err(error) = on.make_mapping(entry, memory) {
                tracing::warn!(target: "pools", %error, %key, "a mapping that could not be ended is in parts");
            }
            return Err(error);
        }
        registry.maps.remove(key);
    }
    Ok(())
}

/// How messages name an agent.
pub fn name(info: &AgentInfo) -> String {
    format!("{} ({})", info.target().name, info.uuid())
}

/// What lies behind a buffer object and the agent to take for its owner: for a range those of what is mapped first,
/// or an agent that has access where the owner has none.
pub fn backing(registry: &Registry, key: BoKey, bo: &Bo) -> (BoKind, AgentIndex) {
    let plain = (bo.state.kind, bo.state.agent);
    if bo.state.role != BoRole::Range {
        return plain;
    }
    let first = registry.maps.at(bo.state.va).or_else(|| registry.maps.of_range(key).next());
    let Some((_, entry)) = first else { return plain };
    let Some(memory) = registry.bos.get(entry.state.memory) else { return plain };
    let home = (memory.state.kind, memory.state.agent);
    match entry.state.access.first() {
        Some(&(agent, _)) if entry.state.access_of(home.1) == Access::None => (BoKind::Vram, agent),
        _ => home,
    }
}

/// That an agent may read, or write, all of `[va, va + bytes)` if that is in a range.
///
/// # Errors
/// [`CopyError::NotMapped`], [`CopyError::NoAccess`].
pub fn check_reach(
    context: &Context,
    agent: AgentIndex,
    key: BoKey,
    va: u64,
    bytes: u64,
    write: bool,
) -> Result<(), CopyError> {
    let registry = context.registry.lock();
    let Some(bo) = registry.bos.get(key).filter(|bo| bo.state.role == BoRole::Range) else {
        return Ok(());
    };
    let (mut at, end) = (va, va + bytes);
    while at < end {
        let offset = at - bo.state.va;
        let (_, entry) = registry.maps.at(at).ok_or(CopyError::NotMapped { key, offset })?;
        if !entry.state.access_of(agent).allows(write) {
            let agent = name(&context.agents[agent.at()]);
            let act = if write { "write" } else { "read" };
            return Err(CopyError::NoAccess { agent, act, key, offset });
        }
        at = entry.end();
    }
    Ok(())
}
