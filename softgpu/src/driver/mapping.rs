// SPDX-License-Identifier: MIT OR Apache-2.0
//! MAP_MEMORY_TO_GPU and UNMAP_MEMORY_FROM_GPU.
//!
//! INVARIANT: GPUs are done one after another from `n_success`, which always says how many are done, so that an
//! interrupted call can be repeated unchanged. Memory that a queue uses stays mapped.

use std::os::fd::AsFd;
use std::sync::Arc;

use kfd::sys::*;
use nix::errno::Errno;

use super::bo::{Backing, Domain};
use super::process::{KfdProcess, State, split_handle};
use super::vm::VmMapping;
use super::{Call, PAGE};
use crate::hardware::{GpuMapping, PageAccess};

/// First address above the lower half of the GPU's address space.
pub(super) const VA_END: u64 = 0x8000_0000_0000;

/// A mapping of the buffer that is to be made.
struct Part {
    va: u64,
    bytes: u64,
}

impl KfdProcess {
    pub(super) fn map_memory(
        &self,
        args: &mut kfd_ioctl_map_memory_to_gpu_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let ids = device_ids(args.n_devices, args.n_success, args.device_ids_array_ptr, call)?;
        let mut state = self.state.lock();
        let (owner_id, index) = split_handle(args.handle);
        let owner = self.gpu_by_id(owner_id)?;
        state.bound(owner)?;
        state.bo(owner, index).ok_or(Errno::ENOMEM)?;
        for id in &ids[args.n_success as usize..] {
            let gpu = self.gpu_by_id(*id)?;
            state.bound(gpu)?;
            self.map_on(&mut state, owner, index, gpu)?;
            args.n_success += 1;
        }
        Ok(())
    }

    /// Maps a buffer on one GPU; does nothing if it is mapped there.
    pub(super) fn map_on(
        &self,
        state: &mut State,
        owner: usize,
        index: u32,
        gpu: usize,
    ) -> Result<(), Errno> {
        let bo = state.bo(owner, index).ok_or(Errno::ENOMEM)?;
        if bo.is_mapped_on(gpu) {
            return Ok(());
        }
        if !self.peer_accessible(&bo.backing, gpu) {
            return Err(Errno::EINVAL);
        }
        let parts = parts(bo.va, bo.backing.bytes, bo.copies())?;
        let vm = &state.pdds[gpu].vm;
        if parts.iter().any(|part| vm.overlaps(part.va, part.bytes)) {
            return Err(Errno::EINVAL);
        }
        let execute = bo.flags & KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE != 0;
        let access = PageAccess { read: true, write: bo.writable(), execute };
        let (backing, lost) = (Arc::clone(&bo.backing), bo.lost);
        let mut done = Vec::new();
        for part in parts.iter().filter(|_| !lost) {
            let mut va = part.va;
            for run in &backing.runs {
                let (bytes, offset) = (run.bytes, run.offset);
                let mapping = GpuMapping { va, bytes, access, backing: run.fd.as_fd(), offset };
                if let Err(errno) = self.hardware.map(gpu, &mapping) {
                    done.iter().for_each(|(va, bytes)| self.hardware.unmap(gpu, *va, *bytes));
                    return Err(errno);
                }
                done.push((va, bytes));
                va += bytes;
            }
        }
        let vm = &mut state.pdds[gpu].vm;
        for part in &parts {
            let backing = Arc::clone(&backing);
            vm.insert(part.va, VmMapping { bytes: part.bytes, backing, offset: 0, access, gem: None });
        }
        if let Some(bo) = state.bo_mut(owner, index) {
            bo.mapped |= 1 << gpu;
        }
        Ok(())
    }

    /// Whether `gpu` can reach a buffer (`kfd_mem_attach`). It reaches system memory always, VRAM in its own hive or
    /// over PCIe, doorbells and registers over PCIe only. PCIe may work in one direction only.
    fn peer_accessible(&self, backing: &Backing, gpu: usize) -> bool {
        match backing.domain {
            Domain::Vram { .. } => self.gpus[gpu].reaches_vram(backing.gpu),
            Domain::Doorbell | Domain::Mmio => self.gpus[gpu].reaches_registers(backing.gpu),
            Domain::Gtt | Domain::Userptr => true,
        }
    }

    pub(super) fn unmap_memory(
        &self,
        args: &mut kfd_ioctl_unmap_memory_from_gpu_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let ids = device_ids(args.n_devices, args.n_success, args.device_ids_array_ptr, call)?;
        let mut state = self.state.lock();
        let (owner_id, index) = split_handle(args.handle);
        let owner = self.gpu_by_id(owner_id)?;
        state.bo(owner, index).ok_or(Errno::ENOMEM)?;
        for id in &ids[args.n_success as usize..] {
            let gpu = self.gpu_by_id(*id)?;
            self.unmap_on(&mut state, owner, index, gpu)?;
            args.n_success += 1;
        }
        Ok(())
    }

    fn unmap_on(&self, state: &mut State, owner: usize, index: u32, gpu: usize) -> Result<(), Errno> {
        let bo = state.bo(owner, index).ok_or(Errno::ENOMEM)?;
        // The same answer is given for a GPU whose address space was not acquired, since nothing can be mapped there.
        if !bo.is_mapped_on(gpu) {
            return Err(Errno::EINVAL);
        }
        if state.pdds[gpu].vm.is_held(bo.backing.identity) {
            return Err(Errno::EBUSY);
        }
        let lost = bo.lost;
        for part in parts(bo.va, bo.backing.bytes, bo.copies())? {
            if !lost {
                self.hardware.unmap(gpu, part.va, part.bytes);
            }
            state.pdds[gpu].vm.remove(part.va);
        }
        if let Some(bo) = state.bo_mut(owner, index) {
            bo.mapped &= !(1 << gpu);
        }
        Ok(())
    }
}

/// Reads the array of GPU ids, after the checks that come before it.
fn device_ids(n_devices: u32, n_success: u32, pointer: u64, call: &Call<'_>) -> Result<Vec<u32>, Errno> {
    if n_devices == 0 || n_success > n_devices {
        return Err(Errno::EINVAL);
    }
    call.read_u32s(pointer, n_devices)
}

/// The mappings of a buffer at its recorded address (`amdgpu_vm_bo_map`'s checks).
fn parts(va: u64, bytes: u64, copies: u64) -> Result<Vec<Part>, Errno> {
    let total = bytes.checked_mul(copies).ok_or(Errno::EINVAL)?;
    let end = va.checked_add(total).ok_or(Errno::EINVAL)?;
    if va == 0 || !va.is_multiple_of(PAGE) || end > VA_END {
        return Err(Errno::EINVAL);
    }
    Ok((0..copies).map(|copy| Part { va: va + copy * bytes, bytes }).collect())
}
