// SPDX-License-Identifier: MIT OR Apache-2.0
//! DMABufs: identity, flags, errnos, and lifetime.

use std::os::fd::{AsFd, OwnedFd};

use super::harness::*;
use kfd::sys::*;
use nix::errno::Errno;

use crate::driver::ledger::Resource;
use crate::driver::{FdPlace, memfd};

const VA: u64 = 0x1000_0000;

pub fn export(client: &Client, handle: u64) -> Result<OwnedFd, Errno> {
    let fds = Fds::default();
    let mut args = kfd_ioctl_export_dmabuf_args { handle, flags: 0o2_000_000, dmabuf_fd: 0 };
    client.call_with(AMDKFD_IOC_EXPORT_DMABUF, &mut args, &Memory::default(), &fds)?;
    let mut out = fds.taken_out();
    assert_eq!((out.len(), out[0].0), (1, FdPlace::Field(12)));
    Ok(out.remove(0).1)
}

pub fn import(client: &Client, gpu: usize, va: u64, fd: impl AsFd) -> Result<u64, Errno> {
    let mut args = kfd_ioctl_import_dmabuf_args {
        va_addr: va,
        gpu_id: client.id(gpu),
        dmabuf_fd: 9,
        ..Default::default()
    };
    client.call_with(AMDKFD_IOC_IMPORT_DMABUF, &mut args, &Memory::default(), &Fds::field(20, fd))?;
    Ok(args.handle)
}

pub fn info(client: &Client, fd: impl AsFd) -> Result<kfd_ioctl_get_dmabuf_info_args, Errno> {
    let mut args = kfd_ioctl_get_dmabuf_info_args { metadata_size: 64, dmabuf_fd: 9, ..Default::default() };
    client.call_with(AMDKFD_IOC_GET_DMABUF_INFO, &mut args, &Memory::default(), &Fds::field(28, fd))?;
    Ok(args)
}

#[test]
fn export_info_and_import_agree_on_the_memory() {
    let client = Client::pair();
    let handle = client.alloc(1, VA, 5000, VRAM).unwrap();
    let fd = export(&client, handle).unwrap();
    let seen = info(&client, &fd).unwrap();
    assert_eq!((seen.size, seen.gpu_id, seen.metadata_size), (8192, client.id(1), 0));
    assert_eq!(seen.flags, KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC);
    let again = export(&client, handle).unwrap();
    assert_eq!(memfd::identity(fd.as_fd()), memfd::identity(again.as_fd()));
    let twin = import(&client, 1, VA + 0x10_0000, &fd).unwrap();
    assert_ne!(twin, handle);
    client.map(twin, 1).unwrap();
    client.map(handle, 1).unwrap();
    client.free(handle).unwrap_err();
}

#[test]
fn memory_lives_and_counts_until_its_last_handle() {
    let client = Client::ready();
    let handle = client.alloc(0, VA, 2 << 20, VRAM).unwrap();
    let twin = import(&client, 0, VA, export(&client, handle).unwrap()).unwrap();
    client.free(handle).unwrap();
    assert_eq!(client.ledger.used(Resource::Vram(0)), 2 << 20);
    client.free(twin).unwrap();
    assert_eq!(client.ledger.used(Resource::Vram(0)), 0);
}

#[test]
fn import_by_another_process_sees_the_same_bytes() {
    let first = Client::ready();
    let second = Client::beside(first.gpus.clone(), first.ledger.clone());
    let render = second.acquire(0);
    let handle = first.alloc(0, VA, 4096, GTT).unwrap();
    let fd = export(&first, handle).unwrap();
    assert_eq!(info(&second, &fd).unwrap().flags, KFD_IOC_ALLOC_MEM_FLAGS_GTT);
    let theirs = import(&second, 0, VA, &fd).unwrap();
    second.map(theirs, 0).unwrap();
    let offset = second.process.state.lock().bo(0, 0).unwrap().mmap_offset;
    let mapped = second.process.mmap(&render, 4096, offset).unwrap();
    nix::sys::uio::pwrite(&fd, b"hello", 0).unwrap();
    let mut seen = [0; 5];
    nix::sys::uio::pread(&mapped.fd, &mut seen, 0).unwrap();
    assert_eq!(&seen, b"hello");
}

#[test]
fn read_only_buffer_is_exported_read_only() {
    let client = Client::ready();
    let handle = client.alloc(0, VA, 4096, KFD_IOC_ALLOC_MEM_FLAGS_GTT).unwrap();
    let fd = export(&client, handle).unwrap();
    assert!(nix::sys::uio::pwrite(&fd, b"x", 0).is_err());
    import(&client, 0, VA, &fd).unwrap();
}

#[test]
fn sharing_refusals() {
    let client = Client::new("gfx1100*2");
    client.acquire(0);
    let handle = client.alloc(0, VA, 4096, GTT).unwrap();
    let fd = export(&client, handle).unwrap();
    assert_eq!(export(&client, handle + 1).unwrap_err(), Errno::EINVAL);
    assert_eq!(export(&client, 3).unwrap_err(), Errno::EINVAL);
    let doorbell = client.alloc(0, VA, 8192, KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL).unwrap();
    assert_eq!(export(&client, doorbell).unwrap_err(), Errno::EINVAL);
    assert_eq!(import(&client, 1, VA, &fd), Err(Errno::ENODEV));
    for not_ours in ["softgpu:gtt:1", "softgpu:userptr:1", "softgpu-parked", "stasis-userptr"] {
        let not_ours = memfd::create(not_ours, 4096).unwrap();
        assert_eq!(import(&client, 0, VA, &not_ours), Err(Errno::EINVAL));
        assert_eq!(info(&client, &not_ours).unwrap_err(), Errno::EINVAL);
    }
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(info(&client, &null).unwrap_err(), Errno::EINVAL);
    let mut bad = kfd_ioctl_import_dmabuf_args { gpu_id: client.id(0), ..Default::default() };
    assert_eq!(client.call(AMDKFD_IOC_IMPORT_DMABUF, &mut bad), Err(Errno::EBADF));
    bad.gpu_id = 0;
    assert_eq!(client.call(AMDKFD_IOC_IMPORT_DMABUF, &mut bad), Err(Errno::EINVAL));
    let mut bad = kfd_ioctl_get_dmabuf_info_args::default();
    assert_eq!(client.call(AMDKFD_IOC_GET_DMABUF_INFO, &mut bad), Err(Errno::EBADF));
}

#[test]
fn userptr_cannot_be_exported() {
    let client = Client::ready();
    let mut args = client.alloc_args(0, VA, 4096, KFD_IOC_ALLOC_MEM_FLAGS_USERPTR);
    args.mmap_offset = 0x5000_0000;
    let fds = Fds::memory(memfd::create("user", 4096).unwrap());
    client.call_with(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args, &Memory::default(), &fds).unwrap();
    assert_eq!(export(&client, args.handle).unwrap_err(), Errno::EPERM);
}

#[test]
fn queue_holds_memory_through_every_handle_of_it() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, 0x1_0000_0000);
    let twin = import(&client, 0, VA, export(&client, parts.ring).unwrap()).unwrap();
    client.map(twin, 0).unwrap();
    client.create(&mut parts.args).unwrap();
    assert_eq!(client.unmap(twin, 0), Err(Errno::EBUSY));
    client.destroy(0).unwrap();
    client.unmap(twin, 0).unwrap();
}
