// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers and signals from process to process, over a Unix socket that the two have: no daemon in between.
//!
//! A message is a header of eight bytes with the DMABufs beside it (`SCM_RIGHTS`), then a line of JSON that says what
//! each is. The same bytes do for stream and sequenced-packet sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use kfd::linux::{receive_message, retry, send_message};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use queues::words::count;
use serde::{Deserialize, Serialize};

use super::ShareError;
use crate::agent::Agent;
use crate::pool::Buffer;
use crate::runtime::Runtime;
use crate::signal::Signal;

/// Most objects in a message; a socket takes 253 descriptors.
const MOST: usize = 128;
/// What a message begins with.
const MAGIC: [u8; 4] = *b"STIP";
/// Longest description of a message's objects.
const LONGEST: usize = 64 << 10;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A buffer.
    Buffer(&'a Buffer),
    /// A shared signal ([`Signal::shared`]).
    Signal(&'a Signal),
}

/// What is received.
#[derive(Clone, Debug)]
pub enum Received {
    /// A buffer.
    Buffer(Buffer),
    /// A signal.
    Signal(Signal),
}

/// What an object of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Buffer,
    Signal,
}

fn failed(act: &'static str) -> impl Fn(io::Error) -> ShareError {
    move |source| ShareError::Message { act, source }
}

fn refused(act: &'static str) -> impl Fn(Errno) -> ShareError {
    move |errno| failed(act)(errno.into())
}

impl Runtime {
    /// Sends buffers and signals to the other end of a connected Unix socket, which [`Runtime::receive`]s them. The
    /// memory is both processes' from then on. Blocks for as long as the socket does.
    ///
    /// # Errors
    /// [`ShareError::TooMany`], [`ShareError::NotShared`], [`ShareError::Message`] and what an export can fail with.
    pub fn send(&self, socket: impl AsFd, items: &[Item<'_>]) -> Result<(), ShareError> {
        let act = "send";
        if items.len() > MOST {
            return Err(ShareError::TooMany { count: items.len(), most: MOST });
        }
        let export = |item: &Item<'_>| match item {
            Item::Buffer(buffer) => Ok((Kind::Buffer, buffer.export()?)),
            Item::Signal(signal) => Ok((Kind::Signal, signal.export()?)),
        };
        let (kinds, files): (Vec<Kind>, Vec<OwnedFd>) =
            items.iter().map(export).collect::<Result<Vec<_>, ShareError>>()?.into_iter().unzip();
        let text = serde_json::to_vec(&kinds).map_err(|error| failed(act)(error.into()))?;
        let mut header = [0; 8];
        header[..4].copy_from_slice(&MAGIC);
        // CAST: at most MOST short words.
        header[4..].copy_from_slice(&count(text.len()).to_le_bytes());
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let (socket, flags) = (socket.as_fd(), MsgFlags::MSG_NOSIGNAL);
        let sent = retry(|| send_message(socket, &header, &files, flags)).map_err(refused(act))?;
        let rest = header[sent..].iter().chain(&text).copied().collect::<Vec<u8>>();
        let mut done = 0;
        while done < rest.len() {
            done += retry(|| send(socket.as_raw_fd(), &rest[done..], flags)).map_err(refused(act))?;
        }
        Ok(())
    }

    /// Receives what the other end has sent; `agent` may access the buffers, all agents the signals. Blocks for as long
    /// as the socket does.
    ///
    /// # Errors
    /// [`ShareError::Message`], and what an import can fail with; what came with the message is closed then.
    pub fn receive(&self, socket: impl AsFd, agent: &Agent) -> Result<Vec<Received>, ShareError> {
        let (kinds, files) = read(&socket).map_err(failed("receive"))?;
        let import = |(kind, file): (Kind, OwnedFd)| match kind {
            Kind::Buffer => Ok(Received::Buffer(self.import(&file, agent)?)),
            Kind::Signal => Ok(Received::Signal(self.import_signal(&file)?)),
        };
        kinds.into_iter().zip(files).map(import).collect()
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn read(socket: impl AsFd) -> io::Result<(Vec<Kind>, Vec<OwnedFd>)> {
    let mut header = [0; 8];
    let received = retry(|| receive_message(socket.as_fd(), &mut header, MOST, MsgFlags::empty()))?;
    let files = received.fds;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    read_rest(&socket, &mut header[received.bytes..])?;
    let (magic, length) = header.split_at(4);
    let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
    if magic != MAGIC || length > LONGEST {
        return Err(invalid("the other end does not send shared objects"));
    }
    let mut text = vec![0; length];
    read_rest(&socket, &mut text)?;
    let kinds: Vec<Kind> = serde_json::from_slice(&text)?;
    if kinds.len() != files.len() {
        return Err(invalid("a message's descriptors were lost: is RLIMIT_NOFILE reached?"));
    }
    Ok((kinds, files))
}

fn read_rest(socket: impl AsFd, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        let done = retry(|| recv(socket.as_fd().as_raw_fd(), into, MsgFlags::empty()))?;
        if done == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        into = &mut into[done..];
    }
    Ok(())
}
