// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which agent or engine moves the bytes, and over which path: chosen by size, by the link between source and destination, and by
//! which agent reaches the other's memory.
//!
//! A copy engine runs beside the compute units and takes nothing from kernels, but has a fraction of the bandwidth of an
//! agent's own memory and costs more to start. Over a link (PCIe, XGMI) the link is the limit in any case, so it gets
//! copies early; within one agent's memory only large ones; between two places in system memory none, since then every
//! byte would cross the link twice.
//!
//! Between two agents the destination's pulls if it reaches the source's memory: its own fences then make visible to it
//! what arrived. The source's pushes where only it reaches the other, or has the shorter way. If neither does, both copy,
//! through system memory.
//!
//! INVARIANT: the choice changes the mover, never what is copied; and no mover is chosen that does not reach both ends.

use crate::context::agent::copy_path::{CopyEngine, CopyPath, Direction, SDMA_LINK_BYTES, SDMA_LOCAL_BYTES};
use crate::context::agent::links::Path;
use crate::context::registry::state::AgentIndex;

/// The path of a copy over a link by this engine.
pub(super) fn path_of(link: Link, direction: Direction, engine: CopyEngine) -> CopyPath {
    match (link, engine) {
        (Link::Local, _) => CopyPath::Local,
        (Link::Peer, CopyEngine::Sdma) => CopyPath::PeerSdma(direction),
        (Link::Peer, _) => CopyPath::PeerShader(direction),
        _ => CopyPath::Host,
    }
}

/// The agents that copy between two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// One agent, which reaches both.
    Direct { mover: AgentIndex, link: Link, direction: Direction },
    /// Two agents, through system memory.
    Staged { to: AgentIndex, from: AgentIndex },
}

/// The best way from `from` to `to`; `reach` says how an agent reaches another one's memory.
pub(super) fn route(to: Owner, from: Owner, reach: impl Fn(AgentIndex, AgentIndex) -> Path) -> Route {
    let link = Link::between(&[to, from]);
    let direct = |mover, direction| Route::Direct { mover, link, direction };
    match (to, from) {
        (Owner::Agent(to), Owner::Agent(from)) if to != from => {
            let (pull, push) = (reach(to, from), reach(from, to));
            match (pull.exists(), push.exists()) {
                (true, true) if push.weight < pull.weight => direct(from, Direction::Push),
                (true, _) => direct(to, Direction::Pull),
                (false, true) => direct(from, Direction::Push),
                (false, false) => Route::Staged { to, from },
            }
        }
        (Owner::Agent(agent), _) => direct(agent, Direction::Pull),
        (Owner::Host, Owner::Agent(agent)) => direct(agent, Direction::Push),
        (Owner::Host, Owner::Host) => direct(AgentIndex(0), Direction::Pull),
    }
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

/// By what `bytes` bytes are moved; `None` if copy engines are asked for and there are none.
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
    use proptest::prelude::*;

    use super::*;
    use crate::context::agent::links::PathKind;

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

    fn way(kind: PathKind, weight: u32) -> Path {
        Path { kind, weight, ..Path::NONE }
    }

    fn peer(pull: Path, push: Path) -> Route {
        route(AGENT, OTHER, |from, _| if from == AgentIndex(0) { pull } else { push })
    }

    #[test]
    fn peers_pull_and_push_only_where_they_must() {
        let (pcie, xgmi) = (way(PathKind::Pcie, 40), way(PathKind::Xgmi { hops: 1 }, 15));
        let direct =
            |mover, direction| Route::Direct { mover: AgentIndex(mover), link: Link::Peer, direction };
        assert_eq!(peer(pcie, pcie), direct(0, Direction::Pull));
        assert_eq!(peer(pcie, xgmi), direct(1, Direction::Push));
        assert_eq!(peer(pcie, Path::NONE), direct(0, Direction::Pull));
        assert_eq!(peer(Path::NONE, pcie), direct(1, Direction::Push));
        let staged = Route::Staged { to: AgentIndex(0), from: AgentIndex(1) };
        assert_eq!(peer(Path::NONE, Path::NONE), staged);
    }

    fn any_path() -> impl Strategy<Value = Path> {
        let kinds = [PathKind::None, PathKind::Pcie, PathKind::Xgmi { hops: 2 }, PathKind::Socket];
        (prop::sample::select(kinds.to_vec()), 0u32..100).prop_map(|(kind, weight)| way(kind, weight))
    }

    fn any_owner() -> impl Strategy<Value = Owner> {
        prop_oneof![Just(Owner::Host), (0u32..4).prop_map(|agent| Owner::Agent(AgentIndex(agent)))]
    }

    proptest! {
        /// Over any matrix: whoever moves reaches both ends, and staging is only where nobody does.
        #[test]
        fn absent_paths_are_never_chosen(
            matrix in prop::collection::vec(any_path(), 16),
            to in any_owner(),
            from in any_owner(),
        ) {
            let reach = |a: AgentIndex, b: AgentIndex| if a == b { Path::SAME } else { matrix[a.at() * 4 + b.at()] };
            let reaches = |mover: AgentIndex, owner: Owner| match owner {
                Owner::Host => true,
                Owner::Agent(agent) => reach(mover, agent).exists(),
            };
            match route(to, from, reach) {
                Route::Direct { mover, .. } => prop_assert!(reaches(mover, to) && reaches(mover, from)),
                Route::Staged { to: at, from: of } => {
                    prop_assert_eq!((Owner::Agent(at), Owner::Agent(of)), (to, from));
                    prop_assert!(!reaches(at, from) && !reaches(of, to));
                }
            }
        }
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
