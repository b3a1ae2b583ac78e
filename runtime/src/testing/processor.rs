// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fake driver's packet processor: a thread that polls all queues. `words` has the languages without headers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kfd::sys::{KFD_FIRST_NONSIGNAL_EVENT_ID, kfd_event_data, kfd_hsa_memory_exception_data};
use queues::aql::Packet;

use super::kernel::{FakeKernel, FakeQueue, State};
use super::words;

pub(super) fn word<'a>(va: u64) -> &'a AtomicU64 {
    // SAFETY: the runtime keeps a live queue's memory mapped, and signals while packets name them.
    unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(va as usize)) }
}

pub(super) fn half<'a>(va: u64) -> &'a AtomicU32 {
    // SAFETY: the runtime keeps a live queue's memory mapped, and signals while packets name them.
    unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(va as usize)) }
}

pub(super) fn start(kernel: &Arc<FakeKernel>) {
    let weak: Weak<FakeKernel> = Arc::downgrade(kernel);
    let rung = map_doorbells(kernel);
    kernel.state.lock().rung = rung;
    std::thread::spawn(move || {
        while let Some(kernel) = weak.upgrade() {
            {
                let mut state = kernel.state.lock();
                let ids: Vec<u32> = state.queues.keys().copied().collect();
                for id in ids {
                    while !state.dead && step(&kernel, &mut state, id, rung) {}
                }
            }
            drop(kernel);
            std::thread::sleep(Duration::from_micros(20));
        }
    });
}

/// The processor's own view of the doorbells; every doorbell starts as "nothing rung".
fn map_doorbells(kernel: &FakeKernel) -> u64 {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping.
    let at =
        unsafe { mmap(std::ptr::null_mut(), 8192, prot, MapFlags::SHARED, &kernel.doorbells, 0) }.unwrap();
    let base = at.expose_provenance() as u64;
    (0..1024).for_each(|i| word(base + i * 8).store(u64::MAX, Ordering::Relaxed));
    base
}

/// Runs one packet of a queue; `false` if there is none.
fn step(kernel: &FakeKernel, state: &mut State, id: u32, rung: u64) -> bool {
    let queue = state.queues[&id];
    if !queue.active || queue.halted {
        return false;
    }
    if queue.kind != kfd::sys::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL {
        return words::step(kernel, state, id, rung);
    }
    let read = word(queue.read).load(Ordering::Relaxed);
    let bell = word(rung + queue.doorbell).load(Ordering::Acquire);
    if bell == u64::MAX || read > bell || read >= word(queue.write).load(Ordering::Acquire) {
        return false;
    }
    let slot = queue.ring + read % (queue.ring_bytes / 64) * 64;
    if half(slot).load(Ordering::Acquire) & 0xff == 1 {
        return false;
    }
    let raw = std::array::from_fn(|i| half(slot + i as u64 * 4).load(Ordering::Relaxed));
    match Packet::decode(&raw).expect("a well-formed packet") {
        Packet::BarrierAnd(barrier) => {
            let open = |&handle: &u64| handle != 0 && word(handle + 8).load(Ordering::Acquire) != 0;
            if barrier.dep_signals.iter().any(open) {
                return false;
            }
            complete(kernel, state, barrier.completion_signal);
        }
        Packet::BarrierOr(barrier) => complete(kernel, state, barrier.completion_signal),
        Packet::AgentDispatch(_) | Packet::Pm4Ib(_) | Packet::BarrierValue(_) => {
            panic!("the fake processor does not know this packet")
        }
        Packet::KernelDispatch(dispatch) => {
            if state.hold {
                return false;
            }
            if let Some(code) = state.raise.take() {
                raise(kernel, state, id, queue, code);
                return false;
            }
            state.dispatched += 1;
            complete(kernel, state, dispatch.completion_signal);
        }
    }
    half(slot).store(1, Ordering::Relaxed);
    word(queue.read).store(read + 1, Ordering::Release);
    true
}

fn complete(kernel: &FakeKernel, state: &mut State, handle: u64) {
    if handle == 0 {
        return;
    }
    word(handle + 8).fetch_sub(1, Ordering::AcqRel);
    let mailbox = word(handle + 16).load(Ordering::Relaxed);
    let event = half(handle + 24).load(Ordering::Relaxed);
    if mailbox != 0 {
        word(mailbox).store(u64::from(event), Ordering::Release);
        let _ = kernel.set_event(state, event);
    }
}

pub(super) fn raise(kernel: &FakeKernel, state: &mut State, id: u32, queue: FakeQueue, code: u32) {
    state.queues.get_mut(&id).unwrap().halted = true;
    if let Some(va) = state.fault.take() {
        let mut data = kfd_event_data::default();
        let mut exception = kfd_hsa_memory_exception_data { va, gpu_id: queue.gpu, ..Default::default() };
        exception.failure.NotPresent = 1;
        data.set_memory_exception_data(exception);
        let event = state.events.get_mut(&KFD_FIRST_NONSIGNAL_EVENT_ID).unwrap();
        event.payload = data.payload;
        kernel.set_event(state, KFD_FIRST_NONSIGNAL_EVENT_ID).unwrap();
    }
    // A copy engine has no save area to report in.
    if queue.save_area == 0 {
        return;
    }
    let payload = word(queue.save_area + 24).load(Ordering::Relaxed);
    let event = half(queue.save_area + 32).load(Ordering::Relaxed);
    word(payload).fetch_or(1 << (code - 1), Ordering::AcqRel);
    kernel.set_event(state, event).unwrap();
}
