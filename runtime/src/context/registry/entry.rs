// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entries of the registry's tables: what is saved of an object, and what the driver and its handles have of it.
//!
//! INVARIANT: what an entry saves together with the contents of memory is enough to make the object again.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::persist::Persist;
use super::state::{
    AgentIndex, BoKey, BoState, EventState, ExecutableState, QueueNumbers, QueueState, SignalState,
};
use crate::context::program::Program;
use crate::context::queue::live::QueueLive;
use crate::context::signal::event::EventLive;
use crate::context::signal::live::SignalLive;

/// What the driver calls a buffer object; different after every restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelBo {
    /// `ALLOC_MEMORY_OF_GPU.handle`.
    pub handle: u64,
    /// `ALLOC_MEMORY_OF_GPU.mmap_offset`: the cookie for the render node.
    pub mmap_offset: u64,
}

/// What an agent's render file calls the memory of a buffer object that mappings there use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gem {
    /// The agent.
    pub agent: AgentIndex,
    /// The handle.
    pub handle: kfd::GemHandle,
    /// Mappings that use it; the driver does not count them.
    pub users: u32,
}

/// A registered buffer object.
#[derive(Debug)]
pub struct Bo {
    /// What is saved.
    pub state: BoState,
    /// What the driver calls it.
    pub kernel: Option<KernelBo>,
    /// The file that memory of somebody else was made of: to make it again.
    pub file: Option<Arc<OwnedFd>>,
    /// What the render files call it. Physical memory has some while it is mapped.
    pub gems: Vec<Gem>,
    /// Where the CPU has it instead of at its address, while it is filled ([`crate::context::memory::guard`]).
    pub aside: Option<u64>,
    /// Its contents are still to come: it is mapped to no agent yet ([`crate::context::memory::arriving`]).
    pub is_awaited: bool,
}

/// A registered event.
#[derive(Debug)]
pub struct Event {
    /// What is saved.
    pub state: EventState,
    /// The driver's id for it; for `Signal` also its slot in the event page.
    pub id: u32,
    /// The live part; outlives re-creation.
    pub live: Arc<EventLive>,
    /// Whether it exists in the driver.
    pub created: bool,
    /// Signals that use it.
    pub users: u32,
}

/// A registered signal.
#[derive(Debug)]
pub struct Signal {
    /// What is saved.
    pub state: SignalState,
    /// The live part, shared with its handles. `None` only after [`Registry::restore`].
    pub live: Option<Arc<SignalLive>>,
}

/// A registered queue.
#[derive(Debug)]
pub struct Queue {
    /// What is saved.
    pub state: QueueState,
    /// What the driver calls it.
    pub numbers: QueueNumbers,
    /// Whether it exists in the driver.
    pub created: bool,
    /// The live part, shared with its handles. `None` only after [`Registry::restore`].
    pub live: Option<Arc<QueueLive>>,
}

/// A registered executable.
#[derive(Debug)]
pub struct Executable {
    /// Where it is loaded.
    pub agent: AgentIndex,
    /// The file as it was given.
    pub code_object: Arc<[u8]>,
    /// The buffer object of its image.
    pub image: BoKey,
    /// Its kernels and symbols. `None` only after [`Registry::restore`].
    pub program: Option<Arc<Program>>,
}

impl Bo {
    /// An entry the driver does not know yet.
    pub fn new(state: BoState) -> Self {
        Bo { state, kernel: None, file: None, gems: Vec::new(), aside: None, is_awaited: false }
    }

    /// Where the CPU has it, if it has.
    pub fn cpu_va(&self) -> u64 {
        self.aside.unwrap_or(self.state.va)
    }
}

impl Event {
    /// An entry the driver does not know yet.
    pub fn new(state: EventState) -> Self {
        let live = EventLive::new(0);
        Event { state, id: 0, live: Arc::new(live), created: false, users: 0 }
    }
}

impl Queue {
    /// Whether packets are kept that were not begun: in the ring of a queue that waits, or in the entry.
    pub fn keeps_packets(&self) -> bool {
        !self.state.waiting.is_empty() || self.live.as_ref().is_some_and(|live| live.waits())
    }
}

impl Persist for Bo {
    type State = BoState;
    type Args = ();
    type Error = Infallible;

    fn save(&self) -> BoState {
        self.state.clone()
    }

    fn restore((): (), state: &BoState) -> Result<Self, Infallible> {
        Ok(Bo::new(state.clone()))
    }
}

impl Persist for Event {
    type State = EventState;
    type Args = ();
    type Error = Infallible;

    fn save(&self) -> EventState {
        self.state.clone()
    }

    fn restore((): (), state: &EventState) -> Result<Self, Infallible> {
        Ok(Event::new(state.clone()))
    }
}

impl Persist for Signal {
    type State = SignalState;
    type Args = ();
    type Error = Infallible;

    fn save(&self) -> SignalState {
        self.state.clone()
    }

    fn restore((): (), state: &SignalState) -> Result<Self, Infallible> {
        Ok(Signal { state: state.clone(), live: None })
    }
}

impl Persist for Queue {
    type State = QueueState;
    type Args = ();
    type Error = Infallible;

    /// A queue must be drained or suspended for its indices to mean anything.
    fn save(&self) -> QueueState {
        match &self.live {
            Some(live) => live.with_indices(&self.state),
            None => self.state.clone(),
        }
    }

    fn restore((): (), state: &QueueState) -> Result<Self, Infallible> {
        Ok(Queue { state: state.clone(), numbers: QueueNumbers::default(), created: false, live: None })
    }
}

impl Persist for Executable {
    type State = ExecutableState;
    type Args = ();
    type Error = Infallible;

    fn save(&self) -> ExecutableState {
        ExecutableState { agent: self.agent, code_object: self.code_object.to_vec(), image: self.image }
    }

    fn restore((): (), state: &ExecutableState) -> Result<Self, Infallible> {
        Ok(Executable {
            agent: state.agent,
            code_object: Arc::from(state.code_object.as_slice()),
            image: state.image,
            program: None,
        })
    }
}
