// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of a process that is restored: backings, buffers, handles, mappings.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use kfd::sys::*;
use nix::errno::Errno;

use super::{Found, Restore, damaged, gpu_index};
use crate::driver::PAGE;
use crate::driver::bo::{Backing, Bo, Charge, Domain, Run, vram_charge};
use crate::driver::dmabuf::foreign_bytes;
use crate::driver::drm::{Gem, GemMapping, Metadata};
use crate::driver::files::Node;
use crate::driver::ledger::Resource;
use crate::driver::memfd::{self, Identity};
use crate::driver::persist::state::*;
use crate::driver::process::{FIRST_MMAP_OFFSET, State};
use crate::persist::{Part, PersistError};

/// Gives a memory its metadata back.
pub(super) fn restore_metadata(memory: BorrowedFd<'_>, metadata: &[u8]) -> Result<(), Errno> {
    // Memory that was not carried by CRIU has it still.
    if Metadata::bytes_of(memory)? == metadata { Ok(()) } else { Metadata::set_bytes(memory, metadata) }
}

impl Restore<'_> {
    /// A backing, whose part of the ledger is taken again.
    pub(super) fn backing(&self, index: u64, saved: &BackingState) -> Result<Arc<Backing>, PersistError> {
        let broken = || damaged(Part::Backing, index);
        let gpu = gpu_index(self.process, saved.gpu).ok_or_else(broken)?;
        let domain = saved.domain;
        let runs = saved.runs.iter().map(|run| self.run(run)).collect::<Result<Vec<_>, _>>()?;
        let total = runs.iter().try_fold(0u64, |sum, run| sum.checked_add(run.bytes));
        if saved.bytes == 0 || total != Some(saved.bytes) {
            return Err(broken());
        }
        if let IdentityState::Client(number) = saved.identity {
            let is_known = (1..=self.saved.last_client_memory).contains(&number);
            let is_its = domain == Domain::Userptr
                && is_known
                && saved.charged
                && !saved.read_only
                && !runs.is_empty();
            if !is_its {
                return Err(broken());
            }
            let charge = self.charge(gpu, domain, saved)?;
            let backing = Backing::of_client(runs, Identity::of_client(number), saved.bytes, gpu, charge);
            return backing.map_err(|_| broken());
        }
        let ([run], [place]) = (&runs[..], &saved.runs[..]) else { return Err(broken()) };
        let found = self.memory(place.memory)?;
        let is_whole = run.offset == 0 && run.bytes == found.bytes;
        if !is_whole || saved.identity != IdentityState::Memory(place.memory) {
            return Err(broken());
        }
        if !self.is_memory_of(domain, gpu, saved.charged, found)? {
            return Err(broken());
        }
        let run = match saved.read_only {
            true => Run { fd: Arc::new(memfd::reopen_read_only(found.fd.as_fd())?), ..run.clone() },
            false => run.clone(),
        };
        let charge = self.charge(gpu, domain, saved)?;
        Ok(Backing::of_run(run, found.identity, domain, gpu, charge))
    }

    pub(super) fn run(&self, saved: &RunState) -> Result<Run, PersistError> {
        let &RunState { memory, offset, bytes } = saved;
        let found = self.memory(memory)?;
        let end = offset.checked_add(bytes);
        let is_inside = end.is_some_and(|end| end <= found.bytes);
        if !is_inside || bytes == 0 || !offset.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
            return Err(damaged(Part::Memory, memory));
        }
        Ok(Run { fd: Arc::clone(&found.fd), offset, bytes })
    }

    /// Whether a memory of this domain and GPU can be this file. `charged`: the process made it.
    fn is_memory_of(
        &self,
        domain: Domain,
        gpu: usize,
        charged: bool,
        memory: &Found,
    ) -> Result<bool, PersistError> {
        let hardware = &self.process.hardware;
        let is_file = |other: Result<std::os::fd::OwnedFd, Errno>| -> Result<bool, PersistError> {
            Ok(!charged && memfd::identity(other?.as_fd())? == memory.identity)
        };
        match domain {
            Domain::Vram { .. } | Domain::Gtt => {
                let fd = memory.fd.as_fd();
                let ours = self.process.describe(fd).map(|(domain, gpu, _)| (domain, gpu));
                let foreign = || !charged && domain == Domain::Gtt && foreign_bytes(fd).is_some();
                Ok(ours == Ok((domain, gpu)) || ours.is_err() && foreign())
            }
            Domain::Doorbell => is_file(hardware.doorbells(gpu).map(|(slice, _)| slice)),
            Domain::Mmio => is_file(hardware.hdp_page(gpu)),
            Domain::Userptr => Ok(false),
        }
    }

    fn charge(&self, gpu: usize, domain: Domain, saved: &BackingState) -> Result<Charge, PersistError> {
        let process = self.process;
        if !saved.charged {
            return Ok(Charge::none(&process.slot));
        }
        process.charge(gpu, domain, saved.bytes).map_err(|_| {
            let (resource, amount) = match domain {
                Domain::Vram { .. } => (Resource::Vram(gpu), vram_charge(saved.bytes).unwrap_or(saved.bytes)),
                _ => (Resource::System, saved.bytes),
            };
            PersistError::Exhausted { resource, amount }
        })
    }

    /// Has the DMABuf of a backing be known again; a memory has one backing.
    pub(super) fn remember(
        &self,
        state: &mut State,
        index: u64,
        backing: &Arc<Backing>,
    ) -> Result<(), PersistError> {
        let is_shareable = backing.domain.is_shareable();
        let is_taken = match is_shareable {
            true => state.backings.contains_key(&backing.identity),
            false => self
                .backings
                .iter()
                .any(|other| other.domain == Domain::Userptr && other.identity == backing.identity),
        };
        if is_taken {
            return Err(damaged(Part::Backing, index));
        }
        if is_shareable {
            state.remember(backing);
        }
        Ok(())
    }

    /// Whether the render nodes gave this offset to memory of so many bytes.
    fn is_given(&self, mmap_offset: u64, bytes: u64) -> bool {
        let end = mmap_offset.checked_add(bytes);
        mmap_offset >= FIRST_MMAP_OFFSET && end.is_some_and(|end| end <= self.saved.next_mmap_offset)
    }

    pub(super) fn buffer(&self, gpu: usize, saved: &BufferState) -> Result<Bo, PersistError> {
        let backing = self.backing_at(saved.backing)?;
        let &BufferState { va, flags, mmap_offset, mapped, lost, .. } = saved;
        // What ALLOC takes for this domain, or IMPORT_DMABUF gives it.
        let is_its = match backing.domain {
            Domain::Vram { .. } | Domain::Gtt => {
                let own = backing.gpu == gpu && flags & backing.domain.flag() != 0;
                own || backing.gpu != gpu && flags & KFD_IOC_ALLOC_MEM_FLAGS_GTT != 0
            }
            domain => backing.gpu == gpu && flags & domain.flag() != 0,
        };
        let has_offset = match backing.domain {
            Domain::Userptr => mmap_offset != 0,
            Domain::Mmio => mmap_offset == 0,
            _ => self.is_given(mmap_offset, backing.bytes),
        };
        let beyond = u64::from(mapped) >> self.process.gpus.len();
        let is_loss_possible = !lost || backing.domain == Domain::Userptr;
        if !is_its || !has_offset || beyond != 0 || !is_loss_possible {
            return Err(damaged(Part::Buffer, saved.index));
        }
        Ok(Bo { backing, va, flags, mmap_offset, mapped: 0, lost })
    }

    /// Maps the buffers of a GPU on all GPUs that had mapped them.
    pub(super) fn map_buffers(
        &self,
        state: &mut State,
        owner: usize,
        saved: &PddState,
    ) -> Result<(), PersistError> {
        for buffer in &saved.buffers {
            for gpu in self.process.gpus_of(buffer.mapped) {
                state.bound(gpu).map_err(|_| damaged(Part::Buffer, buffer.index))?;
                let mapped = self.process.map_on(state, owner, buffer.index, gpu);
                let bytes = state.bo(owner, buffer.index).map_or(0, |bo| bo.backing.bytes);
                mapped.map_err(|source| PersistError::Map { gpu, va: buffer.va, bytes, source })?;
            }
        }
        Ok(())
    }

    pub(super) fn handle(&self, state: &mut State, saved: &HandleState) -> Result<(), PersistError> {
        let &HandleState { file, slot, backing, mmap_offset, read_only } = saved;
        let broken = || damaged(Part::Handle, u64::from(slot) + 1);
        let backing = self.backing_at(backing)?;
        let is_render = state.files.get(file).is_some_and(|file| matches!(file.node(), Node::Render { .. }));
        let is_shareable = backing.domain.is_shareable();
        if !is_render || !is_shareable || !self.is_given(mmap_offset, backing.bytes) {
            return Err(broken());
        }
        let table = state.gems.entry(file).or_default();
        // A file has one handle for a memory.
        if table.find(backing.identity).is_some() {
            return Err(broken());
        }
        if table.slots.insert_at(slot, Gem { backing, mmap_offset, read_only }) {
            Ok(())
        } else {
            Err(broken())
        }
    }

    /// Makes a GPU's mappings of GEM_VA.
    pub(super) fn map_parts(
        &self,
        state: &mut State,
        gpu: usize,
        saved: &PddState,
    ) -> Result<(), PersistError> {
        for &MappingState { va, bytes, backing, offset, handle, access } in &saved.mappings {
            let backing = self.backing_at(backing)?;
            let part = GemMapping { va, bytes, handle, backing, offset, access };
            let mapped = self.process.restore_gem_va(state, gpu, part);
            mapped.map_err(|source| PersistError::Map { gpu, va, bytes, source })?;
        }
        Ok(())
    }
}
