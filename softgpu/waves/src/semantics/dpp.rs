// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lane selection of source 0 in rows of 16 lanes.

use softgpu_isa::{Fmt, OpInfo};

use super::encode::{VGPR0, Vector};
use super::lab::Lab;
use crate::wave::Wave;

/// The fields of a DPP16 dword.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dpp {
    pub control: u32,
    pub bound: bool,
    pub fetch: bool,
    /// Rows in the upper, banks in the lower four bits.
    pub masks: u32,
}

impl Dpp {
    pub(crate) fn random(lab: &mut Lab) -> Dpp {
        let control = match lab.r.below(4) {
            0 => lab.r.next() & 0xFF,
            1 => 0x140 + (lab.r.next() & 1),
            2 => 0x150 + lab.r.below(0x20) as u32,
            _ => 0x101 + 0x10 * lab.r.below(3) as u32 + lab.r.below(15) as u32,
        };
        let masks = if lab.r.one_in(2) { 0xFF } else { lab.r.next() & 0xFF };
        Dpp { control, bound: lab.r.one_in(2), fetch: lab.r.one_in(2), masks }
    }

    /// The lane that the pattern names for `lane`, active or not; `None` outside the row.
    fn named(self, lane: usize) -> Option<usize> {
        let (row, i, n) = (lane / 16 * 16, (lane % 16) as i32, (self.control & 15) as i32);
        let from = match self.control >> 4 {
            0..=0xF => i / 4 * 4 + (self.control >> (2 * (i % 4)) & 3) as i32,
            0x10 => i + n,
            0x11 => i - n,
            0x12 => (i + 16 - n) % 16,
            0x14 if n == 0 => 15 - i,
            0x14 => i / 8 * 8 + 7 - i % 8,
            0x15 => n,
            _ => i ^ n,
        };
        (0..16).contains(&from).then(|| row + from as usize)
    }

    /// The lane that `lane` reads; `None` reads 0.
    pub(crate) fn source(self, w: &Wave, lane: usize) -> Option<usize> {
        self.named(lane).filter(|&from| w.exec() >> from & 1 != 0 || self.fetch)
    }

    /// Whether `lane` executes.
    pub(crate) fn enables(self, w: &Wave, lane: usize) -> bool {
        let masked_in = self.masks >> (4 + lane / 16) & 1 != 0 && self.masks >> (lane / 4 % 4) & 1 != 0;
        masked_in && (self.bound || self.source(w, lane).is_some())
    }

    /// The second dword for the source register `register`.
    pub(crate) fn word(self, register: u32) -> u32 {
        register
            | self.control << 8
            | u32::from(self.fetch) << 18
            | u32::from(self.bound) << 19
            | self.masks << 24
    }

    /// The instruction `fields`, whose source 0 is a register, with this selection.
    pub(crate) fn encode(self, fields: Vector, row: &OpInfo, fmt: Fmt) -> Vec<u32> {
        let register = fields.src[0] - VGPR0;
        let mut marked = fields;
        marked.src[0] = 250;
        let mut words = marked.encode(row, fmt);
        words.push(self.word(register));
        words
    }
}
