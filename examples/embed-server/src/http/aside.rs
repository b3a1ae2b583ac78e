// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU work on other threads than those that serve sockets.
//!
//! INVARIANT: no more work is done at once than there are threads for it, at most half of it is [`Size::Large`], and
//! work whose request was dropped can see that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// How much work it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// Less work than passing it to another thread costs.
    Small,
    /// More than that.
    Medium,
    /// So much that other work must not wait for it.
    Large,
}

impl Size {
    /// The size of work on so many bytes.
    pub(super) fn of(bytes: usize) -> Self {
        match bytes {
            0..=0x400 => Size::Small,
            0x401..=0x1_0000 => Size::Medium,
            _ => Size::Large,
        }
    }
}

/// Whether a request still waits for the work.
#[derive(Clone, Debug)]
pub(super) struct Wanted(Arc<AtomicBool>);

impl Wanted {
    /// Whether one does.
    pub(super) fn is_wanted(&self) -> bool {
        // ORDERING: it is a hint; nothing is published with it.
        self.0.load(Ordering::Relaxed)
    }
}

/// Ends the want with the request's future.
struct Waiter(Wanted);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

/// The threads that do the work.
#[derive(Debug)]
pub(super) struct Aside {
    all: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Aside {
    /// `threads` threads.
    pub(super) fn new(threads: usize) -> Self {
        let threads = threads.clamp(1, Semaphore::MAX_PERMITS);
        Self { all: Arc::new(Semaphore::new(threads)), large: Arc::new(Semaphore::new((threads / 2).max(1))) }
    }

    /// Does `work`, on the runtime's blocking threads unless it is small. If the future is dropped early it does not
    /// wait for a thread any more, and the work can see that it is not wanted.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce(&Wanted) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let wanted = Wanted(Arc::new(AtomicBool::new(true)));
        if size == Size::Small {
            return Ok(work(&wanted));
        }
        let large = match size {
            Size::Large => Some(permit(&self.large).await?),
            _ => None,
        };
        let one = permit(&self.all).await?;
        let waiter = Waiter(wanted.clone());
        let done = tokio::task::spawn_blocking(move || {
            // The work has the permits, not the request: it occupies its thread also when the request was dropped.
            let _permits = (large, one);
            work(&wanted)
        })
        .await;
        drop(waiter);
        done.map_err(|error| {
            tracing::error!(target: "http", %error, "work aside was lost");
            ApiError::internal()
        })
    }
}

async fn permit(of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
    // The semaphore is never closed.
    of.clone().acquire_owned().await.map_err(|_| ApiError::internal())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn work_of_a_request_that_is_gone_is_not_wanted() {
        let aside = Arc::new(Aside::new(1));
        let (begun, begins) = mpsc::channel();
        let (ended, ends) = mpsc::channel();
        let work = move |wanted: &Wanted| {
            begun.send(()).unwrap();
            while wanted.is_wanted() {
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.send(()).unwrap();
        };
        let request = tokio::spawn({
            let aside = aside.clone();
            async move { aside.run(Size::Medium, work).await }
        });
        tokio::task::block_in_place(|| begins.recv_timeout(Duration::from_secs(60))).unwrap();

        request.abort();

        tokio::task::block_in_place(|| ends.recv_timeout(Duration::from_secs(60))).unwrap();
        assert_eq!(aside.run(Size::Large, |_| 7).await, Ok(7));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn large_work_leaves_threads_for_the_rest() {
        let aside = Arc::new(Aside::new(2));
        let (release, held) = mpsc::channel::<()>();
        let (first, second) = (aside.clone(), aside.clone());
        let large = tokio::spawn(async move { first.run(Size::Large, move |_| held.recv().is_err()).await });
        let waiting = tokio::spawn(async move { second.run(Size::Large, |_| ()).await });

        assert_eq!(aside.run(Size::Medium, |_| 7).await, Ok(7));
        drop(release);
        assert_eq!(large.await.unwrap(), Ok(true));
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }
}
