// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams as clients write them, dword for dword, and what a ring has to bear.

use super::*;

/// The two halves of an address.
fn halves(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}

#[test]
fn rocr_copy_with_dependency_profiling_and_interrupt() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let (src, dst) = (machine.buffer(8192, DATA), machine.buffer(8192, DATA));
    let (dep, done, page) = (machine.signal(1), machine.signal(1), machine.buffer(32768, DATA));
    src.fill(0, &[0xa5; 8192]);
    let [src_low, src_high] = halves(src.va);
    let [dst_low, dst_high] = halves(dst.va);
    let [value_low, value_high] = halves(done.handle() + 8);
    let [start_low, start_high] = halves(done.handle() + 32);
    let [end_low, end_high] = halves(done.handle() + 40);
    let [mail_low, mail_high] = halves(page.va + 7 * 8);
    let mut stream = Vec::new();
    // Both halves of the dependency become zero, the high one first.
    for half in [dep.handle() + 12, dep.handle() + 8] {
        let [low, high] = halves(half);
        stream.extend([0xb000_0008, low, high, 0, u32::MAX, 0x0fff_0004]);
    }
    stream.extend([0x0000_020d, start_low, start_high]);
    stream.extend([0x8, 0, 0x8000_0000, 0, 0, 0]);
    stream.extend([0x0000_0111, 0, 0xc3c0_0000, 0, 0]);
    stream.extend([1, 8191, 0, src_low, src_high, dst_low, dst_high]);
    stream.extend([0x0000_0111, 0, 0x8040_0000, 0, 0]);
    stream.extend([0x0000_020d, end_low, end_high]);
    stream.extend([0x5e00_000a, value_low, value_high, u32::MAX, u32::MAX, 0, 0, 0]);
    stream.extend([0x0003_0005, mail_low, mail_high, 7]);
    stream.extend([6, 7]);
    engine.submit_words(&stream);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!((done.value(), dst.u32(0).load(Ordering::SeqCst)), (1, 0));
    dep.store(0);
    eventually("the interrupt", || *machine.driver.events.lock() == [7]);
    engine.finish();
    assert_eq!(done.value(), 0);
    assert_eq!(page.u64(7 * 8).load(Ordering::SeqCst), 7);
    assert_eq!(dst.bytes(0, 8192), [0xa5; 8192]);
    let [start, end] = [32, 40].map(|at| done.buffer.u64(at).load(Ordering::SeqCst));
    assert!(start != 0 && start <= end);
}

#[test]
fn tinygrad_copies_wait_for_a_timeline_and_move_it_on() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let (src, dst) = (machine.buffer(4096, DATA), machine.buffer(4096, DATA));
    let (signals, mailbox) = (machine.buffer(4096, DATA), machine.buffer(4096, DATA));
    let [signal_low, signal_high] = halves(signals.va);
    let [stamp_low, stamp_high] = halves(signals.va + 8);
    let [mail_low, mail_high] = halves(mailbox.va);
    for round in 1..=200_u32 {
        src.u32(0).store(round, Ordering::SeqCst);
        let [src_low, src_high] = halves(src.va);
        let [dst_low, dst_high] = halves(dst.va);
        let mut stream = vec![0xd000_0008, signal_low, signal_high, round - 1, u32::MAX, 0x0fff_0004];
        stream.extend([1, 4095, 0, src_low, src_high, dst_low, dst_high]);
        stream.extend([0x0000_020d, stamp_low, stamp_high]);
        stream.extend([0x0003_0005, signal_low, signal_high, round]);
        stream.extend([0x0003_0005, mail_low, mail_high, 3, 6, 3]);
        // What does not fit the rest of the ring begins at its start; the rest is zeros.
        let left = usize::try_from((engine.size - engine.put.get() % engine.size) / 4).unwrap();
        if stream.len() > left {
            engine.write(&vec![0; left]);
        }
        engine.submit_words(&stream);
        eventually("the timeline", || signals.u64(0).load(Ordering::SeqCst) == u64::from(round));
        assert_eq!(dst.u32(0).load(Ordering::SeqCst), round);
        engine.finish();
    }
    assert_eq!(machine.driver.events.lock().len(), 200);
    assert!(signals.u64(8).load(Ordering::SeqCst) <= machine.gpus.clock(0));
}

#[test]
fn ring_wraps_hundreds_of_times() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(4096, DATA));
    // 5 dwords each in a ring of 1024, each behind the one before.
    for round in 1..=20_000_u32 {
        engine.push(&poll(memory.va, Compare::Equal, round - 1));
        engine.push(&fence(memory.va, round));
        if round % 16 == 0 {
            engine.announce();
        }
    }
    engine.announce();
    engine.finish();
    assert_eq!(memory.u32(0).load(Ordering::SeqCst), 20_000);
    assert!(engine.put.get() > 150 * engine.size);
}

#[test]
fn packets_across_the_rings_end_are_read_whole() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(8192, DATA));
    let data: Vec<u32> = (0..330).collect();
    for round in 0..200 {
        let mut words = Vec::new();
        Packet::Write { dst: memory.va, data: &data }.encode(V6, &mut words).unwrap();
        fence(memory.va + 4096, round).encode(V6, &mut words).unwrap();
        engine.submit_words(&words);
    }
    engine.finish();
    assert_eq!(memory.u32(4096).load(Ordering::SeqCst), 199);
    assert!(data.iter().enumerate().all(|(at, &value)| memory.u32(4 * at).load(Ordering::SeqCst) == value));
}

#[test]
fn packet_announced_in_parts_waits_for_its_rest() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(4096, DATA));
    let mut words = Vec::new();
    fence(memory.va, 1).encode(V6, &mut words).unwrap();
    Packet::Write { dst: memory.va + 8, data: &[2; 100] }.encode(V6, &mut words).unwrap();
    for word in words {
        engine.submit_words(&[word]);
        std::thread::sleep(Duration::from_micros(100));
    }
    engine.finish();
    assert_eq!(memory.u32(0).load(Ordering::SeqCst), 1);
    assert_eq!(memory.u32(8 + 4 * 99).load(Ordering::SeqCst), 2);
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn full_ring_is_executed_and_doorbell_alone_is_enough() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(4096, DATA));
    for round in 1..=256 {
        engine.push(&fence(memory.va, round));
    }
    assert_eq!(engine.put.get(), engine.size);
    machine.gpus.gpus[0].gpu().doorbells.ring(8, engine.put.get());
    engine.finish();
    assert_eq!(memory.u32(0).load(Ordering::SeqCst), 256);
}
