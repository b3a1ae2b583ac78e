// SPDX-License-Identifier: MIT OR Apache-2.0
//! Emits lane-wise operations piece by piece: operands into registers, results under EXEC.
//!
//! INVARIANT: between two regions all registers of the wave are in memory; within one, a row piece is in memory or in
//! the register file's care. An operation reads all its sources before its last instruction writes its destination.

use iced_x86::{Code, MemoryOperand, Register};

use super::asm::{Arg, Asm, ROW_BIAS, ROWS, SCALARS, memory};
use super::codes;
use super::regs::{NEVER, Piece, Regs, Spill};
use super::vmem::{Addresses, Outlined};
use crate::predecode::Shape;
use crate::step::{Kind, Src, Step, mods};

/// Host vectors: 16 lanes in AVX-512, 8 in AVX2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wide {
    Z,
    Y,
}

impl Wide {
    /// Lanes of a register.
    pub(super) fn lanes(self) -> usize {
        match self {
            Wide::Z => 16,
            Wide::Y => 8,
        }
    }

    /// Registers for values. AVX2 keeps the last one for the mask.
    pub(super) fn registers(self) -> usize {
        match self {
            Wide::Z => 32,
            Wide::Y => 15,
        }
    }
}

/// Mask of the piece being emitted, AVX2.
pub(super) const MASK: Register = Register::YMM15;
/// The first of the EXEC masks, AVX-512: piece `n` of a row has K1 + n.
const EXEC_MASKS: Register = Register::K1;

/// A code for both widths; `INVALID` where AVX2 has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    pub z: Code,
    pub y: Code,
}

/// One access of an operation to a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub piece: Piece,
    /// Does not need the old value.
    pub overwrites: bool,
}

/// The emitter of one program.
pub(super) struct Gen {
    pub asm: Asm,
    pub regs: Regs,
    pub wide: Wide,
    pub shape: Shape,
    /// Results go under EXEC.
    pub masked: bool,
    /// Pieces stay in the registers they are in.
    pub resident: bool,
    /// Address registers that the code at hand knows something of.
    pub addresses: Addresses,
    /// Rare patterns that are emitted out of line.
    pub outlined: Vec<Outlined>,
    /// No register was free for an operation: the code is void.
    pub exhausted: bool,
}

impl Gen {
    pub(super) fn new(wide: Wide, shape: Shape) -> Gen {
        let regs = Regs::new(wide.registers());
        Gen {
            asm: Asm::new(),
            regs,
            wide,
            shape,
            masked: false,
            resident: false,
            addresses: Addresses::default(),
            outlined: Vec::new(),
            exhausted: false,
        }
    }

    /// Pieces of one row of 32 lanes.
    fn per_row(&self) -> usize {
        32 / self.wide.lanes()
    }

    /// Pieces of one VGPR.
    pub(super) fn pieces(&self) -> usize {
        self.per_row() * self.shape.halves
    }

    /// Piece `c` of the VGPR whose first row is `row`, `dword` registers further.
    pub(super) fn piece(&self, row: u16, dword: usize, c: usize) -> Piece {
        let row = row as usize + dword * self.shape.halves + c / self.per_row();
        (row * self.per_row() + c % self.per_row()) as Piece
    }

    fn place(&self, piece: Piece) -> MemoryOperand {
        memory(ROWS, i64::from(piece) * self.wide.lanes() as i64 * 4 - ROW_BIAS, false)
    }

    pub(super) fn vector(&self, n: u8) -> Register {
        match self.wide {
            Wide::Z => Register::ZMM0 + u32::from(n),
            Wide::Y => Register::YMM0 + u32::from(n),
        }
    }

    pub(super) fn pick(&self, codes: Codes) -> Code {
        match self.wide {
            Wide::Z => codes.z,
            Wide::Y => codes.y,
        }
    }

    fn store(&mut self, spill: Spill) {
        let (place, register) = (self.place(spill.piece), self.vector(spill.register));
        let code = match self.wide {
            Wide::Z => Code::EVEX_Vmovdqa32_zmmm512_k1z_zmm,
            Wide::Y => Code::VEX_Vmovdqa_ymmm256_ymm,
        };
        self.asm.op2(code, place, register);
    }

    pub(super) fn load(&mut self, n: u8, piece: Piece) {
        let (place, register) = (self.place(piece), self.vector(n));
        let code = match self.wide {
            Wide::Z => Code::EVEX_Vmovdqa32_zmm_k1z_zmmm512,
            Wide::Y => Code::VEX_Vmovdqa_ymm_ymmm256,
        };
        self.asm.op2(code, register, place);
    }

    /// A register for an intermediate result.
    pub(super) fn temporary(&mut self) -> Register {
        match self.regs.take_temporary() {
            Some((n, spill)) => {
                if let Some(spill) = spill {
                    self.store(spill);
                }
                self.vector(n)
            }
            None => {
                self.exhausted = true;
                self.vector(0)
            }
        }
    }

    /// A register for a result that goes to its place later; stays until it is released.
    pub(super) fn aside(&mut self) -> Register {
        match self.regs.take_aside() {
            Some(n) => self.vector(n),
            None => {
                self.exhausted = true;
                self.vector(0)
            }
        }
    }

    /// Frees registers until `count` are.
    pub(super) fn make_room(&mut self, count: usize) {
        while let Some(spill) = self.regs.evict_beyond(count) {
            if let Some(spill) = spill {
                self.store(spill);
            }
        }
    }

    pub(super) fn hold(&mut self, piece: Piece) -> u8 {
        match self.regs.take_piece(piece) {
            Some((n, spill)) => {
                if let Some(spill) = spill {
                    self.store(spill);
                }
                n
            }
            None => {
                self.exhausted = true;
                0
            }
        }
    }

    /// The register with `piece`, loaded if need be.
    fn piece_register(&mut self, piece: Piece) -> Register {
        if let Some(n) = self.regs.find(piece) {
            self.regs.pin(n);
            return self.vector(n);
        }
        let n = self.hold(piece);
        self.load(n, piece);
        self.vector(n)
    }

    /// Where scalar `index` is in memory.
    pub(super) fn scalar(&self, index: u16) -> MemoryOperand {
        memory(SCALARS, 4 * i64::from(index), false)
    }

    /// `value` in all lanes of `register`.
    fn broadcast(&mut self, register: Register, from: MemoryOperand) {
        let code = match self.wide {
            Wide::Z => Code::EVEX_Vpbroadcastd_zmm_k1z_xmmm32,
            Wide::Y => Code::VEX_Vpbroadcastd_ymm_xmmm32,
        };
        self.asm.op2(code, register, from);
    }

    fn zero(&mut self, register: Register) {
        let n = match self.wide {
            Wide::Z => register as u32 - Register::ZMM0 as u32,
            Wide::Y => register as u32 - Register::YMM0 as u32,
        };
        let half = Register::XMM0 + n;
        match self.wide {
            Wide::Z => self.asm.op3(Code::EVEX_Vpxord_xmm_k1z_xmm_xmmm128b32, half, half, half),
            Wide::Y => self.asm.op3(Code::VEX_Vpxor_xmm_xmm_xmmm128, half, half, half),
        }
    }

    /// A constant in all lanes of a temporary.
    pub(super) fn constant(&mut self, value: u32) -> Register {
        let t = self.temporary();
        if value == 0 {
            self.zero(t);
        } else {
            let from = self.asm.constant_once(value);
            self.broadcast(t, from);
        }
        t
    }

    /// Dword `dword` of a source, in a register.
    pub(super) fn source(&mut self, s: &Src, dword: usize, c: usize) -> Register {
        let plain = match s.kind {
            Kind::Vgpr | Kind::VgprMod => {
                let piece = self.piece(s.index, dword, c);
                self.piece_register(piece)
            }
            Kind::Scalar | Kind::ScalarMod => {
                let t = self.temporary();
                let from = self.scalar(s.index + dword as u16);
                self.broadcast(t, from);
                t
            }
            Kind::ConstSigned if dword == 1 => self.constant(((s.value as i32) >> 31) as u32),
            Kind::ConstHigh => self.constant(if dword == 1 { s.value } else { 0 }),
            _ => self.constant(if dword == 0 { s.value } else { 0 }),
        };
        if !matches!(s.kind, Kind::VgprMod | Kind::ScalarMod) {
            return plain;
        }
        self.modified(plain, s.mods)
    }

    /// Sign modifiers of an f32.
    fn modified(&mut self, from: Register, m: u8) -> Register {
        let t = self.temporary();
        let mut at = from;
        if m & mods::ABS_HI != 0 {
            let k = self.constant_argument(0x7FFF_FFFF);
            let code = self.pick(codes::AND);
            self.asm.op3(code, t, at, k);
            at = t;
        }
        if m & mods::NEG_HI != 0 {
            let k = self.constant_argument(0x8000_0000);
            let code = self.pick(codes::XOR);
            self.asm.op3(code, t, at, k);
        }
        t
    }

    /// A constant as a last operand: broadcast from memory, or in a register.
    pub(super) fn constant_argument(&mut self, value: u32) -> Arg {
        match self.wide {
            Wide::Z => self.asm.constant(value).into(),
            Wide::Y => self.constant(value).into(),
        }
    }

    /// Dword `dword` of a source as a last operand.
    pub(super) fn last(&mut self, s: &Src, dword: usize, c: usize) -> Arg {
        if self.wide == Wide::Z && dword == 0 {
            match s.kind {
                Kind::Scalar => return memory(SCALARS, 4 * i64::from(s.index), true).into(),
                Kind::Const | Kind::ConstSigned if s.value != 0 => return self.asm.constant(s.value).into(),
                _ => {}
            }
        }
        self.source(s, dword, c).into()
    }

    /// The register that becomes dword `dword` of row `row`, with the old value if `old` or lanes may be off.
    pub(super) fn destination(&mut self, row: u16, dword: usize, c: usize, old: bool) -> Register {
        let piece = self.piece(row, dword, c);
        let n = match self.regs.find(piece) {
            Some(n) => {
                self.regs.pin(n);
                n
            }
            None => {
                let n = self.hold(piece);
                if old || self.masked {
                    self.load(n, piece);
                }
                n
            }
        };
        self.regs.set_dirty(n);
        self.vector(n)
    }

    /// The EXEC mask register of piece `c`, AVX-512.
    pub(super) fn exec(&self, c: usize) -> Register {
        EXEC_MASKS + c as u32
    }

    /// The last instruction of an operation: `codes destination, operands...`, under EXEC.
    pub(super) fn finish(&mut self, codes: Codes, row: u16, dword: usize, c: usize, operands: &[Arg]) {
        let mut all = [Arg::I(0); 4];
        all[1..=operands.len()].copy_from_slice(operands);
        let all = &mut all[..=operands.len()];
        match (self.wide, self.masked) {
            (_, false) => {
                let d = self.destination(row, dword, c, false);
                all[0] = d.into();
                let code = self.pick(codes);
                self.put(code, all);
            }
            (Wide::Z, true) => {
                let d = self.destination(row, dword, c, true);
                all[0] = d.into();
                let mask = self.exec(c);
                self.asm.masked(codes.z, mask, all);
            }
            (Wide::Y, true) => {
                let t = self.temporary();
                all[0] = t.into();
                self.put(codes.y, all);
                self.blend(row, dword, c, t);
            }
        }
    }

    /// An instruction of two to four operands.
    pub(super) fn put(&mut self, code: Code, all: &[Arg]) {
        match *all {
            [a, b] => self.asm.op2(code, a, b),
            [a, b, x] => self.asm.op3(code, a, b, x),
            [a, b, x, y] => self.asm.op4(code, a, b, x, y),
            _ => {}
        }
    }

    fn blend(&mut self, row: u16, dword: usize, c: usize, from: Register) {
        let d = self.destination(row, dword, c, true);
        self.asm.op4(Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, d, d, from, MASK);
    }

    fn number(&self, register: Register) -> u8 {
        (register as u32 - self.vector(0) as u32) as u8
    }

    /// Makes `from` the destination, under EXEC. A temporary may become the destination's register: it must not be
    /// used for anything else afterwards.
    pub(super) fn result(&mut self, row: u16, dword: usize, c: usize, from: Register) {
        let piece = self.piece(row, dword, c);
        let number = self.number(from);
        if !self.masked && !self.resident && self.regs.rename(number, piece) {
            return;
        }
        self.finish(codes::MOVE, row, dword, c, &[from.into()]);
    }

    /// `destination = a * b + addend`, the NaN of the first source that is one: forms of the instruction that keep that
    /// order are 231 with the addend and 132 with the first factor in the destination.
    pub(super) fn multiply_add(&mut self, s: &Step, c: usize) {
        let is_destination = |k: usize| s.src[k].kind == Kind::Vgpr && s.src[k].index == s.dst;
        let direct = self.wide == Wide::Z || !self.masked;
        if direct && is_destination(2) {
            let a = self.source(&s.src[0], 0, c);
            let b = self.last(&s.src[1], 0, c);
            let d = self.destination(s.dst, 0, c, true);
            return self.under_exec(codes::FMA231, c, &[d.into(), a.into(), b]);
        }
        if direct && is_destination(0) {
            let addend = self.source(&s.src[2], 0, c);
            let b = self.last(&s.src[1], 0, c);
            let d = self.destination(s.dst, 0, c, true);
            return self.under_exec(codes::FMA132, c, &[d.into(), addend.into(), b]);
        }
        let a = self.source(&s.src[0], 0, c);
        let b = self.last(&s.src[1], 0, c);
        let addend = self.source(&s.src[2], 0, c);
        let code = self.pick(codes::FMA231);
        // A constant or scalar is in a temporary already.
        let t = if s.src[2].kind == Kind::Vgpr {
            let t = self.temporary();
            let mov = self.pick(codes::MOVE);
            self.asm.op2(mov, t, addend);
            t
        } else {
            addend
        };
        self.asm.op3(code, t, a, b);
        self.result(s.dst, 0, c, t);
    }

    /// An instruction on a destination that has its old value.
    fn under_exec(&mut self, codes: Codes, c: usize, all: &[Arg]) {
        match self.masked {
            true => {
                let mask = self.exec(c);
                self.asm.masked(codes.z, mask, all);
            }
            false => {
                let code = self.pick(codes);
                self.put(code, all);
            }
        }
    }

    /// Ends one operation at its position: notes when its pieces are needed next.
    pub(super) fn end_operation(&mut self, accesses: &[(Access, u32, bool)]) {
        self.regs.end_operation();
        for &(access, next, overwrites) in accesses {
            self.regs.set_next(access.piece, next, overwrites);
        }
    }

    /// Row pieces of the whole wave.
    pub(super) fn all_pieces(&self) -> usize {
        (self.shape.vgprs + crate::wave::SPARE_VGPRS) * self.pieces()
    }

    /// Loads pieces to stay, those in `written` as newer than memory.
    pub(super) fn hold_all(&mut self, pieces: &[Access], written: &[Piece]) {
        for access in pieces {
            let n = self.hold(access.piece);
            self.load(n, access.piece);
            if written.contains(&access.piece) {
                self.regs.set_dirty(n);
            }
            self.regs.end_operation();
            self.regs.set_next(access.piece, 0, false);
        }
    }

    /// Loads registers with what memory has.
    pub(super) fn load_all(&mut self, held: &[Spill]) {
        for &spill in held {
            self.load(spill.register, spill.piece);
        }
    }

    /// Stores registers without forgetting anything.
    pub(super) fn store_all(&mut self, spills: &[Spill]) {
        for &spill in spills {
            self.store(spill);
        }
    }

    /// Stores all that is newer than memory, and forgets it if `forget`.
    pub(super) fn write_back(&mut self, forget: bool) {
        for spill in self.regs.write_back() {
            self.store(spill);
        }
        if forget {
            self.regs.clear();
        }
    }
}

/// For every access of a list of operations: when its piece is accessed next, and whether that overwrites it.
pub(super) fn next_accesses(list: &[Vec<Access>], pieces: usize) -> Vec<Vec<(Access, u32, bool)>> {
    let mut seen = vec![(NEVER, false); pieces];
    let mut result: Vec<Vec<(Access, u32, bool)>> = Vec::with_capacity(list.len());
    for (position, accesses) in list.iter().enumerate().rev() {
        result.push(
            accesses
                .iter()
                .map(|&a| {
                    let (next, overwrites) = seen[a.piece as usize];
                    (a, next, overwrites)
                })
                .collect(),
        );
        // A read beside a write of the same piece: the old value counts.
        for a in accesses.iter().filter(|a| a.overwrites).chain(accesses.iter().filter(|a| !a.overwrites)) {
            seen[a.piece as usize] = (position as u32, a.overwrites);
        }
    }
    result.reverse();
    result
}
