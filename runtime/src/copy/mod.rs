// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and fills: by an agent's compute units or copy engines on queues the runtime keeps for them, or by the CPU
//! where it sees the memory.
//!
//! INVARIANT: a transfer in flight counts as a use of its buffers by that queue, so none of them is freed under it.

mod choice;
mod chunks;
mod engines;
mod host;
mod sdma;
mod shader;
mod span;
mod staged;
#[cfg(test)]
mod tests;
mod transfer;

use self::choice::{Link, Owner, Route, Way};
use self::engines::{Piece, launch_of};
pub use self::span::Span;
use self::span::from_library;
pub use self::transfer::Transfer;
use stasis_protocol::gate::Pass;

use crate::context::Context;
use crate::context::agent::agents;
use crate::context::agent::copy_path::{CopyEngine, CopyPath, Direction};
use crate::context::error::CopyError;
use crate::context::memory::mappings;
use crate::context::registry::state::AgentIndex;
use crate::pool::Buffer;
use crate::runtime::Runtime;
use crate::signal::Signal;

/// Bytes moved at once through system memory to or from an agent whose memory the CPU does not see.
const STAGE_BYTES: u64 = 4 << 20;

/// Has the contents of buffers be here, if they are still to come, and them mapped to the agent that moves bytes between them or fills the
/// first of them with a pattern. In the pass in which the packet is submitted that does it: a restore may lie between two passes.
fn arrive(
    context: &Context,
    pass: &Pass<'_>,
    mover: AgentIndex,
    (buffers, pattern): (&[&Buffer], &[u8]),
) -> Result<(), CopyError> {
    if !context.arriving.is_active() {
        return Ok(());
    }
    for buffer in buffers {
        buffer.be_whole(pass).map_err(CopyError::Contents)?;
    }
    engines::map_for_copy(context, mover, buffers)?;
    let buffers: Vec<(u64, u64)> = buffers.iter().map(|buffer| (buffer.va(), buffer.len())).collect();
    context.arriving.meet(&buffers);
    match buffers.first() {
        Some(filled) => {
            context.arriving.store(context, pass, *filled, 0, pattern).map_err(CopyError::Contents)
        }
        None => Ok(()),
    }
}

impl Runtime {
    /// Copies `from` to `to`, of equal length, on an agent, once all of `after` have reached 0. Returns at once;
    /// [`Transfer::path`] says which way the bytes take.
    ///
    /// Between two agents the one that reaches the other's memory moves them, which is then mapped to it. Where neither
    /// does ([`crate::Agent::path_to`]), both copy through system memory, in chunks.
    ///
    /// The signals of `after` must live until the copy has begun, as those that any packet waits for: the place of one
    /// that is gone may be another's by then.
    ///
    /// # Errors
    /// [`CopyError`]; nothing is copied then, but for a staged copy whose queue fails while it is submitted.
    pub fn copy(&self, to: Span<'_>, from: Span<'_>, after: &[&Signal]) -> Result<Transfer, CopyError> {
        self.copy_by(CopyEngine::Auto, to, from, after)
    }

    /// As [`Runtime::copy`], by this engine.
    ///
    /// # Errors
    /// As for [`Runtime::copy`]; [`CopyError::NoEngine`] where the agent has no copy engines.
    pub fn copy_by(
        &self,
        engine: CopyEngine,
        to: Span<'_>,
        from: Span<'_>,
        after: &[&Signal],
    ) -> Result<Transfer, CopyError> {
        let (to_owner, from_owner) = self.ends(to, from)?;
        let route = choice::route(to_owner, from_owner, |a, b| agents::path(self.context(), a, b));
        self.copy_over(route, engine, to, from, after)
    }

    /// As [`Runtime::copy`], this way and no other.
    ///
    /// # Errors
    /// As for [`Runtime::copy`]; [`CopyError::Impossible`] where the ends are not those of such a path,
    /// [`CopyError::NoPath`] where the agent that was to move the bytes does not reach the other one's memory,
    /// [`CopyError::NoEngine`] where it has no copy engines.
    pub fn copy_via(
        &self,
        path: CopyPath,
        to: Span<'_>,
        from: Span<'_>,
        after: &[&Signal],
    ) -> Result<Transfer, CopyError> {
        let context = self.context();
        let (to_owner, from_owner) = self.ends(to, from)?;
        let natural = || choice::route(to_owner, from_owner, |a, b| agents::path(context, a, b));
        let peer = |direction, engine| match (to_owner, from_owner) {
            (Owner::Agent(to), Owner::Agent(from)) if to != from => {
                let (mover, other) = if direction == Direction::Pull { (to, from) } else { (from, to) };
                agents::reach(context, mover, other)?;
                Ok(Some((Route::Direct { mover, link: Link::Peer, direction }, engine)))
            }
            _ => Ok::<_, CopyError>(None),
        };
        let forced = match (path, Link::between(&[to_owner, from_owner])) {
            (CopyPath::Local, Link::Local) | (CopyPath::Host, Link::Host | Link::ToHost | Link::FromHost) => {
                Some((natural(), CopyEngine::Auto))
            }
            (CopyPath::PeerSdma(direction), _) => peer(direction, CopyEngine::Sdma)?,
            (CopyPath::PeerShader(direction), _) => peer(direction, CopyEngine::Shader)?,
            (CopyPath::Staged, Link::Peer) => match (to_owner, from_owner) {
                (Owner::Agent(to), Owner::Agent(from)) => {
                    Some((Route::Staged { to, from }, CopyEngine::Auto))
                }
                _ => None,
            },
            _ => None,
        };
        let name = |owner| match owner {
            Owner::Host => "system memory".to_owned(),
            Owner::Agent(agent) => format!("the memory of agent {}", agents::label(context, agent)),
        };
        let (route, engine) = forced.ok_or_else(|| CopyError::Impossible {
            path,
            to: name(to_owner),
            from: name(from_owner),
        })?;
        self.copy_over(route, engine, to, from, after)
    }

    /// Whose memory the ends of a copy are in.
    fn ends(&self, to: Span<'_>, from: Span<'_>) -> Result<(Owner, Owner), CopyError> {
        if to.bytes != from.bytes {
            return Err(CopyError::Length { to: to.bytes, from: from.bytes });
        }
        // Refuses what overlaps.
        device_lib::copy(to.va()?, from.va()?, to.bytes).map_err(from_library(to.buffer))?;
        Ok((engines::owner(self.context(), to.buffer)?, engines::owner(self.context(), from.buffer)?))
    }

    fn copy_over(
        &self,
        route: Route,
        engine: CopyEngine,
        to: Span<'_>,
        from: Span<'_>,
        after: &[&Signal],
    ) -> Result<Transfer, CopyError> {
        let (mover, link, direction) = match route {
            Route::Direct { mover, link, direction } => (mover, link, direction),
            Route::Staged { to: to_agent, from: from_agent } => {
                return staged::copy(self, engine, (to_agent, to), (from_agent, from), after);
            }
        };
        let buffers = [to.buffer, from.buffer];
        engines::map_for_copy(self.context(), mover, &buffers)?;
        self.check_reach(mover, from, false)?;
        self.check_reach(mover, to, true)?;
        let engine = engines::engine(self.context(), engine, mover, link, to.bytes)?;
        let piece = Piece { to: to.va()?, from: from.va()?, bytes: to.bytes };
        let signal = self.completion()?;
        engine.copy(piece, after, &buffers, &signal)?;
        let path = choice::path_of(link, direction, engine.kind());
        Ok(Transfer { signal, engine: engine.kind(), path, staged: None })
    }

    /// That an agent may touch a span of a reserved range.
    fn check_reach(&self, agent: AgentIndex, span: Span<'_>, write: bool) -> Result<(), CopyError> {
        mappings::check_reach(self.context(), agent, span.buffer.key(), span.va()?, span.bytes, write)
    }

    fn completion(&self) -> Result<Signal, CopyError> {
        Signal::new(self, 1).map_err(|error| CopyError::Signal(Box::new(error)))
    }

    /// Fills `to` with a pattern of 1, 2, 4, 8 or 16 bytes on an agent, once all of `after` have reached 0. Returns
    /// at once.
    ///
    /// # Errors
    /// [`CopyError`]; nothing is filled then.
    pub fn fill(&self, to: Span<'_>, pattern: &[u8], after: &[&Signal]) -> Result<Transfer, CopyError> {
        self.fill_by(CopyEngine::Auto, to, pattern, after)
    }

    /// As [`Runtime::fill`], by this engine. A copy engine fills whole aligned dwords with one dword: other fills go by
    /// shader in [`CopyEngine::Auto`].
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::NoEngine`] where the agent has no copy engines, [`CopyError::Dwords`] for what they
    /// cannot fill. Nothing is filled then.
    pub fn fill_by(
        &self,
        engine: CopyEngine,
        to: Span<'_>,
        pattern: &[u8],
        after: &[&Signal],
    ) -> Result<Transfer, CopyError> {
        let (va, bytes) = (to.va()?, to.bytes);
        let launch = device_lib::fill(va, bytes, pattern).map_err(from_library(to.buffer))?;
        let owner = engines::owner(self.context(), to.buffer)?;
        let (agent, path) = match owner {
            Owner::Agent(agent) => (agent, CopyPath::Local),
            Owner::Host => (AgentIndex(0), CopyPath::Host),
        };
        engines::map_for_copy(self.context(), agent, &[to.buffer])?;
        self.check_reach(agent, to, true)?;
        let link = Link::between(&[owner]);
        let dword = choice::dword_of(pattern).filter(|_| va.is_multiple_of(4) && bytes.is_multiple_of(4));
        let way = match (engines::way(self.context(), engine, agent, link, bytes)?, dword) {
            (Way::Sdma, None) if engine == CopyEngine::Auto => Way::Shader,
            (way, _) => way,
        };
        let signal = self.completion()?;
        let engine = match (way, dword) {
            (Way::Shader, _) => {
                let shader = engines::shader(self.context(), agent)?;
                let launch = launch_of(&launch, launch.arguments.to_bytes());
                shader.submit(&shader.fill, &launch, after, (&[to.buffer], pattern), &signal)?;
                CopyEngine::Shader
            }
            (Way::Sdma, Some(dword)) => {
                let queue = engines::sdma(self.context(), agent, link)?;
                sdma::fill(&queue, (va, bytes), dword, after, to.buffer, &signal)?;
                CopyEngine::Sdma
            }
            (Way::Sdma, None) => {
                return Err(CopyError::Dwords { address: va, bytes, pattern: pattern.len() });
            }
        };
        Ok(Transfer { signal, engine, path, staged: None })
    }
}
