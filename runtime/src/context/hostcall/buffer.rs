// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory through which kernels call the host: two stacks of packets, one of free ones and one of calls.
//!
//! A wave takes a packet off the free stack, fills in what each of its lanes wants, puts the packet onto the ready stack, raises the
//! doorbell signal and waits until the packet is answered; then it reads the answers and gives the packet back (`__ockl_hostcall_internal`
//! of ROCm's device library, `ockl/src/hostcall.cl`). A pointer on a stack is the packet's index in its low bits under a tag that
//! changes with each use; 0 is the end of a stack. A wave does not look whether a stack is empty, so there are as many packets as waves
//! can be on the agent, saved ones of the queue among them: a wave has one call at a time.
//!
//! INVARIANT: whatever a kernel has written there, a call touches the buffer only, and a look at the ready stack ends.

use std::sync::atomic::Ordering;

use crate::context::memory::mapped::Mapped;

/// Where the fields lie that the device library reads.
mod field {
    /// Address of the packets' headers.
    pub const HEADERS: u64 = 0;
    /// Address of the packets' payloads.
    pub const PAYLOADS: u64 = 8;
    /// Handle of the doorbell signal.
    pub const DOORBELL: u64 = 16;
    pub const FREE_STACK: u64 = 24;
    pub const READY_STACK: u64 = 32;
    /// The bits of a pointer that are an index.
    pub const INDEX_MASK: u64 = 40;
    pub const BYTES: u64 = 64;
}

/// Where the fields of a packet's header lie.
mod header {
    pub const NEXT: u64 = 0;
    /// Which lanes call.
    pub const LANES: u64 = 8;
    pub const SERVICE: u64 = 16;
    pub const CONTROL: u64 = 20;
    pub const BYTES: u64 = 24;
}

/// In a header's control word: the packet is a call that is not answered yet.
const READY: u32 = 1;
/// Lanes that a payload has room for.
pub const LANES: u64 = 64;
/// Words that a lane gives with a call.
pub const WORDS: usize = 8;
const SLOT_BYTES: u64 = 8 * WORDS as u64;
const PAYLOAD_BYTES: u64 = LANES * SLOT_BYTES;

/// A buffer of packets. A power of two of them, at least two.
#[derive(Clone, Copy, Debug)]
pub struct PacketBuffer {
    view: Mapped,
    packets: u64,
}

/// A call that was taken off the ready stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    index: u64,
    /// What is wanted.
    pub service: u32,
    /// Which lanes want it.
    pub lanes: u64,
}

/// Where the payloads begin: whole pages.
const fn payloads_offset(packets: u64) -> u64 {
    (field::BYTES + packets * header::BYTES).next_multiple_of(PAYLOAD_BYTES)
}

impl PacketBuffer {
    /// Bytes of memory for `packets` packets.
    pub const fn bytes(packets: u64) -> u64 {
        payloads_offset(packets) + packets * PAYLOAD_BYTES
    }

    /// How many packets an agent needs that holds `waves` waves.
    pub const fn packets_for(waves: u64) -> u64 {
        waves.next_power_of_two()
    }

    /// A buffer over memory of [`PacketBuffer::bytes`] zeros, all of its packets free.
    pub fn create(view: Mapped, packets: u64, doorbell: u64) -> Self {
        let buffer = PacketBuffer { view, packets };
        let order = Ordering::Relaxed;
        view.store(field::HEADERS, view.va() + field::BYTES, order);
        view.store(field::PAYLOADS, view.va() + payloads_offset(packets), order);
        view.store(field::DOORBELL, doorbell, order);
        view.store(field::INDEX_MASK, packets - 1, order);
        view.store(field::READY_STACK, 0, order);
        view.store(buffer.header(0) + header::NEXT, 0, order);
        // The first packet's index is 0, and a tag keeps its pointer from being the end.
        let mut top = packets;
        for index in 1..packets {
            view.store(buffer.header(index) + header::NEXT, top, order);
            top = index;
        }
        view.store(field::FREE_STACK, top, Ordering::Release);
        buffer
    }

    /// Its address, as kernels are given it.
    pub fn va(&self) -> u64 {
        self.view.va()
    }

    fn index(&self, pointer: u64) -> u64 {
        pointer & (self.packets - 1)
    }

    fn header(&self, index: u64) -> u64 {
        field::BYTES + index * header::BYTES
    }

    fn slot(&self, call: Call, lane: u64) -> u64 {
        payloads_offset(self.packets) + call.index * PAYLOAD_BYTES + lane % LANES * SLOT_BYTES
    }

    /// Whether the ready stack has calls.
    pub fn has_calls(&self) -> bool {
        self.view.load(field::READY_STACK, Ordering::Relaxed) != 0
    }

    /// Takes all calls off the ready stack, the oldest first. Those that a kernel's mistake has put there twice are there once.
    pub fn take_calls(&self) -> Vec<Call> {
        // Not written where there is nothing: the page may be guarded.
        if !self.has_calls() {
            return Vec::new();
        }
        let mut pointer = self.view.swap(field::READY_STACK, 0);
        let mut calls: Vec<Call> = Vec::new();
        let mut is_taken = vec![false; usize::try_from(self.packets).unwrap_or(0)];
        while pointer != 0 {
            let index = self.index(pointer);
            let Some(taken) = usize::try_from(index).ok().and_then(|index| is_taken.get_mut(index)) else {
                break;
            };
            if std::mem::replace(taken, true) {
                break;
            }
            let at = self.header(index);
            pointer = self.view.load(at + header::NEXT, Ordering::Relaxed);
            if self.view.load32(at + header::CONTROL, Ordering::Acquire) & READY == 0 {
                continue;
            }
            calls.push(Call {
                index,
                service: self.view.load32(at + header::SERVICE, Ordering::Relaxed),
                lanes: self.view.load(at + header::LANES, Ordering::Relaxed),
            });
        }
        calls.reverse();
        calls
    }

    /// What a lane gives.
    pub fn words(&self, call: Call, lane: u64) -> [u64; WORDS] {
        let slot = self.slot(call, lane);
        std::array::from_fn(|word| self.view.load(slot + 8 * word as u64, Ordering::Relaxed))
    }

    /// Puts the first word of a lane's answer in place; the lane reads it when the call is answered.
    pub fn set_answer(&self, call: Call, lane: u64, answer: u64) {
        self.view.store(self.slot(call, lane), answer, Ordering::Relaxed);
    }

    /// Says that a call is answered: its wave goes on, and the packet is no longer the caller's.
    pub fn complete(&self, call: Call) {
        let control = self.header(call.index) + header::CONTROL;
        let value = self.view.load32(control, Ordering::Relaxed);
        // ORDERING: publishes the answers.
        self.view.store32(control, value & !READY, Ordering::Release);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Memory for a buffer, and what a wave does with it.
    pub struct Waves {
        _memory: Vec<u64>,
        pub buffer: PacketBuffer,
    }

    impl Waves {
        pub fn new(packets: u64) -> Self {
            let mut memory = vec![0u64; usize::try_from(PacketBuffer::bytes(packets) / 8).unwrap()];
            let va = memory.as_mut_ptr().expose_provenance() as u64;
            let view = crate::context::memory::mapped::view(va, PacketBuffer::bytes(packets)).unwrap();
            Waves { _memory: memory, buffer: PacketBuffer::create(view, packets, 0x1234) }
        }

        fn view(&self) -> Mapped {
            self.buffer.view
        }

        /// Takes a packet, fills it in and puts it onto the ready stack. Its pointer.
        pub fn call(&self, service: u32, lanes: &[(u64, [u64; WORDS])]) -> u64 {
            let (view, order) = (self.view(), Ordering::Relaxed);
            let pointer = view.load(field::FREE_STACK, order);
            let at = self.buffer.header(self.buffer.index(pointer));
            view.store(field::FREE_STACK, view.load(at + header::NEXT, order), order);
            let mask = lanes.iter().fold(0, |mask, (lane, _)| mask | 1 << lane);
            view.store(at + header::LANES, mask, order);
            view.store32(at + header::SERVICE, service, order);
            view.store32(at + header::CONTROL, READY, order);
            let call = Call { index: self.buffer.index(pointer), service, lanes: mask };
            for (lane, words) in lanes {
                for (word, value) in words.iter().enumerate() {
                    view.store(self.buffer.slot(call, *lane) + 8 * word as u64, *value, order);
                }
            }
            view.store(at + header::NEXT, view.load(field::READY_STACK, order), order);
            view.store(field::READY_STACK, pointer, order);
            pointer
        }

        /// The answer of a lane, once there is one; gives the packet back.
        pub fn answer(&self, pointer: u64, lanes: &[u64]) -> Option<Vec<u64>> {
            let (view, order) = (self.view(), Ordering::Relaxed);
            let index = self.buffer.index(pointer);
            let at = self.buffer.header(index);
            if view.load32(at + header::CONTROL, order) & READY != 0 {
                return None;
            }
            let call = Call { index, service: 0, lanes: 0 };
            let answers = lanes.iter().map(|&lane| view.load(self.buffer.slot(call, lane), order)).collect();
            view.store(at + header::NEXT, view.load(field::FREE_STACK, order), order);
            view.store(field::FREE_STACK, pointer.wrapping_add(self.buffer.packets), order);
            Some(answers)
        }
    }

    #[test]
    fn calls_come_oldest_first_and_every_packet_can_be_used_at_once() {
        let waves = Waves::new(8);
        for round in 0..5 {
            let words = |call: u64| [round * 100 + call; WORDS];
            let pointers: Vec<u64> = (0..8).map(|call| waves.call(2, &[(call, words(call))])).collect();
            assert!(!pointers.contains(&0), "{pointers:?}");
            assert_eq!(waves.answer(pointers[0], &[0]), None);
            let calls = waves.buffer.take_calls();
            assert!(waves.buffer.take_calls().is_empty());
            assert_eq!(calls.len(), 8);
            for (at, call) in (0..).zip(&calls) {
                assert_eq!((call.service, call.lanes), (2, 1 << at));
                assert_eq!(waves.buffer.words(*call, at), words(at));
                waves.buffer.set_answer(*call, at, at + 7);
                waves.buffer.complete(*call);
            }
            for (lane, pointer) in (0..).zip(pointers) {
                assert_eq!(waves.answer(pointer, &[lane]), Some(vec![lane + 7]));
            }
        }
    }

    proptest! {
        /// Whatever is in the memory: a look ends, gives each packet once at most, and calls can be answered.
        #[test]
        fn anything_in_the_memory_is_survived(
            scribbles in proptest::collection::vec((0usize..64, any::<u64>()), 1..64),
            ready in any::<u64>(),
        ) {
            let waves = Waves::new(4);
            for (at, value) in scribbles {
                waves.view().store(8 * at as u64, value, Ordering::Relaxed);
            }
            waves.view().store(field::READY_STACK, ready, Ordering::Relaxed);
            let calls = waves.buffer.take_calls();
            prop_assert!(calls.len() <= 4);
            for call in calls {
                for lane in [0, 63, 64, u64::MAX] {
                    waves.buffer.words(call, lane);
                    waves.buffer.set_answer(call, lane, 1);
                }
                waves.buffer.complete(call);
            }
            prop_assert!(waves.buffer.take_calls().is_empty());
        }
    }
}
