// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the C library's functions fail.

use nix::errno::Errno;
use nix::libc::c_int;

/// The result of a function that answers -1 and sets errno.
pub(crate) fn result(outcome: Result<c_int, Errno>) -> c_int {
    outcome.unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}
