// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Linux says of processes, sockets and files, and memory asked of it at once: nothing here knows of devices.

pub mod credentials;
pub mod incarnation;
pub mod pages;
pub mod presence;
pub mod process;
pub mod regular;
