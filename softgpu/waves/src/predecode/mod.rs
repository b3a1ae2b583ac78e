// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowers one decoded instruction to steps: chooses the handler, and resolves operands to rows, scalar indices and
//! constants.
//!
//! INVARIANT: a step never indexes outside the register files of a wave with the given shape; an instruction that would
//! becomes [`Lowered::Illegal`]. Hints and cache operations become no step.

mod lowering;
mod memory;
mod operands;
mod scalar;
mod vector;

use softgpu_isa::{Enc, Flags, Inst, Op, info};

use self::lowering::Lowering;
pub(crate) use self::lowering::{Shape, blank};
use crate::level::Level;
use crate::step::Step;

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

/// Steps of `inst` at `pc` for waves of `shape`.
pub(crate) fn lower(level: Level, shape: Shape, pc: u64, inst: &Inst) -> Lowered {
    let row = info(inst.op);
    if row.any(Flags::HINT | Flags::CACHE) || matches!(inst.op, Op::V_NOP | Op::V_PIPEFLUSH) {
        return Lowered::Dropped;
    }
    let lowering = Lowering { level, shape, pc, inst };
    let one = |step: Option<Step>| step.map(|s| vec![s]);
    let steps = match inst.enc {
        Enc::Sop1 | Enc::Sop2 | Enc::Sopk | Enc::Sopc | Enc::Sopp => one(lowering.scalar()),
        Enc::Smem => one(lowering.scalar_memory()),
        Enc::Ds | Enc::Flat | Enc::Global | Enc::Scratch | Enc::Mubuf | Enc::Mtbuf => {
            one(lowering.vector_memory())
        }
        Enc::Vopd => inst.second.as_ref().and_then(|second| lowering.dual(second)),
        _ => lowering.vector(inst.op, inst.dst, &inst.src[..3], true).and_then(|step| match inst.dpp {
            Some(dpp) => lowering.with_dpp(dpp, step),
            None => Some(vec![step]),
        }),
    };
    steps.map_or(Lowered::Illegal, Lowered::Steps)
}
