// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the process has forked a child that shares its mappings.
//!
//! A child that the system call alone made, past the C library's `fork`, is not noticed. One of `vfork` or `posix_spawn` touches no memory
//! of the program before it is another one.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn before_fork() {
    // In a thread that is at its end it is none of the runtime's.
    if !IS_OWN.try_with(Cell::get).unwrap_or(false) {
        FORKED.store(true, Ordering::SeqCst);
    }
}

/// Notices forks from now on.
pub fn notice() {
    static NOTICE: Once = Once::new();
    // SAFETY: the handler is a function of this library, and does what a handler may before a fork.
    NOTICE.call_once(|| match unsafe { libc::pthread_atfork(Some(before_fork), None, None) } {
        0 => {}
        // Whoever cannot notice them has to expect them.
        _ => FORKED.store(true, Ordering::SeqCst),
    });
}

/// Whether there was one, but for those in [`own`], since [`notice`] was first called.
pub fn happened() -> bool {
    FORKED.load(Ordering::SeqCst)
}

/// Forks by `fork`, which touches no memory of buffers in the child.
pub fn own<T>(fork: impl FnOnce() -> T) -> T {
    IS_OWN.set(true);
    let forked = fork();
    IS_OWN.set(false);
    forked
}
