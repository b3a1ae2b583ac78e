// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sequences of calls that bytes decide, as a program might make them that has lost its mind: handles of nobody's, destroyed ones, sizes near
//! 2^64, garbage in rings. Every call must come back.
//!
//! INVARIANT: a pointer that a function reads or writes is valid for what the function may do by the header; all else is anything.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use crate::abi::declared::*;

/// Bytes of memory of the program's own.
const OWN: usize = 1 << 16;
/// Bytes of memory that agents may share.
const SHARED: usize = 1 << 16;
/// Most calls of a sequence: each may wait a little.
const MOST: usize = 400;
/// Nanoseconds that a wait may take.
const SHORT: u64 = 200_000;
/// Nanoseconds after which a copy is given up.
const LONG: u64 = 1_000_000_000;

/// Bytes that decide; zeros when there are no more.
struct Bytes<'b>(&'b [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A size that somebody might name.
    fn size(&mut self) -> usize {
        let shift = self.byte() % 64;
        let size = match self.byte() % 4 {
            0 => 1_u64 << shift,
            1 => u64::MAX >> shift,
            2 => u64::from(self.byte()) * 4096,
            _ => self.word(),
        };
        queues::words::size(size)
    }

    /// One of these, or anything.
    fn of<T: Copy>(&mut self, all: &[T], anything: impl FnOnce(u64) -> T) -> T {
        let byte = usize::from(self.byte());
        match byte {
            0..224 if !all.is_empty() => all[byte % all.len()],
            _ => anything(self.word() >> (self.byte() % 64)),
        }
    }
}

/// What the sequence has made, destroyed ones included.
struct Program {
    agents: Vec<hsa_agent_t>,
    pools: Vec<hsa_amd_memory_pool_t>,
    signals: Vec<hsa_signal_t>,
    queues: Vec<*mut hsa_queue_t>,
    /// Queues that were not destroyed.
    live: Vec<*mut hsa_queue_t>,
    memory: Vec<*mut c_void>,
    executables: Vec<hsa_executable_t>,
    readers: Vec<hsa_code_object_reader_t>,
    ranges: Vec<*mut c_void>,
    physical: Vec<hsa_amd_vmem_alloc_handle_t>,
    own: Box<[u64]>,
    /// Memory that nobody else uses, of [`SHARED`] bytes.
    shared: *mut c_void,
    answer: Box<[u64]>,
}

/// # Safety
/// `data` is a `Vec<T>` that nobody else uses.
unsafe extern "C" fn collect<T>(item: T, data: *mut c_void) -> hsa_status_t {
    // SAFETY: by contract.
    unsafe { &mut *data.cast::<Vec<T>>() }.push(item);
    HSA_STATUS_SUCCESS
}

unsafe extern "C" fn take_event(_event: *const hsa_amd_event_t, _data: *mut c_void) -> hsa_status_t {
    HSA_STATUS_SUCCESS
}

/// Begins a copy, and waits for the signal that it completes: freeing memory that a copy still uses is wrong by the program.
fn wait_for(copy: impl FnOnce(hsa_signal_t) -> hsa_status_t) {
    let mut done = hsa_signal_t { handle: 0 };
    // SAFETY: a place of this function's, and handles may be anything.
    unsafe {
        hsa_signal_create(1, 0, null(), &raw mut done);
        if copy(done) == HSA_STATUS_SUCCESS {
            hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, LONG, HSA_WAIT_STATE_BLOCKED);
        }
        hsa_signal_destroy(done);
    }
}

/// Pages of their own, for the life of the process.
fn shared() -> *mut c_void {
    let (rights, flags) =
        (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS);
    let bytes = std::num::NonZeroUsize::new(SHARED);
    // SAFETY: a new mapping where the kernel chooses replaces nothing.
    let made = bytes.and_then(|bytes| unsafe { mmap_anonymous(None, bytes, rights, flags) }.ok());
    made.map_or(null_mut(), |at| at.as_ptr())
}

/// Plays the sequence that these bytes decide.
///
/// # Panics
/// When there is no device.
pub fn play(bytes: &[u8]) {
    // SAFETY: no precondition.
    assert_eq!(unsafe { hsa_init() }, HSA_STATUS_SUCCESS, "a device");
    let mut program = Program {
        agents: Vec::new(),
        pools: Vec::new(),
        signals: Vec::new(),
        queues: Vec::new(),
        live: Vec::new(),
        memory: Vec::new(),
        executables: Vec::new(),
        readers: Vec::new(),
        ranges: Vec::new(),
        physical: Vec::new(),
        own: vec![0; OWN / 8].into_boxed_slice(),
        shared: shared(),
        answer: vec![0; 512].into_boxed_slice(),
    };
    // SAFETY: the vectors outlive the calls.
    unsafe {
        hsa_iterate_agents(Some(collect::<hsa_agent_t>), (&raw mut program.agents).cast());
        for agent in program.agents.clone() {
            let pools = (&raw mut program.pools).cast();
            hsa_amd_agent_iterate_memory_pools(agent, Some(collect::<hsa_amd_memory_pool_t>), pools);
        }
        // A kernel of garbage may fault: without a handler the process ends by design.
        hsa_amd_register_system_event_handler(Some(take_event), null_mut());
    }
    let mut bytes = Bytes(bytes);
    for _ in 0..MOST {
        if bytes.0.is_empty() {
            break;
        }
        program.call(&mut bytes);
    }
    for queue in program.live.drain(..) {
        // SAFETY: a queue of this sequence.
        unsafe { hsa_queue_destroy(queue) };
    }
    // SAFETY: nothing of it is used afterwards.
    unsafe { hsa_shut_down() };
}

impl Program {
    fn call(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.byte() % 6 {
            0 => self.on_signals(bytes),
            1 => self.on_queues(bytes),
            2 => self.on_memory(bytes),
            3 => self.on_code(bytes),
            4 => self.on_ranges(bytes),
            _ => self.on_shared(bytes),
        }
    }

    fn signal(&self, bytes: &mut Bytes<'_>) -> hsa_signal_t {
        bytes.of(&self.signals, |handle| hsa_signal_t { handle })
    }

    fn agent(&self, bytes: &mut Bytes<'_>) -> hsa_agent_t {
        bytes.of(&self.agents, |handle| hsa_agent_t { handle })
    }

    fn pool(&self, bytes: &mut Bytes<'_>) -> hsa_amd_memory_pool_t {
        bytes.of(&self.pools, |handle| hsa_amd_memory_pool_t { handle })
    }

    fn on_signals(&mut self, bytes: &mut Bytes<'_>) {
        let (signal, value) = (self.signal(bytes), bytes.word().cast_signed());
        let condition = u32::from(bytes.byte() % 6);
        let mut made = hsa_signal_t { handle: 0 };
        // SAFETY: handles may be anything; pointers are of this program's.
        unsafe {
            match bytes.byte() % 12 {
                0..3 => {
                    if hsa_signal_create(value, 0, null(), &raw mut made) == HSA_STATUS_SUCCESS {
                        self.signals.push(made);
                    }
                }
                3 => drop(hsa_signal_destroy(signal)),
                4 => drop(hsa_signal_load_scacquire(signal)),
                5 => hsa_signal_store_screlease(signal, value),
                6 => hsa_signal_add_scacq_screl(signal, value),
                7 => drop(hsa_signal_cas_relaxed(signal, value, 1)),
                8 => drop(hsa_signal_wait_scacquire(signal, condition, value, SHORT, HSA_WAIT_STATE_BLOCKED)),
                9 => {
                    let mut pointer = null_mut();
                    hsa_amd_signal_value_pointer(signal, &raw mut pointer);
                }
                10 => {
                    let (mut signals, mut conditions, mut values) =
                        ([signal, self.signal(bytes)], [condition; 2], [value; 2]);
                    hsa_amd_signal_wait_any(
                        2,
                        signals.as_mut_ptr(),
                        conditions.as_mut_ptr(),
                        values.as_mut_ptr(),
                        SHORT,
                        HSA_WAIT_STATE_ACTIVE,
                        null_mut(),
                    );
                }
                _ => {
                    let (agent, mut time) = (self.agent(bytes), hsa_amd_profiling_dispatch_time_t::default());
                    hsa_amd_profiling_get_dispatch_time(agent, signal, &raw mut time);
                }
            }
        }
    }

    fn on_queues(&mut self, bytes: &mut Bytes<'_>) {
        let anything = |address: u64| std::ptr::with_exposed_provenance_mut(queues::words::size(address));
        let queue = bytes.of(&self.queues, anything);
        let (agent, index) = (self.agent(bytes), bytes.word() >> (bytes.byte() % 64));
        let mut made = null_mut();
        // SAFETY: as above; packets are stored into rings of live queues only.
        unsafe {
            match bytes.byte() % 10 {
                0 => {
                    let size = bytes.of(&[64, 128, 4096], |size| (size & 0xffff_ffff) as u32);
                    let kind = u32::from(bytes.byte() % 4);
                    let status = hsa_queue_create(agent, size, kind, None, null_mut(), 0, 0, &raw mut made);
                    if status == HSA_STATUS_SUCCESS {
                        self.queues.push(made);
                        self.live.push(made);
                    }
                }
                1 => {
                    hsa_queue_destroy(queue);
                    self.live.retain(|live| *live != queue);
                }
                2 => drop(hsa_queue_add_write_index_relaxed(queue, index)),
                3 => drop(hsa_queue_cas_write_index_scacquire(queue, index, 3)),
                4 => drop(hsa_queue_load_read_index_scacquire(queue)),
                5 => drop(hsa_amd_queue_set_priority(queue, u32::from(bytes.byte() % 5))),
                6 => {
                    let mask = [bytes.word(), bytes.word()];
                    hsa_amd_queue_cu_set_mask(queue, u32::from(bytes.byte() % 4) * 32, mask.as_ptr().cast());
                }
                7 => drop(hsa_queue_inactivate(queue)),
                _ => self.publish(bytes, index),
            }
        }
    }

    /// Publishes a packet, mostly of garbage, and rings for it.
    fn publish(&self, bytes: &mut Bytes<'_>, index: u64) {
        let Some(&queue) = self.live.get(usize::from(bytes.byte()) % self.live.len().max(1)) else { return };
        // SAFETY: a live queue's descriptor, and a place of its ring, which this thread alone writes.
        unsafe {
            let (base, size, doorbell) = ((*queue).base_address, (*queue).size, (*queue).doorbell_signal);
            let place = base.cast::<u64>().add(8 * queues::words::size(index & u64::from(size - 1)));
            for nth in 1..8 {
                // Addresses of memory of this program's are what makes garbage run.
                let word = match bytes.byte() % 4 {
                    0 => bytes.of(&self.memory, |_| null_mut()).addr() as u64,
                    1 => self.signal(bytes).handle,
                    2 => u64::from(bytes.byte()),
                    _ => bytes.word(),
                };
                place.add(nth).write_volatile(word);
            }
            // Kernels are left out: what garbage does as one may take for ever, by right.
            let kind = [0_u64, 1, 3, 4, 5, 6, 7, 255][usize::from(bytes.byte() % 8)];
            let header = kind | u64::from(bytes.byte()) << 8 | u64::from(bytes.byte()) << 16;
            place.write_volatile(header);
            hsa_signal_store_screlease(doorbell, index.cast_signed());
        }
    }

    fn on_memory(&mut self, bytes: &mut Bytes<'_>) {
        let anything = |address: u64| std::ptr::with_exposed_provenance_mut(queues::words::size(address));
        let (pool, size) = (self.pool(bytes), bytes.size());
        let memory = bytes.of(&self.memory, anything);
        let offset = if bytes.byte().is_multiple_of(4) { bytes.size() } else { 0 };
        let inside: *mut c_void = memory.wrapping_byte_add(offset);
        let own = self.own.as_mut_ptr().cast::<c_void>();
        let fits = size.min(OWN);
        let mut made = null_mut();
        // SAFETY: as above; copies go between memory of the runtime's, which it checks, and as much of this program's own as there is.
        unsafe {
            match bytes.byte() % 14 {
                0..3 => {
                    if hsa_amd_memory_pool_allocate(pool, size % (8 << 20), 0, &raw mut made)
                        == HSA_STATUS_SUCCESS
                    {
                        self.memory.push(made);
                    }
                }
                3 => drop(hsa_amd_memory_pool_allocate(pool, size.max(1 << 45), 0, &raw mut made)),
                4 => drop(hsa_amd_memory_pool_free(memory)),
                5 => {
                    let mut info = hsa_amd_pointer_info_t { size: bytes.byte().into(), ..Default::default() };
                    hsa_amd_pointer_info(inside, &raw mut info, None, null_mut(), null_mut());
                }
                6 => {
                    let agents = [self.agent(bytes)];
                    hsa_amd_agents_allow_access(1, agents.as_ptr(), null(), memory);
                }
                7 if self.is_known(inside) => drop(hsa_amd_memory_fill(inside, 7, size)),
                8 if self.is_known(inside) => drop(hsa_memory_copy(inside, own, fits)),
                9 if self.is_known(inside) => drop(hsa_memory_copy(own, inside, fits)),
                10 if self.is_known(inside) && self.is_known(memory) => {
                    let (agent, other) = (self.agent(bytes), self.agent(bytes));
                    wait_for(|done| {
                        hsa_amd_memory_async_copy(inside, agent, memory, other, size, 0, null(), done)
                    });
                }
                11 => drop(hsa_amd_memory_lock(own.byte_add(64), fits.max(1), null_mut(), 0, &raw mut made)),
                12 => drop(hsa_amd_memory_unlock(own.byte_add(64))),
                _ => {
                    let (attribute, answer) =
                        (bytes.of(&[0, 1, 5, 16, 17, 18], |n| (n & 0xffff) as u32), self.place());
                    hsa_amd_memory_pool_get_info(pool, attribute, answer);
                }
            }
        }
    }

    /// Whether an address is one that the runtime knows: of others a copy is the program's own affair.
    fn is_known(&self, address: *mut c_void) -> bool {
        let mut info = hsa_amd_pointer_info_t {
            size: queues::words::count(size_of::<hsa_amd_pointer_info_t>()),
            ..Default::default()
        };
        // SAFETY: the struct is this program's.
        let status = unsafe { hsa_amd_pointer_info(address, &raw mut info, None, null_mut(), null_mut()) };
        status == HSA_STATUS_SUCCESS && info.type_ == HSA_EXT_POINTER_TYPE_HSA
    }

    fn place(&mut self) -> *mut c_void {
        self.answer.as_mut_ptr().cast()
    }

    fn on_code(&mut self, bytes: &mut Bytes<'_>) {
        let executable = bytes.of(&self.executables, |handle| hsa_executable_t { handle });
        let reader = bytes.of(&self.readers, |handle| hsa_code_object_reader_t { handle });
        let (agent, attribute) = (self.agent(bytes), (bytes.word() >> (bytes.byte() % 64) & 0xffff) as u32);
        let answer = self.place();
        let mut made = hsa_executable_t { handle: 0 };
        let mut read = hsa_code_object_reader_t { handle: 0 };
        let mut symbol = hsa_executable_symbol_t { handle: 0 };
        // SAFETY: as above; the place for answers is longer than any attribute.
        unsafe {
            match bytes.byte() % 10 {
                0 => {
                    let profile = u32::from(bytes.byte() % 3);
                    if hsa_executable_create_alt(profile, 0, null(), &raw mut made) == HSA_STATUS_SUCCESS {
                        self.executables.push(made);
                    }
                }
                1 => drop(hsa_executable_destroy(executable)),
                2 => drop(hsa_executable_freeze(executable, null())),
                3 => {
                    let length = bytes.0.len().min(600);
                    let text = bytes.0[..length].as_ptr().cast();
                    let status = hsa_code_object_reader_create_from_memory(text, length, &raw mut read);
                    if status == HSA_STATUS_SUCCESS {
                        self.readers.push(read);
                    }
                }
                4 => drop(hsa_code_object_reader_destroy(reader)),
                5 => {
                    hsa_executable_load_agent_code_object(executable, agent, reader, null(), null_mut());
                }
                6 => {
                    hsa_executable_get_symbol_by_name(
                        executable,
                        c"k.kd".as_ptr(),
                        &raw const agent,
                        &raw mut symbol,
                    );
                }
                7 => drop(hsa_agent_get_info(agent, attribute, answer)),
                8 => drop(hsa_executable_get_info(executable, attribute, answer)),
                _ => drop(hsa_system_get_info(attribute, answer)),
            }
        }
    }

    fn on_ranges(&mut self, bytes: &mut Bytes<'_>) {
        let anything = |address: u64| std::ptr::with_exposed_provenance_mut(queues::words::size(address));
        let range = bytes.of(&self.ranges, anything);
        let physical = bytes.of(&self.physical, |handle| hsa_amd_vmem_alloc_handle_t { handle });
        let size =
            if bytes.byte().is_multiple_of(4) { bytes.size() } else { usize::from(bytes.byte() % 32) * 4096 };
        let at = range.wrapping_byte_add(usize::from(bytes.byte() % 16) * 4096);
        let (pool, agent) = (self.pool(bytes), self.agent(bytes));
        let (mut made, mut memory) = (null_mut(), hsa_amd_vmem_alloc_handle_t::default());
        // SAFETY: as above.
        unsafe {
            match bytes.byte() % 8 {
                0 => {
                    if hsa_amd_vmem_address_reserve(&raw mut made, size, 0, 0) == HSA_STATUS_SUCCESS {
                        self.ranges.push(made);
                    }
                }
                1 => drop(hsa_amd_vmem_address_free(range, size)),
                2 => {
                    let status = hsa_amd_vmem_handle_create(pool, size % (8 << 20), 1, 0, &raw mut memory);
                    if status == HSA_STATUS_SUCCESS {
                        self.physical.push(memory);
                    }
                }
                3 => drop(hsa_amd_vmem_handle_release(physical)),
                4 => drop(hsa_amd_vmem_map(at, size, 0, physical, 0)),
                5 => drop(hsa_amd_vmem_unmap(at, size)),
                6 => {
                    let permissions = u32::from(bytes.byte() % 5);
                    let wanted = [hsa_amd_memory_access_desc_t { permissions, agent_handle: agent }];
                    hsa_amd_vmem_set_access(at, size, wanted.as_ptr(), 1);
                }
                _ => {
                    let mut permissions = 0;
                    hsa_amd_vmem_get_access(at, &raw mut permissions, agent);
                }
            }
        }
    }

    /// Memory of the program's own that is shared, and what came last into the header.
    fn on_shared(&mut self, bytes: &mut Bytes<'_>) {
        let (agent, signal) = (self.agent(bytes), self.signal(bytes));
        let memory = bytes.of(&self.memory, |_| null_mut());
        let at = self.shared.wrapping_byte_add(usize::from(bytes.byte() % 16) * 1024);
        // Inside of the memory, or far beyond all that there is.
        let size = match bytes.size() {
            size if size >> 44 != 0 => size,
            size => size % (SHARED / 2),
        };
        let attribute = u64::from(bytes.byte() % 8) + u64::from(bytes.byte() % 2) * 0x200;
        let value = bytes.of(&[agent.handle, 0, 1], |word| word);
        let mut pairs = [hsa_amd_svm_attribute_pair_t { attribute, value }; 2];
        pairs[1].attribute ^= u64::from(bytes.byte() % 4);
        let mut op = hsa_amd_memory_copy_op_t {
            version: u16::from(bytes.byte() % 2),
            type_: u16::from(bytes.byte() % 8),
            src: self.shared.expose_provenance() as u64,
            src_agent: agent,
            dst_agent: self.agent(bytes).handle,
            dst: memory.expose_provenance() as u64,
            size: (size % 4096) as u64,
            ..hsa_amd_memory_copy_op_t::default()
        };
        op.wait[0] = u64::from(bytes.byte() / 128);
        let flags = u16::from(bytes.byte() % 8);
        let mut desc = hsa_amd_queue_create_desc_t {
            version: op.version,
            flags,
            engine_type: bytes.byte() % 4,
            reserved_header: [0; 3],
            queue_size_bytes: queues::words::words(size as u64)[0],
            priority: u32::from(bytes.byte() % 4),
            callback: None,
            callback_data: null_mut(),
            queue: null_mut(),
            cu_mask: null(),
            type_: u32::from(bytes.byte() % 4),
            private_segment_size: 0,
            cu_mask_count: u32::from(bytes.byte() / 192) * 32,
            reserved_compute: [0; 3],
            traffic_class: 0,
            reserved: [0; 20],
        };
        // SAFETY: lists are as long as is said; agents get access to memory that is this sequence's, or to nothing that is mapped.
        unsafe {
            match bytes.byte() % 6 {
                0 => drop(hsa_amd_svm_attributes_set(
                    at,
                    size,
                    pairs.as_mut_ptr(),
                    1 + usize::from(value == 1),
                )),
                1 => drop(hsa_amd_svm_attributes_get(at, size, pairs.as_mut_ptr(), 2)),
                2 => drop(hsa_amd_svm_prefetch_async(at, size, agent, 0, null(), signal)),
                3 if memory.is_null() || self.is_known(memory) => {
                    wait_for(|done| {
                        op.completion_signal = done;
                        hsa_amd_memory_async_batch_copy(&raw const op, 1, 0, null())
                    });
                }
                4 => {
                    if hsa_amd_queue_create(agent, &raw mut desc, 1) == HSA_STATUS_SUCCESS {
                        self.queues.push(desc.queue);
                        self.live.push(desc.queue);
                    }
                }
                _ => drop(hsa_amd_svm_discard_batch_async(null_mut(), null_mut(), 1, 0, null(), signal)),
            }
        }
    }
}
