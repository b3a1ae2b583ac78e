// SPDX-License-Identifier: MIT OR Apache-2.0
//! The freeze and thaw protocol without its device: the [`gate`], the state machine that closes and opens it
//! ([`StateMachine`]), what ends a verb early ([`Limit`]), when a checkpointed process resumes without an order
//! ([`lease`]), and how contents come back to a process that runs already ([`arrivals`]).
//!
//! INVARIANT: nothing here does I/O or knows a device. What the state machine drives is a [`Steps`]; the runtime's is the
//! GPU, the models' (`tests/model`, with `--cfg loom`) is a fake that fails wherever it can. So the code that is
//! model-checked is the code that runs. `docs/checkpoint-protocol.md` says what it promises and which model proves it.

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod arrivals;
pub mod gate;
pub mod lease;
mod limit;
mod state;
mod state_machine;
pub mod sync;

pub use self::gate::Gate;
pub use self::limit::{Limit, Stopped};
pub use self::state::{Activity, Mode, State};
pub use self::state_machine::{Failed, LONGEST_VERB, StateMachine, Steps, Taken, TearDownError};
