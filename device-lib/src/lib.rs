// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device code that every agent needs: the kernels that fill and copy memory, and the trap handler.
//!
//! The kernels are written in freestanding C beside this file, the handler (`trap.s`) in assembly; they are compiled for each
//! target when this crate is built, and embedded. INVARIANT: a kernel's parameters are the fields of its arguments struct
//! in order, with no hidden arguments, so that `to_bytes` is the whole kernarg block; `TILE_BYTES` and the workgroup equal
//! those in `device.h`.
//!
//! ```
//! let object = device_lib::object_for("gfx1100")?;
//! assert_eq!(object[..4], *b"\x7fELF");
//! // 1000 bytes of the 32-bit word 0xdeadbeef, from an address that is not aligned.
//! let fill = device_lib::fill(0x1003, 1000, &0xdead_beef_u32.to_le_bytes())?;
//! assert_eq!((fill.grid, fill.workgroup), ([256, 1, 1], [256, 1, 1]));
//! assert_eq!(fill.arguments.to_bytes().len(), device_lib::FillArguments::BYTES);
//! # Ok::<(), device_lib::DeviceLibError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use thiserror::Error;

include!(concat!(env!("OUT_DIR"), "/objects.rs"));
include!(concat!(env!("OUT_DIR"), "/trap_handlers.rs"));

/// The kernel that fills a range with a pattern; its arguments are [`FillArguments`].
pub const FILL: &str = "stasis_fill";
/// The kernel that copies a range; its arguments are [`CopyArguments`].
pub const COPY: &str = "stasis_copy";
/// Work-items of a workgroup of either kernel, in the first dimension.
pub const WORKGROUP: u16 = 256;
/// What a workgroup moves at once: four times 16 bytes a work-item.
pub const TILE_BYTES: u64 = 16 * 4 * WORKGROUP as u64;
/// Beyond this many workgroups each takes more tiles; far more than any GPU runs at once.
pub const MAX_GROUPS: u64 = 1 << 16;

/// Why there is no kernel or no launch.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceLibError {
    /// The kernels were not compiled for that target.
    #[error("No device kernels for {target}; {}", listed(embedded))]
    NoObject {
        /// What was asked for.
        target: String,
        /// What there is.
        embedded: Vec<&'static str>,
    },
    /// A pattern of another length.
    #[error("A fill pattern has 1, 2, 4, 8 or 16 bytes, not {bytes}")]
    PatternLength {
        /// Its length.
        bytes: usize,
    },
    /// A range that reaches beyond the last address.
    #[error("The {bytes} bytes at {address:#x} wrap around the address space")]
    Range {
        /// First byte.
        address: u64,
        /// Length.
        bytes: u64,
    },
    /// Source and destination share bytes.
    #[error("Copying {bytes} bytes from {source_address:#x} to {destination:#x} overlaps")]
    Overlap {
        /// First byte read.
        source_address: u64,
        /// First byte written.
        destination: u64,
        /// Length.
        bytes: u64,
    },
}

/// The targets that kernels are embedded for.
pub fn embedded() -> impl Iterator<Item = &'static str> {
    OBJECTS.iter().map(|(name, _)| *name)
}

/// The code object with the kernels for a target, `gfx1100` for example.
///
/// # Errors
/// [`DeviceLibError::NoObject`] with the list of what is embedded.
pub fn object_for(target: &str) -> Result<&'static [u8], DeviceLibError> {
    find(OBJECTS, target)
}

/// The trap handler of a target: its instructions, which can be at any multiple of 256 in memory that the GPU may execute
/// (`SET_TRAP_HANDLER`). It needs no memory of its own. What it does, and where a wave that it halted stood: `trap.s`.
///
/// # Errors
/// [`DeviceLibError::NoObject`] with the list of what is embedded.
pub fn trap_handler_for(target: &str) -> Result<&'static [u8], DeviceLibError> {
    find(MACHINE_CODE, target)
}

fn find(table: &'static [(&str, &'static [u8])], target: &str) -> Result<&'static [u8], DeviceLibError> {
    let found = table.iter().find(|(name, _)| *name == target).map(|(_, code)| *code);
    found
        .ok_or_else(|| DeviceLibError::NoObject { target: target.to_owned(), embedded: embedded().collect() })
}

fn listed(embedded: &[&str]) -> String {
    if embedded.is_empty() {
        "this build has none: it lacks the feature `kernels` of stasis-device-lib (`device-kernels` of stasis)".to_owned()
    } else {
        format!("embedded are {}", embedded.join(", "))
    }
}

/// A kernel's arguments with the grid to launch them with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch<A> {
    /// The kernarg block's contents.
    pub arguments: A,
    /// Work-items in each dimension.
    pub grid: [u32; 3],
    /// Work-items of a workgroup in each dimension.
    pub workgroup: [u16; 3],
}

/// Arguments of [`FILL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillArguments {
    /// First byte to fill, at any alignment.
    pub destination: u64,
    /// How many bytes to fill.
    pub bytes: u64,
    /// The pattern repeated to 16 bytes, the first at `destination`.
    pub pattern: [u8; 16],
    /// Number of workgroups launched.
    pub groups: u64,
}

impl FillArguments {
    /// Length of the kernarg block.
    pub const BYTES: usize = 40;

    /// The kernarg block; it must be aligned to 8 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut block = [0; Self::BYTES];
        block[..8].copy_from_slice(&self.destination.to_le_bytes());
        block[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        block[16..32].copy_from_slice(&self.pattern);
        block[32..].copy_from_slice(&self.groups.to_le_bytes());
        block
    }
}

/// Arguments of [`COPY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyArguments {
    /// First byte to write, at any alignment.
    pub destination: u64,
    /// First byte to read, at any alignment; fastest where both are aligned alike modulo 16.
    pub source: u64,
    /// How many bytes to copy.
    pub bytes: u64,
    /// Number of workgroups launched.
    pub groups: u64,
}

impl CopyArguments {
    /// Length of the kernarg block.
    pub const BYTES: usize = 32;

    /// The kernarg block; it must be aligned to 8 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut block = [0; Self::BYTES];
        block[..8].copy_from_slice(&self.destination.to_le_bytes());
        block[8..16].copy_from_slice(&self.source.to_le_bytes());
        block[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        block[24..].copy_from_slice(&self.groups.to_le_bytes());
        block
    }
}

/// How to fill `bytes` bytes at `destination` with a pattern of 1, 2, 4, 8 or 16 bytes.
///
/// The pattern starts at `destination`; its last repetition may be cut. No bytes at all are a launch that does
/// nothing.
///
/// # Errors
/// [`DeviceLibError::PatternLength`], [`DeviceLibError::Range`].
pub fn fill(destination: u64, bytes: u64, pattern: &[u8]) -> Result<Launch<FillArguments>, DeviceLibError> {
    if !matches!(pattern.len(), 1 | 2 | 4 | 8 | 16) {
        return Err(DeviceLibError::PatternLength { bytes: pattern.len() });
    }
    check_range(destination, bytes)?;
    let mut repeated = [0; 16];
    for (byte, value) in repeated.iter_mut().zip(pattern.iter().cycle()) {
        *byte = *value;
    }
    let groups = groups(bytes);
    Ok(launch(FillArguments { destination, bytes, pattern: repeated, groups }, groups))
}

/// How to copy `bytes` bytes from `source` to `destination`, which must not overlap.
///
/// # Errors
/// [`DeviceLibError::Range`], [`DeviceLibError::Overlap`].
pub fn copy(destination: u64, source: u64, bytes: u64) -> Result<Launch<CopyArguments>, DeviceLibError> {
    check_range(destination, bytes)?;
    check_range(source, bytes)?;
    if destination.abs_diff(source) < bytes {
        return Err(DeviceLibError::Overlap { source_address: source, destination, bytes });
    }
    let groups = groups(bytes);
    Ok(launch(CopyArguments { destination, source, bytes, groups }, groups))
}

fn check_range(address: u64, bytes: u64) -> Result<(), DeviceLibError> {
    match address.checked_add(bytes) {
        Some(_) => Ok(()),
        None => Err(DeviceLibError::Range { address, bytes }),
    }
}

fn groups(bytes: u64) -> u64 {
    bytes.div_ceil(TILE_BYTES).clamp(1, MAX_GROUPS)
}

fn launch<A>(arguments: A, groups: u64) -> Launch<A> {
    // At most MAX_GROUPS times 256.
    let work_items = u32::try_from(groups).unwrap_or(u32::MAX).saturating_mul(u32::from(WORKGROUP));
    Launch { arguments, grid: [work_items, 1, 1], workgroup: [WORKGROUP, 1, 1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_repeats_the_pattern_to_sixteen_bytes() {
        let launch = fill(0x1000, 64, &[1, 2, 3, 4]).unwrap();
        assert_eq!(launch.arguments.pattern, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]);
        for length in [0, 3, 5, 12, 17, 32] {
            let error = fill(0, 64, &vec![0; length]).unwrap_err();
            assert_eq!(error, DeviceLibError::PatternLength { bytes: length });
        }
    }

    #[test]
    fn groups_cover_every_byte_and_never_overflow_the_grid() {
        assert_eq!(groups(0), 1);
        assert_eq!(groups(1), 1);
        assert_eq!(groups(TILE_BYTES), 1);
        assert_eq!(groups(TILE_BYTES + 1), 2);
        let launch = copy(0, 1 << 62, 1 << 62).unwrap();
        assert_eq!(u64::from(launch.grid[0]), MAX_GROUPS * u64::from(WORKGROUP));
        assert_eq!(launch.arguments.groups, MAX_GROUPS);
    }

    #[test]
    fn copy_overlapping_or_wrapping_ranges_are_refused() {
        assert!(copy(0x1000, 0x1100, 0x100).is_ok());
        assert!(copy(0x1100, 0x1000, 0x100).is_ok());
        assert!(matches!(copy(0x1000, 0x10ff, 0x100), Err(DeviceLibError::Overlap { .. })));
        assert!(matches!(copy(0x10ff, 0x1000, 0x100), Err(DeviceLibError::Overlap { .. })));
        assert!(matches!(copy(u64::MAX - 7, 0, 16), Err(DeviceLibError::Range { .. })));
        assert!(matches!(fill(u64::MAX, 2, &[0]), Err(DeviceLibError::Range { .. })));
    }

    #[test]
    fn object_for_unknown_target_lists_what_is_embedded() {
        let text = object_for("gfx803").unwrap_err().to_string();
        assert!(text.contains("gfx803") && text.contains("gfx1100"), "{text}");
    }
}
