// SPDX-License-Identifier: MIT OR Apache-2.0
//! SDMA queues: a client's ring, the streams that clients submit, and what they leave in memory.
//!
//! INVARIANT: the client here is a strict one. It writes packets before it announces them, and never more than the
//! read pointer leaves free, so a test that loses or repeats a packet finds the processor at fault.

mod copies;
mod halts;
mod packets;
mod preemption;
mod streams;

use std::cell::Cell;

use queues::sdma::{Compare, CopyLinear, Fence, Generation, Packet, PollRegMem, pad_to_fit, push_nops};

use super::*;

/// What a gfx1100 has.
const V6: Generation = Generation::V6;

/// An SDMA queue with its client's side.
pub(super) struct Engine<'a> {
    machine: &'a Machine,
    ring: Buffer,
    pointers: Buffer,
    id: u32,
    /// Bytes of the ring.
    size: u64,
    /// Bytes written so far.
    put: Cell<u64>,
    mqd: Mutex<Mqd>,
}

impl<'a> Engine<'a> {
    /// A started queue with a ring of 4 KiB.
    pub(super) fn new(machine: &'a Machine, id: u32) -> Self {
        assert!(machine.used.lock().insert(id), "queue {id} twice");
        let engine = Self {
            machine,
            ring: machine.buffer(4096, DATA),
            pointers: machine.buffer(4096, DATA),
            id,
            size: 4096,
            put: Cell::new(0),
            mqd: Mutex::default(),
        };
        engine.start();
        engine
    }

    pub(super) fn config(&self) -> HwQueue {
        HwQueue {
            id: self.id,
            ring_va: self.ring.va,
            ring_bytes: self.size,
            read_ptr_va: self.pointers.va + 128,
            write_ptr_va: self.pointers.va + 56,
            doorbell_offset: self.id * 8,
            // Only compute queues have waves to save.
            cwsr_va: 0,
            cwsr_bytes: 0,
            control_stack_bytes: 0,
            ..some_queue(HwQueueKind::Sdma)
        }
    }

    fn read_pointer(&self) -> u64 {
        self.pointers.u64(128).load(Ordering::SeqCst)
    }

    /// Writes dwords without telling, straddling the ring's end if it comes so.
    fn write(&self, words: &[u32]) {
        let put = self.put.get();
        let bytes = 4 * words.len() as u64;
        eventually("room in the ring", || put + bytes - self.read_pointer() <= self.size);
        for (at, word) in (put..).step_by(4).zip(words) {
            self.ring.u32(usize::try_from(at % self.size).unwrap()).store(*word, Ordering::Relaxed);
        }
        self.put.set(put + bytes);
    }

    /// Tells of all dwords written.
    fn announce(&self) {
        self.pointers.u64(56).store(self.put.get(), Ordering::SeqCst);
        self.machine.gpus.gpus[0].gpu().doorbells.ring(self.id * 8, self.put.get());
    }

    /// Writes a packet as clients do, never across the ring's end, without telling.
    fn push(&self, packet: &Packet<'_>) {
        let size = u32::try_from(self.size).unwrap();
        let mut padding = Vec::new();
        push_nops(&mut padding, pad_to_fit(self.put.get(), size, packet.dwords()).unwrap());
        self.write(&padding);
        let mut words = Vec::new();
        packet.encode(V6, &mut words).unwrap();
        self.write(&words);
    }

    pub(super) fn submit(&self, packets: &[Packet<'_>]) {
        packets.iter().for_each(|packet| self.push(packet));
        self.announce();
    }

    fn submit_words(&self, words: &[u32]) {
        self.write(words);
        self.announce();
    }

    fn copy(&self, dst: u64, src: u64, bytes: u32) {
        self.submit(&[Packet::CopyLinear(CopyLinear { bytes, src, dst })]);
    }

    /// Waits until the read pointer has come as far as the write pointer.
    pub(super) fn finish(&self) {
        eventually("the engine", || self.read_pointer() == self.put.get());
    }

    fn stop(&self) {
        let mqd = self.machine.gpus.stop_queue(0, self.id).unwrap().unwrap();
        *self.mqd.lock() = *mqd;
    }

    fn start(&self) {
        self.machine.gpus.start_queue(0, &self.config(), &self.mqd.lock()).unwrap();
    }

    fn destroy(&self) {
        self.machine.gpus.destroy_queue(0, self.id);
    }
}

fn fence(address: u64, value: u32) -> Packet<'static> {
    Packet::Fence(Fence { address, value, mtype: 3 })
}

fn poll(address: u64, compare: Compare, value: u32) -> Packet<'static> {
    Packet::PollRegMem(PollRegMem::memory(address, compare, value))
}
