// SPDX-License-Identifier: MIT OR Apache-2.0
//! What halts an engine, and that it halts nothing else.

use proptest::prelude::*;

use super::*;

/// Another queue of the machine still works.
fn survives(machine: &Machine, id: u32) {
    let (engine, memory) = (Engine::new(machine, id), machine.buffer(4096, DATA));
    engine.submit(&[fence(memory.va, id)]);
    engine.finish();
    assert_eq!(memory.u32(0).load(Ordering::SeqCst), id);
    engine.destroy();
}

#[test]
fn faults_name_the_first_byte_and_halt_this_queue_only() {
    const READ: u8 = VmFault::VALID | VmFault::READ;
    const WRITE: u8 = VmFault::VALID | VmFault::WRITE;
    let machine = Machine::new();
    let (fine, locked) = (machine.buffer(8192, DATA), machine.buffer(4096, READ_ONLY));
    let copy = |dst, src, bytes| Packet::CopyLinear(CopyLinear { bytes, src, dst });
    let hole = fine.va + 8192;
    let cases = [
        (copy(fine.va, hole + 8, 4), hole + 8, READ),
        (copy(fine.va, fine.va + 4096, 4097), hole, READ),
        (copy(locked.va, fine.va, 64), locked.va, VmFault::WRITE),
        (fence(hole, 1), hole, WRITE),
        (fence(locked.va + 4, 1), locked.va + 4, VmFault::WRITE),
        (poll(hole, Compare::Equal, 0), hole, READ),
        (Packet::Timestamp { address: hole }, hole, WRITE),
        (Packet::Write { dst: hole - 8, data: &[1, 2, 3, 4] }, hole, WRITE),
        (queues::sdma::signal_decrement(locked.va), locked.va, VmFault::WRITE),
    ];
    for (id, (packet, address, permission_faults)) in (1..).zip(cases) {
        let engine = Engine::new(&machine, id);
        engine.submit(&[packet, fence(fine.va + 64, 99)]);
        eventually("the exception", || machine.driver.exceptions.lock().len() == id as usize);
        assert_eq!(machine.driver.exceptions.lock().last(), Some(&(id, ExceptionCode::WaveMemoryViolation)));
        let fault = VmFault { address, permission_faults };
        assert_eq!(machine.driver.faults.lock().last(), Some(&(0, fault)), "{packet}");
        assert_eq!(engine.read_pointer(), 0, "{packet}");
    }
    assert_ne!(fine.u32(64).load(Ordering::SeqCst), 99, "nothing runs behind a fault");
    survives(&machine, 100);
}

#[test]
fn packets_that_cannot_be_read_halt_with_their_code() {
    use ExceptionCode::{PacketReserved, PacketUnsupported};
    let machine = Machine::new();
    let memory = machine.buffer(4096, DATA);
    let [low, high] = [memory.va as u32, (memory.va >> 32) as u32];
    let cases: [(&[u32], ExceptionCode); 8] = [
        // No operation, no sub-operation, no atomic operation that we know.
        (&[0x0000_0077], PacketUnsupported),
        (&[0x0000_ff01, 0, 0, 0, 0, 0, 0], PacketUnsupported),
        (&[0x1000_000a, low, high, 0, 0, 0, 0, 0], PacketUnsupported),
        // A poll of a register that is no HDP flush.
        (&[0x3000_0008, 0x40, 0, 1, u32::MAX, 0x0fff_0004], PacketUnsupported),
        // Reserved bits, a misaligned address, and a write that is longer than the ring.
        (&[0x0100_0001, 3, 0, low, high, low, high], PacketReserved),
        (&[0x0003_0005, low | 2, high, 1], PacketReserved),
        (&[0x0000_0002, low, high, 0x000f_ffff], PacketReserved),
        (&[0x8000_0000], PacketReserved),
    ];
    for (id, (words, code)) in (1..).zip(cases) {
        let engine = Engine::new(&machine, id);
        engine.submit(&[Packet::Nop { skipped: &[0; 3] }]);
        engine.submit_words(words);
        eventually("the exception", || machine.driver.exceptions.lock().len() == id as usize);
        assert_eq!(machine.driver.exceptions.lock().last(), Some(&(id, code)), "{words:x?}");
        assert_eq!(engine.read_pointer(), 16, "the read pointer stays at the packet");
    }
    assert_eq!(*machine.driver.faults.lock(), []);
    survives(&machine, 100);
}

#[test]
fn write_pointer_beyond_the_ring_halts() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    machine.gpus.gpus[0].gpu().doorbells.ring(8, engine.size + 4);
    assert_eq!(machine.exceptions(), [(1, ExceptionCode::PacketReserved)]);
    survives(&machine, 2);
}

#[test]
fn ring_that_is_unmapped_under_a_parked_engine_faults() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    engine.submit(&[Packet::HdpFlush]);
    engine.finish();
    std::thread::sleep(Duration::from_millis(5));
    machine.gpus.unmap(0, engine.ring.va, 4096);
    engine.submit(&[Packet::HdpFlush]);
    assert_eq!(machine.exceptions(), [(1, ExceptionCode::WaveMemoryViolation)]);
    survives(&machine, 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any dwords, half of the time behind a header of a packet that exists and with addresses that do.
    #[test]
    fn any_stream_leaves_the_machine_working(
        streams in prop::collection::vec(
            prop::collection::vec((any::<u32>(), prop::option::of((0_usize..14, any::<u32>()))), 1..200), 1..4,
        ),
    ) {
        const HEADERS: [u32; 14] = [
            0x0, 0x0003_0000, 0x1, 0x401, 0x8000_0401, 0x2, 0x0003_0005, 0x6, 0xb000_0008, 0xd000_0008,
            0x5e00_000a, 0x8000_000b, 0x20d, 0x111,
        ];
        let machine = Machine::new();
        let memory = machine.buffer(1 << 20, DATA);
        let [low, high] = [memory.va as u32, (memory.va >> 32) as u32];
        for (id, stream) in (1..).zip(&streams) {
            let engine = Engine::new(&machine, id);
            let mut words = Vec::new();
            for &(word, header) in stream {
                match header {
                    None => words.push(word),
                    Some((kind, number)) => {
                        let address = low.wrapping_add(number & 0xf_fffc);
                        words.extend([HEADERS[kind], address, high, number & 0xff, address, high]);
                    }
                }
            }
            words.truncate(1024);
            engine.submit_words(&words);
            std::thread::sleep(Duration::from_micros(300));
            engine.stop();
            engine.start();
            engine.destroy();
        }
        survives(&machine, 100);
        prop_assert!(machine.driver.exceptions.lock().len() <= streams.len());
    }
}
