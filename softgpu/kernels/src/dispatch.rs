// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches: of a loaded kernel, with its kernarg segment and dispatch packet in memory, and of bare instructions.
//!
//! INVARIANT: everything that a [`Launched`] points at, except the caller's own memory, lives as long as it does.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use queues::aql::{FenceScope, Header, KernelDispatch, PacketKind};
use queues::hsa::KernelDescriptor;
use queues::target::Target;
use softgpu_waves::{Access, Launch, MemoryFault, Vm};

use crate::WaveSize;
use crate::memory::{Allocation, OutOfMemory};

/// Hidden arguments of code object version 5 (LLVM AMDGPUUsage, "Code Object V5 Kernel Argument Metadata").
pub(crate) const HIDDEN_BYTES: usize = 256;
/// Offset of `hidden_grid_dims` in them.
const HIDDEN_GRID_DIMS: usize = 64;

/// What a launch of a loaded kernel is asked for by.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    /// Name in a code object.
    pub kernel: &'a str,
    /// Work-items of the grid.
    pub grid: [u32; 3],
    /// Work-items of a workgroup.
    pub workgroup: [u16; 3],
    /// LDS beside the kernel's own, in bytes.
    pub dynamic_lds: u32,
    /// The explicit arguments.
    pub arguments: &'a [u8],
}

impl Dispatch<'_> {
    /// Block counts, group sizes, remainders and the number of dimensions; the rest is zero.
    pub(crate) fn hidden(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HIDDEN_BYTES);
        for axis in 0..3 {
            bytes.extend((self.grid[axis] / u32::from(self.workgroup[axis]).max(1)).to_le_bytes());
        }
        bytes.extend(self.workgroup.iter().flat_map(|size| size.to_le_bytes()));
        for axis in 0..3 {
            let rest = self.grid[axis] % u32::from(self.workgroup[axis]).max(1);
            // CAST: less than a u16.
            bytes.extend((rest as u16).to_le_bytes());
        }
        bytes.resize(HIDDEN_GRID_DIMS, 0);
        bytes.extend(3u16.to_le_bytes());
        bytes.resize(HIDDEN_BYTES, 0);
        bytes
    }
}

/// A launch and the memory it points at, ready to be run any number of times. Its fields may be changed before.
#[derive(Debug)]
pub struct Launched {
    pub(crate) launch: Launch,
    pub(crate) buffers: Vec<Allocation>,
    pub(crate) _kernarg: Allocation,
    pub(crate) _packet: Allocation,
}

impl Launched {
    /// What the buffers of the problem hold, in the order of its arguments.
    #[must_use]
    pub fn read(&self) -> Vec<Vec<u8>> {
        self.buffers.iter().map(Allocation::read).collect()
    }
}

impl Deref for Launched {
    type Target = Launch;

    fn deref(&self) -> &Launch {
        &self.launch
    }
}

impl DerefMut for Launched {
    fn deref_mut(&mut self) -> &mut Launch {
        &mut self.launch
    }
}

/// A packet of three dimensions with the fences that a runtime asks for, and no signal.
pub(crate) fn packet(grid: [u32; 3], workgroup: [u16; 3]) -> KernelDispatch {
    KernelDispatch {
        header: Header {
            kind: PacketKind::KernelDispatch,
            barrier: false,
            acquire: FenceScope::System,
            release: FenceScope::System,
        },
        dimensions: 3,
        workgroup,
        grid,
        private_segment_bytes: 0,
        group_segment_bytes: 0,
        kernel_object: 0,
        kernarg_address: 0,
        completion_signal: 0,
    }
}

/// Compute units of the chip that launches are for: those of a gfx1100.
const COMPUTE_UNITS: u32 = 96;

/// A launch from the grid's beginning, without scratch, signal or queue.
pub(crate) fn launch(
    target: &'static Target,
    descriptor: KernelDescriptor,
    entry: u64,
    packet: KernelDispatch,
) -> Launch {
    Launch {
        target,
        compute_units: COMPUTE_UNITS,
        descriptor,
        kernel_object: packet.kernel_object,
        entry,
        packet,
        user_data: None,
        first_workgroup: [0; 3],
        packet_address: 0,
        queue_address: 0,
        dispatch_id: 0,
        scratch: None,
        doorbell: 0,
        priority: 7,
        privileged: false,
    }
}

/// Instructions without a code object. A wave begins them with its work-items' numbers in v0, 64 VGPRs, all denormals kept
/// and the address of its arguments in `s[0:1]`.
#[derive(Debug)]
pub struct Assembly {
    vm: Arc<Vm>,
    code: Allocation,
    target: &'static Target,
}

/// The grid of an [`Assembly`].
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Lanes of a wave.
    pub size: WaveSize,
    /// Work-items of the grid, in one dimension.
    pub items: u32,
    /// Work-items of a workgroup.
    pub workgroup: u16,
    /// LDS of a workgroup, in bytes.
    pub lds_bytes: u32,
}

impl Assembly {
    pub(crate) fn new(vm: &Arc<Vm>, target: &'static Target, room: usize) -> Result<Assembly, OutOfMemory> {
        Ok(Assembly { vm: vm.clone(), code: Allocation::new(vm, room, Access::ALL)?, target })
    }

    /// Where the instructions begin.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.code.address()
    }

    /// Puts instructions at the beginning, in the place of what was there.
    ///
    /// # Errors
    /// [`MemoryFault`] if there are more than there is room for.
    pub fn write(&self, words: &[u32]) -> Result<(), MemoryFault> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.vm.write_bytes(self.code.address(), &bytes)?;
        self.vm.invalidate_instructions();
        Ok(())
    }

    /// A launch of the instructions, whose arguments are at `arguments`.
    #[must_use]
    pub fn launch(&self, shape: Shape, arguments: u64) -> Launch {
        let is_wave32 = shape.size == WaveSize::W32;
        let mut descriptor = [0u8; KernelDescriptor::BYTES];
        // COMPUTE_PGM_RSRC1: 64 VGPRs, in granules of 8 or 4; denormals kept; DX10 clamp and IEEE mode.
        let rsrc1: u32 = (if is_wave32 { 7 } else { 15 }) | 0xF << 16 | 1 << 21 | 1 << 23;
        descriptor[48..52].copy_from_slice(&rsrc1.to_le_bytes());
        // COMPUTE_PGM_RSRC2: two user SGPRs.
        descriptor[52..56].copy_from_slice(&(2u32 << 1).to_le_bytes());
        // Kernel code properties: the user SGPRs are the kernarg address; the wave size.
        let properties: u16 = 1 << 3 | u16::from(is_wave32) << 10;
        descriptor[56..58].copy_from_slice(&properties.to_le_bytes());
        let none = FenceScope::None;
        let mut packet = packet([shape.items, 1, 1], [shape.workgroup, 1, 1]);
        packet.header = Header { acquire: none, release: none, ..packet.header };
        packet.dimensions = 1;
        packet.group_segment_bytes = shape.lds_bytes;
        packet.kernarg_address = arguments;
        launch(self.target, KernelDescriptor::from_bytes(&descriptor), self.address(), packet)
    }
}
