// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of the C library that this library defines.
//!
//! INVARIANT: each is as safe for its caller as the C library's function is: it passes on the caller's pointers, or
//! accesses what they name as that function would.
//!
//! A test program of this crate has them under other names: it would replace the C library's for itself.
#![allow(unsafe_code)]

mod control;
mod lookup;
mod map;
mod names;
mod open;
mod place;
mod status;
mod wrap;

#[cfg(test)]
mod tests;
