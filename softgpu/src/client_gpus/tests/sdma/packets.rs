// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every packet by itself, but the copies.

use queues::sdma::{ConstFill, FillCount, Gcr, signal_decrement};

use super::*;

#[test]
fn idle_packets_only_move_the_read_pointer() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let skipped = [0xffff_ffff; 40];
    engine.submit(&[
        Packet::Nop { skipped: &[] },
        Packet::Nop { skipped: &skipped },
        Packet::HdpFlush,
        Packet::Gcr(Gcr::invalidate()),
        Packet::Gcr(Gcr::write_back()),
    ]);
    engine.finish();
    assert_eq!(engine.read_pointer(), 4 * (1 + 41 + 6 + 5 + 5));
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn fence_writes_one_dword_and_trap_interrupts_with_its_event() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(4096, DATA));
    memory.u64(0).store(u64::MAX, Ordering::SeqCst);
    engine.submit(&[fence(memory.va + 4, 7), Packet::Trap { event_id: 42 }]);
    eventually("the interrupt", || *machine.driver.events.lock() == [42]);
    assert_eq!(memory.u64(0).load(Ordering::SeqCst), 0x0000_0007_ffff_ffff);
}

#[test]
fn write_stores_one_two_and_many_dwords() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(8192, DATA));
    let many: Vec<u32> = (0..900).map(|i| i * 0x0001_0001).collect();
    engine.submit(&[
        Packet::Write { dst: memory.va, data: &[1] },
        Packet::Write { dst: memory.va + 8, data: &[2, 3] },
        Packet::Write { dst: memory.va + 20, data: &[4, 5] },
        Packet::Write { dst: memory.va + 32, data: &many },
    ]);
    engine.finish();
    let word = |at| memory.u32(at).load(Ordering::SeqCst);
    assert_eq!([0, 4, 8, 12, 16, 20, 24, 28].map(word), [1, 0, 2, 3, 0, 4, 5, 0]);
    assert!(many.iter().enumerate().all(|(at, &value)| word(32 + 4 * at) == value));
    assert_eq!(word(32 + 3600), 0);
}

#[test]
fn timestamps_are_the_devices_clock() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(4096, DATA));
    let before = machine.gpus.clock(0);
    engine.submit(&[Packet::Timestamp { address: memory.va }, Packet::Timestamp { address: memory.va + 8 }]);
    engine.finish();
    let [first, second] = [0, 8].map(|at| memory.u64(at).load(Ordering::SeqCst));
    assert!(before <= first && first <= second && second <= machine.gpus.clock(0));
}

#[test]
fn atomic_adds_wrap_and_are_atomic_against_another_engine() {
    let machine = Machine::new();
    let (one, two) = (Engine::new(&machine, 1), Engine::new(&machine, 2));
    let memory = machine.buffer(4096, DATA);
    memory.u64(0).store(1999, Ordering::SeqCst);
    for _ in 0..1000 {
        one.submit(&[signal_decrement(memory.va)]);
        two.submit(&[signal_decrement(memory.va)]);
    }
    one.finish();
    two.finish();
    assert_eq!(memory.u64(0).load(Ordering::SeqCst), u64::MAX);
}

#[test]
fn const_fill_repeats_elements_of_each_size() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(4096, DATA));
    let count = FillCount::LastByte;
    let fill = |dst, element_log2, bytes, value| {
        Packet::ConstFill(ConstFill { dst: memory.va + dst, value, bytes, element_log2, count })
    };
    engine.submit(&[
        fill(1, 0, 5, 0xffff_ff11),
        fill(10, 1, 6, 0xffff_2233),
        fill(20, 2, 8, 0x4455_6677),
        Packet::ConstFill(ConstFill {
            dst: memory.va + 32,
            value: 0x8899_aabb,
            bytes: 8,
            element_log2: 2,
            count: FillCount::LastElement,
        }),
    ]);
    engine.finish();
    let mut want = [0_u8; 44];
    want[1..6].fill(0x11);
    want[10..16].copy_from_slice(&[0x33, 0x22, 0x33, 0x22, 0x33, 0x22]);
    want[20..28].copy_from_slice(&[0x77, 0x66, 0x55, 0x44, 0x77, 0x66, 0x55, 0x44]);
    want[32..40].copy_from_slice(&[0xbb, 0xaa, 0x99, 0x88, 0xbb, 0xaa, 0x99, 0x88]);
    assert_eq!(memory.bytes(0, 44), want);
}

#[test]
fn const_fill_of_megabytes_keeps_its_phase() {
    const BYTES: usize = (2 << 20) + 4;
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(BYTES + 8, DATA));
    let bytes = u32::try_from(BYTES).unwrap();
    let count = FillCount::LastByte;
    engine.submit(&[Packet::ConstFill(ConstFill {
        dst: memory.va + 2,
        value: 0x2211,
        bytes,
        element_log2: 1,
        count,
    })]);
    engine.finish();
    let found = memory.bytes(0, BYTES + 4);
    assert_eq!(found[..2], [0, 0]);
    assert!(found[2..BYTES + 2].as_chunks::<2>().0.iter().all(|element| *element == [0x11, 0x22]));
    assert_eq!(found[BYTES + 2..], [0, 0]);
}

#[test]
fn poll_waits_for_each_comparison() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let memory = machine.buffer(4096, DATA);
    // What is there at first does not do, what comes then does.
    for (compare, at_first, then) in [
        (Compare::Less, 10, 9),
        (Compare::LessEqual, 11, 10),
        (Compare::Equal, 9, 10),
        (Compare::NotEqual, 10, 11),
        (Compare::GreaterEqual, 9, 10),
        (Compare::Greater, 10, 11),
    ] {
        memory.u32(0).store(at_first, Ordering::SeqCst);
        let before = engine.read_pointer();
        engine.submit(&[poll(memory.va, compare, 10)]);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(engine.read_pointer(), before, "{compare}");
        memory.u32(0).store(then, Ordering::SeqCst);
        engine.finish();
    }
    engine.submit(&[poll(memory.va, Compare::Always, 12345)]);
    engine.finish();
}

#[test]
fn poll_looks_at_masked_bits_only() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(4096, DATA));
    memory.u32(0).store(0xabcd_0005, Ordering::SeqCst);
    let packet = PollRegMem { mask: 0xff, ..PollRegMem::memory(memory.va, Compare::Equal, 5) };
    engine.submit(&[Packet::PollRegMem(packet)]);
    engine.finish();
}

#[test]
fn poll_with_a_count_of_retries_gives_up() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(4096, DATA));
    let packet =
        PollRegMem { interval: 1000, retry: 100, ..PollRegMem::memory(memory.va, Compare::Equal, 5) };
    let since = Instant::now();
    engine.submit(&[Packet::PollRegMem(packet), fence(memory.va + 8, 1)]);
    engine.finish();
    assert_eq!(memory.u32(8).load(Ordering::SeqCst), 1);
    assert!(since.elapsed() >= Duration::from_micros(100), "{:?}", since.elapsed());
}

#[test]
fn engines_that_wait_for_each_other_take_turns() {
    const ROUNDS: u32 = 300;
    let machine = Machine::new();
    let (ping, pong) = (Engine::new(&machine, 1), Engine::new(&machine, 2));
    let memory = machine.buffer(4096, DATA);
    let (ball, back) = (memory.va, memory.va + 64);
    for round in 1..=ROUNDS {
        ping.submit(&[fence(ball, round), poll(back, Compare::GreaterEqual, round)]);
        pong.submit(&[poll(ball, Compare::GreaterEqual, round), fence(back, round)]);
    }
    ping.finish();
    pong.finish();
    assert_eq!([0, 64].map(|at| memory.u32(at).load(Ordering::SeqCst)), [ROUNDS; 2]);
}

#[test]
fn aql_barrier_waits_for_an_engine_and_an_engine_for_a_barrier() {
    let machine = Machine::new();
    let (queue, engine) = (machine.queue(1), Engine::new(&machine, 2));
    let (copied, computed, done) = (machine.signal(1), machine.signal(1), machine.signal(1));
    queue.barrier(&[&copied], Some(&computed));
    engine.submit(&[
        signal_decrement(copied.handle() + 8),
        poll(computed.handle() + 8, Compare::Equal, 0),
        signal_decrement(done.handle() + 8),
    ]);
    done.wait_zero();
    assert_eq!(computed.value(), 0);
}
