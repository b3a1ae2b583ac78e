// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory from process to process and from driver to driver: DMABufs.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use super::{Block, Origin, address_of, agents_of, pointer_to};
use crate::abi::declared::*;
use crate::abi::{
    ERROR, INVALID_AGENT, INVALID_ALLOCATION, INVALID_ARGUMENT, OUT_OF_RESOURCES, Out, Outcome, Status,
    export, slice,
};
use crate::instance::{Instance, instance};

fn shared<T>(result: Result<T, stasis::ShareError>) -> Outcome<T> {
    result.map_err(|error| {
        tracing::debug!(target: "hsa", error = %stasis::explain(&error), "memory was not shared");
        OUT_OF_RESOURCES
    })
}

/// A descriptor of the program's, if it is one.
///
/// # Errors
/// [`INVALID_ARGUMENT`] for a negative number.
///
/// # Safety
/// The program keeps it open during the call.
pub(super) unsafe fn borrowed<'fd>(fd: c_int) -> Outcome<BorrowedFd<'fd>> {
    if fd < 0 {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not negative; the rest by contract.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Puts a descriptor of memory, and where in it a part is.
///
/// # Safety
/// `dmabuf` and `offset` are null or the program's.
unsafe fn export_range(
    ptr: *const c_void,
    size: usize,
    dmabuf: *mut c_int,
    offset: *mut u64,
    flags: u64,
) -> Outcome {
    let instance = instance()?;
    // SAFETY: by contract.
    let (fd, place) = unsafe { (Out::new(dmabuf)?, Out::new(offset)?) };
    if ptr.is_null() || size == 0 || flags > 1 {
        return Err(INVALID_ARGUMENT);
    }
    let (block, offset) = instance.memory.reach(address_of(ptr), size as u64).ok_or(INVALID_ALLOCATION)?;
    if matches!(block.origin, Origin::Locked(_)) {
        return Err(INVALID_AGENT);
    }
    let (buffer, at) = block.place(offset)?;
    instance.memory.keep_apart(&block);
    fd.put(shared(buffer.export())?.into_raw_fd());
    place.put(at);
    Ok(())
}

/// Imports memory for these agents.
fn import(instance: &Instance, fd: BorrowedFd<'_>, agents: &[&stasis::Agent]) -> Outcome<(u64, usize)> {
    let [first, others @ ..] = agents else { return Err(INVALID_ARGUMENT) };
    let buffer = shared(instance.runtime.import(fd, first))?;
    for other in others {
        buffer.allow(other).map_err(super::status_of)?;
    }
    let block = instance.memory.add(Block::new(buffer, Origin::Imported));
    Ok((block.base(), queues::words::size(block.bytes())))
}

/// Maps memory behind a descriptor of another driver.
///
/// # Safety
/// Pointers are null or the program's, as the header says.
unsafe fn map_buffer(
    (agents, num_agents): (*mut hsa_agent_t, u32),
    handle: c_int,
    flags: u32,
    (size, ptr): (*mut usize, *mut *mut c_void),
    (metadata_size, metadata): (*mut usize, *mut *const c_void),
) -> Outcome {
    let instance = instance()?;
    // SAFETY: by contract.
    let (bytes, out) = unsafe { (Out::new(size)?, Out::new(ptr)?) };
    if flags != 0 || (!metadata.is_null() && metadata_size.is_null()) {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: as above.
    let agents = agents_of(instance, unsafe { slice(agents.cast_const(), num_agents as usize) }?)?;
    // SAFETY: as above.
    let (address, length) = import(instance, unsafe { borrowed(handle) }?, &agents)?;
    // SAFETY: as above; null where it is not wanted.
    if let Ok(none) = unsafe { Out::new(metadata_size) } {
        none.put(0);
    }
    out.put(pointer_to(address));
    bytes.put(length);
    Ok(())
}

export! {
    /// A descriptor of memory, for other drivers and processes.
    fn hsa_amd_portable_export_dmabuf(ptr: *const c_void, size: usize, dmabuf: *mut c_int, offset: *mut u64) {
        // SAFETY: the caller's, by the header.
        unsafe { export_range(ptr, size, dmabuf, offset, 0) }
    }

    /// The same with flags about how others map it.
    fn hsa_amd_portable_export_dmabuf_v2(
        ptr: *const c_void,
        size: usize,
        dmabuf: *mut c_int,
        offset: *mut u64,
        flags: u64,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { export_range(ptr, size, dmabuf, offset, flags) }
    }

    /// Closes a descriptor.
    fn hsa_amd_portable_close_dmabuf(dmabuf: c_int) {
        instance()?;
        if dmabuf < 0 {
            return Err(Status(HSA_STATUS_ERROR_RESOURCE_FREE));
        }
        // SAFETY: the program gives the descriptor away; one that is not its own it could close just as well.
        nix::unistd::close(unsafe { OwnedFd::from_raw_fd(dmabuf) })
            .map_err(|_| Status(HSA_STATUS_ERROR_RESOURCE_FREE))
    }

    /// Memory behind a descriptor of another driver.
    fn hsa_amd_interop_map_buffer(
        num_agents: u32,
        agents: *mut hsa_agent_t,
        interop_handle: c_int,
        flags: u32,
        size: *mut usize,
        ptr: *mut *mut c_void,
        metadata_size: *mut usize,
        metadata: *mut *const c_void,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { map_buffer((agents, num_agents), interop_handle, flags, (size, ptr), (metadata_size, metadata)) }
    }

    /// The same where the program knows the size: a descriptor tells its own.
    fn hsa_amd_interop_map_buffer_with_size(
        num_agents: u32,
        agents: *mut hsa_agent_t,
        interop_handle: c_int,
        flags: u32,
        _size_hint: usize,
        size: *mut usize,
        ptr: *mut *mut c_void,
        metadata_size: *mut usize,
        metadata: *mut *const c_void,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { map_buffer((agents, num_agents), interop_handle, flags, (size, ptr), (metadata_size, metadata)) }
    }

    /// Ends what `hsa_amd_interop_map_buffer` gave.
    fn hsa_amd_interop_unmap_buffer(ptr: *mut c_void) {
        let instance = instance()?;
        if ptr.is_null() {
            return Ok(());
        }
        instance.memory.free_of(address_of(ptr), |origin| matches!(origin, Origin::Imported)).map_err(|_| ERROR)
    }
}
