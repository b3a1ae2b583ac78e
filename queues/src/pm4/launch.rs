// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets that launch one kernel: its registers, then the dispatch.
//!
//! INVARIANT: every register that a dispatch reads is written, because registers keep the values of whatever
//! ran before. `PRIV` is set exactly where [`privileged_dispatch`] says so, whatever the descriptor holds.

use super::control::Initiator;
use super::{Packet, Pm4Error, reg};
use crate::aql::MAX_WORKGROUP_ITEMS;
use crate::hsa::KernelDescriptor;
use crate::target::{ScratchFormat, Target, privileged_dispatch};
use crate::words::words;

/// `COMPUTE_PGM_RSRC1.PRIV`.
pub const RSRC1_PRIV: u32 = 1 << 20;

const RSRC2_LDS_SHIFT: u32 = 15;
const RSRC2_LDS: u32 = 0x1ff << RSRC2_LDS_SHIFT;
/// Addresses of code and scratch lie below this and are multiples of 256 B.
const ADDRESS_END: u64 = 1 << 48;
const ADDRESS_UNIT: u64 = 256;
/// `COMPUTE_TMPRING_SIZE.WAVES`.
const SCRATCH_WAVES: u32 = 0xfff;
/// `COMPUTE_TMPRING_SIZE.WAVESIZE` grew from 13 to 15 bits when its unit shrank from 1024 to 256 B.
const SCRATCH_WAVE_END: u32 = 8 << 20;
const SCRATCH_WAVE_SHIFT: u32 = 12;

/// Scratch memory of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scratch {
    /// GPU address, a multiple of 256 B.
    pub base: u64,
    /// Bytes of one wave, a multiple of [`ScratchFormat::wave_size_unit`].
    pub wave_bytes: u32,
    /// Waves that have some at once: of the device, or of a shader engine where
    /// [`ScratchFormat::waves_per_engine`].
    pub waves: u32,
}

impl Scratch {
    /// `COMPUTE_TMPRING_SIZE` of a target.
    ///
    /// # Errors
    /// [`Pm4Error::Scratch`] if the target's register cannot say this, or is not known.
    pub const fn tmpring_size(&self, target: &'static Target) -> Result<u32, Pm4Error> {
        let Self { base, wave_bytes, waves } = *self;
        match target.scratch {
            Some(ScratchFormat { wave_size_unit: unit, .. })
                if waves <= SCRATCH_WAVES
                    && wave_bytes.is_multiple_of(unit)
                    && wave_bytes < SCRATCH_WAVE_END
                    && base.is_multiple_of(ADDRESS_UNIT)
                    && base < ADDRESS_END =>
            {
                Ok(waves | (wave_bytes / unit) << SCRATCH_WAVE_SHIFT)
            }
            _ => Err(Pm4Error::Scratch { base, wave_bytes, waves, target: target.name }),
        }
    }
}

/// One kernel launch.
///
/// Nothing here waits or makes anything visible; that is for [`memory_barrier`](super::memory_barrier),
/// [`kernel_barrier`](super::kernel_barrier) and [`cs_partial_flush`](super::cs_partial_flush).
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    /// The chip.
    pub target: &'static Target,
    /// Its shader arrays: `array_count / num_xcc` of the node.
    pub simd_arrays: u32,
    /// GPU address of the first instruction, a multiple of 256 B.
    pub entry: u64,
    /// Where the resource words come from.
    pub descriptor: &'a KernelDescriptor,
    /// LDS per work-group, bytes, static and dynamic together.
    pub group_segment_bytes: u32,
    /// Scratch memory; none means that waves have none.
    pub scratch: Option<Scratch>,
    /// What waves find in their first SGPRs, at most [`reg::USER_DATA_COUNT`] words.
    pub user_data: &'a [u32],
    /// Work-items per work-group in x, y and z.
    pub workgroup: [u16; 3],
    /// Work-groups in x, y and z; all are full.
    pub groups: [u32; 3],
    /// Whether waves have 32 lanes.
    pub wave32: bool,
}

impl Dispatch<'_> {
    /// `COMPUTE_PGM_RSRC1`: the descriptor's, with `PRIV` as the chip needs it.
    #[must_use]
    pub const fn rsrc1(&self) -> u32 {
        let rsrc1 = self.descriptor.compute_pgm_rsrc1 & !RSRC1_PRIV;
        if privileged_dispatch(self.target, self.simd_arrays) { rsrc1 | RSRC1_PRIV } else { rsrc1 }
    }

    /// `COMPUTE_PGM_RSRC2`: the descriptor's, with the LDS size of this dispatch.
    ///
    /// # Errors
    /// [`Pm4Error::GroupSegment`] if the chip has less LDS.
    pub const fn rsrc2(&self) -> Result<u32, Pm4Error> {
        let (bytes, limit) = (self.group_segment_bytes, self.target.max_group_segment_bytes);
        let granules = KernelDescriptor::lds_granules_for(bytes) << RSRC2_LDS_SHIFT;
        if bytes > limit || granules & !RSRC2_LDS != 0 {
            return Err(Pm4Error::GroupSegment { bytes, limit, target: self.target.name });
        }
        Ok(self.descriptor.compute_pgm_rsrc2 & !RSRC2_LDS | granules)
    }

    /// `COMPUTE_DISPATCH_INITIATOR`: start at work-group 0,0,0 with waves of the wanted size.
    #[must_use]
    pub const fn initiator(&self) -> Initiator {
        let wave_size = if self.wave32 { Initiator::CS_W32_EN } else { 0 };
        Initiator(Initiator::COMPUTE_SHADER_EN | Initiator::FORCE_START_AT_000 | wave_size)
    }

    /// Appends the packets: registers, then `DISPATCH_DIRECT`. After an error nothing is appended.
    ///
    /// # Errors
    /// [`Pm4Error::Target`], [`Pm4Error::Entry`], [`Pm4Error::WaveSize`], [`Pm4Error::WorkgroupSize`],
    /// [`Pm4Error::GroupSegment`], [`Pm4Error::Scratch`] or [`Pm4Error::UserData`].
    pub fn encode(&self, out: &mut Vec<u32>) -> Result<(), Pm4Error> {
        self.check()?;
        let rsrc2 = self.rsrc2()?;
        let tmpring = match &self.scratch {
            Some(scratch) => scratch.tmpring_size(self.target)?,
            None => 0,
        };
        let start = out.len();
        let mut set = |register, values: &[u32]| Packet::SetShReg { register, values }.encode(out);
        let result = self.registers(rsrc2, tmpring, &mut set).and_then(|()| {
            Packet::DispatchDirect { groups: self.groups, initiator: self.initiator() }.encode(out)
        });
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn check(&self) -> Result<(), Pm4Error> {
        let target = self.target.name;
        if !self.target.pm4_dispatch {
            return Err(Pm4Error::Target { target });
        }
        if !self.entry.is_multiple_of(ADDRESS_UNIT) || self.entry >= ADDRESS_END {
            return Err(Pm4Error::Entry { address: self.entry });
        }
        let lanes = if self.wave32 { 32 } else { 64 };
        if !self.target.wave_sizes.contains(&lanes) {
            return Err(Pm4Error::WaveSize { lanes, target });
        }
        let items: u64 = self.workgroup.iter().map(|&size| u64::from(size)).product();
        if !(1..=u64::from(MAX_WORKGROUP_ITEMS)).contains(&items) {
            return Err(Pm4Error::WorkgroupSize { workgroup: self.workgroup, limit: MAX_WORKGROUP_ITEMS });
        }
        // CAST: 16, widened.
        let limit = reg::USER_DATA_COUNT as usize;
        if self.user_data.len() > limit {
            return Err(Pm4Error::UserData { count: self.user_data.len(), limit });
        }
        Ok(())
    }

    /// Writes all registers, in the order of the streams that clients submit.
    fn registers(
        &self,
        rsrc2: u32,
        tmpring: u32,
        set: &mut impl FnMut(u32, &[u32]) -> Result<(), Pm4Error>,
    ) -> Result<(), Pm4Error> {
        set(reg::COMPUTE_PGM_LO, &words(self.entry / ADDRESS_UNIT))?;
        set(reg::COMPUTE_PGM_RSRC1, &[self.rsrc1(), rsrc2])?;
        if let Some(register) = self.target.pgm_rsrc3 {
            set(register, &[self.descriptor.compute_pgm_rsrc3])?;
        }
        set(reg::COMPUTE_TMPRING_SIZE, &[tmpring])?;
        // Chips without architected flat scratch take the base from SGPRs, and keep the trap handler here.
        if self.target.architected_flat_scratch {
            let base = self.scratch.map_or(0, |scratch| scratch.base);
            set(reg::COMPUTE_DISPATCH_SCRATCH_BASE_LO, &words(base / ADDRESS_UNIT))?;
        }
        set(reg::COMPUTE_RESTART_X, &[0; 3])?;
        if !self.user_data.is_empty() {
            set(reg::COMPUTE_USER_DATA_0, self.user_data)?;
        }
        set(reg::COMPUTE_RESOURCE_LIMITS, &[0])?;
        let [x, y, z] = self.workgroup.map(u32::from);
        // The two words behind the sizes are PIPELINESTAT_ENABLE and PERFCOUNT_ENABLE.
        set(reg::COMPUTE_START_X, &[0, 0, 0, x, y, z, 0, 0])
    }
}
