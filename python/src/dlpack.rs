// SPDX-License-Identifier: MIT OR Apache-2.0
//! DLPack: buffers as tensors of other libraries (`dlpack.h` of DLPack 0.8, unversioned capsules).
//!
//! INVARIANT: a tensor keeps its buffer's memory alive and unfreed until its deleter is called, by the consumer or,
//! when nobody consumed it, by the capsule's destructor.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyObject};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::memory::Hold;

/// `kDLCPU`.
const CPU: c_int = 1;
/// `kDLROCM`.
const ROCM: c_int = 10;
/// The name of a capsule that nobody has consumed.
const UNUSED: &CStr = c"dltensor";

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    kind: c_int,
    index: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    dimensions: i32,
    kind: DlType,
    shape: *mut i64,
    strides: *mut i64,
    offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct ManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

const _: () = assert!(size_of::<DlTensor>() == 48 && size_of::<ManagedTensor>() == 64);

/// What a tensor that was given out refers to.
struct Owner {
    managed: ManagedTensor,
    shape: Vec<i64>,
    _hold: Hold,
}

/// Where a buffer's memory is, as DLPack has it.
pub fn device(buffer: &Buffer) -> (c_int, usize) {
    match buffer.memory().is_of_device {
        true => (ROCM, buffer.device().agent().index()),
        false => (CPU, 0),
    }
}

/// `DLDataTypeCode` and bits of a type in numpy's notation.
fn kind(typestr: &str) -> Option<DlType> {
    let (order, rest) = typestr.split_at_checked(1)?;
    let (letter, bytes) = rest.split_at_checked(1)?;
    let code = match letter {
        "i" => 0,
        "u" => 1,
        "f" => 2,
        "c" => 5,
        "b" => 6,
        _ => return None,
    };
    let bits = bytes.parse::<u8>().ok()?.checked_mul(8)?;
    (order != ">").then_some(DlType { code, bits, lanes: 1 })
}

/// A capsule with a tensor over a buffer's memory, for a consumer on `wanted`.
///
/// # Errors
/// `BufferError` if it cannot be used there without a copy, or its type is none of DLPack's.
pub fn export<'py>(
    py: Python<'py>,
    buffer: &Buffer,
    wanted: Option<(c_int, usize)>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let elements = buffer.elements();
    let refused = |why: &str| Err(PyBufferError::new_err(format!("The buffer is no tensor: {why}")));
    let Some(kind) = kind(&elements.typestr) else {
        return refused(&format!("DLPack has no type for {}", elements.typestr));
    };
    if copy == Some(true) {
        return refused("a copy was asked for, which Buffer.from_dlpack makes");
    }
    let own = device(buffer);
    let (place, index) = wanted.unwrap_or(own);
    let is_seen = place == CPU && index == 0 && buffer.memory().buffer.is_visible();
    if (place, index) != own && !is_seen {
        return refused(&format!("it is on device {own:?} of DLPack, {:?} was asked for", (place, index)));
    }
    if place == CPU && !is_seen {
        return refused("the CPU does not see its memory");
    }
    if place == CPU && own.0 == ROCM {
        buffer.device().note_view();
    }
    let hold = buffer.memory().hold()?;
    // A device's memory that the CPU sees has one address for both.
    let address = match buffer.memory().buffer.is_visible() {
        true => buffer.memory().address(py)?,
        false => usize::try_from(buffer.memory().buffer.va())?,
    };
    let tensor = DlTensor {
        data: ptr::with_exposed_provenance_mut(address),
        device: DlDevice { kind: place, index: i32::try_from(index)? },
        dimensions: i32::try_from(elements.shape.len())?,
        kind,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        offset: 0,
    };
    let shape = elements.shape.iter().map(|length| i64::try_from(*length)).collect::<Result<_, _>>()?;
    let managed = ManagedTensor { tensor, context: ptr::null_mut(), deleter: Some(delete) };
    capsule(py, Owner { managed, shape, _hold: hold })
}

fn capsule(py: Python<'_>, owner: Owner) -> PyResult<Bound<'_, PyAny>> {
    let owner = Box::into_raw(Box::new(owner));
    // SAFETY: `owner` was just made by `Box::into_raw` and nobody else has it yet. Its shape does not move: it is in the box
    // until `delete`. The tensor is the first thing a consumer sees of it, and `context` leads back to the whole.
    unsafe {
        (*owner).managed.tensor.shape = (*owner).shape.as_mut_ptr();
        (*owner).managed.context = owner.cast();
        let managed = &raw mut (*owner).managed;
        let capsule = PyCapsule_New(managed.cast(), UNUSED.as_ptr(), Some(destroy));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| drop(Box::from_raw(owner)))
    }
}

/// The deleter of a tensor.
///
/// # Safety
/// `managed` is that of an [`Owner`] that [`capsule`] gave out, and this is called once.
unsafe extern "C" fn delete(managed: *mut ManagedTensor) {
    if let Some(managed) = NonNull::new(managed) {
        // SAFETY: by this function's contract `context` is the pointer of the box, which nobody has freed. Dropping it needs
        // no interpreter: a hold is Rust's.
        drop(unsafe { Box::from_raw((*managed.as_ptr()).context.cast::<Owner>()) });
    }
}

/// The destructor of a capsule: deletes a tensor that nobody consumed.
///
/// # Safety
/// `capsule` is one of [`capsule`]'s, about to end.
unsafe extern "C" fn destroy(capsule: *mut PyObject) {
    // SAFETY: the interpreter calls this with the capsule, attached. A consumer has renamed it, and owns the tensor then;
    // otherwise its pointer is the tensor, which is deleted here only.
    unsafe {
        if PyCapsule_IsValid(capsule, UNUSED.as_ptr()) == 1 {
            delete(PyCapsule_GetPointer(capsule, UNUSED.as_ptr()).cast());
        }
    }
}
