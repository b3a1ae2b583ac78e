// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that enqueue: they publish a packet in another queue's ring and ring its doorbell.
#![allow(clippy::unwrap_used)]

use std::mem::offset_of;
use std::time::Duration;

use queues::aql::{self, Barrier, PacketKind};
use queues::hsa::AmdQueue;
use queues::pm4;
use stasis::checkpoint::Mode;
use stasis::raw::{RawKind, RawQueue};
use stasis::{Arg, Kernel, Signal};
use stasis_tests::gpu::{Gpu, SOON, on_a_future_kernel};
use stasis_tests::packets::{arguments, pm4_dispatch, raw_queue};

/// What starts the kernel that enqueues.
#[derive(Clone, Copy, Debug)]
enum Parent {
    Aql,
    Pm4,
}

/// Puts the body of a barrier packet that completes `done` into the child's ring, and moves the write index over it. Gives
/// the packet's address and header, and the address of the queue's structure.
fn prepare(child: &RawQueue, done: &Signal) -> (u64, u32, u64) {
    child.completes(done);
    let access = child.access().unwrap();
    let position = access.write_pointer().load();
    let barrier = Barrier { completion_signal: done.handle(), ..Barrier::noop() };
    let mut packet = aql::Packet::BarrierAnd(barrier).encode();
    let header = std::mem::replace(&mut packet[0], PacketKind::Invalid as u32);
    access.ring().write(position, &packet);
    access.write_pointer().store(position + 1);
    let slot = position % (access.ring().bytes() / 64);
    let queue = access.write_pointer().va() - offset_of!(AmdQueue, write_dispatch_id) as u64;
    (access.ring().va() + slot * 64, header, queue)
}

/// Runs the kernel on a PM4 queue and waits for it.
fn run_by_pm4(gpu: &Gpu, kernel: &Kernel, args: &[Arg<'_>]) {
    let arguments = arguments(gpu, kernel, args);
    let (queue, done) = (raw_queue(gpu, RawKind::Pm4), Signal::new(&gpu.runtime, 1).unwrap());
    let mut words = pm4_dispatch(gpu, kernel, &arguments, [1; 3], [1; 3]);
    let (mailbox, event) = done.mailbox().unwrap().unwrap();
    pm4::signal(done.value_va(), 0, pm4::Width::Bits64).encode(&mut words).unwrap();
    pm4::interrupt(mailbox, event).encode(&mut words).unwrap();
    queue.completes(&done);
    queue.submit(&words).unwrap();
    done.wait_done(SOON).unwrap();
}

/// Has a kernel enqueue a packet of `child`, and waits for both.
fn enqueue(gpu: &Gpu, parent: Parent, child: &RawQueue, stays: bool) {
    let (kernel, done) = (gpu.kernel("enqueue"), Signal::new(&gpu.runtime, 1).unwrap());
    let (packet, header, queue) = prepare(child, &done);
    let args = [
        Arg::Address(packet),
        Arg::U32(header),
        Arg::U32(stays.into()),
        Arg::Address(queue),
        Arg::Address(done.value_va()),
    ];
    match parent {
        Parent::Aql => gpu.run(&kernel, [1; 3], [1; 3], &args),
        Parent::Pm4 => run_by_pm4(gpu, &kernel, &args),
    }
    done.wait_done(SOON).unwrap();
}

#[test]
fn packet_that_a_kernel_enqueues_runs() {
    let gpu = Gpu::new();
    for parent in [Parent::Aql, Parent::Pm4] {
        let child = raw_queue(&gpu, RawKind::Aql);
        // Once more than the ring has places.
        for _ in 0..65 {
            enqueue(&gpu, parent, &child, false);
        }
    }
}

#[test]
fn packet_runs_beside_the_kernel_that_enqueued_it() {
    let gpu = Gpu::new();
    for parent in [Parent::Aql, Parent::Pm4] {
        let child = raw_queue(&gpu, RawKind::Aql);
        for pause in [0, 1, 20] {
            // The child's queue sleeps, now or soon.
            std::thread::sleep(Duration::from_millis(pause));
            enqueue(&gpu, parent, &child, true);
        }
    }
}

#[test]
fn barrier_behind_the_kernel_waits_for_what_that_enqueues() {
    let gpu = Gpu::new();
    let (kernel, child) = (gpu.kernel("enqueue"), raw_queue(&gpu, RawKind::Aql));
    let [inner, outer, kernel_done] = [(); 3].map(|()| Signal::new(&gpu.runtime, 1).unwrap());
    let (packet, header, queue) = prepare(&child, &inner);
    std::thread::sleep(Duration::from_millis(20));
    let args = [
        Arg::Address(packet),
        Arg::U32(header),
        Arg::U32(1),
        Arg::Address(queue),
        Arg::Address(inner.value_va()),
    ];
    let dispatch = gpu.queue.dispatch(&kernel).grid([1; 3]).block([1; 3]).args(&args);
    dispatch.barrier(false).completion(&kernel_done).submit().unwrap();
    gpu.queue.barrier(&[&inner], Some(&outer)).unwrap();
    outer.wait_done(SOON).unwrap();
    kernel_done.wait_done(SOON).unwrap();
}

#[test]
fn doorbells_are_mapped_again_after_a_checkpoint() {
    on_a_future_kernel();
    let gpu = Gpu::new();
    let (child, directory) = (raw_queue(&gpu, RawKind::Aql), tempfile::tempdir().unwrap());
    enqueue(&gpu, Parent::Aql, &child, true);
    for mode in [Mode::Drain, Mode::Preempt] {
        gpu.runtime.lock(mode, Duration::from_secs(60)).unwrap();
        gpu.runtime.checkpoint(directory.path()).unwrap();
        gpu.runtime.restore(None).unwrap();
        gpu.runtime.unlock().unwrap();
        enqueue(&gpu, Parent::Aql, &child, true);
    }
}
