// SPDX-License-Identifier: MIT OR Apache-2.0
//! The waves of a queue that is off the hardware, in its context save area.
//!
//! INVARIANT: only the used part of the control stack and the wave records are written; the header is the driver's and
//! the client's (`GET_QUEUE_WAVE_STATE`, `err_payload_addr`). What is read back comes from the client's memory: its
//! layout is checked, and nothing more is assumed about it.

use nix::errno::Errno;
use queues::save_area::{HEADER_BYTES, WaveRecord, WaveState, read_waves, write_waves};
use softgpu_waves::Vm;

use crate::hardware::{HwQueue, SavedWaves};

/// Writes `waves` and returns where they are.
///
/// # Errors
/// `ENOSPC` when they do not fit, `EFAULT` when the area is no longer mapped.
pub(super) fn save(vm: &Vm, queue: &HwQueue, waves: &[WaveRecord]) -> Result<Option<SavedWaves>, Errno> {
    if waves.is_empty() {
        return Ok(None);
    }
    // The area is client memory, so no Rust slice of it may exist: the waves are written to a copy, of which only the
    // pages with waves are touched.
    let mut area = vec![0_u8; usize::try_from(queue.cwsr_bytes).map_err(|_| Errno::ENOMEM)?];
    let state =
        write_waves(&mut area, queue.control_stack_bytes, queue.cwsr_bytes, waves).map_err(|error| {
            tracing::error!(target: "processor", queue = queue.id, %error, "waves do not fit the save area");
            Errno::ENOSPC
        })?;
    let copy = |offset: u32, bytes: u32| {
        let begin = usize::try_from(offset).ok()?;
        let part = area.get(begin..begin.checked_add(usize::try_from(bytes).ok()?)?)?;
        vm.write_bytes(queue.cwsr_va.checked_add(u64::from(offset))?, part).ok()
    };
    copy(state.control_stack_offset, state.control_stack_size).ok_or(Errno::EFAULT)?;
    copy(state.wave_state_offset.saturating_sub(state.wave_state_size), state.wave_state_size)
        .ok_or(Errno::EFAULT)?;
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
