// SPDX-License-Identifier: MIT OR Apache-2.0
//! Taking queues off the hardware and putting them back on (`kfd_device_queue_manager.c`).
//!
//! INVARIANT: each GPU counts the reasons for eviction. Its queues run again when the count is zero. The memory
//! descriptor of a queue and its own buffers hold everything that the queue needs to continue.

use nix::errno::Errno;

use super::cu_mask;
use super::process::{KfdProcess, Pdd, State};
use super::queue_table::Queue;
use super::smi::Notice;

impl KfdProcess {
    /// Takes a queue off the hardware if it is on it.
    ///
    /// # Errors
    /// `ETIME` when its waves do not stop; the queue is lost then.
    pub(super) fn take_off(&self, id: u32, queue: &mut Queue) -> Result<(), Errno> {
        if !queue.running {
            return Ok(());
        }
        queue.running = false;
        match self.hardware.stop_queue(queue.gpu, id) {
            Ok(Some(mqd)) => {
                let before = std::mem::replace(&mut queue.mqd, mqd);
                // Hardware that ignores the CU masks when it places waves may return descriptors without them.
                for xcc in 0..before.xccs() {
                    if queue.is_compute() && cu_mask::read(&queue.mqd, xcc) == [0; 8] {
                        cu_mask::write(&mut queue.mqd, xcc, cu_mask::read(&before, xcc));
                    }
                }
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(errno) => {
                queue.reset = true;
                Err(errno)
            }
        }
    }

    /// Puts a queue on the hardware if it is active and not on it.
    ///
    /// # Errors
    /// The error of the hardware.
    pub(super) fn put_on(&self, id: u32, queue: &mut Queue, pdd: &Pdd) -> Result<(), Errno> {
        if queue.running || !queue.is_active(pdd.evicted) {
            return Ok(());
        }
        self.hardware.start_queue(queue.gpu, &queue.for_hardware(id), &queue.mqd)?;
        queue.running = true;
        Ok(())
    }

    /// Adds a reason to keep all queues off the hardware (`kfd_process_evict_queues`).
    ///
    /// # Errors
    /// `ETIME` when one of them does not stop. The reason is removed then, and the queues that stopped run again.
    pub(super) fn evict_queues(&self, state: &mut State) -> Result<(), Errno> {
        self.evict_queues_while(state, || true)
    }

    /// As [`KfdProcess::evict_queues`], as long as `go_on` holds, which is asked before each queue.
    ///
    /// # Errors
    /// Also `ETIMEDOUT`, undone like another error, when `go_on` did not hold.
    pub(super) fn evict_queues_while(
        &self,
        state: &mut State,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<(), Errno> {
        let mut outcome = Ok(());
        for gpu in 0..self.gpus.len() {
            outcome = outcome.and(self.evict_gpu(state, gpu, &mut go_on));
        }
        if outcome.is_err() {
            // The first error is the one to report, also if a queue cannot start again.
            let _ = self.restore_queues(state);
        }
        outcome
    }

    fn evict_gpu(&self, state: &mut State, gpu: usize, go_on: &mut dyn FnMut() -> bool) -> Result<(), Errno> {
        let Some(pdd) = state.pdds.get_mut(gpu) else { return Ok(()) };
        pdd.evicted = pdd.evicted.saturating_add(1);
        let mut outcome = Ok(());
        for (id, queue) in state.queues.iter_mut().filter(|(_, queue)| queue.gpu == gpu) {
            let taken = if go_on() { self.take_off(id, queue) } else { Err(Errno::ETIMEDOUT) };
            outcome = outcome.and(taken);
        }
        outcome
    }

    /// Takes a reason away (`kfd_process_restore_queues`).
    ///
    /// # Errors
    /// The hardware's error for the first queue that does not start; the other queues start.
    pub(super) fn restore_queues(&self, state: &mut State) -> Result<(), Errno> {
        for pdd in &mut state.pdds {
            pdd.evicted = pdd.evicted.saturating_sub(1);
        }
        let State { pdds, queues, .. } = state;
        let mut outcome = Ok(());
        for (id, queue) in queues.iter_mut() {
            outcome = outcome.and(self.put_on(id, queue, &pdds[queue.gpu]));
        }
        outcome
    }

    /// Keeps the queues of a GPU off the hardware for good (`kfd_dqm_evict_pasid`).
    pub(super) fn evict_after_fault(&self, gpu: usize) {
        if let Err(errno) = self.evict_gpu(&mut self.state.lock(), gpu, &mut || true) {
            tracing::warn!(target: "driver", gpu, %errno, "a queue did not stop");
        }
    }

    /// Marks every queue of a GPU as lost in a reset: it can only be destroyed.
    pub(super) fn lose_queues(&self, gpu: usize) {
        let mut state = self.state.lock();
        let Some(pdd) = state.pdds.get_mut(gpu) else { return };
        pdd.resets = pdd.resets.wrapping_add(1);
        let number = pdd.resets;
        self.streams.tell(gpu, Notice::ResetBegins { number });
        for (id, queue) in state.queues.iter_mut().filter(|(_, queue)| queue.gpu == gpu) {
            if std::mem::take(&mut queue.running) {
                self.hardware.destroy_queue(gpu, id);
            }
            queue.reset = true;
        }
        self.streams.tell(gpu, Notice::ResetEnds { number });
    }
}
