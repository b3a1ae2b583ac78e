// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the process has forked a child that shares its mappings.
//!
//! A child that the system call alone made, past the C library's `fork`, is not noticed. One of `vfork` or `posix_spawn` touches no memory
//! of the program before it is another one.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use nix::libc;

static FORKED: AtomicBool = AtomicBool::new(false);
/// Descriptors of which a child gets none; -1 in free places.
static UNINHERITED: [AtomicI32; 32] = [const { AtomicI32::new(-1) }; 32];

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn before_fork() {
    // Without the variable, in a thread that is ending, the fork is not the runtime's.
    if !IS_OWN.try_with(Cell::get).unwrap_or(false) {
        FORKED.store(true, Ordering::SeqCst);
    }
}

extern "C" fn in_child() {
    for place in &UNINHERITED {
        let number = place.load(Ordering::SeqCst);
        if number < 0 {
            continue;
        }
        // The number stays in use: the child may drop its owner, which closes whatever has the number then.
        // SAFETY: system calls that a handler may make, on a path of this library.
        unsafe {
            let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            match nothing {
                -1 => libc::close(number),
                nothing => {
                    libc::dup3(nothing, number, libc::O_CLOEXEC);
                    libc::close(nothing)
                }
            };
        }
    }
}

/// A descriptor that children get `/dev/null` in the place of, from the first [`notice`] on.
#[derive(Debug)]
pub struct Uninherited(Option<usize>);

impl Uninherited {
    /// This one, until it is dropped, before the descriptor is. Of more than 32, children inherit the others.
    #[must_use]
    pub fn new(fd: BorrowedFd<'_>) -> Self {
        let number = fd.as_raw_fd();
        let take = |place: &AtomicI32| {
            place.compare_exchange(-1, number, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        Self(UNINHERITED.iter().position(take))
    }
}

impl Drop for Uninherited {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            UNINHERITED[place].store(-1, Ordering::SeqCst);
        }
    }
}

/// Notices forks from now on.
pub fn notice() {
    static NOTICE: Once = Once::new();
    // SAFETY: the handlers are functions of this library, and do what a handler may around a fork.
    NOTICE.call_once(|| match unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) } {
        0 => {}
        // Forks go unnoticed: the process counts as one that has forked.
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
