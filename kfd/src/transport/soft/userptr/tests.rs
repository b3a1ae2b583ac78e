// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lending pages and taking them back, on real mappings.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;

const PAGE: usize = 4096;
const WRITABLE: u32 = sys::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;

/// Private anonymous pages holding their own page number.
struct Pages(Mapping, usize);

impl Pages {
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

fn lend(lent: &mut Lent, pages: &Pages) -> Option<Arc<OwnedFd>> {
    lent.lend(pages.0.address() as u64, pages.1 as u64, WRITABLE, frame())
}

/// An address in a stack frame at or below the caller's.
fn frame() -> usize {
    let local = 0_u8;
    std::ptr::from_ref(&local).addr()
}

fn device_view(memory: &OwnedFd) -> File {
    File::from(memory.try_clone().unwrap())
}

#[test]
fn lent_pages_are_shared_with_the_device_and_come_back_private() {
    let (pages, mut lent) = (Pages::new(3), Lent::default());
    let memory = lend(&mut lent, &pages).unwrap();
    lent.keep(&memory, 7);
    let device = device_view(&memory);
    let mut byte = [0];
    device.read_exact_at(&mut byte, PAGE as u64).unwrap();
    assert_eq!(byte, [2]);
    device.write_all_at(&[99], 2 * PAGE as u64).unwrap();
    pages.write(1, 55);
    assert_eq!(pages.read(2 * PAGE), 99);
    assert!(lent.has(7));
    lent.release(7);
    assert!(!lent.has(7));
    assert_eq!((pages.read(0), pages.read(1), pages.read(2 * PAGE)), (1, 55, 99));
    device.write_all_at(&[1], 2 * PAGE as u64).unwrap();
    assert_eq!(pages.read(2 * PAGE), 99, "no longer the device's");
    assert!(pages.vmas().iter().all(|vma| vma.private && vma.inode == 0));
}

#[test]
fn lend_same_pages_twice_gives_the_same_memory_until_both_are_released() {
    let (pages, mut lent) = (Pages::new(1), Lent::default());
    let first = lend(&mut lent, &pages).unwrap();
    lent.keep(&first, 1);
    let second = lend(&mut lent, &pages).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    lent.keep(&second, 2);
    lent.release(1);
    assert!(!pages.vmas()[0].private);
    lent.release(2);
    assert!(pages.vmas()[0].private);
}

#[test]
fn lend_refuses_holes_shared_readonly_and_stack_memory() {
    let (pages, mut lent) = (Pages::new(3), Lent::default());
    assert!(lent.lend(0x1000, 4096, 0, 0).is_none());
    assert!(lent.lend(0, 4096, 0, 0).is_none());
    assert!(lent.lend(u64::MAX - 10, 4096, 0, 0).is_none());
    let frame = frame();
    assert!(lent.lend(frame as u64, 1, WRITABLE, frame).is_none());
    let middle = NonNull::new(pointer(pages.0.address() + PAGE).cast()).unwrap();
    // SAFETY: the page is this test's, which makes no reference to it.
    unsafe { mprotect(middle, PAGE, ProtFlags::PROT_READ).unwrap() };
    assert!(lend(&mut lent, &pages).is_none());
    let memory = lent.lend(pages.0.address() as u64, pages.1 as u64, 0, 0).unwrap();
    assert_eq!(pages.vmas().len(), 3, "protection is kept");
    assert!(lent.lend(pages.0.address() as u64, PAGE as u64, 0, 0).is_none(), "part of a loan");
    lent.cancel(&memory);
    let prots: Vec<_> =
        pages.vmas().iter().map(|vma| (vma.prot.contains(ProtFlags::PROT_WRITE), vma.private)).collect();
    assert_eq!(prots, [(true, true), (false, true), (true, true)]);
    assert_eq!(pages.read(PAGE), 2);
}

#[test]
fn take_back_leaves_alone_what_the_application_mapped_meanwhile() {
    let (pages, mut lent) = (Pages::new(3), Lent::default());
    let memory = lend(&mut lent, &pages).unwrap();
    lent.keep(&memory, 1);
    let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let other = linux::memfd("other", PAGE as u64, SealFlag::empty()).unwrap();
    // SAFETY: the page is this test's, which makes no reference to it.
    unsafe { map_fixed(other.as_fd(), pointer(pages.0.address() + PAGE), PAGE, rw, 0) }.unwrap();
    lent.take_back_all().unwrap();
    let private: Vec<bool> = pages.vmas().iter().map(|vma| vma.private).collect();
    assert_eq!(private, [true, false, true]);
    assert_eq!((pages.read(0), pages.read(PAGE), pages.read(2 * PAGE)), (1, 0, 3));
}
