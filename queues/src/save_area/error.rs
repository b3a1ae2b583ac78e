// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why waves cannot be written into, or read from, a save area.

use thiserror::Error;

/// A save area, or a wave, that does not fit the layout. Offsets are from the start of the part they name.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaveAreaError {
    /// The area is shorter than the sizes given for it, or the sizes contradict each other.
    #[error(
        "Save area has {area} B, wanted a control stack of {control_stack} B (at least 40, a multiple of 4) within \
         {save} B within the area"
    )]
    Area {
        /// Bytes of the area.
        area: usize,
        /// `ctl_stack_size`.
        control_stack: u32,
        /// `cwsr_size`.
        save: u32,
    },
    /// There is not even a header.
    #[error("Save area has {area} B, a header alone takes 40 B")]
    NoHeader {
        /// Bytes of the area.
        area: usize,
    },
    /// The header's control stack is not inside the area.
    #[error(
        "Control stack of {size} B at {offset} does not lie between the header (40 B) and the area's end ({area} B)"
    )]
    ControlStack {
        /// `control_stack_offset`.
        offset: u32,
        /// `control_stack_size`.
        size: u32,
        /// Bytes of the area.
        area: usize,
    },
    /// The header's waves are not right behind the control stack, or not inside the area.
    #[error(
        "Wave state of {size} B ending at {offset} does not begin at the control stack's end ({stack_end}) or exceeds \
         the area ({area} B)"
    )]
    WaveArea {
        /// `wave_state_offset`, where the waves end.
        offset: u32,
        /// `wave_state_size`.
        size: u32,
        /// Where they must begin.
        stack_end: u64,
        /// Bytes of the area.
        area: usize,
    },
    /// The control stack ends in the middle of something.
    #[error("Control stack of {size} B ends within an entry at {offset}")]
    StackTruncated {
        /// Where the entry begins.
        offset: usize,
        /// Bytes of the stack in use.
        size: usize,
    },
    /// A wave comes before any state.
    #[error("Wave word at {offset} of the control stack has no state word before it")]
    WaveWithoutState {
        /// Where the word is.
        offset: usize,
    },
    /// A state asks for shared VGPRs, which this layout's records have no place for.
    #[error("Control stack state at {offset} has {blocks} blocks of shared VGPRs, which are not supported")]
    SharedVgprs {
        /// Where the word is.
        offset: usize,
        /// Blocks of 8 registers.
        blocks: u32,
    },
    /// A state has LDS in a unit that is not known.
    #[error(
        "Control stack state at {offset} has {blocks} blocks of LDS, whose size is not known for this chip"
    )]
    LdsUnit {
        /// Where the word is.
        offset: usize,
        /// Blocks.
        blocks: u32,
    },
    /// The stack names more waves than there are records.
    #[error("Wave word at {offset} of the control stack needs a record of {wanted} B, {left} B are left")]
    RecordsExhausted {
        /// Where the word is.
        offset: usize,
        /// Bytes of its record.
        wanted: usize,
        /// Bytes not yet taken.
        left: usize,
    },
    /// There are more records than the stack names waves.
    #[error("Control stack ends with {left} B of wave state that no wave owns")]
    RecordsLeft {
        /// Bytes not taken.
        left: usize,
    },
    /// A wave has neither 32 nor 64 lanes.
    #[error("Wave {wave} has {lanes} lanes, wanted 32 or 64")]
    Lanes {
        /// Its place in the list.
        wave: usize,
        /// What it says.
        lanes: u32,
    },
    /// A wave's registers are not a whole number of blocks.
    #[error(
        "Wave {wave} of {lanes} lanes has {words} VGPR words, wanted 1 to 64 blocks of {block} registers times the lanes"
    )]
    Vgprs {
        /// Its place in the list.
        wave: usize,
        /// Its lanes.
        lanes: u32,
        /// Words it brings.
        words: usize,
        /// Registers per block.
        block: u32,
    },
    /// A work-group's LDS is not a whole number of blocks.
    #[error("Wave {wave} has {words} words of LDS, wanted 1 to 255 blocks of 128 words (512 B)")]
    Lds {
        /// Its place in the list.
        wave: usize,
        /// Words it brings.
        words: usize,
    },
    /// LDS travels with the first wave of its work-group only.
    #[error("Wave {wave} brings LDS but is not the first of its work-group")]
    LdsNotFirst {
        /// Its place in the list.
        wave: usize,
    },
    /// The words do not fit the control stack.
    #[error("Waves need {wanted} B of control stack, {available} B are there")]
    ControlStackFull {
        /// Bytes needed.
        wanted: usize,
        /// Bytes behind the header.
        available: usize,
    },
    /// The records do not fit the wave area.
    #[error("Waves need {wanted} B of records, {available} B are there")]
    WaveAreaFull {
        /// Bytes needed.
        wanted: usize,
        /// Bytes behind the control stack.
        available: usize,
    },
}
