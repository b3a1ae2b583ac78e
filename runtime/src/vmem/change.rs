// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of what is mapped: checked whole, then made entry by entry under the registry's lock.
//!
//! INVARIANT: nothing is asked of the driver before all that can be known to be wrong was looked at.

use std::time::{Duration, Instant};

use stasis_protocol::gate::Pass;

use super::{Mapping, VmemError};
use crate::context::Context;
use crate::context::agent::agents;
use crate::context::device::Device;
use crate::context::error::DeviceError;
use crate::context::memory::free::busy_queue;
use crate::context::memory::mappings;
use crate::context::memory::mappings::{end_mappings, entry_of};
use crate::context::registry::Registry;
use crate::context::registry::arena::PAGE;
use crate::context::registry::maps::MapEntry;
use crate::context::registry::state::{Access, AgentIndex, BoKey, BoKind, MapKey, MapState};
use crate::pool::Buffer;

/// TIMEOUT: how long an unmapping waits for packets that were given the range, as [`Buffer::free`] does.
const UNMAP_GRACE: Duration = Duration::from_millis(100);

/// A part of a range that was found to be one.
struct Part {
    range: BoKey,
    base: u64,
    va: u64,
    bytes: u64,
}

fn whole_pages(what: &'static str, value: u64) -> Result<(), VmemError> {
    match value.is_multiple_of(PAGE) {
        true => Ok(()),
        false => Err(VmemError::Misaligned { what, value, page: PAGE }),
    }
}

impl Part {
    fn of(range: &Buffer, offset: u64, bytes: u64) -> Result<Self, VmemError> {
        whole_pages("offset", offset)?;
        whole_pages("length", bytes)?;
        if bytes == 0 {
            return Err(VmemError::Empty);
        }
        let (key, len) = (range.key(), range.len());
        if offset.checked_add(bytes).is_none_or(|end| end > len) {
            return Err(VmemError::OutsideRange { range: key, offset, bytes, len });
        }
        Ok(Part { range: key, base: range.va(), va: range.va() + offset, bytes })
    }

    /// That the range lives still, and all of the part is mapped.
    fn mapped_in(&self, registry: &Registry) -> Result<(), VmemError> {
        self.alive_in(registry)?;
        match registry.maps.hole(self.va, self.bytes) {
            Some(va) => Err(VmemError::NotMapped { range: self.range, offset: va - self.base }),
            None => Ok(()),
        }
    }

    fn alive_in(&self, registry: &Registry) -> Result<(), VmemError> {
        match registry.bos.get(self.range) {
            Some(_) => Ok(()),
            None => Err(VmemError::Freed { what: "range", key: self.range }),
        }
    }
}

/// The entries inside `[va, va + bytes)`, those that lie partly in it cut at its edges.
fn inside(registry: &mut Registry, on: &Device, part: &Part) -> Result<Vec<MapKey>, DeviceError> {
    let Registry { maps, bos, .. } = registry;
    for edge in [part.va, part.va + part.bytes] {
        let Some((key, entry)) = maps.at(edge).filter(|(_, entry)| entry.state.va != edge) else { continue };
        let memory = bos.get_mut(entry.state.memory);
        on.cut_mapping(entry, memory.ok_or(DeviceError::Absent { what: "the memory" })?, edge)?;
        maps.cut(key, edge);
    }
    Ok(maps.touching(part.va, part.bytes))
}

pub(super) fn map_part(
    context: &Context,
    pass: &Pass<'_>,
    range: &Buffer,
    offset: u64,
    memory: BoKey,
    memory_offset: u64,
    bytes: u64,
) -> Result<Mapping, VmemError> {
    let part = Part::of(range, offset, bytes)?;
    whole_pages("memory offset", memory_offset)?;
    let mut registry = context.registry.lock();
    part.alive_in(&registry)?;
    let len = registry.bos.get(memory).map(|bo| bo.state.bytes);
    let len = len.ok_or(VmemError::Freed { what: "memory", key: memory })?;
    if memory_offset.checked_add(bytes).is_none_or(|end| end > len) {
        return Err(VmemError::OutsideMemory { memory, offset: memory_offset, bytes, len });
    }
    let device = context.device_or_lost(pass)?;
    let state =
        MapState { range: part.range, va: part.va, bytes, memory, offset: memory_offset, access: Vec::new() };
    let key = registry.maps.insert(state).map_err(|taken| overlap(&registry, &part, taken))?;
    let made = entry_of(&mut registry, key).and_then(|(entry, memory)| device.make_mapping(entry, memory));
    if let Err(error) = made {
        registry.maps.remove(key);
        return Err(error.into());
    }
    let Registry { maps, bos, .. } = &*registry;
    let entry = maps.get(key).ok_or(DeviceError::Absent { what: "the mapping" })?;
    Ok(Mapping::of(part.base, key, entry, bos))
}

pub(super) fn unmap_part(
    context: &Context,
    pass: &Pass<'_>,
    range: &Buffer,
    offset: u64,
    bytes: u64,
) -> Result<(), VmemError> {
    let part = Part::of(range, offset, bytes)?;
    part.mapped_in(&context.registry.lock())?;
    if let Some(queue) = busy_queue(context, pass, range.uses(), Instant::now() + UNMAP_GRACE)? {
        return Err(VmemError::Pending { range: part.range, queue });
    }
    let mut registry = context.registry.lock();
    part.mapped_in(&registry)?;
    let device = context.device_or_lost(pass)?;
    let keys = inside(&mut registry, device, &part)?;
    Ok(end_mappings(&mut registry, device, keys)?)
}

pub(super) fn set_access(
    context: &Context,
    pass: &Pass<'_>,
    range: &Buffer,
    offset: u64,
    bytes: u64,
    rights: &[(AgentIndex, Access)],
) -> Result<(), VmemError> {
    let part = Part::of(range, offset, bytes)?;
    let mut registry = context.registry.lock();
    part.mapped_in(&registry)?;
    check_paths(context, &registry, &registry.maps.touching(part.va, part.bytes), rights)?;
    let device = context.device_or_lost(pass)?;
    let keys = inside(&mut registry, device, &part)?;
    let mut done = Vec::new();
    for key in keys {
        for &(agent, access) in rights {
            let (entry, memory) = entry_of(&mut registry, key)?;
            let before = entry.state.access_of(agent);
            if let Err(error) = device.grant(entry, memory, agent, access) {
                take_back(&mut registry, device, &done);
                return Err(error.into());
            }
            done.push((key, agent, before));
        }
    }
    Ok(())
}

/// Gives agents back what they could do before a change that failed; what cannot be is in the entries.
fn take_back(registry: &mut Registry, on: &Device, done: &[(MapKey, AgentIndex, Access)]) {
    for &(key, agent, before) in done.iter().rev() {
        let undone =
            entry_of(registry, key).and_then(|(entry, memory)| on.grant(entry, memory, agent, before));
        if let Err(error) = undone {
            tracing::warn!(target: "pools", %error, %key, "a change of access that failed is not undone");
        }
    }
}

fn overlap(registry: &Registry, part: &Part, taken: MapKey) -> VmemError {
    let Some(MapEntry { state, .. }) = registry.maps.get(taken) else {
        return DeviceError::Absent { what: "the mapping" }.into();
    };
    VmemError::Overlap {
        range: part.range,
        offset: part.va - part.base,
        bytes: part.bytes,
        taken,
        memory: state.memory,
        taken_offset: state.va - part.base,
        taken_bytes: state.bytes,
    }
}

/// That every agent which is to have access has a path to the memory of each of these mappings.
fn check_paths(
    context: &Context,
    registry: &Registry,
    keys: &[MapKey],
    rights: &[(AgentIndex, Access)],
) -> Result<(), VmemError> {
    for entry in keys.iter().filter_map(|&key| registry.maps.get(key)) {
        let memory = entry.state.memory;
        let Some(bo) = registry.bos.get(memory).filter(|bo| bo.state.kind == BoKind::Vram) else {
            continue;
        };
        let owner = &context.agents[bo.state.agent.at()];
        for &(agent, _) in rights.iter().filter(|(_, access)| *access != Access::None) {
            if agents::reach(context, agent, owner.index()).is_err() {
                let agent = &context.agents[agent.at()];
                return Err(VmemError::NoPath {
                    agent: mappings::name(agent),
                    owner: mappings::name(owner),
                    memory,
                });
            }
        }
    }
    Ok(())
}
