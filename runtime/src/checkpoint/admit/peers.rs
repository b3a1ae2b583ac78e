// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which agents map each other's memory: what copies through the host's memory cannot stand in for.
//!
//! INVARIANT: every buffer object that an agent maps in another agent's memory is counted, however it came to be mapped
//! there. System memory needs no path between agents.

use std::collections::BTreeMap;
use std::fmt;

use kfd::sys::KFD_IOC_ALLOC_MEM_FLAGS_VRAM;

use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, BoKind, BoState};

/// Buffers in one agent's memory that another maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerBuffers {
    /// One of them.
    pub first: BoKey,
    /// How many others there are.
    pub more: u32,
}

impl fmt::Display for PeerBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer {}", self.first)?;
        match self.more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// By owner and by who maps them, as indices of agents.
pub(super) type PeerMappings = BTreeMap<(usize, usize), PeerBuffers>;

/// The agent that a path must lead to for another to map this.
fn owner(state: &BoState) -> Option<usize> {
    match state.kind {
        BoKind::Vram | BoKind::Doorbell => Some(state.agent.at()),
        BoKind::Imported if state.flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM != 0 => {
            state.sharing.and_then(|sharing| sharing.home).map(|home| home.at())
        }
        BoKind::Gtt | BoKind::Userptr { .. } | BoKind::Imported | BoKind::Reserved => None,
    }
}

/// What is mapped across agents.
pub(super) fn peer_mappings(registry: &Registry) -> PeerMappings {
    let mut mappings = PeerMappings::new();
    for (key, bo) in registry.bos.iter() {
        let Some(owner) = owner(&bo.state) else { continue };
        for peer in bo.state.mapped.iter().map(|agent| agent.at()).filter(|&peer| peer != owner) {
            count(&mut mappings, (owner, peer), key);
        }
    }
    // Parts of ranges: the memory's owner, and who may access them.
    for (_, entry) in registry.maps.iter() {
        let memory = entry.state.memory;
        let Some(owner) = registry.bos.get(memory).and_then(|bo| owner(&bo.state)) else { continue };
        for peer in entry.state.access.iter().map(|(agent, _)| agent.at()).filter(|&peer| peer != owner) {
            count(&mut mappings, (owner, peer), memory);
        }
    }
    mappings
}

fn count(mappings: &mut PeerMappings, pair: (usize, usize), key: BoKey) {
    mappings
        .entry(pair)
        .and_modify(|buffers| buffers.more = buffers.more.saturating_add(1))
        .or_insert(PeerBuffers { first: key, more: 0 });
}
