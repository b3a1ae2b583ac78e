// SPDX-License-Identifier: MIT OR Apache-2.0
//! PM4 queues: a client's ring, the streams that clients submit, and what they leave in memory.
//!
//! INVARIANT: the client here is a strict one. It writes dwords before it rings, and never more than the read pointer
//! leaves free, so a test that loses or repeats a packet finds the processor at fault.

mod buffers;
mod halts;
mod launches;
mod memory;
pub(super) mod preemption;

use std::cell::Cell;

use queues::pm4::{self, CachePolicy, Compare, Packet, Width};

use super::*;

/// A PM4 queue with its client's side.
pub(super) struct Ring<'a> {
    machine: &'a Machine,
    ring: Buffer,
    pointers: Buffer,
    save: Buffer,
    id: u32,
    /// Dwords of the ring.
    size: u64,
    /// Dwords written so far.
    put: Cell<u64>,
    mqd: Mutex<Mqd>,
}

impl<'a> Ring<'a> {
    /// A started queue with a ring of 4 KiB.
    pub(super) fn new(machine: &'a Machine, id: u32) -> Self {
        Self::with_bytes(machine, id, 4096)
    }

    fn with_bytes(machine: &'a Machine, id: u32, bytes: usize) -> Self {
        assert!(machine.used.lock().insert(id), "queue {id} twice");
        let queue = Self {
            machine,
            ring: machine.buffer(bytes, DATA),
            pointers: machine.buffer(4096, DATA),
            save: machine.buffer(SAVE_BYTES as usize, DATA),
            id,
            size: bytes as u64 / 4,
            put: Cell::new(0),
            mqd: Mutex::default(),
        };
        queue.start();
        queue
    }

    pub(super) fn config(&self) -> HwQueue {
        HwQueue {
            id: self.id,
            ring_va: self.ring.va,
            ring_bytes: self.size * 4,
            read_ptr_va: self.pointers.va + 128,
            write_ptr_va: self.pointers.va + 56,
            doorbell_offset: self.id * 8,
            cwsr_va: self.save.va,
            ..some_queue(HwQueueKind::Compute)
        }
    }

    /// What the processor says: dwords, wrapped at the ring's size.
    fn read_pointer(&self) -> u64 {
        u64::from(self.pointers.u32(128).load(Ordering::SeqCst))
    }

    /// The read pointer of a client whose packets are all done.
    fn done_pointer(&self) -> u64 {
        self.put.get() % self.size
    }

    /// Writes dwords without telling.
    fn write(&self, words: &[u32]) {
        let (put, size) = (self.put.get(), self.size);
        let needed = words.len() as u64;
        eventually("room in the ring", || (put.wrapping_sub(self.read_pointer())) % size + needed < size);
        for (at, word) in (put..).zip(words) {
            let place = usize::try_from(at % size).unwrap() * 4;
            self.ring.u32(place).store(*word, Ordering::Relaxed);
        }
        self.put.set(put + needed);
    }

    /// Tells of all dwords written.
    fn ring(&self) {
        self.pointers.u64(56).store(self.put.get(), Ordering::SeqCst);
        self.machine.gpus.gpus[0].gpu().doorbells.ring(self.id * 8, self.put.get());
    }

    pub(super) fn submit(&self, words: &[u32]) {
        self.write(words);
        self.ring();
    }

    fn submit_packets(&self, packets: &[Packet<'_>]) {
        self.submit(&encode(packets));
    }

    /// Waits until the processor has done everything.
    pub(super) fn finish(&self) {
        eventually("the ring to be empty", || self.read_pointer() == self.done_pointer());
    }

    fn stop(&self) -> SavedWaves {
        let mqd = self.machine.gpus.stop_queue(0, self.id).unwrap().unwrap();
        *self.mqd.lock() = *mqd;
        self.mqd.lock().waves()
    }

    fn start(&self) {
        self.machine.gpus.start_queue(0, &self.config(), &self.mqd.lock()).unwrap();
    }

    fn destroy(&self) {
        self.machine.gpus.destroy_queue(0, self.id);
    }

    /// Replaces it by a new queue with the same memory.
    fn renew(&self) {
        self.destroy();
        self.put.set(0);
        self.pointers.u64(56).store(0, Ordering::SeqCst);
        self.pointers.u64(128).store(0, Ordering::SeqCst);
        *self.mqd.lock() = Mqd::default();
        self.start();
    }

    /// That it still executes.
    fn assert_alive(&self) {
        let done = self.machine.signal(1);
        self.submit_packets(&[completes(&done)]);
        done.wait_zero();
    }
}

pub(super) fn encode(packets: &[Packet<'_>]) -> Vec<u32> {
    let mut words = Vec::new();
    packets.iter().for_each(|packet| packet.encode(&mut words).unwrap());
    words
}

/// Sets the signal to zero.
fn completes(signal: &Signal) -> Packet<'static> {
    pm4::signal(signal.handle() + 8, 0, Width::Bits64)
}

pub(super) fn write_data(address: u64, data: &[u32]) -> Packet<'_> {
    Packet::WriteData(pm4::WriteData {
        destination: pm4::Destination::Memory { address },
        increment: true,
        confirm: true,
        cache_policy: CachePolicy::Lru,
        data,
    })
}

/// Waits until a dword is this.
pub(super) fn wait_for(address: u64, value: u32) -> Packet<'static> {
    pm4::wait_memory(address, Compare::Equal, value, u32::MAX)
}

/// The resource words of the harness's kernels.
fn resources() -> KernelDescriptor {
    KernelDescriptor {
        compute_pgm_rsrc1: 3 | 0xf0 << 12,
        compute_pgm_rsrc2: 2 << 1 | 1 << 7,
        ..KernelDescriptor::default()
    }
}

/// A launch of work-groups of 32, with a pointer in s[0:1] and the work-group's x in s2.
fn launch_with<'a>(
    kernel: &Kernel,
    descriptor: &'a KernelDescriptor,
    user_data: &'a [u32],
    groups: u32,
) -> pm4::Dispatch<'a> {
    pm4::Dispatch {
        target: chip().target,
        simd_arrays: chip().arrays,
        entry: kernel.buffer.va + 256,
        descriptor,
        group_segment_bytes: 0,
        scratch: None,
        user_data,
        workgroup: [32, 1, 1],
        groups: [groups, 1, 1],
        wave32: true,
    }
}

fn pointer(address: u64) -> [u32; 2] {
    [u32::try_from(address & 0xffff_ffff).unwrap(), u32::try_from(address >> 32).unwrap()]
}

/// The packets of [`launch_with`] the usual resources.
pub(super) fn launch(kernel: &Kernel, array: u64, groups: u32) -> Vec<u32> {
    let mut words = Vec::new();
    launch_with(kernel, &resources(), &pointer(array), groups).encode(&mut words).unwrap();
    words
}

/// Adds 1 to `array[lane + 32 * group]`, with the array in s[0:1].
pub(super) const COUNT: &str = "
    s_lshl_b32 s6, s2, 5
    v_and_b32 v0, 0x3ff, v0
    v_add_nc_u32 v0, s6, v0
    v_lshlrev_b32 v1, 2, v0
    v_mov_b32 v2, 1
    global_atomic_add_u32 v1, v2, s[0:1]
    s_endpgm";

/// Counts in `array[1]` until `array[0]` is set, then adds 7 to `array[2]`.
const UNTIL_FLAG: &str = "
    v_mov_b32 v0, 0
    v_mov_b32 v2, 0
  again:
    v_add_nc_u32 v2, 1, v2
    global_store_b32 v0, v2, s[0:1] offset:4
    global_load_b32 v1, v0, s[0:1] glc
    s_waitcnt vmcnt(0)
    v_readfirstlane_b32 s6, v1
    s_cmp_eq_u32 s6, 0
    s_cbranch_scc1 again
    s_mov_b32 exec_lo, 1
    v_mov_b32 v1, 7
    global_atomic_add_u32 v0, v1, s[0:1] offset:8
    s_endpgm";

pub(super) fn dword(buffer: &Buffer, index: usize) -> u32 {
    buffer.u32(index * 4).load(Ordering::SeqCst)
}
