// SPDX-License-Identifier: MIT OR Apache-2.0
//! An entry of a family's table: an operation and how it is checked.
//!
//! INVARIANT: a check computes its expected results without the handlers.

use softgpu_isa::{Op, OpInfo};

use super::lab::Lab;
use super::{lanes, scalar};

/// How an operation is checked.
pub(crate) enum Check {
    /// One result per lane from that lane's operands.
    Lanes(lanes::Definition),
    /// A scalar operation.
    Scalar(scalar::Definition),
    /// A procedure of its own.
    Own(fn(&mut Lab, &'static OpInfo)),
}

/// An operation and its check.
pub(crate) struct Entry {
    pub op: Op,
    pub check: Check,
}
