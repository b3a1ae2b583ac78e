// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decoder and disassembler against LLVM 19, which every test here runs as a process.

mod corpus;
mod coverage;
mod fuzz;
mod llvm;
mod sweep;
mod unassigned;
