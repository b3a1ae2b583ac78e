// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device of this process, and the files of it that the process has opened.
//!
//! A file is found by the inode of its memfd, so that duplicates, in this process or sent by another thread's `dup2`, are
//! the same file, and a closed number that somebody else gets is not. After a restore by CRIU the inodes are others, which the
//! device knows (`kfd::transport::gate`).
//!
//! INVARIANT: entries are never removed or changed, so that a lookup takes no lock: a signal handler or a forked child may
//! look up. An entry is a few words, and a program opens a device a few times.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use kfd::transport::OpenError;
use kfd::transport::soft::{Fork, Interposed, InterposedFile};
use kfd::transport::wire::TOKEN_NAME;
use nix::errno::Errno;
use nix::libc::{self, c_int, dev_t};

use crate::run::Run;
use crate::{busy, descriptor};

/// An open file of the device.
#[derive(Debug)]
pub(crate) struct Opened {
    /// What the file is to the program: a character device of these numbers.
    pub(crate) number: dev_t,
    /// The file at the device.
    pub(crate) file: InterposedFile,
    next: *const Opened,
}

static FILES: AtomicPtr<Opened> = AtomicPtr::new(std::ptr::null_mut());
static DEVICE: AtomicPtr<Interposed> = AtomicPtr::new(std::ptr::null_mut());

/// `fstat`, past this library and whatever else is preloaded.
pub(crate) fn fstat(fd: c_int) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: on x86-64 the kernel's struct is the C library's; it is written as a whole if the call succeeds.
    let done = unsafe { libc::syscall(libc::SYS_fstat, fd, status.as_mut_ptr()) };
    // SAFETY: the call succeeded.
    (done == 0).then(|| unsafe { status.assume_init() })
}

/// The open file that a descriptor names, if it is one of the device. Leaves errno alone.
pub(crate) fn find(fd: c_int) -> Option<&'static Opened> {
    // ORDERING: Acquire pairs with the release in `remember`.
    if fd < 0 || busy::is_inside() || FILES.load(Ordering::Acquire).is_null() {
        return None;
    }
    let errno = Errno::last_raw();
    let found = fstat(fd).and_then(|status| find_status(&status));
    Errno::set_raw(errno);
    found
}

/// The open file of this status.
pub(crate) fn find_status(status: &libc::stat) -> Option<&'static Opened> {
    if busy::is_inside() {
        return None;
    }
    let mut at: *const Opened = FILES.load(Ordering::Acquire);
    // SAFETY: entries are made by `remember`, which leaks them, and never changed.
    while let Some(opened) = unsafe { at.as_ref() } {
        if opened.file.is(status.st_dev, status.st_ino) {
            return Some(opened);
        }
        at = opened.next;
    }
    None
}

/// Whether a descriptor is of a device file that another process, or this one before it executed another program, has opened.
/// KFD answers such a process EBADF (`kfd_ioctl`). Leaves errno alone.
pub(crate) fn is_of_another_process(fd: c_int) -> bool {
    let mut path = [0; 64];
    let name = descriptor::path(fd, &mut path).and_then(|path| path.strip_prefix(b"/memfd:"));
    name.is_some_and(|name| name.starts_with(TOKEN_NAME.as_bytes()))
}

/// Opens a device file; `flags` are those of `open`.
///
/// # Errors
/// The errno that `open` would have.
pub(crate) fn open(run: &Run, path: &[u8], flags: c_int) -> Result<c_int, Errno> {
    busy::inside(|| {
        let shown = std::str::from_utf8(path).map_err(|_| Errno::ENOENT)?;
        let (file, token) = device(run).open(Path::new(shown)).map_err(|error| complain(&error))?;
        if flags & libc::O_CLOEXEC == 0 {
            kfd::linux::set_close_on_exec(&token, false)?;
        }
        remember(run.number(path), file);
        Ok(token.into_raw_fd())
    })
}

fn remember(number: dev_t, file: InterposedFile) {
    let entry = Box::leak(Box::new(Opened { number, file, next: std::ptr::null() }));
    let mut first = FILES.load(Ordering::Relaxed);
    loop {
        entry.next = first;
        // ORDERING: Release, so that whoever finds the entry finds what is in it.
        match FILES.compare_exchange_weak(first, entry, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

/// The device of this process. A forked child gets another one.
fn device(run: &Run) -> &'static Interposed {
    static AT_FORK: Once = Once::new();
    AT_FORK.call_once(|| {
        // The only failure is a lack of memory.
        // SAFETY: the handlers are functions without arguments, of a library that is not unloaded.
        let _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
    let known = DEVICE.load(Ordering::Acquire);
    // SAFETY: a device is leaked below.
    if let Some(device) = unsafe { known.as_ref() } {
        return device;
    }
    let new = Box::into_raw(Box::new(Interposed::new(&run.socket, &run.devices)));
    let null = std::ptr::null_mut();
    match DEVICE.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: it was just made, and is never freed.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: what is stored there is never freed.
            unsafe { &*other }
        }
    }
}

thread_local! {
    /// The fork that this thread is in. Without a destructor, so that the first use registers none.
    static FORK: Cell<Option<ManuallyDrop<Fork>>> = const { Cell::new(None) };
}

/// Calls a function that forks this process, in a way that gives the child its own stack. Answers ENOMEM as `fork` does.
pub(crate) fn fork(call: impl FnOnce() -> libc::pid_t) -> libc::pid_t {
    // SAFETY: devices are never freed.
    let device = unsafe { DEVICE.load(Ordering::Acquire).as_ref() };
    match device.filter(|_| !busy::is_inside()) {
        None => call(),
        Some(device) => device.fork(call).unwrap_or_else(|errno| {
            errno.set();
            -1
        }),
    }
}

/// The device, if it may have pages of a range, and this call is the program's. Leaves errno alone.
fn with_pages_of(range: &Range<usize>) -> Option<&'static Interposed> {
    if !Interposed::may_have_lent(range) || busy::is_inside() || is_forking() {
        return None;
    }
    // SAFETY: devices are never freed.
    unsafe { DEVICE.load(Ordering::Acquire).as_ref() }
}

/// Does `call`, which takes a range of pages away if it has `succeeded`. Costs two loads more, and leaves errno as the call
/// does, if no page of the range is lent to the device.
pub(crate) fn unmap<R>(
    range: &Range<usize>,
    succeeded: impl FnOnce(&R) -> bool,
    call: impl FnOnce() -> R,
) -> R {
    let Some(device) = with_pages_of(range) else { return call() };
    let mut errno = Errno::last_raw();
    let result = busy::inside(|| {
        let call = || {
            Errno::set_raw(errno);
            let result = call();
            errno = Errno::last_raw();
            result
        };
        device.unmap(range, call, succeeded)
    });
    Errno::set_raw(errno);
    result
}

/// Makes lent pages of a range the program's own, since they may be moved. Leaves errno alone.
pub(crate) fn withdraw(range: &Range<usize>) {
    let Some(device) = with_pages_of(range) else { return };
    let errno = Errno::last_raw();
    // Pages that stay shared keep their bytes.
    let _ = busy::inside(|| device.withdraw(range));
    Errno::set_raw(errno);
}

/// Whether this thread is between the handlers of a fork, which has the loans locked.
fn is_forking() -> bool {
    let fork = FORK.take();
    let is_forking = fork.is_some();
    FORK.set(fork);
    is_forking
}

/// A signal handler that forks while this thread is in a call of the library gets what a thread can: the lock that a fork needs
/// may be this thread's.
extern "C" fn before_fork() {
    // SAFETY: devices are never freed.
    let device = unsafe { DEVICE.load(Ordering::Acquire).as_ref() };
    if let Some(device) = device.filter(|_| !busy::is_inside()) {
        FORK.set(busy::inside(|| device.begin_fork()).map(ManuallyDrop::new));
    }
}

extern "C" fn in_parent() {
    if let Some(fork) = FORK.take() {
        busy::inside(|| ManuallyDrop::into_inner(fork).end_in_parent());
    }
}

/// The parent's device stays the parent's, with the locks that its threads held.
extern "C" fn in_child() {
    DEVICE.store(std::ptr::null_mut(), Ordering::Release);
    if let Some(fork) = FORK.take() {
        // A child that shares pages with its parent still runs; most execute another program.
        let _ = busy::inside(|| ManuallyDrop::into_inner(fork).end_in_child());
    }
}

/// Tells the person at the terminal, once a process, why there is no device: the program will only have an errno.
fn complain(error: &OpenError) -> Errno {
    static SAID: AtomicBool = AtomicBool::new(false);
    let errno = match error {
        OpenError::File { errno, .. } | OpenError::Refused { errno, .. } => *errno,
        OpenError::Peer { .. } => Errno::EACCES,
        _ => Errno::ENODEV,
    };
    if !SAID.swap(true, Ordering::Relaxed) {
        let mut line = format!("stasis run: {error}");
        let mut cause = std::error::Error::source(error);
        while let Some(because) = cause {
            line.push_str(&format!("; {because}"));
            cause = because.source();
        }
        line.push('\n');
        // SAFETY: the pointer and the length are those of `line`.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }
    errno
}
