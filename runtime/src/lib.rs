// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stasis: a compute runtime for AMD GPUs whose processes freeze and thaw.
//!
//! A process opens its [`Runtime`] once, takes an [`Agent`], loads code objects as [`Executable`]s, allocates
//! [`Buffer`]s that have one address for their whole life, and submits dispatches to [`Queue`]s, whose completion
//! [`Signal`]s it waits for:
//!
//! ```no_run
//! use stasis::{Arg, Executable, Queue, QueueOptions, Runtime, Signal};
//! let runtime = Runtime::open_default()?;
//! let agent = runtime.agent(0).ok_or("no agent")?;
//! let axpy = Executable::load(&agent, &std::fs::read("axpy.co")?)?.kernel("axpy")?;
//! let (x, y) = (agent.vram().alloc(4 << 20)?, agent.vram().alloc(4 << 20)?);
//! let (queue, done) = (Queue::create(&agent, QueueOptions::default())?, Signal::new(&runtime, 1)?);
//! let args = [Arg::Buffer(&y), Arg::Buffer(&x), Arg::F32(2.0)];
//! queue.dispatch(&axpy).grid([1 << 20, 1, 1]).block([256, 1, 1]).args(&args).completion(&done).submit()?;
//! done.wait_done(None)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! INVARIANT: whoever touches the device has passed the [`gate`]; whatever was handed out is in the [`registry`]; and
//! all that lives in the driver is made and unmade by the functions of one module, `device`. On these three a
//! checkpoint stands: it closes the gate, walks the registry, tears the device down, and makes it again.

#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod agent;
pub mod checkpoint;
pub mod code_object;
mod copy;
pub mod criu;
mod device;
mod dispatch;
pub mod error;
mod exception;
mod executable;
pub mod image;
pub mod pool;
pub mod queue;
pub mod raw;
pub mod registry;
pub mod regular;
mod runtime;
pub mod share;
pub mod signal;
pub mod vmem;

// What ends a verb is part of the protocol; its users here know it as `crate::limit`.
use stasis_protocol as limit;
pub use stasis_protocol::gate;
pub use stasis_protocol::{Gate, Limit, Stopped};

pub use self::agent::{
    Agent, LeftOut, LeftOutReason, LinkMatrix, LogicalDevice, LogicalError, NoPath, Path, PathKind, Place,
    Scattered, Share, Unreachable,
};
pub use self::copy::{
    CopyEngine, CopyPath, Direction, SDMA_IN_AUTO, SDMA_LINK_BYTES, SDMA_LOCAL_BYTES, Span, Transfer,
};
pub use self::dispatch::{Arg, Dispatch};
pub use self::error::*;
pub use self::executable::{Executable, Kernel, Program};
pub use self::pool::stats::{Holding, Holdings, MemoryPlace, MemoryStats, PlaceStats};
pub use self::pool::{Buffer, HostGuard, PointerInfo, PointerKind, Pool, PoolKind, Registered};
pub use self::queue::{CuMask, Queue, QueueFault, QueueOptions, ScratchFault, ScratchRefusal};
pub use self::raw::RawQueue;
pub use self::registry::state::Access;
pub use self::runtime::{Options, Runtime};
pub use self::share::ShareError;
pub use self::signal::{Condition, Signal, WaitMode};
pub use self::vmem::{Mapping, Memory, Range, RangeGuard};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
