// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wrapper of GET_QUEUE_WAVE_STATE, which writes to memory that no slice can stand for: a context save area, which
//! the GPU writes too.
#![allow(unsafe_code)]

use super::call::Issue;
use super::error::IoctlError;
use super::file::Kfd;
use crate::ids::QueueId;
use crate::sys::{self, kfd_ioctl};

/// How much of a context save area is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaveStateSizes {
    /// Control stack bytes.
    pub control_stack_bytes: u32,
    /// Wave state bytes.
    pub wave_state_bytes: u32,
}

impl Kfd {
    /// GET_QUEUE_WAVE_STATE of an inactive compute queue; the driver writes the 16-byte wave state header at
    /// `save_area`.
    ///
    /// # Errors
    /// [`IoctlError`].
    ///
    /// # Safety
    /// `save_area` must be the address at which this process sees the start of the queue's context save area, to which
    /// no reference exists.
    pub unsafe fn get_queue_wave_state(
        &self,
        id: QueueId,
        save_area: u64,
    ) -> Result<WaveStateSizes, IoctlError> {
        let mut args = sys::kfd_ioctl_get_queue_wave_state_args {
            ctl_stack_address: save_area,
            queue_id: id.0,
            ..Default::default()
        };
        // SAFETY: the struct's only pointer is that to the save area, to which the caller lets the driver write.
        unsafe { self.call_raw::<kfd_ioctl::GetQueueWaveState>(&mut args)? };
        Ok(WaveStateSizes {
            control_stack_bytes: args.ctl_stack_used_size,
            wave_state_bytes: args.save_area_used_size,
        })
    }
}
