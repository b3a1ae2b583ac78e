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
use nix::sys::stat::fstat;

use super::exchange::pointer;
use super::*;
use crate::linux;
use crate::transport::soft::{marshal, user_memory};
use crate::transport::wire::LostPages;
use crate::transport::{Mapping, map_fixed};

mod moved;

const PAGE: usize = 4096;
const WRITABLE: Purpose = Purpose::Object { writable: true };
const READ_ONLY: Purpose = Purpose::Object { writable: false };

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

fn has(lent: &Lent, handle: u64) -> bool {
    lent.objects.contains_key(&handle)
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
    assert_eq!(pages.runs, [PageRun::New { bytes: 3 * PAGE as u64, writable: true }]);
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
    assert!(has(&lent, 7));
    lent.release(7);
    assert!(!has(&lent, 7));
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
    let new = PageRun::New { bytes: bytes(3), writable: true };
    assert_eq!(third.runs, [PageRun::Of { handle: 1, offset: bytes(1), bytes: bytes(1) }, new]);
    lent.keep(&third, 3);
    let fourth = lend(&mut lent, &memory).unwrap();
    let of = |handle, offset, pages| PageRun::Of { handle, offset, bytes: bytes(pages) };
    assert_eq!(
        fourth.runs,
        [PageRun::New { bytes: bytes(1), writable: true }, of(1, 0, 2), of(3, bytes(1), 3)]
    );
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
    assert!(lent.lend(0x1000, 4096, READ_ONLY).is_none());
    assert!(lent.lend(0, 4096, READ_ONLY).is_none());
    assert!(lent.lend(u64::MAX - 10, 4096, READ_ONLY).is_none());
    let middle = NonNull::new(pointer(memory.0.address() + PAGE).cast()).unwrap();
    // SAFETY: the page is this test's, which makes no reference to it.
    unsafe { mprotect(middle, PAGE, ProtFlags::PROT_READ).unwrap() };
    let part = lend_part(&mut lent, &memory, 0..1).unwrap();
    lent.keep(&part, 1);
    assert!(lend(&mut lent, &memory).is_none());
    lent.release(1);
    assert!(memory.vmas().iter().all(|vma| vma.private), "nothing is left of the attempt");
    let pages = lent.lend(memory.0.address() as u64, memory.1 as u64, READ_ONLY).unwrap();
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
    assert!(!lent.has_private() && !has(&lent, 7) && !lent.has_page_of(&memory.range()));
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

/// What the device is told of pages that were forgotten.
fn lost(forgotten: &Forgotten) -> Vec<LostPages> {
    forgotten.lost_pages().collect()
}

fn object(handle: u64) -> LostPages {
    LostPages::Object { handle }
}

/// Pages of a memory, as the device is told of them.
fn lost_range(memory: &Memory, pages: Range<usize>) -> LostPages {
    let range = part(memory, pages);
    LostPages::Range { address: range.start as u64, bytes: range.len() as u64 }
}

/// Pages of a memory, as addresses.
fn part(memory: &Memory, pages: Range<usize>) -> Range<usize> {
    memory.range().start + pages.start * PAGE..memory.range().start + pages.end * PAGE
}

#[test]
fn objects_of_forgotten_pages_are_told_and_their_other_pages_stay_lent() {
    let (memory, mut lent) = (Memory::new(6), Lent::indexed());
    let gone = |lent: &mut Lent, pages| lost(&lent.forget(&part(&memory, pages)));
    let first = lend_part(&mut lent, &memory, 0..4).unwrap();
    lent.keep(&first, 1);
    let second = lend_part(&mut lent, &memory, 3..6).unwrap();
    lent.keep(&second, 2);
    assert!(has_page_of(&part(&memory, 1..2)));
    assert_eq!(gone(&mut lent, 1..2), [object(1)]);
    assert!(!has_page_of(&part(&memory, 1..2)));
    assert!(has_page_of(&part(&memory, 0..1)) && has_page_of(&part(&memory, 2..3)));
    assert_eq!(gone(&mut lent, 3..4), [object(1), object(2)]);
    assert_eq!(gone(&mut lent, 4..5), [object(2)]);
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
    assert_eq!(lost(&lent.forget(&part(&memory, 2..3))), [object(2)]);
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
    assert_eq!(again.runs, [of(0), PageRun::New { bytes: PAGE as u64, writable: true }, of(2)]);
}

#[test]
fn pages_that_were_replaced_without_notice_are_found_lost() {
    let (memory, mut lent) = (Memory::new(4), Lent::default());
    let pages = lend(&mut lent, &memory).unwrap();
    lent.keep(&pages, 1);
    let (address, bytes) = (memory.range().start as u64, memory.1 as u64);
    let call = marshal::Memory::Object { address, bytes, writable: true };
    assert_eq!(lost(&lent.forget_lost(&call).unwrap()), []);
    let (rw, fixed) =
        (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED);
    let (second, page) = (NonZeroUsize::new(part(&memory, 1..2).start), NonZeroUsize::new(PAGE).unwrap());
    // SAFETY: pages of the test's own mapping, to which there are no references, are replaced.
    unsafe { mmap_anonymous(second, page, rw, fixed) }.unwrap();
    assert_eq!(lost(&lent.forget_lost(&marshal::Memory::Buffer).unwrap()), [], "of other pages");
    assert_eq!(lost(&lent.forget_lost(&call).unwrap()), [object(1)]);
    assert_eq!(lost(&lent.forget_lost(&call).unwrap()), []);
    assert!(!lent.has_page_of(&part(&memory, 1..2)));
}

/// What an SVM call with this access does to some of the pages.
fn range_of(memory: &Memory, pages: Range<usize>, access: &[(u32, bool)]) -> marshal::Memory {
    let address = (memory.0.address() + pages.start * PAGE) as u64;
    marshal::Memory::Range { address, bytes: (pages.len() * PAGE) as u64, access: access.to_vec() }
}

/// Prepares and settles such a call.
fn svm(lent: &mut Lent, memory: &Memory, pages: Range<usize>, access: &[(u32, bool)]) -> Pages {
    let call = range_of(memory, pages, access);
    let pages = lent.prepare(&call).unwrap();
    lent.settle(&call, &pages, None);
    pages
}

/// Which pages are private.
fn private(memory: &Memory) -> Vec<bool> {
    let vmas = memory.vmas();
    let pages = memory.range().step_by(PAGE);
    pages.map(|page| vmas.iter().any(|vma| vma.range.contains(&page) && vma.private)).collect()
}

fn new(pages: usize) -> PageRun {
    PageRun::New { bytes: (pages * PAGE) as u64, writable: true }
}

fn unchanged(pages: usize) -> PageRun {
    PageRun::Unchanged { bytes: (pages * PAGE) as u64 }
}

#[test]
fn range_is_lent_from_its_first_gpu_to_its_last() {
    let (memory, mut lent) = (Memory::new(4), Lent::default());
    assert_eq!(svm(&mut lent, &memory, 0..4, &[]).runs, [unchanged(4)]);
    assert_eq!(private(&memory), [true; 4], "nobody has access");
    assert_eq!(svm(&mut lent, &memory, 0..3, &[(1, true)]).runs, [new(3)]);
    assert_eq!(svm(&mut lent, &memory, 1..4, &[(2, true)]).runs, [unchanged(2), new(1)]);
    assert_eq!(private(&memory), [false; 4]);
    assert_eq!(svm(&mut lent, &memory, 0..4, &[]).runs, [unchanged(4)], "whoever has access keeps it");
    svm(&mut lent, &memory, 0..4, &[(1, false)]);
    assert_eq!(private(&memory), [true, false, false, false]);
    svm(&mut lent, &memory, 2..3, &[(2, false)]);
    assert_eq!(private(&memory), [true, false, true, false]);
    svm(&mut lent, &memory, 0..4, &[(2, true), (2, false)]);
    assert_eq!(private(&memory), [true; 4]);
    assert_eq!([0, 1, 2, 3].map(|page| memory.read(page * PAGE)), [1, 2, 3, 4]);
}

#[test]
fn range_that_the_device_refuses_stays_private() {
    let (memory, mut lent) = (Memory::new(2), Lent::default());
    let call = range_of(&memory, 0..2, &[(1, true)]);
    let pages = lent.prepare(&call).unwrap();
    assert_eq!(private(&memory), [false; 2]);
    lent.cancel(&pages);
    assert_eq!(private(&memory), [true; 2]);
    assert!(lent.loans.is_empty());
}

#[test]
fn range_over_nothing_has_no_pages() {
    let mut lent = Lent::default();
    let memory = Memory::new(3);
    let middle = NonNull::new(pointer(memory.0.address() + PAGE).cast()).unwrap();
    // SAFETY: the page is this test's, which makes no reference to it and uses the others only.
    unsafe { munmap(middle, PAGE) }.unwrap();
    for access in [&[][..], &[(1, true)]] {
        assert_eq!(svm(&mut lent, &memory, 0..3, access).runs, []);
    }
    assert!(lent.loans.is_empty());
    assert_eq!(memory.read(0), 1);
    // SAFETY: nothing was mapped there meanwhile by this thread; `Memory` unmaps the whole range.
    unsafe {
        mmap_anonymous(
            NonZeroUsize::new(memory.range().start + PAGE),
            PAGE.try_into().unwrap(),
            ProtFlags::PROT_READ,
            MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE,
        )
    }
    .unwrap();
}

#[test]
fn range_has_read_only_pages_apart() {
    let (memory, mut lent) = (Memory::new(3), Lent::default());
    let first = NonNull::new(pointer(memory.0.address()).cast()).unwrap();
    // SAFETY: the page is this test's, which makes no reference to it.
    unsafe { mprotect(first, PAGE, ProtFlags::PROT_READ).unwrap() };
    let read_only = PageRun::New { bytes: PAGE as u64, writable: false };
    assert_eq!(svm(&mut lent, &memory, 0..3, &[(1, true)]).runs, [read_only, new(2)]);
}

#[test]
fn range_and_object_share_pages_and_the_last_of_them_ends_the_loan() {
    let (memory, mut lent) = (Memory::new(3), Lent::default());
    let object = lend_part(&mut lent, &memory, 0..2).unwrap();
    lent.keep(&object, 7);
    let of_object = PageRun::Of { handle: 7, offset: PAGE as u64, bytes: PAGE as u64 };
    assert_eq!(svm(&mut lent, &memory, 1..3, &[(1, true)]).runs, [of_object, new(1)]);
    lent.release(7);
    assert_eq!(private(&memory), [true, false, false]);
    assert!(
        lend(&mut lent, &memory).is_none(),
        "pages of a range are in no object; the device refuses it, too"
    );
    svm(&mut lent, &memory, 0..3, &[(1, false)]);
    assert_eq!(private(&memory), [true; 3]);
}

#[test]
fn range_that_was_unmapped_without_notice_is_told_with_the_next_call_that_needs_addresses() {
    let (memory, mut lent) = (Memory::new(4), Lent::default());
    svm(&mut lent, &memory, 0..4, &[(1, true)]);
    let buffer = marshal::Memory::Buffer;
    assert_eq!(lost(&lent.forget_lost(&buffer).unwrap()), []);
    let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let replaced = NonZeroUsize::new(memory.range().start + PAGE);
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
    // SAFETY: pages of the test's own mapping, to which there are no references, are replaced.
    unsafe { mmap_anonymous(replaced, (2 * PAGE).try_into().unwrap(), rw, flags) }.unwrap();
    memory.write(PAGE, 55);
    assert_eq!(lost(&lent.forget_lost(&buffer).unwrap()), [lost_range(&memory, 1..3)]);
    assert_eq!(lost(&lent.forget_lost(&buffer).unwrap()), [], "once");
    assert_eq!(svm(&mut lent, &memory, 0..4, &[(1, true)]).runs, [unchanged(1), new(2), unchanged(1)]);
    svm(&mut lent, &memory, 0..4, &[(1, false)]);
    assert_eq!([0, 1, 2, 3].map(|page| memory.read(page * PAGE)), [1, 55, 0, 4]);
}

#[test]
fn lent_pages_in_the_place_of_others_are_lost() {
    let (memory, mut lent) = (Memory::new(2), Lent::default());
    let pages = svm(&mut lent, &memory, 0..2, &[(1, true)]);
    let first = pointer(memory.range().start);
    let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a page of the test's own mapping, to which there are no references, is replaced by the one behind it.
    unsafe { map_fixed(pages.memory[0].as_fd(), first, PAGE, rw, PAGE as u64) }.unwrap();
    let gone = lost(&lent.forget_lost(&marshal::Memory::Buffer).unwrap());
    assert_eq!(gone, [lost_range(&memory, 0..1)]);
}

#[test]
fn range_of_which_pages_are_forgotten_ends_there_and_nowhere_else() {
    let (memory, mut lent) = (Memory::new(6), Lent::indexed());
    svm(&mut lent, &memory, 0..3, &[(1, true)]);
    svm(&mut lent, &memory, 3..6, &[(2, true)]);
    let forgotten = lent.forget(&part(&memory, 2..4));
    assert_eq!(lost(&forgotten), [lost_range(&memory, 2..4)], "one call for both");
    assert!(!has_page_of(&part(&memory, 2..4)));
    assert!(has_page_of(&part(&memory, 1..2)) && has_page_of(&part(&memory, 4..5)));
    forgotten.take_back().unwrap();
    assert_eq!(private(&memory), [false, false, true, true, false, false]);
    assert_eq!((memory.read(2 * PAGE), memory.read(3 * PAGE)), (3, 4));
    svm(&mut lent, &memory, 0..2, &[(1, false)]);
    svm(&mut lent, &memory, 4..6, &[(2, false)]);
    assert_eq!(private(&memory), [true; 6]);
    assert!(!has_page_of(&memory.range()));
}

#[test]
fn object_that_is_over_a_part_of_a_loan_is_no_user_of_the_rest_once_it_is_cut() {
    let (memory, mut lent) = (Memory::new(4), Lent::default());
    for (handle, pages) in [(1, 0..4), (2, 0..2)] {
        let pages = lend_part(&mut lent, &memory, pages).unwrap();
        lent.keep(&pages, handle);
    }
    svm(&mut lent, &memory, 3..4, &[(9, true)]);
    svm(&mut lent, &memory, 3..4, &[(9, false)]);
    lent.release(1);
    assert_eq!(private(&memory), [false, false, false, true]);
    lent.release(2);
    assert_eq!(private(&memory), [true; 4]);
    assert!(lent.loans.is_empty());
}

#[test]
fn pages_that_were_never_used_take_no_memory_when_they_are_lent() {
    let (memory, mut lent) = (Memory(Mapping::private(256 * PAGE).unwrap(), 256 * PAGE), Lent::default());
    memory.write(100 * PAGE + 7, 9);
    let pages = lend(&mut lent, &memory).unwrap();
    let blocks = fstat(&pages.memory[0]).unwrap().st_blocks;
    assert!(blocks > 0 && blocks <= 8 * 8, "{blocks} blocks of 512 bytes");
    assert_eq!((memory.read(100 * PAGE + 7), memory.read(0), memory.read(256 * PAGE - 1)), (9, 0, 0));
    lent.cancel(&pages);
}
