// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches of Triton's kernels: arguments by the types of Triton's signature instead of the kernel's metadata.
//!
//! A signature has a type for each of a function's parameters: `*fp32` and other pointers, `i32`, `u8`, `fp16`, `bf16`, `fp32`
//! and so on, `constexpr` for what is compiled in, or a tuple of types. The kernel takes those that are not compiled in, then
//! the addresses of memory for the whole grid and for a profiler, where its compiler has them (`driver.c` of Triton 3.9's
//! AMD backend).

use half::{bf16, f16};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};

use crate::arguments::Value;
use crate::error::LaunchError;
use crate::kernel::{Kernel, submit};
use crate::queue::Queue;

/// A type of a signature.
#[derive(Clone, Debug, PartialEq)]
enum Type {
    /// Compiled in: not an argument.
    Constant,
    /// An address.
    Pointer,
    /// A whole number of so many bytes.
    Integer(usize),
    /// A 16-bit float.
    Half,
    /// The same with the exponent of a 32-bit one.
    Brain,
    /// A 32-bit float.
    Single,
    /// A 64-bit float.
    Double,
    /// Several.
    Tuple(Vec<Type>),
}

impl Type {
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(types) = given.cast::<PyTuple>() {
            return types.iter().map(|each| Self::of(&each)).collect::<PyResult<_>>().map(Self::Tuple);
        }
        let name: String = given.extract()?;
        Ok(match name.as_str() {
            "constexpr" => Self::Constant,
            "i1" | "i8" | "u1" | "u8" => Self::Integer(1),
            "i16" | "u16" => Self::Integer(2),
            "i32" | "u32" => Self::Integer(4),
            "i64" | "u64" => Self::Integer(8),
            "fp16" => Self::Half,
            "bf16" => Self::Brain,
            "fp32" | "f32" => Self::Single,
            "fp64" => Self::Double,
            pointer if pointer.starts_with('*') => Self::Pointer,
            _ => return Err(LaunchError::new_err(format!("Type {name:?} of a signature is unknown"))),
        })
    }

    /// Adds what was given for a parameter of this type to `values`.
    fn put(&self, given: &Bound<'_, PyAny>, values: &mut Vec<Value>) -> PyResult<()> {
        let value = match self {
            Self::Constant => return Ok(()),
            Self::Tuple(types) => {
                let given = given.cast::<PyTuple>().map_err(|_| LaunchError::new_err("A tuple is wanted"))?;
                return put_all(types, given, values);
            }
            Self::Pointer => pointer(given)?,
            Self::Integer(bytes) => {
                let number = given.cast::<PyInt>().ok().and_then(|number| number.extract::<i128>().ok());
                let number = match number {
                    Some(number) => number,
                    // numpy's numbers, and whatever else is one.
                    None => given.call_method0("__index__")?.extract()?,
                };
                Value::integer(number, *bytes).ok_or_else(|| {
                    LaunchError::new_err(format!(
                        "Argument {} has {bytes} bytes, which {number} does not fit",
                        values.len()
                    ))
                })?
            }
            Self::Half => Value::word(&f16::from_f64(given.extract()?).to_le_bytes()),
            Self::Brain => Value::word(&bf16::from_f64(given.extract()?).to_le_bytes()),
            Self::Single => Value::word(&(given.extract::<f64>()? as f32).to_le_bytes()),
            Self::Double => Value::word(&given.extract::<f64>()?.to_le_bytes()),
        };
        values.push(value);
        Ok(())
    }
}

fn put_all(types: &[Type], given: &Bound<'_, PyTuple>, values: &mut Vec<Value>) -> PyResult<()> {
    if types.len() != given.len() {
        let (wanted, found) = (types.len(), given.len());
        return Err(LaunchError::new_err(format!("{wanted} arguments are wanted, {found} were given")));
    }
    types.iter().zip(given.iter()).try_for_each(|(each, given)| each.put(&given, values))
}

/// A buffer, an address, `None`, or what has an address as tensors have.
fn pointer(given: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Some(buffer) = Value::buffer(given) {
        return Ok(buffer);
    }
    if given.is_none() {
        return Ok(Value::word(&[0; 8]));
    }
    let address: u64 = match given.cast::<PyInt>() {
        Ok(address) => address.extract()?,
        Err(_) => given.call_method0("data_ptr")?.extract()?,
    };
    Ok(Value::word(&address.to_le_bytes()))
}

/// Launches kernels of one signature.
#[pyclass(frozen, module = "stasis._stasis")]
#[derive(Debug)]
pub struct Launcher {
    types: Vec<Type>,
}

#[pymethods]
impl Launcher {
    #[new]
    fn new(signature: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let types = signature.iter().map(Type::of).collect::<PyResult<_>>()?;
        Ok(Self { types })
    }

    /// Submits `kernel` to `queue`: `grid` work-groups of `items` work-items with `shared` bytes of LDS; `scratch` has the
    /// memory for the grid and for a profiler, or `None`s.
    #[expect(clippy::too_many_arguments, reason = "one call a launch")]
    fn __call__(
        &self,
        kernel: &Bound<'_, Kernel>,
        queue: &Bound<'_, Queue>,
        grid: (u32, u32, u32),
        items: u32,
        shared: u32,
        args: &Bound<'_, PyTuple>,
        scratch: (Bound<'_, PyAny>, Bound<'_, PyAny>),
    ) -> PyResult<()> {
        let grid = [grid.0, grid.1, grid.2];
        // An empty grid is no launch for Triton, and no error.
        if grid.contains(&0) {
            return Ok(());
        }
        let mut values = Vec::with_capacity(args.len() + 2);
        put_all(&self.types, args, &mut values)?;
        let parameters = kernel.get().parameters();
        for memory in [&scratch.0, &scratch.1] {
            if values.len() < parameters {
                values.push(pointer(memory)?);
            }
        }
        submit(kernel, Some(queue.as_unbound()), (grid, [items, 1, 1]), &values, shared)
    }
}
