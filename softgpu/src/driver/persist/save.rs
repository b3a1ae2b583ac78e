// SPDX-License-Identifier: MIT OR Apache-2.0
//! Saving a process.
//!
//! INVARIANT: the order of what is saved follows from numbers that a restored process has, too, so that it is saved as the
//! same state.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use queues::words::count;

use super::ProcessState;
use super::state::*;
use crate::driver::bo::{Backing, Bo};
use crate::driver::drm::Metadata;
use crate::driver::event_state::{Event, EventPage};
use crate::driver::files::Node;
use crate::driver::memfd::{self, Identity};
use crate::driver::process::{KfdProcess, Pdd, State};
use crate::driver::queue_table::{Doorbell, Queue};
use crate::driver::svm::{SvmMemory, SvmRange};
use crate::persist::{Memories, Memory, PersistError};
use crate::sysfs::GpuModel;

impl KfdProcess {
    /// Everything of a paused process, and the memory that it names: one descriptor of each, that can write if any of the
    /// process can.
    ///
    /// # Errors
    /// [`PersistError::NotPaused`], [`PersistError::System`].
    pub fn save(&self) -> Result<(ProcessState, Vec<Memory>), PersistError> {
        let state = self.state.lock();
        if !state.paused {
            return Err(PersistError::NotPaused);
        }
        let mut found = Found::default();
        let files = found.files(&state)?;
        let gpus =
            (0..).zip(&state.pdds).map(|(gpu, pdd)| found.pdd(gpu, pdd)).collect::<Result<_, Errno>>()?;
        let handles = found.handles(&state)?;
        let ranges =
            state.svm.iter().map(|(start, range)| found.range(start, range)).collect::<Result<_, _>>()?;
        let queues =
            state.queues.iter().map(|(id, queue)| found.queue(id, queue)).collect::<Result<_, _>>()?;
        let events = self.events.lock();
        let event_page =
            events.page.as_ref().map(|page| found.event_page(page, &state)).transpose()?.flatten();
        let saved = ProcessState {
            kernel: self.kernel,
            has_svm: self.gpus.iter().any(GpuModel::has_svm),
            gpu_ids: self.gpus.iter().map(GpuModel::gpu_id).collect(),
            user_ids: (0..self.gpus.len()).map(|gpu| self.user_id(gpu)).collect(),
            memories: found.states,
            backings: found.backings,
            files,
            opened: state.files.all().1,
            gpus,
            handles,
            contexts: contexts(&state),
            ranges,
            queues,
            event_page,
            events: events.iter().map(|(id, event)| event_state(id, event)).collect(),
            runtime: state.runtime,
            criu: (state.criu.paused, state.criu.blocked),
            next_mmap_offset: state.next_mmap_offset,
            last_client_memory: state.last_client_memory,
        };
        Ok((saved, found.memories.into_vec()))
    }
}

/// The memories and backings that were found so far.
#[derive(Default)]
struct Found {
    memories: Memories,
    states: Vec<MemoryState>,
    /// Where each memory is in the list.
    places: HashMap<Identity, u32>,
    backings: Vec<BackingState>,
    /// Where each backing is in the list, by its address.
    backing_places: HashMap<usize, u32>,
}

impl Found {
    fn memory(&mut self, fd: BorrowedFd<'_>) -> Result<u32, Errno> {
        let identity = memfd::identity(fd)?;
        if let Some(&place) = self.places.get(&identity) {
            // This descriptor may write where the other one cannot.
            self.memories.add(fd)?;
            return Ok(place);
        }
        let name = self.memories.add(fd)?;
        let bytes = self.memories.get(&name).map_or(0, |memory| memory.bytes);
        let place = count(self.states.len());
        self.states.push(MemoryState { name, bytes, metadata: Metadata::bytes_of(fd)? });
        self.places.insert(identity, place);
        Ok(place)
    }

    fn identity(&self, identity: Identity) -> Result<IdentityState, Errno> {
        match (self.places.get(&identity), identity.client_number()) {
            (Some(&place), _) => Ok(IdentityState::Memory(place)),
            (None, Some(number)) => Ok(IdentityState::Client(number)),
            // A queue holds only what is mapped.
            (None, None) => Err(Errno::ENOENT),
        }
    }

    fn backing(&mut self, backing: &Arc<Backing>) -> Result<u32, Errno> {
        let address = Arc::as_ptr(backing).addr();
        if let Some(&place) = self.backing_places.get(&address) {
            return Ok(place);
        }
        let mut runs = Vec::with_capacity(backing.runs.len());
        for run in &backing.runs {
            let memory = self.memory(run.fd.as_fd())?;
            runs.push(RunState { memory, offset: run.offset, bytes: run.bytes });
        }
        let state = BackingState {
            runs,
            bytes: backing.bytes,
            domain: backing.domain,
            gpu: count(backing.gpu),
            identity: self.identity(backing.identity)?,
            charged: backing.is_charged(),
            read_only: memfd::is_read_only(backing.fd.as_fd()),
        };
        let place = count(self.backings.len());
        self.backings.push(state);
        self.backing_places.insert(address, place);
        Ok(place)
    }

    fn files(&mut self, state: &State) -> Result<Vec<FileState>, Errno> {
        let (files, _) = state.files.all();
        let save = |(file, token): (crate::driver::OpenFile, &std::os::fd::OwnedFd)| {
            let render = match file.node() {
                Node::Kfd => None,
                Node::Render { gpu } => Some(count(gpu)),
            };
            Ok(FileState { id: file.id(), render, token: self.memory(token.as_fd())? })
        };
        files.into_iter().map(save).collect()
    }

    fn pdd(&mut self, gpu: u32, pdd: &Pdd) -> Result<PddState, Errno> {
        let mut buffers = Vec::with_capacity(pdd.bos.len());
        for (index, bo) in pdd.bos.iter() {
            let backing = self.backing(&bo.backing)?;
            let &Bo { va, flags, mmap_offset, mapped, lost, .. } = bo;
            buffers.push(BufferState { index, backing, va, flags, mmap_offset, mapped, lost });
        }
        let mut mappings = Vec::new();
        for (va, mapping) in pdd.vm.iter() {
            let Some(handle) = mapping.gem else { continue };
            let backing = self.backing(&mapping.backing)?;
            let (bytes, offset, access) = (mapping.bytes, mapping.offset, mapping.access);
            mappings.push(MappingState { va, bytes, backing, offset, handle, access });
        }
        if pdd.evicted == 0 {
            tracing::error!(target: "driver", gpu, "paused without a reason for eviction");
        }
        Ok(PddState {
            render: pdd.render.map(|file| file.id()),
            buffers,
            mappings,
            evicted: pdd.evicted.saturating_sub(1),
            resets: pdd.resets,
            gws_queue: pdd.gws_queue,
            settings: pdd.settings,
        })
    }

    fn handles(&mut self, state: &State) -> Result<Vec<HandleState>, Errno> {
        let mut handles = Vec::new();
        for (&file, table) in &state.gems {
            for (slot, gem) in table.slots.iter() {
                let backing = self.backing(&gem.backing)?;
                let (mmap_offset, read_only) = (gem.mmap_offset, gem.read_only);
                handles.push(HandleState { file, slot, backing, mmap_offset, read_only });
            }
        }
        Ok(handles)
    }

    fn range(&mut self, start: u64, range: &SvmRange) -> Result<RangeState, Errno> {
        let mut save = |memory: &SvmMemory| -> Result<RangeMemoryState, Errno> {
            let &SvmMemory { ref fd, offset, writable } = memory;
            Ok(RangeMemoryState { memory: self.memory(fd.as_fd())?, offset, writable })
        };
        Ok(RangeState {
            start,
            bytes: range.end - start,
            attributes: range.attributes,
            memory: range.memory.as_ref().map(&mut save).transpose()?,
            mapped: range.mapped,
            queues: range.queues,
        })
    }

    fn queue(&self, id: u32, queue: &Queue) -> Result<QueueState, Errno> {
        let identity = |memory: &Identity| self.identity(*memory);
        Ok(QueueState {
            id,
            gpu: count(queue.gpu),
            properties: queue.properties,
            doorbell: match queue.doorbell {
                Doorbell::Compute { id } => DoorbellState::Compute { id },
                Doorbell::Sdma { id, .. } => DoorbellState::Sdma { id },
            },
            ring: queue.buffers.ring.as_ref().map(identity).transpose()?,
            others: queue.buffers.others.iter().map(identity).collect::<Result<_, _>>()?,
            in_svm: queue.buffers.svm.is_some(),
            reset: queue.reset,
            mqd: queue.mqd.parts().map(|part| part.to_vec()).collect(),
        })
    }

    fn event_page(&mut self, page: &EventPage, state: &State) -> Result<Option<EventPageState>, Errno> {
        if let Some(own) = &page.own {
            let memory = self.memory(own.as_fd())?;
            return Ok(Some(EventPageState::Driver { memory, usable: page.usable }));
        }
        Ok(state.event_page.map(|handle| EventPageState::Client { handle }))
    }
}

fn contexts(state: &State) -> Vec<ContextState> {
    let save = |(file, slot, context): (u64, u32, &crate::driver::drm::Context)| ContextState {
        file,
        slot,
        made: context.made,
        asked: context.asked,
    };
    state.contexts.iter().map(save).collect()
}

fn event_state(id: u32, event: &Event) -> EventState {
    let (memory, hardware) = (&event.memory_exception, &event.hw_exception);
    let failure = &memory.failure;
    EventState {
        id,
        event_type: event.event_type,
        auto_reset: event.auto_reset,
        signaled: event.signaled,
        age: event.age,
        memory: (
            [failure.NotPresent, failure.ReadOnly, failure.NoExecute, failure.imprecise],
            memory.va,
            memory.gpu_id,
            memory.ErrorType,
        ),
        hardware: [hardware.reset_type, hardware.reset_cause, hardware.memory_lost, hardware.gpu_id],
    }
}
