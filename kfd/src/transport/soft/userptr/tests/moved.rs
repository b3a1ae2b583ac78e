// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lent pages that `mremap` moves or is to enlarge.
#![allow(unsafe_code)]

use std::ffi::c_void;

use nix::sys::mman::{MRemapFlags, mremap};

use super::*;

#[test]
fn lent_pages_that_were_moved_can_be_lent_where_they_are_now() {
    let (memory, mut lent) = (Memory::new(2), Lent::default());
    let first = svm(&mut lent, &memory, 0..2, &[(1, true)]);
    // As mremap does for a growing heap.
    let moved = Mapping::shared(&first.memory[0], 2 * PAGE).unwrap();
    let pages = lent.lend(moved.address() as u64, 2 * PAGE as u64, Purpose::Range).unwrap();
    assert_eq!(pages.runs, [new(2)]);
    let mut byte = [0];
    device_view(&pages.memory[0]).read_exact_at(&mut byte, PAGE as u64).unwrap();
    assert_eq!(byte, [2]);
    lent.cancel(&pages);
    svm(&mut lent, &memory, 0..2, &[(1, false)]);
}

/// Whether the kernel enlarges a mapping, as the C library's `realloc` has it do.
fn grows(memory: &Memory) -> Result<NonNull<c_void>, Errno> {
    let start = NonNull::new(pointer(memory.range().start).cast()).unwrap();
    let flags = MRemapFlags::MREMAP_MAYMOVE;
    // SAFETY: whoever calls this does not use the memory where it was, if it has moved.
    unsafe { mremap(start, memory.1, 2 * memory.1, flags, None) }
}

#[test]
fn lent_pages_cannot_be_enlarged_beyond_the_memfd_and_private_ones_can_again() {
    let (memory, mut lent) = (Memory::new(4), Lent::default());
    let pages = lend(&mut lent, &memory).unwrap();
    lent.keep(&pages, 1);
    assert_eq!(grows(&memory), Err(Errno::EFAULT));
    assert_eq!((memory.read(0), memory.read(3 * PAGE)), (1, 4));
    lent.release(1);
    assert_eq!(memory.vmas().len(), 1, "as before");
    let there = grows(&memory).unwrap();
    let mut last = [9];
    user_memory::read((there.addr().get() + 3 * PAGE) as u64, &mut last).unwrap();
    assert_eq!(last, [4]);
    user_memory::read((there.addr().get() + 8 * PAGE - 1) as u64, &mut last).unwrap();
    assert_eq!(last, [0]);
    // SAFETY: nothing uses it any more; what `memory` names has moved there.
    unsafe { munmap(there, 8 * PAGE) }.unwrap();
    std::mem::forget(memory);
}
