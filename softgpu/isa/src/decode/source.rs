// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operand fields to operands.
//!
//! INVARIANT: a scalar tuple is aligned down to the multiple its width asks for, as the hardware's operand fetch does
//! (the low register-number bits are ignored), and lies inside its register file.

use super::cursor::Cursor;
use crate::info::{Class, Slot, Ty};
use crate::inst::{DecodeError, Operand};
use crate::layout;

/// First code past the general scalar registers, and of VCC.
const VCC_LO: u32 = 106;
/// Code of EXEC.
const EXEC_LO: u32 = 126;
/// Code of LDS direct.
const LDS_DIRECT: u32 = 254;
/// First trap-temporary register's code.
const TTMP0: u32 = 108;
/// Trap-temporary registers.
const TTMPS: u32 = 16;

/// A register of the scalar file, code 0..=127; `None` if `dwords` do not fit there.
pub(super) fn scalar_register(code: u32, dwords: u8) -> Option<Operand> {
    let width = u32::from(dwords);
    let align = match width {
        1 => 1,
        2 => 2,
        _ => 4,
    };
    let tuple = |first: u32, count: u32| {
        let index = first / align * align;
        u8::try_from(index).ok().filter(|_| index + width <= count)
    };
    match code {
        0..VCC_LO => tuple(code, VCC_LO).map(Operand::Sgpr),
        TTMP0..layout::NULL => tuple(code - TTMP0, TTMPS).map(Operand::Ttmp),
        VCC_LO if width <= 2 => Some(Operand::Vcc),
        EXEC_LO if width <= 2 => Some(Operand::ExecLo),
        layout::NULL => Some(Operand::Null),
        107 if width == 1 => Some(Operand::VccHi),
        125 if width == 1 => Some(Operand::M0),
        127 if width == 1 => Some(Operand::ExecHi),
        _ => None,
    }
}

/// A vector register tuple starting at `index`.
pub(super) fn vector_register(index: u32, dwords: u8) -> Option<Operand> {
    let first = u8::try_from(index).ok()?;
    (index + u32::from(dwords) <= 256).then_some(Operand::Vgpr(first))
}

/// A constant, code 128..=253, that needs no further dword.
fn constant(code: u32) -> Option<Operand> {
    // CAST: each arm bounds the code.
    let operand = match code {
        128..=192 => Operand::Int(code as i32 - 128),
        193..=208 => Operand::Int(192 - code as i32),
        235 => Operand::SharedBase,
        236 => Operand::SharedLimit,
        237 => Operand::PrivateBase,
        238 => Operand::PrivateLimit,
        240..=248 => Operand::Float(code.to_le_bytes()[0]),
        251 => Operand::Vccz,
        252 => Operand::Execz,
        253 => Operand::Scc,
        _ => return None,
    };
    Some(operand)
}

impl Cursor<'_> {
    /// A scalar destination or register-only source.
    pub(super) fn register(&self, code: u32, ty: Ty) -> Result<Operand, DecodeError> {
        scalar_register(code, ty.dwords_in(self.wave)).ok_or_else(|| self.illegal())
    }

    /// A vector register.
    pub(super) fn vgpr(&self, index: u32, ty: Ty) -> Result<Operand, DecodeError> {
        vector_register(index, ty.dwords_in(self.wave)).ok_or_else(|| self.illegal())
    }

    /// A scalar source, code 0..=255, without LDS direct.
    pub(super) fn scalar_source(&mut self, code: u32, ty: Ty) -> Result<Operand, DecodeError> {
        let operand = match code {
            0..=127 => scalar_register(code, ty.dwords_in(self.wave)),
            layout::LITERAL => Some(Operand::Literal(self.literal()?)),
            _ => constant(code),
        };
        operand.ok_or_else(|| self.illegal())
    }

    /// A 9-bit vector-format source in `slot`.
    pub(super) fn source(&mut self, code: u32, slot: Slot) -> Result<Operand, DecodeError> {
        let is_vector = code >= layout::VGPR0;
        // Null and the read-only values are accepted only where LLVM's register classes contain them.
        let is_special = matches!(code, layout::NULL | 235..=238 | 251..=253);
        match slot.class {
            _ if code == LDS_DIRECT => {
                self.require(!matches!(slot.class, Class::V | Class::S | Class::M) && slot.ty.dwords() == 1)?;
                Ok(Operand::LdsDirect)
            }
            Class::V | Class::VL => {
                self.require(is_vector || is_special)?;
                self.vector_or_scalar(code, slot.ty)
            }
            Class::M => {
                self.require(code < EXEC_LO || is_special)?;
                self.scalar_source(code, slot.ty)
            }
            Class::S | Class::SL => {
                self.require(!is_vector)?;
                self.scalar_source(code, slot.ty)
            }
            _ => self.vector_or_scalar(code, slot.ty),
        }
    }

    fn vector_or_scalar(&mut self, code: u32, ty: Ty) -> Result<Operand, DecodeError> {
        if code >= layout::VGPR0 { self.vgpr(code - layout::VGPR0, ty) } else { self.scalar_source(code, ty) }
    }
}
