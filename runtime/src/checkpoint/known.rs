// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the buffers of a process are known to hold, since they were last saved or filled and nobody has written to them since: such a
//! chunk is not read again.
//!
//! The device tells what its GPUs have written, if it is a software device that was told to look, and the kernel what the process has
//! ([`kfd::written`]). Where one of them does not, nothing is known, and every byte is hashed.
//!
//! INVARIANT: what is not known is read. A chunk is known from when it is read or filled until a look finds it written; the look before that was
//! earlier than the read or the fill. Memory that others may write is never known: shared memory, physical memory that ranges map, and all
//! memory after the process has forked.

use std::collections::BTreeMap;

use kfd::forks;
use kfd::written::{Units, WrittenPages};
use parking_lot::Mutex;

use crate::context::device::Device;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, BoKind, BoRole, BoState};
use crate::image::{CHUNK_BYTES, KnownChunk};

/// What the buffers of a context are known to hold.
#[derive(Debug, Default)]
pub(super) struct KnownContents(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    pages: WrittenPages,
    buffers: BTreeMap<BoKey, Buffer>,
}

#[derive(Debug)]
struct Buffer {
    bytes: u64,
    /// What is missing is not known.
    chunks: Vec<KnownChunk>,
}

/// Whether nobody but the process and the agents that it is mapped to can write such an object.
fn is_private(state: &BoState) -> bool {
    matches!(state.kind, BoKind::Vram | BoKind::Gtt)
        && matches!(state.role, BoRole::User | BoRole::Image)
        && state.sharing.is_none()
}

impl KnownContents {
    /// Looks what was written since the last look, and forgets what was known of that. Whether what is read from now on will be known
    /// ([`KnownContents::learn`]).
    pub(super) fn look(&self, registry: &Registry, on: &Device) -> bool {
        let mut known = self.0.lock();
        let before = known.take();
        if forks::happened() {
            return false;
        }
        let mut objects: Vec<_> =
            registry.bos.iter().filter(|(_, bo)| bo.kernel.is_some() && is_private(&bo.state)).collect();
        objects.sort_unstable_by_key(|(_, bo)| bo.state.va);
        let ranges: Vec<(u64, u64)> = objects.iter().map(|(_, bo)| (bo.state.va, bo.state.bytes)).collect();
        let Some(told) = on.transport().written(&ranges, CHUNK_BYTES) else { return false };
        let (pages, mut old) = match before {
            Some(Known { pages, buffers }) => (pages, buffers),
            None => match WrittenPages::new() {
                Ok(pages) => (pages, BTreeMap::new()),
                Err(error) => {
                    tracing::debug!(target: "checkpoint", %error, "the kernel does not tell what was written");
                    return false;
                }
            },
        };
        let Ok(look) = pages.look() else { return false };
        let mut buffers = BTreeMap::new();
        for ((key, bo), mut units) in objects.into_iter().zip(told) {
            let bytes = bo.state.bytes;
            if bo.state.cpu_mapped {
                let range = bo.cpu_va()..bo.cpu_va() + bytes;
                if look.take(&range, range.start, CHUNK_BYTES, &mut units).is_err() {
                    units = Units::all(bytes.div_ceil(CHUNK_BYTES));
                }
            }
            let mut chunks = old.remove(&key).map_or_else(Vec::new, |old| old.chunks);
            for (chunk, unit) in chunks.iter_mut().zip(0..) {
                if units.has(unit) {
                    *chunk = KnownChunk::Unknown;
                }
            }
            buffers.insert(key, Buffer { bytes, chunks });
        }
        drop(look);
        *known = Some(Known { pages, buffers });
        true
    }

    /// What is known of the buffers with these keys, if so many bytes of them are saved.
    pub(super) fn of(&self, saved: impl Iterator<Item = (BoKey, u64)>) -> Vec<Vec<KnownChunk>> {
        let known = self.0.lock();
        let of = |(key, bytes)| {
            let buffer = known.as_ref()?.buffers.get(&key).filter(|buffer| buffer.bytes == bytes)?;
            Some(buffer.chunks.clone())
        };
        saved.map(|saved| of(saved).unwrap_or_default()).collect()
    }

    /// What was read or filled of buffers, of which so many bytes are saved, after the last look.
    pub(super) fn learn(
        &self,
        saved: impl Iterator<Item = (BoKey, u64)>,
        chunks: impl IntoIterator<Item = Vec<KnownChunk>>,
    ) {
        let mut known = self.0.lock();
        let Some(Known { buffers, .. }) = &mut *known else { return };
        for ((key, bytes), chunks) in saved.zip(chunks) {
            if let Some(buffer) = buffers.get_mut(&key).filter(|buffer| buffer.bytes == bytes) {
                buffer.chunks = chunks;
            }
        }
    }

    /// Forgets all, and closes what the kernel tells it by.
    pub(super) fn forget(&self) {
        *self.0.lock() = None;
    }
}
