// SPDX-License-Identifier: MIT OR Apache-2.0
//! AQL packets, ring arithmetic, HSA memory layouts, GPU targets and CWSR geometry.
//!
//! INVARIANT: nothing here performs I/O, makes a system call, allocates in proportion to a number it has not
//! checked, or panics on any bytes it is given. Encoders and decoders live side by side, so that the runtime,
//! the device model, the tests and the dumps all mean the same thing by a packet.
//!
//! | module | what it knows |
//! |---|---|
//! | [`aql`] | 64-byte packets of a user-mode queue, and the exception each malformed one raises |
//! | [`pm4`] | packets of compute queues: registers, dispatches, waits, caches, interrupts |
//! | [`ring`] | wrapping packet indices, fullness, and where a restored queue must continue |
//! | [`hsa`] | structures that host, firmware and kernels share byte for byte |
//! | [`target`] | the one table of chips |
//! | [`cwsr`] | how large a queue's context save area must be |
//! | [`save_area`] | what is inside that area |
//! | [`sdma`] | the packet stream of a copy engine's queue |

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod aql;
pub mod cwsr;
pub mod hsa;
pub mod pm4;
pub mod ring;
pub mod save_area;
pub mod sdma;
pub mod target;
pub mod words;
