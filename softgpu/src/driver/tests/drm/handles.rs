// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles: identity, lifetime, descriptors and CPU mappings.

use super::super::sharing::{export, import};
use super::*;
use crate::driver::ledger::Resource;
use crate::driver::memfd;

#[test]
fn the_same_memory_has_one_handle_for_each_file() {
    let space = Space::new();
    let (client, file) = (&space.client, &space.file);
    assert_eq!(space.handle, 1);
    let again = export(client, space.buffer).unwrap();
    assert_eq!(prime_import(client, file, &again), Ok(1));
    let other = export(client, client.alloc(0, 0, PAGE, VRAM).unwrap()).unwrap();
    assert_eq!(prime_import(client, file, &other), Ok(2));
    let (second, _token) = client.render(0);
    assert_eq!(prime_import(client, &second, &other), Ok(1));
    assert_eq!(close(client, file, 1), Ok(0));
    assert_eq!(close(client, file, 1), Err(Errno::EINVAL), "one close ends what two imports gave");
    assert_eq!(close(client, file, 0), Err(Errno::EINVAL));
    let third = export(client, client.alloc(0, 0, PAGE, GTT).unwrap()).unwrap();
    assert_eq!(prime_import(client, file, &third), Ok(1), "the lowest free number");
    assert_eq!(gem_mmap(client, &second, 2), Err(Errno::ENOENT));
}

#[test]
fn exported_descriptor_is_the_same_memory() {
    let space = Space::new();
    let (client, file) = (&space.client, &space.file);
    for flags in [0, 2, 0x8_0000, 0x8_0002] {
        let fd = prime_export(client, file, space.handle, flags).unwrap();
        assert_eq!(memfd::identity(fd.as_fd()), memfd::identity(space.dmabuf.as_fd()));
    }
    assert_eq!(prime_export(client, file, space.handle, 1).unwrap_err(), Errno::EINVAL);
    assert_eq!(prime_export(client, file, 7, 2).unwrap_err(), Errno::ENOENT);
    let read_only = client.alloc(0, 0, PAGE, KFD_IOC_ALLOC_MEM_FLAGS_GTT).unwrap();
    let handle = prime_import(client, file, export(client, read_only).unwrap()).unwrap();
    let fd = prime_export(client, file, handle, 2).unwrap();
    assert!(nix::sys::uio::pwrite(&fd, b"x", 0).is_err(), "a DMABuf stays as writable as it was made");
}

#[test]
fn import_refusals() {
    let space = Space::new();
    let (client, file) = (&space.client, &space.file);
    let mut args = drm_prime_handle { handle: 0, flags: 0, fd: -1 };
    assert_eq!(drm(client, file, DRM_IOCTL_PRIME_FD_TO_HANDLE, &mut args), Err(Errno::EBADF));
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(prime_import(client, file, &null), Err(Errno::EINVAL));
    let (_, token) = client.render(0);
    assert_eq!(prime_import(client, file, &token), Err(Errno::EINVAL));
}

#[test]
fn handle_keeps_the_memory_that_kfd_freed() {
    let client = Client::ready();
    let (file, _token) = client.render(0);
    let buffer = client.alloc(0, VA, 2 << 20, VRAM).unwrap();
    let handle = prime_import(&client, &file, export(&client, buffer).unwrap()).unwrap();
    client.map(buffer, 0).unwrap();
    client.unmap(buffer, 0).unwrap();
    client.free(buffer).unwrap();
    assert_eq!(client.ledger.used(Resource::Vram(0)), 2 << 20);
    let fd = prime_export(&client, &file, handle, 2).unwrap();
    let twin = import(&client, 0, VA, &fd).unwrap();
    close(&client, &file, handle).unwrap();
    assert_eq!(client.ledger.used(Resource::Vram(0)), 2 << 20);
    client.free(twin).unwrap();
    assert_eq!(client.ledger.used(Resource::Vram(0)), 0);
}

#[test]
fn handle_is_mapped_by_the_cpu_through_its_own_file_only() {
    let space = Space::new();
    let (client, file) = (&space.client, &space.file);
    let offset = gem_mmap(client, file, space.handle).unwrap();
    assert!(offset.is_multiple_of(PAGE) && offset > 0);
    let mapped = client.process.mmap(file, 8 * PAGE, offset).unwrap();
    nix::sys::uio::pwrite(&space.dmabuf, b"hello", 0).unwrap();
    let mut seen = [0; 5];
    nix::sys::uio::pread(&mapped.fd, &mut seen, mapped.offset.cast_signed()).unwrap();
    assert_eq!(&seen, b"hello");
    assert_eq!(client.process.mmap(file, 9 * PAGE, offset).unwrap_err(), Errno::EINVAL);
    let (second, _token) = client.render(0);
    assert_eq!(client.process.mmap(&second, PAGE, offset).unwrap_err(), Errno::EACCES);
    let own = prime_import(client, &second, &space.dmabuf).unwrap();
    client.process.mmap(&second, PAGE, gem_mmap(client, &second, own).unwrap()).unwrap();
    close(client, file, space.handle).unwrap();
    assert_eq!(client.process.mmap(file, PAGE, offset).unwrap_err(), Errno::EINVAL);
    assert_eq!(gem_mmap(client, file, space.handle), Err(Errno::ENOENT));
    let hidden = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
    let hidden = export(client, client.alloc(0, 0, PAGE, hidden).unwrap()).unwrap();
    let hidden = prime_import(client, file, &hidden).unwrap();
    client.process.mmap(file, PAGE, gem_mmap(client, file, hidden).unwrap()).unwrap();
}

#[test]
fn close_ends_the_mappings_of_its_handle_and_no_others() {
    let space = Space::new();
    let (client, file) = (&space.client, &space.file);
    let other = export(client, client.alloc(0, 0, PAGE, GTT).unwrap()).unwrap();
    let other = prime_import(client, file, &other).unwrap();
    space.map(0, 2, 0).unwrap();
    space.map(4, 2, 6).unwrap();
    space.va(va_args(AMDGPU_VA_OP_MAP, other, 2, 1, 0)).unwrap();
    close(client, file, space.handle).unwrap();
    let only_two = (0..10).map(|page| (page == 2).then_some(0)).collect::<Vec<_>>();
    assert_eq!(space.seen(), only_two);
    assert_eq!(space.map(0, 1, 0), Err(Errno::ENOENT));
    let again = prime_import(client, file, &space.dmabuf).unwrap();
    assert_eq!(again, space.handle);
    space.map(0, 8, 0).unwrap_err();
    space.map(3, 5, 0).unwrap();
}

#[test]
fn memory_of_a_peer_can_be_imported_without_a_path_to_it() {
    let client = Client::pair();
    let (file, _token) = client.render(1);
    let theirs = client.alloc(0, 0, PAGE, VRAM & !KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC).unwrap();
    assert_eq!(prime_import(&client, &file, export(&client, theirs).unwrap()), Ok(1));
}
