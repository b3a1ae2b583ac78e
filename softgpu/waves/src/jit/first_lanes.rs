// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes first lanes, by scalar instructions.
//!
//! INVARIANT: this code uses RAX, RCX and RDX only, and changes nothing before it may jump away.

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::asm::Label;
use super::emit::Emitter;
use super::flow::Item;
use super::generator::Gen;
use super::progressions::{How, Progression, as_one_sum, high_half, span};
use super::scalar::{self, A, A64, B, B64, place};
use super::steady::slot_place;
use crate::step::{Kind, Src, Step};

/// What is kept after a handler has computed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByHandler {
    slot: usize,
    row: u16,
    half: Half,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Low,
    High,
    Both,
}

/// Upper half of what is kept of a low sum whose carries are not the same in all lanes, or whose addends' are not.
const UNLIKE: i32 = 2;

impl Gen {
    /// `to` = the first lane of a source.
    fn first_lane(&mut self, to: Register, s: &Src) {
        if s.kind != Kind::Vgpr {
            return scalar::load(&mut self.asm, to, s);
        }
        let row = s.index;
        if let Some(known) = self.first_of_row(row) {
            let from = slot_place(known.slot, known.is_high);
            return self.asm.op2(Code::Mov_r32_rm32, to, from);
        }
        let piece = self.piece(row, 0, 0);
        match self.regs.find(piece) {
            Some(n) => self.lane(to, self.vector(n), 0),
            None => {
                let from = self.place(piece);
                self.asm.op2(Code::Mov_r32_rm32, to, from);
            }
        }
    }

    /// Computes the first lane of a result, whose rows are known by it then; to `slow`, with nothing changed, if that does not say
    /// what the carries are like. Whether it may go there.
    fn compute_first(&mut self, step: &Step, p: &Progression, slot: usize, slow: Label) -> bool {
        let [a, b, _] = &step.src;
        let low = slot_place(slot, false);
        let may_be_slow = match p.how {
            How::Word => {
                self.word(step);
                self.asm.op2(Code::Mov_rm64_r64, low, A64);
                false
            }
            How::Long { is_short, span } => {
                self.first_lane(A, b);
                self.stays_below(A, span, slow);
                if !is_short {
                    self.first_lane(B, &Src::vgpr(high_half(step, 1).into()));
                    self.asm.op2(Code::Shl_rm64_imm8, B64, 32);
                    self.asm.op2(Code::Or_r64_rm64, A64, B64);
                }
                self.asm.op2(Code::Shl_rm64_imm8, A64, (a.value & 63) as i32);
                self.asm.op2(Code::Mov_rm64_r64, low, A64);
                span != 0
            }
            How::Low { spans } => {
                self.first_lane(A, a);
                self.first_lane(B, b);
                for (register, span) in [A, B].into_iter().zip(spans) {
                    self.stays_below(register, span, slow);
                }
                self.asm.op2(Code::Add_r32_rm32, A, B);
                self.asm.op2(Code::Sbb_r32_rm32, B, B);
                self.stays_below(A, span(p.stride), slow);
                self.asm.op2(Code::Mov_rm32_r32, place(step.sdst), B);
                self.asm.op1(Code::Neg_rm32, B);
                self.keep_both(slot);
                p.stride != 0 || spans != [0; 2]
            }
            How::High => {
                let high = slot_place(slot, true);
                self.asm.op2(Code::Mov_r32_rm32, Register::EDX, high);
                self.asm.op2(Code::Cmp_rm32_imm8, Register::EDX, UNLIKE);
                self.asm.jump(Code::Jae_rel32_64, slow);
                self.first_lane(A, a);
                self.first_lane(B, b);
                self.asm.op2(Code::Bt_rm32_imm8, Register::EDX, 0);
                self.asm.op2(Code::Adc_r32_rm32, A, B);
                self.asm.op2(Code::Sbb_r32_rm32, B, B);
                self.asm.op2(Code::Mov_rm32_r32, place(step.sdst), B);
                self.asm.op2(Code::Mov_r32_rm32, B, A);
                self.asm.op2(Code::Mov_r32_rm32, A, low);
                self.keep_both(slot);
                true
            }
        };
        self.becomes_steady(step.dst, slot, p.stride, p.how == How::High, p.how == How::Word);
        if matches!(p.how, How::Long { .. }) {
            self.becomes_steady(step.dst + 1, slot, p.stride, true, false);
        }
        may_be_slow
    }

    /// Keeps EAX and, as its high half, ECX: at once, since loads of both would wait for two stores.
    fn keep_both(&mut self, slot: usize) {
        self.asm.op2(Code::Shl_rm64_imm8, B64, 32);
        self.asm.op2(Code::Or_r64_rm64, A64, B64);
        self.asm.op2(Code::Mov_rm64_r64, slot_place(slot, false), A64);
    }

    /// The same for the sum of 64 bits that two steps make. `order` tells which sources belong together.
    fn compute_sum(
        &mut self,
        [low, high]: [&Step; 2],
        order: [usize; 2],
        p: &Progression,
        slot: usize,
        slow: Label,
    ) {
        let How::Low { spans } = p.how else { return };
        for (k, to) in [A64, B64].into_iter().enumerate() {
            self.long_first(to, &low.src[k], &high.src[order[k]]);
            self.stays_below(to, spans[k], slow);
        }
        self.asm.op2(Code::Add_r64_rm64, A64, B64);
        self.asm.op2(Code::Sbb_r32_rm32, B, B);
        self.stays_below(A64, span(p.stride), slow);
        self.asm.op2(Code::Mov_rm32_r32, place(high.sdst), B);
        self.asm.op2(Code::Mov_rm64_r64, slot_place(slot, false), A64);
        self.becomes_steady(low.dst, slot, p.stride, false, false);
        self.becomes_steady(high.dst, slot, p.stride, true, false);
    }

    /// `to` = the first lanes of two sources, as 64 bits. EDX is overwritten.
    fn long_first(&mut self, to: Register, low: &Src, high: &Src) {
        let to32 = to.full_register32();
        match (low.kind, high.kind) {
            (Kind::Vgpr, Kind::Vgpr) => {
                let first = self.steady_row(low.index).filter(|s| !s.is_high).map(|s| s.slot);
                let second = self.steady_row(high.index).filter(|s| s.is_high).map(|s| s.slot);
                if let Some(slot) = first.filter(|_| first == second) {
                    return self.asm.op2(Code::Mov_r64_rm64, to, slot_place(slot, false));
                }
            }
            (Kind::Scalar, Kind::Scalar) if high.index == low.index + 1 => {
                return self.asm.op2(Code::Mov_r64_rm64, to, place(low.index));
            }
            (Kind::Vgpr, _) => return self.first_lane(to32, low),
            _ => {}
        }
        self.first_lane(Register::EDX, low);
        self.first_lane(to32, high);
        self.asm.op2(Code::Shl_rm64_imm8, to, 32);
        self.asm.op2(Code::Or_r64_rm64, to, Register::RDX);
    }

    /// To `slow` if `register` plus `span` has more bits than the register. RDX is overwritten.
    fn stays_below(&mut self, register: Register, span: u32, slow: Label) {
        if span == 0 {
            return;
        }
        // CAST: distances are short.
        let span = span as i32;
        if register.is_gpr64() {
            self.asm.op2(Code::Mov_r64_rm64, Register::RDX, register);
            self.asm.op2(Code::Add_rm64_imm32, Register::RDX, span);
        } else {
            self.asm.op2(Code::Mov_r32_rm32, Register::EDX, register);
            self.asm.op2(Code::Add_rm32_imm32, Register::EDX, span);
        }
        self.asm.jump(Code::Jb_rel32_64, slow);
    }

    /// EAX = the operation on first lanes.
    fn word(&mut self, step: &Step) {
        use Op::*;
        let [a, b, c] = &step.src;
        let Some(op) = step.op else { return };
        let shift = |g: &mut Gen, code: Code, by: &Src| g.asm.op2(code, A, (by.value & 31) as i32);
        let second = |g: &mut Gen, code: Code, s: &Src| {
            g.first_lane(B, s);
            g.asm.op2(code, A, B);
        };
        let (add, or) = (Code::Add_r32_rm32, Code::Or_r32_rm32);
        match op {
            V_SUBREV_NC_U32 => {
                self.first_lane(A, b);
                second(self, Code::Sub_r32_rm32, a);
            }
            V_LSHLREV_B32 | V_LSHRREV_B32 => {
                self.first_lane(A, b);
                shift(self, if op == V_LSHLREV_B32 { Code::Shl_rm32_imm8 } else { Code::Shr_rm32_imm8 }, a);
            }
            _ => self.first_lane(A, a),
        }
        match op {
            V_ADD_NC_U32 | V_ADD_NC_I32 => second(self, add, b),
            V_SUB_NC_U32 | V_SUB_NC_I32 => second(self, Code::Sub_r32_rm32, b),
            V_MUL_LO_U32 => second(self, Code::Imul_r32_rm32, b),
            V_AND_B32 => second(self, Code::And_r32_rm32, b),
            V_OR_B32 => second(self, or, b),
            V_ADD3_U32 => {
                second(self, add, b);
                second(self, add, c);
            }
            V_OR3_B32 => {
                second(self, or, b);
                second(self, or, c);
            }
            V_LSHL_ADD_U32 | V_LSHL_OR_B32 => {
                shift(self, Code::Shl_rm32_imm8, b);
                second(self, if op == V_LSHL_ADD_U32 { add } else { or }, c);
            }
            V_ADD_LSHL_U32 => {
                second(self, add, b);
                shift(self, Code::Shl_rm32_imm8, c);
            }
            _ => {}
        }
    }
}

impl Emitter<'_> {
    /// Emits a step for the first lane only; `false`, and nothing, if it has to be done for all.
    pub(super) fn progression(&mut self, item: &Item) -> bool {
        let step = &self.program.steps[item.index];
        let Some(p) = self.g.facts.as_ref().and_then(|facts| Progression::of(facts, step)) else {
            return false;
        };
        let slot = match p.how {
            // That of the sum of low halves, which the facts say is in the register in front.
            How::High => {
                let low = self.g.steady_row(step.dst.wrapping_sub(1));
                low.filter(|low| !low.is_high && !low.is_word).map(|low| low.slot)
            }
            _ => Some(self.g.free_slot()),
        };
        let Some(slot) = slot else { return false };
        let mut slow = self.slow(item.index);
        let may_be_slow = self.g.compute_first(step, &p, slot, slow.label);
        self.g.regs.forget_masks(item.touch.written_scalars(), None);
        if may_be_slow {
            let half = if p.how == How::High { Half::High } else { Half::Low };
            slow.result = Some(ByHandler { slot, row: step.dst, half });
            self.goes_on(slow);
        }
        true
    }

    /// Emits two steps that are the halves of a sum of 64 bits, for the first lane only; `false`, and nothing, if they are not.
    pub(super) fn long_progression(&mut self, items: [&Item; 2]) -> bool {
        let [low, high] = items.map(|item| &self.program.steps[item.index]);
        let Some(facts) = &self.g.facts else { return false };
        let Some(p) = Progression::of(facts, low).filter(|p| matches!(p.how, How::Low { .. })) else {
            return false;
        };
        let Some(order) = as_one_sum(facts, low, high) else { return false };
        let mut after = facts.clone();
        after.apply(self.program, items[0].index);
        let is_sum = Progression::of(&after, high).is_some_and(|p| p.how == How::High);
        // The sum of the high halves must not read what that of the low ones writes.
        if !is_sum || high.src[..2].iter().any(|s| s.kind == Kind::Vgpr && s.index == low.dst) {
            return false;
        }
        let slot = self.g.free_slot();
        let mut slow = self.slow(items[0].index);
        self.g.compute_sum([low, high], order, &p, slot, slow.label);
        for item in items {
            self.g.regs.forget_masks(item.touch.written_scalars(), None);
        }
        slow.then = Some(items[1].index);
        slow.result = Some(ByHandler { slot, row: low.dst, half: Half::Both });
        self.goes_on(slow);
        true
    }

    /// Computes the first lane of a step in a run, or of two steps that are the halves of a sum; to `otherwise` if that does not
    /// say what the carries are like.
    pub(super) fn first_in_run(&mut self, step: &Step, high: Option<&Step>, otherwise: Label) {
        let Some(facts) = &self.g.facts else { return };
        let (p, order) = (Progression::of(facts, step), high.and_then(|high| as_one_sum(facts, step, high)));
        let Some(p) = p else {
            self.g.exhausted = true;
            return;
        };
        let slot = self.g.free_slot();
        if let (Some(high), Some(order)) = (high, order) {
            self.g.compute_sum([step, high], order, &p, slot, otherwise);
        } else {
            self.g.compute_first(step, &p, slot, otherwise);
        }
    }

    /// Behind a handler: keeps the first lane of its result.
    pub(super) fn keep_result(&mut self, result: &ByHandler) {
        let ByHandler { slot, row, half } = *result;
        let first = |g: &Gen, row: u16| g.place(g.piece(row, 0, 0));
        let from = first(&self.g, row);
        self.g.asm.op2(Code::Mov_r32_rm32, A, from);
        match half {
            Half::High => self.g.asm.op2(Code::Mov_rm32_r32, slot_place(slot, true), A),
            Half::Low => {
                self.g.asm.op2(Code::Mov_r32_imm32, B, UNLIKE);
                self.g.keep_both(slot);
            }
            Half::Both => {
                let from = first(&self.g, row + 1);
                self.g.asm.op2(Code::Mov_r32_rm32, B, from);
                self.g.keep_both(slot);
            }
        }
    }
}
