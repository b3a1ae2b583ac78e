// SPDX-License-Identifier: MIT OR Apache-2.0
//! What memory is asked for: the runtime's own, or a buffer's.

use crate::context::device::flags;
use crate::context::registry::arena;
use crate::context::registry::arena::page_align;
use crate::context::registry::state::{AgentIndex, BoKind, BoRole, BoState};
use queues::words::count;

/// Memory to be made for the runtime itself or a buffer.
#[derive(Clone, Debug)]
pub struct Request {
    pub kind: BoKind,
    pub role: BoRole,
    pub bytes: u64,
    pub flags: u32,
    pub agent: AgentIndex,
    pub mapped: Vec<AgentIndex>,
    pub cpu_mapped: bool,
    /// Power of two, at least a page.
    pub align: u64,
    /// Where it has to be, if not anywhere.
    pub at: Option<u64>,
}

impl Request {
    /// System memory for the runtime's own structures, mapped to one agent.
    pub fn queue_memory(role: BoRole, bytes: u64, agent: AgentIndex) -> Self {
        Request {
            kind: BoKind::Gtt,
            role,
            bytes,
            flags: flags::QUEUE,
            agent,
            mapped: vec![agent],
            cpu_mapped: true,
            align: arena::PAGE,
            at: None,
        }
    }

    /// System memory mapped to all `agents` agents.
    pub fn shared(role: BoRole, bytes: u64, agents: usize) -> Self {
        // CAST: there are at most 64 agents.
        let mapped = (0..count(agents)).map(AgentIndex).collect();
        Request { mapped, flags: flags::GTT, ..Request::queue_memory(role, bytes, AgentIndex(0)) }
    }

    /// An agent's memory; the CPU sees it if it can.
    pub fn vram(role: BoRole, bytes: u64, agent: AgentIndex, visible: bool) -> Self {
        Request {
            kind: BoKind::Vram,
            flags: if visible { flags::VRAM_VISIBLE } else { flags::VRAM_HIDDEN },
            cpu_mapped: visible,
            ..Request::queue_memory(role, bytes, agent)
        }
    }

    /// Its entry's state, for the pages it takes; an address that is not asked for is chosen at registration.
    pub fn into_state(self) -> BoState {
        let Request { kind, role, bytes, flags, agent, mapped, cpu_mapped, align: _, at } = self;
        // Saturates above any window's length; the registration refuses it then.
        let bytes = page_align(bytes).unwrap_or(!(arena::PAGE - 1));
        BoState {
            kind,
            role,
            bytes,
            va: at.unwrap_or(0),
            flags,
            agent,
            mapped,
            for_copies: Vec::new(),
            cpu_mapped,
            sharing: None,
            label: None,
        }
    }
}
