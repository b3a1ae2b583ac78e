// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffer objects, their backing memory, and the table that hands out their numbers.
//!
//! INVARIANT: a memory has one backing, whether this process allocated or imported it. When the last reference to the
//! backing is dropped, the backing gives back to the ledger what it took.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::PAGE;
use super::ledger::{LedgerSlot, Resource};
use super::memfd::{self, Identity};
use crate::names;
use crate::reaper;
use kfd::sys::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Unit of VRAM accounting (`VRAM_AVAILABLITY_ALIGN` of amdgpu_amdkfd_gpuvm.c).
pub(super) const VRAM_UNIT: u64 = 2 << 20;

/// Where a buffer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Domain {
    Vram { public: bool },
    Gtt,
    Userptr,
    Doorbell,
    Mmio,
}

impl Domain {
    /// What the name of the memfd begins with; import recognises VRAM and GTT by it.
    pub(super) fn memfd_name(self, gpu_id: u32) -> String {
        match self {
            Self::Vram { public: true } => format!("softgpu:vram-public:{gpu_id}"),
            Self::Vram { public: false } => format!("softgpu:vram:{gpu_id}"),
            Self::Gtt => format!("softgpu:gtt:{gpu_id}"),
            Self::Userptr => format!("softgpu:userptr:{gpu_id}"),
            Self::Doorbell => format!("softgpu:doorbell:{gpu_id}"),
            Self::Mmio => format!("softgpu:mmio:{gpu_id}"),
        }
    }

    /// What a DMABuf's memfd name says: its domain and the GPU id of its exporter.
    pub(super) fn of_dmabuf(name: &str) -> Option<(Self, u32)> {
        let mut parts = name.strip_prefix(names::prefix())?.strip_prefix(':')?.split(':');
        let (domain, gpu_id) = (parts.next()?, parts.next()?);
        let domain = match domain {
            "vram" => Self::Vram { public: false },
            "vram-public" => Self::Vram { public: true },
            "gtt" => Self::Gtt,
            _ => return None,
        };
        Some((domain, gpu_id.parse().ok()?))
    }

    /// Whether its memory can be a DMABuf.
    pub(super) fn is_shareable(self) -> bool {
        matches!(self, Self::Vram { .. } | Self::Gtt)
    }

    /// The allocation flag of the domain.
    pub(super) fn flag(self) -> u32 {
        match self {
            Self::Vram { .. } => KFD_IOC_ALLOC_MEM_FLAGS_VRAM,
            Self::Gtt => KFD_IOC_ALLOC_MEM_FLAGS_GTT,
            Self::Userptr => KFD_IOC_ALLOC_MEM_FLAGS_USERPTR,
            Self::Doorbell => KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL,
            Self::Mmio => KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP,
        }
    }
}

/// What a backing took from the ledger. Dropping it gives this back.
#[derive(Debug)]
pub(super) struct Charge {
    slot: LedgerSlot,
    items: Vec<(Resource, u64)>,
}

impl Charge {
    /// Nothing.
    pub(super) fn none(slot: &LedgerSlot) -> Self {
        Self { slot: slot.clone(), items: Vec::new() }
    }

    /// Takes all of `items` or nothing.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn take(slot: &LedgerSlot, items: &[(Resource, u64)]) -> Result<Self, Errno> {
        let mut charge = Self::none(slot);
        for (resource, amount) in items {
            slot.reserve(*resource, *amount)?;
            charge.items.push((*resource, *amount));
        }
        Ok(charge)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        for (resource, amount) in &self.items {
            self.slot.release(*resource, *amount);
        }
    }
}

/// A part of a memory: so many bytes of a file.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Memory.
#[derive(Debug)]
pub(super) struct Backing {
    /// The file of the first run, which is the only one unless the memory is the client's own.
    pub(super) fd: Arc<OwnedFd>,
    /// What the memory is made up of, in order.
    pub(super) runs: Vec<Run>,
    pub(super) identity: Identity,
    pub(super) bytes: u64,
    pub(super) domain: Domain,
    /// GPU that owns it (VRAM) or allocated it.
    pub(super) gpu: usize,
    charge: Charge,
}

impl Drop for Backing {
    fn drop(&mut self) {
        if matches!(self.domain, Domain::Vram { .. } | Domain::Gtt) {
            let (fd, runs) = (Arc::clone(&self.fd), std::mem::take(&mut self.runs));
            reaper::close_later(self.bytes, move || drop((fd, runs)));
        }
    }
}

/// The part of `runs` that begins so many bytes after their start.
fn cut(runs: &[Run], offset: u64, bytes: u64) -> Option<Vec<Run>> {
    let (mut skip, mut left) = (offset, bytes);
    let mut part = Vec::new();
    for run in runs {
        let front = skip.min(run.bytes);
        skip -= front;
        let bytes = (run.bytes - front).min(left);
        if bytes > 0 {
            part.push(Run { fd: Arc::clone(&run.fd), offset: run.offset + front, bytes });
            left -= bytes;
        }
    }
    (left == 0).then_some(part)
}

impl Backing {
    /// Memory in one file.
    pub(super) fn new(
        fd: OwnedFd,
        bytes: u64,
        domain: Domain,
        gpu: usize,
        charge: Charge,
    ) -> Result<Arc<Self>, Errno> {
        let identity = memfd::identity(fd.as_fd())?;
        Ok(Self::of_run(Run { fd: Arc::new(fd), offset: 0, bytes }, identity, domain, gpu, charge))
    }

    /// Memory of the client: the first of these runs that make up so many bytes.
    ///
    /// # Errors
    /// `EFAULT` when they have less.
    pub(super) fn of_client(
        runs: Vec<Run>,
        identity: Identity,
        bytes: u64,
        gpu: usize,
        charge: Charge,
    ) -> Result<Arc<Self>, Errno> {
        let runs = cut(&runs, 0, bytes).ok_or(Errno::EFAULT)?;
        let fd = runs.first().map(|run| Arc::clone(&run.fd)).ok_or(Errno::EFAULT)?;
        Ok(Arc::new(Self { fd, runs, identity, bytes, domain: Domain::Userptr, gpu, charge }))
    }

    /// Memory in one file that is shared with others.
    pub(super) fn of_run(
        run: Run,
        identity: Identity,
        domain: Domain,
        gpu: usize,
        charge: Charge,
    ) -> Arc<Self> {
        let (fd, bytes) = (Arc::clone(&run.fd), run.bytes);
        Arc::new(Self { fd, runs: vec![run], identity, bytes, domain, gpu, charge })
    }

    /// Whether this process took it from the ledger.
    pub(super) fn is_charged(&self) -> bool {
        !self.charge.items.is_empty()
    }

    /// The runs of a part of it; `None` if it has less.
    pub(super) fn part(&self, offset: u64, bytes: u64) -> Option<Vec<Run>> {
        cut(&self.runs, offset, bytes)
    }
}

/// A handle's object (`struct kgd_mem`).
#[derive(Debug)]
pub(super) struct Bo {
    pub(super) backing: Arc<Backing>,
    /// Address recorded at allocation; 0 for a handle without one.
    pub(super) va: u64,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_*` as allocated.
    pub(super) flags: u32,
    /// Offset on the acquired render node.
    pub(super) mmap_offset: u64,
    /// Bit per GPU that maps it.
    pub(super) mapped: u32,
    /// Whether the client has no longer all of the pages: no GPU has any in its page tables then, whether it maps the buffer or
    /// not (`super::notifier`).
    pub(super) lost: bool,
}

impl Bo {
    /// How often the backing appears at the address: AQL_QUEUE_MEM maps it twice, back to back.
    pub(super) fn copies(&self) -> u64 {
        if self.flags & KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM != 0 { 2 } else { 1 }
    }

    pub(super) fn is_mapped_on(&self, gpu: usize) -> bool {
        self.mapped & (1 << gpu) != 0
    }

    pub(super) fn writable(&self) -> bool {
        self.flags & KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE != 0
    }
}

/// Numbers for objects from 0, as the kernel's idr gives them: the lowest free one, or a chosen one.
#[derive(Debug)]
pub(super) struct Slots<T> {
    entries: BTreeMap<u32, T>,
    /// No number below this is free.
    first_free: u32,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), first_free: 0 }
    }
}

impl<T> Slots<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let mut at = self.first_free;
        for taken in self.entries.range(at..).map(|(id, _)| *id) {
            if taken != at {
                break;
            }
            at += 1;
        }
        self.entries.insert(at, value);
        self.first_free = at + 1;
        at
    }

    /// Inserts at a chosen number; fails if the number is taken, or larger than the kernel gives (`INT_MAX`).
    #[must_use]
    pub(super) fn insert_at(&mut self, id: u32, value: T) -> bool {
        let free = id <= i32::MAX.unsigned_abs() && !self.entries.contains_key(&id);
        if free {
            self.entries.insert(id, value);
        }
        free
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.entries.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.entries.remove(&id)?;
        self.first_free = self.first_free.min(id);
        Some(value)
    }

    /// By number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().map(|(id, value)| (*id, value))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries.iter_mut().map(|(id, value)| (*id, value))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Rounds up to accounting units.
pub(super) fn vram_charge(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(VRAM_UNIT)
}

const _: () = assert!(VRAM_UNIT.is_multiple_of(PAGE));

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dmabuf_name_round_trips_vram_and_gtt_only() {
        for domain in [Domain::Vram { public: true }, Domain::Vram { public: false }, Domain::Gtt] {
            let name = names::unique(&domain.memfd_name(77)).unwrap();
            assert_eq!(Domain::of_dmabuf(&name), Some((domain, 77)), "{name}");
        }
        for name in ["softgpu:userptr:1", "softgpu:file", "softgpu:vram:x", "vram:1", ""] {
            assert_eq!(Domain::of_dmabuf(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn slots_always_give_the_lowest_free_number(steps in prop::collection::vec((0..3, 0u32..20), 0..200)) {
            let mut slots = Slots::default();
            let mut model = BTreeMap::new();
            for (step, id) in steps {
                if step == 2 {
                    let free = !model.contains_key(&id);
                    prop_assert_eq!(slots.insert_at(id, id), free);
                    model.entry(id).or_insert(id);
                } else if step == 1 {
                    let lowest = (0..).find(|id| !model.contains_key(id)).unwrap();
                    prop_assert_eq!(slots.insert(id), lowest);
                    model.insert(lowest, id);
                } else {
                    prop_assert_eq!(slots.remove(id), model.remove(&id));
                }
                prop_assert_eq!(slots.len(), model.len());
            }
        }
    }

    #[test]
    fn insert_at_gives_no_number_beyond_the_kernels_last() {
        let mut slots = Slots::default();
        assert!(!slots.insert_at(1 << 31, ()));
        assert!(slots.insert_at((1 << 31) - 1, ()));
        assert_eq!(slots.insert(()), 0);
    }
}
