// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for pages that are about to be filled: asked for at once instead of fault by fault.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MmapAdvise, madvise};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of a huge page: what an entry of the last table but one maps.
const HUGE_BYTES: usize = 2 << 20;
/// Huge pages that the kernel refuses before it is asked for no more.
const REFUSALS: usize = 4;

/// Asks for huge pages, until the kernel has refused some: it has none (fragmented memory, a limit), or this is not memory of a
/// kind that could have some.
///
/// `MADV_COLLAPSE` (Linux 6.1) makes one huge page of what a file in memory has in small ones, be it nothing, whatever
/// `/sys/kernel/mm/transparent_hugepage` says of other ways. One is cleared and mapped in half of the time of 512 small ones, and given
/// back in a hundredth of it.
#[derive(Debug, Default)]
pub struct HugePages {
    refusals: AtomicUsize,
}

impl HugePages {
    /// Has the kernel give pages their memory, writable ones too (a read fault maps sixteen that are there already, a write fault one); as
    /// huge pages where they are whole ones. Only advice: kernels before 5.14 and device memory do not take it.
    ///
    /// # Safety
    /// All of `bytes` bytes at `start` is mapped, and stays so during the call. The contents stay.
    pub unsafe fn populate(&self, start: *mut u8, bytes: usize) {
        let Some(page) = NonNull::new(start.cast()).filter(|start| start.addr().get().is_multiple_of(PAGE))
        else {
            return;
        };
        let is_huge = start.addr().is_multiple_of(HUGE_BYTES) && bytes.is_multiple_of(HUGE_BYTES);
        let mut parts = (0..bytes).step_by(HUGE_BYTES).map(|at| start.wrapping_add(at));
        // SAFETY: the caller promises the pages.
        if is_huge && parts.all(|part| unsafe { self.back(part) }) {
            return;
        }
        // SAFETY: as before.
        if let Err(error) = unsafe { madvise(page, bytes, MmapAdvise::MADV_POPULATE_READ) } {
            tracing::trace!(target: "checkpoint", %error, "pages are given their memory one by one");
        }
    }

    /// Backs the 2 MiB at `at` with one page; whether it is there.
    ///
    /// # Safety
    /// As for [`HugePages::populate`].
    unsafe fn back(&self, at: *mut u8) -> bool {
        let Some(start) =
            NonNull::new(at.cast()).filter(|_| self.refusals.load(Ordering::Relaxed) < REFUSALS)
        else {
            return false;
        };
        // There has to be a table for small pages.
        // SAFETY: the caller promises the pages.
        let touched = unsafe { madvise(start, PAGE, MmapAdvise::MADV_POPULATE_READ) };
        // SAFETY: as before.
        let collapse =
            |()| Errno::result(unsafe { libc::madvise(at.cast(), HUGE_BYTES, libc::MADV_COLLAPSE) });
        let backed = touched.and_then(collapse);
        if let Err(error) = backed {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            tracing::trace!(target: "checkpoint", %error, "no huge page");
        }
        backed.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use kfd::linux::{SealFlag, memfd};
    use kfd::transport::{ProtFlags, map_fixed};
    use memmap2::{MmapMut, MmapOptions};

    use super::*;

    const BYTES: usize = 2 * HUGE_BYTES;

    /// Memory of a file, and where in it the first huge page could be.
    fn memory() -> (MmapMut, usize) {
        let file = memfd("pages", BYTES as u64, SealFlag::empty()).unwrap();
        let mut taken = MmapOptions::new().len(BYTES + HUGE_BYTES).map_anon().unwrap();
        let start = taken.as_ptr().addr().next_multiple_of(HUGE_BYTES) - taken.as_ptr().addr();
        let at = taken[start..].as_mut_ptr();
        // SAFETY: a part of what was just mapped, of which there is no reference.
        unsafe { map_fixed(file.as_fd(), at, BYTES, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, 0) }
            .unwrap();
        (taken, start)
    }

    /// Of the mapping at an address, KiB: what is there, and what of it is there as huge pages.
    fn resident(at: *const u8) -> (usize, usize) {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_mapping = maps.split_once(&format!("{:x}-", at.addr())).unwrap().1;
        let field = |name: &str| {
            let line = of_mapping.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        (field("Rss:"), field("ShmemPmdMapped:"))
    }

    #[test]
    fn pages_get_their_memory_and_keep_their_contents() {
        for refusals in [0, REFUSALS] {
            let (mut taken, start) = memory();
            taken[start + 5000..start + 5003].copy_from_slice(b"abc");
            let huge = HugePages { refusals: AtomicUsize::new(refusals) };
            // SAFETY: a part of the mapping.
            unsafe { huge.populate(taken[start..].as_mut_ptr(), BYTES) };
            let (all, as_huge) = resident(&raw const taken[start]);
            assert_eq!(all, BYTES >> 10, "{refusals}");
            // Kernels before 6.1 refuse.
            let is_given = huge.refusals.load(Ordering::Relaxed) == 0;
            assert_eq!(as_huge, if is_given { BYTES >> 10 } else { 0 }, "{refusals}");
            assert_eq!(&taken[start + 5000..start + 5003], b"abc");
            assert_eq!(taken[start..start + BYTES].iter().filter(|byte| **byte != 0).count(), 3);
        }
    }

    #[test]
    fn a_part_of_a_huge_page_is_populated_in_small_ones() {
        let (mut taken, start) = memory();
        let huge = HugePages::default();
        // SAFETY: a part of the mapping.
        unsafe { huge.populate(taken[start + PAGE..].as_mut_ptr(), HUGE_BYTES) };
        assert_eq!(resident(&raw const taken[start]), (HUGE_BYTES >> 10, 0));
        // SAFETY: as before.
        unsafe { huge.populate(taken[start + 1..].as_mut_ptr(), HUGE_BYTES) };
        assert_eq!(huge.refusals.load(Ordering::Relaxed), 0);
    }
}
