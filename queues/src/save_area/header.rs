// SPDX-License-Identifier: MIT OR Apache-2.0
//! The 40-byte header (`struct kfd_context_save_area_header`, `kfd_ioctl.h` 1.7).
//!
//! INVARIANT: the process writes the part from `debug_offset` on before it creates the queue; the kernel
//! writes the first 16 bytes when it saves a queue's waves, and reads the rest to report an exception.

use super::{SaveAreaError, to_usize, word_at};
use crate::cwsr::{CwsrGeometry, HEADER_BYTES};
use crate::words::{double, words};

/// Where the saved waves are. Offsets are from the start of the XCC's area, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WaveState {
    /// First used word of the control stack.
    pub control_stack_offset: u32,
    /// Bytes of it in use; it ends at `ctl_stack_size`.
    pub control_stack_size: u32,
    /// End of the wave records.
    pub wave_state_offset: u32,
    /// Bytes of them in use; they begin at `ctl_stack_size`.
    pub wave_state_size: u32,
}

impl WaveState {
    /// Bytes that it takes at the header's start.
    pub const BYTES: usize = 16;

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        pack([
            self.control_stack_offset,
            self.control_stack_size,
            self.wave_state_offset,
            self.wave_state_size,
        ])
    }

    /// The used control stack and the records, after checking that the area holds both.
    pub(super) fn slices<'a>(&self, area: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), SaveAreaError> {
        let bytes = area.len();
        // Before the first save the kernel's part is all zeros.
        if *self == Self::default() {
            return Ok((&[], &[]));
        }
        let (offset, size) = (self.control_stack_offset, self.control_stack_size);
        let begin = to_usize(offset);
        let stack_end = u64::from(offset) + u64::from(size);
        let stack = usize::try_from(stack_end)
            .ok()
            .filter(|_| begin >= HEADER_BYTES)
            .and_then(|end| area.get(begin..end))
            .ok_or(SaveAreaError::ControlStack { offset, size, area: bytes })?;

        let (offset, size) = (self.wave_state_offset, self.wave_state_size);
        let records = offset
            .checked_sub(size)
            .filter(|&records_begin| u64::from(records_begin) == stack_end)
            .and_then(|records_begin| area.get(to_usize(records_begin)..to_usize(offset)))
            .ok_or(SaveAreaError::WaveArea { offset, size, stack_end, area: bytes })?;
        Ok((stack, records))
    }
}

/// The header of one XCC's area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SaveAreaHeader {
    /// The kernel's part.
    pub wave_state: WaveState,
    /// Where the debug memory begins, bytes from this header.
    pub debug_offset: u32,
    /// Bytes of debug memory.
    pub debug_size: u32,
    /// GPU address of the 64-bit word that exception masks are ORed into, 0 for none.
    pub err_payload_addr: u64,
    /// KFD's event to signal then, 0 for none.
    pub err_event_id: u32,
    /// Zero.
    pub reserved1: u32,
}

impl SaveAreaHeader {
    /// What the process writes into XCC `xcc`'s header before it creates the queue, or `None` if there is no
    /// such XCC or its offset does not fit the field.
    #[must_use]
    pub fn initial(
        geometry: &CwsrGeometry,
        xcc: u32,
        err_payload_addr: u64,
        err_event_id: u32,
    ) -> Option<Self> {
        // The debug memory of all XCCs lies behind the last area, and each header counts from itself.
        let areas_from_here = geometry.num_xcc.checked_sub(xcc).filter(|&areas| areas > 0)?;
        Some(Self {
            debug_offset: areas_from_here.checked_mul(geometry.save_bytes)?,
            debug_size: geometry.debug_bytes.checked_mul(geometry.num_xcc)?,
            err_payload_addr,
            err_event_id,
            ..Self::default()
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let [payload_lo, payload_hi] = words(self.err_payload_addr);
        bytes[..WaveState::BYTES].copy_from_slice(&self.wave_state.to_bytes());
        bytes[WaveState::BYTES..].copy_from_slice(&pack::<6, 24>([
            self.debug_offset,
            self.debug_size,
            payload_lo,
            payload_hi,
            self.err_event_id,
            self.reserved1,
        ]));
        bytes
    }

    /// Reads a header. Any 40 bytes are one; whether it points anywhere is for the reader of the waves.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |offset| word_at(bytes, offset);
        Self {
            wave_state: WaveState {
                control_stack_offset: word(0),
                control_stack_size: word(4),
                wave_state_offset: word(8),
                wave_state_size: word(12),
            },
            debug_offset: word(16),
            debug_size: word(20),
            err_payload_addr: double(word(24), word(28)),
            err_event_id: word(32),
            reserved1: word(36),
        }
    }

    /// Reads the header at an area's start.
    ///
    /// # Errors
    /// [`SaveAreaError::NoHeader`] if the area is too short.
    pub fn read(area: &[u8]) -> Result<Self, SaveAreaError> {
        let (bytes, _) = area.split_first_chunk().ok_or(SaveAreaError::NoHeader { area: area.len() })?;
        Ok(Self::from_bytes(bytes))
    }

    /// Writes the header at an area's start.
    ///
    /// # Errors
    /// [`SaveAreaError::NoHeader`] if the area is too short.
    pub fn write(&self, area: &mut [u8]) -> Result<(), SaveAreaError> {
        let length = area.len();
        let (bytes, _) = area.split_first_chunk_mut().ok_or(SaveAreaError::NoHeader { area: length })?;
        *bytes = self.to_bytes();
        Ok(())
    }
}

/// Words as little-endian bytes.
fn pack<const WORDS: usize, const BYTES: usize>(words: [u32; WORDS]) -> [u8; BYTES] {
    const { assert!(BYTES == 4 * WORDS) };
    let mut bytes = [0; BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
