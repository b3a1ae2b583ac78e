// SPDX-License-Identifier: MIT OR Apache-2.0
//! Agents: which GPUs they are, what is known of them and which memory they reach.

pub mod agents;
pub mod copy_path;
pub mod info;
pub mod links;
pub mod placement;
pub mod select;
pub mod spec;
