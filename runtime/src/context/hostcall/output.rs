// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the text goes that kernels print: to the process's standard output and error, or to whoever takes it.
//!
//! INVARIANT: nobody waits for a reader. What the descriptor does not take at once is kept and offered again, up to a bound; beyond it
//! text is dropped, and the output says how much.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::write;
use parking_lot::Mutex;

/// Bytes that are kept at most.
const MOST: usize = 16 << 20;
/// A pipe that can be written to at all takes this much at once (PIPE_BUF).
const PIECE: usize = 4096;

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

#[derive(Debug, Default)]
struct Kept {
    /// No two neighbours of one stream.
    pieces: VecDeque<Printed>,
    bytes: usize,
    dropped: usize,
    /// Whether somebody takes the text, and nothing is written.
    is_taken: bool,
}

/// A process's printed text.
#[derive(Debug, Default)]
pub struct Output(Mutex<Kept>);

impl Output {
    /// Adds text.
    pub fn add(&self, stream: Stream, text: &[u8]) {
        let mut kept = self.0.lock();
        if kept.bytes.saturating_add(text.len()) > MOST {
            kept.dropped = kept.dropped.saturating_add(text.len());
            return;
        }
        if kept.dropped > 0 {
            let note = format!("\n[{} bytes that kernels printed were dropped]\n", kept.dropped);
            kept.dropped = 0;
            kept.add(stream, note.as_bytes());
        }
        kept.add(stream, text);
    }

    /// Has text be kept for [`Output::take`] from now on, or be written again.
    pub fn keep(&self, is_taken: bool) {
        self.0.lock().is_taken = is_taken;
    }

    /// Takes all text that is kept.
    pub fn take(&self) -> Vec<Printed> {
        let mut kept = self.0.lock();
        kept.bytes = 0;
        std::mem::take(&mut kept.pieces).into()
    }

    /// Whether text waits for a descriptor.
    pub fn is_waiting(&self) -> bool {
        let kept = self.0.lock();
        !kept.is_taken && !kept.pieces.is_empty()
    }

    /// Writes what the descriptors take without waiting.
    pub fn write(&self) {
        self.write_to(io::stdout().as_fd(), io::stderr().as_fd());
    }

    fn write_to(&self, out: BorrowedFd<'_>, error: BorrowedFd<'_>) {
        let mut kept = self.0.lock();
        if kept.is_taken {
            return;
        }
        while let Some(piece) = kept.pieces.front_mut() {
            let fd = if piece.stream == Stream::Out { out } else { error };
            let length = piece.text.len().min(PIECE);
            let written = match is_ready(fd) {
                Ok(false) | Err(Errno::EINTR) => return,
                Ok(true) => write(fd, &piece.text[..length]),
                Err(errno) => Err(errno),
            };
            let gone = match written {
                Ok(bytes) => bytes.min(length),
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                // Nobody will ever have it.
                Err(_) => piece.text.len(),
            };
            piece.text.drain(..gone);
            if piece.text.is_empty() {
                kept.pieces.pop_front();
            }
            kept.bytes -= gone;
        }
    }
}

impl Kept {
    fn add(&mut self, stream: Stream, text: &[u8]) {
        self.bytes += text.len();
        match self.pieces.back_mut().filter(|last| last.stream == stream) {
            Some(last) => last.text.extend_from_slice(text),
            None => self.pieces.push_back(Printed { stream, text: text.to_vec() }),
        }
    }
}

/// Whether a descriptor takes bytes now, or would say what is wrong with it.
fn is_ready(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    Ok(poll(&mut fds, PollTimeout::ZERO)? > 0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use nix::unistd::pipe;

    use super::*;

    #[test]
    fn text_that_is_taken_is_not_written_and_keeps_its_order() {
        let output = Output::default();
        output.keep(true);
        for (stream, text) in
            [(Stream::Out, "a"), (Stream::Out, "b"), (Stream::Error, "c"), (Stream::Out, "d")]
        {
            output.add(stream, text.as_bytes());
        }
        assert!(!output.is_waiting());
        let taken: Vec<_> = output.take().into_iter().map(|piece| (piece.stream, piece.text)).collect();
        let expected =
            [(Stream::Out, b"ab".to_vec()), (Stream::Error, b"c".to_vec()), (Stream::Out, b"d".to_vec())];
        assert_eq!(taken, expected);
        assert_eq!(output.take(), []);
    }

    #[test]
    fn pipe_that_is_full_is_not_waited_for() {
        let output = Output::default();
        let (read, write) = pipe().unwrap();
        let text: Vec<u8> = (0..300_000u32).map(|at| at.to_le_bytes()[0]).collect();
        output.add(Stream::Out, &text);
        output.write_to(write.as_fd(), write.as_fd());
        assert!(output.is_waiting());
        let (mut found, mut reader, mut room) = (Vec::new(), File::from(read), [0; 10_000]);
        while found.len() < text.len() {
            let count = reader.read(&mut room).unwrap();
            found.extend_from_slice(&room[..count]);
            output.write_to(write.as_fd(), write.as_fd());
        }
        assert!(found == text && !output.is_waiting());
    }

    #[test]
    fn pipe_without_a_reader_takes_no_more_memory() {
        let output = Output::default();
        let (read, write) = pipe().unwrap();
        drop(read);
        output.add(Stream::Error, b"lost");
        output.write_to(write.as_fd(), write.as_fd());
        assert!(!output.is_waiting());
    }

    #[test]
    fn what_is_beyond_the_bound_is_counted() {
        let output = Output::default();
        output.keep(true);
        let text = vec![b'x'; MOST / 4];
        for _ in 0..6 {
            output.add(Stream::Out, &text);
        }
        assert_eq!(output.take()[0].text.len(), MOST);
        output.add(Stream::Out, b"more");
        let note = String::from_utf8(output.take()[0].text.clone()).unwrap();
        assert_eq!(note, format!("\n[{} bytes that kernels printed were dropped]\nmore", MOST / 2));
    }
}
