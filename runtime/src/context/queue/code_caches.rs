// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agents' instruction and scalar caches, which do not notice that code is written to memory.
//!
//! An agent fetches instructions through caches that neither a store of the host nor a fence of an AQL packet reaches, and
//! the arena gives the addresses of unloaded code objects to others. AMD's runtime therefore invalidates them for every code
//! object that it loads (`amd_gpu_agent.cpp:InvalidateCodeCaches`). Here it is done where addresses may have held other
//! code: for loads on an agent on which anything was unloaded before, and after a restore. Lines that were fetched ahead
//! of a code object's end are no concern: the compiler pads code against them (LLVM, `AMDGPUAsmPrinter::doFinalization`).
//!
//! INVARIANT: no dispatch can begin between the writing of code to reused addresses and the end of the invalidation. Who
//! writes marks the caches stale before anybody has the address, and calls [`settle`] before anybody is told it. An agent
//! without compute queues stays marked; the first such queue is not handed out before [`settle`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use queues::aql::{Packet, Pm4Ib};
use queues::pm4;
use queues::words::count;
use stasis_protocol::gate::Pass;

use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::error::CodeCacheError;
use crate::context::queue::create::{Recipe, create_queue, destroy_queue};
use crate::context::queue::idle::is_idle;
use crate::context::queue::live::QueueLive;
use crate::context::queue::lost_agent::check;
use crate::context::registry::Registry;
use crate::context::registry::state::AgentIndex;

/// Where the queue's page has room for the PM4 commands, behind the `amd_queue_t`, its doorbell and its marker.
const COMMANDS: u64 = 2048;
/// TIMEOUT: two packets on a queue of their own; kernels of other queues do not delay them.
const LIMIT: Duration = Duration::from_secs(10);

/// What is known of one agent's caches.
#[derive(Debug, Default)]
struct Caches {
    /// Whether an address of this agent may have held code that is not there any more.
    unloaded: AtomicBool,
    /// Whether code was written that the caches may hold older bytes of.
    stale: AtomicBool,
    /// Held by the one who invalidates them, so that another one who finds them valid knows that it is done.
    invalidating: Mutex<()>,
}

/// What is known of all agents' caches.
#[derive(Debug)]
pub struct CodeCaches(Vec<Caches>);

impl CodeCaches {
    /// Of that many agents on which nothing was loaded yet.
    pub fn new(agents: usize) -> Self {
        CodeCaches((0..agents).map(|_| Caches::default()).collect())
    }

    /// Notes that code is unloaded. Said before its memory can be used again.
    pub fn note_unload(&self, agent: AgentIndex) {
        if let Some(caches) = self.0.get(agent.at()) {
            caches.unloaded.store(true, Ordering::Release);
        }
    }

    /// Notes that code was written to memory that the runtime chose.
    pub fn note_load(&self, agent: AgentIndex) {
        if self.0.get(agent.at()).is_some_and(|caches| caches.unloaded.load(Ordering::Acquire)) {
            self.mark_stale(agent);
        }
    }

    /// Notes that code was written where there may have been other code.
    pub fn mark_stale(&self, agent: AgentIndex) {
        if let Some(caches) = self.0.get(agent.at()) {
            // ORDERING: Release: who finds the mark, and invalidates, does so behind the writes.
            caches.stale.store(true, Ordering::Release);
        }
    }

    /// Notes that all loaded code was written anew.
    pub fn mark_all_stale(&self, registry: &Registry) {
        for (_, executable) in registry.executables.iter() {
            self.mark_stale(executable.agent);
        }
    }
}

/// Invalidates an agent's caches if they are marked stale and it has a queue that could run code; returns when that is
/// done, by this call or another.
///
/// It takes a queue of its own for the moment: the caller's queues may be held up by what their packets wait for.
///
/// # Errors
/// [`CodeCacheError`]; the caches stay marked.
pub fn settle(context: &Context, pass: &Pass<'_>, info: &AgentInfo) -> Result<(), CodeCacheError> {
    let Some(caches) = context.code_caches.0.get(info.index().at()) else { return Ok(()) };
    let _one = caches.invalidating.lock();
    if !caches.stale.load(Ordering::Acquire) || !has_compute_queue(&context.registry.lock(), info.index()) {
        return Ok(());
    }
    // Before the packet is written: code that is written from here on is marked again.
    caches.stale.store(false, Ordering::Relaxed);
    let done = invalidate(context, pass, info);
    if done.is_err() {
        caches.stale.store(true, Ordering::Release);
    }
    done
}

fn has_compute_queue(registry: &Registry, agent: AgentIndex) -> bool {
    registry.queues.iter().any(|(_, queue)| queue.state.agent == agent && queue.state.kind.is_compute())
}

fn invalidate(context: &Context, pass: &Pass<'_>, info: &AgentInfo) -> Result<(), CodeCacheError> {
    let queue = check(context, pass, info)
        .and_then(|()| create_queue(context, pass, info, Recipe::own_aql()))
        .map_err(CodeCacheError::from)?;
    let done = submit(pass, &queue.live).and_then(|()| await_end(context, pass, &queue.live));
    let destroy = || destroy_queue(context, pass, queue.key, &queue.live);
    // No other code knows this queue, so that it is tried again here.
    if let Err(error) = destroy().or_else(|_| destroy()) {
        tracing::warn!(target: "queues", %error, queue = %queue.key, "the queue of an invalidation could not be destroyed");
    }
    done
}

/// Puts the PM4 commands into the queue's page, and a packet that runs them into its ring.
fn submit(pass: &Pass<'_>, live: &QueueLive) -> Result<(), CodeCacheError> {
    let mut commands = Vec::new();
    if let Err(error) = pm4::code_invalidate(live.target()).encode(&mut commands) {
        tracing::error!(target: "queues", %error, "INVARIANT: the runtime's own packets can be encoded");
    }
    let page = live.memory().page;
    for (at, &word) in (COMMANDS..).step_by(4).zip(&commands) {
        page.store32(at, word, Ordering::Relaxed);
    }
    let packet = Packet::Pm4Ib(Pm4Ib::new(page.va() + COMMANDS, count(commands.len())));
    let mut slot = live.reserve(pass, 1).map_err(|error| CodeCacheError::Submit(Box::new(error)))?;
    slot.publish(packet.encode());
    Ok(())
}

fn await_end(context: &Context, pass: &Pass<'_>, live: &QueueLive) -> Result<(), CodeCacheError> {
    let started = Instant::now();
    let ended = is_idle(context, pass, live, started + LIMIT)?;
    match live.fault() {
        Some(fault) => Err(Arc::clone(fault).into()),
        None if !ended => Err(CodeCacheError::Stalled { waited: started.elapsed() }),
        None => Ok(()),
    }
}
