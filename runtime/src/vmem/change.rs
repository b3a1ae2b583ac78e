// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of what is mapped: checked whole, then made entry by entry under the registry's lock.
//!
//! INVARIANT: nothing is asked of the driver before all that can be known to be wrong was looked at.

use std::time::{Duration, Instant};

use super::maps::MapEntry;
use super::{Mapping, VmemError};
use crate::device::Device;
use crate::error::{DeviceError, FreeError};
use crate::gate::Pass;
use crate::pool::Buffer;
use crate::pool::arena::PAGE;
use crate::registry::Registry;
use crate::registry::state::{Access, AgentIndex, BoKey, BoRole, MapKey, MapState};
use crate::runtime::Inner;

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

/// An entry and its memory.
fn entry_of(
    registry: &mut Registry,
    key: MapKey,
) -> Result<(&mut MapEntry, &mut crate::registry::Bo), DeviceError> {
    let Registry { maps, bos, .. } = registry;
    let entry = maps.get_mut(key).ok_or(DeviceError::Absent { what: "the mapping" })?;
    let memory = bos.get_mut(entry.state.memory).ok_or(DeviceError::Absent { what: "the memory" })?;
    Ok((entry, memory))
}

fn end(registry: &mut Registry, on: &Device, keys: Vec<MapKey>) -> Result<(), DeviceError> {
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

impl Inner {
    pub(super) fn map_part(
        &self,
        pass: &Pass<'_>,
        range: &Buffer,
        offset: u64,
        memory: BoKey,
        memory_offset: u64,
        bytes: u64,
    ) -> Result<Mapping, VmemError> {
        let part = Part::of(range, offset, bytes)?;
        whole_pages("memory offset", memory_offset)?;
        let mut registry = self.registry.lock();
        part.alive_in(&registry)?;
        let len = registry.bos.get(memory).map(|bo| bo.state.bytes);
        let len = len.ok_or(VmemError::Freed { what: "memory", key: memory })?;
        if memory_offset.checked_add(bytes).is_none_or(|end| end > len) {
            return Err(VmemError::OutsideMemory { memory, offset: memory_offset, bytes, len });
        }
        let device = self.device_or_lost(pass)?;
        let state = MapState {
            range: part.range,
            va: part.va,
            bytes,
            memory,
            offset: memory_offset,
            access: Vec::new(),
        };
        let key = registry.maps.insert(state).map_err(|taken| overlap(&registry, &part, taken))?;
        let made =
            entry_of(&mut registry, key).and_then(|(entry, memory)| device.make_mapping(entry, memory));
        if let Err(error) = made {
            registry.maps.remove(key);
            return Err(error.into());
        }
        let Registry { maps, bos, .. } = &*registry;
        let entry = maps.get(key).ok_or(DeviceError::Absent { what: "the mapping" })?;
        Ok(Mapping::of(part.base, key, entry, bos))
    }

    pub(super) fn unmap_part(
        &self,
        pass: &Pass<'_>,
        range: &Buffer,
        offset: u64,
        bytes: u64,
    ) -> Result<(), VmemError> {
        let part = Part::of(range, offset, bytes)?;
        part.mapped_in(&self.registry.lock())?;
        if let Some(queue) = self.busy_queue(pass, range.uses(), Instant::now() + UNMAP_GRACE)? {
            return Err(VmemError::Pending { range: part.range, queue });
        }
        let mut registry = self.registry.lock();
        part.mapped_in(&registry)?;
        let device = self.device_or_lost(pass)?;
        let keys = inside(&mut registry, device, &part)?;
        Ok(end(&mut registry, device, keys)?)
    }

    pub(super) fn set_access(
        &self,
        pass: &Pass<'_>,
        range: &Buffer,
        offset: u64,
        bytes: u64,
        rights: &[(AgentIndex, Access)],
    ) -> Result<(), VmemError> {
        let part = Part::of(range, offset, bytes)?;
        let mut registry = self.registry.lock();
        part.mapped_in(&registry)?;
        self.check_paths(&registry, &registry.maps.touching(part.va, part.bytes), rights)?;
        let device = self.device_or_lost(pass)?;
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

    /// Frees what the last handle was dropped of: a range is unmapped first. Whether it was one.
    pub(crate) fn release_bo(
        &self,
        pass: &Pass<'_>,
        key: BoKey,
        uses: u64,
        grace: Duration,
    ) -> Result<bool, FreeError> {
        let role = self.registry.lock().bos.get(key).map(|bo| bo.state.role);
        if role != Some(BoRole::Range) {
            return self.free_bo(pass, key, uses, grace).map(|()| false);
        }
        if let Some(queue) = self.busy_queue(pass, uses, Instant::now() + grace)? {
            return Err(FreeError::Pending { key, queue });
        }
        let mut registry = self.registry.lock();
        let device = self.device_or_lost(pass)?;
        let keys = registry.maps.of_range(key).map(|(map, _)| map).collect();
        end(&mut registry, device, keys)?;
        drop(registry);
        self.free_bo(pass, key, 0, grace).map(|()| true)
    }
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
