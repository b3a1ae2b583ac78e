// SPDX-License-Identifier: MIT OR Apache-2.0
//! AMDGPU_GEM_VA on the address space that KFD acquired (since KFD 1.15): any part of an object at any free address
//! (`amdgpu_gem.c:amdgpu_gem_va_ioctl`, `amdgpu_vm.c`).
//!
//! INVARIANT: all checks come first, in the kernel's order, so that a refused call maps and unmaps nothing. Pages that
//! REPLACE only gives other permissions stay mapped throughout.

use std::os::fd::AsFd;
use std::sync::Arc;

use kfd::sys::*;
use nix::errno::Errno;

use super::super::bo::Backing;
use super::super::files::{Node, OpenFile};
use super::super::mapping::VA_END;
use super::super::process::{KfdProcess, State};
use super::super::vm::{Vm, VmMapping};
use super::super::{Call, PAGE};
use crate::hardware::{GpuMapping, PageAccess};

/// Flags of a mapping with an object behind it.
const VALID_FLAGS: u32 = AMDGPU_VM_DELAY_UPDATE
    | AMDGPU_VM_PAGE_READABLE
    | AMDGPU_VM_PAGE_WRITEABLE
    | AMDGPU_VM_PAGE_EXECUTABLE
    | AMDGPU_VM_MTYPE_MASK
    | AMDGPU_VM_PAGE_NOALLOC;
/// Flags of a mapping without one.
const PRT_FLAGS: u32 = AMDGPU_VM_DELAY_UPDATE | AMDGPU_VM_PAGE_PRT;

/// What to map.
pub(in super::super) struct Part {
    pub(in super::super) va: u64,
    pub(in super::super) bytes: u64,
    pub(in super::super) handle: u32,
    pub(in super::super) backing: Arc<Backing>,
    pub(in super::super) offset: u64,
    pub(in super::super) access: PageAccess,
}

impl State {
    /// The GPU whose compute address space belongs to this file.
    pub(super) fn compute_space(&self, file: &OpenFile) -> Option<usize> {
        let Node::Render { gpu } = file.node() else { return None };
        (self.pdds.get(gpu)?.render == Some(*file)).then_some(gpu)
    }
}

impl KfdProcess {
    /// AMDGPU_GEM_VA.
    pub(super) fn gem_va(
        &self,
        file: &OpenFile,
        args: &mut drm_amdgpu_gem_va,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let &mut drm_amdgpu_gem_va { operation, flags, handle, va_address: va, map_size: bytes, .. } = args;
        check_range(va, bytes)?;
        if flags & !VALID_FLAGS != 0 && flags & !PRT_FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        if !(AMDGPU_VA_OP_MAP..=AMDGPU_VA_OP_REPLACE).contains(&operation) {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state.lock();
        if operation == AMDGPU_VA_OP_CLEAR {
            self.check_sync_objects(args, call)?;
            // Only the file that KFD acquired has an address space here; the graphics address spaces of other files are
            // not modelled.
            let gpu = state.compute_space(file).ok_or(Errno::EINVAL)?;
            check_pages(va, 0, bytes)?;
            return self.clear(&mut state, gpu, va, bytes);
        }
        // Mappings without an object are for textures.
        if flags & AMDGPU_VM_PAGE_PRT != 0 {
            return Err(Errno::EINVAL);
        }
        let backing = Arc::clone(&state.gem(file, handle)?.backing);
        self.check_sync_objects(args, call)?;
        let gpu = state.compute_space(file).ok_or(Errno::EINVAL)?;
        if operation == AMDGPU_VA_OP_UNMAP {
            return self.unmap_gem(&mut state, gpu, handle, va);
        }
        let offset = args.offset_in_bo;
        check_part(&backing, va, offset, bytes)?;
        let has = |flag| flags & flag != 0;
        let access = PageAccess {
            read: has(AMDGPU_VM_PAGE_READABLE),
            write: has(AMDGPU_VM_PAGE_WRITEABLE),
            execute: has(AMDGPU_VM_PAGE_EXECUTABLE),
        };
        let part = Part { va, bytes, handle, backing, offset, access };
        if operation == AMDGPU_VA_OP_REPLACE {
            return self.replace(&mut state, gpu, part);
        }
        if state.pdds[gpu].vm.overlaps(va, bytes) {
            return Err(Errno::EINVAL);
        }
        self.map_gem(&mut state, gpu, part)
    }

    /// A mapping that was saved.
    ///
    /// # Errors
    /// `EINVAL` when GEM_VA could not have made it; the hardware's error.
    pub(in super::super) fn restore_gem_va(
        &self,
        state: &mut State,
        gpu: usize,
        part: Part,
    ) -> Result<(), Errno> {
        let file = state.pdds[gpu].render.ok_or(Errno::EINVAL)?;
        let gem = state.gem(&file, part.handle).map_err(|_| Errno::EINVAL)?;
        check_range(part.va, part.bytes)?;
        check_part(&part.backing, part.va, part.offset, part.bytes)?;
        let is_its = Arc::ptr_eq(&gem.backing, &part.backing);
        if !is_its || state.pdds[gpu].vm.overlaps(part.va, part.bytes) {
            return Err(Errno::EINVAL);
        }
        self.map_gem(state, gpu, part)
    }

    /// Sync objects are not modelled, so that every named one is unknown.
    fn check_sync_objects(&self, args: &drm_amdgpu_gem_va, call: &Call<'_>) -> Result<(), Errno> {
        if !self.kernel.synchronizes_gem_va() {
            return Ok(());
        }
        if args.num_syncobj_handles > 0 {
            call.read_u32s(args.input_fence_syncobj_handles, args.num_syncobj_handles)?;
            return Err(Errno::ENOENT);
        }
        if args.vm_timeline_syncobj_out == 0 { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn map_gem(&self, state: &mut State, gpu: usize, part: Part) -> Result<(), Errno> {
        let Part { va, bytes, handle, backing, offset, access } = part;
        self.hardware.map(gpu, &GpuMapping { va, bytes, access, backing: backing.fd.as_fd(), offset })?;
        state.pdds[gpu].vm.insert(va, VmMapping { bytes, backing, offset, access, gem: Some(handle) });
        Ok(())
    }

    /// UNMAP: ends the whole mapping of the object that starts at the page. The given size is ignored.
    fn unmap_gem(&self, state: &mut State, gpu: usize, handle: u32, va: u64) -> Result<(), Errno> {
        let va = va & !(PAGE - 1);
        let vm = &mut state.pdds[gpu].vm;
        let mapping = vm.exact(va, 0).filter(|mapping| mapping.gem == Some(handle)).ok_or(Errno::ENOENT)?;
        if vm.is_held(mapping.backing.identity) {
            return Err(Errno::EBUSY);
        }
        self.hardware.unmap(gpu, va, mapping.bytes);
        vm.remove(va);
        Ok(())
    }

    /// CLEAR: takes the range out of every mapping.
    fn clear(&self, state: &mut State, gpu: usize, va: u64, bytes: u64) -> Result<(), Errno> {
        let vm = &mut state.pdds[gpu].vm;
        check_clearable(vm, va, bytes)?;
        for (start, mapping) in vm.touching(va, bytes) {
            let (from, to) = (start.max(va), (start + mapping.bytes).min(va + bytes));
            self.hardware.unmap(gpu, from, to - from);
        }
        vm.cut(va, bytes);
        Ok(())
    }

    /// REPLACE: takes the range out of every mapping and maps it. A failure of the hardware leaves it not mapped.
    fn replace(&self, state: &mut State, gpu: usize, part: Part) -> Result<(), Errno> {
        let Part { va, bytes, handle, offset, access, .. } = part;
        if !is_mapped_so(&state.pdds[gpu].vm, &part) {
            self.clear(state, gpu, va, bytes)?;
            return self.map_gem(state, gpu, part);
        }
        let vm = &mut state.pdds[gpu].vm;
        check_clearable(vm, va, bytes)?;
        self.hardware.protect(gpu, va, bytes, access);
        vm.cut(va, bytes);
        vm.insert(va, VmMapping { bytes, backing: part.backing, offset, access, gem: Some(handle) });
        Ok(())
    }
}

/// Where GEM_VA maps. It also allows the upper half of the address space, above the hole; this device has no upper half.
fn check_range(va: u64, bytes: u64) -> Result<(), Errno> {
    let is_there = va >= AMDGPU_VA_RESERVED_BOTTOM && va.checked_add(bytes).is_some_and(|end| end <= VA_END);
    if is_there { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whole pages of the object.
fn check_part(backing: &Backing, va: u64, offset: u64, bytes: u64) -> Result<(), Errno> {
    check_pages(va, offset, bytes)?;
    let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= backing.bytes);
    if is_inside { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whole pages, and at least one (`amdgpu_vm_verify_parameters`).
fn check_pages(va: u64, offset: u64, bytes: u64) -> Result<(), Errno> {
    let whole = [va, offset, bytes].iter().all(|number| number.is_multiple_of(PAGE));
    if whole && bytes > 0 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whether GEM_VA may unmap what lies in the range. Real kernels allow this for KFD's mappings too, and KFD fails later
/// when it misses them. Here each interface can only end its own mappings.
///
/// # Errors
/// `EINVAL` when KFD mapped some of it, `EBUSY` when a queue uses the memory.
fn check_clearable(vm: &Vm, va: u64, bytes: u64) -> Result<(), Errno> {
    for (_, mapping) in vm.touching(va, bytes) {
        if mapping.gem.is_none() {
            return Err(Errno::EINVAL);
        }
        if vm.is_held(mapping.backing.identity) {
            return Err(Errno::EBUSY);
        }
    }
    Ok(())
}

/// Whether the whole range already maps the wanted pages, with any permissions.
fn is_mapped_so(vm: &Vm, part: &Part) -> bool {
    let mut at = part.va;
    for (start, mapping) in vm.touching(part.va, part.bytes) {
        let same = mapping.backing.identity == part.backing.identity
            && mapping.offset.wrapping_sub(start) == part.offset.wrapping_sub(part.va);
        if start > at || !same {
            return false;
        }
        at = start + mapping.bytes;
    }
    at >= part.va + part.bytes
}
