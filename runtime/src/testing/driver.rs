// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls to a device: counted, some of them noted, some refused.
//!
//! INVARIANT: what is noted was done by the driver, and what is refused was not.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

use kfd::sys::*;
use kfd::{DoorbellSlice, Errno, File, ProtFlags};
use parking_lot::Mutex;
use softgpu::driver::{KernelModel, ObjectCounts};
use softgpu::in_process::Device;

#[derive(Debug, Default)]
struct Notes {
    /// Ioctls by thread.
    calls: HashMap<ThreadId, usize>,
    /// Ioctls to fail: (number, errno), each once.
    fail: Vec<(u32, Errno)>,
    /// Every queue made: type, engine, percentage, priority.
    created: Vec<(u32, u32, u32, u32)>,
    /// Every mask set: queue and words.
    masks: Vec<(u32, Vec<u32>)>,
    trap_handlers: Vec<(u64, usize)>,
    /// What GET_VERSION answers, if not the driver's version.
    version: Option<(u32, u32)>,
}

/// The device behind a transport, and what is known of the calls to it.
#[derive(Debug)]
pub(crate) struct TestDriver {
    pub(super) device: Arc<Device>,
    notes: Mutex<Notes>,
    /// Files that are open.
    files: AtomicUsize,
}

impl TestDriver {
    pub(super) fn new(machine: &str, kernel: KernelModel) -> Arc<Self> {
        let device = Device::open(machine, kernel).unwrap();
        Arc::new(TestDriver { device, notes: Mutex::default(), files: AtomicUsize::new(0) })
    }

    /// Has the next ioctl of this number fail.
    pub fn fail_once(&self, cmd: u32, errno: Errno) {
        self.notes.lock().fail.push((cmd, errno));
    }

    /// Has GET_VERSION answer this from now on.
    pub fn set_version(&self, version: Option<(u32, u32)>) {
        self.notes.lock().version = version;
    }

    /// Takes the device away.
    pub fn kill(&self) {
        self.device.kill();
    }

    /// Ioctls this thread has made.
    pub fn calls(&self) -> usize {
        self.notes.lock().calls.get(&std::thread::current().id()).copied().unwrap_or(0)
    }

    /// Type, engine, percentage and priority of every queue made so far.
    pub fn created(&self) -> Vec<(u32, u32, u32, u32)> {
        self.notes.lock().created.clone()
    }

    /// The address of every trap handler set so far, with how many queues had been made before.
    pub fn trap_handlers(&self) -> Vec<(u64, usize)> {
        self.notes.lock().trap_handlers.clone()
    }

    /// Every mask of compute units set so far, with its queue.
    pub fn masks(&self) -> Vec<(u32, Vec<u32>)> {
        self.notes.lock().masks.clone()
    }

    /// Files that are open.
    pub fn files(&self) -> usize {
        self.files.load(Ordering::Relaxed)
    }

    /// Buffer objects, events and queues that the driver has.
    pub fn counts(&self) -> (usize, usize, usize) {
        let ObjectCounts { buffers, events, queues, .. } = self.device.object_counts();
        (buffers, events, queues)
    }

    /// Handles of memory on render files, and the mappings made with them.
    pub fn parts(&self) -> (usize, usize) {
        let ObjectCounts { handles, mappings, .. } = self.device.object_counts();
        (handles, mappings)
    }

    /// Counts an ioctl; the errno if it is to fail.
    fn begin(&self, cmd: u32) -> Option<Errno> {
        let mut notes = self.notes.lock();
        *notes.calls.entry(std::thread::current().id()).or_default() += 1;
        let at = notes.fail.iter().position(|&(number, _)| number == cmd)?;
        Some(notes.fail.remove(at).1)
    }

    /// Notes an ioctl that was done. `arg` is its argument.
    fn done(&self, cmd: u32, arg: *mut c_void) {
        let mut notes = self.notes.lock();
        match cmd {
            AMDKFD_IOC_GET_VERSION => {
                if let Some((major_version, minor_version)) = notes.version {
                    let version = kfd_ioctl_get_version_args { major_version, minor_version };
                    // SAFETY: the argument of this ioctl, as the caller of the wrapper's `ioctl` vouches.
                    unsafe { arg.cast::<kfd_ioctl_get_version_args>().write_unaligned(version) };
                }
            }
            AMDKFD_IOC_CREATE_QUEUE => {
                // SAFETY: the argument of this ioctl, as the caller of the wrapper's `ioctl` vouches.
                let a = unsafe { arg.cast::<kfd_ioctl_create_queue_args>().read_unaligned() };
                notes.created.push((a.queue_type, a.sdma_engine_id, a.queue_percentage, a.queue_priority));
            }
            AMDKFD_IOC_SET_TRAP_HANDLER => {
                // SAFETY: the argument of this ioctl, as the caller of the wrapper's `ioctl` vouches.
                let a = unsafe { arg.cast::<kfd_ioctl_set_trap_handler_args>().read_unaligned() };
                let made = notes.created.len();
                notes.trap_handlers.push((a.tba_addr, made));
            }
            AMDKFD_IOC_SET_CU_MASK => {
                // SAFETY: the argument of this ioctl, as the caller of the wrapper's `ioctl` vouches.
                let a = unsafe { arg.cast::<kfd_ioctl_set_cu_mask_args>().read_unaligned() };
                let words = std::ptr::with_exposed_provenance::<u32>(a.cu_mask_ptr as usize);
                // SAFETY: the caller passes that many bits, in words.
                let word = |n| unsafe { words.add(n as usize).read_unaligned() };
                notes.masks.push((a.queue_id, (0..a.num_cu_mask / 32).map(word).collect()));
            }
            _ => {}
        }
    }
}

/// A file of the device.
#[derive(Debug)]
pub(super) struct TestFile {
    below: Arc<dyn File>,
    driver: Arc<TestDriver>,
}

impl TestFile {
    pub(super) fn new(below: Arc<dyn File>, driver: Arc<TestDriver>) -> Self {
        driver.files.fetch_add(1, Ordering::Relaxed);
        Self { below, driver }
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        self.driver.files.fetch_sub(1, Ordering::Relaxed);
    }
}

impl File for TestFile {
    fn path(&self) -> &Path {
        self.below.path()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.below.as_fd()
    }

    unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        if let Some(errno) = self.driver.begin(cmd) {
            return Err(errno);
        }
        // SAFETY: the caller's contract.
        let answer = unsafe { self.below.ioctl(cmd, arg) }?;
        self.driver.done(cmd, arg);
        Ok(answer)
    }

    unsafe fn mmap_fixed(&self, at: *mut u8, len: usize, prot: ProtFlags, offset: u64) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        unsafe { self.below.mmap_fixed(at, len, prot, offset) }
    }

    unsafe fn map_doorbells(&self, at: *mut u8, len: usize, offset: u64) -> Result<DoorbellSlice, Errno> {
        // SAFETY: the caller's contract.
        unsafe { self.below.map_doorbells(at, len, offset) }
    }
}
