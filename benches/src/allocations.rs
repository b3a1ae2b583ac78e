// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system's allocator, counting: the submission path claims not to allocate.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// How often memory was allocated or resized since the program began, by any thread.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// The allocator.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call is the system allocator's own; counting touches no memory of the caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the layout is the caller's, who promises that it is not of size zero.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the layout is the caller's, who promises that it is not of size zero.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller promises that `pointer` came from this allocator, which is the system's, with `layout`.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that `pointer` came from this allocator, which is the system's, with `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
