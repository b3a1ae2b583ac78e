// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tests write into queues by hand: a queue for it, a kernel's arguments, and the PM4 stream that runs a kernel.

use queues::hsa::UserSgprs;
use queues::pm4;
use stasis::code_object::Geometry;
use stasis::raw::{RawKind, RawOptions, RawQueue};
use stasis::{Arg, Buffer, Kernel};

use crate::gpu::Gpu;

/// A small queue for packets of the test.
///
/// # Panics
/// When it is refused.
#[must_use]
pub fn raw_queue(gpu: &Gpu, kind: RawKind) -> RawQueue {
    RawQueue::create(&gpu.agent, RawOptions { kind, ring_bytes: 4096, ..RawOptions::default() })
        .expect("a queue")
}

/// A buffer with a kernel's arguments.
///
/// # Panics
/// When they do not fit the kernel or there is no memory.
#[must_use]
pub fn arguments(gpu: &Gpu, kernel: &Kernel, args: &[Arg<'_>]) -> Buffer {
    let layout = kernel.arguments();
    let mut block = vec![0; layout.bytes()];
    layout.fill(args, &Geometry::new([1; 3], [1; 3]), &mut block).expect("arguments that fit");
    let buffer = gpu.runtime.kernarg().alloc(block.len() as u64).expect("memory");
    buffer.write(0, &block).expect("memory that the CPU sees");
    buffer
}

/// The PM4 stream that runs a kernel.
///
/// # Panics
/// When the kernel wants what such a stream does not give.
#[must_use]
pub fn pm4_dispatch(
    gpu: &Gpu,
    kernel: &Kernel,
    arguments: &Buffer,
    workgroup: [u16; 3],
    groups: [u32; 3],
) -> Vec<u32> {
    let (descriptor, properties) = (kernel.descriptor(), &gpu.agent.node().properties);
    let sgprs = UserSgprs::new(&descriptor, gpu.agent.target());
    let mut user_data = vec![0; sgprs.used as usize];
    let at = sgprs.kernarg_segment_ptr.expect("a kernel with arguments") as usize;
    let va = arguments.va();
    user_data[at..at + 2].copy_from_slice(&[va as u32, (va >> 32) as u32]);
    let mut words = Vec::new();
    pm4::memory_barrier().encode(&mut words).expect("a packet that can be encoded");
    let dispatch = pm4::Dispatch {
        target: gpu.agent.target(),
        simd_arrays: properties.array_count / properties.num_xcc.max(1),
        entry: kernel.entry_va(),
        descriptor: &descriptor,
        group_segment_bytes: descriptor.group_segment_fixed_size,
        scratch: None,
        user_data: &user_data,
        workgroup,
        groups,
        wave32: descriptor.wave32(),
    };
    dispatch.encode(&mut words).expect("a packet that can be encoded");
    pm4::cs_partial_flush().encode(&mut words).expect("a packet that can be encoded");
    words
}
