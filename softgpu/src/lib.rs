// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software GPU: a device that keeps KFD's contract and executes real packets and real machine code.
//!
//! `driver` answers ioctls as the kernel does and knows neither sockets nor waves; `client_gpus` is the hardware it
//! drives; `server` puts both behind a Unix socket. The traits of `hardware` connect the driver and the hardware.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(unsafe_code)]

pub mod client_gpus;
pub mod driver;
pub mod hardware;
pub mod journal;
pub mod misbehaviour;
mod names;
pub mod persist;
mod reaper;
pub mod server;
pub mod sysfs;

pub use server::in_process;
