// SPDX-License-Identifier: MIT OR Apache-2.0
//! One memory at several addresses, parts of it, and permissions that change under a mapping.

use super::*;

/// Stores `value` into the u32 whose address is at the arguments' start.
fn store(value: u32) -> String {
    format!(
        "s_load_b64 s[4:5], s[0:1], 0\n s_waitcnt lgkmcnt(0)\n v_mov_b32 v0, 0\n v_mov_b32 v1, {value}\n
         global_store_b32 v0, v1, s[4:5]\n s_endpgm"
    )
}

impl Machine {
    /// Maps two pages of `pages` from `offset` at an address that nothing else has.
    fn part(&self, pages: &SharedPages, offset: u64) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(15 << 40);
        let va = NEXT.fetch_add(1 << 20, Ordering::Relaxed);
        let mapping = GpuMapping { va, bytes: 8192, access: DATA, backing: pages.fd(), offset };
        self.gpus.map(0, &mapping).unwrap();
        va
    }

    fn run(&self, queue: &TestQueue<'_>, value: u32, address: u64) -> Signal {
        let (arguments, done) = (self.buffer(4096, DATA), self.signal(1));
        arguments.u64(0).store(address, Ordering::Relaxed);
        let kernel = self.kernel(&store(value));
        queue.submit(Packet::KernelDispatch(dispatch(&kernel, arguments.va, 1, &done)));
        eventually("the kernel", || done.value() == 0 || !self.driver.exceptions.lock().is_empty());
        done
    }
}

#[test]
fn two_halves_of_one_buffer_are_seen_at_both_addresses() {
    let machine = Machine::new();
    let (queue, whole) = (machine.queue(1), machine.buffer(4 * 4096, DATA));
    let upper = machine.part(&whole.pages, 8192);
    let lower = machine.part(&whole.pages, 0);
    machine.run(&queue, 11, upper + 4096 + 12).wait_zero();
    machine.run(&queue, 22, lower + 4096 + 12).wait_zero();
    assert_eq!(whole.u32(3 * 4096 + 12).load(Ordering::SeqCst), 11);
    assert_eq!(whole.u32(4096 + 12).load(Ordering::SeqCst), 22);
    machine.run(&queue, 33, whole.va + 4096 + 12).wait_zero();
    assert_eq!(machine.gpus.gpus[0].gpu().vm.read_u32(lower + 4096 + 12), Ok(33));
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn page_that_is_taken_out_faults_and_its_neighbours_do_not() {
    let machine = Machine::new();
    let (queue, whole) = (machine.queue(1), machine.buffer(4 * 4096, DATA));
    let part = machine.part(&whole.pages, 4096);
    machine.gpus.unmap(0, part + 4096, 4096);
    machine.run(&queue, 5, part + 4).wait_zero();
    assert_eq!(whole.u32(4096 + 4).load(Ordering::SeqCst), 5);
    machine.run(&queue, 5, part + 4096);
    let fault = VmFault { address: part + 4096, permission_faults: VmFault::VALID | VmFault::WRITE };
    assert_eq!(*machine.driver.faults.lock(), [(0, fault)]);
    machine.gpus.unmap(0, part, 4096);
}

#[test]
fn protected_page_can_be_read_and_not_written_until_it_is_opened_again() {
    let machine = Machine::new();
    let (queue, whole) = (machine.queue(1), machine.buffer(4 * 4096, DATA));
    let part = machine.part(&whole.pages, 0);
    machine.gpus.protect(0, part + 4096, 4096, READ_ONLY);
    machine.run(&queue, 7, part).wait_zero();
    assert_eq!(machine.gpus.gpus[0].gpu().vm.read_u32(part + 4096), Ok(0));
    machine.gpus.protect(0, part, 8192, DATA);
    machine.run(&queue, 8, part + 4096).wait_zero();
    machine.gpus.protect(0, part + 4096, 4096, READ_ONLY);
    machine.run(&queue, 9, part + 4096);
    let fault = VmFault { address: part + 4096, permission_faults: VmFault::WRITE };
    assert_eq!(*machine.driver.faults.lock(), [(0, fault)]);
    assert_eq!(whole.u32(4096).load(Ordering::SeqCst), 8);
}
