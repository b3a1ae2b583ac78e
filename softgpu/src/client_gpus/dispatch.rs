// SPDX-License-Identifier: MIT OR Apache-2.0
//! A running dispatch: it is checked, run on the workers, interrupted, and saved in a queue's descriptor.
//!
//! INVARIANT: a [`Job`] that is not running holds all that is needed to resume the dispatch; the packet is read once.

use nix::errno::Errno;
use queues::aql::{ExceptionCode, KernelDispatch, Packet, PacketError, PacketKind};
use queues::hsa::KernelDescriptor;
use queues::save_area::WaveRecord;
use queues::words::{double, words};
use softgpu_waves::{Control, Ended, GridState, Launch, Outcome, Running, Scratch};

use super::gpu::Gpu;
use super::mqd::{Reader, Writer};
use super::raised::Raised;
use super::xccs::{DispatchWaves, Wave};
use crate::hardware::{HwQueue, HwQueueKind};

/// What a descriptor says of a dispatch's scratch memory: there is none; its bytes, as descriptors did that know of no
/// engines and gave each wave what it needed; or its slots.
const NO_SCRATCH: u32 = 0;
const SCRATCH_BYTES: u32 = 1;
const SCRATCH_SLOTS: u32 = 2;
/// Its slots in a part of the memory for each XCC.
const SCRATCH_PARTS: u32 = 3;
const OLD_WAVE_GRANULE: u64 = 1024;
/// Slots of an engine in the low half, engines in the high one.
const SLOTS_WAVES: u32 = 0xffff;
const SLOTS_ENGINES_SHIFT: u32 = 16;

/// VGPRs that a lane can have.
const VGPRS: u32 = 256;
/// Bytes of a saved wave without its VGPRs: SGPRs, hardware registers and its share of the control stack, rounded up.
const WAVE_BYTES: u64 = 2048;

/// How a run of a dispatch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Every wave has ended.
    Completed,
    /// Stopped on request; the next run resumes it.
    Paused,
    /// Abandoned on request.
    Aborted,
}

/// A dispatch that has begun.
#[derive(Debug)]
pub(super) struct Job {
    launch: Launch,
    /// As it was when it was last stopped.
    grid: Option<Box<GridState>>,
    running: Option<Running>,
    start: u64,
    /// The XCCs that share its work-groups.
    xccs: u32,
}

/// The XCCs that share the work-groups of a dispatch in such a queue.
const fn sharing_xccs(gpu: &Gpu, kind: HwQueueKind) -> u32 {
    if matches!(kind, HwQueueKind::Aql) { gpu.chip.xccs } else { 1 }
}

impl Job {
    /// Checks the dispatch of a queue against the GPU and the kernel descriptor.
    ///
    /// # Errors
    /// The exception that the dispatch raises.
    pub(super) fn new(gpu: &Gpu, kind: HwQueueKind, launch: Launch) -> Result<Self, Raised> {
        check(gpu, &launch)?;
        let xccs = sharing_xccs(gpu, kind);
        Ok(Self { launch, grid: None, running: None, start: gpu.counter.ticks(), xccs })
    }

    /// Gives the grid to the workers; `ended` is notified when it may be over.
    ///
    /// # Errors
    /// The exception of a dispatch that cannot begin.
    pub(super) fn begin(&mut self, gpu: &Gpu, control: &Control, ended: Option<Ended>) -> Result<(), Raised> {
        let grid = self.grid.take();
        match Running::start(&self.launch, &gpu.vm, &gpu.workers, control, grid, ended) {
            Ok(running) => {
                self.running = Some(running);
                Ok(())
            }
            Err(outcome) => self.note(outcome).map(drop),
        }
    }

    /// Whether the workers have it.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether the workers have done with it, or never had it.
    pub(super) fn is_over(&self) -> bool {
        self.running.as_ref().is_none_or(Running::is_over)
    }

    /// Waits until the workers have done with it.
    ///
    /// # Errors
    /// The exception that a wave raised; the grid cannot be resumed.
    pub(super) fn end(&mut self, gpu: &Gpu) -> Result<Progress, Raised> {
        let Some(running) = self.running.take() else { return Ok(Progress::Paused) };
        let progress = self.note(running.finish(&self.launch));
        if matches!(progress, Ok(Progress::Completed)) {
            gpu.journal.dispatch(gpu.index, &self.launch.packet, || gpu.counter.since(self.start));
        }
        progress
    }

    fn note(&mut self, outcome: Outcome) -> Result<Progress, Raised> {
        match outcome {
            Outcome::Completed => Ok(Progress::Completed),
            Outcome::Paused(grid) => {
                self.grid = Some(grid);
                Ok(Progress::Paused)
            }
            Outcome::Aborted => Ok(Progress::Aborted),
            Outcome::Exception(exception) => {
                let xcc = self.xcc_of(exception.workgroup);
                Err(Raised { xcc, ..exception.into() })
            }
        }
    }

    /// The XCC that runs a work-group: they go round the XCCs.
    fn xcc_of(&self, workgroup: [u32; 3]) -> usize {
        let [columns, rows, _] = self.launch.packet.workgroups().map(u64::from);
        let first = self.launch.first_workgroup;
        let [x, y, z] = std::array::from_fn(|axis| u64::from(workgroup[axis].wrapping_sub(first[axis])));
        let index = z.wrapping_mul(rows).wrapping_add(y).wrapping_mul(columns).wrapping_add(x);
        usize::try_from(index % u64::from(self.xccs.max(1))).unwrap_or(0)
    }

    /// Most bytes of a save area that its waves can take.
    pub(super) fn save_bytes(&self) -> u64 {
        let (descriptor, packet) = (&self.launch.descriptor, &self.launch.packet);
        let lanes = u64::from(descriptor.lanes());
        let groups =
            packet.workgroups().iter().fold(1_u64, |all, &count| all.saturating_mul(u64::from(count)));
        let vgprs = u64::from(descriptor.vgpr_count(lanes == 32)) * lanes * 4;
        let waves = packet.workgroup_items().div_ceil(lanes);
        let group = waves.saturating_mul(vgprs + WAVE_BYTES) + u64::from(packet.group_segment_bytes);
        groups.min(self.launch.resident_workgroups()).saturating_mul(group)
    }

    /// Whether its waves have private memory, which the dispatches of a queue share.
    pub(super) fn has_scratch(&self) -> bool {
        self.launch.scratch.is_some()
    }

    /// Handle of the signal to complete, or 0.
    pub(super) fn completion_signal(&self) -> u64 {
        self.launch.packet.completion_signal
    }

    /// When the dispatch began, GPU clock ticks.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The waves of the interrupted grid, each with its XCC.
    pub(super) fn waves(&self) -> DispatchWaves<'_> {
        let xcc = |wave: &WaveRecord| self.xcc_of([wave.ttmp[8], wave.ttmp[9], wave.ttmp[10]]);
        let waves = self.grid.iter().flat_map(|grid| &grid.waves);
        waves.map(|wave| (xcc(wave), Wave::Borrowed(wave))).collect()
    }

    /// How many these are.
    pub(super) fn wave_count(&self) -> usize {
        self.grid.as_ref().map_or(0, |grid| grid.waves.len())
    }

    /// `COMPUTE_PGM_RSRC1`, if waves of it are running.
    pub(super) fn preempted_rsrc1(&self) -> Option<u32> {
        self.grid
            .as_ref()
            .filter(|grid| !grid.waves.is_empty())
            .map(|_| self.launch.descriptor.compute_pgm_rsrc1)
    }

    /// Writes everything but the waves.
    pub(super) fn store(&self, writer: &mut Writer) {
        let launch = &self.launch;
        writer.put_all(&descriptor_words(&launch.descriptor.to_bytes()));
        writer.put_all(&Packet::KernelDispatch(launch.packet).encode());
        for value in [
            launch.kernel_object,
            launch.entry,
            launch.packet_address,
            launch.queue_address,
            launch.dispatch_id,
            self.start,
            self.grid.as_ref().map_or(0, |grid| grid.next_workgroup),
        ] {
            writer.put64(value);
        }
        writer.put(u32::from(self.grid.is_some()));
        let none = Scratch { base: 0, wave_bytes: 0, waves: 0, engines: 0, xccs: 1, xcc_bytes: 0 };
        let Scratch { base, wave_bytes, waves, engines, xccs, xcc_bytes } = launch.scratch.unwrap_or(none);
        writer.put(match launch.scratch {
            None => NO_SCRATCH,
            Some(_) if xccs <= 1 => SCRATCH_SLOTS,
            Some(_) => SCRATCH_PARTS,
        });
        writer.put64(base);
        // CAST: a field of 15 bits times its unit; WAVES has 12 bits.
        writer.put(words(wave_bytes)[0]);
        writer.put(waves & SLOTS_WAVES | engines << SLOTS_ENGINES_SHIFT);
        if xccs > 1 {
            writer.put(xccs);
            writer.put64(xcc_bytes);
        }
        writer.put(u32::from(launch.user_data.is_some()));
        writer.put_all(&launch.user_data.unwrap_or_default());
        writer.put_all(&launch.first_workgroup);
    }

    /// The dispatch that [`Job::store`] wrote, with its waves.
    ///
    /// # Errors
    /// `EINVAL` when no dispatch could be like this, or the waves are not of its kind.
    pub(super) fn load(
        reader: &mut Reader<'_>,
        gpu: &Gpu,
        config: &HwQueue,
        waves: Vec<WaveRecord>,
    ) -> Result<Self, Errno> {
        let descriptor = KernelDescriptor::from_bytes(&bytes(reader.take_all()));
        let Ok(Packet::KernelDispatch(packet)) = Packet::decode(&reader.take_all()) else {
            return Err(Errno::EINVAL);
        };
        let [kernel_object, entry, packet_address, queue_address, dispatch_id, start, next_workgroup] =
            std::array::from_fn(|_| reader.take64());
        let started = reader.take() != 0;
        let scratch = load_scratch(reader, descriptor.lanes(), packet.private_segment_bytes);
        let has_user_data = reader.take() != 0;
        let user_data = reader.take_all();
        let first_workgroup = reader.take_all();
        let launch = Launch {
            target: gpu.chip.target,
            compute_units: gpu.chip.compute_units,
            descriptor,
            kernel_object,
            entry,
            packet,
            user_data: has_user_data.then_some(user_data),
            first_workgroup,
            packet_address,
            queue_address,
            dispatch_id,
            scratch,
            doorbell: config.doorbell_offset / 8,
            priority: config.priority,
            privileged: gpu.chip.privileged(config.kind, descriptor.compute_pgm_rsrc1),
        };
        let lanes = descriptor.lanes();
        let fits = started || waves.is_empty();
        if check(gpu, &launch).is_err() || !fits || waves.iter().any(|wave| wave.lanes != lanes) {
            return Err(Errno::EINVAL);
        }
        let grid = started.then(|| Box::new(GridState { next_workgroup, waves }));
        let xccs = sharing_xccs(gpu, config.kind);
        if launch.scratch.is_some_and(|scratch| scratch.xccs != xccs) {
            return Err(Errno::EINVAL);
        }
        Ok(Self { launch, grid, running: None, start, xccs })
    }
}

/// The scratch memory that [`Job::store`] wrote.
fn load_scratch(reader: &mut Reader<'_>, lanes: u32, private_segment_bytes: u32) -> Option<Scratch> {
    let (kind, base, [low, high]) = (reader.take(), reader.take64(), reader.take_all());
    match kind {
        NO_SCRATCH => None,
        SCRATCH_BYTES => {
            let private = u64::from(private_segment_bytes.checked_next_multiple_of(4)?);
            let wave_bytes = (private * u64::from(lanes)).next_multiple_of(OLD_WAVE_GRANULE);
            let waves = double(low, high).checked_div(wave_bytes)?;
            let waves = u32::try_from(waves).ok()?;
            Some(Scratch { base, wave_bytes, waves, engines: 1, xccs: 1, xcc_bytes: double(low, high) })
        }
        kind => {
            let (waves, engines) = (high & SLOTS_WAVES, high >> SLOTS_ENGINES_SHIFT);
            let wave_bytes = u64::from(low);
            let (xccs, xcc_bytes) = match kind {
                SCRATCH_PARTS => (reader.take(), reader.take64()),
                _ => (1, u64::from(waves) * u64::from(engines) * wave_bytes),
            };
            Some(Scratch { base, wave_bytes, waves, engines, xccs, xcc_bytes })
        }
    }
}

/// Refuses dispatches that the device cannot run.
fn check(gpu: &Gpu, launch: &Launch) -> Result<(), PacketError> {
    let (descriptor, packet) = (&launch.descriptor, &launch.packet);
    Packet::KernelDispatch(*packet).validate()?;
    if !gpu.chip.target.gfx11_code {
        tracing::error!(target: "processor", gpu = gpu.index, chip = gpu.chip.target.name,
            kernel = format_args!("{:#x}", launch.kernel_object),
            "kernel refused: this device executes gfx11 machine code; of other chips' queues it processes the other packets");
        gpu.journal.refused(|| {
            format!(
                "GPU {} is a {}, and the software device executes machine code of gfx11 only: the kernel {:#x} was \
                 refused",
                gpu.index, gpu.chip.target.name, launch.kernel_object
            )
        });
        return Err(PacketError::Unsupported { kind: PacketKind::KernelDispatch as u8 });
    }
    packet.check_group_segment(gpu.chip.target.max_group_segment_bytes)?;
    let lanes = descriptor.lanes();
    if !gpu.chip.target.wave_sizes.contains(&lanes) {
        return Err(PacketError::CodeObject { address: launch.kernel_object });
    }
    let wanted = descriptor.vgpr_count(lanes == 32);
    if wanted > VGPRS {
        return Err(PacketError::Registers { wanted, limit: VGPRS });
    }
    Ok(())
}

fn descriptor_words(bytes: &[u8; KernelDescriptor::BYTES]) -> [u32; KernelDescriptor::BYTES / 4] {
    let words = bytes.as_chunks::<4>().0;
    std::array::from_fn(|at| words.get(at).copied().map_or(0, u32::from_le_bytes))
}

fn bytes(words: [u32; KernelDescriptor::BYTES / 4]) -> [u8; KernelDescriptor::BYTES] {
    let mut bytes = [0; KernelDescriptor::BYTES];
    for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    bytes
}

/// Reads the descriptor of an AQL dispatch.
///
/// # Errors
/// The exception that the packet raises.
pub(super) fn descriptor(gpu: &Gpu, packet: &KernelDispatch) -> Result<KernelDescriptor, Raised> {
    // The packet's own fields are checked first: that needs no memory access.
    packet.check_group_segment(gpu.chip.target.max_group_segment_bytes)?;
    let address = packet.kernel_object;
    if !address.is_multiple_of(64) {
        return Err(PacketError::CodeObject { address }.into());
    }
    let mut bytes = [0; KernelDescriptor::BYTES];
    gpu.vm.read_bytes(address, &mut bytes)?;
    Ok(KernelDescriptor::from_bytes(&bytes))
}

/// The exception of a dispatch that needs scratch memory in a queue that has none and cannot ask for it.
pub(super) fn no_scratch() -> Raised {
    Raised::packet(ExceptionCode::WaveApertureViolation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_gpus::tests::some_queue;

    #[test]
    fn scratch_of_older_descriptors_keeps_its_waves_where_they_were() {
        let load = |kind: u32, size: u64| {
            let mut writer = Writer::new(&some_queue(HwQueueKind::Aql), 1);
            writer.put(kind);
            writer.put64(0x7f00_0000_0000);
            writer.put64(size);
            let mqd = writer.finish();
            load_scratch(&mut Reader::new(&mqd, HwQueueKind::Aql).unwrap(), 32, 98)
        };
        let scratch = |wave_bytes: u64, waves, engines| {
            let xcc_bytes = wave_bytes * u64::from(waves) * u64::from(engines);
            Some(Scratch { base: 0x7f00_0000_0000, wave_bytes, waves, engines, xccs: 1, xcc_bytes })
        };
        // 100 B of 32 lanes are 3200 B, which were rounded up to 4 KiB.
        assert_eq!(load(SCRATCH_BYTES, 1 << 20), scratch(4096, 256, 1));
        assert_eq!(load(SCRATCH_SLOTS, 6 << 48 | 512 << 32 | 3328), scratch(3328, 512, 6));
        assert_eq!(load(NO_SCRATCH, 0), None);
    }
}
