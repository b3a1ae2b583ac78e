// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stasis: a compute runtime for AMD GPUs whose processes freeze and thaw.
//!
//! A process opens its [`Runtime`] once, takes an [`Agent`], loads code objects as [`Executable`]s, allocates
//! [`Buffer`]s that have one address for their whole life, here as [`TypedBuffer`]s that count in elements, and submits
//! dispatches to [`Queue`]s, whose completion [`Signal`]s it waits for:
//!
//! ```no_run
//! use stasis::{Arg, Executable, Queue, QueueOptions, Runtime, Signal};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let runtime = Runtime::open_default()?;
//!     let agent = runtime.agent(0).ok_or("no agent")?;
//!     let axpy = Executable::load(&agent, &std::fs::read("axpy.co")?)?.kernel("axpy")?;
//!     let numbers: Vec<f32> = (0..1024u16).map(f32::from).collect();
//!     let (x, y) = (agent.vram().upload(&numbers)?, agent.vram().upload(&[1.0f32; 1024])?);
//!     let (queue, done) = (Queue::create(&agent, QueueOptions::default())?, Signal::new(&runtime, 1)?);
//!     let arguments = [Arg::from(&x), Arg::from(&y), Arg::F32(2.0), Arg::U32(1024)];
//!     let dispatch = queue.dispatch(&axpy).grid([1024, 1, 1]).block([256, 1, 1]).args(&arguments);
//!     dispatch.completion(&done).submit()?;
//!     done.wait_done(None)?;
//!     let expected: Vec<f32> = numbers.iter().map(|x| 2.0 * x + 1.0).collect();
//!     assert_eq!(y.download()?, expected);
//!     Ok(())
//! }
//! ```
//!
//! INVARIANT: whoever touches the device has passed the [`gate`]; whatever was handed out is in the registry; and all
//! that lives in the driver is made and unmade by the functions of one module, `context::device`. On these three a
//! checkpoint stands: it closes the gate, walks the registry, tears the device down, and makes it again.

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod adopt;
mod agent;
pub mod checkpoint;
pub mod code_object;
mod context;
mod copy;
pub mod criu;
mod dispatch;
mod executable;
pub mod image;
mod linux;
mod logical;
mod named;
mod open;
mod pool;
mod queue;
pub mod raw;
mod runtime;
pub mod share;
mod signal;
pub mod svm;
mod vmem;

pub use bytemuck::Pod;
pub use half::f16;
pub use stasis_protocol::{Gate, Limit, Stopped, gate};

pub use self::adopt::{AdoptError, Adopted, AgentMap, LabelError};
pub use self::agent::{Agent, ClockReading};
pub use self::context::Submitter;
pub use self::context::agent::copy_path::{
    CopyEngine, CopyPath, Direction, SDMA_IN_AUTO, SDMA_LINK_BYTES, SDMA_LOCAL_BYTES,
};
pub use self::context::agent::links::{LinkMatrix, NoPath, Path, PathKind, Place, Unreachable};
pub use self::context::agent::select::{LeftOut, LeftOutReason};
pub use self::context::agent::spec;
pub use self::context::clocks::{SYSTEM_FREQUENCY, now as system_time};
pub use self::context::error::*;
pub use self::context::hostcall::output::{Printed, Stream};
pub use self::context::program::Program;
pub use self::context::queue::cu_mask::CuMask;
pub use self::context::queue::fault::{
    FaultingWave, MemoryViolation, QueueFault, ScratchFault, ScratchRefusal, WavesUnread,
};
pub use self::context::registry::access::Access;
pub use self::context::registry::tally::{Holding, Holdings, MemoryPlace};
pub use self::context::signal::wait::{Condition, WaitMode};
pub use self::copy::{Span, Transfer};
pub use self::dispatch::list::CommandList;
pub use self::dispatch::{Arg, Dispatch};
pub use self::executable::{Executable, Kernel};
pub use self::linux::regular;
pub use self::logical::{LogicalDevice, LogicalError, Scattered, Share};
pub use self::named::NamedError;
pub use self::open::Options;
pub use self::pool::stats::{MemoryStats, PlaceStats};
pub use self::pool::{Buffer, HostGuard, PointerInfo, PointerKind, Pool, PoolKind, Registered, TypedBuffer};
pub use self::queue::{MAX_PACKETS, MIN_PACKETS, Queue, QueueOptions};
pub use self::raw::RawQueue;
pub use self::runtime::Runtime;
pub use self::share::ShareError;
pub use self::signal::Signal;
pub use self::vmem::{Mapping, Memory, Range, RangeGuard, VmemError};

/// What is saved of the objects that were handed out: keys and states, as images have them.
pub mod registry {
    pub use crate::context::registry::{Key, Persist, Registry, RegistryError, TableState, state};
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
