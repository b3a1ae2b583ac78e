// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel descriptor: what a command processor reads before it starts a kernel's waves.
//!
//! INVARIANT: the words are kept as found, and every accessor reads bits of them. Nothing is judged on
//! reading, because the first 64 bytes of an old `amd_kernel_code_t` (whose entry offset, resource words and
//! properties lie at the same places) are a legal kernel object too; [`KernelDescriptor::validate`] judges
//! what a loader may refuse. Bit positions: LLVM AMDGPUUsage, "Code Object V3 Kernel Descriptor";
//! `amd_hsa_kernel_code.h`.

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use super::layout::assert_layout;
use crate::target::Target;

/// Bytes of LDS that one step of the descriptor's LDS field means.
const LDS_GRANULE_BYTES: u32 = 512;

/// A descriptor that no loader should accept.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DescriptorError {
    /// Bytes that must be zero are not.
    #[error("Reserved bytes of {field} in the kernel descriptor must be 0, found {value:#x}")]
    Reserved {
        /// Where they lie.
        field: &'static str,
        /// What they hold.
        value: u64,
    },
    /// The kernel was compiled for waves that the target has not.
    #[error("Kernel wants waves of {lanes} lanes, {target} has none")]
    WaveSize {
        /// Lanes wanted.
        lanes: u32,
        /// The target's name.
        target: &'static str,
    },
    /// The entry point is not where code can start.
    #[error("Kernel entry must be a multiple of 64 B from its descriptor, found {offset}")]
    Entry {
        /// Offset from the descriptor, bytes.
        offset: i64,
    },
}

/// The 64 bytes at a kernel object's address, little-endian words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct KernelDescriptor {
    /// Static LDS per work-group, bytes. A processor uses the packet's number, which adds the dynamic part.
    pub group_segment_fixed_size: u32,
    /// Scratch per work-item, bytes. A processor uses the packet's number.
    pub private_segment_fixed_size: u32,
    /// Bytes of kernel arguments.
    pub kernarg_size: u32,
    /// Zero.
    pub reserved0: [u8; 4],
    /// Entry point relative to the descriptor's own address, bytes.
    pub kernel_code_entry_byte_offset: i64,
    /// Zero.
    pub reserved1: [u8; 20],
    /// `COMPUTE_PGM_RSRC3`.
    pub compute_pgm_rsrc3: u32,
    /// `COMPUTE_PGM_RSRC1`.
    pub compute_pgm_rsrc1: u32,
    /// `COMPUTE_PGM_RSRC2`.
    pub compute_pgm_rsrc2: u32,
    /// Which user SGPRs are wanted, and the wave size.
    pub kernel_code_properties: u16,
    /// Kernel argument words to preload into SGPRs (gfx90a, gfx94x, gfx950).
    pub kernarg_preload: u16,
    /// Zero.
    pub reserved3: [u8; 4],
}

assert_layout!(KernelDescriptor, 64, align 8, {
    0 group_segment_fixed_size,
    4 private_segment_fixed_size,
    8 kernarg_size,
    16 kernel_code_entry_byte_offset,
    44 compute_pgm_rsrc3,
    48 compute_pgm_rsrc1,
    52 compute_pgm_rsrc2,
    56 kernel_code_properties,
    58 kernarg_preload,
});

/// The bits `low..low + width` of a word.
const fn field(word: u32, low: u32, width: u32) -> u32 {
    (word >> low) & ((1 << width) - 1)
}

/// One accessor per single bit of a word.
macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident = $word:ident[$bit:literal];)*) => {
        impl KernelDescriptor {
            $($(#[$doc])* #[must_use] pub const fn $name(&self) -> bool { self.$word >> $bit & 1 != 0 })*
        }
    };
}

bits! {
    /// Whether the wave runs privileged (`PRIV`). Only PM4 dispatches on some gfx11 chips set it.
    privileged = compute_pgm_rsrc1[20];
    /// Whether a clamp turns NaN into 0.
    dx10_clamp = compute_pgm_rsrc1[21];
    /// Whether the wave starts in debug mode.
    debug_mode = compute_pgm_rsrc1[22];
    /// Whether minimum and maximum quieten signalling NaNs.
    ieee = compute_pgm_rsrc1[23];
    /// Whether 16-bit overflow gives the largest finite number.
    fp16_ovfl = compute_pgm_rsrc1[26];
    /// Whether the work-group may use both halves of a work-group processor.
    wgp_mode = compute_pgm_rsrc1[29];
    /// Whether loads return in order.
    mem_ordered = compute_pgm_rsrc1[30];
    /// Whether older waves take precedence.
    fwd_progress = compute_pgm_rsrc1[31];

    /// Whether scratch is set up: an SGPR with the wave's offset, or on architected chips the FLAT_SCRATCH
    /// registers.
    enable_private_segment = compute_pgm_rsrc2[0];
    /// Whether a trap handler is present.
    enable_trap_handler = compute_pgm_rsrc2[6];
    /// Whether an SGPR holds the work-group's x.
    enable_workgroup_id_x = compute_pgm_rsrc2[7];
    /// Whether an SGPR holds the work-group's y.
    enable_workgroup_id_y = compute_pgm_rsrc2[8];
    /// Whether an SGPR holds the work-group's z.
    enable_workgroup_id_z = compute_pgm_rsrc2[9];
    /// Whether an SGPR holds the number of waves in the work-group and the wave's own.
    enable_workgroup_info = compute_pgm_rsrc2[10];
    /// Whether a watched address traps.
    enable_address_watch = compute_pgm_rsrc2[13];
    /// Whether a memory violation traps.
    enable_memory_violation = compute_pgm_rsrc2[14];

    /// Whether user SGPRs hold a scratch buffer descriptor (4; not on chips with architected flat scratch).
    enable_private_segment_buffer = kernel_code_properties[0];
    /// Whether user SGPRs hold the packet's address (2).
    enable_dispatch_ptr = kernel_code_properties[1];
    /// Whether user SGPRs hold the address of the `amd_queue_t` (2).
    enable_queue_ptr = kernel_code_properties[2];
    /// Whether user SGPRs hold the address of the kernel arguments (2).
    enable_kernarg_segment_ptr = kernel_code_properties[3];
    /// Whether user SGPRs hold the packet's index (2).
    enable_dispatch_id = kernel_code_properties[4];
    /// Whether user SGPRs hold the initial flat scratch (2; not on chips with architected flat scratch).
    enable_flat_scratch_init = kernel_code_properties[5];
    /// Whether a user SGPR holds the scratch bytes per work-item (1).
    enable_private_segment_size = kernel_code_properties[6];
    /// Whether waves have 32 lanes.
    wave32 = kernel_code_properties[10];
    /// Whether the kernel may need more scratch than it says.
    uses_dynamic_stack = kernel_code_properties[11];
}

impl KernelDescriptor {
    /// Bytes of a descriptor.
    pub const BYTES: usize = 64;

    /// Reads a descriptor. Any bytes are one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        bytemuck::pod_read_unaligned(bytes)
    }

    /// The descriptor's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        bytemuck::cast(*self)
    }

    /// GPU address of the first instruction, for a descriptor at `kernel_object`.
    ///
    /// Wraps; the caller finds out by fetching that nothing is mapped there.
    #[must_use]
    pub const fn entry(&self, kernel_object: u64) -> u64 {
        kernel_object.wrapping_add_signed(self.kernel_code_entry_byte_offset)
    }

    /// Lanes of a wave, 32 or 64.
    #[must_use]
    pub const fn lanes(&self) -> u32 {
        if self.wave32() { 32 } else { 64 }
    }

    /// VGPRs per lane that the descriptor asks for on gfx10 and later, where the encoding's step is 8
    /// registers in waves of 32 and 4 in waves of 64.
    #[must_use]
    pub const fn vgpr_count(&self, wave32: bool) -> u32 {
        (field(self.compute_pgm_rsrc1, 0, 6) + 1) * if wave32 { 8 } else { 4 }
    }

    /// VGPRs per lane that a wave of `target` gets: those asked for, rounded up to what the chip hands out.
    #[must_use]
    pub const fn allocated_vgprs(&self, target: &Target) -> u32 {
        let granule = target.vgprs(self.wave32());
        let wanted = (field(self.compute_pgm_rsrc1, 0, 6) + 1) * granule.encoding;
        wanted.next_multiple_of(granule.allocation)
    }

    /// Raw SGPR field of rsrc1; gfx10 and later ignore it and give every wave 128.
    #[must_use]
    pub const fn sgpr_granules(&self) -> u32 {
        field(self.compute_pgm_rsrc1, 6, 4)
    }

    /// Scheduling priority, 0 to 3.
    #[must_use]
    pub const fn priority(&self) -> u32 {
        field(self.compute_pgm_rsrc1, 10, 2)
    }

    /// Initial `MODE[7:0]`: rounding of 32-bit and of 16/64-bit in bits 0..4, denormals likewise in bits
    /// 4..8.
    #[must_use]
    pub const fn float_mode(&self) -> u8 {
        self.compute_pgm_rsrc1.to_le_bytes()[1] >> 4 | self.compute_pgm_rsrc1.to_le_bytes()[2] << 4
    }

    /// The whole initial `MODE` of gfx9 to gfx11: float mode, `DX10_CLAMP` 8, `IEEE` 9, exception enables
    /// 12..19, `FP16_OVFL` 23.
    #[must_use]
    pub const fn initial_mode(&self) -> u32 {
        // CAST: a byte and bools, widened.
        self.float_mode() as u32
            | (self.dx10_clamp() as u32) << 8
            | (self.ieee() as u32) << 9
            | self.exception_enables() << 12
            | (self.fp16_ovfl() as u32) << 23
    }

    /// Which floating-point and integer exceptions trap: bit 0 invalid operation, 1 denormal source, 2
    /// division by zero, 3 overflow, 4 underflow, 5 inexact, 6 integer division by zero.
    #[must_use]
    pub const fn exception_enables(&self) -> u32 {
        field(self.compute_pgm_rsrc2, 24, 7)
    }

    /// User SGPRs; system SGPRs start at this index however many of them the properties use.
    #[must_use]
    pub const fn user_sgpr_count(&self) -> u32 {
        field(self.compute_pgm_rsrc2, 1, 5)
    }

    /// Which work-item ids the kernel reads: 0 x, 1 x and y, 2 all three.
    #[must_use]
    pub const fn workitem_id_dimensions(&self) -> u32 {
        field(self.compute_pgm_rsrc2, 11, 2)
    }

    /// LDS field of rsrc2, steps of 512 B. Compilers leave it 0: the processor fills it from the packet.
    #[must_use]
    pub const fn lds_granules(&self) -> u32 {
        field(self.compute_pgm_rsrc2, 15, 9)
    }

    /// LDS steps that hold this many bytes; what a processor puts where [`Self::lds_granules`] reads.
    #[must_use]
    pub const fn lds_granules_for(group_segment_bytes: u32) -> u32 {
        group_segment_bytes.div_ceil(LDS_GRANULE_BYTES)
    }

    /// First accumulation VGPR of the unified file, gfx90a and later CDNA chips.
    #[must_use]
    pub const fn accum_offset(&self) -> u32 {
        (field(self.compute_pgm_rsrc3, 0, 6) + 1) * 4
    }

    /// Shared VGPR blocks of 8, gfx10 and gfx11 waves of 64.
    #[must_use]
    pub const fn shared_vgpr_blocks(&self) -> u32 {
        field(self.compute_pgm_rsrc3, 0, 4)
    }

    /// Instruction prefetch, 128-byte lines, gfx11.
    #[must_use]
    pub const fn instruction_prefetch(&self) -> u32 {
        field(self.compute_pgm_rsrc3, 4, 6)
    }

    /// Kernel argument words to preload into user SGPRs, behind the pointers.
    #[must_use]
    pub const fn kernarg_preload_length(&self) -> u32 {
        // CAST: 7 bits, widened.
        (self.kernarg_preload & 0x7f) as u32
    }

    /// First kernel argument word to preload.
    #[must_use]
    pub const fn kernarg_preload_offset(&self) -> u32 {
        // CAST: 9 bits, widened.
        (self.kernarg_preload >> 7) as u32
    }

    /// Whether a loader should accept the descriptor for this target.
    ///
    /// # Errors
    /// [`DescriptorError::Reserved`], [`DescriptorError::WaveSize`] or [`DescriptorError::Entry`].
    pub fn validate(&self, target: &Target) -> Result<(), DescriptorError> {
        let wide = |bytes: &[u8]| bytes.iter().fold(0_u64, |or, &byte| or.rotate_left(8) | u64::from(byte));
        for (field, value) in [
            ("bytes 12..16", wide(&self.reserved0)),
            ("bytes 24..44", wide(&self.reserved1)),
            ("bytes 60..64", wide(&self.reserved3)),
        ] {
            if value != 0 {
                return Err(DescriptorError::Reserved { field, value });
            }
        }
        if !target.wave_sizes.contains(&self.lanes()) {
            return Err(DescriptorError::WaveSize { lanes: self.lanes(), target: target.name });
        }
        let offset = self.kernel_code_entry_byte_offset;
        if offset % 64 != 0 {
            return Err(DescriptorError::Entry { offset });
        }
        Ok(())
    }
}
