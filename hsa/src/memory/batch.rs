// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies that are submitted together: each of one piece or of many, and to many places.
#![allow(unsafe_code)]

use super::engine::{Order, Piece, Way, copy, mover, order, whole};
use super::pointer_to;
use crate::abi::declared::*;
use crate::abi::{INVALID_ARGUMENT, NOT_SUPPORTED, Outcome, export, slice};
use crate::instance::{Instance, instance};

/// What is copied, and the GPU whose copy engine is to do it.
struct Entry<'i> {
    by: Option<(&'i stasis::Agent, Way)>,
    piece: Piece,
}

/// A list of the program's that a word of a copy points to.
///
/// # Safety
/// The word is 0, or points to that many values.
unsafe fn list<'l, T>(word: u64, count: usize) -> Outcome<&'l [T]> {
    // SAFETY: by contract.
    unsafe { slice(pointer_to(word).cast_const().cast::<T>(), count) }
}

/// What a copy of a batch copies.
///
/// # Errors
/// [`INVALID_ARGUMENT`], [`NOT_SUPPORTED`] for exchanges, addresses that are found in memory, and what is waited for or written by the
/// engine itself.
///
/// # Safety
/// Lists have as many entries as the copy says.
unsafe fn entries<'i>(instance: &'i Instance, op: &hsa_amd_memory_copy_op_t) -> Outcome<Vec<Entry<'i>>> {
    if op.version != copy_op::VERSION || op.type_ > copy_op::LAST || op.reserved != 0 {
        return Err(INVALID_ARGUMENT);
    }
    let is_plain = matches!(op.type_, copy_op::LINEAR | copy_op::BROADCAST);
    if !is_plain || op.wait != [0; 4] || op.signal != [0; 3] {
        return Err(NOT_SUPPORTED);
    }
    let count = usize::from(op.num_entries);
    if op.other_size != 0 || (op.type_ == copy_op::BROADCAST && count == 0) {
        return Err(INVALID_ARGUMENT);
    }
    let from = op.src_agent;
    let entry = |to, dst: u64, src: u64, size: u64| {
        let piece = whole(pointer_to(dst), pointer_to(src), queues::words::size(size))?;
        Ok(Entry { by: mover(instance, to, from)?, piece })
    };
    if count == 0 {
        return Ok(vec![entry(hsa_agent_t { handle: op.dst_agent }, op.dst, op.src, op.size)?]);
    }
    // SAFETY: by contract.
    let (to, dst) = unsafe { (list::<hsa_agent_t>(op.dst_agent, count)?, list::<u64>(op.dst, count)?) };
    let (src, size) = match op.type_ {
        copy_op::BROADCAST => (vec![op.src; count], vec![op.size; count]),
        // SAFETY: as above.
        _ => unsafe { (list::<u64>(op.src, count)?.to_vec(), list::<u64>(op.size, count)?.to_vec()) },
    };
    (0..count).map(|nth| entry(to[nth], dst[nth], src[nth], size[nth])).collect()
}

/// Checks all copies of a batch.
///
/// # Safety
/// As for [`entries`] and [`order`].
unsafe fn checked<'i>(
    instance: &'i Instance,
    ops: &[hsa_amd_memory_copy_op_t],
    (count, signals): (u32, *const hsa_signal_t),
) -> Outcome<Vec<(Vec<Entry<'i>>, Order)>> {
    let done = ops.first().ok_or(INVALID_ARGUMENT)?.completion_signal;
    if ops.iter().any(|op| op.completion_signal.handle != done.handle) {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: by contract.
    let order = unsafe { order(instance, count, signals, done) }?;
    let one = |op: &hsa_amd_memory_copy_op_t| {
        // SAFETY: by contract.
        let mut entries = unsafe { entries(instance, op) }?;
        entries.retain(|entry| entry.piece.bytes > 0);
        Ok((entries, order.clone()))
    };
    ops.iter().map(one).collect()
}

export! {
    /// Copies several times, and decrements the one signal of all for each copy that is done.
    fn hsa_amd_memory_async_batch_copy(
        copy_ops: *const hsa_amd_memory_copy_op_t,
        num_copy_ops: u32,
        num_dep_signals: u32,
        dep_signals: *const hsa_signal_t,
    ) {
        let instance = instance()?;
        if copy_ops.is_null() || num_copy_ops == 0 {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller's, by the header.
        let ops = unsafe { slice(copy_ops, num_copy_ops as usize) }?;
        // SAFETY: as above.
        let all = unsafe { checked(instance, ops, (num_dep_signals, dep_signals)) }?;
        for (entries, order) in all {
            let place = |by: Option<(&stasis::Agent, Way)>| by.map(|(agent, way)| (agent.index(), way));
            let first = entries.first().and_then(|entry| entry.by);
            // One engine tells the end of all; where several would have to, a thread copies.
            let is_one = entries.iter().all(|entry| place(entry.by) == place(first));
            let pieces: Vec<Piece> = entries.iter().map(|entry| entry.piece).collect();
            copy(instance, first.filter(|_| is_one), &pieces, order)?;
        }
        Ok(())
    }
}
