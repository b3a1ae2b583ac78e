// SPDX-License-Identifier: MIT OR Apache-2.0
//! One GPU's address space of the process: the mappings, and how many queues use the memory of each.
//!
//! INVARIANT: mappings never overlap. A mapping corresponds to `amdgpu_bo_va_mapping`, not to a buffer object. The
//! count of queues belongs to the pair of memory and address space (`bo_va->queue_refcount`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::PAGE;
use super::bo::{Backing, Run};
use super::memfd::Identity;
use crate::hardware::PageAccess;

/// One mapping.
#[derive(Clone, Debug)]
pub(super) struct VmMapping {
    pub(super) bytes: u64,
    pub(super) backing: Arc<Backing>,
    /// Offset in the backing.
    pub(super) offset: u64,
    pub(super) access: PageAccess,
    /// The handle of the acquired render node with which GEM_VA made the mapping; none if KFD made it.
    pub(super) gem: Option<u32>,
}

/// An address space.
#[derive(Debug, Default)]
pub(super) struct Vm {
    mappings: BTreeMap<u64, VmMapping>,
    queue_refs: HashMap<Identity, u32>,
}

impl Vm {
    /// Whether anything is mapped in the range. The caller has checked that it does not wrap.
    pub(super) fn overlaps(&self, va: u64, bytes: u64) -> bool {
        let end = va.saturating_add(bytes);
        self.mappings.range(..end).next_back().is_some_and(|(start, mapping)| start + mapping.bytes > va)
    }

    pub(super) fn insert(&mut self, va: u64, mapping: VmMapping) {
        self.mappings.insert(va, mapping);
    }

    pub(super) fn remove(&mut self, va: u64) -> Option<VmMapping> {
        self.mappings.remove(&va)
    }

    /// What is mapped in the range, by address.
    pub(super) fn touching(&self, va: u64, bytes: u64) -> impl Iterator<Item = (u64, &VmMapping)> {
        let end = va.saturating_add(bytes);
        let crossing =
            self.mappings.range(..va).next_back().filter(|(start, mapping)| **start + mapping.bytes > va);
        crossing.into_iter().chain(self.mappings.range(va..end)).map(|(start, mapping)| (*start, mapping))
    }

    /// Unmaps the range. Parts of mappings before and after it stay.
    pub(super) fn cut(&mut self, va: u64, bytes: u64) {
        let end = va.saturating_add(bytes);
        let touched: Vec<u64> = self.touching(va, bytes).map(|(start, _)| start).collect();
        for start in touched {
            let Some(mapping) = self.mappings.remove(&start) else { continue };
            let behind = start + mapping.bytes;
            if behind > end {
                let offset = mapping.offset + (end - start);
                self.mappings.insert(end, VmMapping { bytes: behind - end, offset, ..mapping.clone() });
            }
            if start < va {
                self.mappings.insert(start, VmMapping { bytes: va - start, ..mapping });
            }
        }
    }

    /// All mappings, by address.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &VmMapping)> {
        self.mappings.iter().map(|(va, mapping)| (*va, mapping))
    }

    /// How many mappings GEM_VA made.
    pub(super) fn made_with_handles(&self) -> usize {
        self.mappings.values().filter(|mapping| mapping.gem.is_some()).count()
    }

    /// Address and bytes of every mapping made with a handle of the render node.
    pub(super) fn of_gem(&self, handle: u32) -> Vec<(u64, u64)> {
        let made = self.mappings.iter().filter(|(_, mapping)| mapping.gem == Some(handle));
        made.map(|(va, mapping)| (*va, mapping.bytes)).collect()
    }

    /// The mapping that starts at the page of `va` and is exactly `bytes` long (`kfd_queue_buffer_get`). `bytes` 0
    /// asks for any length.
    pub(super) fn exact(&self, va: u64, bytes: u64) -> Option<&VmMapping> {
        let mapping = self.mappings.get(&(va & !(PAGE - 1)))?;
        (bytes == 0 || mapping.bytes == bytes).then_some(mapping)
    }

    /// What is behind `bytes` bytes at `va`, if they lie in one mapping.
    pub(super) fn runs(&self, va: u64, bytes: u64) -> Option<Vec<Run>> {
        let (start, mapping) = self.mappings.range(..=va).next_back()?;
        let inside = va - start;
        if inside.checked_add(bytes)? > mapping.bytes {
            return None;
        }
        mapping.backing.part(mapping.offset + inside, bytes)
    }

    pub(super) fn hold(&mut self, memory: Identity) {
        *self.queue_refs.entry(memory).or_default() += 1;
    }

    pub(super) fn release(&mut self, memory: Identity) {
        if let Some(count) = self.queue_refs.get_mut(&memory) {
            *count -= 1;
            if *count == 0 {
                self.queue_refs.remove(&memory);
            }
        }
    }

    /// Whether a queue uses this memory here.
    pub(super) fn is_held(&self, memory: Identity) -> bool {
        self.queue_refs.contains_key(&memory)
    }
}
