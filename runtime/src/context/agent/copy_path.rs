// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways a copy can take and who can make it: the words of requests, answers and errors.

use std::fmt;

/// Whether [`CopyEngine::Auto`] uses copy engines at all. They can be asked for in any case.
pub const SDMA_IN_AUTO: bool = true;
/// Bytes from which [`CopyEngine::Auto`] gives copies and fills over a link to a copy engine.
pub const SDMA_LINK_BYTES: u64 = 256 << 10;
/// Bytes from which [`CopyEngine::Auto`] gives copies and fills within one agent's memory to a copy engine.
pub const SDMA_LOCAL_BYTES: u64 = 4 << 20;

/// What is to copy or fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CopyEngine {
    /// The faster one: a copy engine for [`SDMA_LINK_BYTES`] and more between system memory and an agent or
    /// between two agents, and for [`SDMA_LOCAL_BYTES`] and more within one agent's memory, if the agent has copy
    /// engines and [`SDMA_IN_AUTO`] says so; else a kernel.
    #[default]
    Auto,
    /// A kernel on the agent's compute units.
    Shader,
    /// The agent's copy engines.
    Sdma,
}

/// Which agent moves bytes between two agents' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The destination's agent reads the source's memory.
    Pull,
    /// The source's agent writes the destination's memory.
    Push,
}

/// The way bytes take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CopyPath {
    /// Within one agent's memory, by that agent.
    Local,
    /// Between an agent's memory and system memory, or within system memory, by an agent.
    Host,
    /// Between two agents' memory, by the copy engines of one.
    PeerSdma(Direction),
    /// Between two agents' memory, by a kernel on one.
    PeerShader(Direction),
    /// Between two agents' memory through system memory, by both.
    Staged,
}

impl fmt::Display for CopyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CopyPath::Local => "local",
            CopyPath::Host => "host",
            CopyPath::PeerSdma(Direction::Pull) => "peer-sdma-pull",
            CopyPath::PeerSdma(Direction::Push) => "peer-sdma-push",
            CopyPath::PeerShader(Direction::Pull) => "peer-shader-pull",
            CopyPath::PeerShader(Direction::Push) => "peer-shader-push",
            CopyPath::Staged => "staged",
        })
    }
}
