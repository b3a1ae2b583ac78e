// SPDX-License-Identifier: MIT OR Apache-2.0
//! `hsa_ven_amd_loader`: what is loaded, for debuggers and language runtimes; its functions are had by a table.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use queues::words::{count, size};

use super::Loaded;
use super::readers::hsa_ven_amd_loader_code_object_reader_create_from_file_with_offset_size;
use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_ARGUMENT, Out, Status, each, export};
use crate::agents::Agents;
use crate::instance::instance;
use crate::memory::{address_of, pointer_to};

/// Bytes of the table of a minor version.
pub fn length_of(minor: u16) -> usize {
    match minor {
        0 => size_of::<hsa_ven_amd_loader_1_00_pfn_t>(),
        1 => size_of::<hsa_ven_amd_loader_1_01_pfn_t>(),
        2 => size_of::<hsa_ven_amd_loader_1_02_pfn_t>(),
        _ => size_of::<hsa_ven_amd_loader_1_03_pfn_t>(),
    }
}

/// The table, as much of it as fits `length` bytes.
pub fn bytes(length: usize) -> Vec<u8> {
    // The fields are functions, in the header's order.
    let functions: [*const c_void; 7] = [
        hsa_ven_amd_loader_query_host_address as *const c_void,
        hsa_ven_amd_loader_query_segment_descriptors as *const c_void,
        hsa_ven_amd_loader_query_executable as *const c_void,
        hsa_ven_amd_loader_executable_iterate_loaded_code_objects as *const c_void,
        hsa_ven_amd_loader_loaded_code_object_get_info as *const c_void,
        hsa_ven_amd_loader_code_object_reader_create_from_file_with_offset_size as *const c_void,
        hsa_ven_amd_loader_iterate_executables as *const c_void,
    ];
    let mut bytes: Vec<u8> =
        functions.iter().flat_map(|function| function.expose_provenance().to_ne_bytes()).collect();
    bytes.truncate(length);
    bytes
}

const _: () = {
    use std::mem::offset_of;
    type Table = hsa_ven_amd_loader_1_03_pfn_t;
    assert!(size_of::<Table>() == 7 * size_of::<usize>());
    assert!(offset_of!(Table, hsa_ven_amd_loader_query_host_address) == 0);
    assert!(offset_of!(Table, hsa_ven_amd_loader_query_segment_descriptors) == 8);
    assert!(offset_of!(Table, hsa_ven_amd_loader_query_executable) == 16);
    assert!(offset_of!(Table, hsa_ven_amd_loader_executable_iterate_loaded_code_objects) == 24);
    assert!(offset_of!(Table, hsa_ven_amd_loader_loaded_code_object_get_info) == 32);
    assert!(offset_of!(Table, hsa_ven_amd_loader_code_object_reader_create_from_file_with_offset_size) == 40);
    assert!(offset_of!(Table, hsa_ven_amd_loader_iterate_executables) == 48);
};

fn put_attribute(loaded: &Loaded, attribute: u32, answer: Answer) -> crate::abi::Outcome {
    match attribute {
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_EXECUTABLE => {
            answer.put(hsa_executable_t { handle: loaded.executable })
        }
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_KIND => {
            answer.put(HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_KIND_AGENT)
        }
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_AGENT => answer.put(Agents::handle(loaded.agent)),
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_CODE_OBJECT_STORAGE_TYPE => {
            answer.put(HSA_VEN_AMD_LOADER_CODE_OBJECT_STORAGE_TYPE_MEMORY)
        }
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_CODE_OBJECT_STORAGE_MEMORY_BASE => {
            answer.put(loaded.reader.bytes.as_ptr().expose_provenance() as u64)
        }
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_CODE_OBJECT_STORAGE_MEMORY_SIZE => {
            answer.put(loaded.reader.bytes.len() as u64)
        }
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_CODE_OBJECT_STORAGE_FILE => Err(INVALID_ARGUMENT),
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_LOAD_DELTA => answer.put(loaded.base().cast_signed()),
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_LOAD_BASE => answer.put(loaded.base()),
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_LOAD_SIZE => answer.put(loaded.bytes()),
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_URI_LENGTH => answer.put(count(loaded.reader.uri.len())),
        HSA_VEN_AMD_LOADER_LOADED_CODE_OBJECT_INFO_URI => answer.bytes(loaded.reader.uri.as_bytes()),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The segments of all that is loaded.
fn segments(all: &[(u64, Arc<Loaded>)]) -> Vec<hsa_ven_amd_loader_segment_descriptor_t> {
    let of_loaded = |(_, loaded): &(u64, Arc<Loaded>)| {
        let segments = loaded.program.object().plan().segments();
        let describe = |segment: &stasis::code_object::Segment| hsa_ven_amd_loader_segment_descriptor_t {
            agent: Agents::handle(loaded.agent),
            executable: hsa_executable_t { handle: loaded.executable },
            code_object_storage_type: HSA_VEN_AMD_LOADER_CODE_OBJECT_STORAGE_TYPE_MEMORY,
            code_object_storage_base: loaded.reader.bytes.as_ptr().cast(),
            code_object_storage_size: loaded.reader.bytes.len(),
            code_object_storage_offset: size(segment.offset),
            segment_base: pointer_to(loaded.base() + segment.offset).cast_const(),
            segment_size: size(segment.bytes),
        };
        segments.iter().map(describe).collect::<Vec<_>>()
    };
    all.iter().flat_map(of_loaded).collect()
}

export! {
    /// Where the host may read what an agent has at an address of a code object.
    fn hsa_ven_amd_loader_query_host_address(device_address: *const c_void, host_address: *mut *const c_void) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(host_address) }?;
        let address = address_of(device_address);
        let (_, loaded) = instance.code.at(address).ok_or(INVALID_ARGUMENT)?;
        out.put(loaded.image[size(address - loaded.base())..].as_ptr().cast());
        Ok(())
    }

    /// The segments of all that is loaded; how many there are, where no room is given.
    fn hsa_ven_amd_loader_query_segment_descriptors(
        segment_descriptors: *mut hsa_ven_amd_loader_segment_descriptor_t,
        num_segment_descriptors: *mut usize,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let number = unsafe { Out::new(num_segment_descriptors) }?;
        // SAFETY: not null, as just checked, and the caller's.
        let room = unsafe { num_segment_descriptors.read_unaligned() };
        let all = segments(&instance.code.loaded.all());
        if segment_descriptors.is_null() != (room == 0) {
            return Err(INVALID_ARGUMENT);
        }
        if room == 0 {
            number.put(all.len());
            return Ok(());
        }
        if room != all.len() {
            return Err(Status(HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS));
        }
        for (nth, segment) in all.into_iter().enumerate() {
            // SAFETY: the caller's array has that much room.
            unsafe { segment_descriptors.add(nth).write_unaligned(segment) };
        }
        Ok(())
    }

    /// The executable that an address of an agent belongs to.
    fn hsa_ven_amd_loader_query_executable(device_address: *const c_void, executable: *mut hsa_executable_t) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(executable) }?;
        let (_, loaded) = instance.code.at(address_of(device_address)).ok_or(INVALID_ARGUMENT)?;
        out.put(hsa_executable_t { handle: loaded.executable });
        Ok(())
    }

    /// Calls back for every code object of an executable.
    fn hsa_ven_amd_loader_executable_iterate_loaded_code_objects(
        executable: hsa_executable_t,
        callback: Option<
            unsafe extern "C" fn(hsa_executable_t, hsa_loaded_code_object_t, *mut c_void) -> hsa_status_t,
        >,
        data: *mut c_void,
    ) {
        let code = &instance()?.code;
        code.executable(executable)?;
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        let of_it = code.loaded.all().into_iter().filter(|(_, loaded)| loaded.executable == executable.handle);
        // SAFETY: the caller's function, with the caller's data.
        each(of_it, |(handle, _)| unsafe { callback(executable, hsa_loaded_code_object_t { handle }, data) })
    }

    /// An attribute of a loaded code object.
    fn hsa_ven_amd_loader_loaded_code_object_get_info(
        loaded_code_object: hsa_loaded_code_object_t,
        attribute: hsa_ven_amd_loader_loaded_code_object_info_t,
        value: *mut c_void,
    ) {
        let loaded = instance()?.code.loaded.get(loaded_code_object.handle).ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's, by the header.
        put_attribute(&loaded, attribute, unsafe { Answer::new(value) }?)
    }

    /// Calls back for every executable.
    fn hsa_ven_amd_loader_iterate_executables(
        callback: Option<unsafe extern "C" fn(hsa_executable_t, *mut c_void) -> hsa_status_t>,
        data: *mut c_void,
    ) {
        let all = instance()?.code.executables.all();
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's function, with the caller's data.
        each(all, |(handle, _)| unsafe { callback(hsa_executable_t { handle }, data) })
    }
}
