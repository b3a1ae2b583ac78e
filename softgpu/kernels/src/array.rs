// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values in memory that a GPU address space sees.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use softgpu_waves::{Access, Vm};

use crate::memory::{Allocation, OutOfMemory};

/// Values of one type, which kernels may read and write. It is read and written here only while no grid runs on it.
#[derive(Debug)]
pub struct Array<T> {
    memory: Allocation,
    kind: PhantomData<T>,
}

impl<T: Pod> Array<T> {
    /// Memory with `values`.
    pub(crate) fn new(vm: &Arc<Vm>, values: &[T]) -> Result<Array<T>, OutOfMemory> {
        let memory = Allocation::new(vm, size_of_val(values), Access::READ_WRITE)?;
        memory.write(0, bytemuck::cast_slice(values));
        Ok(Array { memory, kind: PhantomData })
    }

    /// The GPU (and host) address of the first value.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// What all values take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The values.
    #[must_use]
    pub fn get(&self) -> Vec<T> {
        values_of(&self.memory.read())
    }

    /// Replaces the value at index `at`; one past the end is left out.
    pub fn set(&self, at: usize, value: T) {
        self.memory.write(at * size_of::<T>(), bytemuck::bytes_of(&value));
    }
}

/// Bytes as values, wherever the bytes begin; an incomplete last value is left out.
#[must_use]
pub fn values_of<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}
