// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets without waves: completion, mailboxes, dependencies, order, wrap-around.

use super::*;

#[test]
fn barrier_completes_signal_and_frees_its_slot() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let done = machine.signal(1);
    queue.barrier(&[], Some(&done));
    done.wait_zero();
    assert_eq!(queue.read_index(), 1, "the slot is free before the signal changes");
    assert_eq!(queue.ring.u32(0).load(Ordering::SeqCst) & 0xffff, PacketKind::Invalid as u32);
    let (start, end) =
        (done.buffer.u64(32).load(Ordering::SeqCst), done.buffer.u64(40).load(Ordering::SeqCst));
    assert!(start != 0 && start <= end && end <= machine.gpus.clock(0), "{start} {end}");
    assert_eq!(*machine.driver.events.lock(), [] as [u32; 0], "no mailbox, no interrupt");
}

#[test]
fn completion_writes_mailbox_before_interrupt() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (done, page) = (machine.signal(3), machine.buffer(32768, DATA));
    page.u64(7 * 8).store(u64::MAX, Ordering::SeqCst);
    done.buffer.u64(16).store(page.va + 7 * 8, Ordering::SeqCst);
    done.buffer.u32(24).store(7, Ordering::SeqCst);
    queue.barrier(&[], Some(&done));
    eventually("the interrupt", || *machine.driver.events.lock() == [7]);
    assert_eq!(done.value(), 2);
    assert_eq!(page.u64(7 * 8).load(Ordering::SeqCst), 7);
}

#[test]
fn barrier_and_waits_for_every_dependency() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (first, second, done) = (machine.signal(1), machine.signal(1), machine.signal(1));
    queue.barrier(&[&first, &second], Some(&done));
    second.store(0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(done.value(), 1);
    first.store(0);
    let since = Instant::now();
    done.wait_zero();
    assert!(since.elapsed() < Duration::from_millis(500), "{:?}", since.elapsed());
}

#[test]
fn barrier_or_waits_for_one_dependency() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (first, second, done) = (machine.signal(1), machine.signal(1), machine.signal(1));
    let barrier = Barrier::or([first.handle(), 0, second.handle(), 0, 0]);
    queue.submit(Packet::BarrierOr(Barrier { completion_signal: done.handle(), ..barrier }));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(done.value(), 1);
    second.store(0);
    done.wait_zero();
}

#[test]
fn barrier_on_another_queues_signal_is_noticed() {
    let machine = Machine::new();
    let (one, two) = (machine.queue(1), machine.queue(2));
    let (between, done) = (machine.signal(1), machine.signal(1));
    two.barrier(&[&between], Some(&done));
    std::thread::sleep(Duration::from_millis(5));
    one.barrier(&[], Some(&between));
    done.wait_zero();
}

#[test]
fn ring_wraps_many_times() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let done = machine.signal(1000);
    for _ in 0..1000 {
        queue.barrier(&[], Some(&done));
    }
    done.wait_zero();
    assert_eq!(queue.read_index(), 1000);
}

#[test]
fn doorbells_rung_out_of_order_lose_no_packet() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    for round in 0..200 {
        let done = machine.signal(2);
        let raw =
            Packet::BarrierAnd(Barrier { completion_signal: done.handle(), ..Barrier::noop() }).encode();
        // Two producers: the second publishes and rings first.
        let index = queue.pointers.u64(56).fetch_add(2, Ordering::SeqCst);
        for which in [1, 0] {
            let slot = usize::try_from((index + which) % 64).unwrap() * PACKET_BYTES;
            for (word, value) in raw.iter().enumerate().skip(1) {
                queue.ring.u32(slot + 4 * word).store(*value, Ordering::Relaxed);
            }
            queue.ring.u32(slot).store(raw[0], Ordering::Release);
            queue.ring(index + which);
        }
        eventually("both packets", || done.value() == 0);
        assert_eq!(queue.read_index(), 2 * round + 2);
        machine.gpus.unmap(0, done.buffer.va, 4096);
    }
}

#[test]
fn stop_in_a_barrier_returns_at_once_and_start_goes_on() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (dep, done) = (machine.signal(1), machine.signal(1));
    queue.barrier(&[&dep], Some(&done));
    std::thread::sleep(Duration::from_millis(20));
    let since = Instant::now();
    let saved = queue.stop();
    assert!(since.elapsed() < Duration::from_millis(100), "{:?}", since.elapsed());
    assert_eq!((saved.control_stack_bytes, saved.wave_state_bytes), (0, 0));
    dep.store(0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(done.value(), 1, "off the hardware");
    queue.start();
    done.wait_zero();
}

#[test]
fn packets_written_while_stopped_run_after_start() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let done = machine.signal(2);
    queue.barrier(&[], Some(&done));
    eventually("the first", || done.value() == 1);
    queue.stop();
    queue.barrier(&[], Some(&done));
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!((done.value(), queue.read_index()), (1, 1));
    queue.start();
    done.wait_zero();
}

#[test]
fn new_queue_ignores_what_its_doorbell_slot_held() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let done = machine.signal(1);
    queue.barrier(&[], Some(&done));
    done.wait_zero();
    queue.destroy();
    // A zeroed ring: its headers say vendor packet, which would raise an exception if it were looked at.
    for slot in 0..64 {
        queue.ring.u32(slot * PACKET_BYTES).store(0, Ordering::Relaxed);
    }
    queue.pointers.u64(56).store(0, Ordering::SeqCst);
    queue.start();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn start_without_mapped_ring_is_eio() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    queue.stop();
    machine.gpus.unmap(0, queue.ring.va, 4096);
    assert_eq!(machine.gpus.start_queue(0, &queue.config(), &Mqd::default()), Err(nix::errno::Errno::EIO));
}
