// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where saved waves stand, and why, on any chip.

use super::layout::Places;
use super::record::{HARDWARE_WORDS, TTMPS};
use super::{SaveAreaError, walk, word_at};
use crate::target::Target;
use crate::words::double;

/// Words of the hardware registers.
const PC: usize = 1;
const EXCEPTIONS: usize = 6;
/// The program counter has 48 bits; what is above them is state of instruction replay and scheduling.
const PC_MASK: u64 = 0xffff_ffff_ffff;

/// Where a wave stood that a trap handler halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// GPU address of the instruction: of the `s_trap`, or of the one that the hardware reported.
    pub pc: u64,
    /// Id of the trap; 0 for another exception, 15 for any higher one.
    pub trap: u32,
}

impl Stopped {
    /// What the trap temporaries say of a wave whose program counter is `pc`, if a trap handler halted it in the way of
    /// ROCr's (`trap_handler.s`; `device-lib/src/trap.s`): `ttmp6` has bit 30 set and the trap's id in bits 28 to 25.
    #[must_use]
    pub fn of(target: &Target, pc: u64, ttmp: &[u32; TTMPS]) -> Option<Self> {
        const STOPPED: u32 = 1 << 30;
        let [marks, rest] = [ttmp[6], ttmp[11]];
        if marks & STOPPED == 0 {
            return None;
        }
        let pc = match target.parked_pc {
            Some(low) => double(*ttmp.get(low)?, rest >> 7 & 0xffff),
            None => pc & PC_MASK,
        };
        let trap = marks >> 25 & 15;
        // The handler steps over an s_trap.
        Some(Self { pc: if trap == 0 { pc } else { pc.wrapping_sub(4) }, trap })
    }
}

/// Where a saved wave stands, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Program counter, GPU address of the next instruction. A wave that a trap handler halted stands in the handler.
    pub pc: u64,
    /// Whether the hardware raised an exception for it: a memory violation or an illegal instruction.
    pub faulted: bool,
    /// Where it stood when a trap handler halted it.
    pub stopped: Option<Stopped>,
    /// Its work-group's place in the grid.
    pub workgroup: [u32; 3],
}

impl Standing {
    fn read(target: &Target, places: Places, record: &[u8]) -> Self {
        let hardware = |index: usize| word_at(record, 4 * (places.hardware + index));
        let ttmp = std::array::from_fn(|index| hardware(HARDWARE_WORDS + index));
        let pc = double(hardware(PC), hardware(PC + 1)) & PC_MASK;
        Self {
            pc,
            faulted: hardware(EXCEPTIONS) & target.save_layout.fault_bits() != 0,
            stopped: Stopped::of(target, pc, &ttmp),
            workgroup: target.save_layout.workgroup(&ttmp),
        }
    }
}

/// Reads from one XCC's area where the waves of a chip of this target stand.
///
/// # Errors
/// [`SaveAreaError`] if the header points outside the area, the control stack and the records do not agree, or a wave
/// has what is not known of this chip.
pub fn read_standings(target: &Target, area: &[u8]) -> Result<Vec<Standing>, SaveAreaError> {
    let mut waves = Vec::new();
    walk(area, target.save_layout, |_, _, _, places, record| {
        waves.push(Standing::read(target, places, record));
        Ok(())
    })?;
    Ok(waves)
}
