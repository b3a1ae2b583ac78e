// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lending pages and taking them back, on real mappings.
#![allow(unsafe_code)]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use nix::fcntl::SealFlag;
use nix::sys::mman::{MapFlags, mmap_anonymous, mprotect, munmap};

use super::exchange::pointer;
use super::*;
use crate::linux;
use crate::transport::soft::user_memory;
use crate::transport::{Mapping, map_fixed};

const PAGE: usize = 4096;
const WRITABLE: u32 = sys::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;

/// Private anonymous pages holding their own page number.
struct Memory(Mapping, usize);

impl Memory {
    fn new(count: usize) -> Self {
        let this = Self(Mapping::private(count * PAGE).unwrap(), count * PAGE);
        for page in 0..count {
            this.write(page * PAGE, u8::try_from(page).unwrap() + 1);
        }
        this
    }

    fn write(&self, offset: usize, value: u8) {
        assert!(offset < self.1);
        // SAFETY: the byte lies in the mapping, to which the test makes no reference.
        unsafe { user_memory::write((self.0.address() + offset) as u64, &[value]) }.unwrap();
    }

    fn read(&self, offset: usize) -> u8 {
        let mut byte = [0];
        user_memory::read((self.0.address() + offset) as u64, &mut byte).unwrap();
        byte[0]
    }

    fn range(&self) -> Range<usize> {
        self.0.address()..self.0.address() + self.1
    }

    fn vmas(&self) -> Vec<Vma> {
        maps::in_range(&self.range()).unwrap()
    }
}

fn lend(lent: &mut Lent, memory: &Memory) -> Option<Pages> {
    lend_part(lent, memory, 0..memory.1 / PAGE)
}

/// Lends some of the pages.
fn lend_part(lent: &mut Lent, memory: &Memory, pages: Range<usize>) -> Option<Pages> {
    let address = memory.0.address() + pages.start * PAGE;
    lent.lend(address as u64, (pages.len() * PAGE) as u64, WRITABLE)
}

fn device_view(memory: &OwnedFd) -> File {
    File::from(memory.try_clone().unwrap())
}

#[test]
fn lent_pages_are_shared_with_the_device_and_come_back_private() {
    let (memory, mut lent) = (Memory::new(3), Lent::default());
    let pages = lend(&mut lent, &memory).unwrap();
    assert_eq!(pages.runs, [PageRun::New { bytes: 3 * PAGE as u64 }]);
    lent.keep(&pages, 7);
    let device = device_view(&pages.memory[0]);
    // The device has a descriptor; the client keeps none.
    drop(pages);
    let mut byte = [0];
    device.read_exact_at(&mut byte, PAGE as u64).unwrap();
    assert_eq!(byte, [2]);
    device.write_all_at(&[99], 2 * PAGE as u64).unwrap();
    memory.write(1, 55);
    assert_eq!(memory.read(2 * PAGE), 99);
    assert!(lent.has(7));
    lent.release(7);
    assert!(!lent.has(7));
    assert_eq!((memory.read(0), memory.read(1), memory.read(2 * PAGE)), (1, 55, 99));
    device.write_all_at(&[1], 2 * PAGE as u64).unwrap();
    assert_eq!(memory.read(2 * PAGE), 99, "no longer the device's");
    assert!(memory.vmas().iter().all(|vma| vma.private && vma.inode == 0));
}

#[test]
fn pages_that_are_lent_are_those_of_the_object_that_has_them_until_all_are_released() {
    let (memory, mut lent) = (Memory::new(6), Lent::default());
    let bytes = |pages: usize| (pages * PAGE) as u64;
    let first = lend_part(&mut lent, &memory, 1..3).unwrap();
    lent.keep(&first, 1);
    let second = lend_part(&mut lent, &memory, 1..3).unwrap();
    assert_eq!(second.runs, [PageRun::Of { handle: 1, offset: 0, bytes: bytes(2) }]);
    lent.keep(&second, 2);
    let third = lend_part(&mut lent, &memory, 2..6).unwrap();
    let new = PageRun::New { bytes: bytes(3) };
    assert_eq!(third.runs, [PageRun::Of { handle: 1, offset: bytes(1), bytes: bytes(1) }, new]);
    lent.keep(&third, 3);
    let fourth = lend(&mut lent, &memory).unwrap();
    let of = |handle, offset, pages| PageRun::Of { handle, offset, bytes: bytes(pages) };
    assert_eq!(fourth.runs, [PageRun::New { bytes: bytes(1) }, of(1, 0, 2), of(3, bytes(1), 3)]);
    lent.keep(&fourth, 4);
    // A store is seen in the one memory of the page, whoever has it.
    memory.write(2 * PAGE, 77);
    let mut byte = [0];
    device_view(&first.memory[0]).read_exact_at(&mut byte, bytes(1)).unwrap();
    assert_eq!(byte, [77]);
    let private = |memory: &Memory| {
        let vmas = memory.vmas();
        let is_private = |page: usize| {
            let at = memory.0.address() + page * PAGE;
            vmas.iter().any(|vma| vma.range.contains(&at) && vma.private)
        };
        (0..6).map(is_private).collect::<Vec<_>>()
    };
    lent.release(1);
    lent.release(4);
    assert_eq!(private(&memory), [true, false, false, false, false, false]);
    lent.release(3);
    assert_eq!(private(&memory), [true, false, false, true, true, true]);
    lent.release(2);
    assert_eq!(private(&memory), [true; 6]);
    assert_eq!((memory.read(2 * PAGE), memory.read(5 * PAGE)), (77, 6));
}

#[test]
fn lend_refuses_holes_files_and_read_only_memory_and_leaves_nothing() {
    let (memory, mut lent) = (Memory::new(3), Lent::default());
    assert!(lent.lend(0x1000, 4096, 0).is_none());
    assert!(lent.lend(0, 4096, 0).is_none());
    assert!(lent.lend(u64::MAX - 10, 4096, 0).is_none());
    let middle = NonNull::new(pointer(memory.0.address() + PAGE).cast()).unwrap();
    // SAFETY: the page is this test's, which makes no reference to it.
    unsafe { mprotect(middle, PAGE, ProtFlags::PROT_READ).unwrap() };
    let part = lend_part(&mut lent, &memory, 0..1).unwrap();
    lent.keep(&part, 1);
    assert!(lend(&mut lent, &memory).is_none());
    lent.release(1);
    assert!(memory.vmas().iter().all(|vma| vma.private), "nothing is left of the attempt");
    let pages = lent.lend(memory.0.address() as u64, memory.1 as u64, 0).unwrap();
    assert_eq!(memory.vmas().len(), 3, "protection is kept");
    lent.cancel(&pages);
    let prots: Vec<_> =
        memory.vmas().iter().map(|vma| (vma.prot.contains(ProtFlags::PROT_WRITE), vma.private)).collect();
    assert_eq!(prots, [(true, true), (false, true), (true, true)]);
    assert_eq!(memory.read(PAGE), 2);
    let file = linux::memfd("a file", PAGE as u64, SealFlag::empty()).unwrap();
    let mapped = Mapping::shared(&file, PAGE).unwrap();
    assert!(lent.lend(mapped.address() as u64, PAGE as u64, WRITABLE).is_none(), "others have it");
}

#[test]
fn shared_memory_without_a_file_is_lent() {
    let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let bytes = NonZeroUsize::new(2 * PAGE).unwrap();
    // SAFETY: new memory, at an address of the kernel's choice.
    let shared = unsafe { mmap_anonymous(None, bytes, rw, MapFlags::MAP_SHARED) }.unwrap();
    let address = shared.as_ptr().expose_provenance() as u64;
    // SAFETY: the memory is this test's, which makes no reference to it.
    unsafe { user_memory::write(address + 5, &[9]) }.unwrap();
    let mut lent = Lent::default();
    let pages = lent.lend(address, 2 * PAGE as u64, WRITABLE).unwrap();
    lent.keep(&pages, 1);
    let mut byte = [0];
    device_view(&pages.memory[0]).read_exact_at(&mut byte, 5).unwrap();
    assert_eq!(byte, [9]);
    lent.release(1);
    user_memory::read(address + 5, &mut byte).unwrap();
    assert_eq!(byte, [9]);
    // SAFETY: nothing uses it any more.
    unsafe { munmap(shared, 2 * PAGE) }.unwrap();
}

#[test]
fn stack_in_use_is_lent_and_taken_back() {
    let mut values = [0_u32; 3 * PAGE];
    let address = values.as_mut_ptr().expose_provenance() as u64;
    for (at, value) in (0..).zip(values.iter_mut()) {
        *value = at;
    }
    let bytes = size_of_val(&values) as u64;
    let mut lent = Lent::default();
    let pages = lent.lend(address, bytes, WRITABLE).expect("a stack like any memory");
    lent.keep(&pages, 1);
    let device = device_view(&pages.memory[0]);
    let inside = address % PAGE as u64;
    let mut word = [0; 4];
    device.read_exact_at(&mut word, inside + 4 * 1000).unwrap();
    assert_eq!(u32::from_ne_bytes(word), 1000);
    device.write_all_at(&7_u32.to_ne_bytes(), inside).unwrap();
    user_memory::read(address, &mut word).unwrap();
    assert_eq!(u32::from_ne_bytes(word), 7);
    lent.release(1);
    user_memory::read(address, &mut word).unwrap();
    assert_eq!(u32::from_ne_bytes(word), 7);
    user_memory::read(address + bytes - 4, &mut word).unwrap();
    assert_eq!(u64::from(u32::from_ne_bytes(word)), bytes / 4 - 1);
}

#[test]
fn stores_of_other_threads_are_not_lost_while_pages_change_hands() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let (memory, mut lent) = (Memory::new(64), Lent::default());
    let word = pointer(memory.0.address() + 63 * PAGE).cast::<AtomicU64>();
    // SAFETY: the word lies in the memory, aligned, for as long as the test runs; it is accessed as an atomic only.
    let word = unsafe { &*word };
    word.store(0, Ordering::SeqCst);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counter = scope.spawn(|| {
            let mut counted = 0;
            while !over.load(Ordering::Relaxed) {
                word.fetch_add(1, Ordering::SeqCst);
                counted += 1;
            }
            counted
        });
        for handle in 0..200 {
            let pages = lend(&mut lent, &memory).unwrap();
            lent.keep(&pages, handle);
            lent.release(handle);
        }
        over.store(true, Ordering::Relaxed);
        let counted = counter.join().unwrap();
        assert_eq!(word.load(Ordering::SeqCst), counted);
    });
}

#[test]
fn take_back_leaves_alone_what_the_application_mapped_meanwhile() {
    let (memory, mut lent) = (Memory::new(3), Lent::default());
    let pages = lend(&mut lent, &memory).unwrap();
    lent.keep(&pages, 1);
    let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let other = linux::memfd("other", PAGE as u64, SealFlag::empty()).unwrap();
    // SAFETY: the page is this test's, which makes no reference to it.
    unsafe { map_fixed(other.as_fd(), pointer(memory.0.address() + PAGE), PAGE, rw, 0) }.unwrap();
    lent.take_back_all().unwrap();
    let private: Vec<bool> = memory.vmas().iter().map(|vma| vma.private).collect();
    assert_eq!(private, [true, false, true]);
    assert_eq!((memory.read(0), memory.read(PAGE), memory.read(2 * PAGE)), (1, 0, 3));
}

#[test]
fn child_leaves_private_pages_to_its_parent_and_shares_those_that_were_shared() {
    let (memory, mut lent) = (Memory::new(3), Lent::default());
    let middle = NonZeroUsize::new(memory.range().start + PAGE);
    let (rw, shared) =
        (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED);
    // SAFETY: a page of the test's own mapping, to which there are no references, is replaced.
    unsafe { mmap_anonymous(middle, PAGE.try_into().unwrap(), rw, shared) }.unwrap();
    memory.write(PAGE, 2);
    let pages = lend(&mut lent, &memory).unwrap();
    lent.keep(&pages, 7);
    let device = device_view(&pages.memory[0]);
    assert!(lent.has_private() && lent.has_page_of(&memory.range()));
    lent.leave_to_parent().unwrap();
    assert!(!lent.has_private() && !lent.has(7) && !lent.has_page_of(&memory.range()));
    device.write_all_at(&[99], 0).unwrap();
    device.write_all_at(&[99], PAGE as u64).unwrap();
    device.write_all_at(&[99], 2 * PAGE as u64).unwrap();
    assert_eq!([0, PAGE, 2 * PAGE].map(|offset| memory.read(offset)), [1, 99, 3]);
    assert_eq!(memory.vmas().iter().map(|vma| vma.private).collect::<Vec<_>>(), [true, false, true]);
}

/// The pages of a memory that are still mapped from a memfd.
fn shared_pages(memory: &Memory) -> Vec<usize> {
    let vmas = memory.vmas();
    let page = |at: usize| (at - memory.range().start) / PAGE;
    vmas.iter()
        .filter(|vma| !vma.private)
        .flat_map(|vma| page(vma.range.start)..page(vma.range.end))
        .collect()
}

/// Pages of a memory, as addresses.
fn part(memory: &Memory, pages: Range<usize>) -> Range<usize> {
    memory.range().start + pages.start * PAGE..memory.range().start + pages.end * PAGE
}

#[test]
fn objects_of_forgotten_pages_are_told_and_their_other_pages_stay_lent() {
    let (memory, mut lent) = (Memory::new(6), Lent::indexed());
    let gone =
        |lent: &mut Lent, pages| lent.forget(&part(&memory, pages)).objects.into_iter().collect::<Vec<_>>();
    let first = lend_part(&mut lent, &memory, 0..4).unwrap();
    lent.keep(&first, 1);
    let second = lend_part(&mut lent, &memory, 3..6).unwrap();
    lent.keep(&second, 2);
    assert!(has_page_of(&part(&memory, 1..2)));
    assert_eq!(gone(&mut lent, 1..2), [1]);
    assert!(!has_page_of(&part(&memory, 1..2)));
    assert!(has_page_of(&part(&memory, 0..1)) && has_page_of(&part(&memory, 2..3)));
    assert_eq!(gone(&mut lent, 3..4), [1, 2]);
    assert_eq!(gone(&mut lent, 4..5), [2]);
    assert_eq!(gone(&mut lent, 1..2), []);
    // What is left comes back when the objects are freed; nobody touches what was forgotten.
    lent.release(1);
    assert_eq!(shared_pages(&memory), [1, 3, 4, 5]);
    lent.release(2);
    assert_eq!(shared_pages(&memory), [1, 3, 4]);
    assert!(!has_page_of(&memory.range()));
}

#[test]
fn rest_of_a_loan_that_no_object_is_over_comes_back_with_the_part_that_is_forgotten() {
    let (memory, mut lent) = (Memory::new(4), Lent::indexed());
    for (handle, pages) in [(1, 0..4), (2, 2..3)] {
        let pages = lend_part(&mut lent, &memory, pages).unwrap();
        lent.keep(&pages, handle);
    }
    lent.release(1);
    assert_eq!(shared_pages(&memory), [0, 1, 2, 3]);
    assert_eq!(lent.forget(&part(&memory, 2..3)).objects.len(), 1);
    assert_eq!(shared_pages(&memory), [2]);
    assert!(!has_page_of(&memory.range()));
}

#[test]
fn forgotten_pages_can_be_taken_back_with_their_bytes() {
    let (memory, mut lent) = (Memory::new(3), Lent::indexed());
    let pages = lend(&mut lent, &memory).unwrap();
    lent.keep(&pages, 1);
    device_view(&pages.memory[0]).write_all_at(&[99], PAGE as u64).unwrap();
    lent.forget(&part(&memory, 1..2)).take_back().unwrap();
    assert_eq!(shared_pages(&memory), [0, 2]);
    assert_eq!(memory.read(PAGE), 99);
    // They can be lent again, as others.
    let again = lend(&mut lent, &memory).unwrap();
    let of = |page: u64| PageRun::Of { handle: 1, offset: page * PAGE as u64, bytes: PAGE as u64 };
    assert_eq!(again.runs, [of(0), PageRun::New { bytes: PAGE as u64 }, of(2)]);
}

#[test]
fn pages_that_were_replaced_without_notice_are_found_lost() {
    let (memory, mut lent) = (Memory::new(4), Lent::default());
    let pages = lend(&mut lent, &memory).unwrap();
    lent.keep(&pages, 1);
    let (address, bytes) = (memory.range().start as u64, memory.1 as u64);
    assert_eq!(lent.forget_lost(address, bytes), Ok([].into()));
    let (rw, fixed) =
        (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED);
    let (second, page) = (NonZeroUsize::new(part(&memory, 1..2).start), NonZeroUsize::new(PAGE).unwrap());
    // SAFETY: pages of the test's own mapping, to which there are no references, are replaced.
    unsafe { mmap_anonymous(second, page, rw, fixed) }.unwrap();
    assert_eq!(lent.forget_lost(address, bytes), Ok([1].into()));
    assert_eq!(lent.forget_lost(address, bytes), Ok([].into()));
    assert!(!lent.has_page_of(&part(&memory, 1..2)));
}
