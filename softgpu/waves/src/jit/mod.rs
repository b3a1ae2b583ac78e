// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code generator: predecoded programs as x86-64 code, AVX-512 or AVX2.
//!
//! INVARIANT: generated code gives the same bits as the steps' handlers. It calls the handler of every step that it
//! does not do inline, so every program can be compiled. It is entered at heads of blocks only, with the MODE that it
//! was generated for; the interpreter does the rest. At an exit all state is in the wave: a wave that was stopped in
//! generated code is saved as any other.
//!
//! ```text
//! flow       blocks, and the order within them      generator  registers and the pieces in them
//! analysis   what is known of registers before the program runs
//! touch      which steps may change places          operands   sources in registers
//! order      operations on one accumulator          results    destinations, under EXEC
//! emit       blocks and branches                    regs       what is in which register
//! region     operations between changes of EXEC     masks      EXEC, VCC, carries
//! switch     from wave to wave of a workgroup
//! exits      calls of handlers, exits               dpp, dpp_avx2: permuted lanes
//! copies, unrolled: several turns of a loop as one  quick    for all lanes only
//! progressions, steady, first_lanes: addresses by the first lane
//! resident   loops in registers                     floats     fields of MODE
//! lane, integer, bits, compare, carry, extremes, scalar, convert, special, division_avx2, transcend: operations
//! asm, codes instructions, labels, constants        transfer   accesses that are emitted inline
//! memory     pages, never writable and executable   vmem       loads and stores by pattern
//! context    data that generated code exchanges with Rust code
//! ```

mod analysis;
mod asm;
mod bits;
mod carry;
mod chain;
mod codes;
mod compare;
mod compiled;
mod context;
mod convert;
mod copies;
mod division_avx2;
mod dpp;
mod dpp_avx2;
mod emit;
mod exits;
mod extremes;
mod first_lanes;
mod floats;
mod flow;
mod generator;
mod integer;
mod kept_scalars;
mod lane;
mod lane_masks;
mod lane_scalars;
mod masks;
mod matrix;
mod memory;
mod mix;
mod operands;
mod order;
mod permute_rows;
mod piecewise;
mod products;
mod progressions;
mod quick;
mod region;
mod regs;
mod resident;
mod results;
mod scalar;
mod scalar_arithmetic;
mod special;
mod steady;
mod switch;
#[cfg(test)]
mod tests;
mod tiles;
mod touch;
mod transcend;
mod transfer;
mod unrolled;
mod vmem;

pub(crate) use self::compiled::{Activation, Compiled, Left, Memory, can_generate, generate};
