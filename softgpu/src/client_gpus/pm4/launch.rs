// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launch that a dispatch packet starts, made of the compute registers.
//!
//! INVARIANT: waves start as the registers say and nothing else; numbers that no device accepts raise the
//! exception that an AQL packet with such numbers raises.

use queues::aql::{ExceptionCode, Header, KernelDispatch, PacketKind};
use queues::hsa::KernelDescriptor;
use queues::pm4::{Initiator, reg};
use queues::words::{halves, words};
use softgpu_waves::{Launch, Scratch};

use super::registers::Registers;
use crate::client_gpus::gpu::Chip;
use crate::client_gpus::raised::Raised;
use crate::client_gpus::scratch::slots;
use crate::hardware::HwQueue;

/// Bytes of one step of `COMPUTE_PGM_RSRC2.LDS_SIZE`.
const LDS_GRANULE: u32 = 512;
/// `ENABLE_WAVEFRONT_SIZE32` of a descriptor's properties.
const PROPERTY_WAVE32: u16 = 1 << 10;

/// The launch that a dispatch with these sizes is; `None` if it has no work-group.
///
/// # Errors
/// The exception for sizes or modes that cannot be run.
pub(super) fn launch(
    chip: &Chip,
    config: &HwQueue,
    registers: &Registers,
    initiator: Initiator,
    sizes: [u32; 3],
) -> Result<Option<Launch>, Raised> {
    if initiator.restore() || initiator.ordered_append_en() {
        return Err(Raised::packet(ExceptionCode::PacketUnsupported));
    }
    if !initiator.compute_shader_en() {
        return Ok(None);
    }
    let Some(Grid { first, workgroup, items }) = Grid::new(registers, initiator, sizes)? else {
        return Ok(None);
    };
    let descriptor = KernelDescriptor {
        compute_pgm_rsrc1: registers.get(reg::COMPUTE_PGM_RSRC1),
        compute_pgm_rsrc2: registers.get(reg::COMPUTE_PGM_RSRC2),
        compute_pgm_rsrc3: registers.get(reg::COMPUTE_PGM_RSRC3),
        kernel_code_properties: if initiator.wave32() { PROPERTY_WAVE32 } else { 0 },
        ..KernelDescriptor::default()
    };
    let (private_segment_bytes, scratch) = scratch(chip, registers, &descriptor);
    let entry = registers.address(reg::COMPUTE_PGM_LO);
    let packet = KernelDispatch {
        header: Header::new(PacketKind::KernelDispatch),
        dimensions: 3,
        workgroup,
        grid: items,
        private_segment_bytes,
        group_segment_bytes: descriptor.lds_granules() * LDS_GRANULE,
        // There is no descriptor in memory; this names the code in messages.
        kernel_object: entry,
        kernarg_address: 0,
        completion_signal: 0,
    };
    Ok(Some(Launch {
        target: chip.target,
        compute_units: chip.compute_units,
        descriptor,
        kernel_object: entry,
        entry,
        packet,
        user_data: Some(registers.user_data()),
        first_workgroup: first,
        packet_address: 0,
        queue_address: 0,
        dispatch_id: 0,
        scratch,
        doorbell: config.doorbell_offset / 8,
        priority: config.priority,
        privileged: chip.privileged(config.kind, descriptor.compute_pgm_rsrc1),
    }))
}

/// What is to run, in work-groups and work-items.
#[derive(Debug, PartialEq, Eq)]
struct Grid {
    /// Id of the first work-group.
    first: [u32; 3],
    /// Work-items of a full work-group.
    workgroup: [u16; 3],
    /// Work-items from the first work-group's on.
    items: [u32; 3],
}

impl Grid {
    /// The grid; `None` if it is empty.
    ///
    /// # Errors
    /// The exception of sizes that no dispatch can have.
    fn new(registers: &Registers, initiator: Initiator, sizes: [u32; 3]) -> Result<Option<Self>, Raised> {
        let first =
            if initiator.force_start_at_000() { [0; 3] } else { registers.axes(reg::COMPUTE_START_X) };
        let threads = registers.axes(reg::COMPUTE_NUM_THREAD_X);
        let [x, y, z] = [0, 1, 2].map(|at: usize| Axis::new(threads[at], first[at], sizes[at], initiator));
        // Judged only if there is anything to run: an empty axis makes the dispatch empty, whatever the others are.
        if [x, y, z].iter().any(|axis| axis.groups == 0) {
            return Ok(None);
        }
        let total = x.groups.checked_mul(y.groups).and_then(|plane| plane.checked_mul(z.groups));
        if total.is_none() {
            return Err(Raised::packet(ExceptionCode::PacketDispatchDimInvalid));
        }
        let items = [x.items()?, y.items()?, z.items()?];
        Ok(Some(Self { first, workgroup: [x.full, y.full, z.full], items }))
    }
}

/// One axis of a grid.
#[derive(Clone, Copy, Debug)]
struct Axis {
    /// Work-items of a full work-group.
    full: u16,
    /// Work-items of the last work-group.
    last: u64,
    /// Work-groups.
    groups: u64,
}

impl Axis {
    /// Reads `COMPUTE_NUM_THREAD`, the axis's first work-group and the packet's size.
    ///
    /// A size is the end of a range, not a count: the work-groups from `COMPUTE_START` up to it run (Mesa's RADV adds the base
    /// work-group to the counts).
    fn new(threads: u32, first: u32, end: u32, initiator: Initiator) -> Self {
        let [full, partial] = halves(threads);
        let [first, end, size] = [u64::from(first), u64::from(end), u64::from(full)];
        if initiator.use_thread_dimensions() {
            let items = end.saturating_sub(first * size);
            // A work-group size of 0 is refused below.
            let groups = items.div_ceil(size.max(1));
            return Self { full, groups, last: items.saturating_sub(groups.saturating_sub(1) * size) };
        }
        let last = if initiator.partial_tg_en() { u64::from(partial) } else { size };
        Self { full, groups: end.saturating_sub(first), last }
    }

    /// Work-items of the axis.
    fn items(self) -> Result<u32, Raised> {
        let full = u64::from(self.full);
        if !(1..=full).contains(&self.last) {
            return Err(Raised::packet(ExceptionCode::PacketDispatchWorkGroupSizeInvalid));
        }
        u32::try_from((self.groups - 1) * full + self.last)
            .map_err(|_| Raised::packet(ExceptionCode::PacketDispatchDimInvalid))
    }
}

/// Scratch bytes of a lane, and the slots they come from, which need not lie in any memory.
fn scratch(chip: &Chip, registers: &Registers, descriptor: &KernelDescriptor) -> (u32, Option<Scratch>) {
    let Some(format) = chip.target.scratch.filter(|_| descriptor.enable_private_segment()) else {
        return (0, None);
    };
    let base = registers.address(reg::COMPUTE_DISPATCH_SCRATCH_BASE_LO);
    let slots = slots(chip, &format, base, registers.get(reg::COMPUTE_TMPRING_SIZE));
    // CAST: a field of 15 bits times its unit.
    (words(slots.wave_bytes)[0] / descriptor.lanes(), Some(slots))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: u32 = Initiator::COMPUTE_SHADER_EN;
    const PARTIAL: u32 = START | Initiator::PARTIAL_TG_EN;
    const THREADS: u32 = START | Initiator::USE_THREAD_DIMENSIONS;
    const AT_ZERO: u32 = START | Initiator::FORCE_START_AT_000;

    fn grid(
        first: [u32; 3],
        threads: [u32; 3],
        initiator: u32,
        sizes: [u32; 3],
    ) -> Result<Option<Grid>, ExceptionCode> {
        let mut registers = Registers::default();
        registers.set_all(reg::COMPUTE_START_X, &first);
        registers.set_all(reg::COMPUTE_NUM_THREAD_X, &threads);
        Grid::new(&registers, Initiator(initiator), sizes).map_err(|raised| raised.code)
    }

    #[test]
    fn grids_count_groups_partial_groups_or_items() {
        let some = |first, workgroup, items| Ok(Some(Grid { first, workgroup, items }));
        let threads = [32, 4, 2];
        assert_eq!(grid([0; 3], threads, START, [3, 2, 1]), some([0; 3], [32, 4, 2], [96, 8, 2]));
        assert_eq!(grid([1, 1, 0], threads, START, [3, 2, 1]), some([1, 1, 0], [32, 4, 2], [64, 4, 2]));
        assert_eq!(grid([1, 1, 0], threads, AT_ZERO, [3, 2, 1]), some([0; 3], [32, 4, 2], [96, 8, 2]));
        let ragged = [32 | 5 << 16, 4 | 4 << 16, 2 | 1 << 16];
        assert_eq!(grid([0; 3], ragged, PARTIAL, [3, 2, 1]), some([0; 3], [32, 4, 2], [69, 8, 1]));
        assert_eq!(grid([0; 3], ragged, START, [3, 2, 1]), some([0; 3], [32, 4, 2], [96, 8, 2]));
        assert_eq!(grid([0; 3], threads, THREADS, [69, 8, 1]), some([0; 3], [32, 4, 2], [69, 8, 1]));
        assert_eq!(grid([1, 0, 0], threads, THREADS, [69, 8, 1]), some([1, 0, 0], [32, 4, 2], [37, 8, 1]));
    }

    #[test]
    fn empty_axes_are_no_work_and_impossible_ones_are_refused() {
        use ExceptionCode::{PacketDispatchDimInvalid, PacketDispatchWorkGroupSizeInvalid};
        assert_eq!(grid([0; 3], [32, 1, 1], START, [1, 0, 1]), Ok(None));
        assert_eq!(grid([0; 3], [0; 3], START, [0, u32::MAX, 1]), Ok(None));
        assert_eq!(grid([5, 0, 0], [32, 1, 1], START, [5, 1, 1]), Ok(None), "the end is the beginning");
        assert_eq!(grid([0; 3], [0, 1, 1], START, [1; 3]), Err(PacketDispatchWorkGroupSizeInvalid));
        assert_eq!(grid([0; 3], [0, 1, 1], THREADS, [1; 3]), Err(PacketDispatchWorkGroupSizeInvalid));
        assert_eq!(grid([0; 3], [32, 1, 1], PARTIAL, [1; 3]), Err(PacketDispatchWorkGroupSizeInvalid));
        let over = [8 | 9 << 16, 1 | 1 << 16, 1 | 1 << 16];
        assert_eq!(grid([0; 3], over, PARTIAL, [1; 3]), Err(PacketDispatchWorkGroupSizeInvalid));
        assert_eq!(grid([0; 3], [2, 1, 1], START, [1 << 31, 1, 1]), Err(PacketDispatchDimInvalid));
        assert_eq!(grid([0; 3], [1; 3], START, [u32::MAX; 3]), Err(PacketDispatchDimInvalid));
    }

    #[test]
    fn scratch_is_what_tmpring_size_says_for_all_engines() {
        let target = queues::target::Target::by_name("gfx1100").unwrap();
        let chip = Chip {
            target,
            compute_units: 96,
            arrays: 12,
            engines: 6,
            xccs: 1,
            compute_queues: 8,
            errata: true,
            counter_ahead: 0,
        };
        let mut registers = Registers::default();
        registers.set(reg::COMPUTE_TMPRING_SIZE, 0x20200);
        registers.set_all(reg::COMPUTE_DISPATCH_SCRATCH_BASE_LO, &[0x2000_0000, 0x7f]);
        let descriptor = |compute_pgm_rsrc2, kernel_code_properties| KernelDescriptor {
            compute_pgm_rsrc2,
            kernel_code_properties,
            ..KernelDescriptor::default()
        };
        let memory = Some(Scratch {
            base: 0x7f20_0000_0000,
            wave_bytes: 0x20 * 256,
            waves: 0x200,
            engines: 6,
            xccs: 1,
            xcc_bytes: 6 * 0x200 * 0x20 * 256,
        });
        assert_eq!(scratch(&chip, &registers, &descriptor(1, PROPERTY_WAVE32)), (256, memory));
        assert_eq!(scratch(&chip, &registers, &descriptor(1, 0)), (128, memory));
        assert_eq!(scratch(&chip, &registers, &descriptor(0, 0)), (0, None));
    }

    proptest! {
        #[test]
        fn any_registers_make_a_grid_that_its_groups_fill(
            first in any::<[u32; 3]>(),
            threads in any::<[u32; 3]>(),
            initiator in any::<u32>(),
            sizes in any::<[u32; 3]>(),
            small in any::<bool>(),
        ) {
            let small = |values: [u32; 3]| if small { values.map(|value| value & 0x7_0007) } else { values };
            if let Ok(Some(grid)) = grid(small(first), small(threads), initiator, small(sizes)) {
                for axis in 0..3 {
                    let items = u64::from(grid.items[axis]);
                    prop_assert!(items > 0 && grid.workgroup[axis] > 0);
                }
            }
        }
    }
}
