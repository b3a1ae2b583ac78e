// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses without memory, memory without addresses, and mappings of the one into the other.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use stasis::{Access, FreeError, Mapping, Range, VmemError};

use super::share::borrowed;
use super::{Block, Origin, PAGE, address_of, pointer_to, status_of};
use crate::abi::declared::*;
use crate::abi::{
    ERROR, INVALID_ALLOCATION, INVALID_ARGUMENT, NOT_SUPPORTED, OUT_OF_RESOURCES, Out, Outcome, Status,
    export, slice,
};
use crate::handles::{Kind, Table};
use crate::instance::instance;
use crate::pools::Pool;

/// Physical memory under a handle.
#[derive(Debug)]
struct Physical {
    memory: stasis::Memory,
    /// The pool it is of; `None` for what was imported.
    pool: Option<Pool>,
    type_: hsa_amd_memory_type_t,
    /// Handles that the program holds.
    holders: AtomicUsize,
}

/// What is reserved, and the memory for it.
#[derive(Debug)]
pub struct Ranges {
    reserved: Mutex<BTreeMap<u64, Range>>,
    memories: Table<Physical>,
}

impl Ranges {
    pub fn new() -> Self {
        Ranges { reserved: Mutex::default(), memories: Table::new(Kind::Memory) }
    }

    pub fn clear(&self) {
        for (_, range) in std::mem::take(&mut *self.reserved.lock()) {
            for mapping in range.mappings() {
                let _ = range.unmap(mapping.offset, mapping.bytes);
            }
        }
        self.memories.clear();
    }

    /// The reserved range that holds all of a part, and where in it the part is.
    fn find(&self, address: u64, bytes: u64) -> Option<(Range, u64)> {
        let reserved = self.reserved.lock();
        let (base, range) = reserved.range(..=address).next_back()?;
        let offset = address - base;
        let fits = offset < range.len() && bytes <= range.len() - offset;
        fits.then(|| (range.clone(), offset))
    }

    /// The mapping that an address is in.
    fn mapping(&self, address: u64) -> Outcome<Mapping> {
        let (range, offset) = self.find(address, 1).ok_or(INVALID_ALLOCATION)?;
        let holds = |mapping: &Mapping| (mapping.offset..mapping.offset + mapping.bytes).contains(&offset);
        range.mappings().into_iter().find(holds).ok_or(INVALID_ALLOCATION)
    }

    fn memory(&self, handle: hsa_amd_vmem_alloc_handle_t) -> Outcome<Arc<Physical>> {
        self.memories.get(handle.handle).ok_or(INVALID_ALLOCATION)
    }

    fn add(&self, physical: Physical) -> Outcome<hsa_amd_vmem_alloc_handle_t> {
        let handle = self.memories.add(physical).ok_or(OUT_OF_RESOURCES)?;
        Ok(hsa_amd_vmem_alloc_handle_t { handle })
    }
}

fn status(error: VmemError) -> Status {
    tracing::debug!(target: "hsa", error = %stasis::explain(&error), "a mapping was not changed");
    match error {
        VmemError::NotMapped { .. } | VmemError::Freed { .. } => INVALID_ALLOCATION,
        VmemError::Device(_) | VmemError::Reserve(_) => OUT_OF_RESOURCES,
        VmemError::NoPath { .. } => Status(HSA_STATUS_ERROR_INVALID_AGENT),
        VmemError::Lost(_) | VmemError::Pending { .. } => ERROR,
        _ => INVALID_ARGUMENT,
    }
}

/// Reserves addresses and puts the first.
///
/// # Safety
/// `va` is null or the program's.
unsafe fn reserve(va: *mut *mut c_void, size: usize, align: u64, flags: u64) -> Outcome {
    let instance = instance()?;
    // SAFETY: by contract.
    let out = unsafe { Out::new(va) }?;
    let bytes = size as u64;
    let aligned = align == 0 || (align.is_power_of_two() && align >= PAGE);
    if flags > 1 || bytes == 0 || !bytes.is_multiple_of(PAGE) || !aligned {
        return Err(INVALID_ARGUMENT);
    }
    let range = instance.runtime.reserve(bytes, align).map_err(|error| match status(error) {
        INVALID_ARGUMENT => INVALID_ARGUMENT,
        _ => OUT_OF_RESOURCES,
    })?;
    let base = range.va();
    instance.memory.add(Block::new(range.buffer().clone(), Origin::Reserved));
    instance.memory.ranges.reserved.lock().insert(base, range);
    out.put(pointer_to(base));
    Ok(())
}

/// `hsa_access_permission_t` as the runtime has it.
fn access(permissions: hsa_access_permission_t) -> Outcome<Access> {
    match permissions {
        0 => Ok(Access::None),
        HSA_ACCESS_PERMISSION_RO => Ok(Access::ReadExecute),
        // There is no way to let an agent write only.
        HSA_ACCESS_PERMISSION_WO | HSA_ACCESS_PERMISSION_RW => Ok(Access::ReadWriteExecute),
        _ => Err(INVALID_ARGUMENT),
    }
}

export! {
    /// Reserves addresses.
    fn hsa_amd_vmem_address_reserve(va: *mut *mut c_void, size: usize, _address: u64, flags: u64) {
        // SAFETY: the caller's, by the header.
        unsafe { reserve(va, size, 0, flags) }
    }

    /// Reserves addresses at a multiple of something.
    fn hsa_amd_vmem_address_reserve_align(
        va: *mut *mut c_void,
        size: usize,
        _address: u64,
        alignment: u64,
        flags: u64,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { reserve(va, size, alignment, flags) }
    }

    /// Gives addresses back.
    fn hsa_amd_vmem_address_free(va: *mut c_void, size: usize) {
        let instance = instance()?;
        let ranges = &instance.memory.ranges;
        let mut reserved = ranges.reserved.lock();
        let range = reserved.get(&address_of(va)).ok_or(INVALID_ALLOCATION)?;
        if range.len() != size as u64 {
            return Err(INVALID_ARGUMENT);
        }
        range.free().map_err(|error| match error {
            FreeError::InUse { .. } => Status(HSA_STATUS_ERROR_RESOURCE_FREE),
            _ => ERROR,
        })?;
        instance.memory.blocks.write().remove(&address_of(va));
        reserved.remove(&address_of(va));
        Ok(())
    }

    /// Memory of a pool without an address.
    fn hsa_amd_vmem_handle_create(
        pool: hsa_amd_memory_pool_t,
        size: usize,
        type_: hsa_amd_memory_type_t,
        _flags: u64,
        memory_handle: *mut hsa_amd_vmem_alloc_handle_t,
    ) {
        let instance = instance()?;
        let pool = Pool::find(instance, pool).map_err(|_| INVALID_ARGUMENT)?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(memory_handle) }?;
        if size == 0 || !(size as u64).is_multiple_of(PAGE) || type_ > 1 {
            return Err(INVALID_ARGUMENT);
        }
        let memory = pool.of_runtime(instance)?.physical(size as u64).map_err(status_of)?;
        let physical = Physical { memory, pool: Some(pool), type_, holders: AtomicUsize::new(1) };
        out.put(instance.memory.ranges.add(physical)?);
        Ok(())
    }

    /// Gives a handle up; the memory goes with its last handle and its last mapping.
    fn hsa_amd_vmem_handle_release(memory_handle: hsa_amd_vmem_alloc_handle_t) {
        let ranges = &instance()?.memory.ranges;
        let memory = ranges.memory(memory_handle)?;
        if memory.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            ranges.memories.remove(memory_handle.handle);
        }
        Ok(())
    }

    /// Maps memory into reserved addresses.
    fn hsa_amd_vmem_map(
        va: *mut c_void,
        size: usize,
        in_offset: usize,
        memory_handle: hsa_amd_vmem_alloc_handle_t,
        _flags: u64,
    ) {
        let ranges = &instance()?.memory.ranges;
        let memory = ranges.memory(memory_handle)?;
        let (range, offset) = ranges.find(address_of(va), size as u64).ok_or(INVALID_ARGUMENT)?;
        range.map(offset, &memory.memory, in_offset as u64, size as u64).map(drop).map_err(status)
    }

    /// Ends a mapping.
    fn hsa_amd_vmem_unmap(va: *mut c_void, size: usize) {
        let ranges = &instance()?.memory.ranges;
        let (range, offset) = ranges.find(address_of(va), size as u64).ok_or(INVALID_ALLOCATION)?;
        range.unmap(offset, size as u64).map_err(status)
    }

    /// Says what agents may do with a mapping.
    fn hsa_amd_vmem_set_access(
        va: *mut c_void,
        size: usize,
        desc: *const hsa_amd_memory_access_desc_t,
        desc_cnt: usize,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let wanted = unsafe { slice(desc, desc_cnt) }?;
        let (range, offset) =
            instance.memory.ranges.find(address_of(va), size as u64).ok_or(INVALID_ALLOCATION)?;
        let mut rights = Vec::new();
        for desc in wanted {
            let access = access(desc.permissions)?;
            // The host sees what it can see.
            if let Ok(gpu) = instance.agents.get(desc.agent_handle)?.gpu() {
                rights.push((gpu, access));
            }
        }
        if rights.is_empty() && !wanted.is_empty() {
            return Ok(());
        }
        range.set_access(offset, size as u64, &rights).map_err(status)
    }

    /// What an agent may do with a mapping.
    fn hsa_amd_vmem_get_access(va: *mut c_void, perms: *mut hsa_access_permission_t, agent_handle: hsa_agent_t) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(perms) }?;
        let gpu = instance.agents.gpu(agent_handle);
        let mapping = instance.memory.ranges.mapping(address_of(va))?;
        let Ok(gpu) = gpu else {
            out.put(if mapping.is_visible { HSA_ACCESS_PERMISSION_RW } else { 0 });
            return Ok(());
        };
        let found = mapping.access.iter().find(|(index, _)| *index == gpu.index());
        out.put(match found.ok_or(INVALID_ALLOCATION)?.1 {
            Access::None => 0,
            Access::Read | Access::ReadExecute => HSA_ACCESS_PERMISSION_RO,
            Access::ReadWrite | Access::ReadWriteExecute => HSA_ACCESS_PERMISSION_RW,
        });
        Ok(())
    }

    /// A descriptor of memory for other processes.
    fn hsa_amd_vmem_export_shareable_handle(
        dmabuf_fd: *mut c_int,
        handle: hsa_amd_vmem_alloc_handle_t,
        _flags: u64,
    ) {
        let ranges = &instance()?.memory.ranges;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(dmabuf_fd) }?;
        let memory = ranges.memory(handle)?;
        out.put(memory.memory.export().map_err(|_| OUT_OF_RESOURCES)?.into_raw_fd());
        Ok(())
    }

    /// Memory behind such a descriptor.
    fn hsa_amd_vmem_import_shareable_handle(dmabuf_fd: c_int, handle: *mut hsa_amd_vmem_alloc_handle_t) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(handle) }?;
        // SAFETY: the program's during the call.
        let fd = unsafe { borrowed(dmabuf_fd) }?;
        let agent = instance.agents.gpus().next().ok_or(OUT_OF_RESOURCES)?;
        let memory = instance.runtime.import_memory(fd, agent).map_err(|_| INVALID_ALLOCATION)?;
        let physical = Physical { memory, pool: None, type_: 0, holders: AtomicUsize::new(1) };
        out.put(instance.memory.ranges.add(physical)?);
        Ok(())
    }

    /// The handle of what is mapped at an address; to be released once more.
    fn hsa_amd_vmem_retain_alloc_handle(memory_handle: *mut hsa_amd_vmem_alloc_handle_t, addr: *mut c_void) {
        let ranges = &instance()?.memory.ranges;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(memory_handle) }?;
        let mapping = ranges.mapping(address_of(addr))?;
        let mut all = ranges.memories.all().into_iter();
        let found = all.find(|(_, physical)| physical.memory.key() == mapping.memory);
        let (handle, physical) = found.ok_or(INVALID_ALLOCATION)?;
        physical.holders.fetch_add(1, Ordering::AcqRel);
        out.put(hsa_amd_vmem_alloc_handle_t { handle });
        Ok(())
    }

    /// Which pool memory is of.
    fn hsa_amd_vmem_get_alloc_properties_from_handle(
        memory_handle: hsa_amd_vmem_alloc_handle_t,
        pool: *mut hsa_amd_memory_pool_t,
        type_: *mut hsa_amd_memory_type_t,
    ) {
        let ranges = &instance()?.memory.ranges;
        // SAFETY: the caller's, by the header.
        let (pool, type_) = unsafe { (Out::new(pool)?, Out::new(type_)?) };
        let memory = ranges.memory(memory_handle)?;
        pool.put(memory.pool.ok_or(INVALID_ALLOCATION)?.handle());
        type_.put(memory.type_);
        Ok(())
    }

    /// A number by which other machines of a fabric have memory: refused, there is no fabric.
    fn hsa_amd_vmem_export_fabric_handle(
        fabric_handle: *mut hsa_fabric_handle_t,
        _handle: hsa_amd_vmem_alloc_handle_t,
        _flags: u64,
    ) {
        instance()?;
        if fabric_handle.is_null() { Err(INVALID_ARGUMENT) } else { Err(NOT_SUPPORTED) }
    }

    /// Memory of another machine: refused.
    fn hsa_amd_vmem_import_fabric_handle(
        _fabric_handle: hsa_fabric_handle_t,
        handle: *mut hsa_amd_vmem_alloc_handle_t,
    ) {
        instance()?;
        if handle.is_null() { Err(INVALID_ARGUMENT) } else { Err(NOT_SUPPORTED) }
    }

    /// What no published header declares: refused.
    fn hsa_amd_vmem_get_vmem_info() {
        instance()?;
        Err(NOT_SUPPORTED)
    }
}
