// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU_OP: takes the state of a whole process and restores it in another one (`amdkfd/kfd_chardev.c`:
//! `kfd_ioctl_criu`).
//!
//! ```text
//! PROCESS_INFO -> CHECKPOINT -> UNPAUSE        RESTORE (a process that has acquired nothing) -> RESUME
//! ```
//!
//! INVARIANT: while a process is paused, or restored but not resumed, none of its queues is on the hardware.

mod blob;
mod dump;
mod queue;
mod restore;
mod state;

use kfd::sys::*;
use nix::errno::Errno;
use queues::words::count;

pub(super) use self::queue::sanitise;
pub(super) use self::state::CriuState;
use super::Call;
use super::process::{KfdProcess, State};

impl KfdProcess {
    pub(super) fn criu_op(&self, args: &mut kfd_ioctl_criu_args, call: &Call<'_>) -> Result<(), Errno> {
        match args.op {
            KFD_CRIU_OP_PROCESS_INFO => self.process_info(args),
            KFD_CRIU_OP_CHECKPOINT => self.checkpoint(args, call),
            KFD_CRIU_OP_UNPAUSE => self.unpause(),
            KFD_CRIU_OP_RESTORE => self.criu_restore(args, call),
            KFD_CRIU_OP_RESUME => self.criu_resume(args.pid),
            _ => Err(Errno::EINVAL),
        }
    }

    fn process_info(&self, args: &mut kfd_ioctl_criu_args) -> Result<(), Errno> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if self.gpus.is_empty() {
            return Err(Errno::ENODEV);
        }
        if !state.criu.paused || self.kernel.evicts_again() {
            // When an eviction fails, the kernel undoes it and counts the process as running, even if it was paused
            // before.
            self.evict_queues(state).inspect_err(|_| state.criu.paused = false)?;
        }
        state.criu.paused = true;
        args.pid = self.pid;
        let census = self.census(state);
        args.num_devices = census.devices;
        args.num_bos = census.bos;
        args.num_objects = census.objects;
        args.priv_data_size = census.private_bytes;
        Ok(())
    }

    /// UNPAUSE undoes one eviction. After two PROCESS_INFO on Linux 6.12 one eviction remains, and further UNPAUSE fail
    /// because the flag is clear.
    fn unpause(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if !state.criu.paused {
            return Err(Errno::EINVAL);
        }
        self.restore_queues(&mut state)?;
        state.criu.paused = false;
        Ok(())
    }

    /// RESUME. The kernel lets another process call it for `pid`; here the caller must be `pid`, since each process has
    /// its own driver state. The kernel starts the queues in a worker that retries for ever; here the caller gets the
    /// error of a queue that does not start.
    fn criu_resume(&self, pid: u32) -> Result<(), Errno> {
        if pid != self.pid {
            return Err(Errno::ESRCH);
        }
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.criu.blocked) {
            return Err(Errno::EINVAL);
        }
        self.restore_queues(&mut state)
    }
}

/// How much a checkpoint of the process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Census {
    devices: u32,
    bos: u32,
    objects: u32,
    private_bytes: u64,
}

impl KfdProcess {
    fn census(&self, state: &State) -> Census {
        let bos: usize = state.pdds.iter().map(|pdd| dump::bos(pdd).count()).sum();
        let queues = state.queues.iter().count();
        let queue_bytes: usize = state
            .queues
            .iter()
            .map(|(_, queue)| {
                let parts = self.queue_parts(queue.gpu, queue.is_compute());
                size_of::<kfd_criu_queue_priv_data>() + parts.bytes()
            })
            .sum();
        let events = self.events.lock().len();
        let bytes = size_of::<kfd_criu_process_priv_data>()
            + self.gpus.len() * size_of::<kfd_criu_device_priv_data>()
            + bos * size_of::<kfd_criu_bo_priv_data>()
            + queue_bytes
            + events * size_of::<kfd_criu_event_priv_data>();
        // Every object costs memory or a bit of a bitmap, so that there are fewer than 2^32.
        Census {
            devices: count(self.gpus.len()),
            bos: count(bos),
            objects: count(queues + events),
            private_bytes: bytes as u64,
        }
    }
}
