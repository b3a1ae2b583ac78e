// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client with its own memory and descriptors, and fake hardware that records what the driver asks of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;
use kfd::sys::*;
use kfd::userfault::WatchedPages;
use nix::errno::Errno;
use parking_lot::Mutex;

use crate::driver::ledger::{Capacities, Ledger};
use crate::driver::{
    Caller, FdPlace, FdTable, KernelModel, KfdProcess, OpenFile, ProcessOptions, UserMemory, UserPages, memfd,
};
use crate::hardware::{GpuMapping, Hardware, HwQueue, MQD_BYTES, Mqd, PageAccess, SavedWaves, mqd_field};
use crate::sysfs::{GpuModel, Machine};

pub const VRAM: u32 =
    KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
pub const GTT: u32 = KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
/// `errno` 524.
pub const NOTSUPP: Errno = kfd::errno::ENOTSUPP;

/// One thing the driver asked of the hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Map { gpu: usize, va: u64, bytes: u64, write: bool, execute: bool },
    Unmap { gpu: usize, va: u64, bytes: u64 },
    Protect { gpu: usize, va: u64, bytes: u64, access: PageAccess },
    Start { gpu: usize, queue: HwQueue },
    Stop { gpu: usize, id: u32 },
    Destroy { gpu: usize, id: u32 },
    TrapHandler { gpu: usize, code: u64, data: u64 },
}

/// An entry of the fake hardware's page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub memory: memfd::Identity,
    pub offset: u64,
    pub access: PageAccess,
}

#[derive(Default)]
pub struct Diary {
    steps: Mutex<Vec<Step>>,
    /// Page tables by GPU and address; large mappings are left out.
    pub pages: Mutex<BTreeMap<(usize, u64), Entry>>,
    doorbells: Mutex<HashMap<usize, (OwnedFd, OwnedFd)>>,
    registers: Mutex<HashMap<usize, OwnedFd>>,
    pub refuse_start: AtomicBool,
    pub refuse_map: AtomicBool,
    /// Stopping a queue times out.
    pub hang: AtomicBool,
    /// What the next stop leaves in the first XCC's save area, if anything.
    pub saved: Mutex<Option<SavedWaves>>,
    /// Queues on the hardware, with their start parameters.
    pub running: Mutex<BTreeMap<(usize, u32), Mqd>>,
}

/// A dword of the firmware in which the fake hardware counts how often a queue was stopped.
pub const STOPS: usize = 100;

impl Diary {
    pub fn take(&self) -> Vec<Step> {
        std::mem::take(&mut self.steps.lock())
    }

    /// Hardware with the same pages for the client, and nothing else.
    pub fn heir(&self) -> Self {
        let copy = |fd: &OwnedFd| memfd::duplicate(fd).unwrap();
        let doorbells = self.doorbells.lock();
        let doorbells = doorbells.iter().map(|(gpu, (slice, parked))| (*gpu, (copy(slice), copy(parked))));
        let registers = self.registers.lock().iter().map(|(gpu, page)| (*gpu, copy(page))).collect();
        Self {
            doorbells: Mutex::new(doorbells.collect()),
            registers: Mutex::new(registers),
            ..Self::default()
        }
    }

    fn write(&self, step: Step) {
        self.steps.lock().push(step);
    }

    /// What is mapped at an address.
    pub fn page(&self, gpu: usize, va: u64) -> Option<Entry> {
        self.pages.lock().get(&(gpu, va)).copied()
    }
}

/// The pages of a range; none for a large range.
fn pages(va: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let small = if bytes <= 1 << 20 { bytes / 4096 } else { 0 };
    (0..small).map(move |page| va + page * 4096)
}

impl Hardware for Diary {
    fn map(&self, gpu: usize, mapping: &GpuMapping<'_>) -> Result<(), Errno> {
        if self.refuse_map.load(Ordering::Relaxed) {
            return Err(Errno::ENOMEM);
        }
        let (write, execute) = (mapping.access.write, mapping.access.execute);
        let memory = memfd::identity(mapping.backing)?;
        for va in pages(mapping.va, mapping.bytes) {
            let entry = Entry { memory, offset: mapping.offset + (va - mapping.va), access: mapping.access };
            assert_eq!(self.pages.lock().insert((gpu, va), entry), None, "mapped twice");
        }
        self.write(Step::Map { gpu, va: mapping.va, bytes: mapping.bytes, write, execute });
        Ok(())
    }

    fn unmap(&self, gpu: usize, va: u64, bytes: u64) {
        for va in pages(va, bytes) {
            self.pages.lock().remove(&(gpu, va));
        }
        self.write(Step::Unmap { gpu, va, bytes });
    }

    fn protect(&self, gpu: usize, va: u64, bytes: u64, access: PageAccess) {
        for va in pages(va, bytes) {
            self.pages.lock().get_mut(&(gpu, va)).expect("only what is mapped is protected").access = access;
        }
        self.write(Step::Protect { gpu, va, bytes, access });
    }

    fn set_trap_handler(&self, gpu: usize, code: u64, data: u64) {
        self.write(Step::TrapHandler { gpu, code, data });
    }

    fn start_queue(&self, gpu: usize, queue: &HwQueue, mqd: &Mqd) -> Result<(), Errno> {
        if self.refuse_start.load(Ordering::Relaxed) {
            return Err(Errno::EIO);
        }
        self.write(Step::Start { gpu, queue: *queue });
        let before = self.running.lock().insert((gpu, queue.id), mqd.clone());
        assert_eq!(before, None, "the queue is on the hardware already");
        Ok(())
    }

    fn stop_queue(&self, gpu: usize, id: u32) -> Result<Option<Box<Mqd>>, Errno> {
        self.write(Step::Stop { gpu, id });
        let Some(mut mqd) = self.running.lock().remove(&(gpu, id)) else { return Ok(None) };
        if self.hang.load(Ordering::Relaxed) {
            return Err(Errno::ETIME);
        }
        mqd.set_word(STOPS, mqd.word(STOPS) + 1);
        if let Some(saved) = self.saved.lock().take() {
            let end = saved.control_stack_offset + saved.control_stack_bytes;
            // Each further XCC has eight bytes of control stack more.
            for (xcc, more) in (0..mqd.xccs()).zip((0..).step_by(8)) {
                let offset = saved.control_stack_offset - more;
                mqd.set_word_of(xcc, mqd_field::CONTROL_STACK_OFFSET, offset);
                mqd.set_word_of(xcc, mqd_field::CONTROL_STACK_SIZE, end);
                mqd.set_word_of(xcc, mqd_field::WAVE_STATE_OFFSET, saved.wave_state_offset);
            }
        }
        // The fake hardware keeps no CU masks: it returns the firmware's words and those of the save area.
        let mut answer = Mqd::with_xccs(mqd.xccs());
        for (xcc, word) in (0..mqd.xccs()).flat_map(|xcc| (64..MQD_BYTES / 4).map(move |word| (xcc, word))) {
            answer.set_word_of(xcc, word, mqd.word_of(xcc, word));
        }
        Ok(Some(Box::new(answer)))
    }

    fn destroy_queue(&self, gpu: usize, id: u32) {
        self.write(Step::Destroy { gpu, id });
        assert!(self.running.lock().remove(&(gpu, id)).is_some(), "the queue is not on the hardware");
    }

    fn expect_stores(&self, _gpu: usize, _pages: Option<WatchedPages>) -> Result<(), Errno> {
        Ok(())
    }

    fn doorbells(&self, gpu: usize) -> Result<(OwnedFd, OwnedFd), Errno> {
        let mut all = self.doorbells.lock();
        let (slice, parked) = all.entry(gpu).or_insert_with(|| {
            (memfd::create("softgpu:slice", 8192).unwrap(), memfd::create("softgpu:parked", 4096).unwrap())
        });
        Ok((memfd::duplicate(&*slice)?, memfd::duplicate(&*parked)?))
    }

    fn hdp_page(&self, gpu: usize) -> Result<OwnedFd, Errno> {
        let mut all = self.registers.lock();
        memfd::duplicate(all.entry(gpu).or_insert_with(|| memfd::create("softgpu:mmio", 4096).unwrap()))
    }

    fn hold_host_writes(&self, _: usize, _: BorrowedFd<'_>, _: bool) {}

    fn release_host_writes(&self, _: usize, _: BorrowedFd<'_>) {}

    fn settle_host_writes(&self) {}

    fn clock(&self, _: usize) -> u64 {
        42
    }
}

/// Memory of the client: a few regions at chosen addresses.
#[derive(Default)]
pub struct Memory {
    regions: RefCell<BTreeMap<u64, Vec<u8>>>,
    caller: Caller,
}

impl Memory {
    pub fn of(caller: Caller) -> Self {
        Self { caller, ..Self::default() }
    }

    pub fn with(address: u64, bytes: &[u8]) -> Self {
        Self::default().and(address, bytes)
    }

    /// Adds a region.
    pub fn and(self, address: u64, bytes: &[u8]) -> Self {
        self.regions.borrow_mut().insert(address, bytes.to_vec());
        self
    }

    pub fn bytes(&self, address: u64) -> Vec<u8> {
        self.regions.borrow()[&address].clone()
    }
}

impl UserMemory for Memory {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let regions = self.regions.borrow();
        let (start, region) = regions.range(..=address).next_back().ok_or(Errno::EFAULT)?;
        let from = usize::try_from(address - start).map_err(|_| Errno::EFAULT)?;
        let end = from.checked_add(buf.len()).ok_or(Errno::EFAULT)?;
        buf.copy_from_slice(region.get(from..end).ok_or(Errno::EFAULT)?);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut regions = self.regions.borrow_mut();
        let (start, region) = regions.range_mut(..=address).next_back().ok_or(Errno::EFAULT)?;
        let from = usize::try_from(address - start).map_err(|_| Errno::EFAULT)?;
        let end = from.checked_add(bytes.len()).ok_or(Errno::EFAULT)?;
        region.get_mut(from..end).ok_or(Errno::EFAULT)?.copy_from_slice(bytes);
        Ok(())
    }

    fn caller(&self) -> Caller {
        self.caller
    }
}

#[derive(Default)]
pub struct Fds {
    incoming: RefCell<HashMap<FdPlace, OwnedFd>>,
    pages: RefCell<Vec<UserPages>>,
    outgoing: RefCell<Vec<(FdPlace, OwnedFd)>>,
}

impl Fds {
    pub fn field(offset: u16, fd: impl AsFd) -> Self {
        Self::default().and(FdPlace::Field(offset), fd)
    }

    /// Adds a descriptor that the client named.
    pub fn and(self, place: FdPlace, fd: impl AsFd) -> Self {
        self.incoming.borrow_mut().insert(place, memfd::duplicate(fd).unwrap());
        self
    }

    pub fn memory(fd: OwnedFd) -> Self {
        let bytes = u64::try_from(nix::sys::stat::fstat(&fd).unwrap().st_size).unwrap();
        Self::of_pages(vec![UserPages::New { fd, bytes, writable: true }])
    }

    pub fn of_pages(pages: Vec<UserPages>) -> Self {
        Self { pages: RefCell::new(pages), ..Self::default() }
    }

    pub fn taken_out(self) -> Vec<(FdPlace, OwnedFd)> {
        self.outgoing.into_inner()
    }
}

impl FdTable for Fds {
    fn take_in(&self, place: FdPlace) -> Option<OwnedFd> {
        self.incoming.borrow_mut().remove(&place)
    }

    fn pages(&self) -> Vec<UserPages> {
        self.pages.take()
    }

    fn give_out(&self, place: FdPlace, fd: OwnedFd) {
        self.outgoing.borrow_mut().push((place, fd));
    }
}

/// A client process with `/dev/kfd` open.
pub struct Client {
    pub process: Arc<KfdProcess>,
    pub hardware: Arc<Diary>,
    pub ledger: Ledger,
    pub gpus: Arc<[GpuModel]>,
    pub kfd: OpenFile,
}

/// The client's process number.
pub const PID: u32 = 4711;

/// Address of the client's id arrays.
pub const ARRAY: u64 = 0x1000;

pub fn ledger_of(gpus: &[GpuModel]) -> Ledger {
    let vram = gpus.iter().map(GpuModel::vram_bytes).collect();
    Ledger::create(&Capacities { vram, queues: 4096, system: 1 << 34, ttm: 1 << 33 }).unwrap()
}

impl Client {
    pub fn new(spec: &str) -> Self {
        let gpus: Arc<[GpuModel]> = GpuModel::parse_spec(spec).unwrap().into();
        let ledger = ledger_of(&gpus);
        Self::beside(gpus, ledger)
    }

    /// Every GPU of a machine from a topology file, all acquired.
    pub fn on_machine(text: &str) -> Self {
        let gpus: Arc<[GpuModel]> = Machine::of_file(text).unwrap().into_gpus().into();
        let ledger = ledger_of(&gpus);
        let client = Self::beside(gpus, ledger);
        for gpu in 0..client.gpus.len() {
            client.acquire(gpu);
        }
        client
    }

    /// Another process on the same device.
    pub fn beside(gpus: Arc<[GpuModel]>, ledger: Ledger) -> Self {
        Self::under(KernelModel::default(), gpus, ledger)
    }

    /// A process under a chosen kernel's driver.
    pub fn under(kernel: KernelModel, gpus: Arc<[GpuModel]>, ledger: Ledger) -> Self {
        let hardware = Arc::new(Diary::default());
        let slot = ledger.claim(1).unwrap();
        let gpus_of = Arc::clone(&gpus);
        let options = ProcessOptions { gpus: gpus_of, hardware: hardware.clone(), slot, kernel, pid: PID };
        let process = KfdProcess::new(options);
        let (kfd, _token) = process.open("/dev/kfd").unwrap();
        Self { process, hardware, ledger, gpus, kfd }
    }

    /// The GPUs of a list under a kernel with HSA_AMD_SVM, nothing acquired.
    pub fn with_svm(spec: &str) -> Self {
        Self::with_svm_under(KernelModel::default(), spec)
    }

    /// The same under a chosen kernel.
    pub fn with_svm_under(kernel: KernelModel, spec: &str) -> Self {
        let gpus: Arc<[GpuModel]> = Machine::of_list(spec).unwrap().with_svm().into_gpus().into();
        let ledger = ledger_of(&gpus);
        Self::under(kernel, gpus, ledger)
    }

    /// One GPU, its address space acquired.
    pub fn ready() -> Self {
        let client = Self::new("gfx1100");
        client.acquire(0);
        client
    }

    /// Two GPUs, both acquired.
    pub fn pair() -> Self {
        Self::pair_under(KernelModel::default())
    }

    /// Two GPUs under a chosen kernel's driver, nothing acquired.
    pub fn fresh_pair(kernel: KernelModel) -> Self {
        let gpus: Arc<[GpuModel]> = GpuModel::parse_spec("gfx1100*2").unwrap().into();
        let ledger = ledger_of(&gpus);
        Self::under(kernel, gpus, ledger)
    }

    /// Two GPUs, both acquired, under a chosen kernel's driver.
    pub fn pair_under(kernel: KernelModel) -> Self {
        let client = Self::fresh_pair(kernel);
        client.acquire(0);
        client.acquire(1);
        client
    }

    pub fn id(&self, gpu: usize) -> u32 {
        self.gpus[gpu].gpu_id()
    }

    pub fn call<T: Pod>(&self, cmd: u32, args: &mut T) -> Result<u32, Errno> {
        self.call_with(cmd, args, &Memory::default(), &Fds::default())
    }

    pub fn call_with<T: Pod>(
        &self,
        cmd: u32,
        args: &mut T,
        memory: &Memory,
        fds: &Fds,
    ) -> Result<u32, Errno> {
        self.process.ioctl(&self.kfd, cmd, bytemuck::bytes_of_mut(args), memory, fds)
    }

    /// Opens the render node of a GPU and acquires its address space.
    pub fn acquire(&self, gpu: usize) -> OpenFile {
        let (file, token) = self.render(gpu);
        self.acquire_with(gpu, &token).unwrap();
        file
    }

    pub fn render(&self, gpu: usize) -> (OpenFile, OwnedFd) {
        self.process.open(&format!("/dev/dri/renderD{}", self.gpus[gpu].render_minor())).unwrap()
    }

    pub fn acquire_with(&self, gpu: usize, token: impl AsFd) -> Result<u32, Errno> {
        let mut args = kfd_ioctl_acquire_vm_args { drm_fd: 3, gpu_id: self.id(gpu) };
        self.call_with(AMDKFD_IOC_ACQUIRE_VM, &mut args, &Memory::default(), &Fds::field(0, token))
    }

    pub fn alloc_args(
        &self,
        gpu: usize,
        va: u64,
        size: u64,
        flags: u32,
    ) -> kfd_ioctl_alloc_memory_of_gpu_args {
        kfd_ioctl_alloc_memory_of_gpu_args {
            va_addr: va,
            size,
            gpu_id: self.id(gpu),
            flags,
            ..Default::default()
        }
    }

    pub fn alloc(&self, gpu: usize, va: u64, size: u64, flags: u32) -> Result<u64, Errno> {
        let mut args = self.alloc_args(gpu, va, size, flags);
        self.call(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args).map(|_| args.handle)
    }

    pub fn free(&self, handle: u64) -> Result<u32, Errno> {
        self.call(AMDKFD_IOC_FREE_MEMORY_OF_GPU, &mut kfd_ioctl_free_memory_of_gpu_args { handle })
    }

    /// MAP with this list; answers the result and `n_success`.
    pub fn map_list(&self, handle: u64, ids: &[u32], n_success: u32) -> (Result<u32, Errno>, u32) {
        let mut args = kfd_ioctl_map_memory_to_gpu_args {
            handle,
            device_ids_array_ptr: ARRAY,
            n_devices: ids.len() as u32,
            n_success,
        };
        let memory = Memory::with(ARRAY, bytemuck::cast_slice(ids));
        let result = self.call_with(AMDKFD_IOC_MAP_MEMORY_TO_GPU, &mut args, &memory, &Fds::default());
        (result, args.n_success)
    }

    pub fn unmap_list(&self, handle: u64, ids: &[u32], n_success: u32) -> (Result<u32, Errno>, u32) {
        let mut args = kfd_ioctl_unmap_memory_from_gpu_args {
            handle,
            device_ids_array_ptr: ARRAY,
            n_devices: ids.len() as u32,
            n_success,
        };
        let memory = Memory::with(ARRAY, bytemuck::cast_slice(ids));
        let result = self.call_with(AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, &mut args, &memory, &Fds::default());
        (result, args.n_success)
    }

    pub fn map(&self, handle: u64, gpu: usize) -> Result<u32, Errno> {
        self.map_list(handle, &[self.id(gpu)], 0).0
    }

    pub fn unmap(&self, handle: u64, gpu: usize) -> Result<u32, Errno> {
        self.unmap_list(handle, &[self.id(gpu)], 0).0
    }

    /// Allocates and maps.
    pub fn buffer(&self, gpu: usize, va: u64, size: u64, flags: u32) -> u64 {
        let handle = self.alloc(gpu, va, size, flags).unwrap();
        self.map(handle, gpu).unwrap();
        handle
    }

    /// SVM with these attributes, which may be changed, and these pages of the client.
    pub fn svm(
        &self,
        op: u32,
        (start_addr, size): (u64, u64),
        attributes: &mut [(u32, u32)],
        pages: Vec<UserPages>,
    ) -> Result<u32, Errno> {
        let nattr = attributes.len() as u32;
        let head = kfd_ioctl_svm_args { start_addr, size, op, nattr };
        let mut arg = bytemuck::bytes_of(&head).to_vec();
        arg.extend(
            attributes.iter().flat_map(|(kind, value)| [kind.to_le_bytes(), value.to_le_bytes()].concat()),
        );
        let cmd = svm_command(attributes.len());
        let result = self.process.ioctl(&self.kfd, cmd, &mut arg, &Memory::default(), &Fds::of_pages(pages));
        for (attribute, bytes) in attributes.iter_mut().zip(arg[24..].chunks_exact(8)) {
            *attribute = bytemuck::pod_read_unaligned::<[u32; 2]>(bytes).into();
        }
        result
    }

    /// All buffers of an AQL queue at `base`, and the arguments to create it.
    pub fn queue_parts(&self, gpu: usize, base: u64) -> QueueParts {
        let geometry = *self.gpus[gpu].geometry();
        let at = |offset: u64| base + offset;
        let pointers = self.buffer(gpu, at(0), 4096, GTT);
        let ring = self.buffer(gpu, at(0x1_0000), 0x4000, GTT);
        let eop = self.buffer(gpu, at(0x2_0000), 4096, VRAM);
        let cwsr = self.buffer(gpu, at(0x10_0000), geometry.total_bytes, VRAM);
        let args = kfd_ioctl_create_queue_args {
            ring_base_address: at(0x1_0000),
            write_pointer_address: at(8),
            read_pointer_address: at(0x80),
            ring_size: 0x4000,
            gpu_id: self.id(gpu),
            queue_type: KFD_IOC_QUEUE_TYPE_COMPUTE_AQL,
            queue_percentage: 100,
            queue_priority: 7,
            eop_buffer_address: at(0x2_0000),
            eop_buffer_size: 4096,
            ctx_save_restore_address: at(0x10_0000),
            ctx_save_restore_size: geometry.save_bytes,
            ctl_stack_size: geometry.control_stack_bytes,
            ..Default::default()
        };
        QueueParts { pointers, ring, eop, cwsr, args }
    }

    pub fn create(&self, args: &mut kfd_ioctl_create_queue_args) -> Result<u32, Errno> {
        self.call(AMDKFD_IOC_CREATE_QUEUE, args).map(|_| args.queue_id)
    }

    pub fn destroy(&self, queue_id: u32) -> Result<u32, Errno> {
        self.call(AMDKFD_IOC_DESTROY_QUEUE, &mut kfd_ioctl_destroy_queue_args { queue_id, pad: 0 })
    }

    pub fn create_event(&self, event_type: u32, auto_reset: bool, page: u64) -> Result<u32, Errno> {
        let mut args = kfd_ioctl_create_event_args {
            event_page_offset: page,
            event_type,
            auto_reset: u32::from(auto_reset),
            ..Default::default()
        };
        self.call(AMDKFD_IOC_CREATE_EVENT, &mut args).map(|_| args.event_id)
    }

    pub fn set(&self, event_id: u32) -> Result<u32, Errno> {
        self.call(AMDKFD_IOC_SET_EVENT, &mut kfd_ioctl_set_event_args { event_id, pad: 0 })
    }

    pub fn reset(&self, event_id: u32) -> Result<u32, Errno> {
        self.call(AMDKFD_IOC_RESET_EVENT, &mut kfd_ioctl_reset_event_args { event_id, pad: 0 })
    }

    pub fn destroy_event(&self, event_id: u32) -> Result<u32, Errno> {
        self.call(AMDKFD_IOC_DESTROY_EVENT, &mut kfd_ioctl_destroy_event_args { event_id, pad: 0 })
    }

    /// WAIT_EVENTS; answers the result, `wait_result` and the array.
    pub fn wait(&self, events: &[(u32, u64)], all: bool, timeout: u32) -> Waited {
        let data: Vec<_> = events.iter().map(|(id, age)| kfd_event_data::new(*id, *age)).collect();
        let memory = Memory::with(ARRAY, bytemuck::cast_slice(&data));
        let mut args = kfd_ioctl_wait_events_args {
            events_ptr: ARRAY,
            num_events: data.len() as u32,
            wait_for_all: u32::from(all),
            timeout,
            wait_result: 99,
        };
        let result = self.call_with(AMDKFD_IOC_WAIT_EVENTS, &mut args, &memory, &Fds::default());
        let bytes = memory.bytes(ARRAY);
        let data = bytes.chunks_exact(48).map(bytemuck::pod_read_unaligned).collect();
        Waited { result, outcome: args.wait_result, data }
    }

    /// The first event page, mapped; answers its handle.
    pub fn event_page(&self) -> u64 {
        self.buffer(0, 0x7000_0000, 32768, GTT)
    }
}

pub struct QueueParts {
    pub pointers: u64,
    pub ring: u64,
    pub eop: u64,
    pub cwsr: u64,
    pub args: kfd_ioctl_create_queue_args,
}

pub struct Waited {
    pub result: Result<u32, Errno>,
    pub outcome: u32,
    pub data: Vec<kfd_event_data>,
}

impl Waited {
    pub fn is(&self, result: Result<u32, Errno>, outcome: u32) {
        assert_eq!((self.result, self.outcome), (result, outcome));
    }
}
