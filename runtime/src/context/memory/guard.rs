// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holding back threads that use device memory by pointers, without the gate, while that memory is saved, away, or not yet filled: for
//! programs that were written against another runtime.
//!
//! From the end of a lock on the memory can only be read, so that nothing is stored that a checkpoint would miss; while the device is
//! away the addresses hold the reservation; a restore fills memory at other addresses, and shows it at its own when it is whole
//! ([`Guard::hide`]). A thread that touches what it may not is stopped by the fault's handler, and goes on with the same access
//! when the process is unlocked. While it is unlocked all this costs nothing.
//!
//! What does not fault is not held back: a system call that is given such memory fails with EFAULT.
//!
//! INVARIANT: no thread of the runtime that works for a checkpoint is held back: what it stores to is made writable for it, a page
//! at a time ([`own`]).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{ProtFlags, mprotect};
use nix::unistd::gettid;
use parking_lot::Mutex;
use queues::words::size;

use crate::context::memory::window::{self, READ_WRITE, WindowError};
use crate::context::registry::Registry;
use crate::context::registry::arena::{PAGE, Window};
use crate::context::registry::state::{BoKind, BoRole};

/// TIMEOUT: how often a thread that is held back looks whether it may go on.
static LOOK: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 200_000 };
/// Nanoseconds after the end of a hold within which a fault may be one of before its end.
const LATE: i64 = 1_000_000_000;
/// Threads of the runtime's own at most that work at once.
const OWN: usize = 32;

/// Whether threads are held back.
static HELD: AtomicBool = AtomicBool::new(false);
/// When the last hold ended, by CLOCK_MONOTONIC.
static RELEASED: AtomicI64 = AtomicI64::new(i64::MIN / 2);
/// The addresses that are guarded.
static FROM: AtomicU64 = AtomicU64::new(0);
static TO: AtomicU64 = AtomicU64::new(0);
/// Threads that are not held back.
static OWN_THREADS: [AtomicI32; OWN] = [const { AtomicI32::new(0) }; OWN];
/// What the CPU may do with memory while threads are held back that would store to it.
pub const SHOWN: ProtFlags = ProtFlags::PROT_READ;
/// What handled SIGSEGV before.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// A context's guard.
#[derive(Debug, Default)]
pub struct Guard {
    enabled: AtomicBool,
    /// The addresses at which a restore fills memory.
    aside: Mutex<Option<Window>>,
}

/// The calling thread is not held back while this lives.
#[derive(Debug)]
pub struct OwnThread(Option<usize>);

impl Drop for OwnThread {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            OWN_THREADS[place].store(0, Ordering::Release);
        }
    }
}

/// Has the calling thread not be held back.
pub fn own() -> OwnThread {
    let tid = gettid().as_raw();
    let is_known = OWN_THREADS.iter().any(|own| own.load(Ordering::Relaxed) == tid);
    let take = |own: &AtomicI32| own.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let place = if is_known { None } else { OWN_THREADS.iter().position(take) };
    OwnThread(place)
}

/// Whether memory of this role is given out by pointers.
fn is_guarded(role: BoRole) -> bool {
    matches!(role, BoRole::User | BoRole::Signals | BoRole::SharedSignal | BoRole::Image | BoRole::Physical)
}

/// Changes what the CPU may do with all guarded memory.
fn protect(registry: &Registry, rights: ProtFlags) -> Result<(), Errno> {
    let objects = registry.bos.iter().filter(|(_, bo)| {
        bo.kernel.is_some() && bo.state.cpu_mapped && bo.aside.is_none() && is_guarded(bo.state.role)
    });
    let objects = objects.map(|(_, bo)| bo.state.va..bo.state.va + bo.state.bytes);
    for range in objects.chain(registry.maps.on_cpu()) {
        set_rights(range.start, range.end - range.start, rights)?;
    }
    Ok(())
}

fn set_rights(va: u64, bytes: u64, rights: ProtFlags) -> Result<(), Errno> {
    let at = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut::<c_void>(size(va)));
    let bytes = bytes.next_multiple_of(PAGE);
    // SAFETY: the pages are the window's, where a buffer object is mapped; their contents stay, and who has pointers to them
    // waits for what it may not do.
    unsafe { mprotect(at.ok_or(Errno::EINVAL)?, size(bytes), rights) }
}

impl Guard {
    /// Has this context's memory guarded from the next lock on.
    pub fn enable(&self) {
        self.enabled.store(true, Ordering::Release);
    }

    /// Whether it is.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Begins to hold threads back that store to guarded memory.
    ///
    /// # Errors
    /// The errno of mprotect or sigaction; no thread is held back then.
    pub fn hold(&self, registry: &Registry) -> Result<(), Errno> {
        if !self.is_enabled() {
            return Ok(());
        }
        let window = registry.arena.window();
        FROM.store(window.base, Ordering::Relaxed);
        TO.store(window.base + window.bytes, Ordering::Relaxed);
        install()?;
        HELD.store(true, Ordering::SeqCst);
        protect(registry, SHOWN).inspect_err(|_| {
            if let Err(errno) = self.release(registry) {
                tracing::error!(target: "checkpoint", %errno, "memory stays protected");
            }
        })
    }

    /// Lets them go on.
    ///
    /// # Errors
    /// The errno of mprotect; they are held back still.
    pub fn release(&self, registry: &Registry) -> Result<(), Errno> {
        if !self.is_enabled() || !HELD.load(Ordering::Acquire) {
            return Ok(());
        }
        protect(registry, READ_WRITE)?;
        RELEASED.store(now(), Ordering::Relaxed);
        HELD.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Has guarded memory that is made from now on be mapped for the CPU somewhere else.
    ///
    /// # Errors
    /// [`WindowError`]; it will be mapped at its addresses.
    pub fn hide(&self, registry: &mut Registry) -> Result<(), WindowError> {
        if !self.is_enabled() || !HELD.load(Ordering::Acquire) {
            return Ok(());
        }
        let aside = window::reserve_any()?;
        let distance = aside.base.wrapping_sub(registry.arena.window().base);
        for (_, bo) in registry.bos.iter_mut() {
            // Memory that is another's is mapped when that has filled it.
            let is_plain = bo.state.kind != BoKind::Imported && bo.file.is_none();
            if bo.kernel.is_none() && bo.state.cpu_mapped && is_plain && is_guarded(bo.state.role) {
                bo.aside = Some(bo.state.va.wrapping_add(distance));
            }
        }
        *self.aside.lock() = Some(aside);
        Ok(())
    }

    /// Has all memory be at its addresses again; what is mapped aside is given up.
    pub fn forget_hidden(&self, registry: &mut Registry) {
        for (_, bo) in registry.bos.iter_mut() {
            bo.aside = None;
        }
        if let Some(aside) = self.aside.lock().take() {
            window::release(aside);
        }
    }
}

fn now() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is the kernel's to write; the call may be made in a signal handler.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec)
}

/// Puts the handler in front of whatever handles SIGSEGV now.
fn install() -> Result<(), Errno> {
    // SAFETY: all-zero is a valid value of the struct.
    let (mut ours, mut previous): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_fault as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both structs are valid, and the handler does only what one may do.
    Errno::result(unsafe { libc::sigaction(libc::SIGSEGV, null_mut(), &raw mut previous) })?;
    if previous.sa_sigaction == ours.sa_sigaction {
        return Ok(());
    }
    // What is handed on runs with the signals blocked that it asked for: one that jumps out of itself may want no more.
    ours.sa_mask = previous.sa_mask;
    ours.sa_flags |= previous.sa_flags & libc::SA_NODEFER;
    // Before it can be called. It is never freed: a thread may be using an older one.
    PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::Release);
    // SAFETY: as above.
    Errno::result(unsafe { libc::sigaction(libc::SIGSEGV, &raw const ours, null_mut()) }).map(drop)
}

/// Handles SIGSEGV: holds the thread back, or hands the fault on.
///
/// # Safety
/// Called by the kernel.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's, of a fault.
    let address = unsafe { (*info).si_addr() }.addr() as u64;
    let is_guarded = (FROM.load(Ordering::Relaxed)..TO.load(Ordering::Relaxed)).contains(&address);
    if !is_guarded
        || !(HELD.load(Ordering::SeqCst) || now().wrapping_sub(RELEASED.load(Ordering::Relaxed)) < LATE)
    {
        // SAFETY: as this handler was called.
        return unsafe { hand_on(signal, info, context) };
    }
    // SAFETY: reads and restores the calling thread's errno, which a handler must not change.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { errno.read() };
    // SAFETY: the call takes no pointer, and may be made in a handler.
    let tid = i32::try_from(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap_or(-1);
    if OWN_THREADS.iter().any(|own| own.load(Ordering::Relaxed) == tid) {
        let page = std::ptr::with_exposed_provenance_mut::<c_void>(size(address & !(PAGE - 1)));
        // SAFETY: a page of a buffer object's, whose contents stay.
        if unsafe { libc::mprotect(page, size(PAGE), libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            // SAFETY: as this handler was called.
            unsafe { hand_on(signal, info, context) };
        }
    } else {
        while HELD.load(Ordering::SeqCst) {
            // SAFETY: the struct is valid for the call, which may be made in a handler.
            unsafe { libc::nanosleep(&raw const LOOK, null_mut()) };
        }
    }
    // SAFETY: as above.
    unsafe { errno.write(saved) };
}

/// Hands a fault on to what handled SIGSEGV before.
///
/// # Safety
/// In a handler of SIGSEGV, with its arguments.
unsafe fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.load(Ordering::Acquire);
    // SAFETY: null, or one that `install` left for good.
    let (handler, flags) =
        unsafe { previous.as_ref() }.map_or((libc::SIG_DFL, 0), |p| (p.sa_sigaction, p.sa_flags));
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // The access faults again, and ends the process.
        // SAFETY: all-zero is the default action.
        let default: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is valid.
        unsafe { libc::sigaction(signal, &raw const default, null_mut()) };
    } else if flags & libc::SA_SIGINFO != 0 {
        type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: with this flag it is such a function.
        let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
        // SAFETY: as the kernel would call it.
        unsafe { handler(signal, info, context) };
    } else {
        // SAFETY: without the flag it is such a function.
        let handler = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler) };
        // SAFETY: as the kernel would call it.
        unsafe { handler(signal) };
    }
}
