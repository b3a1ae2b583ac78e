// SPDX-License-Identifier: MIT OR Apache-2.0
//! How large the context save area of a queue is: KFD's arithmetic, repeated exactly.
//!
//! INVARIANT: KFD refuses a queue whose control stack size differs from its own by one byte, whose save size is less
//! than its own, and whose area is not one mapping of exactly `total_bytes` (`kfd_queue.c`:
//! `kfd_queue_acquire_buffers`, 6.12 and later); older kernels accept anything and let the firmware overrun it. So
//! where sysfs exports numbers, the control stack is the kernel's and the save size is the larger one, as in libhsakmt:
//! kernels have known too little of new chips (gfx1151 was sized with too few vector registers), and the firmware
//! writes what the chip has. What sysfs does not export, the debug memory, is always the formula's.
//!
//! ```text
//! | XCC 0: header | control stack | waves | XCC 1: ... | debug memory of all XCCs |
//! |<------------- save_bytes ----------->|                                       |
//! |<-------------------------- total_bytes ------------------------------------->|
//! ```

use thiserror::Error;

use crate::target::{LdsSize, Target, WaveRule};

/// Bytes of the header at the start of a save area (`struct kfd_context_save_area_header`).
pub const HEADER_BYTES: usize = 40;
const PAGE: u128 = 4096;
/// Bytes that the debugger keeps per wave.
const DEBUG_BYTES_PER_WAVE: u128 = 32;
const DEBUG_ALIGN: u128 = 64;
/// PM4 header in front of the control stack's words, bytes.
const CONTROL_STACK_HEADER: u128 = 8;
const WAVES_PER_CU_GFX9: u128 = 40;
const WAVES_PER_ENGINE_GFX9: u128 = 512;
const WAVES_PER_CU: u128 = 32;

/// What a node's sysfs `properties` say about its shape. Field names are the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeShape {
    /// Version as decimal pairs, 110000.
    pub gfx_target_version: u32,
    /// SIMDs over all XCCs.
    pub simd_count: u32,
    /// SIMDs per compute unit.
    pub simd_per_cu: u32,
    /// XCCs that work as this node.
    pub num_xcc: u32,
    /// Shader arrays over all XCCs, as sysfs prints it.
    pub array_count: u32,
    /// Shader arrays per shader engine.
    pub simd_arrays_per_engine: u32,
    /// LDS per compute unit, KiB.
    pub lds_size_in_kb: u32,
    /// Control stack and wave area per XCC, bytes; kernels before 6.12 do not export it.
    pub cwsr_size: Option<u32>,
    /// Control stack per XCC, bytes; kernels before 6.12 do not export it.
    pub ctl_stack_size: Option<u32>,
}

/// A node whose save area cannot be sized.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeometryError {
    /// The target is not in the table.
    #[error(
        "No save area sizes are known for gfx_target_version {gfx_target_version}, add it to the target table"
    )]
    UnknownTarget {
        /// The version.
        gfx_target_version: u32,
    },
    /// A property that the formula divides by, or multiplies, is zero.
    #[error("Node property {property} must not be 0")]
    Zero {
        /// Its sysfs key.
        property: &'static str,
    },
    /// The properties do not describe a whole number of compute units or shader engines.
    #[error("Node property {property} is {value}, which leaves nothing per {divisor_name} ({divisor})")]
    Shape {
        /// Its sysfs key.
        property: &'static str,
        /// Its value.
        value: u32,
        /// What it is divided by.
        divisor_name: &'static str,
        /// How many of those there are.
        divisor: u32,
    },
    /// A size does not fit the bits that KFD has for it.
    #[error("Save area needs {bytes} B for {part}, more than KFD can express")]
    TooLarge {
        /// Which part.
        part: &'static str,
        /// Bytes it would need, at most `u64::MAX`.
        bytes: u64,
    },
    /// Sysfs exports a number that KFD's formula cannot give for any chip.
    #[error(
        "Kernel reports {property} {reported} B for gfx_target_version {gfx_target_version}, which is no whole number \
         of pages above 0 (the formula gives {computed} B), use another kernel"
    )]
    Reported {
        /// The sysfs key.
        property: &'static str,
        /// The kernel's number.
        reported: u32,
        /// The formula's.
        computed: u32,
        /// The node's version.
        gfx_target_version: u32,
    },
}

/// A number that sysfs exports and the formula does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The sysfs key.
    pub property: &'static str,
    /// The kernel's number, bytes.
    pub reported: u32,
    /// The formula's, bytes.
    pub computed: u32,
}

/// Sizes of a compute queue's buffers on one node.
///
/// ```
/// use queues::cwsr::{CwsrGeometry, NodeShape};
/// let node = NodeShape {
///     gfx_target_version: 110_000, simd_count: 192, simd_per_cu: 2, num_xcc: 1, array_count: 12,
///     simd_arrays_per_engine: 2, lds_size_in_kb: 64,
///     cwsr_size: Some(46_047_232), ctl_stack_size: Some(40_960),
/// };
/// assert_eq!(CwsrGeometry::for_node(&node).unwrap().total_bytes, 46_145_536);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CwsrGeometry {
    /// `ctl_stack_size`: header and control stack of one XCC, bytes.
    pub control_stack_bytes: u32,
    /// `cwsr_size`: control stack and wave area of one XCC, bytes; what CREATE_QUEUE calls
    /// `ctx_save_restore_size`.
    pub save_bytes: u32,
    /// Debug memory of one XCC, bytes. Exported nowhere.
    pub debug_bytes: u32,
    /// The whole mapping, bytes.
    pub total_bytes: u64,
    /// The EOP buffer, bytes. Exported nowhere.
    pub eop_bytes: u32,
    /// Waves that one XCC can hold, as KFD counts them.
    pub waves: u32,
    /// XCCs.
    pub num_xcc: u32,
}

impl CwsrGeometry {
    /// The sizes for a node: the formula's, corrected by what sysfs exports.
    ///
    /// # Errors
    /// Every [`GeometryError`]; [`GeometryError::Reported`] and [`GeometryError::TooLarge`] also for what sysfs exports.
    pub fn for_node(node: &NodeShape) -> Result<Self, GeometryError> {
        let computed = Self::computed(node)?;
        for Disagreement { property, reported, computed } in computed.disagreements(node) {
            if reported == 0 || !u128::from(reported).is_multiple_of(PAGE) {
                let gfx_target_version = node.gfx_target_version;
                return Err(GeometryError::Reported { property, reported, computed, gfx_target_version });
            }
        }
        let stack = node.ctl_stack_size.unwrap_or(computed.control_stack_bytes);
        let wave_area = computed.save_bytes - computed.control_stack_bytes;
        let save = (u128::from(stack) + u128::from(wave_area)).max(u128::from(node.cwsr_size.unwrap_or(0)));
        let save_bytes = narrow("the control stack and waves", save)?;
        let total_bytes = total(save_bytes, computed.debug_bytes, computed.num_xcc)?;
        Ok(Self { control_stack_bytes: stack, save_bytes, total_bytes, ..computed })
    }

    /// The numbers of sysfs that differ from these, which are [`Self::computed`] of the same node.
    pub fn disagreements(&self, node: &NodeShape) -> impl Iterator<Item = Disagreement> + use<> {
        let pairs = [
            ("ctl_stack_size", node.ctl_stack_size, self.control_stack_bytes),
            ("cwsr_size", node.cwsr_size, self.save_bytes),
        ];
        pairs.into_iter().filter_map(|(property, reported, computed)| {
            let reported = reported.filter(|&reported| reported != computed)?;
            Some(Disagreement { property, reported, computed })
        })
    }

    /// The sizes that KFD's formula gives for a node, whatever sysfs exports.
    ///
    /// # Errors
    /// Every [`GeometryError`] but [`GeometryError::Reported`].
    pub fn computed(node: &NodeShape) -> Result<Self, GeometryError> {
        let gfx_target_version = node.gfx_target_version;
        let target = Target::from_gfx_version(gfx_target_version)
            .ok_or(GeometryError::UnknownTarget { gfx_target_version })?;
        let cus = compute_units(node)?;
        let waves = waves(node, target, cus)?;
        let lds = match target.cwsr.lds_per_cu {
            LdsSize::Fixed(bytes) => u128::from(bytes),
            LdsSize::FromNode => u128::from(nonzero("lds_size_in_kb", node.lds_size_in_kb)?) << 10,
        };
        let per_cu = u128::from(target.vgpr_bytes_per_cu)
            + u128::from(target.cwsr.sgpr_bytes_per_cu)
            + lds
            + u128::from(target.cwsr.hwreg_bytes_per_cu);

        // 128 bits because the properties are 32-bit numbers from a file: products of two of them and a size
        // per compute unit pass 64 bits, never 128.
        let wave_area = (u128::from(cus) * per_cu).next_multiple_of(PAGE);
        let per_wave = u128::from(target.cwsr.control_stack_bytes_per_wave);
        let stack = HEADER_BYTES as u128 + waves * per_wave + CONTROL_STACK_HEADER;
        let stack = stack.next_multiple_of(PAGE);
        let stack = target.cwsr.control_stack_limit.map_or(stack, |limit| stack.min(u128::from(limit)));
        let save = (stack + wave_area).next_multiple_of(PAGE);
        let debug = (waves * DEBUG_BYTES_PER_WAVE).next_multiple_of(DEBUG_ALIGN);

        let save_bytes = narrow("the control stack and waves", save)?;
        let debug_bytes = narrow("the debugger", debug)?;
        Ok(Self {
            control_stack_bytes: narrow("the control stack", stack)?,
            save_bytes,
            debug_bytes,
            total_bytes: total(save_bytes, debug_bytes, node.num_xcc)?,
            eop_bytes: target.eop_bytes,
            waves: narrow("waves", waves)?,
            num_xcc: node.num_xcc,
        })
    }

    /// Where XCC `xcc`'s area begins in the mapping, bytes, or `None` if there is no such XCC.
    #[must_use]
    pub fn area_offset(&self, xcc: u32) -> Option<u64> {
        (xcc < self.num_xcc).then(|| u64::from(xcc) * u64::from(self.save_bytes))
    }
}

/// Compute units of one XCC.
fn compute_units(node: &NodeShape) -> Result<u32, GeometryError> {
    let simds = nonzero("simd_count", node.simd_count)?;
    let per_cu = nonzero("simd_per_cu", node.simd_per_cu)?;
    let xccs = nonzero("num_xcc", node.num_xcc)?;
    match simds / per_cu / xccs {
        0 => Err(GeometryError::Shape {
            property: "simd_count",
            value: simds,
            divisor_name: "compute unit of every XCC",
            divisor: per_cu.saturating_mul(xccs),
        }),
        cus => Ok(cus),
    }
}

/// Waves of one XCC.
fn waves(node: &NodeShape, target: &Target, cus: u32) -> Result<u128, GeometryError> {
    let cus = u128::from(cus);
    match target.cwsr.waves {
        WaveRule::ThirtyTwoPerCu => Ok(cus * WAVES_PER_CU),
        WaveRule::FortyPerCuWithin512PerEngine => {
            let arrays = nonzero("array_count", node.array_count)?;
            let per_engine = nonzero("simd_arrays_per_engine", node.simd_arrays_per_engine)?;
            // Sysfs multiplies by num_xcc what the kernel's formula takes per XCC.
            match arrays / node.num_xcc / per_engine {
                0 => Err(GeometryError::Shape {
                    property: "array_count",
                    value: arrays,
                    divisor_name: "shader engine of every XCC",
                    divisor: per_engine.saturating_mul(node.num_xcc),
                }),
                engines => Ok((cus * WAVES_PER_CU_GFX9).min(u128::from(engines) * WAVES_PER_ENGINE_GFX9)),
            }
        }
    }
}

/// The whole mapping, bytes.
fn total(save: u32, debug: u32, xccs: u32) -> Result<u64, GeometryError> {
    let per_xcc = u128::from(save) + u128::from(debug);
    // KFD has 32 bits for it (`total_cwsr_size` in `kfd_queue_acquire_buffers`).
    let bytes: u32 = narrow("all XCCs", (per_xcc * u128::from(xccs)).next_multiple_of(PAGE))?;
    Ok(u64::from(bytes))
}

fn nonzero(property: &'static str, value: u32) -> Result<u32, GeometryError> {
    if value == 0 { Err(GeometryError::Zero { property }) } else { Ok(value) }
}

fn narrow<T: TryFrom<u128>>(part: &'static str, bytes: u128) -> Result<T, GeometryError> {
    T::try_from(bytes)
        .map_err(|_| GeometryError::TooLarge { part, bytes: u64::try_from(bytes).unwrap_or(u64::MAX) })
}

#[cfg(test)]
mod tests;
