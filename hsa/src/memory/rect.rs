// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies of boxes out of pitched memory, row by row.
#![allow(unsafe_code)]

use super::address_of;
use super::engine::{Piece, copy, mover, order};
use crate::abi::declared::*;
use crate::abi::{INVALID_ARGUMENT, Outcome, export};
use crate::instance::instance;

/// Directions, under names that are no variables'.
const TO_DEVICE: hsa_amd_copy_direction_t = hsaHostToDevice;
const TO_HOST: hsa_amd_copy_direction_t = hsaDeviceToHost;
const WITHIN_DEVICE: hsa_amd_copy_direction_t = hsaDeviceToDevice;
const WITHIN_HOST: hsa_amd_copy_direction_t = hsaHostToHost;
/// Rows that one call may copy.
const MOST_ROWS: u64 = 1 << 20;

/// One side: where it begins, and how far rows and slices are apart.
struct Side {
    base: u64,
    pitch: u64,
    slice: u64,
}

impl Side {
    fn new(pitched: &hsa_pitched_ptr_t, offset: hsa_dim3_t) -> Outcome<Self> {
        let (pitch, slice) = (pitched.pitch as u64, pitched.slice as u64);
        let start = row(pitch, slice, u64::from(offset.y), u64::from(offset.z));
        let start = start.and_then(|start| start.checked_add(u64::from(offset.x)));
        let base = start.and_then(|start| address_of(pitched.base).checked_add(start));
        Ok(Side { base: base.ok_or(INVALID_ARGUMENT)?, pitch, slice })
    }

    fn at(&self, y: u64, z: u64) -> Outcome<u64> {
        let distance = row(self.pitch, self.slice, y, z);
        distance.and_then(|distance| self.base.checked_add(distance)).ok_or(INVALID_ARGUMENT)
    }
}

fn row(pitch: u64, slice: u64, y: u64, z: u64) -> Option<u64> {
    y.checked_mul(pitch)?.checked_add(z.checked_mul(slice)?)
}

export! {
    /// Copies a box of bytes between pitched memories.
    fn hsa_amd_memory_async_copy_rect(
        dst: *const hsa_pitched_ptr_t,
        dst_offset: *const hsa_dim3_t,
        src: *const hsa_pitched_ptr_t,
        src_offset: *const hsa_dim3_t,
        range: *const hsa_dim3_t,
        copy_agent: hsa_agent_t,
        dir: hsa_amd_copy_direction_t,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
        completion_signal: hsa_signal_t,
    ) {
        let instance = instance()?;
        instance.agents.gpu(copy_agent)?;
        if [dst.is_null(), src.is_null(), dst_offset.is_null(), src_offset.is_null(), range.is_null()].contains(&true)
        {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller's, by the header.
        let (dst, src, dst_offset, src_offset, range) = unsafe {
            (
                dst.read_unaligned(),
                src.read_unaligned(),
                dst_offset.read_unaligned(),
                src_offset.read_unaligned(),
                range.read_unaligned(),
            )
        };
        let (to, from) = (Side::new(&dst, dst_offset)?, Side::new(&src, src_offset)?);
        // SAFETY: the caller's, by the header.
        let order = unsafe { order(instance, num_dep_signals, dep_signals, completion_signal) }?;
        let rows = u64::from(range.y) * u64::from(range.z);
        if rows > MOST_ROWS {
            return Err(INVALID_ARGUMENT);
        }
        if rows == 0 || range.x == 0 {
            return Ok(());
        }
        let mut pieces = Vec::new();
        for z in 0..u64::from(range.z) {
            for y in 0..u64::from(range.y) {
                pieces.push(Piece { to: to.at(y, z)?, from: from.at(y, z)?, bytes: u64::from(range.x) });
            }
        }
        let host = instance.agents.host();
        let agents = match dir {
            TO_DEVICE => (copy_agent, host),
            TO_HOST => (host, copy_agent),
            WITHIN_DEVICE | WITHIN_HOST => (copy_agent, copy_agent),
            _ => return Err(INVALID_ARGUMENT),
        };
        copy(instance, mover(instance, agents.0, agents.1)?, &pieces, order)
    }
}
