// SPDX-License-Identifier: MIT OR Apache-2.0
//! The side that has a checkpoint.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use queues::words::count;
use serde::Serialize;
use stasis::image::{Limit, for_each};

use super::address::Channel;
use super::connection::Connection;
use super::frame::{DONE, Frame, IndexFrame, NOT_KNOWN, WANTED};
use super::said_of_index;
use crate::Progress;
use crate::checkpoint::Checkpoint;
use crate::error::StoreError;
use crate::index::ChunkName;
use crate::object::{Codec, Kind};

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// Bytes of the checkpoint's files.
    pub file_bytes: u64,
    /// Its chunks, each once.
    pub chunks: u64,
    /// Those that the receiver did not have.
    pub sent_chunks: u64,
    /// Bytes of their objects.
    pub sent_bytes: u64,
}

/// What a checkpoint that is sent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Of a process that still runs: the receiver keeps what it has of it for the next.
    Before,
    /// The last: the receiver gives the directory its name. When the process stopped, if somebody is interested.
    Last(Option<Instant>),
}

impl Stage {
    /// How long the process has stood still, microseconds; [`NOT_KNOWN`] if that is of no interest.
    fn stopped_us(self) -> u64 {
        match self {
            Self::Last(Some(then)) => u64::try_from(then.elapsed().as_micros()).unwrap_or(NOT_KNOWN),
            Self::Before | Self::Last(None) => NOT_KNOWN,
        }
    }
}

/// Sends checkpoints over one connection.
#[derive(Debug)]
pub struct Sender {
    connection: Connection,
    /// Chunks that were sent over it.
    sent_chunks: u64,
}

impl Sender {
    /// Greets the receiver; with a key, each side has proved to the other that it has it.
    ///
    /// # Errors
    /// [`StoreError::OtherKey`], [`StoreError::Stream`], [`StoreError::Broken`].
    pub fn new(channel: Channel, codec: Codec) -> Result<Self, StoreError> {
        Ok(Self { connection: Connection::greet(channel, codec)?, sent_chunks: 0 })
    }

    /// Chunks that were sent over this connection.
    #[must_use]
    pub fn sent_chunks(&self) -> u64 {
        self.sent_chunks
    }

    /// Sends a checkpoint. Of the last one the receiver gives the directory its name, and says so.
    ///
    /// # Errors
    /// [`StoreError::Stream`] with what the receiver says, [`StoreError::Broken`], [`StoreError::Changed`]. The
    /// receiver has no checkpoint then, unless the connection broke as it said that it was done.
    pub fn send(
        &mut self,
        checkpoint: &Checkpoint,
        stage: Stage,
        progress: Progress<'_>,
    ) -> Result<Sent, StoreError> {
        let sent = self.converse(checkpoint, stage, progress);
        match &sent {
            Ok(_) | Err(StoreError::Broken { .. } | StoreError::Stream { .. }) => {}
            // The receiver need not wait.
            Err(error) => drop(self.connection.write(&Frame::Failed(error.to_string()))),
        }
        sent
    }

    fn converse(
        &mut self,
        checkpoint: &Checkpoint,
        stage: Stage,
        progress: Progress<'_>,
    ) -> Result<Sent, StoreError> {
        let index = checkpoint.index();
        let text = checkpoint.text();
        let (kind, chunk) = (Kind::Index(""), ChunkName::of(text));
        let codec = self.connection.codec();
        let mut frame = IndexFrame {
            is_last: stage != Stage::Before,
            stopped_us: stage.stopped_us(),
            bytes: chunk.bytes,
            name: codec.name_of(kind, &chunk.hash),
            proof: [0; 32],
            object: codec.encode(kind, &chunk, text),
        };
        frame.proof = self.connection.proof("index", &said_of_index(&frame));
        let done = self.connection.proof("done", &frame.name);
        self.write(&Frame::Index(frame))?;
        let wanted = match self.connection.is_answered() {
            false => vec![true; index.chunks.len()],
            true => match self.read(WANTED, index.chunks.len())? {
                Frame::Wanted(wanted) => wanted,
                other => return Err(unexpected(&other)),
            },
        };
        let wanted: Vec<usize> = (0..wanted.len()).filter(|n| wanted[*n]).collect();
        let sent_bytes = self.send_chunks(checkpoint, &wanted, progress)?;
        self.write(&Frame::End)?;
        if self.connection.is_answered() {
            match self.read(DONE, 0)? {
                Frame::Done { proof } if proof == done => {}
                Frame::Done { .. } => {
                    return Err(StoreError::OtherKey(
                        "The receiver does not prove that it has the checkpoint",
                    ));
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(Sent {
            file_bytes: index.file_bytes(),
            chunks: index.chunks.len() as u64,
            sent_chunks: wanted.len() as u64,
            sent_bytes,
        })
    }

    /// Returns the bytes of the objects.
    fn send_chunks(
        &mut self,
        checkpoint: &Checkpoint,
        wanted: &[usize],
        progress: Progress<'_>,
    ) -> Result<u64, StoreError> {
        let chunks = &checkpoint.index().chunks;
        let all = wanted.iter().map(|n| chunks[*n].bytes).sum();
        let (done, sent, count_of) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (codec, writer) = (self.connection.codec(), Arc::clone(self.connection.writer()));
        let made = for_each(wanted.len(), 1, &Limit::none(), |n, _| {
            let chunk = &chunks[wanted[n]];
            let object = codec.encode(Kind::Chunk, chunk, &checkpoint.read(wanted[n])?);
            sent.fetch_add(object.len() as u64, Ordering::Relaxed);
            let frame = Frame::Chunk { place: count(wanted[n]), object };
            // After a panic in between the stream is of no use, and the panic goes on.
            writer.lock().unwrap_or_else(PoisonError::into_inner).send(&frame, false)?;
            count_of.fetch_add(1, Ordering::Relaxed);
            progress(done.fetch_add(chunk.bytes, Ordering::Relaxed) + chunk.bytes, all);
            Ok::<_, StoreError>(())
        });
        self.sent_chunks += count_of.into_inner();
        made.map_err(|error| self.reason_of(error))?;
        Ok(sent.into_inner())
    }

    fn write(&mut self, frame: &Frame) -> Result<(), StoreError> {
        self.connection.write(frame).map_err(|error| self.reason_of(error))
    }

    fn read(&mut self, kind: u8, chunks: usize) -> Result<Frame, StoreError> {
        match Frame::read(self.connection.reader(), &[kind], chunks)? {
            Frame::Failed(text) => Err(failure(&text)),
            frame => Ok(frame),
        }
    }

    /// What the receiver said before it closed the connection, if that is why there was an error.
    fn reason_of(&mut self, error: StoreError) -> StoreError {
        if !self.connection.is_answered() || !matches!(error, StoreError::Broken { .. }) {
            return error;
        }
        match self.connection.last_words() {
            Some(text) => failure(&text),
            None => error,
        }
    }
}

fn failure(text: &str) -> StoreError {
    StoreError::Stream { what: format!("the receiver says: {text}") }
}

fn unexpected(frame: &Frame) -> StoreError {
    StoreError::Stream { what: format!("the receiver sent {} where something else was due", frame.kind()) }
}
