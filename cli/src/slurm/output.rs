// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's standard output and error, passed on to the job's own.
//!
//! They are pipes, because a pipe has no length: a program whose output is a file cannot be restored once somebody else has
//! written to it, as Slurm does. What the program wrote before it was frozen is passed on by the start that froze it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use nix::unistd::pipe2;

/// TIMEOUT: how long others who still have the pipes may keep the job from ending.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The two pipes, their ends for the program.
#[derive(Debug)]
pub struct Pipes {
    /// Of standard output and of standard error.
    pub ends: [OwnedFd; 2],
    /// Their inodes.
    pub inodes: [u64; 2],
}

/// Passes on what the program writes, by two threads.
#[derive(Debug)]
pub struct Output {
    ended: Receiver<()>,
}

impl Output {
    /// Makes the pipes and begins.
    pub fn begin() -> Result<(Self, Pipes)> {
        let pipe = || -> Result<(OwnedFd, OwnedFd, u64)> {
            let (reader, writer) = pipe2(OFlag::O_CLOEXEC).context("Cannot make a pipe")?;
            let inode = fstat(&writer).context("Cannot look at a pipe")?.st_ino;
            Ok((reader, writer, inode))
        };
        let ((out, out_end, out_inode), (error, error_end, error_inode)) = (pipe()?, pipe()?);
        let (tell, ended) = channel();
        let pass = |from: OwnedFd, to: fn() -> Box<dyn Write>| -> Result<()> {
            let tell = tell.clone();
            let copy = move || {
                copy(File::from(from), to());
                // The receiver may be gone.
                let _ = tell.send(());
            };
            std::thread::Builder::new().spawn(copy).map(drop).context("Cannot start a thread")
        };
        pass(out, || Box::new(io::stdout()))?;
        pass(error, || Box::new(io::stderr()))?;
        Ok((Self { ended }, Pipes { ends: [out_end, error_end], inodes: [out_inode, error_inode] }))
    }

    /// Waits until all is passed on, for a while.
    pub fn finish(&self) {
        let deadline = Instant::now() + LAST_WORDS;
        for _ in 0..2 {
            if self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
        }
    }
}

/// Copies until the end. What nobody takes is dropped: the program must not stand still for it.
fn copy(mut from: File, mut to: Box<dyn Write>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => drop(to.write_all(&buffer[..count]).and_then(|()| to.flush())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
