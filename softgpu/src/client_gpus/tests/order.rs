// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order in which the packets of a queue begin and complete, and what makes them begin.

use nix::errno::Errno;

use super::kernels::{UNTIL_FLAG, with_array};
use super::*;

/// Stores 1 to the word that the kernel argument points at.
const SET_FLAG: &str = "
    s_load_b64 s[4:5], s[0:1], 0
    v_mov_b32 v0, 0
    v_mov_b32 v1, 1
    s_waitcnt lgkmcnt(0)
    global_store_b32 v0, v1, s[4:5]
    s_endpgm";

fn unordered(kernel: &Kernel, kernarg: u64, done: &Signal) -> Packet {
    let packet = dispatch(kernel, kernarg, 1, done);
    Packet::KernelDispatch(KernelDispatch { header: Header { barrier: false, ..packet.header }, ..packet })
}

fn counts(array: &Buffer) {
    let before = array.u32(4).load(Ordering::SeqCst);
    eventually("the loop", || array.u32(4).load(Ordering::SeqCst) != before);
}

#[test]
fn dispatch_without_the_barrier_bit_begins_beside_those_before_it() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (array, arguments) = with_array(&machine, 4096);
    let (waits, sets) = (machine.kernel(UNTIL_FLAG), machine.kernel(SET_FLAG));
    let (first, second) = (machine.signal(1), machine.signal(1));
    queue.submit(unordered(&waits, arguments.va, &first));
    counts(&array);
    assert_eq!((queue.read_index(), first.value()), (1, 1), "its slot is free while it runs");
    // The first ends only if the second runs.
    queue.submit(unordered(&sets, arguments.va, &second));
    second.wait_zero();
    first.wait_zero();
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn barrier_bit_waits_for_all_before_it() {
    let machine = Machine::new();
    let (queue, other) = (machine.queue(1), machine.queue(2));
    let (array, arguments) = with_array(&machine, 4096);
    let (waits, sets) = (machine.kernel(UNTIL_FLAG), machine.kernel(SET_FLAG));
    let [first, second, third] = [(); 3].map(|()| machine.signal(1));
    let (elsewhere, argument) = with_array(&machine, 4096);
    queue.submit(unordered(&waits, arguments.va, &first));
    counts(&array);
    queue.submit(Packet::KernelDispatch(dispatch(&sets, argument.va, 1, &second)));
    other.barrier(&[], Some(&third));
    third.wait_zero();
    counts(&array);
    assert_eq!((queue.read_index(), second.value(), elsewhere.u32(0).load(Ordering::SeqCst)), (1, 1, 0));
    array.u32(0).store(1, Ordering::SeqCst);
    second.wait_zero();
    assert_eq!(first.value(), 0);
}

#[test]
fn barrier_packet_may_wait_for_a_dispatch_before_it_and_the_next_one_for_the_barrier() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (array, arguments) = with_array(&machine, 4096);
    let waits = machine.kernel(UNTIL_FLAG);
    let [first, behind] = [(); 2].map(|()| machine.signal(1));
    queue.submit(unordered(&waits, arguments.va, &first));
    counts(&array);
    let barrier = Barrier {
        dep_signals: [first.handle(), 0, 0, 0, 0],
        completion_signal: behind.handle(),
        ..Barrier::noop()
    };
    queue.submit(Packet::BarrierAnd(barrier));
    counts(&array);
    assert_eq!((queue.read_index(), behind.value()), (1, 1));
    array.u32(0).store(1, Ordering::SeqCst);
    behind.wait_zero();
    assert_eq!((queue.read_index(), first.value()), (2, 0));
}

#[test]
fn published_packet_waits_for_a_doorbell() {
    let machine = Machine::new();
    let (queue, other) = (machine.queue(1), machine.queue(2));
    let [quiet, rung, elsewhere] = [(); 3].map(|()| machine.signal(1));
    let packet = |done: &Signal| {
        Packet::BarrierAnd(Barrier { completion_signal: done.handle(), ..Barrier::noop() }).encode()
    };
    // The thread has looked once, so that it does not come onto the hardware later than the packet.
    queue.submit_raw(&packet(&rung));
    rung.wait_zero();
    let index = queue.write(&packet(&quiet));
    // It wakes every queue of the process.
    other.barrier(&[], Some(&elsewhere));
    elsewhere.wait_zero();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((quiet.value(), queue.read_index()), (1, 1));
    queue.ring(index);
    quiet.wait_zero();
}

#[test]
fn dispatches_that_run_beside_each_other_are_saved_and_go_on() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let waits = machine.kernel(UNTIL_FLAG);
    let running: Vec<_> = (0..3)
        .map(|_| {
            let ((array, arguments), done) = (with_array(&machine, 4096), machine.signal(1));
            queue.submit(unordered(&waits, arguments.va, &done));
            (array, arguments, done)
        })
        .collect();
    running.iter().for_each(|(array, ..)| counts(array));
    queue.stop();
    let (mqd, area) = (queue.mqd.lock().clone(), queue.save.bytes(0, SAVE_BYTES as usize));
    let saved = || running.iter().map(|(array, ..)| array.u32(4).load(Ordering::SeqCst)).collect::<Vec<_>>();
    let stopped_at = saved();
    queue.start();
    running.iter().for_each(|(array, ..)| counts(array));
    queue.stop();
    assert_ne!(queue.save.bytes(0, SAVE_BYTES as usize), area);
    // Back to the first save; taken off before it can execute anything, it is the same.
    queue.save.fill(0, &area);
    let gpu = Arc::clone(machine.gpus.gpus[0].gpu());
    let again = super::super::queue::Queue::paused(gpu, queue.config(), &mqd).unwrap().save().unwrap();
    assert!(*again == mqd, "the descriptor");
    assert_eq!(queue.save.bytes(0, SAVE_BYTES as usize), area, "the waves");
    *queue.mqd.lock() = mqd;
    queue.start();
    running.iter().for_each(|(array, ..)| counts(array));
    assert!(saved().iter().zip(&stopped_at).all(|(now, then)| now != then));
    // They end in any order.
    for (array, _, done) in running.iter().rev() {
        array.u32(0).store(1, Ordering::SeqCst);
        done.wait_zero();
        assert_eq!(array.u32(8).load(Ordering::SeqCst), 7);
    }
    assert_eq!(queue.stop().wave_state_bytes, 0);
}

#[test]
fn descriptor_with_more_dispatches_or_waves_than_it_holds_is_refused() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let waits = machine.kernel(UNTIL_FLAG);
    for _ in 0..2 {
        let ((array, arguments), done) = (with_array(&machine, 4096), machine.signal(1));
        queue.submit(unordered(&waits, arguments.va, &done));
        counts(&array);
    }
    queue.stop();
    let good = queue.mqd.lock().clone();
    // Behind the two words of the header: exception, position and rung, what runs, how many, waves of the first.
    let state = crate::hardware::mqd_field::FIRMWARE + 2;
    let gpu = Arc::clone(machine.gpus.gpus[0].gpu());
    for (word, value) in [(state + 6, 4), (state + 6, 1), (state + 7, 3), (state + 7, 0)] {
        let mut bad = good.clone();
        assert_ne!(bad.word(word), value);
        bad.set_word(word, value);
        let refused = super::super::queue::Queue::paused(Arc::clone(&gpu), queue.config(), &bad);
        assert_eq!(refused.map(drop).unwrap_err(), Errno::EINVAL, "word {word}");
    }
}

#[test]
fn dispatches_beside_one_that_faults_never_complete() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (array, arguments) = with_array(&machine, 4096);
    let (waits, bad) = (machine.kernel(UNTIL_FLAG), machine.kernel(".long 0xffffffff\ns_endpgm"));
    let (first, second) = (machine.signal(1), machine.signal(1));
    queue.submit(unordered(&waits, arguments.va, &first));
    counts(&array);
    queue.submit(unordered(&bad, arguments.va, &second));
    assert_eq!(machine.exceptions(), [(1, ExceptionCode::WaveIllegalInstruction)]);
    // The queue is off the hardware when its dispatches have ended, by whatever.
    queue.stop();
    array.u32(0).store(1, Ordering::SeqCst);
    assert_eq!((first.value(), second.value()), (1, 1));
    queue.start();
    assert_eq!(queue.read_index(), 2);
}

#[test]
fn no_end_is_lost_between_workers_that_leave_together() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (sets, (_, argument)) = (machine.kernel(SET_FLAG), with_array(&machine, 4096));
    for _ in 0..2000 {
        let done = machine.signal(1);
        // As many groups as workers, so that they come to the end of the grid at the same time.
        queue.submit(Packet::KernelDispatch(dispatch(&sets, argument.va, 2, &done)));
        done.wait_zero();
        machine.gpus.unmap(0, done.buffer.va, 4096);
    }
}
