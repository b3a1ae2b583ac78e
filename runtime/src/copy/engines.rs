// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an agent has for copies: a queue with the copy kernels, queues of its copy engines; and one copy on them.
//!
//! INVARIANT: a transfer in flight counts as a use of its buffers by that queue, so none of them is freed under it.

use std::sync::Arc;

use kfd::sys::KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
use parking_lot::Mutex;

use super::sdma;
use super::shader::Shader;
use crate::agent::Agent;
use crate::context::agent::copy_path::{CopyEngine, SDMA_IN_AUTO};
use crate::context::error::CopyError;
use crate::context::memory::mappings::backing;
use crate::context::registry::state::{AgentIndex, BoKind};
use crate::context::{Context, Layer};
use crate::copy::choice;
use crate::copy::choice::{Link, Owner, Way};
use crate::pool::Buffer;
use crate::raw::RawQueue;
use crate::signal::Signal;

/// What an agent has for copies, each made when first needed.
#[derive(Debug, Default)]
struct Engines {
    shader: Option<Arc<Shader>>,
    /// By direction: to system memory, and every other.
    sdma: [Option<RawQueue>; 2],
}

/// What every agent of a context has for copies.
#[derive(Debug)]
pub(super) struct AgentEngines(Vec<Mutex<Engines>>);

impl Layer for AgentEngines {
    fn new(agents: usize) -> Self {
        AgentEngines((0..agents).map(|_| Mutex::default()).collect())
    }
}

/// What copies, and on which agent.
#[derive(Clone, Debug)]
pub(super) enum Engine {
    Shader(Arc<Shader>),
    Sdma(RawQueue),
}

/// Bytes to be copied, by addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub to: u64,
    pub from: u64,
    pub bytes: u64,
}

impl Engine {
    pub fn kind(&self) -> CopyEngine {
        match self {
            Engine::Shader(_) => CopyEngine::Shader,
            Engine::Sdma(_) => CopyEngine::Sdma,
        }
    }

    /// Whether its queue has failed.
    pub fn has_failed(&self) -> bool {
        match self {
            Engine::Shader(shader) => shader.has_failed(),
            Engine::Sdma(queue) => queue.fault().is_some(),
        }
    }

    /// Submits a copy within `buffers` after `after`, and the completion of `done` behind it.
    pub fn copy(
        &self,
        piece: Piece,
        after: &[&Signal],
        buffers: &[&Buffer],
        done: &Signal,
    ) -> Result<(), CopyError> {
        let Piece { to, from, bytes } = piece;
        match self {
            Engine::Shader(shader) => {
                let launch =
                    device_lib::copy(to, from, bytes).map_err(super::span::from_library(buffers[0]))?;
                let launch = launch_of(&launch, launch.arguments.to_bytes());
                shader.submit(&shader.copy, &launch, after, (buffers, &[]), done)
            }
            Engine::Sdma(queue) => sdma::copy(queue, piece, after, buffers, done),
        }
    }
}

pub(super) fn launch_of<A: AsRef<[u8]>>(
    launch: &device_lib::Launch<impl Sized>,
    arguments: A,
) -> device_lib::Launch<Vec<u8>> {
    let arguments = arguments.as_ref().to_vec();
    device_lib::Launch { arguments, grid: launch.grid, workgroup: launch.workgroup }
}

fn agent_at(context: &Arc<Context>, index: AgentIndex) -> Agent {
    Agent { context: Arc::clone(context), info: Arc::clone(&context.agents[index.at()]) }
}

/// The copy kernels of an agent, loaded when first needed; again after their queue has failed.
pub(super) fn shader(context: &Arc<Context>, index: AgentIndex) -> Result<Arc<Shader>, CopyError> {
    // Held while it is made. Making it passes the gate, so this lock comes before the gate in the order; nobody
    // inside the gate takes it.
    let all = context.layer::<AgentEngines>();
    let mut engines = all.0[index.at()].lock();
    if let Some(shader) = engines.shader.as_ref().filter(|shader| !shader.has_failed()) {
        return Ok(Arc::clone(shader));
    }
    let shader = Arc::new(Shader::new(&agent_at(context, index))?);
    engines.shader = Some(Arc::clone(&shader));
    Ok(shader)
}

/// The queue of an agent's copy engines for a link, made when first needed; again after it has failed.
pub(super) fn sdma(context: &Arc<Context>, index: AgentIndex, link: Link) -> Result<RawQueue, CopyError> {
    // As for `shader`.
    let all = context.layer::<AgentEngines>();
    let mut engines = all.0[index.at()].lock();
    let place = &mut engines.sdma[usize::from(link != Link::ToHost)];
    if let Some(queue) = place.as_ref().filter(|queue| queue.fault().is_none()) {
        return Ok(queue.clone());
    }
    let queue = sdma::queue(&agent_at(context, index))?;
    *place = Some(queue.clone());
    Ok(queue)
}

/// By what `bytes` bytes are moved over a link.
pub(super) fn way(
    context: &Context,
    asked: CopyEngine,
    index: AgentIndex,
    link: Link,
    bytes: u64,
) -> Result<Way, CopyError> {
    let info = &context.agents[index.at()];
    choice::choose(asked, link, bytes, info.copy_engines(), SDMA_IN_AUTO)
        .ok_or_else(|| CopyError::NoEngine { agent: info.target().name.to_owned() })
}

/// As [`way`], with what it needs.
pub(super) fn engine(
    context: &Arc<Context>,
    asked: CopyEngine,
    index: AgentIndex,
    link: Link,
    bytes: u64,
) -> Result<Engine, CopyError> {
    Ok(match way(context, asked, index, link, bytes)? {
        Way::Shader => Engine::Shader(shader(context, index)?),
        Way::Sdma => Engine::Sdma(sdma(context, index, link)?),
    })
}

/// Whose memory a buffer is in.
pub(super) fn owner(context: &Context, buffer: &Buffer) -> Result<Owner, CopyError> {
    let registry = context.registry.lock();
    let bo = registry.bos.get(buffer.key()).ok_or(CopyError::Freed { key: buffer.key() })?;
    Ok(match backing(&registry, buffer.key(), bo) {
        (BoKind::Vram, agent) => Owner::Agent(agent),
        (BoKind::Imported, _) if bo.state.flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM != 0 => {
            // Of a GPU that this process does not use, the agent it was imported on is all that is known.
            let home = bo.state.sharing.and_then(|sharing| sharing.home);
            Owner::Agent(home.unwrap_or(bo.state.agent))
        }
        _ => Owner::Host,
    })
}

/// Maps buffers to the agent that is to move between them. Whether it reaches them is decided before.
pub(super) fn map_for_copy(
    context: &Context,
    agent: AgentIndex,
    buffers: &[&Buffer],
) -> Result<(), CopyError> {
    let pass = context.gate.enter()?;
    let mut registry = context.registry.lock();
    let device = context.device_or_lost(&pass)?;
    for buffer in buffers {
        let bo = registry.bos.get_mut(buffer.key()).ok_or(CopyError::Freed { key: buffer.key() })?;
        let had_it = bo.state.mapped.contains(&agent);
        device.map_bo(bo, agent).map_err(CopyError::Peer)?;
        if !had_it && bo.state.mapped.contains(&agent) {
            bo.state.for_copies.push(agent);
        }
    }
    Ok(())
}
