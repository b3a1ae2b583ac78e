// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core of the runtime: one process's context on the driver, and everything that keeps its state true.
//!
//! INVARIANT: nothing in this folder imports what is above it: the public handles, copies, sharing between processes and
//! checkpoints. Each piece of state has one owner here: [`registry`] every object handed out, [`device`] what lives in
//! the driver, [`queue`] and [`signal`] the words that packets and threads share, [`agent`] the GPUs, [`memory`] the
//! making and freeing of buffer objects, [`clocks`] what times are, [`events`] the thread that listens to the driver, [`hostcall`] what
//! kernels want of the process. The layers above keep what is
//! theirs in [`Context::layer`].
//!
//! Lock order, outermost first:
//! 1. the staged copies, then an agent's copy engines (both in `copy`);
//! 2. the gate;
//! 3. an agent's instruction caches, while they are invalidated;
//! 4. the look whether an agent is lost;
//! 5. a raw queue's producer;
//! 6. the slot of the event thread;
//! 7. the registry, under which nothing is waited for but ioctls that cannot block on a client;
//! 8. an agent's clock;
//! 9. what kernels have printed, and what they have not printed whole ([`hostcall`]);
//! 10. what is to come ([`memory::arriving`]), the list of deferred frees, the table of layers, what is known of an agent's loss, and a flush of host writes.
//!
//! Objects that hot paths touch (`live` parts) are shared out by `Arc`, so no dispatch and no wait takes a lock.

pub mod agent;
pub mod clocks;
pub mod device;
pub mod error;
pub mod events;
pub mod handover;
pub mod hostcall;
mod layers;
pub mod memory;
pub mod open;
pub mod program;
pub mod queue;
pub mod registry;
pub mod signal;
mod submitter;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use kfd::topology::Node;
use parking_lot::Mutex;
use stasis_protocol::gate::{Gate, GatedCell, Pass};

use self::agent::info::AgentInfo;
use self::agent::select::LeftOut;
use self::clocks::Clocks;
use self::device::Device;
use self::error::Lost;
use self::events::thread_handle::Watch;
pub use self::layers::Layer;
use self::layers::Layers;
use self::memory::arriving::Arriving;
use self::memory::guard::Guard;
use self::memory::host_writes::HostWrites;
use self::queue::code_caches::CodeCaches;
use self::queue::lost_agent::LostAgents;
use self::registry::Registry;
use self::registry::state::BoKey;
use self::signal::event::EventLive;
pub use self::submitter::Submitter;

/// The one context that a process has in the driver, which KFD keeps until the process's memory goes.
pub struct Context {
    /// Every call that touches the device passes it.
    pub gate: Arc<Gate>,
    /// Everything handed out.
    pub registry: Mutex<Registry>,
    /// The selected agents.
    pub agents: Vec<Arc<AgentInfo>>,
    /// The uuids of all GPUs, selected or not: what indices in an agent list count.
    pub uuids: Vec<String>,
    /// The GPUs that are none of the agents.
    pub left_out: Vec<LeftOut>,
    /// The processors of the host, as the topology had them when the context was opened.
    pub hosts: Vec<Node>,
    /// `kfd`, `soft:gfx1100`: whose device it is, or was until the checkpoint.
    transport_name: Mutex<Arc<str>>,
    /// Address of the event page, for signals' mailboxes.
    pub event_page_va: u64,
    /// The wake event: set, it ends every sleep in the device.
    pub wake: Arc<EventLive>,
    /// Buffers dropped while packets might still use them, with the queues that might.
    pub deferred: Mutex<Vec<(BoKey, u64)>>,
    /// Host writes to agents' memory that packets may not see yet.
    pub host_writes: Arc<HostWrites>,
    /// The agents' clocks.
    pub clocks: Clocks,
    /// What the agents' instruction caches may hold.
    pub code_caches: CodeCaches,
    /// On which agents the driver runs no queues any more.
    pub lost_agents: LostAgents,
    /// Buffers whose contents are still to come.
    pub arriving: Arriving,
    /// Holds threads back that have pointers to device memory.
    pub guard: Guard,
    /// What gives the queues their packets, if it wants to know of locks.
    pub submitter: OnceLock<Box<dyn Submitter>>,
    /// What the layers above keep.
    layers: Layers,
    device: GatedCell<Option<Arc<Device>>>,
    watch: Mutex<Option<Watch>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("transport", &self.transport_name()).finish_non_exhaustive()
    }
}

impl Context {
    /// Whose device it is, or was until the checkpoint.
    pub fn transport_name(&self) -> Arc<str> {
        Arc::clone(&self.transport_name.lock())
    }

    /// Notes that the device is now this transport's.
    pub fn set_transport_name(&self, name: &str) {
        *self.transport_name.lock() = name.into();
    }

    /// What a layer above keeps in this context, made when first asked for.
    pub fn layer<L: Layer>(&self) -> Arc<L> {
        self.layers.get(self.agents.len())
    }

    /// The device, under a pass; `None` only while a checkpoint holds the gate.
    #[inline]
    pub fn device<'p>(&'p self, pass: &'p Pass<'_>) -> Option<&'p Arc<Device>> {
        self.device.get(pass).as_ref()
    }

    /// The device, under a pass.
    ///
    /// # Errors
    /// [`Lost`] if it was closed although the gate is open.
    #[inline]
    pub fn device_or_lost<'p>(&'p self, pass: &'p Pass<'_>) -> Result<&'p Arc<Device>, Lost> {
        self.device(pass).ok_or(Lost { what: "the device was closed under an open gate", source: None })
    }

    /// The id of the wake event.
    pub fn wake_event(&self, _pass: &Pass<'_>) -> u32 {
        self.wake.id.load(Ordering::Relaxed)
    }
}
