// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs kernels on `softgpu-waves`, as a runtime would: code object, kernarg segment, dispatch packet.

use std::sync::Arc;

use bytemuck::Pod;
use queues::aql::Packet;
use queues::hsa::KernelDescriptor;
use queues::target::Target;
use softgpu_waves::{
    Access, Control, GridState, Launch, MemoryFault, Outcome, Scratch, Vm, WaveException, Workers, run,
    run_counted,
};

use crate::array::Array;
use crate::code::{Code, CodeError};
use crate::dispatch::{self, Assembly, Dispatch, HIDDEN_BYTES, Launched};
use crate::memory::{Allocation, OutOfMemory};
use crate::problem::{Argument, Problem};
use crate::{Engine, WaveSize};

static GPU_32: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpu-32.so"));
static GPU_64: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpu-64.so"));

/// Scratch of the device: room for 32 waves of 64 lanes with 8 KB an item.
const SCRATCH_BYTES: u64 = 16 << 20;
/// Stack of a work-item whose kernel's need the compiler could not tell (recursion, calls by pointer).
const DYNAMIC_STACK_BYTES: u32 = 4096;

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
    #[error("Kernel {name} is in no code object that was loaded")]
    NoKernel {
        /// What was asked for.
        name: String,
    },
    /// The kernel reads more arguments than it was given.
    #[error("Kernel {name} has {wanted} B of arguments, hidden ones included, and was given {found} B")]
    Arguments {
        /// The kernel.
        name: String,
        /// What its descriptor says.
        wanted: usize,
        /// The explicit arguments and all hidden ones.
        found: usize,
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

/// A gfx1100 of this process's own memory: an address space, workers, scratch and loaded kernels.
#[derive(Debug)]
pub struct Device {
    vm: Arc<Vm>,
    workers: Workers,
    codes: Vec<Code>,
    scratch: Allocation,
    target: &'static Target,
}

impl Device {
    /// A device with the catalogue's kernels built for waves of `size`, run by `threads` threads.
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
        let mut device = Device::empty(Workers::with_engine(threads, engine))?;
        device.load(file)?;
        Ok(device)
    }

    /// A device without kernels, whose waves `workers` run.
    ///
    /// # Errors
    /// [`DeviceError::Memory`] or [`DeviceError::NoTarget`].
    pub fn empty(workers: Workers) -> Result<Device, DeviceError> {
        Device::with_vm(workers, Vm::new())
    }

    /// As [`Device::empty`], with an address space in which nothing is mapped.
    ///
    /// # Errors
    /// As [`Device::empty`].
    pub fn with_vm(workers: Workers, vm: Arc<Vm>) -> Result<Device, DeviceError> {
        let scratch = Allocation::new(&vm, SCRATCH_BYTES as usize, Access::READ_WRITE)?;
        let target = Target::by_name("gfx1100").ok_or(DeviceError::NoTarget)?;
        Ok(Device { vm, workers, codes: Vec::new(), scratch, target })
    }

    /// Adds the kernels of the code object `file`. Where two code objects have a kernel of one name, the later one's is run.
    ///
    /// # Errors
    /// [`CodeError`] if the file cannot be loaded.
    pub fn load(&mut self, file: &[u8]) -> Result<(), CodeError> {
        self.codes.push(Code::load(&self.vm, file)?);
        Ok(())
    }

    /// The address space.
    pub fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// The kernels of the code objects.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.codes.iter().flat_map(|code| code.kernels.keys()).map(String::as_str)
    }

    /// Memory of the address space, zero at first.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the host has none.
    pub fn allocate(&self, bytes: usize, access: Access) -> Result<Allocation, OutOfMemory> {
        Allocation::new(&self.vm, bytes, access)
    }

    /// Memory of the address space with `values`.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the host has none.
    pub fn array<T: Pod>(&self, values: &[T]) -> Result<Array<T>, OutOfMemory> {
        Array::new(&self.vm, values)
    }

    /// Room for `bytes` of instructions that belong to no code object.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the host has none.
    pub fn assembly(&self, bytes: usize) -> Result<Assembly, OutOfMemory> {
        Assembly::new(&self.vm, self.target, bytes)
    }

    /// Puts `problem` into device memory.
    ///
    /// # Errors
    /// As [`Device::prepare`].
    pub fn launch(&self, problem: &Problem) -> Result<Launched, DeviceError> {
        let mut buffers = Vec::new();
        for argument in &problem.arguments {
            if let Argument::Buffer(buffer) = argument {
                let memory = Allocation::new(&self.vm, buffer.bytes.len(), Access::READ_WRITE)?;
                memory.write(0, &buffer.bytes);
                buffers.push(memory);
            }
        }
        let launched = self.prepare(&Dispatch {
            kernel: problem.kernel,
            grid: problem.grid,
            workgroup: problem.workgroup,
            dynamic_lds: problem.dynamic_lds,
            arguments: &problem.argument_block(buffers.iter().map(Allocation::address)),
        })?;
        Ok(Launched { buffers, ..launched })
    }

    /// Puts a kernel's arguments and its dispatch packet into device memory.
    ///
    /// # Errors
    /// [`DeviceError::NoKernel`], [`DeviceError::Arguments`], [`DeviceError::Memory`] or [`DeviceError::Descriptor`].
    pub fn prepare(&self, dispatch: &Dispatch<'_>) -> Result<Launched, DeviceError> {
        let name = dispatch.kernel;
        let kernel_object = self.codes.iter().rev().find_map(|code| code.kernels.get(name).copied());
        let kernel_object = kernel_object.ok_or_else(|| DeviceError::NoKernel { name: name.to_owned() })?;
        let mut bytes = [0; KernelDescriptor::BYTES];
        self.vm.read_bytes(kernel_object, &mut bytes)?;
        let descriptor = KernelDescriptor::from_bytes(&bytes);

        let mut arguments = dispatch.arguments.to_vec();
        arguments.resize(arguments.len().next_multiple_of(8), 0);
        let (wanted, found) = (descriptor.kernarg_size as usize, arguments.len() + HIDDEN_BYTES);
        if wanted > found {
            return Err(DeviceError::Arguments { name: name.to_owned(), wanted, found });
        }
        arguments.extend(dispatch.hidden());
        let kernarg = Allocation::new(&self.vm, arguments.len(), Access::READ_WRITE)?;
        kernarg.write(0, &arguments);

        let stack = if descriptor.uses_dynamic_stack() { DYNAMIC_STACK_BYTES } else { 0 };
        let mut packet = dispatch::packet(dispatch.grid, dispatch.workgroup);
        packet.private_segment_bytes = descriptor.private_segment_fixed_size + stack;
        packet.group_segment_bytes = descriptor.group_segment_fixed_size + dispatch.dynamic_lds;
        packet.kernel_object = kernel_object;
        packet.kernarg_address = kernarg.address();
        let words = Packet::KernelDispatch(packet).encode();
        let ring = Allocation::new(&self.vm, size_of_val(&words), Access::READ_WRITE)?;
        for (k, word) in words.iter().enumerate() {
            ring.write(k * size_of_val(word), &word.to_le_bytes());
        }
        let mut launch = dispatch::launch(self.target, descriptor, descriptor.entry(kernel_object), packet);
        launch.packet_address = ring.address();
        launch.queue_address = ring.address();
        let wave_bytes =
            u64::from(packet.private_segment_bytes.next_multiple_of(4)) * u64::from(descriptor.lanes());
        launch.scratch = SCRATCH_BYTES.checked_div(wave_bytes).map(|waves| Scratch {
            base: self.scratch.address(),
            wave_bytes,
            waves: u32::try_from(waves).unwrap_or(u32::MAX),
            engines: 1,
            xccs: 1,
            xcc_bytes: SCRATCH_BYTES,
        });
        Ok(Launched { launch, buffers: Vec::new(), _kernarg: kernarg, _packet: ring })
    }

    /// Runs to completion and returns the wave instructions executed. The buffers are as the last run left them.
    ///
    /// # Errors
    /// [`DeviceError::Exception`] if a wave stopped.
    pub fn execute(&self, launch: &Launch) -> Result<u64, DeviceError> {
        self.execute_under(launch, &Control::new())
    }

    /// As [`Device::execute`], with waves that `control` commands.
    ///
    /// # Errors
    /// [`DeviceError::Exception`] if a wave stopped, [`DeviceError::Unfinished`] if `control` paused or aborted the grid.
    pub fn execute_under(&self, launch: &Launch, control: &Control) -> Result<u64, DeviceError> {
        match run_counted(launch, &self.vm, &self.workers, control, None) {
            (Outcome::Completed, executed) => Ok(executed),
            (Outcome::Exception(exception), _) => Err(DeviceError::Exception(exception)),
            _ => Err(DeviceError::Unfinished),
        }
    }

    /// Runs until the grid ends or `control` stops it, from its beginning or from where `resume` left off.
    pub fn outcome(&self, launch: &Launch, control: &Control, resume: Option<Box<GridState>>) -> Outcome {
        run(launch, &self.vm, &self.workers, control, resume)
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
