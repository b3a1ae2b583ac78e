// SPDX-License-Identifier: MIT OR Apache-2.0
//! The side that is to have a checkpoint.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Queue, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::connection::Connection;
use super::frame::{CHUNK, END, Frame, INDEX, IndexFrame, NOT_KNOWN};
use super::said_of_index;
use crate::Progress;
use crate::assembly::{Assembly, Place};
use crate::error::StoreError;
use crate::index::ChunkIndex;
use crate::object::{Codec, Kind};

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
    state: State,
    received_chunks: u64,
    received_bytes: u64,
}

#[derive(Debug)]
enum State {
    /// There was no index yet.
    Empty(Place),
    Begun(Assembly),
    /// It is complete, or cannot become so.
    Ended,
}

impl Receiver {
    /// A receiver whose checkpoint will be at `directory`, which has to be empty or not to exist.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`], [`StoreError::Busy`], [`StoreError::NotPartial`], [`StoreError::Io`].
    pub fn new(directory: &Path) -> Result<Self, StoreError> {
        let state = State::Empty(Place::take(directory)?);
        Ok(Self { state, received_chunks: 0, received_bytes: 0 })
    }

    /// Takes a checkpoint from a sender. After [`StoreError::Broken`] another connection may bring the rest.
    ///
    /// # Errors
    /// [`StoreError::Stream`], [`StoreError::Broken`], [`StoreError::OtherKey`], [`StoreError::Index`],
    /// [`StoreError::Object`], [`StoreError::NoRoom`], [`StoreError::Io`]. What came stays in the
    /// directory of what is not complete.
    pub fn receive(
        &mut self,
        connection: &mut Connection,
        progress: Progress<'_>,
    ) -> Result<Received, StoreError> {
        let received = self.converse(connection, progress);
        // A connection that broke is made again by the sender, if it does not hear that all is over.
        if let Err(error) = &received
            && connection.is_answered()
            && !matches!(error, StoreError::Broken { .. })
        {
            // The sender may be gone; then there is nobody to tell.
            let _ = connection.write(&Frame::Failed(error.to_string()));
        }
        received
    }

    fn converse(
        &mut self,
        connection: &mut Connection,
        progress: Progress<'_>,
    ) -> Result<Received, StoreError> {
        loop {
            let Frame::Index(index) = next(connection.reader(), &[INDEX])? else {
                return Err(StoreError::Stream { what: "the index is missing".to_owned() });
            };
            let known = Some(index.stopped_us).filter(|us| *us != NOT_KNOWN).map(Duration::from_micros);
            let stopped = known.and_then(|ago| Instant::now().checked_sub(ago));
            if index.proof != connection.proof("index", &said_of_index(&index)) {
                return Err(StoreError::OtherKey(
                    "The sender does not prove that the index is of this connection",
                ));
            }
            let assembly = self.turn_to(connection.codec(), &index)?;
            let (file_bytes, chunks) = (assembly.index().file_bytes(), assembly.index().chunks.len() as u64);
            let came = take(connection, &assembly, progress);
            self.state = State::Begun(assembly);
            let (more_chunks, more_bytes) = came?;
            self.received_chunks += more_chunks;
            self.received_bytes += more_bytes;
            let directory = match std::mem::replace(&mut self.state, State::Ended) {
                State::Begun(assembly) if index.is_last => Some(assembly.commit()?),
                state => {
                    self.state = state;
                    None
                }
            };
            if connection.is_answered() {
                let proof = connection.proof("done", &index.name);
                connection.write(&Frame::Done { proof }).or_else(|error| match &directory {
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

    /// Goes on with an index that came.
    fn turn_to(&mut self, codec: &Codec, index: &IndexFrame) -> Result<Assembly, StoreError> {
        let text = codec.decode_named(Kind::Index(""), &index.name, index.bytes, &index.object)?;
        let parsed = ChunkIndex::parse(&text)?;
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Empty(place) => Assembly::begin_at(place, parsed),
            State::Begun(assembly) if *assembly.index() == parsed => Ok(assembly),
            State::Begun(assembly) => assembly.turn_to(parsed),
            State::Ended => {
                Err(StoreError::Stream { what: "the checkpoint is complete, or cannot become so".to_owned() })
            }
        }
    }
}

/// Takes the chunks of an index that are missing; returns how many came, and the bytes of their objects.
fn take(
    connection: &mut Connection,
    assembly: &Assembly,
    progress: Progress<'_>,
) -> Result<(u64, u64), StoreError> {
    let mut is_wanted = vec![!connection.is_answered(); assembly.index().chunks.len()];
    if connection.is_answered() {
        assembly.missing().iter().for_each(|n| is_wanted[*n] = true);
        connection.write(&Frame::Wanted(is_wanted.clone()))?;
    }
    let codec = connection.codec().clone();
    let came = take_chunks(connection.reader(), assembly, &codec, is_wanted, progress)?;
    match assembly.missing().is_empty() {
        true => Ok(came),
        false => Err(StoreError::Stream { what: "the end came before all chunks".to_owned() }),
    }
}

/// The next frame, of one of these kinds.
fn next(reader: &mut dyn Read, kinds: &[u8]) -> Result<Frame, StoreError> {
    match Frame::read(reader, kinds, 0)? {
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
            let (place, object) = match next(reader, &[CHUNK, END]) {
                Ok(Frame::Chunk { place, object }) => (place as usize, object),
                Ok(_) => break Ok(()),
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
