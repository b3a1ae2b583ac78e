// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restoring a process.
//!
//! INVARIANT: the state is untrusted. Each object of it passes the checks of the ioctls that make such objects, so that the
//! process that comes out of it could have come about by ioctls, with other contents of its memory. Nothing is taken from
//! the device when it fails.

mod events;
mod memory;
mod queues;
mod ranges;

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;

use super::ProcessState;
use super::state::{ContextState, FileState, IdentityState, PddState};
use crate::driver::bo::Backing;
use crate::driver::drm::Context;
use crate::driver::files::Node;
use crate::driver::memfd::{self, Identity};
use crate::driver::process::{FIRST_MMAP_OFFSET, KfdProcess, ProcessOptions, State};
use crate::persist::{Memories, Part, PersistError};
use crate::sysfs::GpuModel;

/// Counters beyond this would overflow before the end of time.
const LAST_COUNT: u64 = 1 << 62;

impl KfdProcess {
    /// A process as it was saved, paused, on hardware that was made of the same memories and has nothing of it yet. The
    /// kernel is the one that the process knew, whatever the options say. Memory comes as it is: what is in it is not
    /// looked at.
    ///
    /// # Errors
    /// [`PersistError`].
    pub fn restore(
        options: ProcessOptions,
        state: &ProcessState,
        memories: &Memories,
    ) -> Result<Arc<Self>, PersistError> {
        let gpus = options.gpus.iter().map(|gpu| gpu.clone().with_kernel_svm(state.has_svm)).collect();
        let process = Self::new(ProcessOptions { kernel: state.kernel, gpus, ..options });
        let found = process.gpus.iter().map(GpuModel::gpu_id).collect::<Vec<_>>();
        if found != state.gpu_ids {
            return Err(PersistError::Gpus { saved: state.gpu_ids.clone(), found });
        }
        let restored = Restore::new(&process, state, memories).and_then(Restore::all);
        if restored.is_err() {
            process.abandon();
        }
        restored.map(|()| process)
    }

    /// Gives back what a process that was not restored whole has taken, apart from its memory, which does so itself.
    fn abandon(&self) {
        let mut state = self.state.lock();
        let State { pdds, queues, .. } = &mut *state;
        for (_, queue) in queues.iter() {
            if let Some(pdd) = pdds.get_mut(queue.gpu) {
                self.give_back_doorbell(pdd, queue.gpu, queue.doorbell);
            }
            self.slot.release(crate::driver::ledger::Resource::Queues(queue.gpu), 1);
        }
        for (gpu, pdd) in pdds.iter().enumerate() {
            pdd.vm.iter().for_each(|(va, mapping)| self.hardware.unmap(gpu, va, mapping.bytes));
        }
        self.forget_ranges(&mut state);
        *state = State::default();
    }

    /// The open files, by number.
    pub fn open_files(&self) -> Vec<crate::driver::OpenFile> {
        self.state.lock().files.all().0.into_iter().map(|(file, _)| file).collect()
    }
}

/// What is wrong with the state.
fn damaged(part: Part, number: impl Into<u64>) -> PersistError {
    PersistError::Damaged { part, number: number.into() }
}

/// The index of a GPU, if there is such a one.
fn gpu_index(process: &KfdProcess, gpu: u32) -> Option<usize> {
    usize::try_from(gpu).ok().filter(|gpu| *gpu < process.gpus.len())
}

/// A memory that was found.
struct Found {
    fd: Arc<OwnedFd>,
    identity: Identity,
    bytes: u64,
}

/// A process that is being restored.
struct Restore<'a> {
    process: &'a KfdProcess,
    saved: &'a ProcessState,
    memories: Vec<Found>,
    backings: Vec<Arc<Backing>>,
}

impl<'a> Restore<'a> {
    fn new(process: &'a KfdProcess, saved: &'a ProcessState, given: &Memories) -> Result<Self, PersistError> {
        let gpus = process.gpus.len();
        if saved.gpus.len() != gpus || saved.user_ids.len() != gpus || saved.user_ids.contains(&0) {
            return Err(damaged(Part::Gpu, gpus as u64));
        }
        let mut seen = HashSet::new();
        let mut memories = Vec::new();
        for (index, memory) in (0u64..).zip(&saved.memories) {
            let fd = given.find(&memory.name, memory.bytes)?;
            let identity = memfd::identity(fd)?;
            if !seen.insert(identity) {
                return Err(damaged(Part::Memory, index));
            }
            memory::restore_metadata(fd, &memory.metadata).map_err(|errno| match errno {
                Errno::EINVAL => damaged(Part::Memory, index),
                errno => errno.into(),
            })?;
            memories.push(Found { fd: Arc::new(memfd::duplicate(fd)?), identity, bytes: memory.bytes });
        }
        Ok(Self { process, saved, memories, backings: Vec::new() })
    }

    fn all(mut self) -> Result<(), PersistError> {
        let saved = self.saved;
        let mut guard = self.process.state.lock();
        let state = &mut *guard;
        self.counters(state)?;
        for file in &saved.files {
            self.file(state, file)?;
        }
        for (index, backing) in (0u64..).zip(&saved.backings) {
            let restored = self.backing(index, backing)?;
            self.remember(state, index, &restored)?;
            self.backings.push(restored);
        }
        for (gpu, pdd) in saved.gpus.iter().enumerate() {
            self.pdd(state, gpu, pdd)?;
        }
        for (gpu, pdd) in saved.gpus.iter().enumerate() {
            self.map_buffers(state, gpu, pdd)?;
        }
        saved.handles.iter().try_for_each(|handle| self.handle(state, handle))?;
        for (gpu, pdd) in saved.gpus.iter().enumerate() {
            self.map_parts(state, gpu, pdd)?;
        }
        saved.contexts.iter().try_for_each(|context| Self::context(state, context))?;
        saved.ranges.iter().try_for_each(|range| self.range(state, range))?;
        saved.queues.iter().try_for_each(|queue| self.queue(state, queue))?;
        saved.ranges.iter().try_for_each(|range| Self::save_area(state, range))?;
        for (gpu, pdd) in saved.gpus.iter().enumerate() {
            self.wave_sync(state, gpu, pdd)?;
        }
        self.events(state)
    }

    fn counters(&self, state: &mut State) -> Result<(), PersistError> {
        let saved = self.saved;
        for (gpu, id) in saved.user_ids.iter().enumerate() {
            self.process.set_user_id(gpu, *id);
        }
        let counts = [saved.opened, saved.last_client_memory, saved.next_mmap_offset];
        if let Some(count) = counts.into_iter().find(|count| *count > LAST_COUNT) {
            return Err(damaged(Part::Counter, count));
        }
        if saved.next_mmap_offset < FIRST_MMAP_OFFSET {
            return Err(damaged(Part::Counter, saved.next_mmap_offset));
        }
        state.files.set_opened(saved.opened);
        state.last_client_memory = saved.last_client_memory;
        state.next_mmap_offset = saved.next_mmap_offset;
        state.runtime = saved.runtime;
        (state.criu.paused, state.criu.blocked) = saved.criu;
        state.paused = true;
        Ok(())
    }

    /// A memory of the list.
    fn memory(&self, index: u32) -> Result<&Found, PersistError> {
        self.memories.get(index as usize).ok_or_else(|| damaged(Part::Memory, index))
    }

    fn backing_at(&self, index: u32) -> Result<Arc<Backing>, PersistError> {
        self.backings.get(index as usize).map(Arc::clone).ok_or_else(|| damaged(Part::Backing, index))
    }

    fn identity(&self, identity: IdentityState) -> Result<Identity, PersistError> {
        match identity {
            IdentityState::Memory(index) => self.memory(index).map(|memory| memory.identity),
            IdentityState::Client(number) => Ok(Identity::of_client(number)),
        }
    }

    fn file(&self, state: &mut State, file: &FileState) -> Result<(), PersistError> {
        let broken = || damaged(Part::File, file.id);
        let token = self.memory(file.token)?;
        let node = match file.render {
            None => Node::Kfd,
            Some(gpu) => Node::Render { gpu: gpu_index(self.process, gpu).ok_or_else(broken)? },
        };
        if token.bytes != 0 || !(1..=self.saved.opened).contains(&file.id) {
            return Err(broken());
        }
        let fresh = state.files.insert(file.id, node, memfd::duplicate(token.fd.as_fd())?)?;
        if fresh { Ok(()) } else { Err(broken()) }
    }

    /// What a GPU has but for mappings and queues.
    fn pdd(&self, state: &mut State, gpu: usize, saved: &PddState) -> Result<(), PersistError> {
        let broken = || damaged(Part::Gpu, gpu as u64);
        let render = match saved.render {
            None => None,
            Some(id) => {
                let file = state.files.get(id).filter(|file| file.node() == Node::Render { gpu });
                Some(file.ok_or_else(broken)?)
            }
        };
        let is_bare = saved.buffers.is_empty() && saved.settings == Default::default();
        if render.is_none() && !is_bare {
            return Err(broken());
        }
        let Some(pdd) = state.pdds.get_mut(gpu) else { return Err(broken()) };
        pdd.render = render;
        // One more: the process is paused.
        pdd.evicted = saved.evicted.checked_add(1).ok_or_else(broken)?;
        pdd.resets = saved.resets;
        pdd.settings = saved.settings;
        let (code, data) = saved.settings.trap_handler;
        if (code, data) != (0, 0) {
            self.process.hardware.set_trap_handler(gpu, code, data);
        }
        for buffer in &saved.buffers {
            let bo = self.buffer(gpu, buffer)?;
            if !pdd.bos.insert_at(buffer.index, bo) {
                return Err(damaged(Part::Buffer, buffer.index));
            }
        }
        Ok(())
    }

    fn context(state: &mut State, context: &ContextState) -> Result<(), PersistError> {
        let &ContextState { file, slot, made, asked } = context;
        let is_render = state.files.get(file).is_some_and(|file| matches!(file.node(), Node::Render { .. }));
        if is_render && state.contexts.insert_at(file, slot, Context { made, asked }) {
            Ok(())
        } else {
            Err(damaged(Part::Context, slot))
        }
    }
}
