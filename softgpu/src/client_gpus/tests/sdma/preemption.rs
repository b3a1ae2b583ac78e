// SPDX-License-Identifier: MIT OR Apache-2.0
//! Engines that are taken off the hardware and put back.

use queues::sdma::{CopyRect, RectSide, signal_decrement};

use super::*;
use crate::client_gpus::mqd::{Reader, Writer};
use crate::client_gpus::sdma::SdmaContext;

const BYTES: usize = 64 << 20;

/// What the engine's context makes of a descriptor when it is loaded and stored.
fn again(engine: &Engine<'_>) -> Mqd {
    let mqd = engine.mqd.lock();
    let mut reader = Reader::new(&mqd, HwQueueKind::Sdma).unwrap();
    let mut writer = Writer::new(&engine.config(), 1);
    writer.put(reader.take());
    SdmaContext::load(&mut reader).unwrap().store(&mut writer);
    *writer.finish()
}

/// Submits a packet that writes `dst` until a stop finds it in the middle. A busy machine may look too late.
fn catch(engine: &Engine<'_>, dst: &Buffer, last: usize, packet: &Packet<'_>) {
    for _ in 0..50 {
        dst.u64(0).store(0, Ordering::SeqCst);
        dst.u64(last).store(0, Ordering::SeqCst);
        engine.submit(&[*packet]);
        eventually("the packet's beginning", || dst.u64(0).load(Ordering::SeqCst) != 0);
        engine.stop();
        if engine.read_pointer() != engine.put.get() {
            return;
        }
        engine.start();
    }
    panic!("50 times over before it could be stopped");
}

#[test]
fn stopped_copy_goes_on_where_it_was() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let (src, dst) = (machine.buffer(BYTES, DATA), machine.buffer(BYTES, DATA));
    let last = BYTES - 8;
    for at in (0..BYTES).step_by(8) {
        src.u64(at).store(at as u64 ^ 0x5555, Ordering::Relaxed);
    }
    let bytes = u32::try_from(BYTES).unwrap();
    catch(&engine, &dst, last, &Packet::CopyLinear(CopyLinear { bytes, src: src.va, dst: dst.va }));
    assert_eq!(dst.u64(last).load(Ordering::SeqCst), 0, "the copy is not over");
    assert_eq!(again(&engine), *engine.mqd.lock());
    // What was copied is not copied again.
    src.u64(0).store(1, Ordering::SeqCst);
    let mut stops = 0;
    while engine.read_pointer() != engine.put.get() {
        engine.start();
        std::thread::sleep(Duration::from_micros(700));
        engine.stop();
        assert_eq!(again(&engine), *engine.mqd.lock());
        stops += 1;
        assert!(stops <= 64, "each stay moves 1 MiB at least, {stops} were not enough");
    }
    let wrong = (0..BYTES).step_by(8).find(|&at| dst.u64(at).load(Ordering::Relaxed) != at as u64 ^ 0x5555);
    assert_eq!(wrong, None);
    // And it is a queue as any other.
    engine.start();
    engine.submit(&[fence(dst.va, 77)]);
    engine.finish();
    assert_eq!(dst.u32(0).load(Ordering::SeqCst), 77);
}

#[test]
fn stopped_rectangle_goes_on_where_it_was() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let (src, dst) = (machine.buffer(16 << 20, DATA), machine.buffer(16 << 20, DATA));
    for at in (0..16 << 20).step_by(8) {
        src.u64(at).store(at as u64 + 1, Ordering::Relaxed);
    }
    // Rows of 256 bytes, with as much between them.
    let side = |address| RectSide { address, offset: [0; 3], pitch: 32, slice_pitch: 1 << 14 };
    let (src_side, dst_side) = (side(src.va), side(dst.va));
    let copy = CopyRect { element_log2: 4, src: src_side, dst: dst_side, extent: [16, 512, 64] };
    catch(&engine, &dst, (16 << 20) - 264, &Packet::CopyRect(copy));
    // The beginning is done: it must not be touched again.
    src.u64(0).store(0xbad, Ordering::SeqCst);
    let since = Instant::now();
    while engine.read_pointer() != engine.put.get() {
        assert_eq!(again(&engine), *engine.mqd.lock());
        engine.start();
        std::thread::sleep(Duration::from_micros(300));
        engine.stop();
        assert!(since.elapsed() < Duration::from_secs(10), "it does not come on");
    }
    let right = |at: usize| {
        let want = if at % 512 < 256 { at as u64 + 1 } else { 0 };
        dst.u64(at).load(Ordering::Relaxed) == want
    };
    assert_eq!((0..16 << 20).step_by(8).find(|&at| !right(at)), None);
}

#[test]
fn stop_in_a_poll_returns_at_once_and_start_goes_on() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let (memory, done) = (machine.buffer(4096, DATA), machine.signal(1));
    engine.submit(&[poll(memory.va, Compare::Equal, 5), signal_decrement(done.handle() + 8)]);
    std::thread::sleep(Duration::from_millis(10));
    let since = Instant::now();
    engine.stop();
    assert!(since.elapsed() < Duration::from_millis(100), "{:?}", since.elapsed());
    memory.u32(0).store(5, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(done.value(), 1, "nothing runs off the hardware");
    engine.start();
    done.wait_zero();
}

#[test]
fn packets_announced_while_off_run_when_back_and_none_runs_twice() {
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    let counter = machine.signal(400);
    for round in 1..=200 {
        engine.submit(&[signal_decrement(counter.handle() + 8)]);
        engine.stop();
        engine.submit(&[signal_decrement(counter.handle() + 8)]);
        engine.start();
        if round % 25 == 0 {
            // The ring holds no more.
            engine.finish();
        }
    }
    assert_eq!(counter.value(), 0);
}

#[test]
fn write_pointer_in_memory_counts_without_a_ring_when_the_queue_starts() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(4096, DATA));
    engine.stop();
    engine.push(&fence(memory.va, 9));
    engine.pointers.u64(56).store(engine.put.get(), Ordering::SeqCst);
    engine.start();
    engine.finish();
    assert_eq!(memory.u32(0).load(Ordering::SeqCst), 9);
}

#[test]
fn descriptor_with_an_impossible_position_is_refused_and_any_progress_is_harmless() {
    let machine = Machine::new();
    let (engine, memory) = (Engine::new(&machine, 1), machine.buffer(8192, DATA));
    engine.stop();
    let with = |next: u64, progress: u64| {
        let mut writer = Writer::new(&engine.config(), 1);
        writer.put(0);
        [next, 0, progress].into_iter().for_each(|value| writer.put64(value));
        *writer.finish()
    };
    let start = |mqd: &Mqd| machine.gpus.start_queue(0, &engine.config(), mqd);
    assert_eq!(start(&with(2, 0)), Err(nix::errno::Errno::EINVAL));
    *engine.mqd.lock() = with(0, u64::MAX);
    engine.start();
    engine.copy(memory.va, memory.va + 4096, 4096);
    engine.submit(&[fence(memory.va, 3)]);
    engine.finish();
    assert_eq!(memory.u32(0).load(Ordering::SeqCst), 3);
}
