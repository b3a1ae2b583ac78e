// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logical devices: several agents under one name, with work and memory shared out among them.
//!
//! INVARIANT: an agent is held by one logical device at most, so that two of them never share out the same one's memory
//! and compute units behind each other's back.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use queues::words::size;

use crate::agent::Agent;
use crate::context::Layer;
use crate::context::agent::agents::label;
use crate::context::agent::spec;
use crate::context::error::{AllocError, CopyError, QueueError};
use crate::context::registry::state::AgentIndex;
use crate::pool::Buffer;
use crate::queue::{Queue, QueueOptions};
use crate::runtime::Runtime;

/// Why a logical device cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogicalError {
    /// The URI is not understood, or names what is not here.
    #[error("{uri:?} names no logical device")]
    Spec {
        /// The URI.
        uri: String,
        /// Why.
        #[source]
        source: spec::SpecError,
    },
    /// Another logical device has one of its agents.
    #[error(
        "{uri:?} cannot be had: agent {agent} is held by {holder:?}; drop that first, or leave the agent out"
    )]
    Held {
        /// The URI.
        uri: String,
        /// Index, uuid and target of the agent.
        agent: String,
        /// The URI of the device that holds it.
        holder: String,
    },
}

/// The logical devices of a runtime.
#[derive(Debug, Default)]
struct Claims(Vec<Weak<Claim>>);

/// The logical devices of a context.
#[derive(Debug, Default)]
struct Held(Mutex<Claims>);

impl Layer for Held {
    fn new(_: usize) -> Self {
        Held::default()
    }
}

/// The agents that one logical device holds, until its last handle is gone.
#[derive(Debug)]
struct Claim {
    uri: String,
    agents: Vec<AgentIndex>,
}

impl Claims {
    /// The device that holds an agent.
    fn holder(&self, agent: AgentIndex) -> Option<Arc<Claim>> {
        self.0.iter().filter_map(Weak::upgrade).find(|claim| claim.agents.contains(&agent))
    }

    fn add(&mut self, claim: Claim) -> Arc<Claim> {
        self.0.retain(|other| other.strong_count() > 0);
        let claim = Arc::new(claim);
        self.0.push(Arc::downgrade(&claim));
        claim
    }
}

/// Several agents as one device; clones name the same one, and its agents are free again with the last.
#[derive(Clone)]
pub struct LogicalDevice {
    runtime: Runtime,
    agents: Vec<Agent>,
    claim: Arc<Claim>,
}

impl fmt::Debug for LogicalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalDevice").field("uri", &self.claim.uri).field("agents", &self.agents).finish()
    }
}

/// An agent's part of something that was shared out.
#[derive(Clone, Debug)]
pub struct Share {
    /// Whose part it is.
    pub agent: Agent,
    /// The agent's memory with it; one byte that nobody reads where the part is empty.
    pub buffer: Buffer,
    /// First byte of the whole that is in the part.
    pub offset: u64,
    /// Bytes of the part.
    pub bytes: u64,
}

/// Something that lies in parts in the agents' memory.
#[derive(Clone, Debug)]
pub struct Scattered {
    shares: Vec<Share>,
}

impl Scattered {
    /// The parts, in the order of the device's agents and of their bytes.
    #[must_use]
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// Copies the parts together again, into a buffer anywhere, all at once; waits until that is done.
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::Range`] when `to` is too short.
    pub fn gather_into(
        &self,
        runtime: &Runtime,
        to: &Buffer,
        timeout: Option<Duration>,
    ) -> Result<(), CopyError> {
        let parts = self.shares.iter().filter(|share| share.bytes > 0);
        let copies: Vec<_> = parts
            .map(|share| {
                runtime.copy(to.span(share.offset, share.bytes), share.buffer.span(0, share.bytes), &[])
            })
            .collect::<Result<_, _>>()?;
        copies.iter().try_for_each(|copy| copy.wait(timeout))
    }

    /// The parts together again.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn gather(&self) -> Result<Vec<u8>, CopyError> {
        let total: u64 = self.shares.iter().map(|share| share.bytes).sum();
        let mut whole = vec![0; size(total)];
        for share in &self.shares {
            let start = size(share.offset);
            share.buffer.download(0, &mut whole[start..start + size(share.bytes)])?;
        }
        Ok(whole)
    }
}

impl LogicalDevice {
    /// `stasis://` and the indices of its agents.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.claim.uri
    }

    /// Its agents, in the order of the URI that named it.
    #[must_use]
    pub fn agents(&self) -> &[Agent] {
        &self.agents
    }

    /// Shares `units` out: the first unit and the number of units of each agent, in their order, each a multiple of
    /// `grain` but for the last that gets any; as evenly as that allows.
    #[must_use]
    pub fn split(&self, units: u64, grain: u64) -> Vec<(u64, u64)> {
        split(units, grain, self.agents.len())
    }

    /// A buffer of `bytes` bytes in each agent's memory.
    ///
    /// # Errors
    /// [`AllocError`]; nothing is left of it then.
    pub fn alloc_each(&self, bytes: u64) -> Result<Vec<Buffer>, AllocError> {
        self.agents.iter().map(|agent| agent.vram().alloc(bytes)).collect()
    }

    /// A queue on each agent.
    ///
    /// # Errors
    /// [`QueueError`]; nothing is left of it then.
    pub fn queues(&self, options: QueueOptions) -> Result<Vec<Queue>, QueueError> {
        self.agents.iter().map(|agent| Queue::create(agent, options)).collect()
    }

    /// Copies `whole` into the agents' memory, a part each, in multiples of `grain` bytes.
    ///
    /// # Errors
    /// [`CopyError::Stage`] when an agent has no memory for its part, or what [`Buffer::upload`] fails with.
    pub fn scatter(&self, whole: &[u8], grain: u64) -> Result<Scattered, CopyError> {
        let parts = self.split(whole.len() as u64, grain);
        let share = |(agent, (offset, bytes)): (&Agent, (u64, u64))| {
            let buffer = agent.vram().alloc(bytes.max(1));
            let buffer = buffer.map_err(|error| CopyError::Stage(Box::new(error)))?;
            buffer.upload(0, &whole[size(offset)..size(offset + bytes)])?;
            Ok(Share { agent: agent.clone(), buffer, offset, bytes })
        };
        let shares = self.agents.iter().zip(parts).map(share).collect::<Result<_, CopyError>>()?;
        Ok(Scattered { shares })
    }

    /// The runtime its agents belong to.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

/// See [`LogicalDevice::split`].
fn split(units: u64, grain: u64, agents: usize) -> Vec<(u64, u64)> {
    let (grain, count) = (grain.max(1), agents.max(1) as u64);
    let grains = units.div_ceil(grain);
    let (each, more) = (grains / count, grains % count);
    let edge = |n: u64| ((each * n + more.min(n)).saturating_mul(grain)).min(units);
    (0..count).map(|n| (edge(n), edge(n + 1) - edge(n))).collect()
}

impl Runtime {
    /// Several of the runtime's agents as one device: `stasis://0,1`, `stasis://GPU-a1b2c3d4e5f60718,1`, or `stasis://`
    /// for all. Indices are those of [`Runtime::agent`], and a uuid may be cut short as long as one agent only starts
    /// with it.
    ///
    /// # Errors
    /// [`LogicalError::Spec`] for what names no agent, several, or one twice; [`LogicalError::Held`] if another logical
    /// device holds one of them.
    pub fn logical(&self, uri: &str) -> Result<LogicalDevice, LogicalError> {
        let context = self.context();
        let uuids: Vec<String> = context.agents.iter().map(|info| info.uuid().to_owned()).collect();
        let chosen =
            spec::select(uri, &uuids).map_err(|source| LogicalError::Spec { uri: uri.to_owned(), source })?;
        let agents: Vec<Agent> = chosen.into_iter().filter_map(|at| self.agent(at)).collect();
        let held = context.layer::<Held>();
        let mut claims = held.0.lock();
        for agent in &agents {
            let index = agent.info.index();
            if let Some(holder) = claims.holder(index) {
                let (agent, holder) = (label(context, index), holder.uri.clone());
                return Err(LogicalError::Held { uri: uri.to_owned(), agent, holder });
            }
        }
        let indices: Vec<String> = agents.iter().map(|agent| agent.index().to_string()).collect();
        let uri = format!("{}{}", spec::SCHEME, indices.join(","));
        let claim =
            claims.add(Claim { uri, agents: agents.iter().map(|agent| agent.info.index()).collect() });
        Ok(LogicalDevice { runtime: self.clone(), agents, claim })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::runtime;

    #[test]
    fn disjoint_devices_coexist_and_overlapping_ones_are_refused_by_name() {
        let (runtime, _kernel) = runtime(4);
        let first = runtime.logical("stasis://0,2").unwrap();
        let second = runtime.logical("stasis://GPU-a1b2000000000004").unwrap();
        assert_eq!((first.uri(), second.uri()), ("stasis://0,2", "stasis://3"));
        assert_eq!(first.agents().iter().map(Agent::index).collect::<Vec<_>>(), [0, 2]);
        let error = runtime.logical("stasis://1,2").unwrap_err();
        assert!(
            matches!(&error, LogicalError::Held { agent, holder, .. } if agent.starts_with("2 (GPU-a1b2000000000003") && holder == "stasis://0,2"),
            "{error}"
        );
        assert!(matches!(runtime.logical("stasis://"), Err(LogicalError::Held { .. })));
        // A refused one holds nothing; a dropped one neither, once its clones are gone.
        let clone = first.clone();
        drop(first);
        assert!(matches!(runtime.logical("stasis://2"), Err(LogicalError::Held { .. })));
        drop((clone, second));
        assert_eq!(runtime.logical("stasis://").unwrap().uri(), "stasis://0,1,2,3");
    }

    #[test]
    fn uris_that_name_none_or_several_are_refused() {
        let (runtime, _kernel) = runtime(2);
        let refused = |uri: &str| match runtime.logical(uri).unwrap_err() {
            LogicalError::Spec { source, .. } => source,
            other => panic!("{other}"),
        };
        assert!(matches!(refused("stasis://GPU-a1b2"), spec::SpecError::Ambiguous { item: 0, .. }));
        assert!(matches!(refused("stasis://0,0"), spec::SpecError::Duplicate { item: 1, first: 0, .. }));
        assert!(matches!(refused("stasis://2"), spec::SpecError::Unknown { item: 0, .. }));
        assert!(matches!(refused("cuda://0"), spec::SpecError::Syntax { item: 0, .. }));
    }

    #[test]
    fn what_is_scattered_is_gathered() {
        let (runtime, _kernel) = runtime(3);
        let device = runtime.logical("stasis://").unwrap();
        let whole: Vec<u8> = (0..10_007u32).map(|n| (n * 7 % 251) as u8).collect();
        let scattered = device.scatter(&whole, 64).unwrap();
        assert_eq!(scattered.gather().unwrap(), whole);
        for (share, agent) in scattered.shares().iter().zip(device.agents()) {
            assert_eq!((share.agent.index(), share.offset % 64), (agent.index(), 0));
        }
        let few = device.scatter(&whole[..10], 64).unwrap();
        assert_eq!(few.shares().iter().map(|share| share.bytes).collect::<Vec<_>>(), [10, 0, 0]);
        assert_eq!(few.gather().unwrap(), whole[..10]);
    }

    proptest! {
        #[test]
        fn split_covers_all_once_and_evenly(units in 0u64..100_000, grain in 0u64..300, agents in 1usize..9) {
            let parts = split(units, grain, agents);
            prop_assert_eq!(parts.len(), agents);
            let mut next = 0;
            for &(start, count) in &parts {
                prop_assert_eq!(start, next);
                next += count;
            }
            prop_assert_eq!(next, units);
            let counts = parts.iter().map(|part| part.1);
            let (most, least) = (counts.clone().max().unwrap_or(0), counts.min().unwrap_or(0));
            prop_assert!(most - least <= 2 * grain.max(1));
            prop_assert!(parts.iter().all(|part| part.0 % grain.max(1) == 0 || part.0 == units));
        }
    }
}
