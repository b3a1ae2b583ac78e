// SPDX-License-Identifier: MIT OR Apache-2.0
//! One decoded instruction to steps: handler chosen, operands resolved to rows, scalar indices and constants.
//!
//! INVARIANT: what comes out never indexes outside the register files of a wave with the given shape; whatever cannot
//! be promised becomes [`Lowered::Illegal`]. Hints and cache operations become no step at all.

use softgpu_isa::{Class, Dpp, Enc, Flags, Inst, Op, Operand, Second, Slot, Ty, WaveSize, info};

use crate::level::Level;
use crate::mem::{self, global};
use crate::step::*;
use crate::valu::{self, cross};
use crate::wave::{EXEC, M0, SINK, SPARE_VGPRS, TTMP, VCC};
use crate::{env::Env, salu, wave::Wave};

/// What the registers of the wave look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// 1 for wave32, 2 for wave64.
    pub halves: usize,
    /// Allocated VGPRs.
    pub vgprs: usize,
}

/// Steps of one instruction.
#[derive(Debug)]
pub(crate) enum Lowered {
    /// Nothing to do.
    Dropped,
    /// Up to four steps, run in order.
    Steps(Vec<Step>),
    /// Not executable.
    Illegal,
}

fn never(_: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    Flow::Next
}

/// A step at `pc` with nothing in it.
pub(crate) fn blank(pc: u64, size: u8) -> Step {
    Step {
        run: never,
        pc,
        src: [Src::default(); 3],
        dst: 0,
        sdst: SINK as u16,
        imm: 0,
        target: u32::MAX,
        ordinal: 0,
        out: 0,
        size,
        flags: 0,
        op: None,
    }
}

/// Scalar index of a register operand; writes to NULL go to the sink.
fn scalar_index(operand: Operand, writing: bool) -> Option<usize> {
    Some(match operand {
        Operand::Sgpr(n) => n as usize,
        Operand::Vcc => VCC,
        Operand::VccHi => VCC + 1,
        Operand::Ttmp(n) => TTMP + n as usize,
        Operand::Null if writing => SINK,
        Operand::Null => 124,
        Operand::M0 => M0,
        Operand::ExecLo => EXEC,
        Operand::ExecHi => EXEC + 1,
        _ => return None,
    })
}

/// Bits of inline float 240..=248.
fn float_bits(code: u8, ty: Ty, half_float: bool) -> Src {
    let k = code.wrapping_sub(240) as usize;
    const F64_HIGH: [u32; 8] = [
        0x3FE0_0000,
        0xBFE0_0000,
        0x3FF0_0000,
        0xBFF0_0000,
        0x4000_0000,
        0xC000_0000,
        0x4010_0000,
        0xC010_0000,
    ];
    const F32: [u32; 9] = [
        0x3F00_0000,
        0xBF00_0000,
        0x3F80_0000,
        0xBF80_0000,
        0x4000_0000,
        0xC000_0000,
        0x4080_0000,
        0xC080_0000,
        0x3E22_F983,
    ];
    const F16: [u32; 9] = [0x3800, 0xB800, 0x3C00, 0xBC00, 0x4000, 0xC000, 0x4400, 0xC400, 0x3118];
    let constant = |kind, value| Src { kind, mods: 0, index: 0, value };
    match ty {
        Ty::F64 | Ty::B64 | Ty::U64 | Ty::I64 => match F64_HIGH.get(k) {
            Some(&high) => constant(Kind::ConstHigh, high),
            None => constant(Kind::ConstInvTwoPi, 0),
        },
        Ty::F16 | Ty::BF16 | Ty::B16 | Ty::U16 | Ty::I16 => Src::constant(F16.get(k).copied().unwrap_or(0)),
        _ if half_float => Src::constant(F16.get(k).copied().unwrap_or(0)),
        _ => Src::constant(F32.get(k).copied().unwrap_or(0)),
    }
}

/// Modifiers of source `i` as seen by an operand of type `ty`.
fn modifiers(inst: &Inst, i: usize, slot: Slot, selects: bool) -> u8 {
    let ty = slot.ty;
    let bit = |field: u8| field >> i & 1 != 0;
    let pick = |on: bool, m: u8| if on { m } else { 0 };
    match ty {
        Ty::F32 | Ty::F64 => pick(bit(inst.neg), mods::NEG_HI) | pick(bit(inst.abs), mods::ABS_HI),
        Ty::F16 | Ty::BF16 => {
            pick(bit(inst.neg), mods::NEG_LO)
                | pick(bit(inst.abs), mods::ABS_LO)
                | pick(bit(inst.op_sel), mods::LO_FROM_HI)
        }
        // Selects take their operands as floats when it comes to signs.
        Ty::B32 if slot.class == Class::XM => {
            pick(bit(inst.neg), mods::NEG_HI) | pick(bit(inst.abs), mods::ABS_HI)
        }
        Ty::B16 if slot.class == Class::XM => {
            pick(bit(inst.neg), mods::NEG_LO)
                | pick(bit(inst.abs), mods::ABS_LO)
                | pick(bit(inst.op_sel), mods::LO_FROM_HI)
        }
        Ty::B16 | Ty::U16 | Ty::I16 => pick(bit(inst.op_sel), mods::LO_FROM_HI),
        Ty::P16 if inst.enc == Enc::Vop3p => {
            let halves = if selects {
                pick(bit(inst.op_sel), mods::LO_FROM_HI) | pick(!bit(inst.op_sel_hi), mods::HI_FROM_LO)
            } else {
                0
            };
            halves | pick(bit(inst.neg), mods::NEG_LO) | pick(bit(inst.neg_hi), mods::NEG_HI)
        }
        Ty::P16 => 0,
        Ty::MIX if bit(inst.op_sel_hi) => {
            pick(bit(inst.op_sel), mods::LO_FROM_HI)
                | pick(bit(inst.neg), mods::NEG_LO)
                | pick(bit(inst.abs), mods::ABS_LO)
        }
        Ty::MIX => pick(bit(inst.neg), mods::NEG_HI) | pick(bit(inst.abs), mods::ABS_HI),
        _ => 0,
    }
}

/// Operations whose NEG field means "signed operand".
fn neg_is_signed(op: Op) -> bool {
    use Op::*;
    matches!(op, V_DOT4_I32_IU8 | V_DOT8_I32_IU4 | V_WMMA_I32_16X16X16_IU8 | V_WMMA_I32_16X16X16_IU4)
}

/// Operations that read their destination as one more source.
fn accumulates(op: Op) -> bool {
    use Op::*;
    matches!(op, V_FMAC_F32 | V_FMAC_F16 | V_FMAC_DX9_ZERO_F32 | V_PK_FMAC_F16 | V_DOT2ACC_F32_F16)
}

struct Lowering<'a> {
    shape: Shape,
    inst: &'a Inst,
}

impl Lowering<'_> {
    fn row(&self, register: u8, dwords: usize) -> Option<usize> {
        let register = register as usize;
        (register + dwords <= self.shape.vgprs).then_some(register * self.shape.halves)
    }

    /// Registers that an operand takes in this wave.
    fn width(&self, slot: Slot) -> usize {
        let wave = if self.shape.halves == 2 { WaveSize::W64 } else { WaveSize::W32 };
        slot.ty.dwords_in(wave) as usize
    }

    fn vgpr_row(&self, operand: Operand, dwords: usize) -> Option<usize> {
        match operand {
            Operand::Vgpr(r) => self.row(r, dwords),
            _ => None,
        }
    }

    /// Row of the `k`-th spare register.
    fn spare(&self, k: usize) -> usize {
        (self.shape.vgprs + k.min(SPARE_VGPRS - 1)) * self.shape.halves
    }

    fn source(&self, operand: Operand, slot: Slot, i: usize, op: Op, packed: bool) -> Option<Src> {
        let inst = self.inst;
        let half_float = (slot.ty == Ty::P16 && info(op).any(Flags::PACKED_F16))
            || (slot.ty == Ty::MIX && inst.op_sel_hi >> i & 1 != 0);
        let constant = |kind, value| Src { kind, mods: 0, index: 0, value };
        let wide = matches!(slot.ty, Ty::F64 | Ty::B64 | Ty::U64 | Ty::I64);
        let mut src = match operand {
            Operand::None => return Some(Src::default()),
            Operand::Vgpr(r) => Src::vgpr(self.row(r, self.width(slot))?),
            Operand::Int(x) => constant(if wide { Kind::ConstSigned } else { Kind::Const }, x as u32),
            Operand::Float(code) => float_bits(code, slot.ty, half_float),
            Operand::Literal(x) => match slot.ty {
                Ty::F64 => constant(Kind::ConstHigh, x),
                Ty::I64 => constant(Kind::ConstSigned, x),
                _ => Src::constant(x),
            },
            Operand::SharedBase | Operand::SharedLimit | Operand::PrivateBase | Operand::PrivateLimit => {
                let high = match operand {
                    Operand::SharedBase | Operand::SharedLimit => mem::flat::SHARED_BASE,
                    _ => mem::flat::PRIVATE_BASE,
                };
                // The limit's low dword is all ones; no code reads it, and the pair cannot hold it beside the base.
                if wide { constant(Kind::ConstHigh, high) } else { Src::constant(high) }
            }
            Operand::Vccz => Src { kind: Kind::Special, mods: 0, index: SPECIAL_VCCZ, value: 0 },
            Operand::Execz => Src { kind: Kind::Special, mods: 0, index: SPECIAL_EXECZ, value: 0 },
            Operand::Scc => Src { kind: Kind::Special, mods: 0, index: SPECIAL_SCC, value: 0 },
            Operand::LdsDirect => return None,
            _ => Src { kind: Kind::Scalar, mods: 0, index: scalar_index(operand, false)? as u16, value: 0 },
        };
        if packed && slot.class != Class::M && !neg_is_signed(op) {
            src = self.modified(src, modifiers(inst, i, slot, info(op).any(Flags::OP_SEL)), wide);
        }
        Some(src)
    }

    fn modified(&self, mut src: Src, m: u8, wide: bool) -> Src {
        if m == 0 {
            return src;
        }
        match src.kind {
            Kind::Const if !wide => src.value = mods::apply(m, src.value),
            Kind::Vgpr => {
                src.kind = Kind::VgprMod;
                src.mods = m;
            }
            Kind::Scalar => {
                src.kind = Kind::ScalarMod;
                src.mods = m;
            }
            _ => src.mods = m,
        }
        src
    }

    /// A vector ALU operation, or half of a dual one.
    fn vector(
        &self,
        level: Level,
        pc: u64,
        op: Op,
        dst: Operand,
        sources: &[Operand],
        whole: bool,
    ) -> Option<Step> {
        let inst = self.inst;
        let row = info(op);
        let mut step = blank(pc, inst.size);
        step.run = valu::table_handler(level, op)?;
        step.op = Some(op);
        for (i, (&slot, &operand)) in row.src.iter().zip(sources).enumerate().take(3) {
            step.src[i] = self.source(operand, slot, i, op, whole)?;
        }
        let moves_rows =
            matches!(op, Op::V_SWAP_B32 | Op::V_SWAP_B16 | Op::V_SWAPREL_B32 | Op::V_PERMLANE64_B32);
        if moves_rows && !step.src[0].is_vgpr() {
            return None;
        }
        // Four accumulators are four registers; no scalar operand is that wide.
        if op == Op::V_MQSAD_U32_U8 && !step.src[2].is_vgpr() {
            return None;
        }
        match row.dst.first() {
            Some(slot) if slot.class == Class::V => {
                step.dst = self.vgpr_row(dst, self.width(*slot))? as u16;
                let narrow = matches!(slot.ty, Ty::F16 | Ty::BF16 | Ty::B16 | Ty::U16 | Ty::I16);
                let high = (whole && narrow && inst.op_sel & 8 != 0) || op == Op::V_FMA_MIXHI_F16;
                if high {
                    step.out |= OUT_HIGH;
                }
            }
            Some(slot) if slot.class == Class::M => step.sdst = scalar_index(dst, true)? as u16,
            Some(_) => step.dst = scalar_index(dst, true)? as u16,
            None if row.any(Flags::WRITES_EXEC) => step.sdst = EXEC as u16,
            None => {}
        }
        if row.dst.len() > 1 {
            step.sdst = scalar_index(inst.sdst, true)? as u16;
        }
        if accumulates(op) {
            let mut acc = Src::vgpr(step.dst as usize);
            if step.out & OUT_HIGH != 0 {
                acc = self.modified(acc, mods::LO_FROM_HI, false);
            }
            step.src[2] = acc;
        }
        let compares = row.dst.first().is_none_or(|slot| slot.class == Class::M);
        if whole && !compares {
            step.out |= (u8::from(inst.clamp) * OUT_CLAMP) | (inst.omod << OUT_OMOD_SHIFT);
        }
        self.special(op, &mut step);
        let is_matrix = row.name.starts_with("v_wmma");
        if let Some(fast) = valu::fast_handler(level, self.shape.halves, op, &step) {
            step.run = fast;
        }
        if is_matrix && inst.op_sel & 4 != 0 {
            step.out |= OUT_HIGH;
        }
        Some(step)
    }

    fn special(&self, op: Op, step: &mut Step) {
        let inst = self.inst;
        match op {
            _ if neg_is_signed(op) => step.flags = u16::from(inst.neg),
            Op::V_FMA_MIX_F32 | Op::V_FMA_MIXLO_F16 | Op::V_FMA_MIXHI_F16 => {
                step.flags = u16::from(inst.op_sel_hi)
            }
            Op::V_PERMLANE16_B32 | Op::V_PERMLANEX16_B32 => step.flags = u16::from(inst.op_sel),
            _ => {}
        }
    }

    fn with_dpp(&self, pc: u64, dpp: Dpp, mut step: Step) -> Option<Vec<Step>> {
        if !step.src[0].is_vgpr() || info(self.inst.op).src.first().is_none_or(|s| s.ty.dwords() != 1) {
            return None;
        }
        let mut prepare = blank(pc, self.inst.size);
        prepare.run = cross::dpp_prepare;
        prepare.src[0] = Src::vgpr(step.src[0].index as usize);
        prepare.dst = self.spare(0) as u16;
        let fetches = match dpp {
            Dpp::Dpp16 { ctrl, row_mask, bank_mask, bound_ctrl, fi } => {
                prepare.imm = i32::from(ctrl);
                prepare.flags = u16::from(bank_mask & 15) | u16::from(row_mask & 15) << 4;
                if bound_ctrl {
                    prepare.flags |= cross::DPP_BOUND_CTRL;
                }
                fi
            }
            Dpp::Dpp8 { sel, fi } => {
                let packed = sel.iter().rev().fold(0u32, |r, &s| r << 3 | u32::from(s & 7));
                prepare.imm = packed as i32;
                prepare.flags = cross::DPP8;
                fi
            }
        };
        if fetches {
            prepare.flags |= cross::DPP_FETCH_INACTIVE;
        }
        step.src[0].index = self.spare(0) as u16;
        let all = cross::DPP_BOUND_CTRL | 0xFF;
        if prepare.flags & cross::DPP8 == 0 && prepare.flags & all != all {
            step.flags |= FLAG_DPP_MASK;
            step.imm = prepare.imm | i32::from(prepare.flags) << 16;
        }
        let mut steps = vec![prepare, step];
        if step.sdst as usize != EXEC {
            let mut restore = blank(pc, self.inst.size);
            restore.run = cross::dpp_restore;
            steps.push(restore);
        }
        Some(steps)
    }

    /// Both halves read before either writes: order them, or keep the old value of X's destination aside.
    fn dual(&self, level: Level, pc: u64, second: &Second) -> Option<Vec<Step>> {
        let inst = self.inst;
        let x = self.vector(level, pc, inst.op, inst.dst, &inst.src[..3], false)?;
        let mut y = self.vector(level, pc, second.op, second.dst, &second.src, false)?;
        let reads = |s: &Step, row: u16| s.src.iter().any(|src| src.is_vgpr() && src.index == row);
        if !reads(&y, x.dst) {
            return Some(vec![x, y]);
        }
        if !reads(&x, y.dst) {
            return Some(vec![y, x]);
        }
        let mut keep = blank(pc, inst.size);
        keep.run = cross::copy_all;
        keep.op = Some(Op::V_MOV_B32);
        keep.flags = FLAG_ALL_LANES;
        keep.src[0] = Src::vgpr(x.dst as usize);
        keep.dst = self.spare(1) as u16;
        for src in &mut y.src {
            if src.is_vgpr() && src.index == x.dst {
                src.index = keep.dst;
            }
        }
        Some(vec![keep, x, y])
    }

    fn scalar(&self, pc: u64) -> Option<Step> {
        let inst = self.inst;
        let row = info(inst.op);
        // The halves of a wave that has only one cannot be taken in turn.
        let takes_turns = matches!(inst.op, Op::S_SUBVECTOR_LOOP_BEGIN | Op::S_SUBVECTOR_LOOP_END);
        (!takes_turns || self.shape.halves == 2).then_some(())?;
        let mut step = blank(pc, inst.size);
        step.run = salu::handler(inst.op)?;
        step.op = Some(inst.op);
        step.imm = inst.imm;
        for (i, (&slot, &operand)) in row.src.iter().zip(&inst.src).enumerate().take(3) {
            step.src[i] = self.source(operand, slot, i, inst.op, false)?;
        }
        if let Some(slot) = row.dst.first() {
            let index = scalar_index(inst.dst, true)?;
            // A 64-bit write to M0 would spill into EXEC.
            (index != M0 || slot.ty.dwords() == 1).then_some(())?;
            step.dst = index as u16;
        }
        Some(step)
    }

    fn scalar_memory(&self, level: Level, pc: u64) -> Option<Step> {
        let inst = self.inst;
        let mut step = blank(pc, inst.size);
        step.run = mem::handler(level, inst.op)?;
        step.op = Some(inst.op);
        step.imm = inst.imm;
        let base = scalar_index(inst.src[0], false)?;
        step.src[0] = Src { kind: Kind::Scalar, mods: 0, index: base as u16, value: 0 };
        step.src[1] = match inst.src[1] {
            Operand::None | Operand::Null => Src::constant(0),
            other => Src { kind: Kind::Scalar, mods: 0, index: scalar_index(other, false)? as u16, value: 0 },
        };
        step.dst = scalar_index(inst.dst, true)? as u16;
        Some(step)
    }

    fn vector_memory(&self, level: Level, pc: u64) -> Option<Step> {
        let inst = self.inst;
        let row = info(inst.op);
        let mut step = blank(pc, inst.size);
        step.run = mem::handler(level, inst.op)?;
        step.op = Some(inst.op);
        step.imm = inst.imm;
        if inst.gds {
            return None;
        }
        // The status of a load follows its data.
        let status = usize::from(inst.tfe && row.any(Flags::LOAD));
        step.flags |= if status != 0 { mem::FLAG_TFE } else { 0 };
        if let Some((kind, _)) = row.any(Flags::ATOMIC).then(|| mem::atomic_of(row.name)).flatten() {
            step.sdst = kind as u16;
        }
        if let (Some(slot), Operand::Vgpr(_)) = (row.dst.first(), inst.dst) {
            step.dst = self.vgpr_row(inst.dst, slot.ty.dwords() as usize + status)? as u16;
            if row.any(Flags::ATOMIC) {
                step.flags |= FLAG_GLC;
            }
        }
        if row.name.contains("d16_hi") {
            step.flags |= global::FLAG_D16_HI;
        } else if row.name.contains("d16") {
            step.flags |= global::FLAG_D16;
        }
        if row.name.contains("stride64") {
            step.flags |= mem::FLAG_STRIDE64;
        }
        if let Some(slot) = row.src.get(1).filter(|slot| slot.class == Class::V) {
            step.src[1] = Src::vgpr(self.vgpr_row(inst.src[1], slot.ty.dwords() as usize)?);
        }
        match inst.enc {
            Enc::Ds => {
                if row.src.first().is_some_and(|slot| slot.class == Class::V) {
                    step.src[0] = Src::vgpr(self.vgpr_row(inst.src[0], 1)?);
                }
                if let Some(slot) = row.src.get(2).filter(|slot| slot.class == Class::V) {
                    step.src[2] = Src::vgpr(self.vgpr_row(inst.src[2], slot.ty.dwords() as usize)?);
                }
            }
            Enc::Mubuf | Enc::Mtbuf => self.buffer(&mut step)?,
            _ => {
                let scalar_base = scalar_index(inst.src[2], false).filter(|_| inst.src[2] != Operand::Null);
                if let Some(base) = scalar_base {
                    step.flags |= FLAG_SADDR;
                    step.src[2] = Src { kind: Kind::Scalar, mods: 0, index: base as u16, value: 0 };
                }
                if inst.src[0] != Operand::None {
                    step.flags |= FLAG_VADDR;
                    let wide = inst.enc != Enc::Scratch && scalar_base.is_none();
                    step.src[0] = Src::vgpr(self.vgpr_row(inst.src[0], if wide { 2 } else { 1 })?);
                } else if scalar_base.is_none()
                    && row.src.first().is_some_and(|s| s.class != Class::NONE)
                    && inst.enc != Enc::Scratch
                {
                    return None;
                }
            }
        }
        Some(step)
    }

    fn buffer(&self, step: &mut Step) -> Option<()> {
        let inst = self.inst;
        let dwords = if inst.offen && inst.idxen { 2 } else { 1 };
        if inst.offen || inst.idxen {
            step.src[0] = Src::vgpr(self.vgpr_row(inst.src[0], dwords)?);
        }
        if inst.enc == Enc::Mtbuf {
            step.sdst = u16::from(inst.format);
        }
        if inst.offen {
            step.flags |= mem::FLAG_OFFEN;
        }
        if inst.idxen {
            step.flags |= mem::FLAG_IDXEN;
        }
        if step.src[1].is_vgpr() && inst.src[1] != Operand::None {
            step.dst = step.src[1].index;
        }
        let resource = scalar_index(inst.src[2], false)?;
        step.src[2] = Src { kind: Kind::Scalar, mods: 0, index: resource as u16, value: 0 };
        let slot = Slot { class: Class::S, ty: Ty::U32 };
        step.src[1] = self.source(inst.src[3], slot, 3, inst.op, false)?;
        Some(())
    }
}

/// Steps of `inst` at `pc` for waves of `shape`.
pub(crate) fn lower(level: Level, shape: Shape, pc: u64, inst: &Inst) -> Lowered {
    let row = info(inst.op);
    if row.any(Flags::HINT | Flags::CACHE) || matches!(inst.op, Op::V_NOP | Op::V_PIPEFLUSH) {
        return Lowered::Dropped;
    }
    let lowering = Lowering { shape, inst };
    let one = |step: Option<Step>| step.map(|s| vec![s]);
    let steps = match inst.enc {
        Enc::Sop1 | Enc::Sop2 | Enc::Sopk | Enc::Sopc | Enc::Sopp => one(lowering.scalar(pc)),
        Enc::Smem => one(lowering.scalar_memory(level, pc)),
        Enc::Ds | Enc::Flat | Enc::Global | Enc::Scratch | Enc::Mubuf | Enc::Mtbuf => {
            one(lowering.vector_memory(level, pc))
        }
        Enc::Vopd => inst.second.as_ref().and_then(|second| lowering.dual(level, pc, second)),
        _ => lowering.vector(level, pc, inst.op, inst.dst, &inst.src[..3], true).and_then(|step| match inst
            .dpp
        {
            Some(dpp) => lowering.with_dpp(pc, dpp, step),
            None => Some(vec![step]),
        }),
    };
    steps.map_or(Lowered::Illegal, Lowered::Steps)
}
