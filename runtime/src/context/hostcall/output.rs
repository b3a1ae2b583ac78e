// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the text goes that kernels print: to the process's standard output and error, or to whoever takes it.
//!
//! INVARIANT: who adds text waits for nobody. A thread writes it, which holds no lock meanwhile; what its reader does not take is kept, up
//! to a bound, and beyond that dropped, and the output says how much.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getpid, write};
use parking_lot::{Condvar, Mutex};

/// Bytes that are kept at most.
const MOST: usize = 16 << 20;
/// Bytes that are written at a time: progress can be seen.
const PIECE: usize = 64 << 10;
/// TIMEOUT: how long the end of the process waits for a reader that takes nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// The process's text. A process has one standard output.
pub static OUTPUT: Output = Output::new();

/// Which of a process's outputs a kernel prints to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Error,
}

/// Text that kernels have printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// Where to.
    pub stream: Stream,
    /// The text: UTF-8, if what the kernels were given is.
    pub text: Vec<u8>,
}

#[derive(Debug)]
struct Kept {
    /// No two neighbours of one stream.
    pieces: VecDeque<Printed>,
    bytes: usize,
    dropped: usize,
    /// Whether somebody takes the text, and nothing is written.
    is_taken: bool,
    /// Whether the thread has text that it is yet to write.
    is_writing: bool,
    /// Bytes that were written.
    written: u64,
}

/// Printed text on its way.
#[derive(Debug)]
pub struct Output {
    kept: Mutex<Kept>,
    /// Notified when there is something to write, and when it was written.
    changed: Condvar,
}

impl Default for Output {
    fn default() -> Self {
        Self::new()
    }
}

impl Output {
    const fn new() -> Self {
        let kept = Kept {
            pieces: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            is_taken: false,
            is_writing: false,
            written: 0,
        };
        Self { kept: Mutex::new(kept), changed: Condvar::new() }
    }

    /// Adds text.
    pub fn add(&self, stream: Stream, text: &[u8]) {
        let mut kept = self.kept.lock();
        if kept.bytes.saturating_add(text.len()) > MOST {
            kept.dropped = kept.dropped.saturating_add(text.len());
        } else {
            kept.tell_dropped(stream);
            kept.add(stream, text);
        }
        self.changed.notify_all();
    }

    /// Has text be kept for [`Output::take`] from now on, or be written again.
    pub fn keep(&self, is_taken: bool) {
        self.kept.lock().is_taken = is_taken;
        self.changed.notify_all();
    }

    /// Whether somebody takes the text.
    pub fn is_taken(&self) -> bool {
        self.kept.lock().is_taken
    }

    /// Takes all text that is kept.
    pub fn take(&self) -> Vec<Printed> {
        let mut kept = self.kept.lock();
        kept.tell_dropped(Stream::Out);
        kept.bytes = 0;
        std::mem::take(&mut kept.pieces).into()
    }

    /// The next text to write, when there is some.
    fn next(&self) -> Printed {
        let mut kept = self.kept.lock();
        kept.is_writing = false;
        self.changed.notify_all();
        loop {
            if !kept.is_taken {
                if kept.pieces.is_empty() {
                    kept.tell_dropped(Stream::Out);
                }
                if let Some(piece) = kept.pieces.pop_front() {
                    kept.bytes -= piece.text.len();
                    kept.is_writing = true;
                    return piece;
                }
            }
            self.changed.wait(&mut kept);
        }
    }

    /// Writes text for ever.
    fn write(&self) {
        loop {
            let Printed { stream, text } = self.next();
            for piece in text.chunks(PIECE) {
                // Past the library's own locks, which the program may hold for as long as it likes.
                let written = match stream {
                    Stream::Out => write_all(io::stdout().as_fd(), piece),
                    Stream::Error => write_all(io::stderr().as_fd(), piece),
                };
                if written.is_err() {
                    // The descriptor takes no more, and the text is lost.
                    break;
                }
                self.kept.lock().written += piece.len() as u64;
            }
        }
    }

    /// Waits until all text is written, or its reader has taken none for a while.
    fn finish(&self, patience: Duration) {
        let mut kept = self.kept.lock();
        let (mut before, mut since) = (kept.written, Instant::now());
        while !kept.is_taken && (kept.is_writing || !kept.pieces.is_empty()) {
            if kept.written != before {
                (before, since) = (kept.written, Instant::now());
            } else if since.elapsed() >= patience {
                return;
            }
            self.changed.wait_for(&mut kept, Duration::from_millis(10));
        }
    }
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(to, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                poll(&mut [PollFd::new(to, PollFlags::POLLOUT)], PollTimeout::NONE).ok();
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Starts the thread that writes, and has the end of the process wait for it. Only the first call does anything.
pub fn start_writing() {
    static ONCE: Once = Once::new();
    static PROCESS: AtomicI32 = AtomicI32::new(0);
    extern "C" fn finish() {
        // A child has not the thread.
        if PROCESS.load(Ordering::Relaxed) == getpid().as_raw() {
            OUTPUT.finish(PATIENCE);
        }
    }
    ONCE.call_once(|| {
        PROCESS.store(getpid().as_raw(), Ordering::Relaxed);
        let spawned = std::thread::Builder::new().name("stasis-prints".to_owned()).spawn(|| OUTPUT.write());
        match spawned {
            // SAFETY: the function takes nothing, and unwinds nowhere: locks of a thread that is gone are not waited for, since the
            // one thread that has it holds it for moments.
            Ok(_) => drop(unsafe { libc::atexit(finish) }),
            Err(error) => tracing::error!(target: "queues", %error, "what kernels print is not written"),
        }
    });
}

impl Kept {
    fn add(&mut self, stream: Stream, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        self.bytes += text.len();
        match self.pieces.back_mut().filter(|last| last.stream == stream) {
            Some(last) => last.text.extend_from_slice(text),
            None => self.pieces.push_back(Printed { stream, text: text.to_vec() }),
        }
    }

    /// Says how much was dropped, if any was.
    fn tell_dropped(&mut self, stream: Stream) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.add(stream, format!("\n[{dropped} bytes that kernels printed were dropped]\n").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_taken_keeps_its_order() {
        let output = Output::default();
        output.keep(true);
        for (stream, text) in
            [(Stream::Out, "a"), (Stream::Out, "b"), (Stream::Error, "c"), (Stream::Out, "d")]
        {
            output.add(stream, text.as_bytes());
        }
        let taken: Vec<_> = output.take().into_iter().map(|piece| (piece.stream, piece.text)).collect();
        let expected =
            [(Stream::Out, b"ab".to_vec()), (Stream::Error, b"c".to_vec()), (Stream::Out, b"d".to_vec())];
        assert_eq!(taken, expected);
        assert_eq!(output.take(), []);
    }

    #[test]
    fn text_is_handed_to_who_writes_once_nobody_takes_it() {
        let output = Output::default();
        output.keep(true);
        output.add(Stream::Error, b"text");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| output.next());
            std::thread::sleep(Duration::from_millis(10));
            assert!(!next.is_finished());
            output.keep(false);
            assert_eq!(next.join().unwrap(), Printed { stream: Stream::Error, text: b"text".to_vec() });
        });
        // What it has is not written yet: the end of the process waits, but not for ever.
        let begun = Instant::now();
        output.finish(Duration::from_millis(30));
        assert!(begun.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn what_is_beyond_the_bound_is_told_with_what_comes_next_or_at_the_end() {
        let output = Output::default();
        output.keep(true);
        let text = vec![b'x'; MOST / 4];
        let note = format!("\n[{} bytes that kernels printed were dropped]\n", MOST / 2);
        for _ in 0..6 {
            output.add(Stream::Out, &text);
        }
        let told = output.take();
        assert_eq!(told[0].text.len(), MOST + note.len());
        assert!(told[0].text.ends_with(note.as_bytes()));
        for _ in 0..6 {
            output.add(Stream::Out, &text);
        }
        output.take();
        output.add(Stream::Out, b"more");
        assert_eq!(output.take()[0].text, b"more");
    }
}
