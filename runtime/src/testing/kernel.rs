// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fake driver's ioctls.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use kfd::Errno;
use kfd::sys::*;
use parking_lot::{Condvar, Mutex};

use super::processor;
use super::sysfs::gpu_id;

/// Memory behind all buffer objects, sparse.
const RAM_BYTES: u64 = 1 << 40;
/// Device memory of a GPU that can be allocated.
pub(crate) const VRAM_BYTES: u64 = 24 << 30;

#[derive(Debug)]
pub(super) struct FakeBo {
    pub va: u64,
    pub bytes: u64,
    pub vram_of: Option<u32>,
    pub mapped: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct FakeEvent {
    pub auto_reset: bool,
    pub signaled: bool,
    pub age: u64,
    pub waiters: u32,
    pub payload: [u64; 4],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FakeQueue {
    pub gpu: u32,
    /// `KFD_IOC_QUEUE_TYPE_*`.
    pub kind: u32,
    pub ring: u64,
    pub ring_bytes: u64,
    /// Where a processor of words has read, in its unit; what it publishes may be less.
    pub at: u64,
    pub write: u64,
    pub read: u64,
    pub save_area: u64,
    pub buffers: [u64; 4],
    pub doorbell: u64,
    pub active: bool,
    pub halted: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub bos: BTreeMap<u64, FakeBo>,
    pub next_ram: u64,
    pub events: BTreeMap<u32, FakeEvent>,
    pub page: Option<u64>,
    pub queues: BTreeMap<u32, FakeQueue>,
    /// Kernel dispatches wait while this is set.
    pub hold: bool,
    /// The next kernel dispatch raises this exception code.
    pub raise: Option<u32>,
    /// With it, a memory fault at this address.
    pub fault: Option<u64>,
    /// Ioctls to fail: (number, errno), each once.
    pub fail: Vec<(u32, Errno)>,
    pub drm: super::drm::Drm,
    /// The last file opened at each path.
    pub opened: BTreeMap<PathBuf, u64>,
    pub dead: bool,
    /// The thread of every ioctl made.
    pub calls: Vec<ThreadId>,
    pub dispatched: u64,
    /// The processor's own view of the doorbells.
    pub rung: u64,
    /// Every queue made: type, engine, percentage, priority.
    pub created: Vec<(u32, u32, u32, u32)>,
    /// Every mask set: queue and words.
    pub masks: Vec<(u32, Vec<u32>)>,
    /// What GET_VERSION answers, if not 1.17.
    pub version: Option<(u32, u32)>,
}

#[derive(Debug)]
pub(crate) struct FakeKernel {
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    pub(super) ram: OwnedFd,
    pub(super) doorbells: OwnedFd,
    files: AtomicU64,
    gpus: u32,
}

pub(super) fn memory(name: &str, bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    fd
}

pub(super) fn with<T: bytemuck::Pod>(
    arg: &mut [u8],
    run: impl FnOnce(&mut T) -> Result<u32, Errno>,
) -> Result<u32, Errno> {
    let mut args: T = bytemuck::pod_read_unaligned(arg);
    let result = run(&mut args);
    arg.copy_from_slice(bytemuck::bytes_of(&args));
    result
}

fn user<T: Copy>(address: u64, count: u32) -> Vec<T> {
    let from = std::ptr::with_exposed_provenance::<T>(address as usize);
    // SAFETY: the wrappers pass pointers to that many elements.
    (0..count as usize).map(|i| unsafe { from.add(i).read_unaligned() }).collect()
}

impl FakeKernel {
    pub(super) fn new(gpus: u32) -> Arc<Self> {
        let kernel = Arc::new(FakeKernel {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            ram: memory("fake-ram", RAM_BYTES),
            doorbells: memory("fake-doorbells", 8192),
            files: AtomicU64::new(1),
            gpus,
        });
        processor::start(&kernel);
        kernel
    }

    /// A number for a file that is opened.
    pub(super) fn next_file(&self, path: &Path) -> u64 {
        let id = self.files.fetch_add(1, Ordering::Relaxed);
        self.state.lock().opened.insert(path.to_owned(), id);
        id
    }

    /// The number of a file that is taken back: the last one opened there.
    pub(super) fn known_file(&self, path: &Path) -> Option<u64> {
        self.state.lock().opened.get(path).copied()
    }

    pub fn hold_dispatches(&self, hold: bool) {
        self.state.lock().hold = hold;
    }

    pub fn raise_on_dispatch(&self, code: u32, fault: Option<u64>) {
        let mut state = self.state.lock();
        (state.raise, state.fault) = (Some(code), fault);
    }

    pub fn fail_once(&self, cmd: u32, errno: Errno) {
        self.state.lock().fail.push((cmd, errno));
    }

    /// Has GET_VERSION answer this from now on.
    pub fn set_version(&self, major: u32, minor: u32) {
        self.state.lock().version = Some((major, minor));
    }

    pub fn kill(&self) {
        self.state.lock().dead = true;
        self.changed.notify_all();
    }

    /// Ioctls this thread has made.
    pub fn calls(&self) -> usize {
        let this = std::thread::current().id();
        self.state.lock().calls.iter().filter(|&&caller| caller == this).count()
    }

    /// Type, engine, percentage and priority of every queue made so far.
    pub fn created(&self) -> Vec<(u32, u32, u32, u32)> {
        self.state.lock().created.clone()
    }

    /// Every mask of compute units set so far, with its queue.
    pub fn masks(&self) -> Vec<(u32, Vec<u32>)> {
        self.state.lock().masks.clone()
    }

    pub fn counts(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.bos.len(), state.events.len(), state.queues.len())
    }

    /// Handles of memory on render files, and the mappings made with them.
    pub fn parts(&self) -> (usize, usize) {
        self.state.lock().drm.counts()
    }

    fn check_gpu(&self, id: u32) -> Result<(), Errno> {
        if (0..self.gpus).any(|n| gpu_id(n) == id) { Ok(()) } else { Err(Errno::INVAL) }
    }

    pub(super) fn ioctl(&self, file: u64, cmd: u32, arg: &mut [u8]) -> Result<u32, Errno> {
        let mut state = self.state.lock();
        state.calls.push(std::thread::current().id());
        if state.dead {
            return Err(Errno::NODEV);
        }
        if let Some(at) = state.fail.iter().position(|&(number, _)| number == cmd) {
            return Err(state.fail.remove(at).1);
        }
        if let Some(result) = super::drm::ioctl(&mut state, file, cmd, arg) {
            return result;
        }
        match cmd {
            AMDKFD_IOC_GET_VERSION => with(arg, |a: &mut kfd_ioctl_get_version_args| {
                (a.major_version, a.minor_version) = state.version.unwrap_or((1, 17));
                Ok(0)
            }),
            AMDKFD_IOC_GET_PROCESS_APERTURES_NEW => {
                with(arg, |a: &mut kfd_ioctl_get_process_apertures_new_args| {
                    if a.num_of_nodes > 0 {
                        let to = std::ptr::with_exposed_provenance_mut::<kfd_process_device_apertures>(
                            a.kfd_process_device_apertures_ptr as usize,
                        );
                        for n in 0..self.gpus.min(a.num_of_nodes) {
                            let aperture = kfd_process_device_apertures {
                                lds_base: 1 << 48,
                                scratch_base: 2 << 48,
                                gpu_id: gpu_id(n),
                                ..Default::default()
                            };
                            // SAFETY: the wrapper passes room for `num_of_nodes`.
                            unsafe { to.add(n as usize).write_unaligned(aperture) };
                        }
                    }
                    a.num_of_nodes = self.gpus;
                    Ok(0)
                })
            }
            AMDKFD_IOC_ACQUIRE_VM => {
                with(arg, |a: &mut kfd_ioctl_acquire_vm_args| self.check_gpu(a.gpu_id).map(|()| 0))
            }
            AMDKFD_IOC_SET_MEMORY_POLICY | AMDKFD_IOC_RUNTIME_ENABLE => Ok(0),
            AMDKFD_IOC_AVAILABLE_MEMORY => with(arg, |a: &mut kfd_ioctl_get_available_memory_args| {
                a.available = VRAM_BYTES - used(&state, a.gpu_id);
                Ok(0)
            }),
            AMDKFD_IOC_ALLOC_MEMORY_OF_GPU => with(arg, |a| self.alloc(&mut state, a)),
            AMDKFD_IOC_FREE_MEMORY_OF_GPU => with(arg, |a: &mut kfd_ioctl_free_memory_of_gpu_args| {
                let bo = state.bos.get(&a.handle).ok_or(Errno::INVAL)?;
                if state.page == Some(a.handle) {
                    return Err(Errno::PERM);
                }
                if !bo.mapped.is_empty() {
                    return Err(Errno::BUSY);
                }
                state.bos.remove(&a.handle);
                super::drm::forget(&mut state, a.handle);
                Ok(0)
            }),
            AMDKFD_IOC_MAP_MEMORY_TO_GPU => with(arg, |a: &mut kfd_ioctl_map_memory_to_gpu_args| {
                let gpus: Vec<u32> = user(a.device_ids_array_ptr, a.n_devices);
                let bo = state.bos.get_mut(&a.handle).ok_or(Errno::NOMEM)?;
                for gpu in gpus {
                    self.check_gpu(gpu)?;
                    if !bo.mapped.contains(&gpu) {
                        bo.mapped.push(gpu);
                    }
                    a.n_success += 1;
                }
                Ok(0)
            }),
            AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU => with(arg, |a: &mut kfd_ioctl_unmap_memory_from_gpu_args| {
                let gpus: Vec<u32> = user(a.device_ids_array_ptr, a.n_devices);
                let va = state.bos.get(&a.handle).ok_or(Errno::NOMEM)?.va;
                if state.queues.values().any(|queue| queue.buffers.contains(&va)) {
                    return Err(Errno::BUSY);
                }
                let bo = state.bos.get_mut(&a.handle).ok_or(Errno::NOMEM)?;
                for gpu in gpus {
                    let at = bo.mapped.iter().position(|&m| m == gpu).ok_or(Errno::INVAL)?;
                    bo.mapped.remove(at);
                    a.n_success += 1;
                }
                Ok(0)
            }),
            AMDKFD_IOC_CREATE_EVENT => with(arg, |a| create_event(&mut state, a)),
            AMDKFD_IOC_DESTROY_EVENT => with(arg, |a: &mut kfd_ioctl_destroy_event_args| {
                state.events.remove(&a.event_id).ok_or(Errno::INVAL)?;
                self.changed.notify_all();
                Ok(0)
            }),
            AMDKFD_IOC_SET_EVENT => with(arg, |a: &mut kfd_ioctl_set_event_args| {
                self.set_event(&mut state, a.event_id).map(|()| 0)
            }),
            AMDKFD_IOC_RESET_EVENT => with(arg, |a: &mut kfd_ioctl_reset_event_args| {
                state.events.get_mut(&a.event_id).ok_or(Errno::INVAL)?.signaled = false;
                Ok(0)
            }),
            AMDKFD_IOC_WAIT_EVENTS => with(arg, |a| self.wait(state, a)),
            AMDKFD_IOC_CREATE_QUEUE => with(arg, |a| create_queue(&mut state, a)),
            AMDKFD_IOC_UPDATE_QUEUE => with(arg, |a: &mut kfd_ioctl_update_queue_args| {
                let queue = state.queues.get_mut(&a.queue_id).ok_or(Errno::FAULT)?;
                queue.active = a.queue_percentage > 0;
                Ok(0)
            }),
            AMDKFD_IOC_SET_CU_MASK => with(arg, |a: &mut kfd_ioctl_set_cu_mask_args| {
                if !state.queues.contains_key(&a.queue_id) {
                    return Err(Errno::FAULT);
                }
                state.masks.push((a.queue_id, user(a.cu_mask_ptr, a.num_cu_mask / 32)));
                Ok(0)
            }),
            AMDKFD_IOC_DESTROY_QUEUE => with(arg, |a: &mut kfd_ioctl_destroy_queue_args| {
                state.queues.remove(&a.queue_id).map(|_| 0).ok_or(Errno::INVAL)
            }),
            AMDKFD_IOC_GET_QUEUE_WAVE_STATE => with(arg, |a: &mut kfd_ioctl_get_queue_wave_state_args| {
                let queue = state.queues.get(&a.queue_id).ok_or(Errno::FAULT)?;
                if queue.active { Err(Errno::INVAL) } else { Ok(0) }
            }),
            _ => Err(Errno::NOTTY),
        }
    }

    fn alloc(&self, state: &mut State, a: &mut kfd_ioctl_alloc_memory_of_gpu_args) -> Result<u32, Errno> {
        self.check_gpu(a.gpu_id)?;
        let vram_of = (a.flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM != 0).then_some(a.gpu_id);
        if vram_of.is_some() && used(state, a.gpu_id) + a.size > VRAM_BYTES {
            return Err(Errno::NOMEM);
        }
        a.mmap_offset = state.next_ram;
        state.next_ram += a.size.next_multiple_of(4096);
        let index = (0..).find(|i| !state.bos.contains_key(&(u64::from(a.gpu_id) << 32 | i))).unwrap();
        a.handle = u64::from(a.gpu_id) << 32 | index;
        state.bos.insert(a.handle, FakeBo { va: a.va_addr, bytes: a.size, vram_of, mapped: Vec::new() });
        Ok(0)
    }

    pub(super) fn set_event(&self, state: &mut State, id: u32) -> Result<(), Errno> {
        let event = state.events.get_mut(&id).ok_or(Errno::INVAL)?;
        event.age += 1;
        event.signaled = !event.auto_reset || event.waiters == 0;
        self.changed.notify_all();
        Ok(())
    }

    fn wait(
        &self,
        mut state: parking_lot::MutexGuard<'_, State>,
        a: &mut kfd_ioctl_wait_events_args,
    ) -> Result<u32, Errno> {
        let mut data: Vec<kfd_event_data> = user(a.events_ptr, a.num_events);
        let ages: Vec<u64> = data
            .iter()
            .map(|d| state.events.get(&d.event_id).map(|e| e.age).ok_or(Errno::INVAL))
            .collect::<Result<_, _>>()?;
        let deadline = Instant::now() + Duration::from_millis(u64::from(a.timeout).min(1 << 40));
        a.wait_result = KFD_IOC_WAIT_RESULT_TIMEOUT;
        for d in &data {
            state.events.get_mut(&d.event_id).unwrap().waiters += 1;
        }
        loop {
            let mut any = false;
            for (d, &start) in data.iter_mut().zip(&ages) {
                let Some(event) = state.events.get_mut(&d.event_id) else { return Err(Errno::IO) };
                let given = if d.event_id < KFD_FIRST_NONSIGNAL_EVENT_ID { d.last_event_age() } else { 0 };
                if event.signaled || event.age != start || given != 0 && event.age != given {
                    any = true;
                    if event.auto_reset {
                        event.signaled = false;
                    }
                    match d.event_id {
                        0..KFD_FIRST_NONSIGNAL_EVENT_ID if given != 0 => d.set_last_event_age(event.age),
                        0..KFD_FIRST_NONSIGNAL_EVENT_ID => {}
                        _ => d.payload = event.payload,
                    }
                }
            }
            let over = state.dead || any || self.changed.wait_until(&mut state, deadline).timed_out();
            if over {
                if any {
                    a.wait_result = KFD_IOC_WAIT_RESULT_COMPLETE;
                }
                break;
            }
        }
        for d in &data {
            if let Some(event) = state.events.get_mut(&d.event_id) {
                event.waiters -= 1;
            }
        }
        let to = std::ptr::with_exposed_provenance_mut::<kfd_event_data>(a.events_ptr as usize);
        for (i, d) in data.into_iter().enumerate() {
            // SAFETY: the wrapper passes an array of `num_events`.
            unsafe { to.add(i).write_unaligned(d) };
        }
        if state.dead { Err(Errno::NODEV) } else { Ok(0) }
    }
}

fn used(state: &State, gpu: u32) -> u64 {
    state.bos.values().filter(|bo| bo.vram_of == Some(gpu)).map(|bo| bo.bytes).sum()
}

fn create_event(state: &mut State, a: &mut kfd_ioctl_create_event_args) -> Result<u32, Errno> {
    if a.event_page_offset != 0 {
        if state.page.is_some() || !state.bos.contains_key(&a.event_page_offset) {
            return Err(Errno::INVAL);
        }
        state.page = Some(a.event_page_offset);
    }
    let page = state.page.ok_or(Errno::NOMEM)?;
    let first = match a.event_type {
        KFD_IOC_EVENT_SIGNAL => 1,
        _ => KFD_FIRST_NONSIGNAL_EVENT_ID,
    };
    a.event_id = (first..).find(|id| !state.events.contains_key(id)).unwrap();
    a.event_slot_index = a.event_id;
    let _ = page;
    let auto_reset = a.auto_reset != 0;
    state.events.insert(a.event_id, FakeEvent { auto_reset, age: 1, ..Default::default() });
    Ok(0)
}

/// `kfd_queue_acquire_buffers`: every buffer is a mapping of exactly its size.
fn create_queue(state: &mut State, a: &mut kfd_ioctl_create_queue_args) -> Result<u32, Errno> {
    let exact = |va: u64, bytes: u64| {
        let found =
            state.bos.values().any(|bo| bo.va == va && bo.bytes == bytes && bo.mapped.contains(&a.gpu_id));
        if found { Ok(()) } else { Err(Errno::INVAL) }
    };
    let page = a.write_pointer_address & !0xfff;
    exact(page, 4096)?;
    exact(a.read_pointer_address & !0xfff, 4096)?;
    exact(a.ring_base_address, u64::from(a.ring_size))?;
    let is_sdma = matches!(a.queue_type, KFD_IOC_QUEUE_TYPE_SDMA | KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID);
    if !is_sdma {
        exact(a.eop_buffer_address, 4096)?;
        exact(a.ctx_save_restore_address, 0x2c0_2000)?;
        if a.ctl_stack_size != 0xa000 || a.ctx_save_restore_size != 46_047_232 {
            return Err(Errno::INVAL);
        }
    }
    if a.write_pointer_address & 0xfff != 0x38 || a.read_pointer_address & 0xfff != 0x80 {
        return Err(Errno::INVAL);
    }
    a.queue_id = (0..).find(|id| !state.queues.contains_key(id)).unwrap();
    let doorbell = u64::from(a.queue_id) * 8;
    // What a queue before it rang is none of its business.
    super::processor::word(state.rung + doorbell).store(u64::MAX, Ordering::Release);
    a.doorbell_offset = doorbell_cookie(a.gpu_id) | doorbell;
    let queue = FakeQueue {
        gpu: a.gpu_id,
        kind: a.queue_type,
        ring: a.ring_base_address,
        ring_bytes: u64::from(a.ring_size),
        at: 0,
        write: a.write_pointer_address,
        read: a.read_pointer_address,
        save_area: a.ctx_save_restore_address,
        buffers: [a.ring_base_address, page, a.eop_buffer_address, a.ctx_save_restore_address],
        doorbell,
        active: a.queue_percentage > 0,
        halted: false,
    };
    state.created.push((a.queue_type, a.sdma_engine_id, a.queue_percentage, a.queue_priority));
    state.queues.insert(a.queue_id, queue);
    Ok(0)
}
