// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual memory: addresses reserved apart from the memory behind them, and what is mapped of one into the other.
//!
//! A [`Range`] is addresses; a [`Memory`] is memory without an address that agents know; [`Range::map`] puts a part of
//! the one at a part of the other, for the CPU at once and for an agent once [`Range::set_access`] says so:
//!
//! ```no_run
//! use stasis::{Access, Arg, Runtime};
//! let runtime = Runtime::open_default()?;
//! let agent = runtime.agent(0).ok_or("no agent")?;
//! let cache = runtime.reserve(64 << 30, 0)?;
//! let page = agent.vram().physical(2 << 20)?;
//! cache.map(0, &page, 0, page.len())?;
//! cache.set_access(0, page.len(), &[(&agent, Access::ReadWrite)])?;
//! let argument = Arg::Buffer(cache.buffer());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! INVARIANT: what is mapped of a range is what the registry's mappings say, on every agent and for the CPU; everything
//! else of it faults. Memory lives for as long as it has a handle or a mapping, a range for as long as it has a handle.

mod change;
mod error;
mod host;
mod memory;

pub use self::error::VmemError;
pub use self::host::RangeGuard;
pub use self::memory::Memory;
use crate::agent::Agent;
use crate::context::device::Device;
use crate::context::error::{DeviceError, FreeError};
use crate::context::memory::free::free_deferred;
use crate::context::memory::make::make_bo;
use crate::context::memory::request::Request;
use crate::context::registry::arena::PAGE;
use crate::context::registry::maps::{MapEntry, Maps};
use crate::context::registry::state::{Access, AgentIndex, BoKey, BoKind, BoRole, MapKey};
use crate::context::registry::{Bo, Registry, Table};
use crate::copy::Span;
use crate::pool::Buffer;
use crate::runtime::Runtime;
use crate::vmem::change::{map_part, unmap_part};

/// Addresses of the process's window, the same for the CPU and all agents, into which memory is mapped. Clones name the
/// same ones; they are given back by [`Range::free`] or with the last handle, which unmaps what is mapped.
#[derive(Clone, Debug)]
pub struct Range(Buffer);

/// A part of a range and the part of a memory that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its key in the registry. A mapping that is cut keeps it for the part before the cut.
    pub key: MapKey,
    /// Its address.
    pub va: u64,
    /// Where in the range, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The memory.
    pub memory: BoKey,
    /// Where in the memory, in bytes.
    pub memory_offset: u64,
    /// What the agents, by their indices, may do; those that may do nothing are absent.
    pub access: Vec<(usize, Access)>,
    /// Whether the CPU sees it, for reading and writing.
    pub is_visible: bool,
}

impl Runtime {
    /// Reserves at least `bytes` bytes of addresses, whole pages, at a multiple of `align` (a power of two; 0 for a page,
    /// or 2 MiB for ranges of that size). Nothing is mapped there: every access faults.
    ///
    /// # Errors
    /// [`VmemError::Alignment`], [`VmemError::Reserve`], [`VmemError::Lost`].
    pub fn reserve(&self, bytes: u64, align: u64) -> Result<Range, VmemError> {
        let align = if align == 0 { PAGE } else { align };
        if !align.is_power_of_two() {
            return Err(VmemError::Alignment { align });
        }
        let context = self.context();
        let pass = context.gate.enter()?;
        free_deferred(context, &pass);
        let mut registry = context.registry.lock();
        let device = context.device_or_lost(&pass)?;
        let key = make_bo(context, &mut registry, device, Request::addresses(bytes, align))
            .map_err(VmemError::Reserve)?;
        let bytes = registry.bos.get(key).map_or(0, |bo| bo.state.bytes);
        Ok(Range(Buffer::new(context, &registry, key, bytes)))
    }
}

impl Range {
    /// Its key in the registry.
    pub fn key(&self) -> BoKey {
        self.0.key()
    }

    /// Its first address.
    pub fn va(&self) -> u64 {
        self.0.va()
    }

    /// Its length in bytes, whole pages.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Never: a range has at least one page.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of it as a buffer, for [`crate::Arg::Buffer`] and copies. What is mapped then is what is found there: a kernel
    /// that leaves it faults. Packets that are given it keep it from being unmapped until they complete; those that are
    /// given an address inside ([`crate::Arg::Address`]) are the caller's to wait for.
    pub fn buffer(&self) -> &Buffer {
        &self.0
    }

    /// `bytes` bytes from `offset` on, for copies and fills. The agent that copies is one with access; all of the span
    /// must be mapped, and be its to read or write.
    pub fn span(&self, offset: u64, bytes: u64) -> Span<'_> {
        self.0.span(offset, bytes)
    }

    /// Maps `bytes` bytes of `memory`, from `memory_offset` on, at `offset`. All are whole pages. The CPU reads and writes
    /// it there at once where it sees the memory; agents have access once [`Range::set_access`] says so.
    ///
    /// The same part of a memory can be mapped at several places: they are the same bytes.
    ///
    /// # Errors
    /// [`VmemError::Misaligned`], [`VmemError::Empty`], [`VmemError::OutsideRange`], [`VmemError::OutsideMemory`],
    /// [`VmemError::Overlap`], [`VmemError::Freed`], [`VmemError::Foreign`], [`VmemError::Device`],
    /// [`VmemError::Lost`].
    pub fn map(
        &self,
        offset: u64,
        memory: &Memory,
        memory_offset: u64,
        bytes: u64,
    ) -> Result<Mapping, VmemError> {
        let context = &self.0.0.context;
        if !memory.buffer().is_of(context) {
            return Err(VmemError::Foreign { what: "memory" });
        }
        let pass = context.gate.enter()?;
        // What is there has two addresses.
        context.arriving.all(context, &pass)?;
        map_part(context, &pass, &self.0, offset, memory.key(), memory_offset, bytes)
    }

    /// Ends what is mapped in `bytes` bytes from `offset` on; mappings that lie partly in it are cut. All of it must be
    /// mapped. Accesses fault from now on. Waits up to 100 ms for packets that were given the range.
    ///
    /// # Errors
    /// [`VmemError::Misaligned`], [`VmemError::Empty`], [`VmemError::OutsideRange`], [`VmemError::NotMapped`],
    /// [`VmemError::Pending`], [`VmemError::Freed`], [`VmemError::Device`], [`VmemError::Lost`].
    pub fn unmap(&self, offset: u64, bytes: u64) -> Result<(), VmemError> {
        let context = &self.0.0.context;
        let pass = context.gate.enter()?;
        unmap_part(context, &pass, &self.0, offset, bytes)?;
        // Memory whose handles are gone went with its last mapping.
        free_deferred(context, &pass);
        Ok(())
    }

    /// Says what agents may do with `bytes` bytes from `offset` on; those not listed may do what they could. All of it must
    /// be mapped. Packets in flight notice: what they may no longer do faults.
    ///
    /// # Errors
    /// [`VmemError::NoPath`] before anything is changed where an agent does not reach another's memory; otherwise as for
    /// [`Range::map`].
    pub fn set_access(&self, offset: u64, bytes: u64, rights: &[(&Agent, Access)]) -> Result<(), VmemError> {
        let context = &self.0.0.context;
        if rights.iter().any(|(agent, _)| !agent.is_of(context)) {
            return Err(VmemError::Foreign { what: "agent" });
        }
        let rights: Vec<(AgentIndex, Access)> =
            rights.iter().map(|(agent, access)| (agent.info.index(), *access)).collect();
        let pass = context.gate.enter()?;
        change::set_access(context, &pass, &self.0, offset, bytes, &rights)
    }

    /// What is mapped, by address.
    pub fn mappings(&self) -> Vec<Mapping> {
        let registry = self.0.0.context.registry.lock();
        let keys = registry.maps.touching(self.va(), self.len());
        let entries = keys.into_iter().filter_map(|key| Some((key, registry.maps.get(key)?)));
        entries.map(|(key, entry)| self.describe(key, entry, &registry.bos)).collect()
    }

    fn describe(&self, key: MapKey, entry: &MapEntry, bos: &Table<Bo>) -> Mapping {
        Mapping::of(self.va(), key, entry, bos)
    }

    /// Gives the addresses back. Nothing must be mapped.
    ///
    /// # Errors
    /// [`FreeError::InUse`] naming a mapping, otherwise as for [`Buffer::free`].
    pub fn free(&self) -> Result<(), FreeError> {
        self.0.free()
    }
}

impl Mapping {
    fn of(base: u64, key: MapKey, entry: &MapEntry, bos: &Table<Bo>) -> Self {
        let state = &entry.state;
        Mapping {
            key,
            va: state.va,
            offset: state.va - base,
            bytes: state.bytes,
            memory: state.memory,
            memory_offset: state.offset,
            access: state.access.iter().map(|(agent, access)| (agent.at(), *access)).collect(),
            is_visible: bos.get(state.memory).is_some_and(|memory| memory.state.cpu_mapped),
        }
    }
}

impl Request {
    /// Addresses without memory.
    fn addresses(bytes: u64, align: u64) -> Self {
        Request {
            kind: BoKind::Reserved,
            role: BoRole::Range,
            bytes,
            flags: 0,
            agent: AgentIndex(0),
            mapped: Vec::new(),
            cpu_mapped: false,
            align,
            at: None,
        }
    }
}

/// Takes all mappings out of the driver, before their memory. Entries keep their state.
///
/// # Errors
/// [`DeviceError`]; [`rebuild`] makes what is missing.
pub(crate) fn end_all(maps: &mut Maps, bos: &mut Table<Bo>, from: &Device) -> Result<(), DeviceError> {
    for (_, entry) in maps.iter_mut() {
        let memory = bos.get_mut(entry.state.memory);
        from.end_mapping(entry, memory.ok_or(DeviceError::Absent { what: "the memory of a mapping" })?)?;
    }
    Ok(())
}

/// Makes the mappings that are not there, over their memory.
///
/// # Errors
/// [`DeviceError`].
pub(crate) fn rebuild(registry: &mut Registry, on: &Device) -> Result<(), DeviceError> {
    let Registry { maps, bos, .. } = registry;
    for (_, entry) in maps.iter_mut() {
        let memory = bos.get_mut(entry.state.memory);
        on.make_mapping(entry, memory.ok_or(DeviceError::Absent { what: "the memory of a mapping" })?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
