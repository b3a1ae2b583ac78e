// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the driver still runs this process's queues on an agent where the process had a memory fault.
//!
//! Kernels up to 7.3 at least take all queues of the process off that GPU until the process ends
//! (`kfd_int_process_v9.c`, `_v10.c`, `_v11.c`: `kfd_dqm_evict_pasid`): queues can be made and never run. Another driver may
//! stop the queue at fault and no other. Which one it is, is not inferred from a version: after a fault the first call
//! that needs the agent makes a queue of its own and looks whether its packet runs.
//!
//! INVARIANT: an agent is called lost only after a fault, and only if a queue that nobody suspended stayed off the hardware
//! for longer than a driver under memory pressure keeps it off.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stasis_protocol::gate::Pass;

use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::error::QueueError;
use crate::context::queue::create::{Created, Recipe, create_queue, destroy_queue};
use crate::context::queue::fault::{MemoryViolation, QueueFault};
use crate::context::registry::state::AgentIndex;

/// TIMEOUT: how long the driver says that the queue is off the hardware before that is believed to be for good. Memory
/// pressure takes queues off, too: the driver tries to put them back after 100 ms (`kfd_priv.h`,
/// `PROCESS_RESTORE_TIME_MS`), and has to move their memory.
const FOR_GOOD: Duration = Duration::from_millis(500);
/// TIMEOUT: how long a packet that does nothing may wait for its turn on an agent that other queues use. Nothing is found
/// out after that.
const TURN: Duration = Duration::from_secs(2);
/// TIMEOUT: between two looks; a look is an ioctl.
const LOOK: Duration = Duration::from_millis(2);

/// The driver runs no queue of this process on an agent any more: a memory fault of the process took them all off.
///
/// The CPU still reads and writes what it sees of the agent's memory, and a drained checkpoint saves it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct AgentLost {
    /// The agent.
    pub agent: String,
    /// The access that was refused, if the driver told it.
    pub memory: Option<MemoryViolation>,
    /// The queue at fault: kernel, program counter, as far as they are known. None if no queue was found.
    pub fault: Option<Arc<QueueFault>>,
}

impl fmt::Display for AgentLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agent, memory, fault } = self;
        write!(
            f,
            "{agent} is lost to this process: the driver runs none of its queues there after a memory fault"
        )?;
        match (fault, memory) {
            (Some(fault), _) => write!(f, " ({})", fault.without_advice())?,
            (None, Some(memory)) => write!(f, " (at {:#x}, by a queue that is not known)", memory.address)?,
            (None, None) => {}
        }
        write!(f, "; start a new process, or restore a checkpoint in one")
    }
}

/// What is known of one agent.
#[derive(Clone, Debug, Default)]
enum AgentStatus {
    /// No fault, or queues run in spite of it.
    #[default]
    Served,
    /// There was this fault, and nobody has looked yet.
    Doubtful(Arc<AgentLost>),
    /// Lost.
    Lost(Arc<AgentLost>),
}

#[derive(Debug, Default)]
struct Agent {
    status: Mutex<AgentStatus>,
    /// Held by the one who looks, so that others wait for what he finds.
    looking: Mutex<()>,
}

/// What is known of all agents.
#[derive(Debug)]
pub struct LostAgents(Vec<Agent>);

impl LostAgents {
    /// Of that many agents without a fault.
    pub fn new(agents: usize) -> Self {
        LostAgents((0..agents).map(|_| Agent::default()).collect())
    }

    /// Notes a memory fault on an agent. What is known to be lost stays so.
    pub fn note(&self, agent: AgentIndex, fault: &Arc<AgentLost>) {
        if let Some(agent) = self.0.get(agent.at()) {
            let mut status = agent.status.lock();
            if matches!(*status, AgentStatus::Served) {
                *status = AgentStatus::Doubtful(Arc::clone(fault));
            }
        }
    }

    /// Why an agent is lost, if it is known to be.
    pub fn lost(&self, agent: AgentIndex) -> Option<Arc<AgentLost>> {
        match &*self.0.get(agent.at())?.status.lock() {
            AgentStatus::Lost(lost) => Some(Arc::clone(lost)),
            _ => None,
        }
    }

    /// Notes that the queues are on a device that was opened anew: one that knows this process keeps what a fault took off,
    /// so somebody has to look again, and one that does not has seen no fault.
    pub fn reopened(&self, knows_us: bool) {
        for agent in &self.0 {
            let mut status = agent.status.lock();
            *status = match std::mem::take(&mut *status) {
                AgentStatus::Lost(lost) | AgentStatus::Doubtful(lost) if knows_us => {
                    AgentStatus::Doubtful(lost)
                }
                _ => AgentStatus::Served,
            };
        }
    }
}

/// Refuses what needs an agent that is lost; after a fault, looks whether it is.
///
/// # Errors
/// [`QueueError::AgentLost`]; [`QueueError::Lost`].
pub fn check(context: &Context, pass: &Pass<'_>, info: &AgentInfo) -> Result<(), QueueError> {
    let Some(agent) = context.lost_agents.0.get(info.index().at()) else { return Ok(()) };
    let status = || agent.status.lock().clone();
    match status() {
        AgentStatus::Served => return Ok(()),
        AgentStatus::Lost(lost) => return Err(QueueError::AgentLost(lost)),
        AgentStatus::Doubtful(_) => {}
    }
    let _one = agent.looking.lock();
    let fault = match status() {
        AgentStatus::Served => return Ok(()),
        AgentStatus::Lost(lost) => return Err(QueueError::AgentLost(lost)),
        AgentStatus::Doubtful(fault) => fault,
    };
    match runs_queues(context, pass, info)? {
        Some(false) => {}
        runs => {
            // What takes too long to find out is not asked for again and again.
            tracing::debug!(target: "exceptions", ?runs, agent = fault.agent, "not lost after a memory fault");
            *agent.status.lock() = AgentStatus::Served;
            return Ok(());
        }
    }
    tracing::error!(target: "exceptions", %fault);
    *agent.status.lock() = AgentStatus::Lost(Arc::clone(&fault));
    wake_listener(context, context.device_or_lost(pass)?);
    Err(QueueError::AgentLost(fault))
}

/// Has the event thread look at all queues: those of the agent will not complete what they were given.
fn wake_listener(context: &Context, device: &Device) {
    let registry = context.registry.lock();
    let event = registry.fixtures.queue_exception.and_then(|event| registry.events.get(event));
    let id = event.map(|event| event.live.id.load(Ordering::Relaxed));
    drop(registry);
    if let Some(Err(error)) = id.map(|id| device.set_event(id)) {
        tracing::warn!(target: "exceptions", %error, "the event thread could not be told of a lost agent");
    }
}

/// Whether the agent runs a packet of a queue just made; none if that was not found out.
fn runs_queues(context: &Context, pass: &Pass<'_>, info: &AgentInfo) -> Result<Option<bool>, QueueError> {
    let device = Arc::clone(context.device_or_lost(pass)?);
    let queue = match create_queue(context, pass, info, Recipe::own_aql()) {
        Ok(queue) => queue,
        Err(QueueError::Lost(lost)) => return Err(lost.into()),
        // A caller that makes a queue of its own gets the same error.
        Err(error) => {
            tracing::warn!(target: "exceptions", %error, "whether the agent runs queues after a fault was not found out");
            return Ok(None);
        }
    };
    let runs = completes_a_packet(context, pass, &device, &queue);
    let destroy = || destroy_queue(context, pass, queue.key, &queue.live);
    // No other code knows this queue, so that none could destroy it later.
    if let Err(error) = destroy().or_else(|_| destroy()) {
        tracing::warn!(target: "exceptions", %error, queue = %queue.key, "the queue of a look could not be destroyed");
    }
    Ok(runs)
}

fn completes_a_packet(context: &Context, pass: &Pass<'_>, device: &Device, queue: &Created) -> Option<bool> {
    let live = &queue.live;
    let started = Instant::now();
    let mut off_since = None;
    if !live.submit_marker(pass) {
        return None;
    }
    while live.marker_pending() {
        // The event thread may have found out at the next fault.
        if live.fault().is_some_and(|fault| fault.lost.is_some()) {
            return Some(false);
        }
        let is_off = {
            let registry = context.registry.lock();
            registry.queues.get(queue.key).is_some_and(|queue| device.is_evicted(queue, &registry.bos))
        };
        off_since = is_off.then(|| off_since.unwrap_or_else(Instant::now));
        if off_since.is_some_and(|since| since.elapsed() >= FOR_GOOD) {
            return Some(false);
        }
        if off_since.is_none() && started.elapsed() >= TURN {
            tracing::warn!(
                target: "exceptions",
                queue = %queue.key,
                "a packet does not run after a memory fault, and the driver does not say that it took the queue off"
            );
            return None;
        }
        std::thread::sleep(LOOK);
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(agent: &str) -> Arc<AgentLost> {
        let memory =
            MemoryViolation { address: 0x5000, not_present: true, read_only: false, no_execute: false };
        Arc::new(AgentLost { agent: agent.into(), memory: Some(memory), fault: None })
    }

    fn lose(agents: &LostAgents, agent: AgentIndex) {
        agents.note(agent, &fault("first"));
        *agents.0[agent.at()].status.lock() = AgentStatus::Lost(fault("first"));
    }

    #[test]
    fn fault_alone_loses_nothing_and_the_first_one_stays() {
        let agents = LostAgents::new(2);
        agents.note(AgentIndex(0), &fault("first"));
        agents.note(AgentIndex(0), &fault("second"));
        assert_eq!(agents.lost(AgentIndex(0)), None, "nobody has looked");
        let AgentStatus::Doubtful(found) = agents.0[0].status.lock().clone() else { panic!() };
        assert_eq!(found.agent, "first");
        lose(&agents, AgentIndex(0));
        agents.note(AgentIndex(0), &fault("second"));
        assert_eq!(agents.lost(AgentIndex(0)), Some(fault("first")));
        assert_eq!(agents.lost(AgentIndex(1)), None);
    }

    #[test]
    fn device_that_knows_the_process_is_looked_at_again_and_another_one_is_trusted() {
        let agents = LostAgents::new(1);
        lose(&agents, AgentIndex(0));
        agents.reopened(true);
        assert!(matches!(*agents.0[0].status.lock(), AgentStatus::Doubtful(_)));
        agents.reopened(false);
        assert!(matches!(*agents.0[0].status.lock(), AgentStatus::Served));
    }

    #[test]
    fn text_names_agent_address_and_what_to_do() {
        let text = fault("gfx1100").to_string();
        for part in ["gfx1100 is lost to this process", "0x5000", "start a new process"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
