// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any arguments of CREATE_QUEUE are answered, and a queue that they made can be destroyed.
#![no_main]

mod client;

use client::{Client, Fds, Memory};
use kfd::sys::*;
use libfuzzer_sys::fuzz_target;
use softgpu::driver::FdPlace;

const ARRAY: u64 = 0x1000;
/// Where the buffers of a well-formed queue are, and their bytes: pointers, ring, EOP buffer, save area.
const BUFFERS: [(u64, u64); 4] =
    [(0x10_0000, 4096), (0x20_0000, 0x4000), (0x30_0000, 4096), (0x1000_0000, 46_145_536)];

/// The arguments of CREATE_QUEUE that these buffers are for.
fn good(gpu_id: u32) -> [u8; 96] {
    let mut arg = [0; 96];
    let mut put = |at: usize, bytes: &[u8]| arg[at..at + bytes.len()].copy_from_slice(bytes);
    let wide =
        [(0, BUFFERS[1].0), (8, BUFFERS[0].0), (16, BUFFERS[0].0 + 64), (56, BUFFERS[2].0), (64, 4096)];
    wide.into_iter().chain([(72, BUFFERS[3].0)]).for_each(|(at, value)| put(at, &value.to_le_bytes()));
    let narrow = [(32, 0x4000), (36, gpu_id), (40, 2), (44, 100), (48, 7), (80, 46_047_232), (84, 40_960)];
    narrow.into_iter().for_each(|(at, value): (usize, u32)| put(at, &value.to_le_bytes()));
    arg
}

fuzz_target!(|bytes: &[u8]| {
    let client = Client::new();
    let none = (Memory::default(), Fds::default());
    let mut acquire = [[3, 0, 0, 0], client.gpu_id.to_le_bytes()].concat();
    let render = Fds::default().and(FdPlace::Field(0), client.render());
    client.ioctl(AMDKFD_IOC_ACQUIRE_VM, &mut acquire, &none.0, &render).expect("ACQUIRE_VM");
    for (va, size) in BUFFERS {
        let flags = KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
        let mut alloc = [&va.to_le_bytes()[..], &size.to_le_bytes(), &[0; 16]].concat();
        alloc.extend([client.gpu_id.to_le_bytes(), flags.to_le_bytes()].concat());
        client.ioctl(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut alloc, &none.0, &none.1).expect("ALLOC");
        let ids = Memory::default().and(ARRAY, client.gpu_id.to_le_bytes().to_vec());
        let mut map = [&alloc[16..24], &ARRAY.to_le_bytes(), &1u64.to_le_bytes()].concat();
        client.ioctl(AMDKFD_IOC_MAP_MEMORY_TO_GPU, &mut map, &ids, &none.1).expect("MAP");
    }
    // Pairs of a place and a byte change the good arguments; several queues may be made one after another.
    let mut arg = good(client.gpu_id);
    for change in bytes.chunks(16) {
        for pair in change.chunks_exact(2) {
            arg[usize::from(pair[0]) % 96] = pair[1];
        }
        let mut call = arg;
        if client.ioctl(AMDKFD_IOC_CREATE_QUEUE, &mut call, &none.0, &none.1).is_ok() && change[0] & 1 == 0 {
            let mut destroy = [&call[52..56], &[0; 4]].concat();
            client.ioctl(AMDKFD_IOC_DESTROY_QUEUE, &mut destroy, &none.0, &none.1).expect("DESTROY");
        }
    }
});
