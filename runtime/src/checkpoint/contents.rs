// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which bytes of a drained process are saved.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::error::CheckpointError;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, BoKind};
use crate::image::Extent;
use queues::words::size;

/// The buffer objects whose bytes are saved, in the order of the image's extents.
pub(super) fn saved_buffers(registry: &Registry) -> Result<Vec<BoKey>, CheckpointError> {
    let mut keys = Vec::new();
    for (key, bo) in registry.bos.iter() {
        // A userptr's bytes are the process's own memory: CRIU has them. Shared memory is its session's.
        let is_own = matches!(bo.state.kind, BoKind::Vram | BoKind::Gtt) && bo.state.sharing.is_none();
        if !bo.state.role.has_contents() || !is_own {
            continue;
        }
        if !bo.state.cpu_mapped {
            return Err(CheckpointError::Hidden { bo: key });
        }
        keys.push(key);
    }
    Ok(keys)
}

/// The host mappings of `keys`, for the image.
pub(super) fn extents(registry: &Registry, keys: &[BoKey]) -> Vec<Extent> {
    keys.iter()
        .filter_map(|&key| {
            let state = &registry.bos.get(key)?.state;
            let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(size(state.va)))?;
            // SAFETY: the entry is CPU-mapped at `va` for `bytes` (`saved_buffers` has seen to it, or `rebuild` just
            // mapped it), the gate is closed so that nobody frees it, and the queues are drained.
            Some(unsafe { Extent::new(start, state.bytes) })
        })
        .collect()
}
