// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel dispatch: from the packet to a grid of waves, and on until it completes.
//!
//! Invariant: a [`Job`] holds all that is needed to go on with an interrupted dispatch; the packet is read once.

use std::mem::offset_of;

use queues::aql::{ExceptionCode, KernelDispatch, PacketError};
use queues::hsa::{AmdQueue, KernelDescriptor};
use queues::save_area::WaveRecord;
use softgpu_waves::{Control, GridState, Launch, MemoryFault, Outcome, Scratch, Vm, run};

use super::clock;
use super::gpu::Gpu;
use super::raised::Raised;

/// LDS that a work-group can have, bytes.
const LDS_BYTES: u32 = 64 << 10;
/// VGPRs that a lane can have.
const VGPRS: u32 = 256;
/// Bytes that one count of `COMPUTE_TMPRING_SIZE.WAVESIZE` stands for on gfx11.
const SCRATCH_UNIT: u32 = 256;

/// Where a packet came from, as kernels can ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// GPU address of the packet in its ring.
    pub(super) packet_address: u64,
    /// Index of the packet.
    pub(super) dispatch_id: u64,
    /// The queue's read pointer.
    pub(super) read_ptr_va: u64,
    /// The queue's write pointer.
    pub(super) write_ptr_va: u64,
    /// Number of the queue's doorbell in its slice.
    pub(super) doorbell: u32,
}

impl Place {
    /// The queue's `amd_queue_t`, if its two pointers are laid out like one (KFD is told only of the pointers).
    fn queue_address(&self) -> Option<u64> {
        // CAST: offsets within 256 bytes.
        let queue = self.write_ptr_va.checked_sub(offset_of!(AmdQueue, write_dispatch_id) as u64)?;
        let read = queue.checked_add(offset_of!(AmdQueue, read_dispatch_id) as u64)?;
        (read == self.read_ptr_va && queue.is_multiple_of(align_of::<AmdQueue>() as u64)).then_some(queue)
    }
}

/// How far a run came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Every wave has ended.
    Completed,
    /// Stopped on request; run again to go on.
    Paused,
    /// Abandoned on request.
    Aborted,
}

/// A dispatch under way.
#[derive(Debug)]
pub(super) struct Job {
    launch: Launch,
    grid: Option<Box<GridState>>,
    start: u64,
}

impl Job {
    /// Reads the kernel descriptor and checks what the packet alone does not tell.
    ///
    /// # Errors
    /// The exception that the packet raises.
    pub(super) fn prepare(gpu: &Gpu, packet: KernelDispatch, place: &Place) -> Result<Self, Raised> {
        let kernel_object = packet.kernel_object;
        if !kernel_object.is_multiple_of(64) {
            return Err(PacketError::CodeObject { address: kernel_object }.into());
        }
        packet.check_group_segment(LDS_BYTES)?;
        let mut bytes = [0; KernelDescriptor::BYTES];
        gpu.vm.read_bytes(kernel_object, &mut bytes)?;
        let descriptor = KernelDescriptor::from_bytes(&bytes);
        let lanes = descriptor.lanes();
        if !gpu.target.wave_sizes.contains(&lanes) {
            return Err(PacketError::CodeObject { address: kernel_object }.into());
        }
        let wanted = descriptor.vgpr_count(lanes == 32);
        if wanted > VGPRS {
            return Err(PacketError::Registers { wanted, limit: VGPRS }.into());
        }
        let queue = place.queue_address();
        let scratch = match packet.private_segment_bytes {
            0 => None,
            bytes => Some(scratch(&gpu.vm, queue, bytes, lanes)?),
        };
        let launch = Launch {
            descriptor,
            kernel_object,
            entry: descriptor.entry(kernel_object),
            packet,
            packet_address: place.packet_address,
            queue_address: queue.unwrap_or(0),
            dispatch_id: place.dispatch_id,
            scratch,
            doorbell: place.doorbell,
        };
        Ok(Self { launch, grid: None, start: clock::ticks() })
    }

    /// Runs the grid until it completes or `control` stops it.
    ///
    /// # Errors
    /// The exception that a wave raised; the grid is gone then.
    pub(super) fn run(&mut self, gpu: &Gpu, control: &Control) -> Result<Progress, Raised> {
        match run(&self.launch, &gpu.vm, &gpu.workers, control, self.grid.take()) {
            Outcome::Completed => Ok(Progress::Completed),
            Outcome::Paused(grid) => {
                self.grid = Some(grid);
                Ok(Progress::Paused)
            }
            Outcome::Aborted => Ok(Progress::Aborted),
            Outcome::Exception(exception) => Err(exception.into()),
        }
    }

    /// Handle of the signal to complete, or 0.
    pub(super) fn completion_signal(&self) -> u64 {
        self.launch.packet.completion_signal
    }

    /// When the dispatch began, GPU clock ticks.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The waves of the interrupted grid.
    pub(super) fn waves(&self) -> Vec<WaveRecord> {
        self.grid.as_ref().map_or_else(Vec::new, |grid| grid.waves.clone())
    }
}

/// The queue's scratch memory, if it is enough for this dispatch.
///
/// A queue without enough is stopped. (AMD's runtime would then be asked through `queue_inactive_signal` to provide
/// more; that protocol is not spoken yet.)
fn scratch(vm: &Vm, queue: Option<u64>, bytes_per_lane: u32, lanes: u32) -> Result<Scratch, Raised> {
    let none = || Raised::packet(ExceptionCode::WaveApertureViolation);
    let queue = queue.ok_or_else(none)?;
    // CAST: offsets within 256 bytes.
    let field = |offset: usize| queue.wrapping_add(offset as u64);
    let read = || -> Result<(u64, u64, u32), MemoryFault> {
        let base = vm.read_u64(field(offset_of!(AmdQueue, scratch_backing_memory_location)))?;
        let bytes = vm.read_u64(field(offset_of!(AmdQueue, scratch_backing_memory_byte_size)))?;
        let ring = vm.read_u32(field(offset_of!(AmdQueue, compute_tmpring_size)))?;
        Ok((base, bytes, ring))
    };
    let (base, bytes, ring) = read()?;
    let wave_bytes = u64::from(ring >> 12 & 0x7fff) * u64::from(SCRATCH_UNIT);
    let needed = u64::from(bytes_per_lane) * u64::from(lanes);
    if base == 0 || wave_bytes < needed || bytes < needed {
        tracing::debug!(target: "processor", needed, wave_bytes, bytes, "scratch too small");
        return Err(none());
    }
    Ok(Scratch { base, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_address_needs_both_pointers_of_one_queue() {
        let place = |read_ptr_va, write_ptr_va| Place {
            packet_address: 0,
            dispatch_id: 0,
            read_ptr_va,
            write_ptr_va,
            doorbell: 0,
        };
        assert_eq!(place(0x1080, 0x1038).queue_address(), Some(0x1000));
        assert_eq!(place(0x1088, 0x1040).queue_address(), None, "misaligned");
        assert_eq!(place(0x2080, 0x1038).queue_address(), None);
        assert_eq!(place(0x80, 8).queue_address(), None);
    }
}
