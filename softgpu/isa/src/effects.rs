// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which registers an instruction reads and writes.
//!
//! INVARIANT: the sets never miss a register; they may name more. A predicated or half-register write also counts as a
//! read of the old value. Indexed moves (`Flags::READS_M0` on vector operations) name only the registers in the word.

use crate::info::{Class, Flags, Slot};
use crate::inst::{Enc, Inst, Operand, WaveSize};
use crate::table::{Op, info};

/// A set of architectural registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RegSet {
    /// Scalar file by operand code: bits 0..=105 SGPRs, 106/107 VCC, 108..=123 TTMPs, 125 M0, 126/127 EXEC.
    pub scalar: u128,
    /// v0..v255, 64 per word.
    pub vector: [u64; 4],
    /// SCC.
    pub scc: bool,
    /// MODE.
    pub mode: bool,
}

impl RegSet {
    fn add_scalar(&mut self, first: u32, count: u32) {
        for code in first..(first + count).min(128) {
            self.scalar |= 1 << code;
        }
    }

    fn add_vector(&mut self, first: u8, count: u8) {
        for index in (u32::from(first)..u32::from(first) + u32::from(count)).take_while(|&i| i < 256) {
            self.vector[index as usize / 64] |= 1 << (index % 64);
        }
    }

    fn add(&mut self, operand: Operand, dwords: u8) {
        let count = u32::from(dwords);
        match operand {
            Operand::Vgpr(first) => self.add_vector(first, dwords),
            Operand::Sgpr(first) => self.add_scalar(u32::from(first), count),
            Operand::Ttmp(first) => self.add_scalar(108 + u32::from(first), count),
            Operand::Vcc => self.add_scalar(106, count.min(2)),
            Operand::VccHi => self.add_scalar(107, 1),
            Operand::Vccz => self.add_scalar(106, 2),
            Operand::M0 | Operand::LdsDirect => self.add_scalar(125, 1),
            Operand::ExecLo => self.add_scalar(126, count.min(2)),
            Operand::ExecHi => self.add_scalar(127, 1),
            Operand::Execz => self.add_scalar(126, 2),
            Operand::Scc => self.scc = true,
            _ => {}
        }
    }

    /// Whether v`index` is in the set.
    pub fn has_vgpr(&self, index: u8) -> bool {
        self.vector[usize::from(index) / 64] >> (index % 64) & 1 != 0
    }

    /// Whether the sets share a register.
    pub fn intersects(&self, other: &RegSet) -> bool {
        self.scalar & other.scalar != 0
            || self.vector.iter().zip(&other.vector).any(|(a, b)| a & b != 0)
            || self.scc && other.scc
            || self.mode && other.mode
    }
}

/// What an instruction reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Registers whose old value matters.
    pub reads: RegSet,
    /// Registers that may change.
    pub writes: RegSet,
}

impl Inst {
    /// The registers this instruction reads and writes in a wave of `wave` lanes.
    pub fn effects(&self, wave: WaveSize) -> Effects {
        let mut effects = Effects::default();
        let mut src = self.src;
        if self.has_narrow_address() {
            effects.reads.add(std::mem::take(&mut src[0]), 1);
        }
        half(&mut effects, self.op, self.dst, self.sdst, &src, wave);
        if let Some(second) = &self.second {
            half(&mut effects, second.op, second.dst, Operand::None, &second.src, wave);
        }
        let row = info(self.op);
        let destination = row.dst.first().map(|slot| width(slot, wave)).unwrap_or(0);
        if let (true, Operand::Vgpr(first)) = (self.tfe, self.dst) {
            effects.writes.add_vector(first, destination + 1);
        }
        let is_scalar =
            matches!(self.enc, Enc::Sop1 | Enc::Sop2 | Enc::Sopk | Enc::Sopc | Enc::Sopp | Enc::Smem);
        let masked = !is_scalar && !row.any(Flags::IGNORES_EXEC);
        if masked || row.any(Flags::READS_EXEC) {
            effects.reads.add(Operand::ExecLo, mask_dwords(wave));
        }
        // Inactive lanes, and the half that is not selected, keep the old value.
        if masked && let Operand::Vgpr(_) = self.dst {
            effects.reads.add(self.dst, destination);
        }
        if let (true, Some(second)) = (masked, &self.second) {
            effects.reads.add(second.dst, 1);
        }
        effects
    }

    /// Whether the vector address is one register although the row allows for two: an offset beside a scalar base, or
    /// a buffer's offset or index alone.
    fn has_narrow_address(&self) -> bool {
        match self.enc {
            Enc::Global => self.src[2] != Operand::None,
            Enc::Mubuf | Enc::Mtbuf => self.offen != self.idxen,
            _ => false,
        }
    }
}

fn mask_dwords(wave: WaveSize) -> u8 {
    match wave {
        WaveSize::W32 => 1,
        WaveSize::W64 => 2,
    }
}

fn width(slot: &Slot, wave: WaveSize) -> u8 {
    slot.ty.dwords_in(wave)
}

fn half(effects: &mut Effects, op: Op, dst: Operand, sdst: Operand, src: &[Operand], wave: WaveSize) {
    let row = info(op);
    for (slot, &operand) in row.src.iter().zip(src).filter(|(slot, _)| slot.class != Class::NONE) {
        effects.reads.add(operand, width(slot, wave));
    }
    for (slot, operand) in row.dst.iter().zip([dst, sdst]) {
        effects.writes.add(operand, width(slot, wave));
        if row.any(Flags::READS_DST) {
            effects.reads.add(operand, width(slot, wave));
        }
    }
    let lanes = mask_dwords(wave);
    effects.reads.scc |= row.any(Flags::READS_SCC);
    effects.writes.scc |= row.any(Flags::WRITES_SCC);
    effects.reads.mode |= row.any(Flags::READS_MODE);
    effects.writes.mode |= row.any(Flags::WRITES_MODE);
    if row.any(Flags::READS_VCC) {
        effects.reads.add(Operand::Vcc, lanes);
    }
    if row.any(Flags::READS_M0) {
        effects.reads.add(Operand::M0, 1);
    }
    if row.any(Flags::WRITES_EXEC) {
        effects.writes.add(Operand::ExecLo, lanes);
    }
    // The instruction updates the stack address in its register.
    if matches!(op, Op::V_SWAP_B32 | Op::V_SWAP_B16 | Op::V_SWAPREL_B32 | Op::DS_BVH_STACK_RTN_B32) {
        effects.writes.add(src.first().copied().unwrap_or_default(), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode;

    fn effects(words: &[u32]) -> Effects {
        decode(words).expect("a valid instruction").effects(WaveSize::W32)
    }

    fn vector(registers: &[u8]) -> [u64; 4] {
        let mut set = RegSet::default();
        for &index in registers {
            set.add_vector(index, 1);
        }
        set.vector
    }

    #[test]
    fn effects_of_carry_add_name_both_masks() {
        // v_add_co_ci_u32_e32 v2, vcc_lo, v6, v4, vcc_lo
        let effects = effects(&[0x4004_0906]);
        assert_eq!(effects.reads.vector, vector(&[2, 4, 6]));
        assert_eq!(effects.writes.vector, vector(&[2]));
        assert_eq!(effects.reads.scalar, 1 << 106 | 1 << 126);
        assert_eq!(effects.writes.scalar, 1 << 106);
    }

    #[test]
    fn effects_of_global_load_with_scalar_base_reads_one_address_register() {
        // global_load_b64 v[12:13], v2, s[4:5]
        let effects = effects(&[0xdc56_0000, 0x0c04_0002]);
        assert_eq!(effects.reads.vector, vector(&[2, 12, 13]));
        assert_eq!(effects.writes.vector, vector(&[12, 13]));
        assert_eq!(effects.reads.scalar, 0b11 << 4 | 1 << 126);
    }

    #[test]
    fn effects_of_scalar_add_with_carry_name_scc() {
        // s_addc_u32 s4, s16, s8
        let effects = effects(&[0x8204_0810]);
        assert!(effects.reads.scc && effects.writes.scc);
        assert_eq!(effects.reads.scalar, 1 << 16 | 1 << 8);
        assert_eq!(effects.writes.scalar, 1 << 4);
    }

    #[test]
    fn effects_of_compare_to_exec_write_exec_only() {
        // v_cmpx_lt_f32_e32 v6, v4
        let effects = effects(&[0x7d22_0906]);
        assert_eq!(effects.writes.scalar, 1 << 126);
        assert_eq!(effects.writes.vector, [0; 4]);
        assert!(effects.reads.mode);
    }

    #[test]
    fn effects_of_swap_write_both() {
        // v_swap_b32 v2, v6
        let effects = effects(&[0x7e04_cb06]);
        assert_eq!(effects.writes.vector, vector(&[2, 6]));
        assert_eq!(effects.reads.vector, vector(&[2, 6]));
    }

    #[test]
    fn intersects_finds_one_shared_register() {
        let mut a = RegSet::default();
        let mut b = RegSet::default();
        a.add(Operand::Vgpr(254), 4);
        b.add(Operand::Vgpr(255), 1);
        assert!(a.has_vgpr(255) && a.intersects(&b));
        b = RegSet::default();
        b.add(Operand::Sgpr(3), 2);
        assert!(!a.intersects(&b));
    }
}
