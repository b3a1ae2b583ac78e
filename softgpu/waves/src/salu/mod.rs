// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scalar ALU and program control.

mod alu;
pub(crate) mod control;
mod hwreg;
mod unary;

use softgpu_isa::Op;

use crate::step::Handler;

/// A table of scalar handlers: `OP = shape { closure }`.
macro_rules! scalar_table {
    ($(#[$doc:meta])* $table:ident: $($op:ident = $shape:path $({ $($f:expr),+ $(,)? })?;)*) => {
        $(#[$doc])*
        pub(crate) fn $table(op: softgpu_isa::Op) -> Option<$crate::step::Handler> {
            Some(match op {
                $(softgpu_isa::Op::$op => {
                    fn run(w: &mut $crate::wave::Wave, _: &mut $crate::env::Env<'_>, s: &$crate::step::Step) -> $crate::step::Flow {
                        $shape(w, s $(, $($f),+)?);
                        $crate::step::Flow::Next
                    }
                    run as $crate::step::Handler
                })*
                _ => return None,
            })
        }
    };
}
pub(crate) use scalar_table;

/// The handler of a scalar operation.
pub(crate) fn handler(op: Op) -> Option<Handler> {
    alu::table(op).or_else(|| unary::table(op)).or_else(|| control::table(op)).or_else(|| hwreg::table(op))
}
