// SPDX-License-Identifier: MIT OR Apache-2.0
//! ALLOC, FREE, MAP, UNMAP, AVAILABLE_MEMORY and render node mmap.

use std::sync::Arc;

use super::harness::*;
use kfd::sys::*;
use nix::errno::Errno;

use crate::driver::ledger::Resource;
use crate::driver::{UserPages, memfd};
use crate::sysfs::{GpuModel, Machine};

const VA: u64 = 0x1000_0000;

#[test]
fn alloc_refuses_in_the_kernels_order() {
    let client = Client::ready();
    let alloc = |size, flags| client.alloc(0, VA, size, flags);
    assert_eq!(alloc(0, VRAM), Err(Errno::EINVAL));
    assert_eq!(alloc(4096, 0), Err(Errno::EINVAL));
    assert_eq!(alloc(4096, KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE), Err(Errno::EINVAL));
    assert_eq!(alloc(8192, KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP), Err(Errno::EINVAL));
    assert!(alloc(4096, KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP).is_ok());
    assert_eq!(alloc(4096, KFD_IOC_ALLOC_MEM_FLAGS_USERPTR), Err(Errno::EINVAL));
    assert_eq!(alloc(1, GTT | KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM), Err(Errno::EINVAL));
    for size in [1 << 40, u64::MAX, u64::MAX - 4096] {
        assert_eq!(alloc(size, VRAM), Err(Errno::ENOMEM));
        assert_eq!(alloc(size, GTT), Err(Errno::ENOMEM));
    }
    let mut unknown = client.alloc_args(0, VA, 4096, VRAM);
    for gpu_id in [0, client.id(0) ^ 1, u32::MAX] {
        unknown.gpu_id = gpu_id;
        assert_eq!(client.call(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut unknown), Err(Errno::EINVAL));
    }
}

#[test]
fn alloc_before_acquire_vm_is_enodev_and_checked_before_flags() {
    let client = Client::new("gfx1100");
    assert_eq!(client.alloc(0, VA, 4096, VRAM), Err(Errno::ENODEV));
    assert_eq!(client.alloc(0, VA, 4096, 0), Err(Errno::ENODEV));
    assert_eq!(client.alloc(0, VA, 0, 0), Err(Errno::EINVAL));
}

#[test]
fn handles_start_at_zero_and_reuse_the_lowest_free() {
    let client = Client::pair();
    let gpu = u64::from(client.id(0)) << 32;
    let handles: Vec<u64> = (0..3).map(|_| client.alloc(0, VA, 4096, GTT).unwrap()).collect();
    assert_eq!(handles, [gpu, gpu | 1, gpu | 2]);
    assert_eq!(client.alloc(1, VA, 4096, GTT), Ok(u64::from(client.id(1)) << 32));
    client.free(handles[1]).unwrap();
    assert_eq!(client.alloc(0, VA, 4096, VRAM), Ok(gpu | 1));
    assert_eq!(client.free(gpu | 3), Err(Errno::EINVAL));
    assert_eq!(client.free(7), Err(Errno::EINVAL));
}

#[test]
fn alloc_without_address_is_legal_but_cannot_be_mapped() {
    let client = Client::ready();
    let handle = client.alloc(0, 0, 4096, VRAM).unwrap();
    assert_eq!(client.map(handle, 0), Err(Errno::EINVAL));
    client.free(handle).unwrap();
}

#[test]
fn map_refusals() {
    let client = Client::pair();
    let handle = client.alloc(0, VA, 4096, GTT).unwrap();
    assert_eq!(client.map_list(handle, &[], 0), (Err(Errno::EINVAL), 0));
    assert_eq!(client.map_list(handle, &[client.id(0)], 2), (Err(Errno::EINVAL), 2));
    let mut args =
        kfd_ioctl_map_memory_to_gpu_args { handle, device_ids_array_ptr: 8, n_devices: 1, n_success: 0 };
    assert_eq!(client.call(AMDKFD_IOC_MAP_MEMORY_TO_GPU, &mut args), Err(Errno::EFAULT));
    args.n_devices = u32::MAX;
    assert_eq!(client.call(AMDKFD_IOC_MAP_MEMORY_TO_GPU, &mut args), Err(Errno::ENOMEM));
}

#[test]
fn map_on_a_gpu_without_address_space_is_enodev_and_unmap_einval() {
    let client = Client::new("gfx1100*2");
    client.acquire(0);
    let handle = client.alloc(0, VA, 4096, GTT).unwrap();
    assert_eq!(client.map_list(handle, &[client.id(0), client.id(1)], 0), (Err(Errno::ENODEV), 1));
    assert_eq!(client.unmap_list(handle, &[client.id(0), client.id(1)], 0), (Err(Errno::EINVAL), 1));
}

#[test]
fn map_checks_the_address_in_each_gpus_space() {
    let client = Client::pair();
    for va in [1, VA + 1, 0x8000_0000_0000, 0x7fff_ffff_f000 + 0x1000, 0xffff_8000_0000_0000, u64::MAX - 4095]
    {
        let handle = client.alloc(0, va, 8192, GTT).unwrap();
        assert_eq!(client.map(handle, 0), Err(Errno::EINVAL), "{va:#x}");
    }
    client.buffer(0, VA, 0x3000, GTT);
    for va in [VA - 0x1000, VA, VA + 0x1000, VA + 0x2000] {
        let handle = client.alloc(0, va, 0x2000, GTT).unwrap();
        assert_eq!(client.map(handle, 0), Err(Errno::EINVAL), "{va:#x}");
        assert_eq!(client.map(handle, 1), Ok(0), "another GPU's space is free");
        client.unmap(handle, 1).unwrap();
    }
    client.buffer(0, VA + 0x3000, 0x1000, GTT);
    client.buffer(0, VA - 0x1000, 0x1000, GTT);
}

#[test]
fn hardware_gets_permissions_and_rounded_sizes() {
    let client = Client::ready();
    let flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;
    let handle = client.buffer(0, VA, 5000, flags);
    client.unmap(handle, 0).unwrap();
    let map = Step::Map { gpu: 0, va: VA, bytes: 8192, write: false, execute: true };
    assert_eq!(client.hardware.take(), [map, Step::Unmap { gpu: 0, va: VA, bytes: 8192 }]);
}

#[test]
fn aql_queue_memory_is_mapped_twice_back_to_back() {
    let client = Client::ready();
    let handle = client.buffer(0, VA, 0x4000, GTT | KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM);
    let halves: Vec<_> = client.hardware.take();
    assert_eq!(halves.len(), 2);
    assert!(matches!(halves[1], Step::Map { va, bytes: 0x2000, .. } if va == VA + 0x2000));
    client.unmap(handle, 0).unwrap();
    assert_eq!(client.hardware.take().len(), 2);
}

#[test]
fn map_that_the_hardware_refuses_leaves_nothing_behind() {
    let client = Client::ready();
    let handle = client.alloc(0, VA, 4096, GTT).unwrap();
    client.hardware.refuse_map.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(client.map(handle, 0), Err(Errno::ENOMEM));
    client.hardware.refuse_map.store(false, std::sync::atomic::Ordering::Relaxed);
    client.map(handle, 0).unwrap();
}

#[test]
fn userptr_takes_the_clients_memory_only_when_it_cannot_shrink() {
    let client = Client::ready();
    let alloc = |fd| {
        let mut args = client.alloc_args(0, VA, 8192, KFD_IOC_ALLOC_MEM_FLAGS_USERPTR);
        args.mmap_offset = 0x5000_0000;
        let answer =
            client.call_with(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args, &Memory::default(), &Fds::memory(fd));
        (answer, args.mmap_offset)
    };
    assert_eq!(alloc(memfd::create("user", 8192).unwrap()), (Ok(0), 0x5000_0000));
    assert_eq!(alloc(memfd::create("user", 4096).unwrap()).0, Err(Errno::EFAULT));
    let unsealed = kfd::linux::memfd("user", 8192, nix::fcntl::SealFlag::empty()).unwrap();
    assert_eq!(alloc(unsealed).0, Err(Errno::EFAULT));
    assert_eq!(alloc(std::fs::File::open("/dev/null").unwrap().into()).0, Err(Errno::EFAULT));
}

#[test]
fn userptr_over_pages_of_others_maps_the_same_memory() {
    let client = Client::ready();
    let alloc = |va, bytes, pages| {
        let mut args = client.alloc_args(0, va, bytes, KFD_IOC_ALLOC_MEM_FLAGS_USERPTR);
        args.mmap_offset = 0x5000_0000;
        let fds = Fds::of_pages(pages);
        client
            .call_with(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args, &Memory::default(), &fds)
            .map(|_| args.handle)
    };
    let new = |bytes| UserPages::New { fd: memfd::create("user", bytes).unwrap(), bytes, writable: true };
    let first = alloc(VA, 8192, vec![new(8192)]).unwrap();
    let of = |offset, bytes| UserPages::Of { handle: first, offset, bytes };
    let second = alloc(VA + 0x10_0000, 12288, vec![of(4096, 4096), new(8192)]).unwrap();
    client.map(first, 0).unwrap();
    client.map(second, 0).unwrap();
    let entry = |va| client.hardware.page(0, va).unwrap();
    assert_eq!(entry(VA + 0x10_0000).memory, entry(VA + 4096).memory);
    assert_ne!(entry(VA + 0x10_1000).memory, entry(VA + 4096).memory);
    // What the other allocation has not, and what is no memory of a client.
    assert_eq!(alloc(VA + 0x20_0000, 4096, vec![of(8192, 4096)]), Err(Errno::EFAULT));
    assert_eq!(alloc(VA + 0x20_0000, 4096, vec![of(1, 4096)]), Err(Errno::EFAULT));
    assert_eq!(alloc(VA + 0x20_0000, 8192, vec![of(4096, 4096)]), Err(Errno::EFAULT), "too short");
    let gtt = client.alloc(0, VA + 0x30_0000, 4096, GTT).unwrap();
    let of_gtt = UserPages::Of { handle: gtt, offset: 0, bytes: 4096 };
    assert_eq!(alloc(VA + 0x20_0000, 4096, vec![of_gtt]), Err(Errno::EFAULT));
    // The pages outlive the allocation that brought them.
    client.unmap(first, 0).unwrap();
    client.free(first).unwrap();
    assert_eq!(entry(VA + 0x10_0000).offset, 4096);
    client.unmap(second, 0).unwrap();
}

/// A buffer of four pages of the client's, in two files, or in one that is mapped twice.
fn client_pages(client: &Client, va: u64, more: u32) -> u64 {
    let copies = if more & KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM != 0 { 2 } else { 1 };
    let mut args = client.alloc_args(0, va, copies * 0x4000, KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | more);
    args.mmap_offset = 0x5000_0000;
    let new = |bytes| UserPages::New { fd: memfd::create("user", bytes).unwrap(), bytes, writable: true };
    let fds = Fds::of_pages(vec![new(0x1000), new(0x3000)]);
    client.call_with(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args, &Memory::default(), &fds).unwrap();
    args.handle
}

#[test]
fn buffer_of_which_the_client_lost_pages_is_unmapped_from_every_gpu_and_stays() {
    let client = Client::pair();
    let handle = client_pages(&client, VA, 0);
    client.map(handle, 0).unwrap();
    client.map(handle, 1).unwrap();
    client.hardware.take();
    client.process.pages_gone(handle).unwrap();
    let unmap = |gpu| Step::Unmap { gpu, va: VA, bytes: 0x4000 };
    assert_eq!(client.hardware.take(), [unmap(0), unmap(1)]);
    // The address is still the buffer's, and nothing is unmapped twice or mapped again.
    let other = client.alloc(0, VA + 0x1000, 4096, GTT).unwrap();
    assert_eq!(client.map(other, 0), Err(Errno::EINVAL));
    client.process.pages_gone(handle).unwrap();
    assert_eq!(client.free(handle), Err(Errno::EBUSY));
    client.unmap(handle, 1).unwrap();
    client.map(handle, 1).unwrap();
    client.unmap(handle, 0).unwrap();
    client.unmap(handle, 1).unwrap();
    client.free(handle).unwrap();
    assert_eq!(client.hardware.take(), []);
}

#[test]
fn lost_buffer_that_is_mapped_twice_is_unmapped_twice() {
    let client = Client::ready();
    let handle = client_pages(&client, VA, KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM);
    client.map(handle, 0).unwrap();
    client.hardware.take();
    client.process.pages_gone(handle).unwrap();
    let unmap = |va| Step::Unmap { gpu: 0, va, bytes: 0x4000 };
    assert_eq!(client.hardware.take(), [unmap(VA), unmap(VA + 0x4000)]);
}

#[test]
fn only_memory_of_the_client_can_be_lost() {
    let client = Client::ready();
    let of_gpu = client.buffer(0, VA, 0x1000, GTT);
    for handle in [of_gpu, of_gpu + 1, 0] {
        assert_eq!(client.process.pages_gone(handle), Err(Errno::EINVAL));
    }
}

#[test]
fn available_memory_shrinks_in_two_mebibyte_steps() {
    let client = Client::ready();
    let available = || {
        let mut args = kfd_ioctl_get_available_memory_args { gpu_id: client.id(0), ..Default::default() };
        client.call(AMDKFD_IOC_AVAILABLE_MEMORY, &mut args).map(|_| args.available)
    };
    let before = available().unwrap();
    // 25753026560 bytes, less 8 MiB for page tables.
    assert_eq!(before, (25_753_026_560 - (8 << 20)) & !((2 << 20) - 1));
    let handle = client.alloc(0, VA, 4096, VRAM).unwrap();
    assert_eq!(available().unwrap(), before - (2 << 20));
    client.free(handle).unwrap();
    assert_eq!(available().unwrap(), before);
    let all = client.alloc(0, VA, before, VRAM).unwrap();
    assert_eq!(available().unwrap(), 0);
    assert_eq!(client.alloc(0, VA, 4096, VRAM), Err(Errno::ENOMEM));
    client.free(all).unwrap();
    let mut args = kfd_ioctl_get_available_memory_args::default();
    assert_eq!(client.call(AMDKFD_IOC_AVAILABLE_MEMORY, &mut args), Err(Errno::EINVAL));
}

#[test]
fn vram_is_shared_by_processes_and_comes_back_when_one_dies() {
    let first = Client::ready();
    let second = Client::beside(first.gpus.clone(), first.ledger.clone());
    second.acquire(0);
    first.alloc(0, VA, 20 << 30, VRAM).unwrap();
    assert_eq!(second.alloc(0, VA, 10 << 30, VRAM), Err(Errno::ENOMEM));
    assert_eq!(first.ledger.used(Resource::Vram(0)), 20 << 30);
    first.ledger.clear(0).unwrap();
    second.alloc(0, VA, 20 << 30, VRAM).unwrap();
}

#[test]
fn system_memory_is_limited_and_given_back() {
    let client = Client::ready();
    let big = client.alloc(0, VA, 7 << 30, GTT).unwrap();
    assert_eq!(client.alloc(0, VA, 2 << 30, GTT), Err(Errno::ENOMEM));
    assert_eq!(client.ledger.used(Resource::System), 7 << 30, "a refused allocation keeps nothing");
    client.free(big).unwrap();
    assert_eq!((client.ledger.used(Resource::System), client.ledger.used(Resource::Ttm)), (0, 0));
}

#[test]
fn render_mmap_is_for_the_acquired_file_only() {
    let client = Client::new("gfx1100*2");
    let acquired = client.acquire(0);
    let (other, _) = client.render(0);
    let (of_peer, _) = client.render(1);
    let mut args = client.alloc_args(0, VA, 10_000, VRAM);
    client.call(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args).unwrap();
    let offset = args.mmap_offset;
    let mapped = client.process.mmap(&acquired, 12288, offset).unwrap();
    assert_eq!(memfd::sealed_bytes(std::os::fd::AsFd::as_fd(&mapped.fd)), Some(12288));
    assert!(client.process.mmap(&acquired, 4096, offset).is_ok());
    for (file, length, at, errno) in [
        (&other, 12288, offset, Errno::EACCES),
        (&of_peer, 12288, offset, Errno::EACCES),
        (&acquired, 16384, offset, Errno::EINVAL),
        (&acquired, 0, offset, Errno::EINVAL),
        (&acquired, 4096, offset + 4096, Errno::EINVAL),
        (&acquired, 4096, 0, Errno::EINVAL),
    ] {
        assert_eq!(client.process.mmap(file, length, at).unwrap_err(), errno);
    }
}

/// Allocates and maps a page of VRAM without PUBLIC on a GPU with this BAR, and writes to and reads from its memory
/// through the file that was mapped.
fn written_through_mmap(bar: &str) -> nix::Result<usize> {
    let machine = Machine::of_file(&format!("[[gpu]]\nchip = \"gfx1100\"\nbar = \"{bar}\"\n")).unwrap();
    let gpus: Arc<[GpuModel]> = machine.into_gpus().into();
    let client = Client::beside(Arc::clone(&gpus), ledger_of(&gpus));
    let acquired = client.acquire(0);
    let mut args = client.alloc_args(0, VA, 4096, KFD_IOC_ALLOC_MEM_FLAGS_VRAM);
    client.call(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args).unwrap();
    let mapped = client.process.mmap(&acquired, 4096, args.mmap_offset).unwrap();
    nix::sys::uio::pwrite(&mapped.fd, b"hello", 0)?;
    nix::sys::uio::pread(&mapped.fd, &mut [0; 5], 0)
}

#[test]
fn memory_without_public_is_mapped_and_out_of_reach_behind_a_small_bar() {
    assert_eq!(written_through_mmap("large"), Ok(5));
    // A file without bytes that cannot grow: an access through a mapping raises SIGBUS.
    assert_eq!(written_through_mmap("small"), Err(Errno::EPERM));
}

#[test]
fn mmap_offsets_never_collide() {
    let client = Client::ready();
    let mut last_end = 0;
    for pages in 1..20 {
        let mut args = client.alloc_args(0, VA, pages * 4096, GTT);
        client.call(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args).unwrap();
        assert!(args.mmap_offset >= last_end);
        last_end = args.mmap_offset + pages * 4096;
    }
}
