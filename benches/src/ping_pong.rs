// SPDX-License-Identifier: MIT OR Apache-2.0
//! The peer of a round trip: a word in shared memory passed to another process and back.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::Result;
use kfd::linux::{wait_futex, wake_futex};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::SealFlag;
use nix::libc;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

/// The word says which trip is under way: odd on the way there, even back home.
const OVER: u32 = u32::MAX;
const PAGE: usize = 4096;

/// How a side waits for the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Asleep on the word.
    Futex,
    /// Looking at it.
    Spin,
}

/// Two processes and a word between them.
#[derive(Debug)]
pub struct PingPong {
    page: MmapRaw,
    wait: Wait,
    trip: u32,
    child: Pid,
}

fn await_other(word: &AtomicU32, old: u32, wait: Wait) -> u32 {
    loop {
        let now = word.load(Ordering::Acquire);
        if now != old {
            return now;
        }
        match wait {
            // Any answer means: look again.
            // Any answer of the system means: look again.
            Wait::Futex => drop(wait_futex(word, old, None)),
            Wait::Spin => std::hint::spin_loop(),
        }
    }
}

fn pass(word: &AtomicU32, value: u32, wait: Wait) {
    word.store(value, Ordering::Release);
    if wait == Wait::Futex {
        // Without a sleeper there is nobody to wake.
        let _ = wake_futex(word);
    }
}

impl PingPong {
    /// Forks the other side. Only while this process has one thread.
    pub fn start(wait: Wait) -> Result<Self> {
        let file = kfd::linux::memfd("ping-pong", PAGE.try_into()?, SealFlag::empty())?;
        // Shared with the child, as all mappings of a memfd.
        let page = MmapOptions::new().len(PAGE).map_raw(&file)?;
        // SAFETY: the page is mapped, zeroed and aligned, and lives until the owner is dropped.
        let word = unsafe { AtomicU32::from_ptr(page.as_mut_ptr().cast()) };
        // SAFETY: the child allocates nothing, takes no lock and leaves by _exit.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let mut seen = 0;
                loop {
                    seen = await_other(word, seen, wait);
                    if seen == OVER {
                        // SAFETY: ends the child without running anything of the parent's.
                        unsafe { libc::_exit(0) }
                    }
                    seen += 1;
                    pass(word, seen, wait);
                }
            }
            ForkResult::Parent { child } => Ok(Self { page, wait, trip: 0, child }),
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page was mapped by `start` and stays; its first word is aligned and accessed only atomically.
        unsafe { AtomicU32::from_ptr(self.page.as_mut_ptr().cast()) }
    }

    /// One trip there and back, microseconds.
    pub fn trip(&mut self) -> f64 {
        let started = Instant::now();
        pass(self.word(), self.trip + 1, self.wait);
        await_other(self.word(), self.trip + 1, self.wait);
        self.trip += 2;
        started.elapsed().as_secs_f64() * 1e6
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        pass(self.word(), OVER, self.wait);
        // The child is ours alone; if it cannot be waited for it is gone.
        let _ = waitpid(self.child, None);
    }
}
