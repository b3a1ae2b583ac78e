// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the waves of a stopped queue into its context save area.
//!
//! Invariant: only the used part of the control stack and the wave records are written. The header is the driver's
//! and the client's (`GET_QUEUE_WAVE_STATE`, `err_payload_addr`).

use queues::save_area::{WaveRecord, write_waves};
use softgpu_waves::Vm;

use crate::hardware::{HwQueue, SavedWaves};

/// Writes `waves` and says where they are; nothing is written (and none are reported) when they do not fit or the
/// area is no longer mapped.
pub(super) fn save(vm: &Vm, queue: &HwQueue, waves: &[WaveRecord]) -> SavedWaves {
    let empty = SavedWaves {
        control_stack_offset: queue.control_stack_bytes,
        control_stack_bytes: 0,
        wave_state_offset: queue.control_stack_bytes,
        wave_state_bytes: 0,
    };
    if waves.is_empty() {
        return empty;
    }
    try_save(vm, queue, waves).unwrap_or_else(|| {
        tracing::error!(target: "processor", queue = queue.id, waves = waves.len(), "waves not saved");
        empty
    })
}

fn try_save(vm: &Vm, queue: &HwQueue, waves: &[WaveRecord]) -> Option<SavedWaves> {
    // The area belongs to the client and is no slice of ours. The copy's pages are only touched where waves go.
    let mut area = vec![0_u8; usize::try_from(queue.cwsr_bytes).ok()?];
    let state = write_waves(&mut area, queue.control_stack_bytes, queue.cwsr_bytes, waves)
        .inspect_err(|error| tracing::debug!(target: "processor", %error, "save area"))
        .ok()?;
    let copy = |offset: u32, bytes: u32| {
        let begin = usize::try_from(offset).ok()?;
        let part = area.get(begin..begin.checked_add(usize::try_from(bytes).ok()?)?)?;
        vm.write_bytes(queue.cwsr_va.checked_add(u64::from(offset))?, part).ok()
    };
    copy(state.control_stack_offset, state.control_stack_size)?;
    copy(state.wave_state_offset.checked_sub(state.wave_state_size)?, state.wave_state_size)?;
    Some(SavedWaves {
        control_stack_offset: state.control_stack_offset,
        control_stack_bytes: state.control_stack_size,
        wave_state_offset: state.wave_state_offset,
        wave_state_bytes: state.wave_state_size,
    })
}
