// SPDX-License-Identifier: MIT OR Apache-2.0
//! A piece of x86-64 code that is being emitted: instructions through `iced-x86`, labels, and a pool of constants.
//!
//! INVARIANT: position-independent: [`POOL`] points at the constants while the code runs, and there is no address in it. If an
//! instruction cannot be encoded, [`Asm::finish`] fails and no code of the piece runs.

use std::collections::HashMap;

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, OpKind, Register, RoundingControl};

use super::kept_scalars::KeptScalars;
use crate::wave::Wave;

/// Rows of VGPRs, biased by [`ROW_BIAS`].
pub(super) const ROWS: Register = Register::RBX;
/// The wave's scalar file.
pub(super) const SCALARS: Register = Register::RBP;
/// The ranges in which accesses were found last.
pub(super) const HOT: Register = Register::R12;
/// The `JitContext`.
pub(super) const CONTEXT: Register = Register::R13;
/// The constants.
pub(super) const POOL: Register = Register::R14;
/// Bits of lane masks whose pieces are emitted one after the other (`masks.rs`).
pub(super) const GATHERED: Register = Register::R8D;
/// Rows of renamed registers; only in code for several turns of a loop.
pub(super) const RENAMED: Register = Register::R11;
/// The control's state byte.
pub(super) const FLAG: Register = Register::R15;

/// How far [`ROWS`] points into the rows: with this bias one-byte displacements reach more rows.
pub(super) const ROW_BIAS: i64 = 64 * 128;

/// A place to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Label(usize);

/// Code and constants, ready to be made executable.
pub(super) struct Finished {
    pub code: Vec<u8>,
    pub pool: Vec<u32>,
    places: Vec<usize>,
}

impl Finished {
    /// Offset of `label` in the code.
    pub(super) fn offset(&self, label: Label) -> usize {
        self.places[label.0]
    }
}

/// Why there is no code.
#[derive(Debug, thiserror::Error)]
pub(super) enum AsmError {
    #[error("An instruction cannot be encoded: {0}; the interpreter runs this program")]
    Encode(#[from] IcedError),
    #[error("A branch over {0} bytes is out of reach; the interpreter runs this program")]
    Far(i64),
    #[error("An operation needs more vector registers than there are; the interpreter runs this program")]
    Exhausted,
    #[error("Something jumps to label {0}, which has no place; the interpreter runs this program")]
    Unplaced(usize),
}

/// What the address in RAX is the sum of: a place, and an offset of the context or of the scalar file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub base: Register,
    pub displacement: i64,
    pub plus: Option<(Register, i64)>,
}

pub(super) struct Asm {
    encoder: Encoder,
    /// What is in RAX, as far as it is known.
    address: Option<Sum>,
    at: usize,
    labels: Vec<Option<usize>>,
    /// End of a four-byte displacement, and its target.
    fixups: Vec<(usize, Label)>,
    pool: Vec<u32>,
    words: HashMap<u32, usize>,
    blocks: HashMap<Vec<u32>, usize>,
    failed: Option<IcedError>,
    /// The condition that SCC has been given, and the place behind that, where the flags still have it.
    flags: Option<(Code, usize)>,
    /// The scalar that EAX has, and the place behind the instruction that stored it.
    result: Option<(u16, usize)>,
    /// Scalars that registers have.
    kept: KeptScalars,
    /// Labels and calls so far.
    interruptions: usize,
    /// Whether SCC is not stored, since it is not read before it is written again.
    pub without_scc: bool,
}

impl Asm {
    pub(super) fn new() -> Asm {
        Asm {
            encoder: Encoder::new(64),
            address: None,
            at: 0,
            labels: Vec::new(),
            fixups: Vec::new(),
            pool: Vec::new(),
            words: HashMap::new(),
            blocks: HashMap::new(),
            failed: None,
            flags: None,
            result: None,
            kept: KeptScalars::default(),
            interruptions: 0,
            without_scc: false,
        }
    }

    /// Appends an instruction.
    pub(super) fn put(&mut self, instruction: Result<Instruction, IcedError>) {
        if self.failed.is_some() {
            return;
        }
        if let Ok(instruction) = &instruction {
            self.kept.note(instruction);
            if is_call(instruction) {
                self.interruptions += 1;
                self.kept.clear();
            }
            if may_change_address(instruction) {
                self.address = None;
            }
        }
        match instruction.and_then(|i| self.encoder.encode(&i, self.at as u64)) {
            Ok(bytes) => self.at += bytes,
            Err(error) => self.failed = Some(error),
        }
    }

    /// An instruction without operands.
    pub(super) fn op0(&mut self, code: Code) {
        self.put(Ok(Instruction::with(code)));
    }

    pub(super) fn op1(&mut self, code: Code, a: impl Into<Arg>) {
        self.put(build(code, &[a.into()]));
    }

    pub(super) fn op2(&mut self, code: Code, a: impl Into<Arg>, b: impl Into<Arg>) {
        self.put(build(code, &[a.into(), b.into()]));
    }

    pub(super) fn op3(&mut self, code: Code, a: impl Into<Arg>, b: impl Into<Arg>, c: impl Into<Arg>) {
        self.put(build(code, &[a.into(), b.into(), c.into()]));
    }

    pub(super) fn op4(
        &mut self,
        code: Code,
        a: impl Into<Arg>,
        b: impl Into<Arg>,
        c: impl Into<Arg>,
        d: impl Into<Arg>,
    ) {
        self.put(build(code, &[a.into(), b.into(), c.into(), d.into()]));
    }

    /// Any of the above under mask register `mask`: inactive lanes keep the destination's value.
    pub(super) fn masked(&mut self, code: Code, mask: Register, operands: &[Arg]) {
        self.put(build(code, operands).map(|mut i| {
            i.set_op_mask(mask);
            i
        }));
    }

    /// As [`Asm::masked`], but inactive lanes become zero.
    pub(super) fn zeroed(&mut self, code: Code, mask: Register, operands: &[Arg]) {
        self.put(build(code, operands).map(|mut i| {
            i.set_op_mask(mask);
            i.set_zeroing_masking(true);
            i
        }));
    }

    /// An instruction on registers with its own rounding mode instead of MXCSR's.
    pub(super) fn rounded(&mut self, code: Code, rounding: RoundingControl, operands: &[Arg]) {
        self.put(build(code, operands).map(|mut i| {
            i.set_rounding_control(rounding);
            i
        }));
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    pub(super) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.at);
        (self.address, self.flags, self.result) = (None, None, None);
        self.interruptions += 1;
        self.kept.clear();
    }

    /// The same where all code that jumps there leaves RAX as it is here.
    pub(super) fn place_with_address(&mut self, label: Label) {
        let address = self.address;
        self.place(label);
        self.address = address;
    }

    /// The register that has a scalar, as memory does.
    pub(super) fn kept(&self, index: u16) -> Option<Register> {
        self.kept.find(index)
    }

    /// Keeps a scalar, whose place in memory has just been given what `from` has.
    pub(super) fn keep(&mut self, index: u16, from: Register) {
        let register = self.kept.take();
        self.op2(Code::Mov_r32_rm32, register, from);
        self.kept.set(register, index);
    }

    /// Changes at every label and every call: while it does not, registers have what the code before has put there.
    pub(super) fn interruptions(&self) -> usize {
        self.interruptions
    }

    /// Whether RAX is this sum at this point of the code.
    pub(super) fn has_address(&self, sum: Sum) -> bool {
        self.address == Some(sum)
    }

    /// RAX has become this sum.
    pub(super) fn set_address(&mut self, sum: Sum) {
        self.address = Some(sum);
    }

    /// The flags have SCC, in the form of this instruction that sets a byte.
    pub(super) fn set_flags(&mut self, condition: Code) {
        self.flags = Some((condition, self.at));
    }

    /// How the flags have SCC, if they do here.
    pub(super) fn flags(&self) -> Option<Code> {
        self.flags.filter(|(_, at)| *at == self.at).map(|(condition, _)| condition)
    }

    /// EAX has scalar `index`, as memory does.
    pub(super) fn set_result(&mut self, index: u16) {
        self.result = Some((index, self.at));
    }

    /// Whether EAX has scalar `index` here.
    pub(super) fn has_result(&self, index: u16) -> bool {
        self.result == Some((index, self.at))
    }

    /// A jump with a four-byte displacement (`Jmp_rel32_64`, `Je_rel32_64` and the like).
    pub(super) fn jump(&mut self, code: Code, label: Label) {
        let here = self.at as u64;
        self.put(Instruction::with_branch(code, here));
        self.fixups.push((self.at, label));
    }

    /// `to` = the address of `label`.
    pub(super) fn address_of(&mut self, to: Register, label: Label) {
        // The target is filled in later, as that of a jump: both are displacements at the end of an instruction.
        let here = MemoryOperand::with_base_displ(Register::RIP, self.at as i64);
        self.put(Instruction::with2(Code::Lea_r64_m, to, here));
        self.fixups.push((self.at, label));
    }

    /// The memory operand that gives `value` in all lanes: a broadcast.
    pub(super) fn constant(&mut self, value: u32) -> MemoryOperand {
        memory(POOL, 4 * self.constant_index(value) as i64, true)
    }

    /// The memory operand of one `value`.
    pub(super) fn constant_once(&mut self, value: u32) -> MemoryOperand {
        memory(POOL, 4 * self.constant_index(value) as i64, false)
    }

    /// The memory operand of the eight bytes of `value`; a broadcast if `broadcast`.
    pub(super) fn constant64(&mut self, value: u64, broadcast: bool) -> MemoryOperand {
        // CAST: its two halves.
        let place = self.block(&[value as u32, (value >> 32) as u32]);
        MemoryOperand { is_broadcast: broadcast, ..place }
    }

    fn constant_index(&mut self, value: u32) -> usize {
        let pool = &mut self.pool;
        *self.words.entry(value).or_insert_with(|| {
            pool.push(value);
            pool.len() - 1
        })
    }

    /// The memory operand of these eight words.
    pub(super) fn constants(&mut self, values: [u32; 8]) -> MemoryOperand {
        self.block(&values)
    }

    /// The memory operand of eight copies of `value`.
    pub(super) fn constant_lanes(&mut self, value: u32) -> MemoryOperand {
        self.block(&[value; 8])
    }

    /// The memory operand of four copies of the eight bytes of `value`.
    pub(super) fn constant64_lanes(&mut self, value: u64) -> MemoryOperand {
        // CAST: its two halves.
        let halves = [value as u32, (value >> 32) as u32];
        self.block(&std::array::from_fn::<u32, 8, _>(|k| halves[k % 2]))
    }

    /// The memory operand of these sixteen words.
    pub(super) fn constants16(&mut self, values: [u32; 16]) -> MemoryOperand {
        self.block(&values)
    }

    fn block(&mut self, values: &[u32]) -> MemoryOperand {
        let pool = &mut self.pool;
        let index = *self.blocks.entry(values.to_vec()).or_insert_with(|| {
            pool.extend(values);
            pool.len() - values.len()
        });
        // The pool is aligned to dwords only.
        memory(POOL, 4 * index as i64, false)
    }

    /// The code with all jump targets filled in.
    pub(super) fn finish(mut self) -> Result<Finished, AsmError> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        let mut code = self.encoder.take_buffer();
        for (end, label) in self.fixups {
            let place = self.labels[label.0].ok_or(AsmError::Unplaced(label.0))?;
            let distance = place as i64 - end as i64;
            let short = i32::try_from(distance).map_err(|_| AsmError::Far(distance))?;
            code[end - 4..end].copy_from_slice(&short.to_le_bytes());
        }
        // A label without a jump to it may have no position.
        let places = self.labels.into_iter().map(|place| place.unwrap_or(0)).collect();
        Ok(Finished { code, pool: self.pool, places })
    }
}

/// An operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    R(Register),
    M(MemoryOperand),
    I(i32),
}

impl From<Register> for Arg {
    fn from(r: Register) -> Arg {
        Arg::R(r)
    }
}

impl From<MemoryOperand> for Arg {
    fn from(m: MemoryOperand) -> Arg {
        Arg::M(m)
    }
}

impl From<i32> for Arg {
    fn from(i: i32) -> Arg {
        Arg::I(i)
    }
}

/// Memory at `base + displacement`; `broadcast` repeats its element in all lanes.
pub(super) fn memory(base: Register, displacement: i64, broadcast: bool) -> MemoryOperand {
    MemoryOperand::new(base, Register::None, 1, displacement, 1, broadcast, Register::None)
}

/// The field of the context at `offset`.
pub(super) fn context(offset: usize) -> MemoryOperand {
    memory(CONTEXT, offset as i64, false)
}

/// The field of the wave at `offset`; [`SCALARS`] points into it.
pub(super) fn wave_field(offset: usize) -> MemoryOperand {
    memory(SCALARS, offset as i64 - std::mem::offset_of!(Wave, s) as i64, false)
}

/// Whether RAX, or what it is the sum of, may be another one behind an instruction. No instruction that is emitted writes RAX
/// without naming it first.
fn may_change_address(i: &Instruction) -> bool {
    let writes_place = i.op0_kind() == OpKind::Memory && matches!(i.memory_base(), CONTEXT | SCALARS);
    is_call(i)
        || writes_place
        || i.op0_kind() == OpKind::Register && i.op0_register().full_register() == Register::RAX
}

fn is_call(i: &Instruction) -> bool {
    matches!(i.code(), Code::Call_rel32_64 | Code::Call_rm64)
}

fn build(code: Code, operands: &[Arg]) -> Result<Instruction, IcedError> {
    use Arg::{I, M, R};
    match *operands {
        [R(a)] => Instruction::with1(code, a),
        [M(a)] => Instruction::with1(code, a),
        [I(a)] => Instruction::with1(code, a),
        [R(a), R(b)] => Instruction::with2(code, a, b),
        [R(a), M(b)] => Instruction::with2(code, a, b),
        [R(a), I(b)] => Instruction::with2(code, a, b),
        [M(a), R(b)] => Instruction::with2(code, a, b),
        [M(a), I(b)] => Instruction::with2(code, a, b),
        [R(a), R(b), R(c)] => Instruction::with3(code, a, b, c),
        [R(a), R(b), M(c)] => Instruction::with3(code, a, b, c),
        [R(a), R(b), I(c)] => Instruction::with3(code, a, b, c),
        [R(a), M(b), R(c)] => Instruction::with3(code, a, b, c),
        [R(a), M(b), I(c)] => Instruction::with3(code, a, b, c),
        [M(a), R(b), I(c)] => Instruction::with3(code, a, b, c),
        [M(a), R(b), R(c)] => Instruction::with3(code, a, b, c),
        [R(a), R(b), R(c), R(d)] => Instruction::with4(code, a, b, c, d),
        [R(a), R(b), M(c), R(d)] => Instruction::with4(code, a, b, c, d),
        [R(a), R(b), R(c), I(d)] => Instruction::with4(code, a, b, c, d),
        [R(a), R(b), M(c), I(d)] => Instruction::with4(code, a, b, c, d),
        _ => Instruction::with1(Code::INVALID, Register::None),
    }
}
