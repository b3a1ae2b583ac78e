// SPDX-License-Identifier: MIT OR Apache-2.0
//! All state of one client process, and the lookups that every ioctl starts with.
//!
//! INVARIANT: the process sees every GPU of the machine from its first ioctl to its end (`kfd_process_device`). A GPU
//! takes memory and queues only after a render node's address space was acquired for it.

use queues::words::words;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::bo::{Backing, Bo};
use super::buffers::Buffers;
use super::criu::CriuState;
use super::doorbells::DoorbellMap;
use super::drm::{Contexts, GemTable};
use super::event_lock::Events;
use super::files::{Files, OpenFile};
use super::interrupts::Deferred;
use super::kernel::KernelModel;
use super::ledger::LedgerSlot;
use super::memfd::Identity;
use super::queue_table::QueueTable;
use super::smi::Streams;
use super::svm::SvmRanges;
use super::vm::Vm;
use crate::hardware::Hardware;
use crate::sysfs::GpuModel;

/// What a [`KfdProcess`] is made of.
pub struct ProcessOptions {
    /// The machine's GPUs.
    pub gpus: Arc<[GpuModel]>,
    /// The GPUs' hardware, as this process uses it.
    pub hardware: Arc<dyn Hardware>,
    /// This executor's share of the device.
    pub slot: LedgerSlot,
    /// The kernel to imitate where kernels differ.
    pub kernel: KernelModel,
    /// The process's number in its own PID namespace.
    pub pid: u32,
}

impl fmt::Debug for ProcessOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessOptions")
            .field("gpus", &self.gpus)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

/// The driver's state for one client process (`struct kfd_process`).
pub struct KfdProcess {
    pub(super) gpus: Arc<[GpuModel]>,
    pub(super) hardware: Arc<dyn Hardware>,
    pub(super) slot: LedgerSlot,
    pub(super) kernel: KernelModel,
    pub(super) pid: u32,
    /// The ids by which the process knows the GPUs: those of the hardware, unless RESTORE changed them.
    user_ids: Box<[AtomicU32]>,
    pub(super) state: Mutex<State>,
    pub(super) events: Events,
    pub(super) streams: Streams,
    /// How far the client's clocks are ahead of this process's, nanoseconds.
    pub(super) clock_offset: AtomicI64,
    pub(super) deferred: Deferred,
    /// A reference to this object, for threads that do deferred work of interrupts.
    pub(super) this: Weak<Self>,
}

impl fmt::Debug for KfdProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KfdProcess")
            .field("gpus", &self.gpus.len())
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

/// Everything that ioctls change, except events.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) files: Files,
    pub(super) pdds: Vec<Pdd>,
    /// Handles of the render nodes, by the number of the open file. Those of an acquired file live as long as the process, since
    /// KFD holds it.
    pub(super) gems: BTreeMap<u64, GemTable>,
    pub(super) contexts: Contexts,
    pub(super) queues: QueueTable,
    pub(super) svm: SvmRanges,
    /// Memory by identity, to recognise this process's own DMABufs.
    pub(super) backings: HashMap<Identity, Weak<Backing>>,
    /// How many memories were alive when they were last counted.
    live_backings: usize,
    /// Handle of the event page; it can never be freed.
    pub(super) event_page: Option<u64>,
    pub(super) runtime: Runtime,
    pub(super) criu: CriuState,
    /// Whether [`KfdProcess::pause`] took the queues off the hardware.
    pub(super) paused: bool,
    /// Next offset on the render nodes, in bytes.
    pub(super) next_mmap_offset: u64,
    /// The number that the last memory of the client's got.
    pub(super) last_client_memory: u64,
}

/// One GPU in this process (`struct kfd_process_device`).
#[derive(Debug, Default)]
pub(super) struct Pdd {
    /// The render file whose address space was acquired.
    pub(super) render: Option<OpenFile>,
    pub(super) bos: Buffers,
    pub(super) vm: Vm,
    pub(super) doorbells: DoorbellMap,
    pub(super) queue_count: u32,
    /// Reasons to keep the queues of this GPU off the hardware (`qpd->evicted`).
    pub(super) evicted: u32,
    /// How often the GPU was reset.
    pub(super) resets: u32,
    /// The queue that holds the GPU's global wave sync.
    pub(super) gws_queue: Option<u32>,
    pub(super) settings: GpuSettings,
}

/// What a client set for one GPU. It is kept for inspection only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSettings {
    /// `SET_MEMORY_POLICY`.
    pub memory_policy: MemoryPolicy,
    /// `SET_TRAP_HANDLER`: address of the second-level handler's code and of its data.
    pub trap_handler: (u64, u64),
    /// `SET_SCRATCH_BACKING_VA`.
    pub scratch_va: u64,
}

/// `SET_MEMORY_POLICY`'s arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// `KFD_IOC_CACHE_POLICY_*` outside the alternate aperture.
    pub default: u32,
    /// `KFD_IOC_CACHE_POLICY_*` in the alternate aperture.
    pub alternate: u32,
    /// First address of the alternate aperture.
    pub alternate_base: u64,
    /// Its bytes.
    pub alternate_bytes: u64,
}

/// `RUNTIME_ENABLE`'s state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    /// Whether the runtime takes exceptions through the save area's header.
    pub enabled: bool,
    /// Address of the debugger's rendezvous struct.
    pub r_debug: u64,
    /// Whether TTMP registers are set up at wave launch.
    pub ttmp_setup: bool,
}

/// What a process has of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Buffer objects.
    pub buffers: usize,
    /// Events.
    pub events: usize,
    /// Queues.
    pub queues: usize,
    /// Handles of buffers on render files.
    pub handles: usize,
    /// Mappings made with them (GEM_VA).
    pub mappings: usize,
}

/// First offset DRM gives to a buffer (`DRM_FILE_PAGE_OFFSET_START`), bytes.
pub(super) const FIRST_MMAP_OFFSET: u64 = 0x10_0000 * super::PAGE;

impl KfdProcess {
    /// The state of a process that has just opened `/dev/kfd` for the first time.
    pub fn new(options: ProcessOptions) -> Arc<Self> {
        let ProcessOptions { gpus, hardware, slot, kernel, pid } = options;
        let user_ids = gpus.iter().map(|gpu| AtomicU32::new(gpu.gpu_id())).collect();
        let pdds = gpus.iter().map(|_| Pdd::default()).collect();
        let state = State { pdds, next_mmap_offset: FIRST_MMAP_OFFSET, ..State::default() };
        Arc::new_cyclic(|this| Self {
            gpus,
            hardware,
            slot,
            kernel,
            pid,
            user_ids,
            state: Mutex::new(state),
            events: Events::default(),
            streams: Streams::default(),
            clock_offset: AtomicI64::new(0),
            deferred: Deferred::default(),
            this: Weak::clone(this),
        })
    }

    /// Opens `/dev/kfd` or a render node. The descriptor is the file's token, for the client to keep.
    ///
    /// # Errors
    /// `ENOENT` for another path, `EMFILE`.
    pub fn open(&self, path: &str) -> Result<(OpenFile, OwnedFd), Errno> {
        self.state.lock().files.open(path, &self.gpus)
    }

    /// Forgets the files that the process has closed, with what was theirs, and says which; those that the driver has acquired stay.
    pub fn forget_closed(&self) -> Vec<OpenFile> {
        let mut state = self.state.lock();
        let State { files, pdds, gems, contexts, .. } = &mut *state;
        let closed = files.forget_closed(|file| pdds.iter().any(|pdd| pdd.render == Some(*file)));
        for file in &closed {
            gems.remove(&file.id());
            contexts.forget(file.id());
        }
        closed
    }

    /// The open file that a token names, if it is one of `path`.
    ///
    /// # Errors
    /// `EBADF` when the descriptor is no token of this process, `EINVAL` when it is one of another path.
    pub fn adopt(&self, path: &str, token: BorrowedFd<'_>) -> Result<OpenFile, Errno> {
        let file = self.state.lock().files.find(token).ok_or(Errno::EBADF)?;
        match super::files::parse(path, &self.gpus) {
            Some(node) if node == file.node() => Ok(file),
            _ => Err(Errno::EINVAL),
        }
    }

    /// A handle that can end waiting ioctls when the client is gone.
    pub fn canceller(&self) -> Canceller {
        Canceller(Weak::clone(&self.this))
    }

    /// What the client set for a GPU.
    pub fn gpu_settings(&self, gpu: usize) -> Option<GpuSettings> {
        self.state.lock().pdds.get(gpu).map(|pdd| pdd.settings)
    }

    /// How many objects of each kind the process has.
    pub fn object_counts(&self) -> ObjectCounts {
        let state = self.state.lock();
        let events = self.events.lock().len();
        ObjectCounts {
            buffers: state.pdds.iter().map(|pdd| pdd.bos.len()).sum(),
            events,
            queues: state.queues.slots.len(),
            handles: state.gems.values().map(GemTable::len).sum(),
            mappings: state.pdds.iter().map(|pdd| pdd.vm.made_with_handles()).sum(),
        }
    }

    /// What RUNTIME_ENABLE set.
    pub fn runtime(&self) -> Runtime {
        self.state.lock().runtime
    }

    /// Which compute units of the first XCC a queue may use: a word for each shader engine, shader array 0 in its lower half.
    pub fn cu_mask(&self, queue_id: u32) -> Option<[u32; 8]> {
        self.state.lock().queues.get(queue_id).map(|queue| super::cu_mask::read(&queue.mqd, 0))
    }

    /// The GPU that the process knows by this id (`kfd_process_device_data_by_id`).
    ///
    /// # Errors
    /// `EINVAL`; 0 is never an id.
    pub(super) fn gpu_by_id(&self, gpu_id: u32) -> Result<usize, Errno> {
        self.user_ids.iter().position(|id| id.load(Ordering::Relaxed) == gpu_id).ok_or(Errno::EINVAL)
    }

    /// The GPU whose own id this is (`kfd_device_by_id`).
    ///
    /// # Errors
    /// `EINVAL`.
    pub(super) fn gpu_by_actual_id(&self, gpu_id: u32) -> Result<usize, Errno> {
        self.gpus.iter().position(|gpu| gpu.gpu_id() == gpu_id).ok_or(Errno::EINVAL)
    }

    /// The GPUs of which a bit is set.
    pub(super) fn gpus_of(&self, bits: u32) -> impl Iterator<Item = usize> + use<> {
        (0..self.gpus.len()).filter(move |gpu| bits & 1 << gpu != 0)
    }

    /// The id by which the process knows a GPU; 0 if there is none.
    pub(super) fn user_id(&self, gpu: usize) -> u32 {
        // ORDERING: Relaxed, since an id changes only in RESTORE, before the process knows the new one.
        self.user_ids.get(gpu).map_or(0, |id| id.load(Ordering::Relaxed))
    }

    /// Gives a GPU the id that the process knew before the checkpoint.
    pub(super) fn set_user_id(&self, gpu: usize, gpu_id: u32) {
        if let Some(id) = self.user_ids.get(gpu) {
            id.store(gpu_id, Ordering::Relaxed);
        }
    }
}

impl State {
    /// A GPU that can take memory and queues (`kfd_bind_process_to_device`).
    ///
    /// # Errors
    /// `ENODEV` before ACQUIRE_VM.
    pub(super) fn bound(&mut self, gpu: usize) -> Result<&mut Pdd, Errno> {
        self.pdds.get_mut(gpu).filter(|pdd| pdd.render.is_some()).ok_or(Errno::ENODEV)
    }

    /// The buffer object behind the low half of a handle.
    pub(super) fn bo(&self, gpu: usize, index: u32) -> Option<&Bo> {
        self.pdds.get(gpu)?.bos.get(index)
    }

    pub(super) fn bo_mut(&mut self, gpu: usize, index: u32) -> Option<&mut Bo> {
        self.pdds.get_mut(gpu)?.bos.get_mut(index)
    }

    /// Remembers a backing, to recognise its DMABuf.
    pub(super) fn remember(&mut self, backing: &Arc<Backing>) {
        // Dead entries are removed only when the table has doubled; at every insertion a thousand allocations would
        // cost a million steps.
        if self.backings.len() >= 2 * self.live_backings + 64 {
            self.backings.retain(|_, known| known.strong_count() > 0);
            self.live_backings = self.backings.len();
        }
        self.backings.insert(backing.identity, Arc::downgrade(backing));
    }

    /// Takes a number for a memory of the client's.
    pub(super) fn take_client_memory(&mut self) -> u64 {
        self.last_client_memory += 1;
        self.last_client_memory
    }

    /// Takes an offset for a buffer of `bytes` on the render node.
    pub(super) fn take_mmap_offset(&mut self, bytes: u64) -> u64 {
        let offset = self.next_mmap_offset;
        self.next_mmap_offset = offset.saturating_add(bytes);
        offset
    }
}

/// Splits a handle into GPU id and index (`kfd_priv.h`).
pub(super) fn split_handle(handle: u64) -> (u32, u32) {
    let [index, gpu_id] = words(handle);
    (gpu_id, index)
}

/// Ends the waits of a process whose client is gone.
#[derive(Clone, Debug)]
pub struct Canceller(Weak<KfdProcess>);

impl Canceller {
    /// Makes every wait, running and future, answer `EINTR`.
    pub fn cancel(&self) {
        if let Some(process) = self.0.upgrade() {
            process.events.cancel();
        }
    }
}
