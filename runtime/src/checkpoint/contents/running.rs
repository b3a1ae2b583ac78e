// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers of a process that runs, as images are made of them: copied out a chunk at a time.
//!
//! INVARIANT: a buffer that is freed under the copy harms nobody. What the process sees is copied by the kernel, which finds memory or
//! not; an agent's engine copies while the registry is locked, of objects that are there and mapped to it. What kernels and threads
//! write meanwhile is torn, and what has gone is zeros.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kfd::Errno;
use kfd::linux::pwrite;
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::SealFlag;
use parking_lot::Mutex;
use queues::words::size;
use stasis_protocol::Limit;
use stasis_protocol::gate::Pass;

use super::engine::AgentEngine;
use super::views::{View, Views};
use super::{Contents, Way, choose, saved_buffers};
use crate::checkpoint::calls::call_limit;
use crate::checkpoint::error::{CheckpointError, device, system};
use crate::context::Context;
use crate::context::device::Device;
use crate::context::queue::transfer::FreeBuffers;
use crate::context::registry::state::{AgentIndex, BoKey, BoKind, BoState};
use crate::context::registry::{Bo, Registry};
use crate::image::{
    AgentRange, CHUNK_BYTES, ContentEngine, EngineBuffer, EngineError, Extent, HostRange, KnownChunk, Piece,
};

/// A buffer object that is copied.
#[derive(Clone, Copy, Debug)]
struct Object {
    va: u64,
    bytes: u64,
    key: BoKey,
}

/// Objects that one agent's engine copies, or the process itself.
#[derive(Debug)]
struct Source<'c> {
    context: &'c Context,
    /// The addresses of objects of which zeros were given for bytes that were not to be had.
    missed: Mutex<BTreeSet<u64>>,
    /// By address.
    objects: Vec<Object>,
    by: By<'c>,
}

#[derive(Debug)]
enum By<'c> {
    /// A buffer for each worker that may work at a time, the numbers of those that are free, and views of the objects.
    Process { buffers: Vec<Staging>, free: FreeBuffers, views: Views<'c>, limit: Limit },
    /// And whether it has failed: the first one who finds that has waited for all.
    Engine(Box<AgentEngine>, AtomicBool),
}

/// A buffer that the kernel copies to: a file in memory, and its mapping.
#[derive(Debug)]
struct Staging {
    file: OwnedFd,
    memory: MmapRaw,
}

impl Staging {
    fn new() -> std::io::Result<Self> {
        let file = kfd::linux::memfd("stasis-pre-copy", CHUNK_BYTES, SealFlag::empty())?;
        let memory = MmapOptions::new().len(size(CHUNK_BYTES)).map_raw(&file)?;
        Ok(Self { file, memory })
    }

    /// Copies `bytes` bytes from the address `from` to `at`; how many there were.
    fn copy(&self, from: u64, at: u64, bytes: u64) -> Result<u64, Errno> {
        let mut done = 0;
        while done < bytes {
            match pwrite(self.file.as_fd(), size(from + done), size(bytes - done), at + done) {
                Ok(0) | Err(Errno::EFAULT) => break,
                Ok(copied) => done += copied as u64,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }
}

/// All that is copied of a running process, and who copies it.
#[derive(Debug)]
pub(in crate::checkpoint) struct Running<'c> {
    context: &'c Context,
    sources: Vec<Source<'c>>,
    /// Bytes of objects that nobody can copy fast while the process runs.
    pub left_bytes: u64,
}

impl<'c> Running<'c> {
    /// Finds what there is now, and makes the engines that it takes; they end with `limit`.
    ///
    /// # Errors
    /// [`CheckpointError::Device`], [`CheckpointError::System`]; no engine is left then.
    pub fn new(
        context: &'c Context,
        pass: &Pass<'_>,
        on: &'c Device,
        limit: &Limit,
    ) -> Result<Self, CheckpointError> {
        let mut running = Running { context, sources: Vec::new(), left_bytes: 0 };
        let found = call_limit(limit).hold(|| running.find(on, limit));
        if let Err(error) = found {
            if let Err(error) = running.end(on) {
                tracing::warn!(target: "checkpoint", %error, "a copy engine's queue stays in the driver");
            }
            return Err(error);
        }
        context.host_writes.flush(pass);
        Ok(running)
    }

    fn find(&mut self, on: &'c Device, limit: &Limit) -> Result<(), CheckpointError> {
        // The process has the other half of the machine to itself.
        let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
        let mut registry = self.context.registry.lock();
        let mut own = Vec::new();
        let mut of_agents: BTreeMap<AgentIndex, Contents> = BTreeMap::new();
        for (key, bytes) in saved_buffers(&registry) {
            let Some(bo) = registry.bos.get(key) else { continue };
            match bo.state.kind {
                BoKind::Vram => of_agents.entry(bo.state.agent).or_default().push((key, bytes)),
                _ if bo.state.cpu_mapped => own.push(key),
                _ => self.left_bytes += bytes,
            }
        }
        for info in &self.context.agents {
            let Some(contents) = of_agents.remove(&info.index()) else { continue };
            let all: u64 = contents.iter().map(|(_, bytes)| bytes).sum();
            // A lost agent's memory, which nothing changes any more, is saved when the process stops.
            let buffers = self.context.lost_agents.lost(info.index()).is_none().then_some(workers);
            match choose(self.context, &mut registry, on, info, &contents, buffers, limit) {
                Ok(Way::Host) => own.extend(contents.iter().map(|(key, _)| *key)),
                Ok(Way::Engine(engine)) => {
                    // What is not mapped to the agent would have to be, which is the program's to say.
                    let is_mapped = |state: &BoState| state.mapped.contains(&info.index());
                    let objects = objects(&registry, contents.iter().map(|(key, _)| *key), is_mapped);
                    let taken: u64 = objects.iter().map(|object| object.bytes).sum();
                    self.left_bytes += all - taken;
                    let by = By::Engine(engine, AtomicBool::new(false));
                    self.sources.push(Source::new(self.context, objects, by));
                }
                // Too slow beside the process.
                Ok(Way::Aperture { .. }) | Err(CheckpointError::Hidden { .. }) => self.left_bytes += all,
                Err(error) => return Err(error),
            }
        }
        let objects = objects(&registry, own.into_iter(), |_| true);
        drop(registry);
        let buffers: Result<Vec<_>, std::io::Error> = (0..workers).map(|_| Staging::new()).collect();
        let buffers = buffers.map_err(system("find memory for copies"))?;
        let (free, views) = (FreeBuffers::new(workers), Views::new(on));
        let by = By::Process { buffers, free, views, limit: limit.clone() };
        self.sources.push(Source::new(self.context, objects, by));
        Ok(())
    }

    /// Where the contents are, for the image.
    pub fn extents(&self) -> Vec<Extent<'_>> {
        self.sources.iter().flat_map(Source::extents).collect()
    }

    /// The objects and their bytes, in the order of the extents.
    pub fn objects(&self) -> impl Iterator<Item = (BoKey, u64)> {
        let objects = self.sources.iter().flat_map(|source| &source.objects);
        objects.map(|object| (object.key, object.bytes))
    }

    /// What is known of the objects when the chunks of their extents were these when they were read: nothing of an object that was not there
    /// as a whole.
    pub fn known(&self, chunks: Vec<Vec<KnownChunk>>) -> Vec<Vec<KnownChunk>> {
        let all =
            self.sources.iter().flat_map(|source| source.objects.iter().map(move |object| (source, object)));
        let is_whole = |source: &Source<'_>, object: &Object| !source.missed.lock().contains(&object.va);
        let known = all.zip(chunks).map(|((source, object), chunks)| match is_whole(source, object) {
            true => chunks,
            false => Vec::new(),
        });
        known.collect()
    }

    /// From now on large objects are read through mappings of their own, or where the program has them. What is read there is in the
    /// program's page tables, which it waits for when it closes its device; and while stores are looked for, each page costs a fault.
    pub fn use_views(&self, used: bool) {
        for source in &self.sources {
            if let By::Process { views, .. } = &source.by {
                views.use_them(used);
            }
        }
    }

    /// Whether engines copy, for which the registry is locked.
    pub fn has_engines(&self) -> bool {
        self.sources.iter().any(|source| matches!(source.by, By::Engine(..)))
    }

    /// Takes the engines out of the driver.
    ///
    /// # Errors
    /// [`CheckpointError::Device`]; something of them stays there.
    pub fn end(self, on: &Device) -> Result<(), CheckpointError> {
        let mut first = Ok(());
        for source in self.sources {
            if let By::Engine(engine, _) = source.by {
                let ended = engine.end(&mut self.context.registry.lock(), on);
                first = first.and(ended.map_err(device("to end a copy engine")));
            }
        }
        first
    }
}

/// The objects of these keys that are as `is_taken` wants them, by address.
fn objects(
    registry: &Registry,
    keys: impl Iterator<Item = BoKey>,
    is_taken: impl Fn(&BoState) -> bool,
) -> Vec<Object> {
    let object = |key| {
        let state = &registry.bos.get(key)?.state;
        is_taken(state).then_some(Object { va: state.va, bytes: state.bytes, key })
    };
    let mut objects: Vec<Object> = keys.filter_map(object).collect();
    objects.sort_unstable_by_key(|object| object.va);
    objects
}

impl<'c> Source<'c> {
    fn new(context: &'c Context, objects: Vec<Object>, by: By<'c>) -> Self {
        Self { context, missed: Mutex::default(), objects, by }
    }
}

impl Source<'_> {
    fn extents(&self) -> impl Iterator<Item = Extent<'_>> {
        let range = |object: &Object| AgentRange { engine: self, va: object.va, bytes: object.bytes };
        self.objects.iter().map(move |object| Extent::Agent(range(object)))
    }

    /// Where the process can read a piece, if the object is there, and the view that this is in, if it is one.
    fn visible(&self, views: &Views<'_>, piece: &Piece) -> (Option<u64>, Option<Arc<View>>) {
        let registry = self.context.registry.lock();
        let Some(bo) = self.there(&registry, piece) else { return (None, None) };
        let offset = piece.va - bo.state.va;
        match views.of(self.owner(piece).key, bo) {
            Some(view) => (Some(view.address() + offset), Some(view)),
            None => (Some(bo.cpu_va() + offset), None),
        }
    }

    /// The object that a piece is a part of.
    fn owner(&self, piece: &Piece) -> &Object {
        let after = self.objects.partition_point(|object| object.va <= piece.va);
        &self.objects
            [after.checked_sub(1).expect("INVARIANT: pieces are of the extents, which are these objects'")]
    }

    /// Says that some of a piece was not to be had.
    fn miss(&self, piece: &Piece) {
        self.missed.lock().insert(self.owner(piece).va);
    }

    /// The object that a piece is a part of, if it is still there and can be read.
    fn there<'r>(&self, registry: &'r Registry, piece: &Piece) -> Option<&'r Bo> {
        let object = self.owner(piece);
        let bo = registry.bos.get(object.key)?;
        let is_same = bo.kernel.is_some() && (bo.state.va, bo.state.bytes) == (object.va, object.bytes);
        // An engine would fault, and the program's queues with it.
        let is_reached = match &self.by {
            By::Engine(..) => bo.state.mapped.contains(&bo.state.agent),
            By::Process { .. } => true,
        };
        let end = (piece.va - object.va).checked_add(piece.bytes);
        let is_within = end.is_some_and(|end| end <= object.bytes);
        (is_same && is_reached && is_within).then_some(bo)
    }
}

impl ContentEngine for Source<'_> {
    fn take(&self) -> Result<EngineBuffer<'_>, EngineError> {
        match &self.by {
            By::Engine(engine, _) => engine.take(),
            By::Process { buffers, free, limit, .. } => {
                let number = free.take(limit)?;
                let start = NonNull::new(buffers[number].memory.as_mut_ptr()).unwrap_or(NonNull::dangling());
                // SAFETY: the buffer's own mapping, which lives as long as this; one worker at a time has the number.
                let range = unsafe { HostRange::new(start, CHUNK_BYTES) };
                Ok(EngineBuffer::new(self, number, range))
            }
        }
    }

    fn put(&self, number: usize) {
        if let By::Process { free, .. } = &self.by {
            free.put(number);
        }
    }

    fn fetch(&self, buffer: &EngineBuffer<'_>, pieces: &[Piece]) -> Result<(), EngineError> {
        match &self.by {
            By::Engine(engine, has_failed) => {
                let registry = self.context.registry.lock();
                if has_failed.load(Ordering::Relaxed) {
                    return Err(EngineError::Failed("another transfer has failed".into()));
                }
                let (there, gone): (Vec<Piece>, Vec<Piece>) =
                    pieces.iter().partition(|piece| self.there(&registry, piece).is_some());
                gone.iter().for_each(|piece| {
                    self.miss(piece);
                    buffer.range().zero(piece.at, piece.bytes);
                });
                if there.is_empty() {
                    return Ok(());
                }
                let fetched = engine.fetch(buffer, &there);
                has_failed.fetch_or(fetched.is_err(), Ordering::Relaxed);
                fetched
            }
            By::Process { buffers, views, .. } => {
                for piece in pieces {
                    let (place, _view) = self.visible(views, piece);
                    let copy = |from| buffers[buffer.number()].copy(from, piece.at, piece.bytes);
                    let copied = place
                        .map_or(Ok(0), copy)
                        .map_err(|errno| EngineError::Failed(Box::new(std::io::Error::from(errno))))?;
                    if copied < piece.bytes {
                        self.miss(piece);
                        buffer.range().zero(piece.at + copied, piece.bytes - copied);
                    }
                }
                Ok(())
            }
        }
    }

    /// Nothing is filled while a process runs.
    fn store(&self, _: &EngineBuffer<'_>, _: &[Piece]) -> Result<(), EngineError> {
        Ok(())
    }
}
