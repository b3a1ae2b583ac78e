// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: the window of addresses, and how buffer objects are asked for, made and freed.
//!
//! INVARIANT: a buffer object has one address for its whole life, the same for the CPU and every agent, across
//! checkpoints too.

pub mod arriving;
pub mod free;
pub mod guard;
pub mod host_writes;
pub mod make;
pub mod mapped;
pub mod mappings;
pub mod request;
pub mod window;
