// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transport of the kernel's driver: open, ioctl and mmap on the real files.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::mman::ProtFlags;
use nix::sys::stat::Mode;

use super::{CloseError, DoorbellSlice, File, OpenError, Transport, map_fixed};
use crate::linux;
use crate::topology::{DirSource, SysfsSource};

/// Where KFD shows its topology.
pub const TOPOLOGY_PATH: &str = "/sys/class/kfd/kfd/topology";

/// The transport of the kernel's driver.
#[derive(Debug)]
pub struct KernelTransport {
    sysfs: DirSource,
}

impl KernelTransport {
    /// The driver of the running kernel, whether or not it is loaded.
    pub fn new() -> Self {
        Self { sysfs: DirSource::new(TOPOLOGY_PATH) }
    }

    /// Whether the topology shows a GPU node this process may use.
    pub fn has_gpu(&self) -> bool {
        let nodes = self.sysfs.list("nodes").unwrap_or_default();
        nodes.iter().any(|node| {
            let gpu_id = self.sysfs.read(&format!("nodes/{node}/gpu_id"));
            gpu_id.is_ok_and(|text| text.trim().parse::<u32>().is_ok_and(|id| id != 0))
        })
    }
}

impl Default for KernelTransport {
    fn default() -> Self {
        Self::new()
    }
}

impl Transport for KernelTransport {
    fn name(&self) -> &str {
        "kfd"
    }

    fn sysfs(&self) -> &dyn SysfsSource {
        &self.sysfs
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>, OpenError> {
        match open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) {
            Ok(fd) => self.adopt(path, fd),
            Err(errno) => Err(OpenError::File { path: path.to_owned(), transport: "kfd".to_owned(), errno }),
        }
    }

    fn adopt(&self, path: &Path, fd: OwnedFd) -> Result<Arc<dyn File>, OpenError> {
        Ok(Arc::new(KernelFile { path: path.to_owned(), fd }))
    }

    fn close(&self) -> Result<(), CloseError> {
        Ok(())
    }
}

#[derive(Debug)]
struct KernelFile {
    path: PathBuf,
    fd: OwnedFd,
}

impl File for KernelFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        // SAFETY: the kernel accesses `arg` for as many bytes as `cmd` encodes, and the memory that pointers in there
        // name. The caller vouches for both.
        unsafe { linux::ioctl(self.fd.as_fd(), cmd, arg) }
    }

    unsafe fn mmap_fixed(&self, at: *mut u8, len: usize, prot: ProtFlags, offset: u64) -> Result<(), Errno> {
        // SAFETY: the caller gives up what is mapped in `at..at + len`.
        unsafe { map_fixed(self.fd.as_fd(), at, len, prot, offset) }
    }

    unsafe fn map_doorbells(&self, at: *mut u8, len: usize, offset: u64) -> Result<DoorbellSlice, Errno> {
        DoorbellSlice::check(at, len)?;
        // SAFETY: the caller gives up what is mapped in `at..at + len`.
        unsafe { map_fixed(self.fd.as_fd(), at, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, offset)? };
        // SAFETY: the range was mapped writable just now, and the caller keeps it so while a doorbell is rung.
        unsafe { DoorbellSlice::new(at, len, None) }
    }
}
