// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs on the wave engine in this process's own memory: no driver, no queue, no other process.

use std::sync::Arc;

use anyhow::{Context, Result};
use softgpu_kernels::{Arguments, Array, Device, Dispatch, Launched, values_of};
use softgpu_waves::{Control, Vm, Workers};

use super::jobs::{Job, Scalar};
use crate::gpu::object;

/// What the interpreter executes.
const TARGET: &str = "gfx1100";

/// An address space, a worker and the loaded kernels.
#[derive(Debug)]
pub struct Machine(Device);

/// A kernel and how it is launched.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// In the code object.
    pub kernel: &'a str,
    /// Work-items.
    pub grid: [u32; 3],
    /// Work-items of a workgroup.
    pub block: [u16; 3],
    /// The arguments behind the buffers.
    pub scalars: &'a [Scalar],
}

/// A job in memory.
#[derive(Debug)]
pub struct Placed {
    launch: Launched,
    buffers: Vec<Array<u8>>,
}

impl Machine {
    /// Loads the kernels of kernels.c, for one worker.
    pub fn new() -> Result<Self> {
        Self::load(object(TARGET)?, 1)
    }

    /// Loads a code object, for so many workers.
    pub fn load(object: &[u8], workers: usize) -> Result<Self> {
        Self::over(object, Workers::with_threads(workers), Vm::new())
    }

    /// Loads a code object into an address space in which nothing is mapped.
    pub fn over(object: &[u8], workers: Workers, vm: Arc<Vm>) -> Result<Self> {
        let mut device = Device::with_vm(workers, vm)?;
        device.load(object)?;
        Ok(Self(device))
    }

    /// Puts data into memory that both the GPU and this process may use.
    pub fn buffer(&self, bytes: &[u8]) -> Result<Array<u8>> {
        Ok(self.0.array(bytes)?)
    }

    /// Puts a job's data and arguments into memory.
    pub fn launch(&self, job: &Job) -> Result<Placed> {
        let shape = Shape { kernel: job.kernel, grid: job.grid, block: job.block, scalars: &job.scalars };
        let bytes: Vec<&[u8]> = job.buffers.iter().map(|buffer| bytemuck::cast_slice(buffer)).collect();
        self.place(shape, &bytes)
    }

    /// Puts buffers, which are a kernel's first arguments, and its arguments into memory.
    pub fn place(&self, shape: Shape<'_>, buffers: &[&[u8]]) -> Result<Placed> {
        let buffers = buffers.iter().map(|bytes| self.buffer(bytes)).collect::<Result<Vec<_>>>()?;
        let pointers = buffers.iter().fold(Arguments::new(), |block, buffer| block.u64(buffer.address()));
        let arguments = shape.scalars.iter().fold(pointers, |block, scalar| match scalar {
            Scalar::F32(value) => block.f32(*value),
            Scalar::U32(value) => block.u32(*value),
        });
        let launch = self.0.prepare(&Dispatch {
            kernel: shape.kernel,
            grid: shape.grid,
            workgroup: shape.block,
            dynamic_lds: 0,
            arguments: arguments.bytes(),
        })?;
        Ok(Placed { launch, buffers })
    }

    /// Runs a job to its end; gives the wave instructions executed.
    pub fn complete(&self, placed: &Placed) -> Result<u64> {
        Ok(self.0.execute(&placed.launch)?)
    }

    /// As [`Machine::complete`], under a control of the caller's.
    pub fn complete_under(&self, placed: &Placed, control: &Control) -> Result<u64> {
        Ok(self.0.execute_under(&placed.launch, control)?)
    }
}

impl Placed {
    /// What a buffer holds, in the arguments' order.
    pub fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        Ok(self.buffers.get(index).context("no such buffer")?.get())
    }

    /// As [`Placed::bytes`], as numbers.
    pub fn numbers(&self, index: usize) -> Result<Vec<f32>> {
        Ok(values_of(&self.bytes(index)?))
    }
}
