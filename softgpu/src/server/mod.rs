// SPDX-License-Identifier: MIT OR Apache-2.0
//! softgpud: the device behind a Unix socket, one executor process for each client process.
//!
//! ```text
//!  client ──connect──► broker ──spawns──► executor (driver + processor + the client's memory)
//!     └───────────────── the same connection, passed on ─────────────────────┘
//! ```
//!
//! INVARIANT: a client can end its own executor at worst. Every byte from a socket is checked where it is decoded.

mod broker;
mod channel;
mod devices;
mod error;
mod executor;
mod host;
pub mod in_process;
mod keeper;
mod layout;
mod log;
mod orders;
mod peer;
mod refusal;
mod saved;
mod settings;
mod sys;
mod tree;
mod user;
mod window;

pub use broker::{ServeOptions, serve};
pub use error::ServeError;
pub use executor::{Records, execute, execute_when_wanted};
pub use log::{LOG_FILE_VARIABLE, LOG_VARIABLE, install as install_log};
pub use settings::SettingError;
pub use tree::{TreeOptions, write_tree};
