// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the catalogue's kernels on `softgpu-waves`, as a runtime would: code object, kernarg segment, dispatch packet.
//!
//! INVARIANT: everything that a [`Launched`] points at lives as long as it does.

use std::sync::Arc;

use queues::aql::{FenceScope, Header, KernelDispatch, Packet, PacketKind};
use queues::hsa::KernelDescriptor;
use queues::target::Target;
use softgpu_waves::{
    Access, Control, Launch, MemoryFault, Outcome, Scratch, Vm, WaveException, Workers, run_counted,
};

use crate::code::{Code, CodeError};
use crate::memory::{Allocation, OutOfMemory};
use crate::problem::{Argument, Problem};
use crate::{Engine, WaveSize};

static GPU_32: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpu-32.so"));
static GPU_64: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpu-64.so"));

/// Scratch of the device: room for 32 waves of 64 lanes with 8 KB an item.
const SCRATCH_BYTES: usize = 16 << 20;
/// Stack of a work-item whose kernel's need the compiler could not tell (recursion, calls by pointer).
const DYNAMIC_STACK_BYTES: u32 = 4096;
/// Hidden arguments of code object version 5 (LLVM AMDGPUUsage, "Code Object V5 Kernel Argument Metadata").
const HIDDEN_BYTES: usize = 256;
/// Offset of `hidden_grid_dims` in them.
const HIDDEN_GRID_DIMS: usize = 64;

/// A kernel that could not be run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The code object.
    #[error("Kernels could not be loaded")]
    Code(#[from] CodeError),
    /// Memory for buffers, arguments or scratch.
    #[error("Device memory is exhausted")]
    Memory(#[from] OutOfMemory),
    /// The descriptor is not readable.
    #[error("Kernel descriptor is not in device memory")]
    Descriptor(#[from] MemoryFault),
    /// No such kernel.
    #[error("Kernel {name} is not in the code object: see `cases()`")]
    NoKernel {
        /// What was asked for.
        name: &'static str,
    },
    /// The target list has no gfx1100.
    #[error("Target gfx1100 is unknown to `queues`")]
    NoTarget,
    /// A wave stopped.
    #[error("Wave {} of workgroup {:?} stopped at {:#x} for {:x?}", .0.wave_in_group, .0.workgroup, .0.pc, .0.cause)]
    Exception(Box<WaveException>),
    /// The grid was paused or aborted, which nobody asked for.
    #[error("Grid ended neither completed nor by an exception")]
    Unfinished,
}

/// A gfx1100 with the catalogue's kernels loaded.
#[derive(Debug)]
pub struct Device {
    vm: Arc<Vm>,
    workers: Workers,
    code: Code,
    scratch: Allocation,
    target: &'static Target,
}

/// A problem on the device, ready to run any number of times.
#[derive(Debug)]
pub struct Launched {
    launch: Launch,
    buffers: Vec<Allocation>,
    _kernarg: Allocation,
    _packet: Allocation,
}

impl Device {
    /// A device whose kernels were built for waves of `size`, run by `threads` threads.
    ///
    /// # Errors
    /// [`DeviceError::Code`], [`DeviceError::Memory`] or [`DeviceError::NoTarget`].
    pub fn new(size: WaveSize, threads: usize) -> Result<Device, DeviceError> {
        Device::with_engine(size, threads, softgpu_waves::Engine::current())
    }

    /// As [`Device::new`], with waves run by `engine`.
    ///
    /// # Errors
    /// As [`Device::new`].
    pub fn with_engine(
        size: WaveSize,
        threads: usize,
        engine: softgpu_waves::Engine,
    ) -> Result<Device, DeviceError> {
        let file = match size {
            WaveSize::W32 => GPU_32,
            WaveSize::W64 => GPU_64,
        };
        Device::with_code(file, threads, engine)
    }

    /// A device with the kernels of the code object `file`, run by `threads` threads in `engine`.
    ///
    /// # Errors
    /// As [`Device::new`].
    pub fn with_code(
        file: &[u8],
        threads: usize,
        engine: softgpu_waves::Engine,
    ) -> Result<Device, DeviceError> {
        let vm = Vm::new();
        let code = Code::load(&vm, file)?;
        let scratch = Allocation::new(&vm, SCRATCH_BYTES, Access::READ_WRITE)?;
        let target = Target::by_name("gfx1100").ok_or(DeviceError::NoTarget)?;
        Ok(Device { vm, workers: Workers::with_engine(threads, engine), code, scratch, target })
    }

    /// The kernels of the code object.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.code.kernels.keys().map(String::as_str)
    }

    /// Puts `problem` into device memory.
    ///
    /// # Errors
    /// [`DeviceError::NoKernel`], [`DeviceError::Memory`] or [`DeviceError::Descriptor`].
    pub fn launch(&self, problem: &Problem) -> Result<Launched, DeviceError> {
        let name = problem.kernel;
        let kernel_object = *self.code.kernels.get(name).ok_or(DeviceError::NoKernel { name })?;
        let mut bytes = [0; KernelDescriptor::BYTES];
        self.vm.read_bytes(kernel_object, &mut bytes)?;
        let descriptor = KernelDescriptor::from_bytes(&bytes);

        let mut buffers = Vec::new();
        for argument in &problem.arguments {
            if let Argument::Buffer(buffer) = argument {
                let memory = Allocation::new(&self.vm, buffer.bytes.len(), Access::READ_WRITE)?;
                memory.write(0, &buffer.bytes);
                buffers.push(memory);
            }
        }
        let mut arguments = problem.argument_block(buffers.iter().map(Allocation::address));
        arguments.extend(hidden(problem));
        let kernarg = Allocation::new(&self.vm, arguments.len(), Access::READ_WRITE)?;
        kernarg.write(0, &arguments);

        let stack = if descriptor.uses_dynamic_stack() { DYNAMIC_STACK_BYTES } else { 0 };
        let packet = KernelDispatch {
            header: Header {
                kind: PacketKind::KernelDispatch,
                barrier: false,
                acquire: FenceScope::System,
                release: FenceScope::System,
            },
            dimensions: 3,
            workgroup: problem.workgroup,
            grid: problem.grid,
            private_segment_bytes: descriptor.private_segment_fixed_size + stack,
            group_segment_bytes: descriptor.group_segment_fixed_size + problem.dynamic_lds,
            kernel_object,
            kernarg_address: kernarg.address(),
            completion_signal: 0,
        };
        let words = Packet::KernelDispatch(packet).encode();
        let ring = Allocation::new(&self.vm, size_of_val(&words), Access::READ_WRITE)?;
        for (k, word) in words.iter().enumerate() {
            ring.write(k * size_of_val(word), &word.to_le_bytes());
        }
        let launch = Launch {
            target: self.target,
            descriptor,
            kernel_object,
            entry: descriptor.entry(kernel_object),
            packet,
            user_data: None,
            first_workgroup: [0; 3],
            packet_address: ring.address(),
            queue_address: ring.address(),
            dispatch_id: 0,
            scratch: Some(Scratch { base: self.scratch.address(), bytes: SCRATCH_BYTES as u64 }),
            doorbell: 0,
            priority: 7,
        };
        Ok(Launched { launch, buffers, _kernarg: kernarg, _packet: ring })
    }

    /// Runs to completion and returns the wave instructions executed. The buffers are as the last run left them.
    ///
    /// # Errors
    /// [`DeviceError::Exception`] if a wave stopped.
    pub fn execute(&self, launched: &Launched) -> Result<u64, DeviceError> {
        match run_counted(&launched.launch, &self.vm, &self.workers, &Control::new(), None) {
            (Outcome::Completed, executed) => Ok(executed),
            (Outcome::Exception(exception), _) => Err(DeviceError::Exception(exception)),
            _ => Err(DeviceError::Unfinished),
        }
    }
}

impl Launched {
    /// What the buffers hold, in the order of the arguments.
    pub fn read(&self) -> Vec<Vec<u8>> {
        self.buffers.iter().map(Allocation::read).collect()
    }
}

impl Engine for Device {
    type Error = DeviceError;

    fn run(&self, problem: &Problem) -> Result<Vec<Vec<u8>>, DeviceError> {
        let launched = self.launch(problem)?;
        self.execute(&launched)?;
        Ok(launched.read())
    }
}

/// Block counts, group sizes, remainders and the number of dimensions; the rest is zero.
fn hidden(problem: &Problem) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HIDDEN_BYTES);
    for axis in 0..3 {
        bytes.extend((problem.grid[axis] / u32::from(problem.workgroup[axis]).max(1)).to_le_bytes());
    }
    bytes.extend(problem.workgroup.iter().flat_map(|size| size.to_le_bytes()));
    for axis in 0..3 {
        let rest = problem.grid[axis] % u32::from(problem.workgroup[axis]).max(1);
        // CAST: less than a u16.
        bytes.extend((rest as u16).to_le_bytes());
    }
    bytes.resize(HIDDEN_GRID_DIMS, 0);
    bytes.extend(3u16.to_le_bytes());
    bytes.resize(HIDDEN_BYTES, 0);
    bytes
}
