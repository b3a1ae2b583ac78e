// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the host stores into a GPU's new memory is seen after a flush of the host data path, and not before.

use std::os::fd::AsFd;

use super::sdma::Engine;
use super::*;

/// Copies a word from the first argument to the second.
const COPY: &str = "
    s_load_b128 s[4:7], s[0:1], 0
    v_mov_b32 v0, 0
    s_waitcnt lgkmcnt(0)
    global_load_b32 v1, v0, s[4:5]
    s_waitcnt vmcnt(0)
    global_store_b32 v0, v1, s[6:7]
    s_endpgm";

/// Where in the buffers the words are.
pub(super) const FAR: usize = 5 * 4096 + 8;

impl Machine {
    /// Memory of the GPU that the host sees through the aperture.
    pub(super) fn behind_aperture(&self, bytes: usize) -> Buffer {
        self.held(bytes, DATA)
    }

    fn held(&self, bytes: usize, access: PageAccess) -> Buffer {
        static NEXT: AtomicU64 = AtomicU64::new(15 << 40);
        let bytes = bytes.next_multiple_of(4096);
        let va = NEXT.fetch_add(bytes as u64 + 4096, Ordering::Relaxed);
        let pages = SharedPages::new("test", bytes).unwrap();
        self.gpus.hold_host_writes(0, pages.fd(), false);
        self.map(&pages, va, bytes as u64, access);
        Buffer { pages, va }
    }

    /// What a client does with its register.
    fn flush(&self) {
        let page = self.gpus.hdp_page(0).unwrap();
        assert_eq!(nix::sys::uio::pwrite(page.as_fd(), &1u32.to_ne_bytes(), 0), Ok(4));
    }

    /// What a kernel finds at `from`.
    pub(super) fn seen(&self, queue: &TestQueue<'_>, from: u64) -> u32 {
        let (done, to) = (self.signal(1), self.buffer(4096, DATA));
        let arguments = self.buffer(4096, DATA);
        arguments.u64(0).store(from, Ordering::Relaxed);
        arguments.u64(8).store(to.va, Ordering::Relaxed);
        let kernel = self.kernel(COPY);
        queue.submit(Packet::KernelDispatch(dispatch(&kernel, arguments.va, 1, &done)));
        done.wait_zero();
        to.u32(0).load(Ordering::SeqCst)
    }
}

fn store(buffer: &Buffer, value: u32) {
    buffer.u32(FAR).store(value, Ordering::SeqCst);
}

fn far(buffer: &Buffer) -> u64 {
    buffer.va + FAR as u64
}

#[test]
fn stores_without_a_flush_are_not_seen_and_arrive_with_the_next_one() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let memory = machine.behind_aperture(8 * 4096);
    store(&memory, 7);
    assert_eq!(machine.seen(&queue, far(&memory)), 0);
    assert_eq!(machine.seen(&queue, far(&memory)), 0, "still not flushed");
    machine.flush();
    assert_eq!(machine.seen(&queue, far(&memory)), 7);
    assert_eq!(memory.u32(FAR).load(Ordering::SeqCst), 7);
}

#[test]
fn stores_before_a_flush_are_seen() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (first, second) = (machine.behind_aperture(8 * 4096), machine.behind_aperture(8 * 4096));
    store(&first, 1);
    store(&second, 2);
    machine.flush();
    assert_eq!((machine.seen(&queue, far(&first)), machine.seen(&queue, far(&second))), (1, 2));
}

#[test]
fn flush_before_the_memory_was_made_is_none_for_it() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    machine.flush();
    let memory = machine.behind_aperture(8 * 4096);
    store(&memory, 3);
    assert_eq!(machine.seen(&queue, far(&memory)), 0);
}

#[test]
fn what_the_gpu_wrote_first_is_the_hosts_to_read() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (memory, source) = (machine.behind_aperture(4096), machine.buffer(4096, DATA));
    source.u32(0).store(9, Ordering::Relaxed);
    let done = machine.signal(1);
    let arguments = machine.buffer(4096, DATA);
    arguments.u64(0).store(source.va, Ordering::Relaxed);
    arguments.u64(8).store(memory.va, Ordering::Relaxed);
    let kernel = machine.kernel(COPY);
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, arguments.va, 1, &done)));
    done.wait_zero();
    assert_eq!(memory.u32(0).load(Ordering::SeqCst), 9);
    assert_eq!(machine.seen(&queue, memory.va), 9, "its own stores are nobody's to hold back");
}

#[test]
fn copy_engines_flush_by_a_packet_and_see_nothing_without() {
    use queues::sdma::{CopyLinear, Packet};
    let machine = Machine::new();
    let engine = Engine::new(&machine, 1);
    for (flush, wanted) in [(false, 0), (true, 5)] {
        let (memory, to) = (machine.behind_aperture(8 * 4096), machine.buffer(4096, DATA));
        store(&memory, 5);
        if flush {
            engine.submit(&[Packet::HdpFlush]);
        }
        engine.submit(&[Packet::CopyLinear(CopyLinear { bytes: 4, src: far(&memory), dst: to.va })]);
        engine.finish();
        assert_eq!(to.u32(0).load(Ordering::SeqCst), wanted, "flush: {flush}");
    }
}

#[test]
fn late_stores_to_read_only_memory_arrive_too_and_to_none_that_is_gone() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let read_only = PageAccess { write: false, ..DATA };
    let (stays, goes) = (machine.held(8 * 4096, read_only), machine.behind_aperture(8 * 4096));
    store(&stays, 6);
    store(&goes, 6);
    assert_eq!((machine.seen(&queue, far(&stays)), machine.seen(&queue, far(&goes))), (0, 0));
    machine.gpus.unmap(0, goes.va, 8 * 4096);
    machine.flush();
    assert_eq!(machine.seen(&queue, far(&stays)), 6);
    assert_eq!(goes.u32(FAR).load(Ordering::SeqCst), 0);
}

#[test]
fn memory_that_two_queues_touch_at_once_is_whole_after_a_flush() {
    let machine = Machine::new();
    let queues: Vec<_> = (1..=4).map(|id| machine.queue(id)).collect();
    for round in 1..=100 {
        let memory = machine.behind_aperture(8 * 4096);
        store(&memory, round);
        machine.flush();
        std::thread::scope(|scope| {
            let readers: Vec<_> =
                queues.iter().map(|queue| scope.spawn(|| machine.seen(queue, far(&memory)))).collect();
            for reader in readers {
                assert_eq!(reader.join().unwrap(), round);
            }
        });
    }
}
