// SPDX-License-Identifier: MIT OR Apache-2.0
//! The waves of a queue that is off the hardware, in its context save area.
//!
//! INVARIANT: only the used part of the control stack and the wave records are written; the header is the driver's and
//! the client's (`GET_QUEUE_WAVE_STATE`, `err_payload_addr`). What is read back comes from the client's memory: its
//! layout is checked, and nothing more is assumed about it.

use std::borrow::Borrow;

use nix::errno::Errno;
use queues::save_area::{
    HEADER_BYTES, SaveAreaError, WaveRecord, WaveState, put_unfinished, put_waves, read_waves,
};
use softgpu_waves::Vm;
use thiserror::Error;

use crate::hardware::{HwQueue, SavedWaves};

/// Why waves are not written.
#[derive(Debug, Error)]
enum PutError {
    #[error("The save area is not mapped")]
    Memory,
    #[error(transparent)]
    Area(#[from] SaveAreaError),
}

/// Writes `waves` and returns where they are; of a queue without waves that is not done, that there is something.
///
/// # Errors
/// `ENOSPC` when they do not fit, `EFAULT` when the area is no longer mapped.
pub(super) fn save(
    vm: &Vm,
    queue: &HwQueue,
    waves: &[impl Borrow<WaveRecord>],
    unfinished: bool,
) -> Result<Option<SavedWaves>, Errno> {
    if waves.is_empty() && !unfinished {
        return Ok(None);
    }
    // The area is client memory, so no Rust slice of it may exist.
    let put = |offset: usize, bytes: &[u8]| {
        let va = u64::try_from(offset).ok().and_then(|offset| queue.cwsr_va.checked_add(offset));
        let va = va.ok_or(PutError::Memory)?;
        vm.write_bytes(va, bytes).map_err(|_| PutError::Memory)
    };
    let (stack_bytes, bytes) = (queue.control_stack_bytes, queue.cwsr_bytes);
    let put = match waves {
        [] => put_unfinished(stack_bytes, bytes, put),
        waves => put_waves(stack_bytes, bytes, waves, put),
    };
    let state = put.map_err(|error| match error {
        PutError::Memory => Errno::EFAULT,
        PutError::Area(error) => {
            tracing::error!(target: "processor", queue = queue.id, %error, "waves do not fit the save area");
            Errno::ENOSPC
        }
    })?;
    Ok(Some(SavedWaves {
        control_stack_offset: state.control_stack_offset,
        control_stack_bytes: state.control_stack_size,
        wave_state_offset: state.wave_state_offset,
        wave_state_bytes: state.wave_state_size,
    }))
}

/// Reads back the waves that `saved` says are there.
///
/// # Errors
/// `EINVAL` when control stack and records do not agree or lie outside the area, `EFAULT` when it is not mapped.
pub(super) fn load(vm: &Vm, queue: &HwQueue, saved: &SavedWaves) -> Result<Vec<WaveRecord>, Errno> {
    if saved.control_stack_bytes == 0 && saved.wave_state_bytes == 0 {
        return Ok(Vec::new());
    }
    if saved.wave_state_offset > queue.cwsr_bytes
        || saved.control_stack_offset.checked_add(saved.control_stack_bytes)
            != Some(queue.control_stack_bytes)
    {
        return Err(Errno::EINVAL);
    }
    let length = usize::try_from(saved.wave_state_offset).map_err(|_| Errno::EINVAL)?;
    let begin = usize::try_from(saved.control_stack_offset).map_err(|_| Errno::EINVAL)?;
    let mut area = vec![0_u8; length.max(HEADER_BYTES)];
    let used = area.get_mut(begin..length).ok_or(Errno::EINVAL)?;
    let va = queue.cwsr_va.checked_add(u64::from(saved.control_stack_offset)).ok_or(Errno::EFAULT)?;
    vm.read_bytes(va, used).map_err(|_| Errno::EFAULT)?;
    let state = WaveState {
        control_stack_offset: saved.control_stack_offset,
        control_stack_size: saved.control_stack_bytes,
        wave_state_offset: saved.wave_state_offset,
        wave_state_size: saved.wave_state_bytes,
    };
    for (place, byte) in area.iter_mut().zip(state.to_bytes()) {
        *place = byte;
    }
    read_waves(&area).map_err(|error| {
        tracing::error!(target: "processor", queue = queue.id, %error, "the save area is not one");
        Errno::EINVAL
    })
}
