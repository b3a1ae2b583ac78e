// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate and the state machine under the model checker: every interleaving, and what an atomic may return in each.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --profile model -p stasis-protocol --test model --target-dir target/loom`, or as
//! part of `cargo xtask test`. `docs/checkpoint-protocol.md` says which model proves what.
//!
//! INVARIANT: each model can fail: beside it stands the same model of something deliberately broken, which must.
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

mod arrivals;
mod gate;
mod state_machine;
mod world;
