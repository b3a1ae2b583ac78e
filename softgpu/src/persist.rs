// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that a saved device is made of, by name; and why a device cannot be paused, saved or restored.
//!
//! A saved device is two states, [`ProcessState`](crate::driver::ProcessState) of the driver and
//! [`GpusState`](crate::client_gpus::GpusState) of the hardware, and the memory that both name. INVARIANT: a state holds
//! names and numbers only. Descriptors and inodes change from one machine, or one restore, to the next.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use thiserror::Error;

use crate::driver::ledger::Resource;
use crate::names;

/// One memfd.
#[derive(Debug)]
pub struct Memory {
    /// The name that it was made with.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// A descriptor of it.
    pub fd: OwnedFd,
}

impl Memory {
    /// The memory behind a descriptor, with a duplicate of it.
    ///
    /// # Errors
    /// `EINVAL` when it is no memfd, `EMFILE`.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let name = names::of(fd).ok_or(Errno::EINVAL)?;
        let bytes = u64::try_from(nix::sys::stat::fstat(fd)?.st_size).map_err(|_| Errno::EINVAL)?;
        Ok(Self { name, bytes, fd: kfd::linux::duplicate(fd)? })
    }

    /// Whether the descriptor can write.
    fn is_writable(&self) -> bool {
        let flags = fcntl(&self.fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        flags.is_ok_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_RDWR)
    }
}

/// Memories by name.
#[derive(Debug, Default)]
pub struct Memories(BTreeMap<String, Memory>);

impl Memories {
    /// No memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The memory with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Memory> {
        self.0.get(name)
    }

    /// Adds a memory. Of two descriptors with one name, one that can write is kept.
    pub fn insert(&mut self, memory: Memory) {
        match self.0.entry(memory.name.clone()) {
            Entry::Vacant(place) => drop(place.insert(memory)),
            Entry::Occupied(mut known) => {
                if memory.is_writable() && !known.get().is_writable() {
                    known.insert(memory);
                }
            }
        }
    }

    /// Adds the memory behind a descriptor, unless a descriptor of it is there that can write.
    ///
    /// # Errors
    /// As [`Memory::of`].
    pub(crate) fn add(&mut self, fd: BorrowedFd<'_>) -> Result<String, Errno> {
        let name = names::of(fd).ok_or(Errno::EINVAL)?;
        if !self.get(&name).is_some_and(Memory::is_writable) {
            self.insert(Memory::of(fd)?);
        }
        Ok(name)
    }

    /// A descriptor of the memory with this name, which has so many bytes and cannot shrink.
    ///
    /// # Errors
    /// [`PersistError::NoMemory`], [`PersistError::MemorySize`].
    pub(crate) fn find(&self, name: &str, bytes: u64) -> Result<BorrowedFd<'_>, PersistError> {
        let memory = self.get(name).ok_or_else(|| PersistError::NoMemory { name: name.to_owned(), bytes })?;
        let found = crate::driver::sealed_bytes(memory.fd.as_fd());
        if found != Some(bytes) {
            let found = found.unwrap_or_default();
            return Err(PersistError::MemorySize { name: name.to_owned(), bytes, found });
        }
        Ok(memory.fd.as_fd())
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Memory> {
        self.0.values()
    }

    /// All of them, by name.
    #[must_use]
    pub fn into_vec(self) -> Vec<Memory> {
        self.0.into_values().collect()
    }
}

impl FromIterator<Memory> for Memories {
    fn from_iter<I: IntoIterator<Item = Memory>>(all: I) -> Self {
        let mut memories = Self::new();
        memories.extend(all);
        memories
    }
}

impl Extend<Memory> for Memories {
    fn extend<I: IntoIterator<Item = Memory>>(&mut self, all: I) {
        all.into_iter().for_each(|memory| self.insert(memory));
    }
}

/// Why a process could not be paused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PauseError {
    /// It is paused.
    #[error("The process is paused already")]
    Paused,
    /// The client reads a stream of events: a socket, which no checkpoint holds.
    #[error("The client reads events of GPU {gpu_id} (SMI_EVENTS), a stream that cannot be saved")]
    EventStream {
        /// The GPU, as the process knows it.
        gpu_id: u32,
    },
    /// A queue did not leave the hardware: the GPU hangs and is reset.
    #[error("A queue did not leave the hardware")]
    Hang(#[source] Errno),
    /// It took too long.
    #[error("The deadline passed while {phase}")]
    Deadline {
        /// What was being done.
        phase: PausePhase,
    },
}

/// What a pause does, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausePhase {
    /// Waits for a call in progress.
    Call,
    /// Takes the queues off the hardware.
    Queues,
    /// Waits for work of interrupts.
    Interrupts,
    /// Ends the waits for events.
    Waits,
}

impl std::fmt::Display for PausePhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Call => "a call of the client was in progress",
            Self::Queues => "queues were taken off the hardware",
            Self::Interrupts => "work of interrupts was in progress",
            Self::Waits => "waits for events were ended",
        })
    }
}

/// Objects of a state, by which [`PersistError::Damaged`] names what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// A memory, by its index.
    Memory,
    /// A backing, by its index.
    Backing,
    /// An open file, by its number.
    File,
    /// A GPU, by its index.
    Gpu,
    /// A buffer object, by its index.
    Buffer,
    /// A mapping, by its address.
    Mapping,
    /// A handle of a render node.
    Handle,
    /// A context of a render node.
    Context,
    /// A range of shared virtual memory, by its address.
    Range,
    /// A queue, by its id.
    Queue,
    /// An event, by its id.
    Event,
    /// The event page.
    EventPage,
    /// A counter of the process.
    Counter,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Backing => "backing",
            Self::File => "file",
            Self::Gpu => "GPU",
            Self::Buffer => "buffer",
            Self::Mapping => "mapping",
            Self::Handle => "handle",
            Self::Context => "context",
            Self::Range => "range",
            Self::Queue => "queue",
            Self::Event => "event",
            Self::EventPage => "event page",
            Self::Counter => "counter",
        })
    }
}

/// Why a process or its GPUs could not be saved or restored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PersistError {
    /// The process is not paused.
    #[error("The process is not paused")]
    NotPaused,
    /// The state is of other GPUs than the machine has.
    #[error("The state is of GPUs with ids {saved:?}, this machine's are {found:?}")]
    Gpus {
        /// Ids of the saved GPUs.
        saved: Vec<u32>,
        /// Ids of the machine's.
        found: Vec<u32>,
    },
    /// A GPU is of another chip.
    #[error("GPU {gpu} was a {saved} of {saved_xccs} XCCs, it is a {found} of {found_xccs}")]
    Chip {
        /// Its number.
        gpu: usize,
        /// The saved one.
        saved: String,
        /// The machine's.
        found: &'static str,
        /// XCCs of the saved one.
        saved_xccs: u32,
        /// XCCs of the machine's.
        found_xccs: u32,
    },
    /// A memory that the state names was not given.
    #[error("The memory {name:?} of {bytes} bytes was not given")]
    NoMemory {
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// A memory has another size, or can shrink (0 was found then).
    #[error("The memory {name:?} was {bytes} bytes, sealed; {found} were found")]
    MemorySize {
        /// Its name.
        name: String,
        /// Its size when it was saved.
        bytes: u64,
        /// Its size now.
        found: u64,
    },
    /// The device has not enough left.
    #[error("The device has no {amount} left of {resource:?}")]
    Exhausted {
        /// Of what.
        resource: Resource,
        /// How much is needed.
        amount: u64,
    },
    /// Another process has the queue of a copy engine.
    #[error("Copy engine queue {id} of GPU {gpu} is taken")]
    CopyQueueTaken {
        /// The GPU.
        gpu: usize,
        /// The number of the queue on the GPU.
        id: u32,
    },
    /// The hardware took a mapping not.
    #[error("GPU {gpu} does not map {bytes} bytes at {va:#x}")]
    Map {
        /// The GPU.
        gpu: usize,
        /// The address.
        va: u64,
        /// How many bytes.
        bytes: u64,
        /// Why.
        #[source]
        source: Errno,
    },
    /// The state says what no process can have reached.
    #[error("The saved {part} {number:#x} is none that a process can have")]
    Damaged {
        /// What kind of object.
        part: Part,
        /// Which one.
        number: u64,
    },
    /// A system call failed.
    #[error("A descriptor or a mapping cannot be had")]
    System(#[from] Errno),
}
