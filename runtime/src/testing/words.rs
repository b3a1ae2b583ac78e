// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fake driver's PM4 and SDMA processors: what copies, waits and signals; a dispatch completes at once.

use std::sync::atomic::Ordering;

use kfd::sys::KFD_IOC_QUEUE_TYPE_COMPUTE;
use queues::pm4::{DataSel, Packet as Pm4, WaitTarget};
use queues::sdma::{AtomicOperation, Generation, Packet as Sdma};
use queues::{pm4, sdma};

use super::kernel::{FakeKernel, State};
use super::processor::{half, raise, word};

/// Runs one packet of a queue of words; `false` if there is none or it waits.
pub(super) fn step(kernel: &FakeKernel, state: &mut State, id: u32, rung: u64) -> bool {
    let queue = state.queues[&id];
    let is_pm4 = queue.kind == KFD_IOC_QUEUE_TYPE_COMPUTE;
    let unit = if is_pm4 { 4 } else { 1 };
    let bell = word(rung + queue.doorbell).load(Ordering::Acquire);
    let end = bell.min(word(queue.write).load(Ordering::Acquire));
    if bell == u64::MAX || end <= queue.at {
        return false;
    }
    let dwords = (end - queue.at) * unit / 4;
    let place = |nth: u64| queue.ring + (queue.at * unit + nth * 4) % queue.ring_bytes;
    let stream: Vec<u32> = (0..dwords).map(|nth| half(place(nth)).load(Ordering::Acquire)).collect();
    let taken = match is_pm4 {
        true => run_pm4(kernel, state, id, &stream),
        false => {
            let left = queue.ring_bytes - queue.at % queue.ring_bytes;
            let (packet, dwords) = sdma::decode(&stream, Generation::V6).expect("a well-formed packet");
            assert!(dwords as u64 * 4 <= left, "{packet} straddles the ring's end");
            run_sdma(kernel, state, id, &packet).then_some(dwords)
        }
    };
    let Some(taken) = taken else { return false };
    let queue = state.queues.get_mut(&id).unwrap();
    queue.at += taken as u64 * 4 / unit;
    // The one publishes all of its pointer, the other what the ring needs: a runtime must bear both.
    let published = if is_pm4 { queue.at % (queue.ring_bytes / 4) } else { queue.at };
    word(queue.read).store(published, Ordering::Release);
    true
}

fn run_pm4(kernel: &FakeKernel, state: &mut State, id: u32, stream: &[u32]) -> Option<usize> {
    let (packet, dwords) = pm4::decode(stream).expect("a well-formed packet");
    match packet {
        Pm4::WaitRegMem(wait) => {
            if let WaitTarget::Memory { address } = wait.target
                && !wait.function.holds(half(address).load(Ordering::Acquire) & wait.mask, wait.reference)
            {
                return None;
            }
        }
        Pm4::ReleaseMem(release) => {
            match release.data_sel {
                DataSel::None => {}
                DataSel::Low32 => half(release.address).store(release.value as u32, Ordering::Release),
                DataSel::All64 => word(release.address).store(release.value, Ordering::Release),
                DataSel::GpuClock => word(release.address).store(1, Ordering::Release),
            }
            if release.int_sel.interrupts() {
                let _ = kernel.set_event(state, release.context_id);
            }
        }
        Pm4::DispatchDirect { .. } => {
            if state.hold {
                return None;
            }
            if let Some(code) = state.raise.take() {
                raise(kernel, state, id, state.queues[&id], code);
                return None;
            }
            state.dispatched += 1;
        }
        _ => {}
    }
    Some(dwords)
}

fn run_sdma(kernel: &FakeKernel, state: &mut State, id: u32, packet: &Sdma<'_>) -> bool {
    match packet {
        Sdma::PollRegMem(poll) => {
            return !poll.memory || poll.is_satisfied_by(half(poll.address).load(Ordering::Acquire));
        }
        Sdma::CopyLinear(copy) => {
            if state.hold {
                return false;
            }
            if let Some(code) = state.raise.take() {
                raise(kernel, state, id, state.queues[&id], code);
                return false;
            }
            let from = std::ptr::with_exposed_provenance::<u8>(copy.src as usize);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(copy.dst as usize);
            // SAFETY: the runtime keeps the buffers of packets in flight mapped.
            unsafe { to.copy_from_nonoverlapping(from, copy.bytes as usize) };
        }
        Sdma::ConstFill(fill) => {
            for at in (0..u64::from(fill.bytes)).step_by(4) {
                half(fill.dst + at).store(fill.value, Ordering::Relaxed);
            }
        }
        Sdma::Write { dst, data } => {
            for (nth, &value) in data.iter().enumerate() {
                half(dst + nth as u64 * 4).store(value, Ordering::Relaxed);
            }
        }
        Sdma::Fence(fence) => half(fence.address).store(fence.value, Ordering::Release),
        Sdma::Trap { event_id } => drop(kernel.set_event(state, *event_id)),
        Sdma::Atomic(atomic) => {
            assert_eq!(atomic.operation, AtomicOperation::Add64);
            word(atomic.address).fetch_add(atomic.source, Ordering::AcqRel);
        }
        Sdma::Timestamp { address } => word(*address).store(1, Ordering::Release),
        Sdma::Nop { .. } | Sdma::Gcr(_) | Sdma::HdpFlush => {}
        Sdma::CopyRect(_) => panic!("the fake engine copies no rectangles"),
    }
    true
}
