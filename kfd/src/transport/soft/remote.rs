// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open file at the device, without a descriptor of this process: sends arguments, memory and descriptors, and
//! delivers what comes back.
//!
//! INVARIANT: the device can change no memory of this process but the argument and the memory that the argument's
//! pointers offer for writing.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::mman::ProtFlags;

use super::marshal::{self, Driver, Plan};
use super::session::Session;
use super::shared_memory::SharedMemory;
use super::user_memory;
use super::userptr::Pages;
use crate::sys;
use crate::transport::KFD_PATH;
use crate::transport::wire::{DOORBELLS_NAME, FdPlace, Reply, Request, Segment};
use crate::{errno, linux, maps, userfault};

/// An open file, by the device's number for it.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    driver: Driver,
    number: u64,
    session: Arc<Session>,
}

/// Memory of the device that a client may map.
#[derive(Debug)]
pub struct DeviceMemory {
    /// The file to map, shared.
    pub fd: OwnedFd,
    /// Where the memory begins in it, bytes.
    pub offset: u64,
    /// Of doorbells: a page whose first u32 says whether the device sleeps until they are rung
    /// ([`crate::transport::wire::Request::Mmap`]).
    pub parked: Option<OwnedFd>,
}

/// What the device made of an ioctl.
enum Outcome {
    /// It was carried out.
    Answer(Answer),
    /// It is to be issued again, with this argument, when the gate is open.
    Later(Vec<u8>),
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

impl RemoteFile {
    pub fn new(path: &Path, number: u64, session: Arc<Session>) -> Self {
        let driver = if path == Path::new(KFD_PATH) { Driver::Kfd } else { Driver::Drm };
        Self { driver, number, session }
    }

    /// The device's number for it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The session that it belongs to.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Issues one ioctl ([`crate::transport::File::ioctl`]).
    ///
    /// # Errors
    /// The driver's errno, or that of the connection.
    ///
    /// # Safety
    /// As for [`crate::transport::File::ioctl`].
    pub unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        let address = arg.expose_provenance() as u64;
        let mut bytes = vec![0; sys::ioc_size(cmd)];
        user_memory::read(address, &mut bytes)?;
        let plan = marshal::plan(self.driver, cmd, &bytes);
        loop {
            // Held while there is a descriptor of the call's own, such as that of pages that are being lent.
            let _inside = self.session.enter();
            match self.send_with_pages(cmd, &bytes, &plan)? {
                // SAFETY: `address` is that of the argument, which the driver may write, as it may the memory that the
                // ioctl's pointers name: the caller of this function vouches for both, and the plan has no other pointers.
                Outcome::Answer(answer) => return unsafe { self.deliver(address, &plan, answer) },
                Outcome::Later(argument) => bytes = argument,
            }
        }
    }

    /// Sends one ioctl, with pages of this process for it.
    fn send(&self, cmd: u32, arg: &[u8], plan: &Plan, pages: &Pages) -> Result<Outcome, Errno> {
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
        let lent = pages.memory.iter().map(AsFd::as_fd);
        let fds: Vec<BorrowedFd<'_>> =
            duplicates.iter().map(AsFd::as_fd).chain(memory.iter().map(AsFd::as_fd)).chain(lent).collect();
        let request = Request::Ioctl {
            file: self.number,
            cmd,
            arg: arg.to_vec(),
            segments,
            shared: memory.iter().map(SharedMemory::segment).collect(),
            fd_places,
            pages: pages.runs.clone(),
        };
        let (reply, fds) = self.session.exchange(&request, &fds).map_err(|error| error.errno())?;
        match reply {
            Reply::Ioctl { result, arg: new, segments, written, fd_places, copy_back } => {
                if fd_places.len() != fds.len() || new.len() > arg.len() {
                    return Err(Errno::EPROTO);
                }
                let fds = fd_places.into_iter().zip(fds).collect();
                let arg = copy_back.then_some(new);
                Ok(Outcome::Answer(Answer { result, arg, segments, shared: memory, written, fds }))
            }
            Reply::Later { arg: again } if again.len() == arg.len() => Ok(Outcome::Later(again)),
            Reply::Error { errno, .. } => Err(errno::from_raw(errno)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// As [`RemoteFile::send`], lending and taking back pages of this process as the ioctl wants ([`super::marshal::Memory`]).
    fn send_with_pages(&self, cmd: u32, arg: &[u8], plan: &Plan) -> Result<Outcome, Errno> {
        // In a child a thread of the parent may have the lock below, for ever.
        if !self.session.is_ours() {
            return Err(Errno::EBADF);
        }
        let Some(memory) = &plan.memory else { return self.send(cmd, arg, plan, &Pages::default()) };
        // The lock is held during the call, so that a second call for the same pages finds them lent, and since the device
        // may give a handle that it freed to another allocation at once.
        let mut lent = self.session.lent.lock();
        self.session.tell_gone(&lent.forget_lost(memory)?);
        let Some(pages) = lent.prepare(memory) else {
            drop(lent);
            return self.send(cmd, arg, plan, &Pages::default());
        };
        let outcome = self.send(cmd, arg, plan, &pages);
        match outcome.as_ref().ok().and_then(Outcome::done) {
            Some(answer) => lent.settle(memory, &pages, answer.arg.as_deref()),
            None => lent.cancel(&pages),
        }
        outcome
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

    /// Tells the device that doorbells were mapped and are rung by stores alone ([`Request::ExpectStores`]). Where the system
    /// allows it, their pages are protected while the device sleeps.
    ///
    /// # Errors
    /// The device's errno, or that of the connection.
    pub fn expect_stores(&self, offset: u64, range: &Range<u64>) -> Result<(), Errno> {
        let _inside = self.session.enter();
        self.session.note_doorbells(DoorbellMapping { file: self.clone(), offset, range: range.clone() });
        self.tell_doorbells(offset, range)
    }

    fn tell_doorbells(&self, offset: u64, range: &Range<u64>) -> Result<(), Errno> {
        let watch = userfault::watch(range).ok();
        let length = range.end.saturating_sub(range.start);
        let request = Request::ExpectStores { file: self.number, offset, address: range.start, length };
        let fds: Vec<BorrowedFd<'_>> = watch.iter().map(AsFd::as_fd).collect();
        match self.session.exchange(&request, &fds).map_err(|error| error.errno())? {
            (Reply::ExpectsStores, _) => Ok(()),
            (Reply::Error { errno, .. }, _) => Err(errno::from_raw(errno)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Asks for the memory behind a mapping.
    ///
    /// # Errors
    /// The errno of the driver's mmap, or that of the connection.
    pub fn memory(&self, length: u64, prot: ProtFlags, offset: u64) -> Result<DeviceMemory, Errno> {
        let request = Request::Mmap { file: self.number, length, offset, prot: prot.bits().cast_unsigned() };
        let _inside = self.session.enter();
        let (reply, fds) = self.session.exchange(&request, &[]).map_err(|error| error.errno())?;
        let mut fds = fds.into_iter();
        match (reply, fds.next()) {
            (Reply::Mapped { offset }, Some(fd)) => Ok(DeviceMemory { fd, offset, parked: fds.next() }),
            (Reply::Error { errno, .. }, _) => Err(errno::from_raw(errno)),
            _ => Err(Errno::EPROTO),
        }
    }
}

/// Doorbells that the process has mapped and rings by stores alone.
#[derive(Debug)]
pub(super) struct DoorbellMapping {
    file: RemoteFile,
    /// The cookie.
    offset: u64,
    range: Range<u64>,
}

impl DoorbellMapping {
    /// Tells the device again, after a restore: it does not watch the pages any more. Not of a mapping that is gone.
    pub fn tell_again(&self) {
        let Ok(range) = words_of(&self.range) else { return };
        let is_there = maps::in_range(&range).is_ok_and(|found| {
            let mapped: usize =
                found.iter().filter(|vma| vma.is_named(DOORBELLS_NAME)).map(|vma| vma.range.len()).sum();
            mapped == range.len()
        });
        if is_there && let Err(errno) = self.file.tell_doorbells(self.offset, &self.range) {
            tracing::warn!(target: "kfd", %errno, "doorbells are not watched after a restore");
        }
    }
}

fn words_of(range: &Range<u64>) -> Result<Range<usize>, std::num::TryFromIntError> {
    Ok(range.start.try_into()?..range.end.try_into()?)
}

impl Outcome {
    /// The answer of an ioctl that did something.
    fn done(&self) -> Option<&Answer> {
        match self {
            Self::Answer(answer) if answer.result >= 0 => Some(answer),
            Self::Answer(_) | Self::Later(_) => None,
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
