// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered pages that a program unmaps, moves or replaces.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;

use super::server::{Server, answer, bare};
use crate::sys::*;
use crate::transport::Mapping;
use crate::transport::soft::{Interposed, InterposedFile};
use crate::transport::wire::LostPages;

const PAGE: usize = 4096;

/// A device that makes objects 1, 2 and so on.
fn device() -> (Server, Interposed, InterposedFile) {
    let next = AtomicU64::new(1);
    let server = Server::start(move |call| {
        if call.cmd == AMDKFD_IOC_FREE_MEMORY_OF_GPU || ioc_nr(call.cmd) == ioc_nr(svm_command(0)) {
            return bare(0);
        }
        let mut args: kfd_ioctl_alloc_memory_of_gpu_args = call.args();
        args.handle = next.fetch_add(1, Ordering::Relaxed);
        answer(0, &args, vec![])
    });
    let interposed = Interposed::new(server.name(), "gfx1100");
    let (file, _token) = interposed.open(Path::new("/dev/kfd")).unwrap();
    (server, interposed, file)
}

fn register(file: &InterposedFile, memory: &Mapping, pages: usize) -> u64 {
    let mut args = kfd_ioctl_alloc_memory_of_gpu_args {
        size: (pages * PAGE) as u64,
        mmap_offset: memory.address() as u64,
        flags: KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE,
        ..Default::default()
    };
    // SAFETY: the argument is that of the command; its only pointer names memory that the test has.
    unsafe { file.ioctl(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, (&raw mut args).cast()) }.unwrap();
    args.handle
}

#[test]
fn device_is_told_what_was_unmapped_and_nothing_if_nothing_was() {
    let (server, interposed, file) = device();
    let memory = Mapping::private(4 * PAGE).unwrap();
    let part = memory.address() + PAGE..memory.address() + 3 * PAGE;
    assert!(!Interposed::may_have_lent(&part));
    let handle = register(&file, &memory, 4);
    assert!(Interposed::may_have_lent(&part));
    assert_eq!(interposed.unmap(&part, || -1, |answer| *answer == 0), -1);
    assert_eq!(server.gone(), []);
    let unmap = || {
        // SAFETY: pages of the test's own mapping, to which there are no references.
        unsafe { libc::munmap(std::ptr::without_provenance_mut(part.start), part.len()) }
    };
    assert_eq!(interposed.unmap(&part, unmap, |answer| *answer == 0), 0);
    assert_eq!(server.gone(), [LostPages::Object { handle }]);
    assert!(!Interposed::may_have_lent(&part));
    let mut args = kfd_ioctl_free_memory_of_gpu_args { handle };
    // SAFETY: the argument is that of the command, and has no pointer.
    unsafe { file.ioctl(AMDKFD_IOC_FREE_MEMORY_OF_GPU, (&raw mut args).cast()) }.unwrap();
    assert!(!Interposed::may_have_lent(&(0..usize::MAX)));
}

#[test]
fn pages_that_are_withdrawn_keep_their_bytes_and_are_the_programs_own() {
    let (server, interposed, file) = device();
    let memory = Mapping::private(2 * PAGE).unwrap();
    let word: *mut u32 = std::ptr::with_exposed_provenance_mut(memory.address() + PAGE);
    // SAFETY: the word lies in the mapping, to which there are no references.
    unsafe { word.write_volatile(77) };
    let handle = register(&file, &memory, 2);
    interposed.withdraw(&(memory.address() + PAGE..memory.address() + 2 * PAGE)).unwrap();
    assert_eq!(server.gone(), [LostPages::Object { handle }]);
    // SAFETY: as above.
    assert_eq!(unsafe { word.read_volatile() }, 77);
    let vmas = crate::maps::in_range(&(memory.address()..memory.address() + 2 * PAGE)).unwrap();
    assert_eq!(vmas.iter().map(|vma| vma.private).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn registering_pages_that_replaced_others_without_notice_tells_of_those_first() {
    let (server, _interposed, file) = device();
    let memory = Mapping::private(2 * PAGE).unwrap();
    let first = register(&file, &memory, 2);
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: pages of the test's own mapping, to which there are no references.
    let replaced = unsafe {
        libc::mmap(std::ptr::without_provenance_mut(memory.address()), 2 * PAGE, prot, flags, -1, 0)
    };
    assert_ne!(replaced, libc::MAP_FAILED);
    let second = register(&file, &memory, 2);
    assert_ne!(first, second);
    assert_eq!(server.gone(), [LostPages::Object { handle: first }]);
}

/// Gives a GPU access to pages as shared virtual memory.
fn share(file: &InterposedFile, memory: &Mapping, pages: usize) {
    let (start_addr, size) = (memory.address() as u64, (pages * PAGE) as u64);
    let args = kfd_ioctl_svm_args { start_addr, size, nattr: 1, ..Default::default() };
    let access = kfd_ioctl_svm_attribute { type_: KFD_IOCTL_SVM_ATTR_ACCESS, value: 7 };
    let mut words = [0_u32; 8];
    words[..6].copy_from_slice(bytemuck::cast_slice(&[args]));
    words[6..].copy_from_slice(bytemuck::cast_slice(&[access]));
    // SAFETY: the argument is that of the command; it names memory that the test has.
    unsafe { file.ioctl(svm_command(1), words.as_mut_ptr().cast()) }.unwrap();
}

#[test]
fn shared_virtual_memory_that_is_unmapped_or_withdrawn_is_told() {
    let (server, interposed, file) = device();
    let memory = Mapping::private(4 * PAGE).unwrap();
    share(&file, &memory, 4);
    let page = |at: usize| memory.address() + at * PAGE..memory.address() + (at + 1) * PAGE;
    assert!(Interposed::may_have_lent(&page(3)));
    let unmap = || {
        // SAFETY: a page of the test's own mapping, to which there are no references.
        unsafe { libc::munmap(std::ptr::without_provenance_mut(page(3).start), PAGE) }
    };
    assert_eq!(interposed.unmap(&page(3), unmap, |answer| *answer == 0), 0);
    interposed.withdraw(&page(1)).unwrap();
    let lost = |at: usize| LostPages::Range { address: page(at).start as u64, bytes: PAGE as u64 };
    assert_eq!(server.gone(), [lost(3), lost(1)]);
    let vmas = crate::maps::in_range(&(memory.address()..memory.address() + 3 * PAGE)).unwrap();
    assert_eq!(vmas.iter().map(|vma| vma.private).collect::<Vec<_>>(), [false, true, false]);
}
