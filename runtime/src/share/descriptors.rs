// SPDX-License-Identifier: MIT OR Apache-2.0
//! The DMABuf descriptors that the process itself holds: while it has no device, files that CRIU can dump are
//! placeholders for them, under the same numbers.
//!
//! The name of a placeholder says which memory it stands for. So it does not matter which numbers it has when the
//! memory is back: what was duplicated or received meanwhile gets its DMABuf like the rest.
//!
//! INVARIANT: a number is only touched while it names what it was found to name; whoever closes one and opens another
//! file under the same number at that very moment loses that file, which is why this is done with the gate closed, as
//! late and as briefly as can be.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use kfd::linux::closes_on_exec;
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::dup3_raw;

use crate::context::device::identify;
use crate::context::registry::state::DmabufId;
use crate::image::Extent;

/// How the name of a placeholder begins, as `/proc` shows it.
const PLACEHOLDER: &str = "/memfd:stasis-dmabuf:";

/// Whether a file of this name, as `/proc` shows it, is a DMABuf.
pub(crate) fn is_dmabuf(name: &str) -> bool {
    // The software device's are its memfds.
    let soft = name.strip_prefix("/memfd:softgpu:");
    name.starts_with("/dmabuf")
        || soft.is_some_and(|kind| kind.starts_with("vram") || kind.starts_with("gtt"))
}

/// A descriptor of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Its number.
    pub number: RawFd,
    /// Of which memory.
    pub dmabuf: DmabufId,
}

impl Descriptor {
    /// The file, for a call during which nobody is expected to close it; a call on a number that was closed fails.
    pub fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: a number that was found open a moment ago and is no -1. If its owner closes it meanwhile the system
        // refuses the call, or looks at another file of this process: nothing is read or written through it.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }
}

/// The open descriptors whose file's name, as `/proc` shows it, is one of those wanted.
fn numbers<T>(wanted: impl Fn(&str) -> Option<T>) -> io::Result<Vec<(RawFd, T)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The descriptor of this very listing is closed by the time it is looked up.
        let Ok(name) = std::fs::read_link(entry.path()) else { continue };
        let number = entry.file_name().to_str().and_then(|number| number.parse().ok());
        if let (Some(number), Some(what)) = (number, name.to_str().and_then(&wanted)) {
            found.push((number, what));
        }
    }
    Ok(found)
}

/// The process's DMABufs.
///
/// # Errors
/// When `/proc/self` cannot be read.
pub(crate) fn scan() -> io::Result<Vec<Descriptor>> {
    let found = numbers(|name| is_dmabuf(name).then_some(()))?;
    let descriptor = |(number, ())| {
        let probe = Descriptor { number, dmabuf: DmabufId { device: 0, inode: 0 } };
        // One that was closed meanwhile is none.
        Some(Descriptor { dmabuf: identify(probe.borrow()).ok()?, ..probe })
    };
    Ok(found.into_iter().filter_map(descriptor).collect())
}

/// The process's sockets, of whatever kind.
///
/// # Errors
/// When `/proc/self` cannot be read.
pub(super) fn sockets() -> io::Result<Vec<Descriptor>> {
    let found = numbers(|name| name.starts_with("socket:").then_some(()))?;
    let none = DmabufId { device: 0, inode: 0 };
    Ok(found.into_iter().map(|(number, ())| Descriptor { number, dmabuf: none }).collect())
}

/// Replaces all DMABufs by placeholders.
///
/// # Errors
/// When one cannot be made; some descriptors are placeholders then, which [`restore_descriptors`] finds.
pub(crate) fn replace_with_placeholders() -> io::Result<()> {
    let mut placeholders = BTreeMap::<DmabufId, OwnedFd>::new();
    for descriptor in scan()? {
        let placeholder = match placeholders.entry(descriptor.dmabuf) {
            std::collections::btree_map::Entry::Occupied(made) => made.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let name = format!("stasis-dmabuf:{}", descriptor.dmabuf);
                free.insert(memfd_create(name.as_str(), MFdFlags::MFD_CLOEXEC)?)
            }
        };
        replace(descriptor.number, placeholder.as_fd())?;
    }
    Ok(())
}

/// The memory that the process's placeholders stand for.
///
/// # Errors
/// When `/proc/self` cannot be read.
pub(crate) fn placeholders() -> io::Result<Vec<Descriptor>> {
    let found = numbers(|name| parse(name.strip_prefix(PLACEHOLDER)?))?;
    Ok(found.into_iter().map(|(number, dmabuf)| Descriptor { number, dmabuf }).collect())
}

/// Replaces placeholders by their DMABufs.
///
/// # Errors
/// When a descriptor cannot be duplicated.
pub(crate) fn restore_descriptors(of: impl Fn(DmabufId) -> Option<OwnedFd>) -> io::Result<()> {
    let mut files = BTreeMap::<DmabufId, Option<OwnedFd>>::new();
    for Descriptor { number, dmabuf } in placeholders()? {
        if let Some(file) = files.entry(dmabuf).or_insert_with(|| of(dmabuf)) {
            replace(number, file.as_fd())?;
        }
    }
    Ok(())
}

/// The memory that a placeholder's name says, which may have ` (deleted)` behind it.
fn parse(name: &str) -> Option<DmabufId> {
    let (device, inode) = name.split_ascii_whitespace().next()?.split_once('.')?;
    Some(DmabufId { device: u64::from_str_radix(device, 16).ok()?, inode: inode.parse().ok()? })
}

/// Has a number name another file; whether it is inherited through exec stays as it was.
fn replace(number: RawFd, file: BorrowedFd<'_>) -> io::Result<()> {
    let was = Descriptor { number, dmabuf: DmabufId { device: 0, inode: 0 } };
    let closes = match closes_on_exec(was.borrow()) {
        // Closed meanwhile.
        Err(Errno::EBADF) => return Ok(()),
        closes => closes?,
    };
    let flags = if closes { OFlag::O_CLOEXEC } else { OFlag::empty() };
    // SAFETY: both are open; what the number named before is closed by the system in the same step.
    let replaced = unsafe { dup3_raw(file, number, flags) }?;
    // The number is its owner's, as before.
    let _ = replaced.into_raw_fd();
    Ok(())
}

/// A mapping of a DMABuf for as long as its bytes are saved or filled.
#[derive(Debug)]
pub(crate) struct View(MmapRaw);

impl View {
    /// Maps `bytes` of `dmabuf`.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn of(dmabuf: BorrowedFd<'_>, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        MmapOptions::new().len(bytes).map_raw(dmabuf.as_raw_fd()).map(Self)
    }

    /// Its memory, which is to be used no longer than the view lives.
    pub fn extent(&self) -> Extent<'static> {
        let start = NonNull::new(self.0.as_mut_ptr()).expect("INVARIANT: no mapping begins at address 0");
        // SAFETY: mapped for reading and writing until drop; the queues of everybody who shares it are drained.
        unsafe { Extent::new(start, self.0.len() as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(name: &str) -> OwnedFd {
        memfd_create(name, MFdFlags::MFD_CLOEXEC).unwrap()
    }

    #[test]
    fn dmabufs_are_known_by_name() {
        for (name, is) in [
            ("/dmabuf:", true),
            ("/dmabuf:amdgpu", true),
            ("/memfd:softgpu:vram-public:7840 (deleted)", true),
            ("/memfd:softgpu:gtt:1 (deleted)", true),
            ("/memfd:softgpu:userptr:1 (deleted)", false),
            ("/memfd:softgpu-file (deleted)", false),
            ("/memfd:stasis-dmabuf:1.2 (deleted)", false),
            ("/dev/null", false),
        ] {
            assert_eq!(is_dmabuf(name), is, "{name}");
        }
        assert_eq!(parse("1f.42 (deleted)"), Some(DmabufId { device: 0x1f, inode: 42 }));
        assert_eq!(parse("1f.x (deleted)"), None);
        assert_eq!(parse(""), None);
    }

    /// One test: both directions look at all descriptors of the process.
    #[test]
    fn descriptors_keep_numbers_and_flags_through_a_stand_in() {
        let memory = memfd("softgpu:vram:7");
        let id = identify(&memory).unwrap();
        let twin = nix::unistd::dup(&memory).unwrap();
        let numbers = [memory.as_raw_fd(), twin.as_raw_fd()];
        let cloexec = |fd: &OwnedFd| closes_on_exec(fd).unwrap();
        assert_eq!((cloexec(&memory), cloexec(&twin)), (true, false));
        let kept = nix::unistd::dup(&memory).unwrap();
        // What another test of this process has does not count.
        let ours = |found: Vec<Descriptor>| found.into_iter().filter(|d| d.dmabuf == id).count();
        assert_eq!(ours(scan().unwrap()), 3);
        for number in numbers {
            let placeholder = memfd(&format!("stasis-dmabuf:{id}"));
            replace(number, placeholder.as_fd()).unwrap();
        }
        let late = nix::unistd::dup(&twin).unwrap();
        assert_eq!((ours(scan().unwrap()), ours(placeholders().unwrap())), (1, 3));
        assert_eq!((cloexec(&memory), cloexec(&twin)), (true, false));
        restore_descriptors(|wanted| (wanted == id).then(|| nix::unistd::dup(&kept).unwrap())).unwrap();
        assert_eq!((ours(scan().unwrap()), ours(placeholders().unwrap())), (4, 0));
        assert_eq!(identify(&late).unwrap(), id);
        assert_eq!((cloexec(&memory), cloexec(&twin)), (true, false));
    }
}
