// SPDX-License-Identifier: MIT OR Apache-2.0
//! s_getreg, s_setreg and the MODE shortcuts (RDNA3 ISA, "Hardware Registers").

use std::time::Instant;

use super::scalar_table;
use crate::mem::flat::{PRIVATE_BASE, SHARED_BASE};
use crate::step::Step;
use crate::valu::shapes::scalar;
use crate::wave::{Wave, status};

scalar_table! {
    /// Hardware register handlers.
    table:
    S_GETREG_B32 = getreg;
    S_SETREG_B32 = setreg;
    S_SETREG_IMM32_B32 = setreg;
    S_ROUND_MODE = round_mode;
    S_DENORM_MODE = denorm_mode;
}

/// Register id, bit offset and mask of the field that simm16 names.
fn field(imm: i32) -> (u32, u32, u32) {
    let x = imm as u32;
    let size = (x >> 11 & 31) + 1;
    let mask = if size == 32 { u32::MAX } else { (1 << size) - 1 };
    (x & 63, x >> 6 & 31, mask)
}

fn cycles() -> u32 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed().as_nanos();
    // SHADER_CYCLES has 20 bits of the shader clock; the clock here is 2 GHz, an arbitrary choice.
    (elapsed as u64).wrapping_mul(2) as u32 & 0xF_FFFF
}

fn read(w: &Wave, id: u32) -> u32 {
    match id {
        1 => w.mode,
        2 => w.status_word(),
        3 => w.trapsts,
        5 => (w.vgprs() as u32 / 8).saturating_sub(1) << 12,
        6 => w.lds_bytes.div_ceil(512) << 12,
        15 => PRIVATE_BASE >> 16 | SHARED_BASE,
        20 => w.flat_scratch as u32,
        21 => (w.flat_scratch >> 32) as u32,
        23 => w.wave_in_group & 0x1F,
        28 => u32::from(w.halves == 2) << 11,
        29 => cycles(),
        _ => 0,
    }
}

fn getreg(w: &mut Wave, s: &Step) {
    let (id, offset, mask) = field(s.imm);
    w.s[s.dst as usize] = read(w, id) >> offset & mask;
}

fn setreg(w: &mut Wave, s: &Step) {
    let (id, offset, mask) = field(s.imm);
    let bits = mask << offset;
    let merge = |old: u32, value: u32| old & !bits | value << offset & bits;
    let value = scalar(w, &s.src[0]);
    match id {
        1 => w.mode = merge(w.mode, value),
        // Only a trap handler may write it, and not that it is one.
        2 if w.in_handler => {
            let word = merge(w.status_word(), value);
            w.set_scc(word & 1 != 0);
            w.status = word & !status::PRIV | w.status & status::PRIV;
        }
        3 => w.trapsts = merge(w.trapsts, value),
        20 => w.flat_scratch = w.flat_scratch & !0xFFFF_FFFF | u64::from(merge(w.flat_scratch as u32, value)),
        21 => {
            let hi = merge((w.flat_scratch >> 32) as u32, value);
            w.flat_scratch = w.flat_scratch & 0xFFFF_FFFF | u64::from(hi) << 32;
        }
        _ => {}
    }
}

fn round_mode(w: &mut Wave, s: &Step) {
    w.mode = w.mode & !0xF | s.imm as u32 & 0xF;
}

fn denorm_mode(w: &mut Wave, s: &Step) {
    w.mode = w.mode & !0xF0 | (s.imm as u32 & 0xF) << 4;
}
