// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring without a device: the tests play the processor.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::context::error::SubmitError;
use crate::context::queue::live::aql::{BARRIER_BIT, INVALID};
use crate::context::registry::Key;
use crate::context::registry::state::{QueueBos, QueueKind};

/// Host memory in place of buffer objects, kept alive beside the queue.
struct Fake {
    live: QueueLive,
    gate: Arc<Gate>,
    _memory: Vec<Vec<u64>>,
}

fn state(packets: u32) -> QueueState {
    let bo = Key::from_raw(0, 0);
    QueueState {
        agent: AgentIndex(0),
        kind: QueueKind::Aql,
        ring_bytes: packets * 64,
        priority: 7,
        percentage: 100,
        suspended: false,
        cu_mask: Vec::new(),
        bos: QueueBos {
            ring: bo,
            page: bo,
            eop: Some(bo),
            save_area: Some(bo),
            kernargs: Some(bo),
            scratch: None,
            hostcall: None,
        },
        kernarg_slot_bytes: 64,
        scratch_lane_bytes: 0,
        exceptions: Key::from_raw(0, 0),
        inactive: None,
        hostcall_doorbell: None,
        bias: 0,
        write_index: 0,
        waiting: Vec::new(),
        internal: false,
    }
}

#[allow(unsafe_code)]
fn fake(packets: u64) -> Fake {
    let mut memory: Vec<Vec<u64>> =
        [packets * 8, 512, packets * 16].iter().map(|&words| vec![0u64; words as usize]).collect();
    let mut views = memory.iter_mut().map(|words| {
        let bytes = words.len() as u64 * 8;
        // SAFETY: the vectors are kept beside the queue and touched only through the views.
        unsafe { Mapped::new(words.as_mut_ptr().expose_provenance() as u64, bytes) }.unwrap()
    });
    let (ring, page, kernargs) = (views.next().unwrap(), views.next().unwrap(), views.next().unwrap());
    drop(views);
    let gate = Arc::new(Gate::new());
    let memory_of = QueueMemory { ring, page, kernargs: Some(kernargs), kernarg_slot: 64 };
    let target = Target::by_name("gfx1100").unwrap();
    let ring = Ring::new(packets).unwrap();
    let live = QueueLive::new(&gate, target, ring, memory_of, &state(packets as u32));
    live.clear_ring();
    Fake { live, gate, _memory: memory }
}

impl Fake {
    /// The processor consumes up to `count` published packets and returns their headers.
    fn consume(&self, count: u64) -> Vec<u32> {
        let (page, ring) = (self.live.memory.page, self.live.memory.ring);
        let mut headers = Vec::new();
        for _ in 0..count {
            let read = page.load(READ_INDEX, Ordering::Relaxed);
            let at = self.live.ring.byte_offset(read);
            let header = ring.load32(at, Ordering::Acquire) & 0xffff;
            if header & 0xff == INVALID {
                break;
            }
            headers.push(header);
            ring.store32(at, INVALID, Ordering::Relaxed);
            page.store(READ_INDEX, read + 1, Ordering::Release);
        }
        headers
    }

    fn submit(&self, count: u64) -> Result<(), SubmitError> {
        let pass = self.gate.enter().unwrap();
        let mut reservation = self.live.reserve(&pass, count)?;
        for _ in 0..count {
            reservation.publish(Packet::BarrierAnd(Barrier::noop()).encode());
        }
        Ok(())
    }
}

#[test]
fn submit_full_ring_returns_would_block() {
    let fake = fake(16);
    fake.submit(15).unwrap();
    assert!(matches!(fake.submit(2), Err(SubmitError::WouldBlock { wanted: 2, free: 1, packets: 16 })));
    fake.submit(1).unwrap();
    assert!(matches!(fake.submit(1), Err(SubmitError::WouldBlock { free: 0, .. })));
    fake.consume(3);
    fake.submit(3).unwrap();
    assert_eq!(fake.live.hardware_write(), 19);
}

#[test]
fn dropped_reservation_is_plugged_with_noops() {
    let fake = fake(16);
    let pass = fake.gate.enter().unwrap();
    drop(fake.live.reserve(&pass, 3).unwrap());
    assert_eq!(fake.consume(9).len(), 3);
}

#[test]
fn fences_come_every_half_ring() {
    let fake = fake(16);
    let mut headers = Vec::new();
    for _ in 0..40 {
        fake.submit(1).unwrap();
        headers.extend(fake.consume(1));
    }
    let fences: Vec<_> = (0..40).filter(|&i| headers[i] & BARRIER_BIT != 0).collect();
    assert_eq!(fences, [0, 8, 16, 24, 32]);
}

#[test]
fn attach_continues_in_the_same_slot() {
    let fake = fake(16);
    for _ in 0..37 {
        fake.submit(1).unwrap();
        fake.consume(1);
    }
    let saved = fake.live.with_indices(&state(16));
    assert_eq!(saved.write_index, 37);
    let rebase = fake.live.prepare(saved.write_index);
    assert_eq!((rebase.padding(), fake.live.hardware_write()), (5, 5));
    assert_eq!(fake.consume(99).len(), 5);
    let pass = fake.gate.enter().unwrap();
    let mut next = fake.live.reserve(&pass, 1).unwrap();
    assert_eq!(next.publish(Packet::BarrierAnd(Barrier::noop()).encode()), 37);
    drop(next);
    assert_eq!(fake.live.with_indices(&state(16)).write_index, 38);
}

#[test]
fn failed_queue_refuses_and_keeps_its_first_fault() {
    let fake = fake(16);
    let fault = |agent: &str| {
        Arc::new(QueueFault {
            queue: Key::from_raw(0, 0),
            agent: agent.into(),
            codes: Vec::new(),
            memory: None,
            scratch: None,
            service: None,
            wave: None,
            unread: None,
            packet: None,
            evicted: false,
            lost: None,
        })
    };
    fake.live.fail(fault("first"));
    fake.live.fail(fault("second"));
    assert!(matches!(fake.submit(1), Err(SubmitError::Queue(fault)) if fault.agent == "first"));
}

#[test]
fn many_producers_fill_every_slot_exactly_once() {
    let fake = Arc::new(fake(64));
    let stop = Arc::new(AtomicBool::new(false));
    let (processor, halt) = (Arc::clone(&fake), Arc::clone(&stop));
    let consumed = std::thread::spawn(move || {
        let mut total = 0;
        loop {
            let last = halt.load(Ordering::SeqCst);
            let got = processor.consume(64).len();
            total += got;
            if last && got == 0 {
                return total;
            }
            std::thread::yield_now();
        }
    });
    let producers: Vec<_> = (0..3)
        .map(|_| {
            let fake = Arc::clone(&fake);
            std::thread::spawn(move || {
                let deadline = Instant::now() + Duration::from_secs(20);
                for _ in 0..2000 {
                    while fake.submit(1).is_err() {
                        assert!(Instant::now() < deadline, "the ring wedged");
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    stop.store(true, Ordering::SeqCst);
    assert_eq!(consumed.join().unwrap(), 6000);
}

proptest! {
    /// The proof in the module documentation, by brute force: a packet's arguments are never overwritten before the
    /// packet has completed, with a processor that completes as late as barrier bits let it.
    #[test]
    fn kernarg_slots_outlive_their_packets(log in 1u32..6, steps in prop::collection::vec((any::<bool>(), 1u64..9), 1..200)) {
        let packets = 1u64 << log;
        let ring = Ring::new(packets).unwrap();
        let (mut write, mut read) = (0u64, 0u64);
        // slot -> packet whose arguments are there
        let mut slots = vec![None; packets as usize * 2];
        // All packets before this have completed for certain.
        let mut completed = 0u64;
        for (submit, count) in steps {
            for _ in 0..count {
                if submit && !ring.is_full(write, read) {
                    let slot = &mut slots[(write & (packets * 2 - 1)) as usize];
                    if let Some(old) = *slot {
                        prop_assert!(old < completed, "packet {} overwrites {} of {}", write, old, packets);
                    }
                    *slot = Some(write);
                    write += 1;
                } else if !submit && read < write {
                    if read & (packets / 2 - 1) == 0 {
                        completed = read;
                    }
                    read += 1;
                }
            }
        }
    }
}

/// A queue of words over host memory: a ring of a page.
fn words(kind: QueueKind) -> Fake {
    words_on("gfx1100", kind)
}

#[allow(unsafe_code)]
fn words_on(target: &str, kind: QueueKind) -> Fake {
    let mut memory: Vec<Vec<u64>> = vec![vec![0u64; 512]; 2];
    let mut views = memory.iter_mut().map(|words| {
        // SAFETY: the vectors are kept beside the queue and touched only through the views.
        unsafe { Mapped::new(words.as_mut_ptr().expose_provenance() as u64, 4096) }.unwrap()
    });
    let (ring, page) = (views.next().unwrap(), views.next().unwrap());
    drop(views);
    let gate = Arc::new(Gate::new());
    let views = QueueMemory { ring, page, kernargs: None, kernarg_slot: 0 };
    let state = QueueState { kind, ..state(64) };
    let target = Target::by_name(target).unwrap();
    let units = Ring::new(4096 / kind.unit_bytes()).unwrap();
    Fake { live: QueueLive::new(&gate, target, units, views, &state), gate, _memory: memory }
}

const WORDS: [QueueKind; 2] = [QueueKind::Pm4, QueueKind::Sdma { engine: None }];

impl Fake {
    /// Whether all the processor would read up to the write pointer are no-ops; it has then read them.
    fn consume_noops(&self) -> bool {
        let unit = self.live.kind.unit_bytes();
        let (read, write) = (self.live.hardware_read(), self.live.hardware_write());
        let ring = self.live.memory.ring;
        let stream: Vec<u32> = (read * unit..write * unit)
            .step_by(4)
            .map(|at| ring.load32(at & 4095, Ordering::Relaxed))
            .collect();
        let mut rest = stream.as_slice();
        while !rest.is_empty() {
            let taken = match self.live.kind {
                QueueKind::Pm4 => match queues::pm4::decode(rest) {
                    Ok((queues::pm4::Packet::Nop(_), dwords)) => dwords,
                    _ => return false,
                },
                _ => match queues::sdma::decode(rest, queues::sdma::Generation::V6) {
                    Ok((queues::sdma::Packet::Nop { .. }, dwords)) => dwords,
                    _ => return false,
                },
            };
            rest = &rest[taken..];
        }
        self.live.memory.page.store(READ_INDEX, write, Ordering::Release);
        true
    }

    fn write(&self, words: &[u32]) -> Result<u64, Full> {
        let pass = self.gate.enter().unwrap();
        self.live.write_words(&pass, &self.live.produce(), words)
    }
}

#[test]
fn rebased_rings_of_words_continue_at_every_offset() {
    for kind in WORDS {
        let fake = words(kind);
        let (unit, ring) = (kind.unit_bytes(), 4096 / kind.unit_bytes());
        for dword in 0..2 * 1024 + 3 {
            // Positions in the first laps, and ones that have wrapped around 32 bits.
            for logical in [dword * 4 / unit, (1 << 40) + dword * 4 / unit] {
                let rebase = fake.live.prepare(logical);
                assert_eq!(rebase.bias() % ring, 0);
                assert_eq!(fake.live.logical(fake.live.hardware_write()), logical);
                assert_eq!(fake.live.hardware_read(), 0);
                assert!(fake.live.pending() < ring && fake.consume_noops(), "{kind:?} {logical}");
                assert_eq!(fake.live.logical(fake.live.hardware_read()), logical);
                let end = fake.write(&[0x8000_0000]).unwrap();
                assert_eq!(fake.live.logical(end), logical + 4 / unit);
                let at = (logical % ring) * unit;
                assert_eq!(fake.live.memory.ring.load32(at, Ordering::Relaxed), 0x8000_0000);
                let saved = fake.live.with_indices(&state(64));
                assert_eq!(saved.write_index, logical + 4 / unit);
            }
        }
    }
}

#[test]
fn gfx900_copy_engine_is_never_told_of_fewer_than_64_dwords() {
    let fake = words_on("gfx900", QueueKind::Sdma { engine: None });
    fake.live.prepare(0);
    let ring = fake.live.memory.ring;
    let word = |at: u64| ring.load32(at & 4095, Ordering::Relaxed);
    ring.fill(0, 4096, 0xff);
    // Submissions of every length up to a few dwords above, through many laps of the ring, which lies full of what must
    // not be executed.
    for dwords in (1..70).chain(1..70) {
        let before = fake.live.hardware_write();
        let end = fake.write(&vec![0x1234_0000; dwords]).unwrap();
        let length = 4 * dwords.max(64) as u64;
        let start = if before % 4096 + length > 4096 { before.next_multiple_of(4096) } else { before };
        assert_eq!(end, start + length, "{dwords} dwords at {before}");
        for at in (before..end).step_by(4) {
            let own = (start..start + 4 * dwords as u64).contains(&at);
            assert_eq!(word(at), if own { 0x1234_0000 } else { 0 }, "{at}");
        }
        ring.fill(0, 4096, 0xff);
        fake.live.memory.page.store(READ_INDEX, end, Ordering::Release);
    }
    // A drain's marker is such a submission, too, and one that fits only without its no-ops has no room.
    let pass = fake.gate.enter().unwrap();
    let before = fake.live.hardware_write();
    assert!(fake.live.submit_marker(&pass));
    assert!(fake.live.hardware_write() - before >= 256);
    let full = words_on("gfx900", QueueKind::Sdma { engine: None });
    full.live.prepare(0);
    full.write(&[0; 1000]).unwrap();
    assert!(matches!(full.write(&[0]), Err(Full::Now { .. })));
    // Other engines are told of what there is.
    let fake = words_on("gfx906", QueueKind::Sdma { engine: None });
    fake.live.prepare(0);
    assert_eq!(fake.write(&[0]).unwrap(), 4);
}

#[test]
fn marker_of_words_is_a_drain() {
    for kind in WORDS {
        let fake = words(kind);
        let pass = fake.gate.enter().unwrap();
        assert!(!fake.live.marker_pending());
        assert!(fake.live.submit_marker(&pass) && fake.live.marker_pending());
        let printed = fake.live.next_packet();
        assert!(printed.contains("RELEASE_MEM") || printed.contains("gcr"), "{printed}");
        // While somebody holds the ring there is no marker, and the flag says so.
        let fake = words(kind);
        let pass = fake.gate.enter().unwrap();
        let _producer = fake.live.produce();
        assert!(!fake.live.submit_marker(&pass) && !fake.live.marker_pending());
    }
}

proptest! {
    /// Against a model: positions, room and padding of a ring that a processor empties at its own pace, publishing all
    /// of its pointer or only what the ring needs.
    #[test]
    fn rings_of_words_agree_with_a_model(
        sdma: bool,
        wrapped: bool,
        start in 0u64..5000,
        steps in prop::collection::vec((1usize..1100, 0u64..1200), 1..80),
    ) {
        let kind = WORDS[usize::from(sdma)];
        let fake = words(kind);
        let unit = kind.unit_bytes();
        fake.live.prepare(start * 4 / unit);
        prop_assert!(fake.consume_noops());
        // In dwords.
        let (mut read, mut write) = (fake.live.hardware_write() * unit / 4, fake.live.hardware_write() * unit / 4);
        for (dwords, consume) in steps {
            let left = 1024 - write % 1024;
            let padding = if sdma && dwords as u64 > left { left } else { 0 };
            let free = 1023 - (write - read);
            let words = vec![0; dwords];
            match fake.write(&words) {
                Ok(end) => {
                    prop_assert!(padding + dwords as u64 <= free);
                    write += padding + dwords as u64;
                    prop_assert_eq!(end * unit / 4, write);
                }
                Err(Full::Ever { .. }) => prop_assert!(dwords > 1023),
                Err(Full::Now { wanted, used, free: found }) => {
                    prop_assert!(padding + dwords as u64 > free);
                    prop_assert_eq!(wanted * unit / 4, padding + dwords as u64);
                    prop_assert_eq!((used * unit / 4, found * unit / 4), (write - read, free));
                    if padding > 0 && padding <= free {
                        write += padding;
                    }
                }
            }
            prop_assert_eq!(fake.live.hardware_write() * unit / 4, write);
            read = write.min(read + consume);
            let published = if wrapped { read % 1024 } else { read };
            fake.live.memory.page.store(READ_INDEX, published * 4 / unit, Ordering::Release);
            prop_assert_eq!(fake.live.hardware_read() * unit / 4, read);
        }
    }
}
