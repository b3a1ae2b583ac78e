// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate of a client process: a few words of memory that the client shares with its executor. While the gate is closed
//! the client makes no call to the device.
//!
//! A client whose connections last for one call only ([`super::soft::Interposed`]) can be frozen by CRIU when none of its
//! threads is in a call: it has no socket then that leads out of it. The executor closes the gate, and waits until the calls
//! that had begun are done. Threads that want to make a call wait for the gate, by futex, which CRIU carries.
//!
//! ```text
//!   client                          executor
//!   calls += 1                      closed = 1
//!   closed?  -- yes: calls -= 1     calls = 0?  -- no: wait
//!   the call     and wait           nobody is in a call, and nobody begins one
//!   calls -= 1
//! ```
//!
//! CRIU makes the files of a restored client again, so that they have other inodes. The executor writes into the same memory
//! which inode names which open file now, and counts the restores: that is the *generation*.
//!
//! INVARIANT: the memory cannot shrink, and both sides access it through atomics only. Neither side trusts the other's words
//! with more than its own calls: a client that spoils them delays or prevents its own checkpoint.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::sys::mman::{MmapAdvise, madvise};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use queues::words::count;

use crate::{errno, linux};

/// Bytes of the memory.
pub const GATE_BYTES: usize = 16 << 10;
/// The name of the memfd; more follows it.
pub const GATE_NAME: &str = "softgpu:gate";

/// Byte offsets of the words of 32 bits.
const CLOSED: usize = 0;
const CALLS: usize = 4;
const GENERATION: usize = 8;
const KEEPER: usize = 12;
const FILES: usize = 16;
/// Where the table of files begins: number, device, inode, each a u64.
const TABLE: usize = 64;
const ROW: usize = 24;
/// Open files that the table has room for.
pub const MAX_GATE_FILES: usize = (GATE_BYTES - TABLE) / ROW;

/// How often a client that waits looks whether the executor still lives.
const LOOK: Duration = Duration::from_millis(100);

/// An open file of a restored client: its number at the device, and what its descriptor shows now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateFile {
    /// The number.
    pub number: u64,
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// One side's view of the gate.
#[derive(Debug)]
pub struct Gate(MmapRaw);

/// A call of a client that is under way.
#[derive(Debug)]
pub struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Gate {
    /// Maps a gate. A child that is forked does not have the mapping.
    ///
    /// # Errors
    /// EINVAL for memory that is no gate's, else the errno of mmap(2) or madvise(2).
    pub fn map(memory: BorrowedFd<'_>) -> Result<Self, Errno> {
        let bytes = nix::sys::stat::fstat(memory)?.st_size;
        if usize::try_from(bytes) != Ok(GATE_BYTES)
            || !linux::seals(memory)?.contains(SealFlag::F_SEAL_SHRINK)
        {
            return Err(Errno::EINVAL);
        }
        let mapped = MmapOptions::new().len(GATE_BYTES).map_raw(&memory);
        let mapped = mapped.map_err(|error| errno::of_io(&error).unwrap_or(Errno::ENOMEM))?;
        let start = NonNull::new(mapped.as_mut_ptr().cast()).ok_or(Errno::EINVAL)?;
        // SAFETY: the range was mapped just now, and the advice changes nothing for this process.
        unsafe { madvise(start, GATE_BYTES, MmapAdvise::MADV_DONTFORK)? };
        Ok(Self(mapped))
    }

    /// Makes an open gate; its memory is for the client.
    ///
    /// # Errors
    /// As [`linux::memfd`] and [`Gate::map`].
    pub fn create(name: &str) -> Result<(Self, OwnedFd), Errno> {
        let memory = linux::memfd(name, GATE_BYTES as u64, SealFlag::F_SEAL_SHRINK)?;
        Ok((Self::map(memory.as_fd())?, memory))
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= GATE_BYTES, "INVARIANT: offsets are constants, or rows of the table");
        // SAFETY: in bounds and aligned, since the mapping begins at a page and offsets are multiples of 4; mapped until `self`
        // is dropped, which the result's lifetime precedes; accessed through atomics only.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().add(offset).cast()) }
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= GATE_BYTES, "INVARIANT: offsets are constants, or rows of the table");
        // SAFETY: as for `word`, with multiples of 8.
        unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().add(offset).cast()) }
    }

    /// Begins a call of the client; waits while the gate is closed.
    #[must_use]
    pub fn enter(&self) -> Inside<'_> {
        loop {
            // ORDERING: SeqCst, as in `close`: either the executor sees this call, or this thread sees the gate closed.
            self.word(CALLS).fetch_add(1, Ordering::SeqCst);
            let closed = self.word(CLOSED).load(Ordering::SeqCst);
            if closed == 0 {
                return Inside(self);
            }
            self.leave();
            // After any error the word is looked at again.
            let _ = linux::wait_futex(self.word(CLOSED), closed, Some(LOOK));
            if self.word(CLOSED).load(Ordering::SeqCst) == closed && self.is_abandoned() {
                self.word(CALLS).fetch_add(1, Ordering::SeqCst);
                return Inside(self);
            }
        }
    }

    fn leave(&self) {
        self.word(CALLS).fetch_sub(1, Ordering::SeqCst);
        if self.word(CLOSED).load(Ordering::SeqCst) != 0 {
            // The executor looks by itself, too.
            let _ = linux::wake_futex(self.word(CALLS));
        }
    }

    /// Whether the executor that closed the gate is gone: the calls of its client then find no device.
    fn is_abandoned(&self) -> bool {
        let keeper = i32::try_from(self.word(KEEPER).load(Ordering::Relaxed)).unwrap_or(0);
        keeper > 0 && kill(Pid::from_raw(keeper), None) == Err(Errno::ESRCH)
    }

    /// How often the client was restored.
    #[must_use]
    pub fn generation(&self) -> u32 {
        // ORDERING: Acquire pairs with `publish`: the table is as new as the generation.
        self.word(GENERATION).load(Ordering::Acquire)
    }

    /// The number of the open file that this identity names since the last restore, if it was open then.
    #[must_use]
    pub fn number_of(&self, device: u64, inode: u64) -> Option<u64> {
        let rows = self.word(FILES).load(Ordering::Acquire) as usize;
        let row = |at: usize| {
            let [number, device, inode] =
                [0, 8, 16].map(|part| self.long(TABLE + at * ROW + part).load(Ordering::Relaxed));
            GateFile { number, device, inode }
        };
        let found =
            (0..rows.min(MAX_GATE_FILES)).map(row).find(|file| (file.device, file.inode) == (device, inode));
        found.map(|file| file.number)
    }

    /// Whether the gate is closed: the device is paused, or about to be.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.word(CLOSED).load(Ordering::SeqCst) != 0
    }

    /// Closes the gate. `keeper` is this process as the client sees it, 0 if it does not.
    pub fn close(&self, keeper: u32) {
        self.word(KEEPER).store(keeper, Ordering::Relaxed);
        // ORDERING: SeqCst, as in `enter`.
        self.word(CLOSED).store(1, Ordering::SeqCst);
    }

    /// Waits until no call is under way behind the closed gate.
    ///
    /// # Errors
    /// How many calls are still under way at the deadline.
    pub fn wait_empty(&self, deadline: Instant) -> Result<(), u32> {
        loop {
            let calls = self.word(CALLS).load(Ordering::SeqCst);
            if calls == 0 {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(calls);
            }
            let _ = linux::wait_futex(self.word(CALLS), calls, Some(left.min(LOOK)));
        }
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.word(CLOSED).store(0, Ordering::SeqCst);
        // The only failure is an address that is not mapped.
        let _ = linux::wake_futex(self.word(CLOSED));
    }

    /// Tells a restored client which files its descriptors name. It is stopped, or waits for the gate.
    ///
    /// # Errors
    /// EMFILE for more than [`MAX_GATE_FILES`] files.
    pub fn publish(&self, files: &[GateFile]) -> Result<(), Errno> {
        if files.len() > MAX_GATE_FILES {
            return Err(Errno::EMFILE);
        }
        for (at, file) in files.iter().enumerate() {
            for (part, value) in [(0, file.number), (8, file.device), (16, file.inode)] {
                self.long(TABLE + at * ROW + part).store(value, Ordering::Relaxed);
            }
        }
        self.word(FILES).store(count(files.len()), Ordering::Release);
        self.word(GENERATION).fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn gate() -> (Gate, Gate) {
        let (executor, memory) = Gate::create("t").unwrap();
        (executor, Gate::map(memory.as_fd()).unwrap())
    }

    #[test]
    fn closed_gate_has_nobody_inside_and_lets_nobody_in_until_it_opens() {
        let (executor, client) = gate();
        let client = Arc::new(client);
        let stop = Arc::new(AtomicBool::new(false));
        let busy = Arc::new(AtomicU32::new(0));
        let entered = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (client, stop) = (Arc::clone(&client), Arc::clone(&stop));
                let (busy, entered) = (Arc::clone(&busy), Arc::clone(&entered));
                std::thread::spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let _inside = client.enter();
                        busy.fetch_add(1, Ordering::SeqCst);
                        entered.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        busy.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for _ in 0..200 {
            executor.close(0);
            assert!(executor.is_closed());
            executor.wait_empty(Instant::now() + LONG).unwrap();
            let before = entered.load(Ordering::SeqCst);
            std::thread::yield_now();
            assert_eq!(busy.load(Ordering::SeqCst), 0);
            assert_eq!(entered.load(Ordering::SeqCst), before);
            executor.open();
            let deadline = Instant::now() + LONG;
            while entered.load(Ordering::SeqCst) == before {
                assert!(Instant::now() < deadline, "nobody is let in again");
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn calls_under_way_are_counted_at_the_deadline() {
        let (executor, client) = gate();
        let inside = client.enter();
        executor.close(0);
        assert_eq!(executor.wait_empty(Instant::now() + Duration::from_millis(20)), Err(1));
        drop(inside);
        executor.wait_empty(Instant::now()).unwrap();
    }

    #[test]
    fn client_whose_executor_is_gone_does_not_wait_for_ever() {
        let (executor, client) = gate();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        executor.close(gone);
        drop(client.enter());
    }

    #[test]
    fn files_are_found_by_what_they_are_since_the_restore() {
        let (executor, client) = gate();
        assert_eq!((client.generation(), client.number_of(1, 2)), (0, None));
        let file = |number| GateFile { number, device: 1, inode: number + 10 };
        executor.publish(&[file(3), file(4)]).unwrap();
        assert_eq!(
            (client.generation(), client.number_of(1, 14), client.number_of(1, 3)),
            (1, Some(4), None)
        );
        executor.publish(&[file(4)]).unwrap();
        assert_eq!((client.generation(), client.number_of(1, 13)), (2, None));
        let many: Vec<_> = (0..=MAX_GATE_FILES as u64).map(file).collect();
        assert_eq!(executor.publish(&many), Err(Errno::EMFILE));
        executor.publish(&many[1..]).unwrap();
        assert_eq!(client.number_of(1, 10 + MAX_GATE_FILES as u64), Some(MAX_GATE_FILES as u64));
    }

    #[test]
    fn other_memory_is_no_gate() {
        let short = linux::memfd("t", 4096, SealFlag::F_SEAL_SHRINK).unwrap();
        let shrinks = linux::memfd("t", GATE_BYTES as u64, SealFlag::empty()).unwrap();
        let file = tempfile::tempfile().unwrap();
        for memory in [short.as_fd(), shrinks.as_fd(), file.as_fd()] {
            assert_eq!(Gate::map(memory).unwrap_err(), Errno::EINVAL);
        }
    }
}
