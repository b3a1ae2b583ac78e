// SPDX-License-Identifier: MIT OR Apache-2.0
//! The buffers of a client in this very process: GPU and client use one address space.
//!
//! A client reserves the addresses of its buffers without access and maps a buffer there for itself when it wants to.
//! So an address that a GPU needs is free, or reserved, or mapped by the client already. Where the client has mapped
//! the buffer, that mapping is the GPU's too. Elsewhere one is made for the GPU; it is executable, which no mapping of
//! the client is, and so is known when the GPU gives it back.
//!
//! INVARIANT: a mapping of the client is never replaced. A mapping that was made for the GPU is replaced by the client's
//! own of the same memory, or by a reservation when no GPU has it any more. The client takes its mapping away only when
//! no queue can use it.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use nix::sys::stat::fstat;

use kfd::maps::{self, Vma};

/// Access of a mapping that [`map`] makes.
const FOR_THE_GPU: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE).union(ProtFlags::PROT_EXEC);

/// Whether it is a reservation: private pages of nothing, without access.
fn is_reserved(vma: &Vma) -> bool {
    vma.private && vma.prot.is_empty() && vma.inode == 0
}

/// Whether it was made by [`map`].
fn is_for_the_gpu(vma: &Vma) -> bool {
    !vma.private && vma.prot == FOR_THE_GPU
}

/// Makes sure that a buffer is mapped in `address..address + length`.
///
/// # Errors
/// `EINVAL` where something else is mapped, `ENOMEM` when the host is out of memory or mappings.
pub(super) fn map(address: usize, length: usize, backing: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    let range = address..address.checked_add(length).ok_or(Errno::EINVAL)?;
    let stat = fstat(backing)?;
    let device = maps::device(stat.st_dev);
    // CAST: usize to u64 on a 64-bit target.
    let offset_at = |at: usize| offset + (at - address) as u64;
    let mut wanted = Vec::new();
    let mut at = address;
    for vma in maps::in_range(&range)? {
        if !is_reserved(&vma) {
            let is_it =
                (vma.device, vma.inode, vma.offset) == (device, stat.st_ino, offset_at(vma.range.start));
            if !is_it || !vma.prot.contains(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) {
                return Err(Errno::EINVAL);
            }
            wanted.push(at..vma.range.start);
            at = vma.range.end;
        }
    }
    wanted.push(at..range.end);
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
    for part in wanted.into_iter().filter(|part| !part.is_empty()) {
        let length = NonZeroUsize::new(part.len()).ok_or(Errno::EINVAL)?;
        let offset = i64::try_from(offset_at(part.start)).map_err(|_| Errno::EOVERFLOW)?;
        // SAFETY: nothing is mapped in the part but reservations, in which no memory is.
        unsafe { mmap(NonZeroUsize::new(part.start), length, FOR_THE_GPU, flags, backing, offset) }?;
    }
    Ok(())
}

/// Puts a reservation where a mapping was made for the GPU. The caller has made sure that no GPU can use it.
pub(super) fn unmap(va: u64, bytes: u64) {
    let (Ok(address), Ok(length)) = (usize::try_from(va), usize::try_from(bytes)) else { return };
    let range = address..address.saturating_add(length);
    let given_back = maps::in_range(&range).and_then(|vmas| {
        for vma in vmas.iter().filter(|vma| is_for_the_gpu(vma)) {
            let (at, length) = (NonZeroUsize::new(vma.range.start), NonZeroUsize::new(vma.range.len()));
            let length = length.ok_or(Errno::EINVAL)?;
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
            // SAFETY: `map` made what is there for a GPU that cannot use it any more, and the client has not mapped it.
            unsafe { mmap_anonymous(at, length, ProtFlags::PROT_NONE, flags) }?;
        }
        Ok(())
    });
    if let Err(error) = given_back {
        tracing::error!(target: "processor", %error, va, bytes, "range not unmapped");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use nix::fcntl::SealFlag;

    use super::*;

    const PAGE: usize = 4096;
    const BASE: usize = 18 << 40;

    fn memfd(pages: u64) -> OwnedFd {
        kfd::linux::memfd("t", pages * PAGE as u64, SealFlag::F_SEAL_SHRINK).unwrap()
    }

    /// Access of every page from `at` as `/proc/self/maps` writes it, `-` where nothing is mapped.
    fn shape(at: usize, pages: usize) -> Vec<String> {
        let range = at..at + pages * PAGE;
        let vmas = maps::in_range(&range).unwrap();
        let access = |page: usize| {
            let vma = vmas.iter().find(|vma| vma.range.contains(&page));
            vma.map_or("-".to_owned(), |vma| {
                let letter = |flag, letter| if vma.prot.contains(flag) { letter } else { '-' };
                [
                    letter(ProtFlags::PROT_READ, 'r'),
                    letter(ProtFlags::PROT_WRITE, 'w'),
                    letter(ProtFlags::PROT_EXEC, 'x'),
                    if vma.private { 'p' } else { 's' },
                ]
                .iter()
                .collect()
            })
        };
        range.step_by(PAGE).map(access).collect()
    }

    #[test]
    fn clients_mappings_serve_the_gpu_and_stay() {
        let (fd, at) = (memfd(4), BASE);
        let (whole, page) = (NonZeroUsize::new(2 * PAGE).unwrap(), NonZeroUsize::new(PAGE).unwrap());
        let reserve = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE | MapFlags::MAP_NORESERVE;
        let (rw, fixed) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED);
        // SAFETY: nobody uses these addresses of the window.
        unsafe {
            mmap_anonymous(NonZeroUsize::new(at), whole, ProtFlags::PROT_NONE, reserve).unwrap();
            mmap(NonZeroUsize::new(at + PAGE), page, rw, fixed, &fd, PAGE as i64).unwrap();
        }
        map(at, 4 * PAGE, fd.as_fd(), 0).unwrap();
        assert_eq!(shape(at, 4), ["rwxs", "rw-s", "rwxs", "rwxs"]);
        assert_eq!(map(at, PAGE, fd.as_fd(), PAGE as u64), Err(Errno::EINVAL), "another page of it");
        assert_eq!(map(at, PAGE, memfd(1).as_fd(), 0), Err(Errno::EINVAL));
        unmap(at as u64, 4 * PAGE as u64);
        assert_eq!(shape(at, 4), ["---p", "rw-s", "---p", "---p"]);
    }
}
