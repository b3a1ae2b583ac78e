// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of queues that the program reads and writes itself: `amd_queue_t`, the signal of the doorbell, the doorbell, the ring.
//!
//! INVARIANT: it is plain memory of the process, never the driver's and never mapped elsewhere: it is there and keeps its contents
//! whatever happens to the device, through a checkpoint and a restore, so a thread may write to it at any moment. The descriptors' and
//! doorbells' pages stay mapped for the life of the process; every word is accessed atomically.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use queues::aql::RawPacket;
use queues::hsa::{AmdQueue, AmdSignal, signal_kind};
use queues::words::{double, size};

use crate::abi::{OUT_OF_RESOURCES, Outcome};

/// Queues that a process can have.
pub const PLACES: usize = 1024;
/// Bytes of a queue's descriptor, and where its doorbell's signal is.
const PAGE: usize = 4096;
const SIGNAL: usize = 256;
/// Bytes of the doorbells' pages, and of the words by which the program flushes the host data path of each agent.
const DOORBELLS: usize = PLACES * 8;
const FLUSHES: usize = PAGE;
const PACKET: usize = 64;
/// Header of a packet that is not published: the low half of its first word.
const INVALID: u32 = 1;
/// Agents that there are words for.
const AGENTS: usize = FLUSHES / 8;

/// Anonymous memory, private to the process.
#[derive(Debug)]
struct Pages {
    at: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: it is memory that any thread may access, atomically.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(bytes: usize) -> Outcome<Self> {
        let bytes = NonZeroUsize::new(bytes).ok_or(OUT_OF_RESOURCES)?;
        let (rights, flags) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE);
        // SAFETY: a new mapping where the kernel chooses replaces nothing.
        let at = unsafe { mmap_anonymous(None, bytes, rights, flags) }.map_err(|_| OUT_OF_RESOURCES)?;
        at.as_ptr().expose_provenance();
        Ok(Pages { at: at.cast(), bytes })
    }

    fn address(&self) -> usize {
        self.at.as_ptr().addr()
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.bytes.get(), "INVARIANT: a word of the area");
        // SAFETY: inside and aligned, as just checked; mapped while the value lives, and accessed atomically only.
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < self.bytes.get(), "INVARIANT: a word of the area");
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the owner is gone.
        let _ = unsafe { munmap(self.at.cast(), self.bytes.get()) };
    }
}

/// The descriptors, doorbells and flush words of all queues.
#[derive(Debug)]
pub struct Area {
    descriptors: Pages,
    doorbells: Pages,
    flushes: Pages,
}

impl Area {
    pub fn new() -> Outcome<Self> {
        Ok(Area {
            descriptors: Pages::new(PLACES * PAGE)?,
            doorbells: Pages::new(DOORBELLS)?,
            flushes: Pages::new(FLUSHES)?,
        })
    }

    /// The place whose descriptor is at an address.
    pub fn place_of_queue(&self, address: usize) -> Option<usize> {
        let distance = address.checked_sub(self.descriptors.address())?;
        (distance < PLACES * PAGE && distance.is_multiple_of(PAGE)).then_some(distance / PAGE)
    }

    /// The place whose doorbell has this signal.
    #[inline]
    pub fn place_of_doorbell(&self, handle: u64) -> Option<usize> {
        let distance = size(handle).checked_sub(self.descriptors.address())?;
        (distance < PLACES * PAGE && distance % PAGE == SIGNAL).then_some(distance / PAGE)
    }

    /// Address of a place's descriptor.
    pub fn queue(&self, place: usize) -> usize {
        self.descriptors.address() + place * PAGE
    }

    /// Handle of the signal of a place's doorbell.
    pub fn doorbell_handle(&self, place: usize) -> u64 {
        (self.queue(place) + SIGNAL) as u64
    }

    fn field(&self, place: usize, offset: usize) -> &AtomicU64 {
        self.descriptors.word(place * PAGE + offset)
    }

    /// The packets reserved.
    #[inline]
    pub fn write_index(&self, place: usize) -> &AtomicU64 {
        self.field(place, offset_of!(AmdQueue, write_dispatch_id))
    }

    /// The packets taken out of the ring.
    #[inline]
    pub fn read_index(&self, place: usize) -> &AtomicU64 {
        self.field(place, offset_of!(AmdQueue, read_dispatch_id))
    }

    /// `queue_properties`.
    pub fn properties(&self, place: usize) -> &AtomicU32 {
        self.descriptors.half(place * PAGE + offset_of!(AmdQueue, queue_properties))
    }

    /// The word that a program stores to that rings a doorbell itself.
    #[inline]
    pub fn doorbell(&self, place: usize) -> &AtomicI64 {
        let word = self.doorbells.word(place * 8);
        // SAFETY: the same word, seen as signed; accessed atomically only.
        unsafe { AtomicI64::from_ptr(word.as_ptr().cast()) }
    }

    /// The words by which the program flushes an agent's host data path, as pointers of its own.
    pub fn flush_words(&self, agent: usize) -> [*mut u32; 2] {
        let at = (agent % AGENTS) * 8;
        [self.flushes.half(at).as_ptr(), self.flushes.half(at + 4).as_ptr()]
    }

    /// Whether the program has flushed since the last look.
    #[inline]
    pub fn take_flush(&self, agent: usize) -> bool {
        let word = self.flushes.word((agent % AGENTS) * 8);
        word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::AcqRel) != 0
    }

    /// Writes a place's descriptor and the signal of its doorbell anew.
    pub fn write(&self, place: usize, queue: &AmdQueue, doorbell: bool) {
        self.doorbell(place).store(-1, Ordering::Relaxed);
        let signal = AmdSignal {
            kind: if doorbell { signal_kind::DOORBELL } else { signal_kind::INVALID },
            value: self.doorbell(place).as_ptr().expose_provenance() as i64,
            event_mailbox_ptr: 0,
            event_id: 0,
            reserved1: 0,
            start_ts: 0,
            end_ts: 0,
            queue_ptr: self.queue(place) as u64,
            reserved3: [0; 2],
        };
        self.write_words(place * PAGE + SIGNAL, bytemuck_words(&signal));
        self.write_words(place * PAGE, bytemuck_words(queue));
    }

    fn write_words(&self, offset: usize, words: impl Iterator<Item = u64>) {
        for (nth, word) in words.enumerate() {
            self.descriptors.word(offset + nth * 8).store(word, Ordering::Release);
        }
    }
}

/// A structure of the ABI as words.
fn bytemuck_words<T: bytemuck::Pod>(value: &T) -> impl Iterator<Item = u64> {
    let (words, _) = bytemuck::bytes_of(value).as_chunks::<8>();
    words.iter().map(|word| u64::from_ne_bytes(*word))
}

/// A ring of packets that the program writes.
#[derive(Debug)]
pub struct Ring {
    pages: Pages,
    packets: u32,
}

impl Ring {
    /// A ring of a power of two of packets, none published.
    pub fn new(packets: u32) -> Outcome<Self> {
        let ring = Ring { pages: Pages::new(packets as usize * PACKET)?, packets };
        for index in 0..u64::from(packets) {
            ring.header(index).store(INVALID, Ordering::Relaxed);
        }
        Ok(ring)
    }

    pub fn address(&self) -> u64 {
        self.pages.address() as u64
    }

    fn offset(&self, index: u64) -> usize {
        size(index & u64::from(self.packets - 1)) * PACKET
    }

    fn header(&self, index: u64) -> &AtomicU32 {
        self.pages.half(self.offset(index))
    }

    /// Its length in packets.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Whether the packet of an index is published.
    #[inline]
    pub fn is_published(&self, index: u64) -> bool {
        self.header(index).load(Ordering::Relaxed) & 0xff != INVALID
    }

    /// The packet of an index, if it is published.
    #[inline]
    pub fn packet(&self, index: u64) -> Option<RawPacket> {
        // ORDERING: pairs with the program's release of the header behind the packet.
        let first = self.header(index).load(Ordering::Acquire);
        if first & 0xff == INVALID {
            return None;
        }
        let mut packet: RawPacket = [0; PACKET / 4];
        packet[0] = first;
        let at = self.offset(index);
        packet[1] = self.pages.half(at + 4).load(Ordering::Relaxed);
        let (pairs, _) = packet[2..].as_chunks_mut::<2>();
        for (pair, offset) in pairs.iter_mut().zip((at + 8..).step_by(8)) {
            *pair = queues::words::words(self.pages.word(offset).load(Ordering::Relaxed));
        }
        Some(packet)
    }

    /// Takes a packet out: its place is the program's again.
    #[inline]
    pub fn take(&self, index: u64) {
        self.header(index).store(INVALID, Ordering::Relaxed);
    }

    /// Publishes a packet, as a program does.
    #[cfg(test)]
    pub fn publish(&self, index: u64, packet: &RawPacket) {
        let at = self.offset(index);
        for (nth, word) in packet.iter().enumerate().skip(1) {
            self.pages.half(at + nth * 4).store(*word, Ordering::Relaxed);
        }
        self.header(index).store(packet[0], Ordering::Release);
    }
}

const _: () = assert!(size_of::<AmdQueue>() <= SIGNAL && double(1, 0) == 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_is_seen_when_it_is_published_and_its_place_is_free_when_it_is_taken() {
        let ring = Ring::new(64).unwrap();
        let packet: RawPacket = std::array::from_fn(|word| 0x100 * word as u32 + 3);
        for index in [0, 63, 64, 1 << 40] {
            assert!(!ring.is_published(index) && ring.packet(index).is_none());
            ring.publish(index, &packet);
            assert!(ring.is_published(index));
            assert_eq!(ring.packet(index), Some(packet));
            assert_eq!(ring.packet(index + 1), None);
            ring.take(index);
            assert_eq!(ring.packet(index), None);
        }
    }

    #[test]
    fn pointers_and_handles_name_their_places_only() {
        let area = Area::new().unwrap();
        for place in [0, 1, PLACES - 1] {
            assert_eq!(area.place_of_queue(area.queue(place)), Some(place));
            assert_eq!(area.place_of_doorbell(area.doorbell_handle(place)), Some(place));
            assert_eq!(area.place_of_queue(area.queue(place) + 64), None);
            assert_eq!(area.place_of_doorbell(area.queue(place) as u64), None);
        }
        assert_eq!(area.place_of_queue(area.queue(0) - PAGE), None);
        assert_eq!(area.place_of_queue(area.queue(PLACES - 1) + PAGE), None);
        assert_eq!(area.place_of_doorbell(u64::MAX), None);
    }

    #[test]
    fn descriptor_says_what_it_was_made_with_and_its_doorbell_where_to_store() {
        let area = Area::new().unwrap();
        let queue = AmdQueue { size: 128, id: 9, ..bytemuck::Zeroable::zeroed() };
        area.write(3, &queue, true);
        area.write_index(3).store(7, Ordering::Relaxed);
        area.read_index(3).store(5, Ordering::Relaxed);
        let page = 3 * PAGE;
        assert_eq!(area.descriptors.half(page + offset_of!(AmdQueue, size)).load(Ordering::Relaxed), 128);
        assert_eq!(area.descriptors.word(page + 56).load(Ordering::Relaxed), 7);
        assert_eq!(area.descriptors.word(page + 128).load(Ordering::Relaxed), 5);
        let kind = area.descriptors.word(page + SIGNAL).load(Ordering::Relaxed).cast_signed();
        assert_eq!(kind, signal_kind::DOORBELL);
        let pointer = area.descriptors.word(page + SIGNAL + 8).load(Ordering::Relaxed);
        assert_eq!(pointer, area.doorbell(3).as_ptr().addr() as u64);
    }

    #[test]
    fn flush_of_an_agent_is_taken_once() {
        let area = Area::new().unwrap();
        assert!(!area.take_flush(2));
        let [memory, _] = area.flush_words(2);
        // SAFETY: a word of the area.
        unsafe { AtomicU32::from_ptr(memory) }.store(1, Ordering::Relaxed);
        assert!(!area.take_flush(1) && area.take_flush(2) && !area.take_flush(2));
    }
}
