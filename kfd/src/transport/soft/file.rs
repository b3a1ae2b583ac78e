// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open file of the software device: sends arguments, memory and descriptors, and delivers what comes back.
//!
//! INVARIANT: the device can change no memory of this process but the argument and the memory that the argument's
//! pointers offer for writing.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::mman::{MmapAdvise, ProtFlags, madvise};

use super::marshal::{self, Driver, Plan};
use super::session::Session;
use super::shared_memory::SharedMemory;
use super::user_memory;
use crate::sys::{self, KfdIoctl};
use crate::transport::doorbell::ParkedPage;
use crate::transport::wire::{FdPlace, Reply, Request, Segment};
use crate::transport::{DoorbellSlice, File, KFD_PATH, map_fixed};
use crate::{errno, linux};

/// An open file.
#[derive(Debug)]
pub(super) struct SoftFile {
    path: PathBuf,
    driver: Driver,
    number: u64,
    token: OwnedFd,
    session: Arc<Session>,
}

/// The device's answer to an ioctl, descriptors not yet installed.
struct Answer {
    result: i32,
    arg: Option<Vec<u8>>,
    segments: Vec<Segment>,
    shared: Vec<SharedMemory>,
    written: Vec<(u64, u64)>,
    fds: Vec<(FdPlace, OwnedFd)>,
}

impl SoftFile {
    pub fn new(path: &Path, number: u64, token: OwnedFd, session: Arc<Session>) -> Self {
        let driver = if path == Path::new(KFD_PATH) { Driver::Kfd } else { Driver::Drm };
        Self { path: path.to_owned(), driver, number, token, session }
    }

    /// Sends one ioctl; `pages` backs the pages of a USERPTR object.
    fn send(
        &self,
        cmd: u32,
        arg: &[u8],
        plan: &Plan,
        pages: Option<BorrowedFd<'_>>,
    ) -> Result<Answer, Errno> {
        // Duplicates are sent, so that the message does not fail if another thread closes a descriptor meanwhile.
        let mut fd_places = Vec::new();
        let mut duplicates = Vec::new();
        for place in &plan.fds {
            if let Some(fd) = duplicate(arg, *place)? {
                fd_places.push(*place);
                duplicates.push(fd);
            }
        }
        let (segments, large) =
            marshal::segments(&plan.pointers, |address, into| user_memory::read(address, into).is_ok());
        let memory = large.iter().filter_map(|pointer| SharedMemory::copy_of(pointer).transpose());
        let memory = memory.collect::<Result<Vec<_>, Errno>>()?;
        let fds: Vec<BorrowedFd<'_>> =
            duplicates.iter().map(AsFd::as_fd).chain(memory.iter().map(AsFd::as_fd)).chain(pages).collect();
        let request = Request::Ioctl {
            file: self.number,
            cmd,
            arg: arg.to_vec(),
            segments,
            shared: memory.iter().map(SharedMemory::segment).collect(),
            fd_places,
        };
        let (reply, fds) = self.session.exchange(&request, &fds).map_err(|error| error.errno())?;
        match reply {
            Reply::Ioctl { result, arg: new, segments, written, fd_places, copy_back } => {
                if fd_places.len() != fds.len() || new.len() > arg.len() {
                    return Err(Errno::EPROTO);
                }
                let fds = fd_places.into_iter().zip(fds).collect();
                Ok(Answer { result, arg: copy_back.then_some(new), segments, shared: memory, written, fds })
            }
            Reply::Error { errno, .. } => Err(errno::from_raw(errno)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// As [`SoftFile::send`], lending and taking back the pages of USERPTR objects.
    fn send_with_pages(&self, cmd: u32, arg: &[u8], plan: &Plan) -> Result<Answer, Errno> {
        match (self.driver, KfdIoctl::from_number(sys::ioc_nr(cmd))) {
            (Driver::Kfd, Some(KfdIoctl::AllocMemoryOfGpu)) => {
                let args: sys::kfd_ioctl_alloc_memory_of_gpu_args = from_prefix(arg);
                if args.flags & sys::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR == 0 {
                    return self.send(cmd, arg, plan, None);
                }
                // The lock is held during the call, so that a second allocation of the same pages finds them lent.
                let mut lent = self.session.lent.lock();
                let frame = std::ptr::from_ref(&args).addr();
                let pages = lent.lend(args.mmap_offset, args.size, args.flags, frame);
                let outcome = self.send(cmd, arg, plan, pages.as_ref().map(|pages| pages.as_fd()));
                let Some(pages) = pages else { return outcome };
                match outcome.as_ref().ok().filter(|answer| answer.result >= 0).and_then(|a| a.arg.as_deref())
                {
                    Some(new) => {
                        let new: sys::kfd_ioctl_alloc_memory_of_gpu_args = from_prefix(new);
                        lent.keep(&pages, new.handle);
                    }
                    None => lent.cancel(&pages),
                }
                outcome
            }
            (Driver::Kfd, Some(KfdIoctl::FreeMemoryOfGpu)) => {
                let args: sys::kfd_ioctl_free_memory_of_gpu_args = from_prefix(arg);
                let mut lent = self.session.lent.lock();
                if !lent.has(args.handle) {
                    drop(lent);
                    return self.send(cmd, arg, plan, None);
                }
                // The lock is held during the call, since the device may give the handle to another allocation at once.
                let outcome = self.send(cmd, arg, plan, None);
                if outcome.as_ref().is_ok_and(|answer| answer.result >= 0) {
                    lent.release(args.handle);
                }
                outcome
            }
            _ => self.send(cmd, arg, plan, None),
        }
    }

    /// Copies an answer into this process; nothing is changed if any of it is not acceptable.
    ///
    /// # Safety
    /// `address` must be that of the argument, which the driver may write, as it may the memory that the plan's
    /// pointers offer for writing.
    unsafe fn deliver(&self, address: u64, plan: &Plan, answer: Answer) -> Result<u32, Errno> {
        answer.check(plan)?;
        // SAFETY: each use below writes to the argument, or to memory that `check` found in what the plan's pointers
        // offer for writing; the caller lets the driver write both.
        let write = |address: u64, bytes: &[u8]| unsafe { user_memory::write(address, bytes) };
        let Answer { result, mut arg, segments, shared, written, fds } = answer;
        let mut installed = Vec::new();
        let mut numbers = Vec::new();
        for (place, fd) in fds {
            let number = fd.as_raw_fd().to_ne_bytes();
            match place {
                FdPlace::Memory(at) => numbers.push((at, number)),
                FdPlace::Field(offset) => {
                    // Without an argument to write the number into, nobody would know the descriptor.
                    let Some(arg) = &mut arg else { continue };
                    let rest = arg.get_mut(usize::from(offset)..);
                    *rest.and_then(|rest| rest.first_chunk_mut::<4>()).ok_or(Errno::EPROTO)? = number;
                }
            }
            if plan.inheritable {
                linux::set_close_on_exec(&fd, false)?;
            }
            installed.push(fd);
        }
        if let Some(arg) = arg {
            write(address, &arg)?;
        }
        for segment in &segments {
            write(segment.address, &segment.bytes)?;
        }
        for (from, bytes) in written {
            if let Some(memory) = shared.iter().find(|memory| memory.holds(from, bytes)) {
                memory.copy_back(from, bytes, write)?;
            }
        }
        for (at, number) in numbers {
            write(at, &number)?;
        }
        // From here on the descriptors are the caller's, by number.
        for fd in installed {
            let _ = fd.into_raw_fd();
        }
        u32::try_from(result).map_err(|_| errno::from_raw(result.saturating_neg()))
    }

    /// Asks for the memory behind a mapping and maps it at `at`; answers its descriptor and those that came with it.
    ///
    /// # Safety
    /// As for [`map_fixed`].
    unsafe fn map(
        &self,
        at: *mut u8,
        len: usize,
        prot: ProtFlags,
        offset: u64,
    ) -> Result<Vec<OwnedFd>, Errno> {
        let request = Request::Mmap {
            file: self.number,
            length: len as u64,
            offset,
            prot: prot.bits().cast_unsigned(),
        };
        let (reply, fds) = self.session.exchange(&request, &[]).map_err(|error| error.errno())?;
        match (reply, fds.first()) {
            (Reply::Mapped { offset }, Some(memory)) => {
                // SAFETY: the caller gives up what is mapped in `at..at + len`.
                unsafe { map_fixed(memory.as_fd(), at, len, prot, offset)? };
                Ok(fds)
            }
            (Reply::Error { errno, .. }, _) => Err(errno::from_raw(errno)),
            _ => Err(Errno::EPROTO),
        }
    }
}

impl Answer {
    /// Whether all that the answer wants to write lies in memory offered for it.
    fn check(&self, plan: &Plan) -> Result<(), Errno> {
        let offered = |address, bytes| marshal::may_write(&plan.pointers, address, bytes);
        let segments =
            self.segments.iter().all(|segment| offered(segment.address, segment.bytes.len() as u64));
        let shared = |address, bytes| self.shared.iter().any(|memory| memory.holds(address, bytes));
        let written = self.written.iter().all(|(address, bytes)| shared(*address, *bytes));
        let numbers = self.fds.iter().all(|(place, _)| match place {
            FdPlace::Memory(address) => offered(*address, 4),
            FdPlace::Field(_) => true,
        });
        if segments && written && numbers { Ok(()) } else { Err(Errno::EPROTO) }
    }
}

impl Drop for SoftFile {
    fn drop(&mut self) {
        self.session.closed(self.number);
    }
}

impl File for SoftFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.token.as_fd()
    }

    unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        let address = arg.expose_provenance() as u64;
        let mut bytes = vec![0; sys::ioc_size(cmd)];
        user_memory::read(address, &mut bytes)?;
        let plan = marshal::plan(self.driver, cmd, &bytes);
        let answer = self.send_with_pages(cmd, &bytes, &plan)?;
        // SAFETY: `address` is that of the argument, which the driver may write, as it may the memory that the ioctl's
        // pointers name: the caller of this function vouches for both, and the plan has no other pointers.
        unsafe { self.deliver(address, &plan, answer) }
    }

    unsafe fn mmap_fixed(&self, at: *mut u8, len: usize, prot: ProtFlags, offset: u64) -> Result<(), Errno> {
        // SAFETY: the caller gives up what is mapped in `at..at + len`.
        unsafe { self.map(at, len, prot, offset) }.map(drop)
    }

    unsafe fn map_doorbells(&self, at: *mut u8, len: usize, offset: u64) -> Result<DoorbellSlice, Errno> {
        DoorbellSlice::check(at, len)?;
        // SAFETY: the caller gives up what is mapped in `at..at + len`.
        let fds = unsafe { self.map(at, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, offset)? };
        let start = NonNull::new(at).ok_or(Errno::EINVAL)?.cast();
        // KFD marks doorbells VM_DONTCOPY: a forked child must not ring its parent's queues.
        // SAFETY: the range was mapped just now, and the advice changes nothing for this process.
        unsafe { madvise(start, len, MmapAdvise::MADV_DONTFORK)? };
        let parked = fds.get(1).ok_or(Errno::EPROTO).and_then(ParkedPage::map)?;
        // SAFETY: the range was mapped writable above, and the caller keeps it so while a doorbell is rung.
        unsafe { DoorbellSlice::new(at, len, Some(parked)) }
    }
}

/// The struct at the start of `bytes`, zero-extended as the drivers do.
fn from_prefix<T: bytemuck::Pod>(bytes: &[u8]) -> T {
    let mut value = T::zeroed();
    let length = bytes.len().min(size_of::<T>());
    bytemuck::bytes_of_mut(&mut value)[..length].copy_from_slice(&bytes[..length]);
    value
}

/// A duplicate of the descriptor whose number is at `place`; none if it is not open.
fn duplicate(arg: &[u8], place: FdPlace) -> Result<Option<OwnedFd>, Errno> {
    let number = match place {
        FdPlace::Field(offset) => arg.get(usize::from(offset)..).and_then(|rest| rest.first_chunk()).copied(),
        FdPlace::Memory(address) => {
            let mut number = [0; 4];
            user_memory::read(address, &mut number).is_ok().then_some(number)
        }
    };
    let Some(number) = number else { return Ok(None) };
    match linux::duplicate_number(i32::from_ne_bytes(number)) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::EBADF) => Ok(None),
        Err(errno) => Err(errno),
    }
}
