// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which bytes of a stopped process are saved, and who moves them: the process through its own mappings, or an agent's copy
//! engine where the process does not see the agent's memory or reads it slowly.
//!
//! Reads through the PCI aperture are not cached: every one waits for the bus. Whether an agent's memory is read so is asked
//! of the topology, which knows agents that share the CPU's memory or its fabric, and else measured.
//!
//! INVARIANT: an engine is made after all other work of the queues has ended, and is gone before any queue begins again.
#![allow(unsafe_code)]

mod aperture;
mod engine;
mod running;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use nix::sys::mman::{MmapAdvise, madvise};
use queues::words::size;
use stasis_protocol::gate::Closed;
use stasis_protocol::{Limit, Stopped};

use self::engine::AgentEngine;
pub(super) use self::running::Running;
use super::error::{CheckpointError, device};
use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::registry::Registry;
use crate::context::registry::state::{AgentIndex, BoKey, BoKind, BoState};
use crate::image::{AgentRange, CHUNK_BYTES, Extent, HostRange, for_each, most_workers};

/// Buffer objects, and the bytes from the start of each that are moved, in the order of the image's extents.
pub(super) type Contents = Vec<(BoKey, u64)>;

/// The buffer objects whose bytes are saved of a drained process.
pub(super) fn saved_buffers(registry: &Registry) -> Contents {
    let waiting = registry.queues.iter().filter(|(_, queue)| queue.keeps_packets());
    let arguments: BTreeSet<BoKey> = waiting.filter_map(|(_, queue)| queue.state.bos.kernargs).collect();
    let is_saved = |key: BoKey, state: &BoState| {
        // A userptr's bytes are the process's own memory: CRIU has them. Shared memory is its session's.
        let is_own = matches!(state.kind, BoKind::Vram | BoKind::Gtt) && state.sharing.is_none();
        (state.role.has_contents() || arguments.contains(&key)) && is_own
    };
    let saved = registry.bos.iter().filter(|(key, bo)| is_saved(*key, &bo.state));
    saved.map(|(key, bo)| (key, bo.state.bytes)).collect()
}

/// Takes the pages of objects out of the process's page tables, which a fill has put there: a process that closes its device waits for as
/// long as it has many. Ends early with `limit`, which does no harm.
pub(super) fn let_go(registry: &Registry, contents: &Contents, limit: &Limit) {
    let mapped = contents.iter().filter_map(|(key, bytes)| {
        let bo = registry.bos.get(*key).filter(|bo| bo.state.cpu_mapped)?;
        Some(bo.cpu_va()..bo.cpu_va() + bytes)
    });
    let step = size(CHUNK_BYTES);
    let pieces: Vec<Range<u64>> = mapped
        .flat_map(|range| range.clone().step_by(step).map(move |at| at..range.end.min(at + CHUNK_BYTES)))
        .collect();
    let done = for_each(pieces.len(), 1, limit, |n, _| {
        let Range { start, end } = pieces[n];
        if let Some(at) = NonNull::new(with_exposed_provenance_mut(size(start))) {
            // SAFETY: an object's pages, which the device's file has: they are found again there. Of a mapping that the driver does
            // not let go of (VM_PFNMAP) the call is refused.
            let _ = unsafe { madvise(at, size(end - start), MmapAdvise::MADV_DONTNEED) };
        }
        Ok::<(), Stopped>(())
    });
    if let Err(stopped) = done {
        tracing::debug!(target: "checkpoint", %stopped, "pages stay in the process's page tables");
    }
}

/// How the memory of one agent is moved: by the process itself or by the agent's copy engine.
#[derive(Debug)]
enum Way {
    /// The process, which reads it as fast as its own.
    Host,
    /// The process, which had better not read it.
    Aperture { read_cost: u64 },
    /// Its copy engine.
    Engine(Box<AgentEngine>),
}

/// How the contents of a process are moved, agent by agent, and the copy engines that it takes.
#[derive(Debug)]
pub(super) struct Movers {
    ways: BTreeMap<AgentIndex, Way>,
    /// Objects that are mapped to their agent for its engine only.
    lent: Vec<(BoKey, AgentIndex)>,
}

impl Movers {
    /// Decides who moves what, and makes the engines that it takes; none of agents whose queues the driver would not run now,
    /// which `serves` tells.
    ///
    /// # Errors
    /// [`CheckpointError::Hidden`], [`CheckpointError::Device`], [`CheckpointError::Engine`]; no engine is left then.
    pub(super) fn new(
        context: &Context,
        closed: &Closed,
        registry: &mut Registry,
        on: &Device,
        contents: &Contents,
        serves: impl Fn(AgentIndex) -> bool,
        limit: &Limit,
    ) -> Result<Self, CheckpointError> {
        let mut movers = Movers { ways: BTreeMap::new(), lent: Vec::new() };
        let made = movers.decide(context, registry, on, contents, serves, limit);
        if let Err(error) = made {
            if let Err(error) = movers.end(registry, on) {
                tracing::warn!(target: "checkpoint", %error, "a copy engine's queue stays in the driver");
            }
            return Err(error);
        }
        // Engines look at memory that the host may have written a moment ago.
        context.host_writes.flush(&closed.pass());
        Ok(movers)
    }

    fn decide(
        &mut self,
        context: &Context,
        registry: &mut Registry,
        on: &Device,
        contents: &Contents,
        serves: impl Fn(AgentIndex) -> bool,
        limit: &Limit,
    ) -> Result<(), CheckpointError> {
        for info in &context.agents {
            let agent = info.index();
            let of_agent: Contents = contents
                .iter()
                .filter(|(key, _)| registry.bos.get(*key).is_some_and(|bo| is_vram_of(&bo.state, agent)))
                .copied()
                .collect();
            let buffers = serves(agent).then_some(most_workers());
            let way = choose(context, registry, on, info, &of_agent, buffers, limit)?;
            let by_engine = matches!(way, Way::Engine(_));
            self.ways.insert(agent, way);
            for (key, _) in of_agent.into_iter().filter(|_| by_engine) {
                self.lend(registry, on, key, agent)?;
            }
        }
        Ok(())
    }

    /// Maps an object to its agent if it is not yet: physical memory is mapped in ranges only.
    fn lend(
        &mut self,
        registry: &mut Registry,
        on: &Device,
        key: BoKey,
        agent: AgentIndex,
    ) -> Result<(), CheckpointError> {
        let Some(bo) = registry.bos.get_mut(key).filter(|bo| !bo.state.mapped.contains(&agent)) else {
            return Ok(());
        };
        on.map_bo(bo, agent).map_err(device("to map a buffer for a copy engine"))?;
        self.lent.push((key, agent));
        Ok(())
    }

    /// How an object of this state is moved; `None` if it is not in an agent's memory: then by the process itself.
    fn way_of(&self, state: &BoState) -> Option<&Way> {
        self.ways.get(&state.agent).filter(|_| state.kind == BoKind::Vram)
    }

    /// Where the contents are, for the image.
    pub(super) fn extents(&self, registry: &Registry, contents: &Contents) -> Vec<Extent<'_>> {
        let extent = |&(key, bytes): &(BoKey, u64)| {
            let bo = registry.bos.get(key)?;
            let state = &bo.state;
            let way = self.way_of(state);
            if let Some(Way::Engine(engine)) = way {
                return Some(Extent::Agent(AgentRange { engine: &**engine, va: state.va, bytes }));
            }
            // SAFETY: the entry is CPU-mapped at `va` for at least `bytes`: what is not has an engine, or `new` failed. The
            // gate is closed, so that nobody frees it, and the queues do not run.
            let range = unsafe { HostRange::at_address(bo.cpu_va(), bytes) }?;
            Some(match way {
                Some(Way::Aperture { read_cost }) => Extent::Aperture(range.with_read_cost(*read_cost)),
                _ => Extent::Host(range),
            })
        };
        contents.iter().filter_map(extent).collect()
    }

    /// Bytes of these that engines move.
    pub(super) fn engine_bytes(&self, registry: &Registry, contents: &Contents) -> u64 {
        let by_engine = |key: BoKey| {
            let way = registry.bos.get(key).and_then(|bo| self.way_of(&bo.state));
            matches!(way, Some(Way::Engine(_)))
        };
        contents.iter().filter(|(key, _)| by_engine(*key)).map(|(_, bytes)| bytes).sum()
    }

    /// Takes the engines out of the driver.
    ///
    /// # Errors
    /// [`CheckpointError::Device`]; something of them stays there.
    pub(super) fn end(self, registry: &mut Registry, on: &Device) -> Result<(), CheckpointError> {
        let mut first = Ok(());
        for way in self.ways.into_values() {
            if let Way::Engine(engine) = way {
                first = first.and(engine.end(registry, on).map_err(device("to end a copy engine")));
            }
        }
        for (key, agent) in self.lent {
            if let Some(bo) = registry.bos.get_mut(key) {
                first = first.and(on.unmap_bo(bo, agent).map_err(device("to unmap a buffer that was saved")));
            }
        }
        first
    }
}

/// Decides how an agent's memory is moved, of which these objects are. If by its engine, makes that with `buffers` buffers; `None` if the
/// engine does not serve now.
///
/// # Errors
/// As for [`Movers::new`].
fn choose(
    context: &Context,
    registry: &mut Registry,
    on: &Device,
    info: &AgentInfo,
    of_agent: &Contents,
    buffers: Option<usize>,
    limit: &Limit,
) -> Result<Way, CheckpointError> {
    let buffers = buffers.filter(|_| info.copy_engines() > 0);
    let is_hidden = |key: &BoKey| registry.bos.get(*key).is_some_and(|bo| !bo.state.cpu_mapped);
    let hidden = of_agent.iter().map(|(key, _)| *key).find(is_hidden);
    let (buffers, speed) = match (hidden, buffers) {
        (Some(bo), None) => return Err(CheckpointError::Hidden { bo }),
        (Some(_), Some(buffers)) => (buffers, None),
        (None, buffers) => {
            let speed = aperture::speed(registry, on, info, of_agent);
            if speed.is_fast() {
                return Ok(Way::Host);
            }
            match buffers.filter(|_| speed.is_worth_an_engine()) {
                Some(buffers) => (buffers, Some(speed)),
                None => return Ok(Way::Aperture { read_cost: speed.read_cost }),
            }
        }
    };
    match (AgentEngine::new(context, registry, on, info, buffers, limit), speed) {
        (Ok(engine), _) => Ok(Way::Engine(Box::new(engine))),
        (Err(error), None) => Err(CheckpointError::Engine(Box::new(error))),
        (Err(error), Some(speed)) => {
            let agent = info.uuid();
            tracing::warn!(target: "checkpoint", %error, agent, "contents are read through the PCI aperture");
            Ok(Way::Aperture { read_cost: speed.read_cost })
        }
    }
}

fn is_vram_of(state: &BoState, agent: AgentIndex) -> bool {
    state.kind == BoKind::Vram && state.agent == agent
}
