// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `hsa_init` starts and `hsa_shut_down` ends.
//!
//! INVARIANT: a process has one runtime for its life, as in `stasis`; the last `hsa_shut_down` destroys the objects that the program
//! made, and every call but `hsa_init` answers "not initialized" until the next one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use stasis::Runtime;

use crate::abi::declared::HSA_STATUS_ERROR_REFCOUNT_OVERFLOW;
use crate::abi::{NOT_INITIALIZED, OUT_OF_RESOURCES, Outcome, Status};
use crate::agents::Agents;
use crate::code::Code;
use crate::events::Events;
use crate::memory::Memory;
use crate::queues::{Queues, Settler, Settling};
use crate::signals::Signals;

/// Everything that the program can have handles of.
#[derive(Debug)]
pub struct Instance {
    pub runtime: Runtime,
    pub agents: Agents,
    pub signals: Signals,
    pub queues: Queues,
    pub memory: Memory,
    pub code: Code,
    pub events: Events,
    /// Whether a lock has the queues settle.
    pub settling: Settling,
}

static INSTANCE: OnceLock<Instance> = OnceLock::new();
/// Calls of `hsa_init` that were not ended.
static STARTS: AtomicU32 = AtomicU32::new(0);
/// Held while the count changes between 0 and 1.
static STARTING: Mutex<()> = Mutex::new(());

/// What is started.
///
/// # Errors
/// [`NOT_INITIALIZED`].
#[inline]
pub fn instance() -> Outcome<&'static Instance> {
    match STARTS.load(Ordering::Acquire) {
        0 => Err(NOT_INITIALIZED),
        _ => INSTANCE.get().ok_or(NOT_INITIALIZED),
    }
}

/// What was started once, whether or not it was ended since.
pub fn opened() -> Option<&'static Instance> {
    INSTANCE.get()
}

/// Sends the library's messages to the standard error, as many as `STASIS_LOG` says; without it none.
fn log() {
    let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("STASIS_LOG") else { return };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    if builder.with_writer(std::io::stderr).try_init().is_err() {
        tracing::debug!(target: "hsa", "somebody else takes the messages");
    }
}

/// Counts a start; the first one opens the runtime.
///
/// # Errors
/// [`OUT_OF_RESOURCES`] where there is no device, as AMD's runtime says it.
pub fn start() -> Outcome {
    let _starting = STARTING.lock();
    let starts = STARTS.load(Ordering::Relaxed);
    let more = starts.checked_add(1).ok_or(Status(HSA_STATUS_ERROR_REFCOUNT_OVERFLOW))?;
    if INSTANCE.get().is_none() {
        log();
        let opened = Instance::open()?;
        INSTANCE.get_or_init(|| opened);
    }
    STARTS.store(more, Ordering::Release);
    Ok(())
}

/// Takes a start back; the last one destroys what was made.
///
/// # Errors
/// [`NOT_INITIALIZED`].
pub fn end() -> Outcome {
    let _starting = STARTING.lock();
    let instance = instance()?;
    if STARTS.fetch_sub(1, Ordering::AcqRel) == 1 {
        instance.clear();
    }
    Ok(())
}

impl Instance {
    fn open() -> Outcome<Self> {
        let runtime = Runtime::open_default().map_err(|error| {
            tracing::error!(target: "hsa", error = %stasis::explain(&error), "the runtime was not opened");
            OUT_OF_RESOURCES
        })?;
        runtime.hold_pointers();
        runtime.set_submitter(Settler);
        let agents = Agents::new(&runtime);
        Ok(Instance {
            signals: Signals::new(),
            queues: Queues::new()?,
            memory: Memory::new(),
            code: Code::new(),
            events: Events::new(),
            settling: Settling::default(),
            agents,
            runtime,
        })
    }

    fn clear(&self) {
        self.events.clear();
        self.queues.clear();
        self.memory.clear();
        self.code.clear();
        self.signals.clear();
    }
}
