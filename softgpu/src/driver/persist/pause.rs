// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pausing a process.

use std::time::Instant;

use nix::errno::Errno;

use crate::driver::process::KfdProcess;
use crate::persist::{PauseError, PausePhase};

impl KfdProcess {
    /// Takes every queue off the hardware, as a reason for eviction on each GPU; waits for work that interrupts have left;
    /// and has all waits for events, running and future, answer `ERESTART`: the client issues them again, with the timeout
    /// that the argument then has. The process stays so until [`KfdProcess::resume`]: its ioctls work, but no queue runs.
    ///
    /// A preemption that has begun is not given up at the deadline, so that the answer may be later than that.
    ///
    /// # Errors
    /// [`PauseError`]. The queues run again then, and waits wait.
    pub fn pause(&self, deadline: Instant) -> Result<(), PauseError> {
        let late = |phase| PauseError::Deadline { phase };
        let mut state = self.state.try_lock_until(deadline).ok_or_else(|| late(PausePhase::Call))?;
        if state.paused {
            return Err(PauseError::Paused);
        }
        if let Some(gpu) = self.streams.open_one() {
            return Err(PauseError::EventStream { gpu_id: self.user_id(gpu) });
        }
        self.evict_queues_while(&mut state, || Instant::now() < deadline).map_err(|errno| match errno {
            Errno::ETIMEDOUT => late(PausePhase::Queues),
            errno => PauseError::Hang(errno),
        })?;
        state.paused = true;
        // Deferred work needs the lock.
        drop(state);
        let settled = if !self.deferred.settle(deadline) {
            Err(late(PausePhase::Interrupts))
        } else if !self.events.restart_waits(deadline) {
            Err(late(PausePhase::Waits))
        } else {
            // What a checkpoint reads of the memory from now on is all there is.
            self.hardware.settle_host_writes();
            Ok(())
        };
        if settled.is_err()
            && let Err(errno) = self.resume()
        {
            tracing::warn!(target: "driver", %errno, "a queue does not run on after a pause that failed");
        }
        settled
    }

    /// Ends a pause: waits wait again, and queues run again.
    ///
    /// # Errors
    /// `EINVAL` when the process is not paused; the hardware's error for the first queue that does not start, while the
    /// others run.
    pub fn resume(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.paused) {
            return Err(Errno::EINVAL);
        }
        self.events.let_wait();
        self.restore_queues(&mut state)
    }
}
