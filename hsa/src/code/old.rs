// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code objects of HSA 1.0, which readers have replaced: taken in and loaded; their symbols are told by executables only. And the
//! finalizer, which AMD has not had since: refused.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};

use super::{INVALID_CODE_OBJECT, readers};
use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, OUT_OF_RESOURCES, Out, Outcome, Status, export};
use crate::instance::instance;

/// What an attribute says of the version: text of 64 characters.
const VERSION: usize = 64;

type Alloc = unsafe extern "C" fn(usize, hsa_callback_data_t, *mut *mut c_void) -> hsa_status_t;

/// Refuses a symbol of a code object.
fn no_symbol(object: hsa_code_object_t, name: *const c_char, symbol: *mut hsa_code_symbol_t) -> Outcome {
    instance()?.code.objects.get(object.handle).ok_or(INVALID_CODE_OBJECT)?;
    if name.is_null() || symbol.is_null() { Err(INVALID_ARGUMENT) } else { Err(NOT_SUPPORTED) }
}

/// Refuses a handle of a program of the finalizer: there is none.
fn no_program() -> Outcome {
    instance()?;
    Err(Status(HSA_EXT_STATUS_ERROR_INVALID_PROGRAM))
}

export! {
    /// Takes a code object in.
    fn hsa_code_object_deserialize(
        serialized_code_object: *mut c_void,
        serialized_code_object_size: usize,
        _options: *const c_char,
        code_object: *mut hsa_code_object_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(code_object) }?;
        // SAFETY: as above.
        let reader = unsafe { readers::from_memory(serialized_code_object, serialized_code_object_size) }?;
        stasis::code_object::CodeObject::parse(&reader.bytes).map_err(|_| INVALID_CODE_OBJECT)?;
        let handle = instance.code.objects.add(reader).ok_or(OUT_OF_RESOURCES)?;
        out.put(hsa_code_object_t { handle });
        Ok(())
    }

    /// Gives a code object out, into memory that the program's function allocates.
    fn hsa_code_object_serialize(
        code_object: hsa_code_object_t,
        alloc_callback: Option<Alloc>,
        callback_data: hsa_callback_data_t,
        _options: *const c_char,
        serialized_code_object: *mut *mut c_void,
        serialized_code_object_size: *mut usize,
    ) {
        let object = instance()?.code.objects.get(code_object.handle).ok_or(INVALID_CODE_OBJECT)?;
        // SAFETY: the caller's, by the header.
        let (out, size) = unsafe { (Out::new(serialized_code_object)?, Out::new(serialized_code_object_size)?) };
        let alloc = alloc_callback.ok_or(INVALID_ARGUMENT)?;
        let mut memory = std::ptr::null_mut();
        // SAFETY: the caller's function.
        let status = unsafe { alloc(object.bytes.len(), callback_data, &raw mut memory) };
        if status != HSA_STATUS_SUCCESS || memory.is_null() {
            return Err(OUT_OF_RESOURCES);
        }
        // SAFETY: as long as was asked for.
        unsafe { memory.cast::<u8>().copy_from_nonoverlapping(object.bytes.as_ptr(), object.bytes.len()) };
        out.put(memory);
        size.put(object.bytes.len());
        Ok(())
    }

    /// Destroys a code object; what was loaded stays.
    fn hsa_code_object_destroy(code_object: hsa_code_object_t) {
        instance()?.code.objects.remove(code_object.handle).map(drop).ok_or(INVALID_CODE_OBJECT)
    }

    /// An attribute of a code object.
    fn hsa_code_object_get_info(code_object: hsa_code_object_t, attribute: hsa_code_object_info_t, value: *mut c_void) {
        instance()?.code.objects.get(code_object.handle).ok_or(INVALID_CODE_OBJECT)?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        match attribute {
            HSA_CODE_OBJECT_INFO_VERSION => answer.text::<VERSION>("1.0"),
            HSA_CODE_OBJECT_INFO_TYPE => answer.put(HSA_CODE_OBJECT_TYPE_PROGRAM),
            HSA_CODE_OBJECT_INFO_MACHINE_MODEL => answer.put(HSA_MACHINE_MODEL_LARGE),
            HSA_CODE_OBJECT_INFO_PROFILE => answer.put(HSA_PROFILE_FULL),
            HSA_CODE_OBJECT_INFO_DEFAULT_FLOAT_ROUNDING_MODE => answer.put(HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    /// A symbol of a code object: refused.
    fn hsa_code_object_get_symbol(
        code_object: hsa_code_object_t,
        symbol_name: *const c_char,
        symbol: *mut hsa_code_symbol_t,
    ) {
        no_symbol(code_object, symbol_name, symbol)
    }

    /// A symbol of a code object: refused.
    fn hsa_code_object_get_symbol_from_name(
        code_object: hsa_code_object_t,
        _module_name: *const c_char,
        symbol_name: *const c_char,
        symbol: *mut hsa_code_symbol_t,
    ) {
        no_symbol(code_object, symbol_name, symbol)
    }

    /// An attribute of a symbol of a code object, of which there is none.
    fn hsa_code_symbol_get_info(_code_symbol: hsa_code_symbol_t, _attribute: hsa_code_symbol_info_t, _value: *mut c_void) {
        instance()?;
        Err(Status(HSA_STATUS_ERROR_INVALID_CODE_SYMBOL))
    }

    /// Calls back for every symbol of a code object: refused.
    fn hsa_code_object_iterate_symbols(
        code_object: hsa_code_object_t,
        callback: Option<unsafe extern "C" fn(hsa_code_object_t, hsa_code_symbol_t, *mut c_void) -> hsa_status_t>,
        _data: *mut c_void,
    ) {
        instance()?.code.objects.get(code_object.handle).ok_or(INVALID_CODE_OBJECT)?;
        callback.ok_or(INVALID_ARGUMENT)?;
        Err(NOT_SUPPORTED)
    }

    /// A program of the finalizer: refused.
    fn hsa_ext_program_create(
        _machine_model: hsa_machine_model_t,
        _profile: hsa_profile_t,
        _default_float_rounding_mode: hsa_default_float_rounding_mode_t,
        _options: *const c_char,
        _program: *mut hsa_ext_program_t,
    ) {
        instance()?;
        Err(NOT_SUPPORTED)
    }

    /// Ends a program of the finalizer, of which there is none.
    fn hsa_ext_program_destroy(_program: hsa_ext_program_t) {
        no_program()
    }

    /// Adds to a program of the finalizer, of which there is none.
    fn hsa_ext_program_add_module(_program: hsa_ext_program_t, _module: hsa_ext_module_t) {
        no_program()
    }

    /// Lists the modules of a program of the finalizer, of which there is none.
    fn hsa_ext_program_iterate_modules(
        _program: hsa_ext_program_t,
        _callback: Option<unsafe extern "C" fn(hsa_ext_program_t, hsa_ext_module_t, *mut c_void) -> hsa_status_t>,
        _data: *mut c_void,
    ) {
        no_program()
    }

    /// An attribute of a program of the finalizer, of which there is none.
    fn hsa_ext_program_get_info(
        _program: hsa_ext_program_t,
        _attribute: hsa_ext_program_info_t,
        _value: *mut c_void,
    ) {
        no_program()
    }

    /// Compiles a program of the finalizer, of which there is none.
    fn hsa_ext_program_finalize(
        _program: hsa_ext_program_t,
        _isa: hsa_isa_t,
        _call_convention: i32,
        _control_directives: hsa_ext_control_directives_t,
        _options: *const c_char,
        _code_object_type: hsa_code_object_type_t,
        _code_object: *mut hsa_code_object_t,
    ) {
        no_program()
    }
}
