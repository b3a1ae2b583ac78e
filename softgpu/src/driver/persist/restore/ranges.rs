// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared virtual memory of a process that is restored.

use super::{Restore, damaged};
use crate::driver::PAGE;
use crate::driver::ledger::Resource;
use crate::driver::persist::state::{RangeState, RunState};
use crate::driver::process::State;
use crate::driver::svm::{Attributes, SvmMemory, SvmRange};
use crate::persist::{Part, PersistError};
use crate::sysfs::GpuModel;

impl Restore<'_> {
    /// A range, whose part of the ledger is taken again, mapped on the GPUs that had it mapped.
    pub(super) fn range(&self, state: &mut State, saved: &RangeState) -> Result<(), PersistError> {
        let broken = || damaged(Part::Range, saved.start);
        let &RangeState { start, bytes, attributes, mapped, queues, .. } = saved;
        let end = start.checked_add(bytes).ok_or_else(broken)?;
        let is_whole = start.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
        if !self.saved.has_svm || !is_whole || start == 0 || bytes == 0 {
            return Err(broken());
        }
        if state.svm.overlaps(start, bytes) || !self.can_have_set(state, &attributes) {
            return Err(broken());
        }
        // A GPU that lost its access while a queue had its save area there has it mapped still. No GPU has a range that the
        // hardware did not map when its memory changed.
        let lacks = attributes.users() & !mapped;
        if mapped & !bound(state) != 0
            || (mapped != 0 && lacks != 0)
            || saved.memory.is_some() != (mapped != 0)
        {
            return Err(broken());
        }
        let memory = match saved.memory {
            None => None,
            Some(memory) => {
                let run = self.run(&RunState { memory: memory.memory, offset: memory.offset, bytes })?;
                Some(SvmMemory { fd: run.fd, offset: run.offset, writable: memory.writable })
            }
        };
        let exhausted = |_| PersistError::Exhausted { resource: Resource::System, amount: bytes };
        self.process.slot.reserve(Resource::System, bytes).map_err(exhausted)?;
        let range = SvmRange { end, attributes, memory, queues, ..SvmRange::default() };
        let restored = self.process.restore_range(&mut state.svm, start, range, mapped);
        restored.map_err(|(gpu, source)| PersistError::Map { gpu, va: start, bytes, source })
    }

    fn can_have_set(&self, state: &State, attributes: &Attributes) -> bool {
        let process = self.process;
        let is_location =
            |id| process.gpu_by_id(id).is_ok_and(|gpu| process.gpus.get(gpu).is_some_and(GpuModel::has_svm));
        let bound = bound(state);
        bound != 0 && attributes.are_possible(bound, is_location)
    }

    /// Checks that a range is part of the save areas of as many queues as it says.
    pub(super) fn save_area(state: &mut State, saved: &RangeState) -> Result<(), PersistError> {
        let end = saved.start.saturating_add(saved.bytes);
        let areas = state.queues.iter().filter_map(|(_, queue)| queue.buffers.svm.as_ref());
        let over = areas.filter(|area| area.start <= saved.start && end <= area.end);
        if over.count() >= saved.queues as usize { Ok(()) } else { Err(damaged(Part::Range, saved.start)) }
    }
}

/// The GPUs whose address spaces were acquired, a bit each.
fn bound(state: &State) -> u32 {
    let bound = state.pdds.iter().enumerate().filter(|(_, pdd)| pdd.render.is_some());
    bound.fold(0, |bits, (gpu, _)| bits | 1 << gpu)
}
