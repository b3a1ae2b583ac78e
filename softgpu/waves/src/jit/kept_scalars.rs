// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results of the last scalar steps, which host registers have as memory does: a step behind does not wait until its operand can be
//! loaded.
//!
//! INVARIANT: a register named here has what memory has, until an instruction is noted that may change either.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::asm::SCALARS;

/// The registers. Accesses to memory use the first two, which is noted.
const REGISTERS: [Register; 4] = [Register::ESI, Register::EDI, Register::R9D, Register::R10D];

/// Which scalars registers have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeptScalars {
    scalars: [Option<u16>; REGISTERS.len()],
    /// The register that has had its scalar for longest.
    next: usize,
}

impl KeptScalars {
    /// The register that has a scalar.
    pub(super) fn find(&self, index: u16) -> Option<Register> {
        let n = self.scalars.iter().position(|scalar| *scalar == Some(index))?;
        Some(REGISTERS[n])
    }

    /// A register for a scalar that none has, to be moved there at once.
    pub(super) fn take(&mut self) -> Register {
        let register = REGISTERS[self.next];
        self.next = (self.next + 1) % REGISTERS.len();
        register
    }

    /// A register has this scalar now.
    pub(super) fn set(&mut self, register: Register, index: u16) {
        for (known, scalar) in REGISTERS.iter().zip(&mut self.scalars) {
            if *known == register {
                *scalar = Some(index);
            }
        }
    }

    /// Nothing is known: code from elsewhere goes on here, or something is called.
    pub(super) fn clear(&mut self) {
        self.scalars = Default::default();
    }

    /// An instruction comes next.
    pub(super) fn note(&mut self, i: &Instruction) {
        match i.op0_kind() {
            OpKind::Register => {
                let written = i.op0_register().full_register();
                for (register, scalar) in REGISTERS.iter().zip(&mut self.scalars) {
                    if register.full_register() == written {
                        *scalar = None;
                    }
                }
            }
            OpKind::Memory if i.memory_base() == SCALARS && !only_reads(i.mnemonic()) => {
                // CAST: a field of the wave is near its scalar file; those in front of it are behind all scalars as unsigned numbers.
                let (from, bytes) = (i.memory_displacement64(), i.memory_size().size() as u64);
                for scalar in &mut self.scalars {
                    scalar.take_if(|index| {
                        let at = 4 * u64::from(*index);
                        from < at + 4 && at < from.saturating_add(bytes)
                    });
                }
            }
            _ => {}
        }
    }
}

/// Whether an instruction leaves its first operand as it is.
fn only_reads(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt)
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, IcedError, MemoryOperand};

    use super::*;

    fn at(displacement: i64) -> MemoryOperand {
        super::super::asm::memory(SCALARS, displacement, false)
    }

    #[test]
    fn scalars_are_known_until_they_or_their_registers_are_written() -> Result<(), IcedError> {
        let with = |instruction: Instruction| {
            let mut kept = KeptScalars::default();
            for index in [0, 1, 126, 7] {
                let register = kept.take();
                kept.set(register, index);
            }
            kept.note(&instruction);
            [0, 1, 126, 7].map(|index| kept.find(index).is_some())
        };
        assert_eq!(
            with(Instruction::with2(Code::Mov_rm32_r32, at(4), Register::EAX)?),
            [true, false, true, true]
        );
        assert_eq!(
            with(Instruction::with2(Code::Mov_rm64_r64, at(0), Register::RAX)?),
            [false, false, true, true]
        );
        assert_eq!(
            with(Instruction::with2(Code::Mov_rm8_r8, at(4 * 126 + 3), Register::AL)?),
            [true, true, false, true]
        );
        assert_eq!(with(Instruction::with2(Code::Cmp_rm32_imm8, at(4), 0)?), [true; 4]);
        assert_eq!(with(Instruction::with2(Code::Mov_rm64_r64, at(-8), Register::RAX)?), [true; 4]);
        let xmm = Instruction::with2(Code::VEX_Vmovdqu_xmmm128_xmm, at(16), Register::XMM0)?;
        assert_eq!(with(xmm), [true, true, true, false]);
        assert_eq!(
            with(Instruction::with2(Code::Mov_r64_rm64, Register::RDI, at(64))?),
            [true, false, true, true]
        );
        Ok(())
    }
}
