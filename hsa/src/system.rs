// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starting and ending, what is known of the runtime itself, extensions.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};

use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_ARGUMENT, Out, Outcome, export, slice};
use crate::code::loader_table;
use crate::instance::{end, instance, start};

/// Version of the HSA runtime that this one is, and of AMD's extension (`hsa_ext_amd.h`).
const VERSION: (u16, u16) = (1, 1);
const EXTENSION_VERSION: (u16, u16) = (1, 4);
const BUILD: &CStr = c"stasis-hsa";

export! {
    /// Starts the runtime; counted.
    fn hsa_init() {
        start()
    }

    /// Ends what one `hsa_init` started.
    fn hsa_shut_down() {
        end()
    }

    /// The text for a status.
    fn hsa_status_string(status: hsa_status_t, status_string: *mut *const c_char) {
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(status_string) }?;
        out.put(text_of(status).ok_or(INVALID_ARGUMENT)?.as_ptr());
        Ok(())
    }

    /// An attribute of the runtime.
    fn hsa_system_get_info(attribute: hsa_system_info_t, value: *mut c_void) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        match attribute {
            HSA_SYSTEM_INFO_VERSION_MAJOR => answer.put(VERSION.0),
            HSA_SYSTEM_INFO_VERSION_MINOR => answer.put(VERSION.1),
            HSA_SYSTEM_INFO_TIMESTAMP => answer.put(stasis::system_time()),
            HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY => answer.put(stasis::SYSTEM_FREQUENCY),
            HSA_SYSTEM_INFO_SIGNAL_MAX_WAIT => answer.put(u64::MAX),
            HSA_SYSTEM_INFO_ENDIANNESS => answer.put(HSA_ENDIANNESS_LITTLE),
            HSA_SYSTEM_INFO_MACHINE_MODEL => answer.put(HSA_MACHINE_MODEL_LARGE),
            HSA_SYSTEM_INFO_EXTENSIONS => answer.bytes(&extensions()),
            HSA_AMD_SYSTEM_INFO_BUILD_VERSION => answer.put(BUILD.as_ptr()),
            HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED => answer.put(instance.runtime.has_svm()),
            HSA_AMD_SYSTEM_INFO_SVM_ACCESSIBLE_BY_DEFAULT => answer.put(false),
            system_info::MWAITX_ENABLED | system_info::XNACK_ENABLED => answer.put(false),
            system_info::DMABUF_SUPPORTED | system_info::VIRTUAL_MEM_API_SUPPORTED => answer.put(true),
            system_info::EXT_VERSION_MAJOR => answer.put(EXTENSION_VERSION.0),
            system_info::EXT_VERSION_MINOR => answer.put(EXTENSION_VERSION.1),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    /// The name of an extension.
    fn hsa_extension_get_name(extension: u16, name: *mut *const c_char) {
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(name) }?;
        let name = match hsa_extension_t::from(extension) {
            HSA_EXTENSION_FINALIZER => c"HSA_EXTENSION_FINALIZER",
            HSA_EXTENSION_IMAGES => c"HSA_EXTENSION_IMAGES",
            HSA_EXTENSION_PERFORMANCE_COUNTERS => c"HSA_EXTENSION_PERFORMANCE_COUNTERS",
            HSA_EXTENSION_PROFILING_EVENTS => c"HSA_EXTENSION_PROFILING_EVENTS",
            HSA_EXTENSION_AMD_PROFILER => c"HSA_EXTENSION_AMD_PROFILER",
            HSA_EXTENSION_AMD_LOADER => c"HSA_EXTENSION_AMD_LOADER",
            HSA_EXTENSION_AMD_AQLPROFILE => c"HSA_EXTENSION_AMD_AQLPROFILE",
            _ => return Err(INVALID_ARGUMENT),
        };
        out.put(name.as_ptr());
        Ok(())
    }

    /// Whether the runtime has an extension in a version.
    fn hsa_system_extension_supported(extension: u16, version_major: u16, version_minor: u16, result: *mut bool) {
        instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(result) }?;
        let version = known(extension)?;
        out.put(version.is_some_and(|(major, minor)| major == version_major && version_minor <= minor));
        Ok(())
    }

    /// The newest minor version of an extension.
    fn hsa_system_major_extension_supported(
        extension: u16,
        version_major: u16,
        version_minor: *mut u16,
        result: *mut bool,
    ) {
        instance()?;
        // SAFETY: the caller's, by the header.
        let (minor, out) = unsafe { (Out::new(version_minor)?, Out::new(result)?) };
        let version = known(extension)?.filter(|(major, _)| *major == version_major);
        if let Some((_, newest)) = version {
            minor.put(newest);
        }
        out.put(version.is_some());
        Ok(())
    }

    /// Functions of an extension: the table's type is decided by the version.
    fn hsa_system_get_extension_table(extension: u16, version_major: u16, version_minor: u16, table: *mut c_void) {
        instance()?;
        if version_major != 1 || version_minor > 3 {
            return Err(crate::abi::ERROR);
        }
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(table) }?;
        put_table(extension, answer, loader_table::length_of(version_minor))
    }

    /// Functions of an extension, as many as the caller's table has room for.
    fn hsa_system_get_major_extension_table(
        extension: u16,
        version_major: u16,
        table_length: usize,
        table: *mut c_void,
    ) {
        instance()?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(table) }?;
        if table_length == 0 {
            return Err(INVALID_ARGUMENT);
        }
        if version_major != 1 {
            return Err(crate::abi::ERROR);
        }
        put_table(extension, answer, table_length)
    }

    /// Messages go where `STASIS_LOG` says (`docs/hsa.md`): there is nothing to be switched on.
    fn hsa_amd_enable_logging(flags: *mut u8, _file: *mut c_void) {
        instance()?;
        // SAFETY: the caller's, by the header: 8 bytes.
        unsafe { slice(flags.cast_const(), 8) }.map(drop)
    }
}

fn put_table(extension: u16, answer: Answer, length: usize) -> Outcome {
    match hsa_extension_t::from(extension) {
        HSA_EXTENSION_AMD_LOADER => answer.bytes(&loader_table::bytes(length)),
        _ => Err(crate::abi::ERROR),
    }
}

/// The version of an extension that this runtime has; `None` where it has none.
fn known(extension: u16) -> Outcome<Option<(u16, u16)>> {
    match hsa_extension_t::from(extension) {
        HSA_EXTENSION_AMD_LOADER => Ok(Some((1, 3))),
        // Limits can be asked for; making an image is refused.
        HSA_EXTENSION_AMD_PROFILER | HSA_EXTENSION_IMAGES => Ok(Some((1, 0))),
        HSA_EXTENSION_FINALIZER
        | HSA_EXTENSION_PERFORMANCE_COUNTERS
        | HSA_EXTENSION_PROFILING_EVENTS
        | HSA_EXTENSION_AMD_AQLPROFILE => Ok(None),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// A bit for each extension that this runtime has.
pub fn extensions() -> [u8; 128] {
    let mut bits = [0; 128];
    for extension in [HSA_EXTENSION_IMAGES, HSA_EXTENSION_AMD_LOADER, HSA_EXTENSION_AMD_PROFILER] {
        bits[extension as usize / 8] |= 1 << (extension % 8);
    }
    bits
}

macro_rules! texts {
    ($($status:ident $text:literal)*) => {
        fn text_of(status: hsa_status_t) -> Option<&'static CStr> {
            const TEXTS: &[(hsa_status_t, &str)] =
                &[$(($status, concat!(stringify!($status), ": ", $text, "\0"))),*];
            let (_, text) = TEXTS.iter().find(|(known, _)| *known == status)?;
            CStr::from_bytes_with_nul(text.as_bytes()).ok()
        }
    };
}

texts! {
    HSA_STATUS_SUCCESS "done"
    HSA_STATUS_INFO_BREAK "a callback ended the iteration"
    HSA_STATUS_ERROR "an error without a name of its own"
    HSA_STATUS_ERROR_INVALID_ARGUMENT "an argument is not one that the function takes"
    HSA_STATUS_ERROR_INVALID_QUEUE_CREATION "the agent has no such queues"
    HSA_STATUS_ERROR_INVALID_ALLOCATION "the memory is not what the function takes, or cannot be had"
    HSA_STATUS_ERROR_INVALID_AGENT "there is no such agent, or it cannot do that"
    HSA_STATUS_ERROR_INVALID_REGION "there is no such region"
    HSA_STATUS_ERROR_INVALID_SIGNAL "there is no such signal"
    HSA_STATUS_ERROR_INVALID_QUEUE "there is no such queue"
    HSA_STATUS_ERROR_OUT_OF_RESOURCES "memory, queues or events are used up, or there is no device"
    HSA_STATUS_ERROR_INVALID_PACKET_FORMAT "a packet is not one that the queue takes"
    HSA_STATUS_ERROR_RESOURCE_FREE "a resource could not be freed"
    HSA_STATUS_ERROR_NOT_INITIALIZED "hsa_init was not called"
    HSA_STATUS_ERROR_REFCOUNT_OVERFLOW "hsa_init was called too often"
    HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS "the arguments do not go together"
    HSA_STATUS_ERROR_INVALID_INDEX "the index is too large"
    HSA_STATUS_ERROR_INVALID_ISA "there is no such instruction set"
    HSA_STATUS_ERROR_INVALID_ISA_NAME "no instruction set has this name"
    HSA_STATUS_ERROR_INVALID_CODE_OBJECT "the file is no code object for this agent"
    HSA_STATUS_ERROR_INVALID_EXECUTABLE "there is no such executable"
    HSA_STATUS_ERROR_FROZEN_EXECUTABLE "the executable is frozen"
    HSA_STATUS_ERROR_INVALID_SYMBOL_NAME "there is no symbol of this name"
    HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED "the variable is defined already"
    HSA_STATUS_ERROR_VARIABLE_UNDEFINED "a variable is not defined"
    HSA_STATUS_ERROR_EXCEPTION "a kernel raised an exception"
    HSA_STATUS_ERROR_INVALID_CODE_SYMBOL "there is no such code symbol"
    HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL "there is no such executable symbol"
    HSA_STATUS_ERROR_INVALID_FILE "the file cannot be read"
    HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER "there is no such code object reader"
    HSA_STATUS_ERROR_INVALID_CACHE "there is no such cache"
    HSA_STATUS_ERROR_INVALID_WAVEFRONT "there is no such wavefront"
    HSA_STATUS_ERROR_INVALID_SIGNAL_GROUP "there is no such signal group"
    HSA_STATUS_ERROR_INVALID_RUNTIME_STATE "the runtime is not in a state for that"
    HSA_STATUS_ERROR_FATAL "the queue's processor cannot go on"
    HSA_STATUS_ERROR_INVALID_MEMORY_POOL "there is no such memory pool"
    HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION "a kernel accessed an address beyond its aperture"
    HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION "a kernel has an instruction that the agent has not"
    HSA_STATUS_ERROR_MEMORY_FAULT "a kernel accessed an address that it may not"
    HSA_STATUS_CU_MASK_REDUCED "done, without compute units that this process does not have"
    HSA_STATUS_ERROR_NOT_SUPPORTED "this device or this runtime does not do that"
}

/// That an extension is one of the header's.
///
/// # Errors
/// [`INVALID_ARGUMENT`].
pub fn check_known(extension: u16) -> Outcome {
    known(extension).map(drop)
}
