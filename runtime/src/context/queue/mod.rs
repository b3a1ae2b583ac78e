// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues: their shared memory, how they are made, put on the hardware, drained and found at fault.
//!
//! INVARIANT: every buffer a queue lives in is one exactly sized mapping of its own (`kfd_queue_acquire_buffers`), made
//! before the queue and freed after it.

pub mod bringup;
pub mod code_caches;
pub mod create;
pub mod cu_mask;
pub mod fault;
pub mod host_calls;
pub mod idle;
pub mod live;
pub mod lost_agent;
pub mod packets;
pub mod scratch;
pub mod transfer;
pub mod trap;
