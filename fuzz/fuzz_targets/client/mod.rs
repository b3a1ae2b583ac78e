// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client process of the soft driver, with memory of its own and a GPU that runs nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use kfd::Errno;
use kfd::linux::{SealFlag, memfd};
use kfd::userfault::WatchedPages;
use softgpu::driver::ledger::{Capacities, Ledger};
use softgpu::driver::{
    Caller, FdPlace, FdTable, KernelModel, KfdProcess, OpenFile, ProcessOptions, UserMemory, UserPages,
};
use softgpu::hardware::{GpuMapping, Hardware, HwQueue, Mqd, PageAccess};
use softgpu::sysfs::GpuModel;

/// Accepts everything.
struct NoHardware;

impl Hardware for NoHardware {
    fn map(&self, _: usize, _: &GpuMapping<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn unmap(&self, _: usize, _: u64, _: u64) {}

    fn protect(&self, _: usize, _: u64, _: u64, _: PageAccess) {}

    fn set_trap_handler(&self, _: usize, _: u64, _: u64) {}

    fn start_queue(&self, _: usize, _: &HwQueue, _: &Mqd) -> Result<(), Errno> {
        Ok(())
    }

    fn stop_queue(&self, _: usize, _: u32) -> Result<Option<Box<Mqd>>, Errno> {
        Ok(Some(Box::default()))
    }

    fn destroy_queue(&self, _: usize, _: u32) {}

    fn doorbells(&self, _: usize) -> Result<(OwnedFd, OwnedFd), Errno> {
        let fd = |bytes| memfd("doorbells", bytes, SealFlag::empty());
        Ok((fd(8192)?, fd(4096)?))
    }

    fn expect_stores(&self, _: usize, _: Option<WatchedPages>) -> Result<(), Errno> {
        Ok(())
    }

    fn hdp_page(&self, _: usize) -> Result<OwnedFd, Errno> {
        memfd("mmio", 4096, SealFlag::empty())
    }

    fn hold_host_writes(&self, _: usize, _: BorrowedFd<'_>, _: bool) {}

    fn release_host_writes(&self, _: usize, _: BorrowedFd<'_>) {}

    fn settle_host_writes(&self) {}

    fn clock(&self, _: usize) -> u64 {
        0
    }
}

/// Regions at chosen addresses.
#[derive(Default)]
pub struct Memory(RefCell<BTreeMap<u64, Vec<u8>>>);

impl Memory {
    pub fn and(self, address: u64, bytes: Vec<u8>) -> Self {
        self.0.borrow_mut().insert(address, bytes);
        self
    }

    fn with<R>(&self, address: u64, length: usize, act: impl FnOnce(&mut [u8]) -> R) -> Result<R, Errno> {
        let mut regions = self.0.borrow_mut();
        let (start, region) = regions.range_mut(..=address).next_back().ok_or(Errno::EFAULT)?;
        let from = usize::try_from(address - start).map_err(|_| Errno::EFAULT)?;
        let end = from.checked_add(length).ok_or(Errno::EFAULT)?;
        region.get_mut(from..end).map(act).ok_or(Errno::EFAULT)
    }
}

impl UserMemory for Memory {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), Errno> {
        self.with(address, buf.len(), |bytes| buf.copy_from_slice(bytes))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.with(address, bytes.len(), |region| region.copy_from_slice(bytes))
    }

    fn caller(&self) -> Caller {
        Caller { same_process: true, checkpoint_restore: true }
    }
}

/// Descriptors at chosen places.
#[derive(Default)]
pub struct Fds(RefCell<HashMap<FdPlace, OwnedFd>>);

impl Fds {
    pub fn and(self, place: FdPlace, fd: OwnedFd) -> Self {
        self.0.borrow_mut().insert(place, fd);
        self
    }
}

impl FdTable for Fds {
    fn take_in(&self, place: FdPlace) -> Option<OwnedFd> {
        self.0.borrow_mut().remove(&place)
    }

    fn pages(&self) -> Vec<UserPages> {
        Vec::new()
    }

    fn give_out(&self, _: FdPlace, _: OwnedFd) {}
}

/// A process on a machine of its own with one gfx1100.
pub struct Client {
    pub process: Arc<KfdProcess>,
    pub gpu_id: u32,
    kfd: OpenFile,
}

impl Client {
    pub fn new() -> Self {
        let gpus: Arc<[GpuModel]> = GpuModel::parse_spec("gfx1100").expect("a known chip").into();
        let vram = gpus.iter().map(GpuModel::vram_bytes).collect();
        let capacities = Capacities { vram, queues: 4096, system: 1 << 34, ttm: 1 << 33 };
        let slot = Ledger::create(&capacities).and_then(|ledger| ledger.claim(1)).expect("a ledger");
        let gpu_id = gpus[0].gpu_id();
        let options =
            ProcessOptions { gpus, hardware: Arc::new(NoHardware), slot, kernel: KernelModel::Fixed, pid: 1 };
        let process = KfdProcess::new(options);
        let (kfd, _) = process.open(kfd::transport::KFD_PATH).expect("/dev/kfd");
        Self { process, gpu_id, kfd }
    }

    /// A fresh render node.
    pub fn render(&self) -> OwnedFd {
        self.process.open("/dev/dri/renderD128").expect("a render node").1
    }

    pub fn ioctl(&self, cmd: u32, arg: &mut [u8], memory: &Memory, fds: &Fds) -> Result<u32, Errno> {
        self.process.ioctl(&self.kfd, cmd, arg, memory, fds)
    }
}
