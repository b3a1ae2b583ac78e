// SPDX-License-Identifier: MIT OR Apache-2.0
//! A transport whose n-th call fails.
//!
//! INVARIANT: only calls of the thread that armed it count, and at most one fails: what other threads of the runtime do
//! meanwhile is neither counted nor disturbed. A call that fails does nothing, except where the driver does it all the
//! same (a queue that did not stop in time is gone).
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use kfd::sys::{AMDKFD_IOC_DESTROY_QUEUE, command_name};
use kfd::topology::SysfsSource;
use kfd::transport::CloseError;
use kfd::{DoorbellSlice, Errno, File, OpenError, ProtFlags, Transport};
use parking_lot::Mutex;
use softgpu::in_process::MEMORY_NAMES;

use super::{TestDriver, TestTransport};
use crate::runtime::Runtime;

/// Which call is to fail.
#[derive(Debug)]
struct Armed {
    by: ThreadId,
    /// Calls until then.
    left: u64,
    errno: Errno,
    /// The call that failed.
    taken: Option<String>,
}

/// The fault to come, shared by a transport and its files.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Mutex<Option<Armed>>,
    struck: AtomicU64,
}

impl Faults {
    /// Has the call after `calls` more of this thread fail.
    pub fn arm(&self, calls: u64, errno: Errno) {
        *self.armed.lock() = Some(Armed { by: std::thread::current().id(), left: calls, errno, taken: None });
    }

    /// Ends it.
    pub fn disarm(&self) {
        *self.armed.lock() = None;
    }

    /// Which call has failed.
    pub fn taken(&self) -> Option<String> {
        self.armed.lock().as_ref()?.taken.clone()
    }

    /// Calls that have failed so far.
    pub fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    fn strike(&self, call: impl FnOnce() -> String) -> Option<Errno> {
        let mut armed = self.armed.lock();
        let armed = armed.as_mut().filter(|a| a.by == std::thread::current().id() && a.taken.is_none())?;
        if armed.left > 0 {
            armed.left -= 1;
            return None;
        }
        armed.taken = Some(call());
        self.struck.fetch_add(1, Ordering::Relaxed);
        Some(armed.errno)
    }
}

/// A transport behind faults.
#[derive(Debug)]
pub(crate) struct FaultyTransport {
    below: Arc<dyn Transport>,
    faults: Arc<Faults>,
}

impl FaultyTransport {
    pub fn over(below: Arc<dyn Transport>) -> (Arc<Self>, Arc<Faults>) {
        let faults = Arc::<Faults>::default();
        (Arc::new(Self { below, faults: Arc::clone(&faults) }), faults)
    }

    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(FaultyFile { below: file, faults: Arc::clone(&self.faults) })
    }

    fn refuse(&self, act: &str, path: &Path) -> Result<(), OpenError> {
        match self.faults.strike(|| format!("{act} {}", path.display())) {
            None => Ok(()),
            Some(errno) => {
                Err(OpenError::File { path: path.to_owned(), transport: self.name().to_owned(), errno })
            }
        }
    }
}

/// A device of the test's own whose calls can fail.
pub(crate) fn transport(gpus: u32) -> (Arc<FaultyTransport>, Arc<TestDriver>, Arc<Faults>) {
    let below = TestTransport::new(gpus);
    let kernel = Arc::clone(&below.kernel);
    let (transport, faults) = FaultyTransport::over(below);
    (transport, kernel, faults)
}

/// A runtime on a device whose calls can fail.
pub(crate) fn runtime(gpus: u32) -> (Runtime, Arc<TestDriver>, Arc<Faults>) {
    let (transport, kernel, faults) = transport(gpus);
    let context = crate::context::open::open(transport, None).unwrap();
    (Runtime::from_context(&context), kernel, faults)
}

impl Transport for FaultyTransport {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn sysfs(&self) -> &dyn SysfsSource {
        self.below.sysfs()
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>, OpenError> {
        self.refuse("open", path)?;
        self.below.open(path).map(|file| self.wrap(file))
    }

    fn adopt(&self, path: &Path, fd: OwnedFd) -> Result<Arc<dyn File>, OpenError> {
        self.refuse("adopt", path)?;
        self.below.adopt(path, fd).map(|file| self.wrap(file))
    }

    fn close(&self) -> Result<(), CloseError> {
        self.below.close()
    }
}

#[derive(Debug)]
struct FaultyFile {
    below: Arc<dyn File>,
    faults: Arc<Faults>,
}

impl File for FaultyFile {
    fn path(&self) -> &Path {
        self.below.path()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.below.as_fd()
    }

    unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        let fault = self.faults.strike(|| command_name(cmd).to_string());
        let is_done = match fault {
            None => true,
            Some(errno) => cmd == AMDKFD_IOC_DESTROY_QUEUE && matches!(errno, Errno::EIO | Errno::ETIME),
        };
        let result = match is_done {
            // SAFETY: the caller's contract.
            true => unsafe { self.below.ioctl(cmd, arg) },
            false => Ok(0),
        };
        fault.map_or(result, Err)
    }

    unsafe fn mmap_fixed(&self, at: *mut u8, len: usize, prot: ProtFlags, offset: u64) -> Result<(), Errno> {
        match self.faults.strike(|| format!("mmap {}", self.path().display())) {
            Some(errno) => Err(errno),
            // SAFETY: the caller's contract.
            None => unsafe { self.below.mmap_fixed(at, len, prot, offset) },
        }
    }

    unsafe fn map_doorbells(&self, at: *mut u8, len: usize, offset: u64) -> Result<DoorbellSlice, Errno> {
        match self.faults.strike(|| format!("mmap {}", self.path().display())) {
            Some(errno) => Err(errno),
            // SAFETY: the caller's contract.
            None => unsafe { self.below.map_doorbells(at, len, offset) },
        }
    }
}

/// What a process has of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// In the driver: buffer objects, events, queues.
    pub driver: (usize, usize, usize),
    /// Files of it that are open.
    pub files: usize,
    /// Threads, descriptors and mappings of device memory that the process has, where nothing else runs in it. Not counted
    /// are the descriptors that the driver keeps, one for every file and memory.
    pub process: Option<[usize; 3]>,
}

impl Holdings {
    pub fn of(kernel: &TestDriver) -> Self {
        // nextest runs every test in a process of its own.
        let alone = std::env::var_os("NEXTEST").is_some();
        let process = alone.then(|| {
            let memory = format!("/memfd:{MEMORY_NAMES}");
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let mappings = maps.lines().filter(|line| line.contains(&memory)).count();
            [std::fs::read_dir("/proc/self/task").unwrap().count(), descriptors(), mappings]
        });
        Self { driver: kernel.counts(), files: kernel.files(), process }
    }
}

/// Descriptors of the process but for those that drivers in it keep, one for every file and memory.
pub(crate) fn descriptors() -> usize {
    let memory = format!("/memfd:{MEMORY_NAMES}");
    let (mut all, mut kept) = (0, BTreeSet::new());
    for fd in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(name) = std::fs::read_link(fd.path()) else { continue };
        all += 1;
        if name.to_string_lossy().starts_with(&memory) {
            kept.extend(std::fs::metadata(fd.path()).map(|file| file.ino()));
        }
    }
    all - kept.len()
}
