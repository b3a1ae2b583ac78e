// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is inside one XCC's part of a queue's context save area: whole waves in the layout of gfx10 and gfx11, and where
//! waves stand in that of any chip.
//!
//! ```text
//! 0        40            control_stack_offset   ctl_stack_size            wave_state_offset   cwsr_size
//! | header |    unused   | words, ascending ->  | <- records, descending  |      unused       |
//! ```
//!
//! INVARIANT: the control stack's words say how long every record is, and the records fill `[ctl_stack_size,
//! wave_state_offset)` without a gap. A reader that comes out anywhere else has found a corrupted stack; this
//! one says where, and never reads outside the area nor allocates more than the area's size.
//!
//! Sources: `kfd_ioctl.h` (header), ROCdbgapi `architecture.cpp` (stack words), `cwsr_trap_handler_gfx10.asm`
//! (records); for other chips those of [`Layout`].

mod control_stack;
mod error;
mod header;
mod layout;
mod record;
mod standing;
#[cfg(test)]
mod standing_tests;
#[cfg(test)]
mod tests;

pub use error::SaveAreaError;
pub use header::{SaveAreaHeader, WaveState};
pub use layout::Layout;
pub use record::{WaveRecord, status};
pub use standing::{Standing, Stopped, read_standings};

pub use crate::cwsr::HEADER_BYTES;

use std::borrow::Borrow;

use control_stack::{State, WaveWord, Word, Words};
use layout::Places;
use record::RecordShape;

/// Bytes in front of the control stack's first word that hold a PM4 header.
const PM4_HEADER_BYTES: usize = 8;
/// A PM4 type-2 packet, which is one word of filler.
const PM4_FILLER: u32 = 0x8000_0000;

/// Writes waves into one XCC's area as hardware preemption would, and the wave state into its header.
///
/// The first wave gets the highest record, as the control stack is read upwards and the records downwards.
/// The rest of the header is not changed. Nothing is written unless everything fits.
///
/// # Errors
/// [`SaveAreaError`] if a wave has no such shape in this layout, or the waves do not fit the area.
pub fn write_waves(
    area: &mut [u8],
    ctl_stack_bytes: u32,
    save_bytes: u32,
    waves: &[WaveRecord],
) -> Result<WaveState, SaveAreaError> {
    let length = area.len();
    let put = |offset: usize, bytes: &[u8]| -> Result<(), SaveAreaError> {
        area[offset..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let state = put_in(length, ctl_stack_bytes, save_bytes, waves, put)?;
    area[..WaveState::BYTES].copy_from_slice(&state.to_bytes());
    Ok(state)
}

/// As [`write_waves`], by `put`, which is called for the control stack and for each record with the offset of the bytes in the area:
/// for an area that is no slice. The header is not written.
///
/// # Errors
/// As [`write_waves`], and those of `put`.
pub fn put_waves<E: From<SaveAreaError>>(
    ctl_stack_bytes: u32,
    save_bytes: u32,
    waves: &[impl Borrow<WaveRecord>],
    put: impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<WaveState, E> {
    put_in(to_usize(save_bytes), ctl_stack_bytes, save_bytes, waves, put)
}

/// Writes the control stack of a queue that has work and no wave: of a dispatch whose next work-groups have not begun. As on
/// hardware the stack is not empty then, which says that the queue is not done.
///
/// # Errors
/// As [`put_waves`].
pub fn put_unfinished<E: From<SaveAreaError>>(
    ctl_stack_bytes: u32,
    save_bytes: u32,
    put: impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<WaveState, E> {
    let plan = Plan { words: vec![PM4_FILLER, PM4_FILLER, control_stack::EVENT], shapes: Vec::new() };
    let none: &[WaveRecord] = &[];
    plan.put(to_usize(save_bytes), ctl_stack_bytes, save_bytes, none, put)
}

/// As [`put_waves`], into an area of so many bytes.
fn put_in<E: From<SaveAreaError>>(
    area: usize,
    ctl_stack_bytes: u32,
    save_bytes: u32,
    waves: &[impl Borrow<WaveRecord>],
    put: impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<WaveState, E> {
    Plan::new(waves)?.put(area, ctl_stack_bytes, save_bytes, waves, put)
}

/// Reads the waves back from one XCC's area, in the order they were written.
///
/// # Errors
/// [`SaveAreaError`] if the header points outside the area, or the control stack and the records do not
/// agree.
pub fn read_waves(area: &[u8]) -> Result<Vec<WaveRecord>, SaveAreaError> {
    let mut waves = Vec::new();
    walk(area, Layout::Gfx10, |state, offset, wave, _, record| {
        let shape = RecordShape::new(&State::decode(state, offset)?, WaveWord::decode(wave));
        waves.push(WaveRecord::read(&shape, record));
        Ok(())
    })?;
    Ok(waves)
}

/// Visits every wave of one XCC's area: its state word, where that is in the stack, its own word, what its record has
/// where, and the record.
fn walk<'a>(
    area: &'a [u8],
    layout: Layout,
    mut visit: impl FnMut(u32, usize, u32, Places, &'a [u8]) -> Result<(), SaveAreaError>,
) -> Result<(), SaveAreaError> {
    let header = SaveAreaHeader::read(area)?;
    let (stack, records) = header.wave_state.slices(area)?;
    if stack.is_empty() && records.is_empty() {
        return Ok(());
    }
    let mut state = None;
    let mut end = records.len();
    let mut words = Words::new(stack, layout)?;
    while let Some((offset, word)) = words.next()? {
        match word {
            Word::Event => {}
            Word::State(word) => state = Some((word, offset)),
            Word::Wave(wave) => {
                let (state, state_offset) = state.ok_or(SaveAreaError::WaveWithoutState { offset })?;
                let places = layout.places(state, state_offset, wave)?;
                let wanted = places.bytes;
                let begin = end.checked_sub(wanted).ok_or(SaveAreaError::RecordsExhausted {
                    offset,
                    wanted,
                    left: end,
                })?;
                visit(state, state_offset, wave, places, &records[begin..end])?;
                end = begin;
            }
        }
    }
    if end != 0 {
        return Err(SaveAreaError::RecordsLeft { left: end });
    }
    Ok(())
}

/// What [`write_waves`] is about to write.
struct Plan {
    words: Vec<u32>,
    shapes: Vec<RecordShape>,
}

impl Plan {
    fn new(waves: &[impl Borrow<WaveRecord>]) -> Result<Self, SaveAreaError> {
        let mut plan = Self { words: Vec::new(), shapes: Vec::with_capacity(waves.len()) };
        if !waves.is_empty() {
            plan.words.extend([PM4_FILLER; PM4_HEADER_BYTES / 4]);
        }
        let mut current = None;
        let mut lds_blocks = 0;
        for (index, wave) in waves.iter().map(Borrow::borrow).enumerate() {
            let shape = wave.shape(index)?;
            if wave.first_in_group {
                lds_blocks = shape.lds_blocks;
            }
            // Waves of one work-group share a state, so a later wave's names the LDS that the first one's
            // record holds.
            let state = State {
                vgpr_blocks: shape.vgpr_blocks,
                lds_blocks,
                wave32: shape.wave32,
                shared_vgpr_blocks: 0,
            };
            if current != Some(state) {
                plan.words.extend(state.encode());
                current = Some(state);
            }
            plan.words.push(wave.control_word().encode());
            plan.shapes.push(shape);
        }
        Ok(plan)
    }

    /// Writes it, with the waves that it was made of.
    fn put<E: From<SaveAreaError>>(
        &self,
        area: usize,
        ctl_stack_bytes: u32,
        save_bytes: u32,
        waves: &[impl Borrow<WaveRecord>],
        mut put: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<WaveState, E> {
        let state = self.place(area, ctl_stack_bytes, save_bytes)?;
        let stack: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        put(to_usize(state.control_stack_offset), &stack)?;
        let mut end = to_usize(state.wave_state_offset);
        let mut record = Vec::new();
        for (wave, shape) in waves.iter().zip(&self.shapes) {
            record.resize(shape.bytes(), 0);
            wave.borrow().write(shape, &mut record);
            end -= record.len();
            put(end, &record)?;
        }
        Ok(state)
    }

    fn place(&self, area: usize, ctl_stack_bytes: u32, save_bytes: u32) -> Result<WaveState, SaveAreaError> {
        let (stack, save) = (to_usize(ctl_stack_bytes), to_usize(save_bytes));
        if stack < HEADER_BYTES || !stack.is_multiple_of(4) || save < stack || area < save {
            return Err(SaveAreaError::Area { area, control_stack: ctl_stack_bytes, save: save_bytes });
        }
        let fits = |wanted: usize, available: usize| {
            u32::try_from(wanted).ok().filter(|&wanted| to_usize(wanted) <= available)
        };
        let (wanted, available) = (self.words.len() * 4, stack - HEADER_BYTES);
        let stack_used =
            fits(wanted, available).ok_or(SaveAreaError::ControlStackFull { wanted, available })?;
        let (wanted, available) = (self.shapes.iter().map(RecordShape::bytes).sum(), save - stack);
        let waves_used = fits(wanted, available).ok_or(SaveAreaError::WaveAreaFull { wanted, available })?;
        Ok(WaveState {
            control_stack_offset: ctl_stack_bytes - stack_used,
            control_stack_size: stack_used,
            wave_state_offset: ctl_stack_bytes + waves_used,
            wave_state_size: waves_used,
        })
    }
}

/// A 32-bit offset as an index; `usize` has at least 32 bits wherever this crate builds.
pub(crate) const fn to_usize(value: u32) -> usize {
    const { assert!(size_of::<usize>() >= size_of::<u32>()) };
    // CAST: widening, asserted above.
    value as usize
}

/// The little-endian word at a byte offset; the caller has checked that it is there.
pub(crate) fn word_at(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}
