// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many waves are in the save areas of a process.

use queues::save_area::{HEADER_BYTES, WaveState, read_waves};

use crate::driver::process::{KfdProcess, State};
use crate::driver::queue_table::Queue;
use crate::hardware::SavedWaves;

impl KfdProcess {
    /// How many waves the save areas of the queues hold, those of halted queues too. An area that cannot be read counts as
    /// empty.
    pub fn saved_waves(&self) -> u64 {
        let state = self.state.lock();
        let of_queue = |queue: &Queue| -> u64 {
            (0..queue.mqd.xccs()).map(|xcc| in_area(&state, queue, xcc).unwrap_or(0)).sum()
        };
        state.queues.iter().filter(|(_, queue)| queue.is_compute()).map(|(_, queue)| of_queue(queue)).sum()
    }
}

/// How many waves are in the save area of an XCC; `None` when it cannot be read.
fn in_area(state: &State, queue: &Queue, xcc: usize) -> Option<u64> {
    let saved: SavedWaves = queue.mqd.waves_of(xcc);
    if saved.control_stack_bytes == 0 || saved.wave_state_offset > queue.properties.cwsr_bytes {
        return None;
    }
    let before = u64::try_from(xcc).ok()?.checked_mul(u64::from(queue.properties.cwsr_bytes))?;
    let area_va = queue.properties.cwsr_va.checked_add(before)?;
    let begin = saved.control_stack_offset;
    let used = u64::from(saved.wave_state_offset.checked_sub(begin)?);
    let runs = state.runs(queue.gpu, area_va.checked_add(u64::from(begin))?, used)?;
    let length = usize::try_from(saved.wave_state_offset).ok()?;
    let mut area = vec![0u8; length.max(HEADER_BYTES)];
    let mut rest = area.get_mut(usize::try_from(begin).ok()?..length)?;
    for run in runs {
        let (part, behind) = rest.split_at_mut_checked(usize::try_from(run.bytes).ok()?)?;
        let read = nix::sys::uio::pread(&run.fd, part, i64::try_from(run.offset).ok()?).ok()?;
        if read != part.len() {
            return None;
        }
        rest = behind;
    }
    let header = WaveState {
        control_stack_offset: saved.control_stack_offset,
        control_stack_size: saved.control_stack_bytes,
        wave_state_offset: saved.wave_state_offset,
        wave_state_size: saved.wave_state_bytes,
    };
    area.iter_mut().zip(header.to_bytes()).for_each(|(place, byte)| *place = byte);
    u64::try_from(read_waves(&area).ok()?.len()).ok()
}
