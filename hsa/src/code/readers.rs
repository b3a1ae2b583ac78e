// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers of code objects.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{INVALID_CODE_OBJECT, INVALID_READER, Reader};
use crate::abi::declared::*;
use crate::abi::{INVALID_ARGUMENT, OUT_OF_RESOURCES, Out, Outcome, Status, export, slice};
use crate::instance::{Instance, instance};

const INVALID_FILE: Status = Status(HSA_STATUS_ERROR_INVALID_FILE);
/// Bytes that a file may have.
const MOST: u64 = 4 << 30;

fn add(instance: &Instance, reader: Reader) -> Outcome<hsa_code_object_reader_t> {
    let handle = instance.code.readers.add(reader).ok_or(OUT_OF_RESOURCES)?;
    Ok(hsa_code_object_reader_t { handle })
}

/// Reads a part of the program's file, or all of it.
fn read(descriptor: hsa_file_t, offset: u64, bytes: Option<u64>) -> Outcome<Reader> {
    if descriptor < 0 {
        return Err(INVALID_FILE);
    }
    // SAFETY: the program's descriptor, which stays its own: the file is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    let length = file.metadata().map_err(|_| INVALID_FILE)?.len();
    let left = length.checked_sub(offset).ok_or(INVALID_ARGUMENT)?;
    let bytes = bytes.unwrap_or(left);
    if bytes == 0 || bytes > left || bytes > MOST {
        return Err(if bytes == 0 { INVALID_CODE_OBJECT } else { INVALID_ARGUMENT });
    }
    let mut contents = vec![0; queues::words::size(bytes)];
    file.read_exact_at(&mut contents, offset).map_err(|_| INVALID_FILE)?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    let uri = format!("file://{}#offset={offset}&size={bytes}", path.display());
    Ok(Reader { bytes: contents.into(), uri })
}

/// Copies a code object out of the program's memory.
///
/// # Safety
/// The pointer is null or names `size` bytes.
pub unsafe fn from_memory(code_object: *const c_void, size: usize) -> Outcome<Reader> {
    if code_object.is_null() || size == 0 {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: by contract.
    let bytes: Arc<[u8]> = unsafe { slice(code_object.cast::<u8>(), size) }?.into();
    let (pid, at) = (std::process::id(), code_object.addr());
    Ok(Reader { bytes, uri: format!("memory://{pid}#offset={at:#x}&size={size}") })
}

export! {
    /// A reader of a file.
    fn hsa_code_object_reader_create_from_file(
        file: hsa_file_t,
        code_object_reader: *mut hsa_code_object_reader_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(code_object_reader) }?;
        out.put(add(instance, read(file, 0, None)?)?);
        Ok(())
    }

    /// A reader of a part of a file.
    fn hsa_ven_amd_loader_code_object_reader_create_from_file_with_offset_size(
        file: hsa_file_t,
        offset: usize,
        size: usize,
        code_object_reader: *mut hsa_code_object_reader_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(code_object_reader) }?;
        if size == 0 {
            return Err(INVALID_CODE_OBJECT);
        }
        out.put(add(instance, read(file, offset as u64, Some(size as u64))?)?);
        Ok(())
    }

    /// A reader of memory.
    fn hsa_code_object_reader_create_from_memory(
        code_object: *const c_void,
        size: usize,
        code_object_reader: *mut hsa_code_object_reader_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(code_object_reader) }?;
        // SAFETY: as above.
        out.put(add(instance, unsafe { from_memory(code_object, size) }?)?);
        Ok(())
    }

    /// Destroys a reader.
    fn hsa_code_object_reader_destroy(code_object_reader: hsa_code_object_reader_t) {
        instance()?.code.readers.remove(code_object_reader.handle).map(drop).ok_or(INVALID_READER)
    }
}
