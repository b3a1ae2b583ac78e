// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fills that are done when the call returns.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::{address_of, transfer};
use crate::abi::{INVALID_ARGUMENT, Outcome, export};
use crate::instance::{Instance, instance};

fn fill(instance: &Instance, ptr: *mut c_void, value: u32, count: usize) -> Outcome {
    let bytes = (count as u64).checked_mul(4).filter(|bytes| i64::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or(INVALID_ARGUMENT)?;
    let Some((block, offset)) = instance.memory.find(address_of(ptr)) else {
        let words = ptr.cast::<u32>();
        for nth in 0..count {
            // SAFETY: the caller's, by the header: `count` aligned words of the program's own.
            unsafe { words.add(nth).write(value) };
        }
        return Ok(());
    };
    if bytes > block.bytes() - offset {
        return Err(INVALID_ARGUMENT);
    }
    let (buffer, at) = block.place(offset)?;
    let span = buffer.span(at, bytes);
    let filled = instance.runtime.fill(span, &value.to_ne_bytes(), &[]).map_err(transfer::status_of)?;
    filled.wait(None).map_err(transfer::status_of)
}

export! {
    /// Sets `count` words to a value.
    fn hsa_amd_memory_fill(ptr: *mut c_void, value: u32, count: usize) {
        let instance = instance()?;
        if ptr.is_null() || !address_of(ptr).is_multiple_of(4) {
            return Err(INVALID_ARGUMENT);
        }
        if count == 0 { Ok(()) } else { fill(instance, ptr, value, count) }
    }
}
