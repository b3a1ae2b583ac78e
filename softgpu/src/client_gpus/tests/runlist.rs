// SPDX-License-Identifier: MIT OR Apache-2.0
//! More queues than the hardware has places for.

use std::ops::Range;

use super::kernels::{UNTIL_FLAG, with_array};
use super::*;

struct Looping<'a> {
    queue: TestQueue<'a>,
    array: Buffer,
    _arguments: Buffer,
    done: Signal,
}

impl Looping<'_> {
    fn count(&self) -> u32 {
        self.array.u32(4).load(Ordering::SeqCst)
    }

    fn counts(&self) {
        let before = self.count();
        eventually("a turn", || self.count() != before);
    }

    fn end(&self) {
        self.array.u32(0).store(1, Ordering::SeqCst);
        self.done.wait_zero();
        assert_eq!(self.array.u32(8).load(Ordering::SeqCst), 7);
    }
}

fn machine() -> Machine {
    Machine::with_chip(Chip { compute_queues: 2, ..chip() })
}

fn looping<'a>(machine: &'a Machine, kernel: &Kernel, ids: Range<u32>) -> Vec<Looping<'a>> {
    let start = |id| {
        let (queue, done) = (machine.queue(id), machine.signal(1));
        let (array, arguments) = with_array(machine, 4096);
        queue.submit(Packet::KernelDispatch(dispatch(kernel, arguments.va, 1, &done)));
        Looping { queue, array, _arguments: arguments, done }
    };
    ids.map(start).collect()
}

#[test]
fn queues_beyond_the_hardware_take_turns_in_the_middle_of_their_kernels() {
    let machine = machine();
    let kernel = machine.kernel(UNTIL_FLAG);
    let all = looping(&machine, &kernel, 1..6);
    for _ in 0..3 {
        all.iter().for_each(Looping::counts);
    }
    // While two are on the hardware, three stand still for a quantum at least.
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads().filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    assert!(names.filter(|name| name.starts_with("queue ")).count() <= 2);
    all.iter().for_each(Looping::end);
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn queues_stop_start_and_are_destroyed_wherever_they_are() {
    let machine = machine();
    let kernel = machine.kernel(UNTIL_FLAG);
    let all = looping(&machine, &kernel, 1..6);
    all.iter().for_each(Looping::counts);
    for round in 0..20 {
        let some = &all[round % all.len()];
        let saved = some.queue.stop();
        assert!(saved.wave_state_bytes > 0, "{saved:?}");
        let stopped_at = some.count();
        all[(round + 1) % all.len()].counts();
        assert_eq!(some.count(), stopped_at, "it is off the hardware");
        some.queue.start();
        some.counts();
    }
    let (gone, kept) = all.split_at(2);
    gone.iter().for_each(|some| some.queue.destroy());
    let stopped_at: Vec<_> = gone.iter().map(Looping::count).collect();
    kept.iter().for_each(Looping::counts);
    assert_eq!(gone.iter().map(Looping::count).collect::<Vec<_>>(), stopped_at);
    kept.iter().for_each(Looping::end);
    // Dropped with a queue that waits.
    let _more = looping(&machine, &kernel, 6..9);
}

#[test]
fn preemption_that_hangs_is_told_and_the_queue_is_lost() {
    // gfx1100 waves without PRIV hang when they are preempted; a PM4 queue's have what its client set.
    let machine = machine();
    let kernel = machine.kernel(UNTIL_FLAG);
    let ring = pm4::Ring::new(&machine, 60);
    let (array, arguments) = with_array(&machine, 4096);
    ring.submit(&pm4::preemption::launch_privileged(&kernel, arguments.va, false));
    eventually("the loop", || array.u32(4).load(Ordering::SeqCst) > 0);
    let all = looping(&machine, &kernel, 1..6);
    eventually("the hang", || !machine.driver.hangs.lock().is_empty());
    all.iter().for_each(Looping::counts);
    all.iter().for_each(Looping::end);
}
