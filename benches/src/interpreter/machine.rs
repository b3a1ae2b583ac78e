// SPDX-License-Identifier: MIT OR Apache-2.0
//! A GPU address space of this process's own memory, with our kernels in it: no driver, no queue, no other process.
#![allow(unsafe_code)]

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bytemuck::AnyBitPattern;
use queues::aql::{FenceScope, Header, KernelDispatch, PacketKind};
use queues::hsa::KernelDescriptor;
use softgpu_waves::{Access, Control, Launch, Outcome, Vm, Workers, run_counted};
use stasis::code_object::{CodeObject, Geometry, KernargBuilder};

use super::jobs::{Job, Scalar};
use crate::gpu::object;

/// What the interpreter executes.
const TARGET: &str = "gfx1100";
const PAGE: usize = 4096;

/// An address space, a worker and the loaded kernels.
#[derive(Debug)]
pub struct Machine {
    vm: Arc<Vm>,
    workers: Workers,
    code: CodeObject,
    base: u64,
}

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

/// A buffer that the GPU's address space and this process see at the same address.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// A page's start.
    pub address: u64,
    /// Its length.
    pub bytes: usize,
}

/// A job in memory.
#[derive(Debug)]
pub struct Placed {
    launch: Launch,
    buffers: Vec<Buffer>,
}

/// Memory at a page's start that is never given back, and its address for the GPU.
fn reserve(vm: &Vm, bytes: usize, access: Access) -> Result<u64> {
    let bytes = bytes.next_multiple_of(PAGE);
    let memory = vec![0u8; bytes + PAGE].leak();
    let start = memory.as_ptr().align_offset(PAGE);
    let address = memory[start..].as_mut_ptr().expose_provenance() as u64;
    // SAFETY: leaked, so that it stays; it is reached by its address alone from here on.
    unsafe { vm.map(address..address + bytes as u64, access)? };
    Ok(address)
}

impl Machine {
    /// Loads the kernels of kernels.c, for one worker.
    pub fn new() -> Result<Self> {
        Self::load(object(TARGET)?, 1)
    }

    /// Loads a code object, for so many workers.
    pub fn load(object: &[u8], workers: usize) -> Result<Self> {
        let code = CodeObject::parse(object)?;
        let vm = Vm::new();
        // CAST: a few KiB.
        let base = reserve(&vm, code.plan().image_bytes() as usize, Access::ALL)?;
        vm.write_bytes(base, &code.plan().relocate(base)?)?;
        Ok(Self { vm, workers: Workers::with_threads(workers), code, base })
    }

    /// Puts data into memory that both the GPU and this process may use.
    pub fn buffer(&self, bytes: &[u8]) -> Result<Buffer> {
        let address = reserve(&self.vm, bytes.len(), Access::READ_WRITE)?;
        self.vm.write_bytes(address, bytes)?;
        Ok(Buffer { address, bytes: bytes.len() })
    }

    /// Puts a job's data and arguments into memory.
    pub fn launch(&self, job: &Job) -> Result<Placed> {
        let shape = Shape { kernel: job.kernel, grid: job.grid, block: job.block, scalars: &job.scalars };
        let bytes: Vec<&[u8]> = job.buffers.iter().map(|buffer| bytemuck::cast_slice(buffer)).collect();
        self.place(shape, &bytes)
    }

    /// Puts buffers, which are a kernel's first arguments, and its arguments into memory.
    pub fn place(&self, shape: Shape<'_>, buffers: &[&[u8]]) -> Result<Placed> {
        let kernel = self.code.kernel(shape.kernel)?;
        let buffers = buffers.iter().map(|bytes| self.buffer(bytes)).collect::<Result<Vec<_>>>()?;
        let mut arguments = KernargBuilder::new(kernel)?;
        for buffer in &buffers {
            arguments = arguments.address(buffer.address);
        }
        for scalar in shape.scalars {
            arguments = match scalar {
                Scalar::F32(value) => arguments.bytes(&value.to_le_bytes()),
                Scalar::U32(value) => arguments.bytes(&value.to_le_bytes()),
            };
        }
        let kernarg_address =
            self.buffer(&arguments.build(&Geometry::new(shape.grid, shape.block))?)?.address;
        let descriptor = KernelDescriptor::from_bytes(&kernel.descriptor);
        let kernel_object = self.base + kernel.descriptor_offset;
        let packet = KernelDispatch {
            header: Header {
                acquire: FenceScope::System,
                release: FenceScope::System,
                ..Header::new(PacketKind::KernelDispatch)
            },
            dimensions: 3,
            workgroup: shape.block,
            grid: shape.grid,
            private_segment_bytes: descriptor.private_segment_fixed_size,
            group_segment_bytes: descriptor.group_segment_fixed_size,
            kernel_object,
            kernarg_address,
            completion_signal: 0,
        };
        let launch = Launch {
            target: queues::target::Target::by_name("gfx1100").expect("gfx1100"),
            descriptor,
            kernel_object,
            entry: self.base + kernel.entry_offset,
            packet,
            packet_address: kernarg_address,
            queue_address: kernarg_address,
            dispatch_id: 0,
            scratch: None,
            doorbell: 0,
            priority: 7,
            user_data: None,
            first_workgroup: [0; 3],
        };
        Ok(Placed { launch, buffers })
    }

    /// Runs a job to its end; gives the wave instructions executed.
    pub fn complete(&self, placed: &Placed) -> Result<u64> {
        self.complete_under(placed, &Control::new())
    }

    /// As [`Machine::complete`], under a control of the caller's.
    pub fn complete_under(&self, placed: &Placed, control: &Control) -> Result<u64> {
        match run_counted(&placed.launch, &self.vm, &self.workers, control, None) {
            (Outcome::Completed, instructions) => Ok(instructions),
            (other, _) => bail!("the job did not complete: {other:?}"),
        }
    }

    /// A buffer of a job.
    pub fn read(&self, placed: &Placed, index: usize) -> Result<Vec<f32>> {
        let bytes = self.read_bytes(*placed.buffers.get(index).context("no such buffer")?)?;
        Ok(numbers_of(&bytes))
    }

    /// What is in a buffer.
    pub fn read_bytes(&self, buffer: Buffer) -> Result<Vec<u8>> {
        let mut bytes = vec![0; buffer.bytes];
        self.vm.read_bytes(buffer.address, &mut bytes)?;
        Ok(bytes)
    }
}

/// Bytes as numbers, wherever they begin.
pub fn numbers_of<T: AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

impl Placed {
    /// The buffers, in the arguments' order.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }
}
