// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a topology file is refused.
//!
//! INVARIANT: the text names the table, the position of the entry from 0, the key, what was found and what is valid.

use thiserror::Error;

/// Why a topology file describes no possible machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// A number outside of what can be.
    #[error("[[{table}]] {index}: {key} is {found}, expected {wanted}")]
    Value {
        /// The table.
        table: &'static str,
        /// Which of them, from 0.
        index: usize,
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it can be.
        wanted: String,
    },
    /// Two GPUs with one identity.
    #[error("[[gpu]] {second}: {key} is {found}, which [[gpu]] {first} has already")]
    Twice {
        /// The GPU that has it.
        first: usize,
        /// The GPU that has it too.
        second: usize,
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
    },
    /// An XGMI link where there is no hive.
    #[error("[[link]] {index}: GPUs {a} and {b} are not in one hive; give both the same hive")]
    NotInOneHive {
        /// Which link.
        index: usize,
        /// One end.
        a: usize,
        /// The other.
        b: usize,
    },
    /// The same pair again.
    #[error("[[{table}]] {index}: GPUs {a} and {b} are in an earlier entry")]
    Again {
        /// The table.
        table: &'static str,
        /// Which of them, from 0.
        index: usize,
        /// One end.
        a: usize,
        /// The other.
        b: usize,
    },
}
