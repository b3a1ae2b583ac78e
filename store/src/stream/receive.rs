// SPDX-License-Identifier: MIT OR Apache-2.0
//! The side that is to have a checkpoint.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Queue, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::address::Channel;
use super::frame::{Frame, IndexFrame, NOT_KNOWN, RECEIVER, SENDER, broken, greeting, read_greeting};
use super::{proof_of_done, proof_of_index};
use crate::Progress;
use crate::assembly::Assembly;
use crate::error::{StoreError, failed};
use crate::index::ChunkIndex;
use crate::object::Codec;

/// Objects that wait for each worker.
const WAITING: usize = 2;

/// What was received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Received {
    /// The checkpoint's directory.
    pub directory: PathBuf,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Its chunks, each once.
    pub chunks: u64,
    /// Those that came, of all indices.
    pub received_chunks: u64,
    /// Bytes of their objects.
    pub received_bytes: u64,
    /// When the process stopped, if the sender says how long ago that was.
    #[serde(skip)]
    pub stopped: Option<Instant>,
}

/// Receives one checkpoint, over as many connections as it takes.
#[derive(Debug)]
pub struct Receiver {
    directory: PathBuf,
    codec: Codec,
    assembly: Option<Assembly>,
    received_chunks: u64,
    received_bytes: u64,
}

impl Receiver {
    /// A receiver whose checkpoint will be at `directory`.
    #[must_use]
    pub fn new(directory: &Path, codec: Codec) -> Self {
        let directory = directory.into();
        Self { directory, codec, assembly: None, received_chunks: 0, received_bytes: 0 }
    }

    /// Takes a checkpoint from a sender. After [`StoreError::Broken`] another connection may bring the rest.
    ///
    /// # Errors
    /// [`StoreError::Stream`], [`StoreError::Broken`], [`StoreError::OtherKey`], [`StoreError::Index`],
    /// [`StoreError::Object`], [`StoreError::NotEmpty`], [`StoreError::Busy`], [`StoreError::Io`]. What came stays in the
    /// directory of what is not complete.
    pub fn receive(&mut self, channel: &mut Channel, progress: Progress<'_>) -> Result<Received, StoreError> {
        let received = self.converse(channel, progress);
        if let Err(error) = &received
            && channel.is_answered
        {
            // The sender may be gone; then there is nobody to tell.
            let _ = Frame::Failed(error.to_string()).write(&mut channel.writer);
            let _ = channel.writer.flush();
        }
        received
    }

    fn converse(&mut self, channel: &mut Channel, progress: Progress<'_>) -> Result<Received, StoreError> {
        let is_answered = read_greeting(&mut channel.reader, SENDER)?;
        if is_answered != u8::from(channel.is_answered) {
            let what =
                "it is for a connection of the other kind, of which one side answers or does not".to_owned();
            return Err(StoreError::Stream { what });
        }
        let mut challenge = [0; 32];
        if channel.is_answered {
            let source = Path::new("/dev/urandom");
            let read = File::open(source).and_then(|mut file| file.read_exact(&mut challenge));
            read.map_err(failed("read", source))?;
            let hello = [&greeting(RECEIVER, 0)[..], &challenge].concat();
            channel.writer.write_all(&hello).and_then(|()| channel.writer.flush()).map_err(broken(SAYING))?;
        }
        loop {
            let Frame::Index(index) = next(channel)? else {
                return Err(StoreError::Stream { what: "the index is missing".to_owned() });
            };
            if index.proof != proof_of_index(&self.codec, &challenge, &index.name, index.is_last) {
                return Err(StoreError::OtherKey(
                    "The sender does not prove that it has the key of the receiver",
                ));
            }
            let known = Some(index.stopped_us).filter(|us| *us != NOT_KNOWN).map(Duration::from_micros);
            let stopped = known.and_then(|ago| Instant::now().checked_sub(ago));
            self.take(channel, &index, progress)?;
            let (file_bytes, chunks) = match &self.assembly {
                Some(assembly) => (assembly.index().file_bytes(), assembly.index().chunks.len() as u64),
                None => (0, 0),
            };
            let directory = match self.assembly.take() {
                Some(assembly) if index.is_last => Some(assembly.commit()?),
                assembly => {
                    self.assembly = assembly;
                    None
                }
            };
            if channel.is_answered {
                let proof = proof_of_done(&self.codec, &challenge, &index.name);
                say(channel, &Frame::Done { proof }).or_else(|error| match &directory {
                    // It is here all the same; the sender does not know, and keeps what it has.
                    Some(_) => {
                        tracing::warn!(%error, "the sender was not told that all is here");
                        Ok(())
                    }
                    None => Err(error),
                })?;
            }
            if let Some(directory) = directory {
                let (received_chunks, received_bytes) = (self.received_chunks, self.received_bytes);
                return Ok(Received {
                    directory,
                    file_bytes,
                    chunks,
                    received_chunks,
                    received_bytes,
                    stopped,
                });
            }
        }
    }

    /// Takes what belongs to an index.
    fn take(
        &mut self,
        channel: &mut Channel,
        index: &IndexFrame,
        progress: Progress<'_>,
    ) -> Result<(), StoreError> {
        let text = self.codec.decode_named(&index.name, index.bytes, &index.object)?;
        let parsed = ChunkIndex::parse(&text)?;
        let assembly = match self.assembly.take() {
            Some(assembly) if *assembly.index() == parsed => assembly,
            Some(assembly) => assembly.turn_to(parsed, &|_, _| ())?,
            None => Assembly::begin(&self.directory, parsed, &|_, _| ())?,
        };
        let assembly = self.assembly.insert(assembly);
        let mut is_wanted = vec![!channel.is_answered; assembly.index().chunks.len()];
        let missing = assembly.missing();
        if channel.is_answered {
            missing.iter().for_each(|n| is_wanted[*n] = true);
            say(channel, &Frame::Wanted(is_wanted.clone()))?;
        }
        let came = take_chunks(&mut channel.reader, assembly, &self.codec, is_wanted, progress);
        let (chunks, bytes) = came?;
        self.received_chunks += chunks;
        self.received_bytes += bytes;
        match assembly.missing().is_empty() {
            true => Ok(()),
            false => Err(StoreError::Stream { what: "the end came before all chunks".to_owned() }),
        }
    }
}

const SAYING: &str = "nothing more could be said to the sender";

fn say(channel: &mut Channel, frame: &Frame) -> Result<(), StoreError> {
    frame.write(&mut channel.writer)?;
    channel.writer.flush().map_err(broken(SAYING))
}

fn next(channel: &mut Channel) -> Result<Frame, StoreError> {
    match Frame::read(&mut channel.reader)? {
        Frame::Failed(text) => Err(StoreError::Stream { what: format!("the sender says: {text}") }),
        frame => Ok(frame),
    }
}

/// Takes chunks up to the end, and writes them on all cores; returns how many came, and the bytes of their objects.
fn take_chunks(
    reader: &mut dyn Read,
    assembly: &Assembly,
    codec: &Codec,
    mut is_wanted: Vec<bool>,
    progress: Progress<'_>,
) -> Result<(u64, u64), StoreError> {
    let chunks = &assembly.index().chunks;
    let all =
        chunks.iter().zip(&is_wanted).filter(|(_, wanted)| **wanted).map(|(chunk, _)| chunk.bytes).sum();
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let (give, queue) = sync_channel::<(usize, Vec<u8>)>(workers * WAITING);
    let queue = Mutex::new(queue);
    let has_failed = AtomicBool::new(false);
    let work = || -> Result<(), StoreError> {
        let one = |(place, object): (usize, Vec<u8>)| {
            assembly.place(place, &codec.decode(&chunks[place], &object)?)
        };
        // The others are taken out all the same, so that the reader does not wait for room.
        let mut result = Ok(());
        while let Some(chunk) = taken(&queue) {
            if result.is_ok() && !has_failed.load(Ordering::Relaxed) {
                result = one(chunk).inspect_err(|_| has_failed.store(true, Ordering::Relaxed));
            }
        }
        result
    };
    thread::scope(|scope| {
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, work);
        let started: Vec<_> = (0..workers).filter_map(|n| spawn(n).ok()).collect();
        let (mut count, mut bytes, mut done) = (0, 0, 0);
        let read = loop {
            if has_failed.load(Ordering::Relaxed) {
                break Ok(());
            }
            let (place, object) = match Frame::read(reader) {
                Ok(Frame::End) => break Ok(()),
                Ok(Frame::Chunk { place, object }) => (place as usize, object),
                Ok(other) => {
                    break Err(StoreError::Stream {
                        what: format!("{} came where a chunk was due", other.kind()),
                    });
                }
                Err(error) => break Err(error),
            };
            if !is_wanted.get_mut(place).is_some_and(std::mem::take) {
                break Err(StoreError::Stream {
                    what: format!("chunk {place} was not asked for, or came twice"),
                });
            }
            count += 1;
            bytes += object.len() as u64;
            done += chunks[place].bytes;
            if started.is_empty() {
                // No thread could be had.
                let placed =
                    codec.decode(&chunks[place], &object).and_then(|bytes| assembly.place(place, &bytes));
                if let Err(error) = placed {
                    break Err(error);
                }
            } else if give.send((place, object)).is_err() {
                break Ok(());
            }
            progress(done, all);
        };
        drop(give);
        let worked = started
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        worked.fold(Ok(()), Result::and)?;
        read.map(|()| (count, bytes))
    })
}

/// The next of a queue, or nothing when nobody gives any more.
fn taken<T>(queue: &Mutex<Queue<T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}
