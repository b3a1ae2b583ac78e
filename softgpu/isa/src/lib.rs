// SPDX-License-Identifier: MIT OR Apache-2.0
//! gfx machine code: one declarative table of operations, and the decoder, disassembler and def/use sets made from it.
//!
//! INVARIANT: an opcode that is not in the table never decodes; an instruction prints as LLVM's disassembler prints it.
//! The crate is pure: no state, no I/O, no unsafe code, and no input makes it panic.
//!
//! ```
//! let inst = softgpu_isa::decode(&[0x0602_0501]).expect("a VOP2 word");
//! assert_eq!(inst.to_string(), "v_add_f32_e32 v1, v1, v2");
//! ```
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod decode;
mod effects;
mod info;
mod inst;
mod layout;
mod print;
mod table;

pub use decode::{decode, decode_for, decode_strict};
pub use effects::{Effects, RegSet};
pub use info::{Class, Code, Column, EncodingFamily, Flags, Fmt, Slot, Ty};
pub use inst::{DecodeError, Dpp, Enc, Inst, Operand, Second, WaveSize};
pub use print::Text;
pub use table::{Op, OpInfo, info, rows};

/// The version of this package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
