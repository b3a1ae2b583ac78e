// SPDX-License-Identifier: MIT OR Apache-2.0
//! The side that has a checkpoint.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use queues::words::count;
use serde::Serialize;
use stasis::image::{Limit, for_each};

use super::address::Channel;
use super::frame::{
    Frame, IndexFrame, NOT_KNOWN, RECEIVER, SENDER, broken, greeting, read_challenge, read_greeting,
};
use super::{proof_of_done, proof_of_index};
use crate::Progress;
use crate::checkpoint::Checkpoint;
use crate::error::StoreError;
use crate::index::ChunkName;
use crate::object::Codec;

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
    channel: Channel,
    codec: Codec,
    challenge: [u8; 32],
}

impl Sender {
    /// Greets the receiver.
    ///
    /// # Errors
    /// [`StoreError::Stream`], [`StoreError::Broken`].
    pub fn new(mut channel: Channel, codec: Codec) -> Result<Self, StoreError> {
        let sending = broken("the receiver was not greeted");
        let hello = greeting(SENDER, u8::from(channel.is_answered));
        channel.writer.write_all(&hello).and_then(|()| channel.writer.flush()).map_err(sending)?;
        let mut challenge = [0; 32];
        if channel.is_answered {
            read_greeting(&mut channel.reader, RECEIVER)?;
            challenge = read_challenge(&mut channel.reader)?;
        }
        Ok(Self { channel, codec, challenge })
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
        let index = checkpoint.index();
        let text = index.encode()?;
        let chunk = ChunkName::of(&text);
        let name = self.codec.name(&chunk.hash);
        let is_last = stage != Stage::Before;
        let proof = proof_of_index(&self.codec, &self.challenge, &name, is_last);
        let object = self.codec.encode(&chunk, &text);
        self.write(&Frame::Index(IndexFrame {
            is_last,
            stopped_us: stage.stopped_us(),
            bytes: chunk.bytes,
            name,
            proof,
            object,
        }))?;
        let wanted = match self.channel.is_answered {
            false => vec![true; index.chunks.len()],
            true => match self.read()? {
                Frame::Wanted(wanted) if wanted.len() == index.chunks.len() => wanted,
                other => return Err(unexpected(&other)),
            },
        };
        let wanted: Vec<usize> = (0..wanted.len()).filter(|n| wanted[*n]).collect();
        let sent_bytes = self.send_chunks(checkpoint, &wanted, progress)?;
        self.write(&Frame::End)?;
        if self.channel.is_answered {
            match self.read()? {
                Frame::Done { proof } if proof == proof_of_done(&self.codec, &self.challenge, &name) => {}
                Frame::Done { .. } => {
                    return Err(StoreError::OtherKey("The receiver does not prove that it has the key"));
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
        let (done, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        let (codec, writer) = (&self.codec, Mutex::new(&mut self.channel.writer));
        let made = for_each(wanted.len(), 1, &Limit::none(), |n, _| {
            let chunk = &chunks[wanted[n]];
            let object = codec.encode(chunk, &checkpoint.read(wanted[n])?);
            sent.fetch_add(object.len() as u64, Ordering::Relaxed);
            let frame = Frame::Chunk { place: count(wanted[n]), object };
            // After a panic in between the stream is of no use, and the panic goes on.
            frame.write(&mut **writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner))?;
            progress(done.fetch_add(chunk.bytes, Ordering::Relaxed) + chunk.bytes, all);
            Ok::<_, StoreError>(())
        });
        made.map_err(|error| self.reason_of(error))?;
        Ok(sent.into_inner())
    }

    fn write(&mut self, frame: &Frame) -> Result<(), StoreError> {
        let flushing = broken("nothing more could be sent");
        let written = frame.write(&mut self.channel.writer);
        let flushed = written.and_then(|()| self.channel.writer.flush().map_err(flushing));
        flushed.map_err(|error| self.reason_of(error))
    }

    fn read(&mut self) -> Result<Frame, StoreError> {
        match Frame::read(&mut self.channel.reader)? {
            Frame::Failed(text) => Err(failure(&text)),
            frame => Ok(frame),
        }
    }

    /// What the receiver said before it closed the connection, if that is why there was an error.
    fn reason_of(&mut self, error: StoreError) -> StoreError {
        if !self.channel.is_answered || !matches!(error, StoreError::Broken { .. }) {
            return error;
        }
        match Frame::read(&mut self.channel.reader) {
            Ok(Frame::Failed(text)) => failure(&text),
            _ => error,
        }
    }
}

fn failure(text: &str) -> StoreError {
    StoreError::Stream { what: format!("the receiver says: {text}") }
}

fn unexpected(frame: &Frame) -> StoreError {
    StoreError::Stream { what: format!("the receiver sent {} where something else was due", frame.kind()) }
}
