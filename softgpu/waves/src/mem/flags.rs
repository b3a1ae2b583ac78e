// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bits of `Step::flags` that memory steps have beside those of [`crate::step`].
//!
//! INVARIANT: no two bits that one step may have are the same.

/// DS two-address forms whose offsets count 64 elements.
pub(crate) const FLAG_STRIDE64: u16 = 32;
/// MUBUF: a VGPR offset follows.
pub(crate) const FLAG_OFFEN: u16 = 64;
/// MUBUF: a VGPR index follows.
pub(crate) const FLAG_IDXEN: u16 = 128;
/// MUBUF, MTBUF: a status dword follows the loaded data.
pub(crate) const FLAG_TFE: u16 = 256;
