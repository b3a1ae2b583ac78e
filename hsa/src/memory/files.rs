// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files into agents' memory and back. The bytes pass through the host's memory: the driver has no other way to a file.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use nix::sys::stat::fstat;
use nix::sys::uio::{pread, pwrite};

use super::{address_of, pointer_to, transfer};
use crate::abi::declared::*;
use crate::abi::{ERROR, INVALID_ALLOCATION, INVALID_ARGUMENT, Out, Outcome, export};
use crate::instance::{Instance, instance};

/// Bytes that are read or written together.
const TOGETHER: usize = 4 << 20;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    FromFile,
    ToFile,
}

/// Moves bytes; how many, which at the end of a file are fewer than were asked for, and how it ended.
fn pass(
    instance: &Instance,
    file: BorrowedFd<'_>,
    (memory, bytes): (u64, u64),
    offset: i64,
    way: Way,
) -> (u64, Outcome) {
    let mut buffer = vec![0u8; queues::words::size(bytes).min(TOGETHER)];
    let mut done = 0;
    while done < bytes {
        let some = queues::words::size(bytes - done).min(buffer.len());
        let (at, place) = (offset.saturating_add_unsigned(done), pointer_to(memory + done));
        let part = &mut buffer[..some];
        let moved = match way {
            Way::FromFile => pread(file, part, at)
                .map_err(|_| ERROR)
                .and_then(|read| transfer::copy(instance, place, part.as_ptr().cast(), read).map(|()| read)),
            Way::ToFile => transfer::copy(instance, part.as_mut_ptr().cast(), place, some)
                .and_then(|()| pwrite(file, part, at).map_err(|_| ERROR)),
        };
        match moved {
            Ok(0) => break,
            Ok(moved) => done += moved as u64,
            Err(status) => return (done, Err(status)),
        }
    }
    (done, Ok(()))
}

/// Checks and moves.
///
/// # Safety
/// Pointers are null or the program's, as the header says.
unsafe fn moved(
    handle: hsa_amd_ais_file_handle_t,
    memory: *mut c_void,
    bytes: u64,
    offset: i64,
    (copied, status): (*mut u64, *mut i32),
    way: Way,
) -> Outcome {
    let instance = instance()?;
    // The low half.
    let fd = queues::words::words(handle.bits)[0].cast_signed();
    if memory.is_null() || bytes == 0 || fd < 0 || offset < 0 {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not negative; that it stays open during the call is the program's to see to.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    fstat(file).map_err(|_| INVALID_ARGUMENT)?;
    instance.memory.reach(address_of(memory), bytes).ok_or(INVALID_ALLOCATION)?;
    let (done, outcome) = pass(instance, file, (address_of(memory), bytes), offset, way);
    // SAFETY: by contract.
    if let Ok(copied) = unsafe { Out::new(copied) } {
        copied.put(done);
    }
    // SAFETY: as above.
    if let Ok(status) = unsafe { Out::new(status) } {
        status.put(0);
    }
    outcome
}

export! {
    /// Writes an agent's memory to a file.
    fn hsa_amd_ais_file_write(
        handle: hsa_amd_ais_file_handle_t,
        device_pointer: *mut c_void,
        size: u64,
        file_offset: i64,
        size_copied: *mut u64,
        status: *mut i32,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { moved(handle, device_pointer, size, file_offset, (size_copied, status), Way::ToFile) }
    }

    /// Reads a file into an agent's memory.
    fn hsa_amd_ais_file_read(
        handle: hsa_amd_ais_file_handle_t,
        device_pointer: *mut c_void,
        size: u64,
        file_offset: i64,
        size_copied: *mut u64,
        status: *mut i32,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { moved(handle, device_pointer, size, file_offset, (size_copied, status), Way::FromFile) }
    }
}
