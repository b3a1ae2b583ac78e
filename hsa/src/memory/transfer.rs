// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies that are done when the call returns.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use stasis::CopyError;

use super::{Block, Origin, address_of, engine};
use crate::abi::{ERROR, INVALID_ARGUMENT, Outcome, Status, export, slice};
use crate::instance::{Instance, instance};

/// One end of a copy.
enum End {
    /// A block, from an offset on.
    Block(Arc<Block>, u64),
    /// The program's own memory.
    Host,
}

/// Where an end lies; an error if it leaves its block. Variables of code objects are the program's own where the CPU sees them.
fn end(instance: &Instance, address: u64, bytes: u64) -> Outcome<End> {
    match instance.memory.find(address) {
        Some((block, offset)) if bytes <= block.bytes() - offset => match block.origin {
            Origin::Code(_) if block.is_visible(instance) => Ok(End::Host),
            _ => Ok(End::Block(block, offset)),
        },
        Some(_) => Err(INVALID_ARGUMENT),
        None => Ok(End::Host),
    }
}

/// The status of a copy that failed.
pub fn status_of(error: CopyError) -> Status {
    tracing::debug!(target: "hsa", error = %stasis::explain(&error), "a copy failed");
    match error {
        CopyError::Range { .. } | CopyError::Overlap { .. } | CopyError::Length { .. } => INVALID_ARGUMENT,
        _ => ERROR,
    }
}

/// Copies between any two places that do not overlap: the program vouches for memory of its own.
pub fn copy(instance: &Instance, dst: *mut c_void, src: *const c_void, size: usize) -> Outcome {
    let bytes = size as u64;
    let (to, from) = (end(instance, address_of(dst), bytes)?, end(instance, address_of(src), bytes)?);
    match (to, from) {
        (End::Block(to, at), End::Block(from, offset)) => {
            let ((to, at), (from, offset)) = (to.place(at)?, from.place(offset)?);
            let (to, from) = (to.span(at, bytes), from.span(offset, bytes));
            let transfer = instance.runtime.copy(to, from, &[]).map_err(status_of)?;
            transfer.wait(None).map_err(status_of)
        }
        (End::Block(to, at), End::Host) => {
            // SAFETY: the caller's, by the header: readable for `size`.
            let from = unsafe { slice(src.cast::<u8>(), size) }?;
            let (to, at) = to.place(at)?;
            to.upload(at, from).map_err(status_of)
        }
        (End::Host, End::Block(from, offset)) => {
            // SAFETY: the caller's, by the header: writable for `size`, and nobody else's during the call.
            let to = unsafe { std::slice::from_raw_parts_mut(dst.cast::<u8>(), size) };
            let (from, offset) = from.place(offset)?;
            from.download(offset, to).map_err(status_of)?;
            flush(instance, address_of(dst))
        }
        (End::Host, End::Host) => {
            // SAFETY: the caller's, by the header: both ends are the program's, of `size` bytes.
            unsafe { dst.cast::<u8>().copy_from(src.cast::<u8>(), size) };
            flush(instance, address_of(dst))
        }
    }
}

/// Makes what the CPU wrote into a code object's memory seen by its agent.
fn flush(instance: &Instance, address: u64) -> Outcome {
    match instance.memory.find(address).map(|(block, _)| block.origin) {
        Some(Origin::Code(agent)) => {
            instance.agents.at(agent).ok_or(ERROR)?.gpu()?.flush_host_writes().map_err(|_| ERROR)
        }
        _ => Ok(()),
    }
}

export! {
    /// Copies between any two places; they do not overlap.
    fn hsa_memory_copy(dst: *mut c_void, src: *const c_void, size: usize) {
        let instance = instance()?;
        engine::whole(dst, src, size)?;
        if size == 0 { Ok(()) } else { copy(instance, dst, src, size) }
    }
}
