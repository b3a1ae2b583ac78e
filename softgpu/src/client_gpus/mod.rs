// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hardware under the driver: page tables, doorbells, and a packet processor for every queue.
//!
//! A [`ClientGpus`] holds all GPUs of one client process and implements [`Hardware`]. The client's buffers are mapped
//! into this very process at their GPU addresses, so that a wave's address is a host address; what a wave (or a
//! packet) may touch is decided by the GPU's [`Vm`] alone.
//!
//! INVARIANT: everything in the client's memory is hostile. A packet, a signal or a kernel can halt its own queue,
//! and nothing else.
//!
//! A queue that is stopped leaves nothing here: its waves go into its save area, all else into its descriptor
//! ([`Mqd`]), and from these two it is built again, by this [`ClientGpus`] or another.

mod aql;
mod backoff;
pub mod clock;
mod core;
mod dependencies;
mod dispatch;
mod doorbell;
mod gpu;
mod hdp;
mod memory;
mod mqd;
mod persist;
mod pm4;
mod queue;
mod queue_context;
mod raised;
mod ring_watch;
mod runlist;
mod save;
mod scratch;
mod sdma;
mod shared;
mod signal;
#[cfg(test)]
pub(crate) mod tests;
mod with_client;
mod written;
mod xccs;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use kfd::userfault::WatchedPages;
use kfd::written::Units;
use nix::errno::Errno;
use queues::sdma::Generation;
use softgpu_waves::{Access, AccessKind, Level, Store, TrapHandler, Vm, Workers};

use self::backoff::SignalWaiters;
use self::clock::Counter;
use self::doorbell::Doorbells;
pub use self::doorbell::{PARKED_BYTES, SLICE_BYTES};
pub use self::gpu::Chip;
use self::gpu::{Gpu, InterruptLine, Messages};
use self::hdp::{Hdp, Identity};
use self::memory::HostMemory;
pub use self::persist::GpusState;
use self::runlist::Runlist;
use crate::hardware::{GpuMapping, Hardware, HwQueue, HwQueueKind, Interrupts, Mqd, PageAccess};
use crate::journal::{Journal, Summary};
use crate::misbehaviour::Misbehaviour;

/// The GPUs of one client process.
#[derive(Debug)]
pub struct ClientGpus {
    // Before the memory: dropping the queues stops everything that uses it.
    gpus: Vec<Runlist>,
    memory: HostMemory,
    line: InterruptLine,
    workers: Arc<Workers>,
    journal: Arc<Journal>,
}

impl ClientGpus {
    /// Makes GPUs of these chips, in this order, without memory or queues.
    ///
    /// # Errors
    /// `ENOMEM` or `EMFILE` when doorbells or host threads cannot be had.
    pub fn new(chips: &[Chip]) -> Result<Self, Errno> {
        Self::with_journal(chips, Arc::default())
    }

    /// The same, with a journal of what the client has them do.
    ///
    /// # Errors
    /// As [`ClientGpus::new`].
    pub fn with_journal(chips: &[Chip], journal: Arc<Journal>) -> Result<Self, Errno> {
        Self::over(chips, HostMemory::default(), journal)
    }

    /// GPUs whose client is this process. It keeps the addresses of its buffers reserved, or maps the buffers there.
    ///
    /// # Errors
    /// As [`ClientGpus::new`].
    pub fn with_client(chips: &[Chip]) -> Result<Self, Errno> {
        Self::over(chips, HostMemory::with_client(), Arc::default())
    }

    fn over(chips: &[Chip], memory: HostMemory, journal: Arc<Journal>) -> Result<Self, Errno> {
        let new = |_: &Chip| Ok((Doorbells::new()?, Hdp::default()));
        let parts = chips.iter().map(new).collect::<Result<_, Errno>>()?;
        Ok(Self::of_parts(chips, memory, journal, parts))
    }

    /// GPUs with these doorbells and HDPs, one of each for each chip.
    fn of_parts(
        chips: &[Chip],
        memory: HostMemory,
        journal: Arc<Journal>,
        parts: Vec<(Doorbells, Hdp)>,
    ) -> Self {
        let line = InterruptLine::default();
        let waiters = Arc::new(SignalWaiters::default());
        let workers = Arc::new(Workers::new());
        let store = Store::from_env();
        let entry = |(index, (chip, (doorbells, hdp))): (usize, (&Chip, (Doorbells, Hdp)))| {
            let chip = *chip;
            let counter = Arc::new(Counter::new(chip.counter_ahead));
            let gpu = Gpu {
                index,
                chip,
                counter: Arc::clone(&counter),
                vm: Vm::with_store(store.clone()),
                doorbells,
                hdp: Arc::new(hdp),
                workers: Arc::clone(&workers),
                waiters: Arc::clone(&waiters),
                line: Arc::clone(&line),
                journal: Arc::clone(&journal),
            };
            gpu.vm.set_messages(Arc::new(Messages::new(index, Arc::clone(&line), counter)));
            Runlist::new(Arc::new(gpu))
        };
        let gpus = chips.iter().zip(parts).enumerate().map(entry).collect();
        Self { gpus, memory, line, workers, journal }
    }

    /// Sets the receiver of the interrupts; only the first call has an effect. Interrupts raised before are lost.
    pub fn connect(&self, interrupts: Weak<dyn Interrupts>) {
        if self.line.set(interrupts).is_err() {
            tracing::error!(target: "processor", "the interrupt line is connected already");
        }
    }

    /// What executes waves, as `key value` lines (`kfd::transport::wire::ENGINE_FILE`).
    pub fn engine(&self) -> String {
        let (level, best) = (Level::current().name(), Level::best().name());
        let (engine, workers) = (self.workers.engine().name(), self.workers.threads());
        format!("engine {engine}\ncpu {level}\ncpu_best {best}\nworkers {workers}\n")
    }

    /// The journal of what the client has them do.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// What the client had done so far.
    pub fn summary(&self) -> Summary {
        self.journal.summary(self.workers.counts())
    }

    /// The same as `key value` lines (`kfd::transport::wire::COUNTS_FILE`).
    pub fn counts(&self) -> String {
        let Summary { dispatches, waves, instructions, copied_bytes, .. } = self.summary();
        format!(
            "dispatches {dispatches}\nwaves {waves}\ninstructions {instructions}\ncopied_bytes {copied_bytes}\n"
        )
    }

    /// Which units of `unit` bytes of these ranges of the client's addresses, and bytes, the GPUs have written since this was last
    /// asked (`kfd::transport::wire::Request::Written`).
    ///
    /// # Errors
    /// `EINVAL` for ranges that are not of whole pages, too many, or in too many units; `EOPNOTSUPP` when the client is this process; the
    /// errno of a kernel that cannot tell. All counts as written then, also the next time.
    pub(crate) fn written(&self, ranges: &[(u64, u64)], unit: u64) -> Result<Vec<Units>, Errno> {
        self.memory.written(ranges, unit)
    }

    fn runlist(&self, gpu: usize) -> Result<&Runlist, Errno> {
        self.gpus.get(gpu).ok_or(Errno::ENODEV)
    }

    fn gpu(&self, gpu: usize) -> Result<&Arc<Gpu>, Errno> {
        self.runlist(gpu).map(Runlist::gpu)
    }
}

/// Whether everything a queue needs is mapped with the permission it needs.
fn is_mapped(vm: &Vm, queue: &HwQueue) -> bool {
    let needs = [
        (queue.ring_va, queue.ring_bytes, AccessKind::Write),
        (queue.read_ptr_va, 8, AccessKind::Write),
        (queue.write_ptr_va, 8, AccessKind::Read),
    ];
    needs.iter().all(|&(address, bytes, kind)| vm.check(address, bytes, kind).is_ok())
}

fn identity(memory: BorrowedFd<'_>) -> Result<Identity, Errno> {
    nix::sys::stat::fstat(memory).map(|stat| (stat.st_dev, stat.st_ino))
}

fn access_of(access: PageAccess) -> Access {
    Access { read: access.read, write: access.write, execute: access.execute }
}

/// Whether the software GPU executes what such a queue holds: gfx11 machine code, the packets of gfx9 without machine code, and
/// those of known copy engines.
fn executes(chip: &Chip, kind: HwQueueKind) -> bool {
    match kind {
        HwQueueKind::Sdma => Generation::of(chip.target).is_some(),
        HwQueueKind::Compute | HwQueueKind::Aql => chip.target.gfx11_code || chip.target.packets_without_code,
    }
}

impl Hardware for ClientGpus {
    fn map(&self, gpu: usize, mapping: &GpuMapping<'_>) -> Result<(), Errno> {
        let memory = identity(mapping.backing)?;
        let range = mapping.va..mapping.va.saturating_add(mapping.bytes);
        // Whichever GPU's memory it is.
        let watch = self.gpus.iter().find_map(|owner| owner.gpu().hdp.watch(memory, range.clone()));
        self.memory.grant(&self.gpu(gpu)?.vm, mapping, access_of(mapping.access), watch)
    }

    fn unmap(&self, gpu: usize, va: u64, bytes: u64) {
        let Ok(gpu) = self.gpu(gpu) else { return };
        self.memory.revoke(&gpu.vm, va, bytes);
    }

    fn protect(&self, gpu: usize, va: u64, bytes: u64, access: PageAccess) {
        let Ok(gpu) = self.gpu(gpu) else { return };
        gpu.vm.protect(va..va.saturating_add(bytes), access_of(access));
    }

    fn set_trap_handler(&self, gpu: usize, code: u64, data: u64) {
        let Ok(gpu) = self.gpu(gpu) else { return };
        gpu.vm.set_trap_handler(TrapHandler { code, data });
    }

    fn start_queue(&self, gpu: usize, queue: &HwQueue, mqd: &Mqd) -> Result<(), Errno> {
        let runlist = self.runlist(gpu)?;
        let chip = &runlist.gpu().chip;
        if !executes(chip, queue.kind) {
            let (name, kind) = (chip.target.name, queue.kind);
            tracing::error!(
                target: "processor",
                gpu, chip = name, ?kind,
                "queue refused: this device executes queues of gfx11, and those of gfx9 without their kernels; \
                 on other chips it has memory, events and topology"
            );
            return Err(Errno::EOPNOTSUPP);
        }
        if !is_mapped(&runlist.gpu().vm, queue) {
            return Err(Errno::EIO);
        }
        runlist.start(queue, mqd)
    }

    fn stop_queue(&self, gpu: usize, id: u32) -> Result<Option<Box<Mqd>>, Errno> {
        let Ok(runlist) = self.runlist(gpu) else { return Ok(None) };
        let saved = runlist.stop(id);
        if saved.is_err()
            && let Some(interrupts) = runlist.gpu().interrupts()
        {
            interrupts.hang(gpu);
        }
        saved
    }

    fn destroy_queue(&self, gpu: usize, id: u32) {
        if let Ok(runlist) = self.runlist(gpu) {
            runlist.destroy(id);
        }
    }

    fn doorbells(&self, gpu: usize) -> Result<(OwnedFd, OwnedFd), Errno> {
        self.gpu(gpu)?.doorbells.descriptors()
    }

    fn expect_stores(&self, gpu: usize, pages: Option<WatchedPages>) -> Result<(), Errno> {
        let gpu = self.gpu(gpu)?;
        let Some(pages) = pages.map(Arc::new) else {
            gpu.doorbells.expect_stores(None);
            return Ok(());
        };
        let (watched, of_gpu) = (Arc::clone(&pages), Arc::clone(gpu));
        let watcher = std::thread::Builder::new().name("doorbells".to_owned());
        // Without the thread a store to protected pages would never go on.
        watcher.spawn(move || of_gpu.doorbells.watch_stores(&watched)).map_err(|_| Errno::EAGAIN)?;
        gpu.doorbells.expect_stores(Some(pages));
        Ok(())
    }

    fn hdp_page(&self, gpu: usize) -> Result<OwnedFd, Errno> {
        self.gpu(gpu)?.hdp.descriptor(gpu)
    }

    fn hold_host_writes(&self, gpu: usize, memory: BorrowedFd<'_>, code: bool) {
        if code && Misbehaviour::HostWrites.is_on() {
            return;
        }
        if let (Ok(gpu), Ok(memory)) = (self.gpu(gpu), identity(memory)) {
            gpu.hdp.hold(memory);
        }
    }

    fn release_host_writes(&self, gpu: usize, memory: BorrowedFd<'_>) {
        if let (Ok(gpu), Ok(memory)) = (self.gpu(gpu), identity(memory)) {
            gpu.hdp.release(memory);
        }
    }

    fn settle_host_writes(&self) {
        let vms: Vec<&Vm> = self.gpus.iter().map(|runlist| runlist.gpu().vm.as_ref()).collect();
        self.gpus.iter().for_each(|runlist| runlist.gpu().hdp.settle_all(&vms));
    }

    fn clock(&self, gpu: usize) -> u64 {
        let ticks = || self.gpu(gpu).map_or(0, |gpu| gpu.counter.ticks());
        if Misbehaviour::Clock.is_on() { 1 } else { ticks() }
    }
}
