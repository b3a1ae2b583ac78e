// SPDX-License-Identifier: MIT OR Apache-2.0
//! A software device in the process that uses it: requests are answered by a function call, on the caller's thread.
//!
//! The tests of this repository use it. A program uses softgpud, whose memory and faults are not the program's.
//!
//! INVARIANT: a request and its descriptors cross as they would cross a socket: the device gets copies of both.

use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::session::CallError;
use crate::linux;
use crate::transport::wire::{Reply, Request, WireError};

/// A software device in this process.
pub trait LocalDevice: Send + Sync + Debug {
    /// Answers a request; `None` if the device is gone. Replies have all their descriptors at once
    /// ([`Request::MoreFds`] is never sent).
    fn answer(&self, request: Request, fds: Vec<OwnedFd>) -> Option<(Reply, Vec<OwnedFd>)>;
}

/// Has the device answer a request.
pub(super) fn call(
    device: &Arc<dyn LocalDevice>,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> Result<(Reply, Vec<OwnedFd>), CallError> {
    let copies = fds.iter().map(linux::duplicate).collect::<Result<_, _>>();
    let copies = copies.map_err(|errno| CallError::Wire(WireError::System { call: "dup", errno }))?;
    device.answer(request.clone(), copies).ok_or(CallError::Lost)
}
