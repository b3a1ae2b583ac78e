// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scratch memory of an AQL queue, and how the packet processor asks the process for more.
//!
//! A dispatch that needs more private memory than the queue's `amd_queue_t` describes stops the queue: the processor
//! stores a code into `queue_inactive_signal`, and begins the packet anew once the process has stored 0 there.
//!
//! INVARIANT: the fields are read when the dispatch begins, so what the process wrote before its 0 is what counts.

use std::mem::offset_of;

use queues::aql::inactive;
use queues::hsa::{AmdQueue, AmdSignal};
use queues::target::ScratchFormat;
use softgpu_waves::{AccessKind, MemoryFault, Scratch};

use super::backoff::Backoff;
use super::core::{Core, Exit};
use super::dispatch::no_scratch;
use super::gpu::{Chip, Gpu};
use super::raised::Raised;
use super::signal;
use crate::hardware::HwQueue;
use crate::misbehaviour::Misbehaviour;

/// `COMPUTE_TMPRING_SIZE`: waves in bits 0..12, size of a wave above.
const TMPRING_WAVES: u32 = 0xfff;
const TMPRING_WAVE_SIZE_SHIFT: u32 = 12;
const TMPRING_WAVE_SIZE: u32 = 0x7fff;
/// Lanes of the waves that `scratch_wave64_lane_byte_size` is about.
const WAVE_LANES: u64 = 64;

/// The scratch memory that a dispatch needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Private bytes of a lane.
    pub(super) lane_bytes: u32,
    /// Lanes of a wave.
    pub(super) lanes: u32,
}

/// The queue's `amd_queue_t`, if its two pointers are laid out like one (KFD knows only the pointers).
pub(super) fn queue_address(config: &HwQueue) -> Option<u64> {
    // CAST: offsets within 256 bytes.
    let queue = config.write_ptr_va.checked_sub(offset_of!(AmdQueue, write_dispatch_id) as u64)?;
    let read = queue.checked_add(offset_of!(AmdQueue, read_dispatch_id) as u64)?;
    (read == config.read_ptr_va && queue.is_multiple_of(align_of::<AmdQueue>() as u64)).then_some(queue)
}

/// The slots of one XCC that a `COMPUTE_TMPRING_SIZE` describes. Chips that count waves of all shader engines give each of them
/// its part, and forget the rest.
pub(super) fn slots(chip: &Chip, format: &ScratchFormat, base: u64, tmpring_size: u32) -> Scratch {
    let wave_bytes = u64::from(tmpring_size >> TMPRING_WAVE_SIZE_SHIFT & TMPRING_WAVE_SIZE);
    let (waves, engines) = (tmpring_size & TMPRING_WAVES, chip.engines.max(1));
    let wave_bytes = wave_bytes * u64::from(format.wave_size_unit);
    let waves = if format.waves_per_engine { waves } else { waves / engines };
    let xcc_bytes = u64::from(waves) * u64::from(engines) * wave_bytes;
    Scratch { base, wave_bytes, waves, engines, xccs: 1, xcc_bytes }
}

const fn field(queue: u64, offset: usize) -> u64 {
    // CAST: an offset within 256 bytes.
    queue.wrapping_add(offset as u64)
}

/// The queue's scratch memory, if the fields say that it is enough for a wave. What they say is not compared with what is
/// mapped: waves whose slots lie elsewhere fault. `scratch_backing_memory_byte_size` is for the process and its debugger:
/// tinygrad leaves it 0. `scratch_resource_descriptor` is for waves of chips that have no architected flat scratch, and this
/// device executes none of those; where there are several XCCs, its number of records is the size of an XCC's part of the
/// memory: XCC `n` has the bytes from `n` times that on (ROCr `AqlQueue::InitScratchSRD`, ROCdbgapi
/// `aql_queue_t::scratch_memory_region`). The waves of an XCC of real chips are free
/// to trespass on the next one's part; here that is a violation before a wave starts.
///
/// # Errors
/// A violation if nothing describes scratch memory or the slots of an XCC leave its part, the fault if the description is not
/// mapped, or the memory behind it on a chip that has no waves to notice it.
pub(super) fn find(gpu: &Gpu, queue: Option<u64>, wanted: Wanted) -> Result<Option<Scratch>, Raised> {
    let queue = queue.ok_or_else(no_scratch)?;
    let format = gpu.chip.target.scratch.ok_or_else(no_scratch)?;
    let vm = &gpu.vm;
    let read = || -> Result<(u64, u32, u32, u32), MemoryFault> {
        let base = vm.read_u64(field(queue, offset_of!(AmdQueue, scratch_backing_memory_location)))?;
        let part = vm.read_u32(field(queue, offset_of!(AmdQueue, scratch_resource_descriptor) + 8))?;
        let ring = vm.read_u32(field(queue, offset_of!(AmdQueue, compute_tmpring_size)))?;
        let lane = vm.read_u32(field(queue, offset_of!(AmdQueue, scratch_wave64_lane_byte_size)))?;
        Ok((base, part, ring, lane))
    };
    let (base, part, ring, lane_bytes) = read()?;
    let part = u64::from(part);
    let elsewhere = if Misbehaviour::PrivateMemory.is_on() { 1 << 40 } else { 0 };
    let one = slots(&gpu.chip, &format, base.wrapping_add(elsewhere), ring);
    let slots = match gpu.chip.xccs {
        0 | 1 => one,
        xccs => Scratch { xccs, xcc_bytes: part, ..one },
    };
    let needed = u64::from(wanted.lane_bytes) * u64::from(wanted.lanes);
    // The bytes of a lane are what the firmware judges by: ROCr takes memory back from a queue by a 0 there
    // (`AqlQueue::AsyncReclaimMainScratch`). The rest is what the shader engines are given.
    let told = u64::from(lane_bytes) * WAVE_LANES >= needed;
    let enough = told && base != 0 && slots.waves != 0 && slots.wave_bytes >= needed;
    if enough && !slots.stays_within_parts() {
        let Scratch { waves, engines, wave_bytes, xccs, .. } = slots;
        tracing::error!(target: "processor", gpu = gpu.index, waves, engines, wave_bytes, xccs, part,
            "scratch slots of an XCC lie in the next one's part");
        return Err(no_scratch());
    }
    if enough && !gpu.chip.target.gfx11_code {
        let all = slots.xcc_bytes.checked_mul(u64::from(slots.xccs)).ok_or_else(no_scratch)?;
        vm.check(base, all, AccessKind::Write)?;
    }
    Ok(enough.then_some(slots))
}

/// Asks the process for scratch memory and waits for its answer; the dispatch then begins anew.
///
/// # Errors
/// A violation when the queue has no signal to ask with; [`Exit::Left`] when the queue has to leave meanwhile.
pub(super) fn ask(core: &Core, queue: Option<u64>, wanted: Wanted) -> Result<(), Exit> {
    let vm = &core.gpu.vm;
    let queue = queue.ok_or_else(no_scratch)?;
    let handle = vm.read_u64(field(queue, offset_of!(AmdQueue, queue_inactive_signal)))?;
    if handle == 0 {
        return Err(no_scratch().into());
    }
    let value = field(handle, offset_of!(AmdSignal, value));
    // If the queue left the hardware while it asked, the request is still in the signal, or was answered meanwhile.
    if vm.read_u64(value)? == 0 {
        vm.write_u64(value, inactive::insufficient_scratch(wanted.lanes == 32))?;
        signal::notify(&core.gpu, handle)?;
    }
    let mut backoff = Backoff::new(&core.gpu.waiters);
    while vm.read_u64(value)? != 0 {
        if core.must_leave() {
            return Err(Exit::Left);
        }
        backoff.wait(|| core.must_leave() || !matches!(vm.read_u64(value), Ok(pending) if pending != 0));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use queues::target::Target;

    use super::*;
    use crate::client_gpus::tests::some_queue;
    use crate::hardware::HwQueueKind;

    #[test]
    fn slots_are_counted_for_an_engine_or_for_the_device() {
        let slots = |name, engines| {
            let target = Target::by_name(name).unwrap();
            let chip = Chip {
                target,
                compute_units: 8 * engines,
                arrays: engines,
                engines,
                xccs: 1,
                compute_queues: 8,
                errata: true,
                counter_ahead: 0,
            };
            slots(&chip, &target.scratch.unwrap(), 0x1000, 3 << 12 | 26)
        };
        let scratch = |wave_bytes, waves, engines| {
            let xcc_bytes = wave_bytes * u64::from(waves) * u64::from(engines);
            Scratch { base: 0x1000, wave_bytes, waves, engines, xccs: 1, xcc_bytes }
        };
        assert_eq!(slots("gfx1100", 6), scratch(3 * 256, 26, 6));
        assert_eq!(slots("gfx90a", 8), scratch(3 * 1024, 3, 8));
        assert_eq!(slots("gfx1030", 4), scratch(3 * 1024, 6, 4));
    }

    #[test]
    fn queue_address_needs_both_pointers_of_one_queue() {
        let with =
            |read_ptr_va, write_ptr_va| HwQueue { read_ptr_va, write_ptr_va, ..some_queue(HwQueueKind::Aql) };
        assert_eq!(queue_address(&with(0x1080, 0x1038)), Some(0x1000));
        assert_eq!(queue_address(&with(0x1088, 0x1040)), None, "misaligned");
        assert_eq!(queue_address(&with(0x2080, 0x1038)), None);
        assert_eq!(queue_address(&with(0x80, 8)), None);
    }
}
