// SPDX-License-Identifier: MIT OR Apache-2.0
//! Python's objects as the arguments of a kernel, whose metadata says how many bytes each has.

use std::sync::Arc;

use half::f16;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyFloat, PyInt};
use stasis::Arg;
use stasis::code_object::{ExplicitArgument, ValueKind};

use crate::buffer::Buffer;
use crate::error::LaunchError;
use crate::memory::Memory;

/// An argument, with what it refers to.
#[derive(Debug)]
pub enum Value {
    /// A buffer.
    Buffer(Arc<Memory>),
    /// Up to 8 bytes.
    Word([u8; 8], usize),
    /// The bytes of a struct.
    Bytes(Vec<u8>),
}

impl Value {
    /// It as the runtime takes it.
    pub fn arg(&self) -> Arg<'_> {
        match self {
            Self::Buffer(memory) => Arg::Buffer(&memory.buffer),
            Self::Word(word, 8) => Arg::U64(u64::from_le_bytes(*word)),
            Self::Word(word, bytes) => match word.split_first_chunk() {
                Some((low, _)) if *bytes == 4 => Arg::U32(u32::from_le_bytes(*low)),
                _ => Arg::Bytes(&word[..*bytes]),
            },
            Self::Bytes(bytes) => Arg::Bytes(bytes),
        }
    }

    /// Up to 8 bytes.
    pub fn word(bytes: &[u8]) -> Self {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        Self::Word(word, bytes.len())
    }

    /// A buffer; `None` for what is none.
    pub fn buffer(given: &Bound<'_, PyAny>) -> Option<Self> {
        let buffer = given.cast::<Buffer>().ok()?;
        Some(Self::Buffer(Arc::clone(buffer.get().memory())))
    }

    /// The lowest bytes of a number that they can hold, signed or not.
    pub fn integer(number: i128, bytes: usize) -> Option<Self> {
        let bits = u32::try_from(bytes).ok().filter(|bytes| matches!(bytes, 1..=8))? * 8;
        let fits = (-(1i128 << (bits - 1))..1i128 << bits).contains(&number);
        fits.then(|| Self::word(&number.to_le_bytes()[..bytes]))
    }

    /// Of what was given for a parameter.
    ///
    /// # Errors
    /// `LaunchError` that names the parameter and what it takes.
    pub fn of(given: &Bound<'_, PyAny>, (index, parameter): (usize, &ExplicitArgument)) -> PyResult<Self> {
        if let Some(buffer) = Self::buffer(given) {
            return Ok(buffer);
        }
        let wrong = |why: String| {
            let name = parameter.name.as_deref().map_or(String::new(), |name| format!(" ({name})"));
            LaunchError::new_err(format!("Argument {index}{name} {why}"))
        };
        let bytes = parameter.bytes;
        if let Ok(number) = given.cast::<PyInt>() {
            // Addresses of more than 63 bits, and negative numbers of as many.
            let found = number.extract::<i128>().ok().and_then(|number| Self::integer(number, bytes));
            return found.ok_or_else(|| wrong(format!("has {bytes} bytes, which {number} does not fit")));
        }
        if parameter.kind == ValueKind::GlobalBuffer {
            return match given.is_none() {
                true => Ok(Self::Word([0; 8], bytes.min(8))),
                false => {
                    let kind = given.get_type().name()?;
                    Err(wrong(format!(
                        "is an address: give a Buffer, an int or None, not {kind} (Buffer.from_numpy makes a buffer of an array)"
                    )))
                }
            };
        }
        if let Ok(number) = given.cast::<PyFloat>() {
            let number = number.value();
            return match bytes {
                2 => Ok(Self::word(&f16::from_f64(number).to_le_bytes())),
                4 => Ok(Self::word(&(number as f32).to_le_bytes())),
                8 => Ok(Self::word(&number.to_le_bytes())),
                _ => Err(wrong(format!("has {bytes} bytes, a float cannot be given"))),
            };
        }
        let raw = if let Ok(raw) = given.cast::<PyBytes>() {
            raw.as_bytes().to_vec()
        } else if let Ok(raw) = given.cast::<PyByteArray>() {
            raw.to_vec()
        } else if let Some(raw) = scalar(given)? {
            raw
        } else {
            let kind = given.get_type().name()?;
            return Err(wrong(format!("cannot be a {kind}: give a number, a numpy scalar or bytes")));
        };
        match raw.len() == bytes {
            true if bytes <= 8 => Ok(Self::word(&raw)),
            true => Ok(Self::Bytes(raw)),
            false => Err(wrong(format!("has {bytes} bytes, {} were given", raw.len()))),
        }
    }
}

/// The bytes of a numpy scalar, or of a ctypes number or structure; `None` for what is neither.
fn scalar(given: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u8>>> {
    if given.hasattr("dtype")? && given.getattr("shape")?.len()? == 0 {
        return given.call_method0("tobytes")?.extract().map(Some);
    }
    if given.get_type().hasattr("_fields_")? || given.get_type().hasattr("_type_")? {
        let bytes = given.py().get_type::<PyBytes>().call1((given,))?;
        return bytes.extract().map(Some);
    }
    Ok(None)
}
