// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who moves the bytes: compute units or copy engines, by size and by what lies between source and destination.
//!
//! A copy engine runs beside the compute units and takes nothing from kernels, but has a fraction of the bandwidth of an
//! agent's own memory and costs more to start. Over a link (PCIe, XGMI) the link is the limit in any case, so it gets
//! copies early; within one agent's memory only large ones; between two places in system memory none, since then every
//! byte would cross the link twice.
//!
//! INVARIANT: the choice changes who copies, never what is copied.

use crate::registry::state::AgentIndex;

/// Whether [`CopyEngine::Auto`] uses copy engines at all. They can be asked for in any case.
pub const SDMA_IN_AUTO: bool = true;
/// Bytes from which [`CopyEngine::Auto`] gives copies and fills over a link to a copy engine.
pub const SDMA_LINK_BYTES: u64 = 256 << 10;
/// Bytes from which [`CopyEngine::Auto`] gives copies and fills within one agent's memory to a copy engine.
pub const SDMA_LOCAL_BYTES: u64 = 4 << 20;

/// Who is to copy or fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CopyEngine {
    /// Whoever is better at it: a copy engine for [`SDMA_LINK_BYTES`] and more between system memory and an agent or
    /// between two agents, and for [`SDMA_LOCAL_BYTES`] and more within one agent's memory, if the agent has copy
    /// engines and [`SDMA_IN_AUTO`] says so; else a kernel.
    #[default]
    Auto,
    /// A kernel on the agent's compute units.
    Shader,
    /// The agent's copy engines.
    Sdma,
}

/// The choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Shader,
    Sdma,
}

/// Whose memory a buffer is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Host,
    Agent(AgentIndex),
}

/// What lies between destination and source, seen from the agent that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// One agent's memory.
    Local,
    /// Two agents.
    Peer,
    /// From an agent to system memory.
    ToHost,
    /// From system memory to an agent.
    FromHost,
    /// Two places in system memory.
    Host,
}

impl Link {
    /// The link between a destination and a source; a fill has no source but itself.
    pub fn between(owners: &[Owner]) -> Self {
        match *owners {
            [Owner::Agent(to), Owner::Agent(from)] if to != from => Self::Peer,
            [Owner::Agent(_), Owner::Host] => Self::FromHost,
            [Owner::Host, Owner::Agent(_)] => Self::ToHost,
            // What is filled in system memory crosses the link once.
            [Owner::Host] => Self::ToHost,
            [Owner::Host, ..] => Self::Host,
            _ => Self::Local,
        }
    }
}

/// Who is to move `bytes` bytes; `None` if copy engines are asked for and there are none.
pub(super) fn choose(asked: CopyEngine, link: Link, bytes: u64, engines: u32, in_auto: bool) -> Option<Way> {
    let worth = match link {
        Link::Local => bytes >= SDMA_LOCAL_BYTES,
        Link::Peer | Link::ToHost | Link::FromHost => bytes >= SDMA_LINK_BYTES,
        Link::Host => false,
    };
    match asked {
        CopyEngine::Shader => Some(Way::Shader),
        CopyEngine::Sdma if engines == 0 => None,
        CopyEngine::Sdma => Some(Way::Sdma),
        CopyEngine::Auto if in_auto && engines > 0 && worth => Some(Way::Sdma),
        CopyEngine::Auto => Some(Way::Shader),
    }
}

/// The one dword whose repetition is the repetition of `pattern`, if there is one.
pub(super) fn dword_of(pattern: &[u8]) -> Option<u32> {
    if pattern.is_empty() || !(pattern.len().is_multiple_of(4) || 4 % pattern.len() == 0) {
        return None;
    }
    let mut bytes = [0; 4];
    for (byte, &from) in bytes.iter_mut().zip(pattern.iter().cycle()) {
        *byte = from;
    }
    let repeats = pattern.iter().zip(bytes.iter().cycle()).all(|(byte, dword)| byte == dword);
    repeats.then_some(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: Owner = Owner::Agent(AgentIndex(0));
    const OTHER: Owner = Owner::Agent(AgentIndex(1));

    #[test]
    fn link_is_named_by_its_ends() {
        assert_eq!(Link::between(&[AGENT, AGENT]), Link::Local);
        assert_eq!(Link::between(&[AGENT, OTHER]), Link::Peer);
        assert_eq!(Link::between(&[AGENT, Owner::Host]), Link::FromHost);
        assert_eq!(Link::between(&[Owner::Host, AGENT]), Link::ToHost);
        assert_eq!(Link::between(&[Owner::Host, Owner::Host]), Link::Host);
        assert_eq!(Link::between(&[AGENT]), Link::Local);
        assert_eq!(Link::between(&[Owner::Host]), Link::ToHost);
    }

    #[test]
    fn auto_chooses_by_size_and_link() {
        let auto = |link, bytes| choose(CopyEngine::Auto, link, bytes, 2, true);
        for link in [Link::Peer, Link::ToHost, Link::FromHost] {
            assert_eq!(auto(link, SDMA_LINK_BYTES - 1), Some(Way::Shader));
            assert_eq!(auto(link, SDMA_LINK_BYTES), Some(Way::Sdma));
        }
        assert_eq!(auto(Link::Local, SDMA_LOCAL_BYTES - 1), Some(Way::Shader));
        assert_eq!(auto(Link::Local, SDMA_LOCAL_BYTES), Some(Way::Sdma));
        assert_eq!(auto(Link::Host, u64::MAX), Some(Way::Shader));
    }

    #[test]
    fn auto_needs_engines_and_leave() {
        let large = |engines, leave| choose(CopyEngine::Auto, Link::ToHost, 1 << 30, engines, leave);
        assert_eq!(large(0, true), Some(Way::Shader));
        assert_eq!(large(2, false), Some(Way::Shader));
        assert_eq!(choose(CopyEngine::Sdma, Link::Local, 1, 1, false), Some(Way::Sdma));
        assert_eq!(choose(CopyEngine::Sdma, Link::Local, 1, 0, true), None);
        assert_eq!(choose(CopyEngine::Shader, Link::Local, 1 << 30, 2, true), Some(Way::Shader));
    }

    #[test]
    fn patterns_that_repeat_within_a_dword_are_one() {
        assert_eq!(dword_of(&[7]), Some(0x0707_0707));
        assert_eq!(dword_of(&[1, 2]), Some(0x0201_0201));
        assert_eq!(dword_of(&[1, 2, 3, 4]), Some(0x0403_0201));
        assert_eq!(dword_of(&[1, 2, 3, 4, 1, 2, 3, 4]), Some(0x0403_0201));
        assert_eq!(dword_of(&[1, 2, 3, 4, 1, 2, 3, 5]), None);
        assert_eq!(dword_of(&[1, 2, 3]), None);
        assert_eq!(dword_of(&[]), None);
    }
}
