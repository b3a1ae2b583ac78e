// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a thread's calls to the device may take.
//!
//! The software device is a process, which may be stopped or get no CPU time. Without a limit a call waits for it
//! forever, as it would for a GPU. A thread that holds a [`CallLimit`] gets ETIMEDOUT when the limit ends. Such a call
//! was not carried out, and the session goes on. If the device has begun a call, the thread waits for its end even
//! beyond the limit, since otherwise it could not know the outcome; calls that change nothing are the exception. A
//! limit does not affect the kernel's driver.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};

use crate::linux::poll;

/// How often the check of a limit is evaluated.
const LOOK: Duration = Duration::from_millis(10);

/// Whether calls may go on.
type Check = Arc<dyn Fn() -> bool + Send + Sync>;

/// A limit for calls to the device.
#[derive(Clone, Default)]
pub struct CallLimit {
    deadline: Option<Instant>,
    check: Option<Check>,
}

impl fmt::Debug for CallLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallLimit").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

thread_local! {
    static CURRENT: RefCell<CallLimit> = const { RefCell::new(CallLimit::none()) };
}

/// Restores the thread's previous limit, also when a call panics.
struct Before(CallLimit);

impl Drop for Before {
    fn drop(&mut self) {
        let limit = std::mem::take(&mut self.0);
        // A thread that is ending has no limit to go back to.
        let _ = CURRENT.try_with(|current| current.replace(limit));
    }
}

impl CallLimit {
    /// No limit.
    #[must_use]
    pub const fn none() -> Self {
        Self { deadline: None, check: None }
    }

    /// Until a point in time.
    #[must_use]
    pub const fn until(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), check: None }
    }

    /// As long as `check` returns true. It is called every 10 ms.
    #[must_use]
    pub fn while_true(check: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { deadline: None, check: Some(Arc::new(check)) }
    }

    /// Applies the limit to this thread's calls while `act` runs, in place of the previous limit. A thread that is ending has
    /// no limit: a program's exit handlers may still call.
    pub fn hold<R>(self, act: impl FnOnce() -> R) -> R {
        let _before = CURRENT.try_with(|current| Before(current.replace(self)));
        act()
    }

    /// The limit of this thread.
    pub(super) fn current() -> Self {
        CURRENT.try_with(|current| current.borrow().clone()).unwrap_or_default()
    }

    /// Whether it can end at all.
    pub(super) const fn is_some(&self) -> bool {
        self.deadline.is_some() || self.check.is_some()
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
            || self.check.as_ref().is_some_and(|check| !check())
    }

    /// Waits until `fd` is readable or its other end is closed. Answers `false` when the limit ends first.
    ///
    /// # Errors
    /// The errno of poll.
    pub(super) fn wait_readable(&self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        self.wait_any_readable(&[fd])
    }

    /// As [`CallLimit::wait_readable`], for one of several.
    ///
    /// # Errors
    /// The errno of poll.
    pub(super) fn wait_any_readable(&self, fds: &[BorrowedFd<'_>]) -> Result<bool, Errno> {
        loop {
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let nap = match (left, &self.check) {
                (Some(left), Some(_)) => Some(left.min(LOOK)),
                (None, Some(_)) => Some(LOOK),
                (left, None) => left,
            };
            if is_any_readable(fds, nap)? {
                return Ok(true);
            }
            if self.is_over() {
                return Ok(false);
            }
        }
    }
}

/// Whether `fd` is readable or its other end is closed, within `limit` (`None`: no limit). A signal may end the wait
/// early.
///
/// # Errors
/// The errno of poll.
pub(super) fn is_readable(fd: BorrowedFd<'_>, limit: Option<Duration>) -> Result<bool, Errno> {
    is_any_readable(&[fd], limit)
}

fn is_any_readable(fds: &[BorrowedFd<'_>], limit: Option<Duration>) -> Result<bool, Errno> {
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    match poll(&mut polled, limit) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_held_by_its_thread_and_put_back() {
        assert!(!CallLimit::current().is_some());
        let past = Instant::now();
        CallLimit::until(past).hold(|| {
            assert!(CallLimit::current().is_over());
            CallLimit::none().hold(|| assert!(!CallLimit::current().is_over()));
            assert!(CallLimit::current().is_over());
            let elsewhere = std::thread::spawn(|| CallLimit::current().is_some());
            assert!(!elsewhere.join().unwrap());
            let panicked = std::panic::catch_unwind(|| CallLimit::none().hold(|| panic!("on purpose")));
            assert!(panicked.is_err() && CallLimit::current().is_over());
        });
        assert!(!CallLimit::current().is_some());
    }

    #[test]
    fn check_ends_a_wait_before_its_deadline() {
        let (pipe, _writer) = nix::unistd::pipe().unwrap();
        let asked = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let limit =
            CallLimit::while_true(move || counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 3);
        assert_eq!(limit.wait_readable(std::os::fd::AsFd::as_fd(&pipe)), Ok(false));
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 4);
    }
}
