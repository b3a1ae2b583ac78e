// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which host writes are flushed, and by what. The software device's page keeps what was stored to its registers.

use std::time::Duration;

use crate::checkpoint::Mode;
use crate::testing::runtime;
use crate::*;

const LONG: Duration = Duration::from_secs(60);

/// A queue on agent 0, and whose memory was flushed since the last look.
struct Setup {
    runtime: Runtime,
    queue: Queue,
}

impl Setup {
    fn new(agents: u32) -> Self {
        let (runtime, _) = runtime(agents);
        let queue = Queue::create(&runtime.agent(0).unwrap(), QueueOptions::default()).unwrap();
        let setup = Setup { runtime, queue };
        setup.submit();
        setup.flushed();
        setup
    }

    fn agent(&self, index: usize) -> Agent {
        self.runtime.agent(index).unwrap()
    }

    fn submit(&self) {
        self.queue.barrier(&[], None).unwrap();
    }

    fn flushed(&self) -> Vec<usize> {
        let context = self.runtime.context();
        let pass = context.gate.enter().unwrap();
        (0..context.agents.len()).filter(|&agent| context.host_writes.was_flushed(&pass, agent)).collect()
    }
}

#[test]
fn packet_after_a_write_to_device_memory_flushes_once() {
    let setup = Setup::new(1);
    let buffer = setup.agent(0).vram().alloc(4096).unwrap();
    buffer.write(0, b"host").unwrap();
    assert_eq!(setup.flushed(), [0; 0], "the write alone flushes nothing");
    setup.submit();
    assert_eq!(setup.flushed(), [0]);
    setup.submit();
    assert_eq!(setup.flushed(), [0; 0], "nothing was written since");
}

#[test]
fn packet_after_a_write_to_system_memory_flushes_nothing() {
    let setup = Setup::new(1);
    setup.runtime.gtt().alloc(4096).unwrap().write(0, b"host").unwrap();
    setup.submit();
    assert_eq!(setup.flushed(), [0; 0]);
}

#[test]
fn packet_flushes_the_agent_whose_memory_was_written() {
    let setup = Setup::new(2);
    let buffer = setup.agent(1).vram().alloc(4096).unwrap();
    buffer.write(0, b"host").unwrap();
    setup.submit();
    assert_eq!(setup.flushed(), [1], "the queue is agent 0's, which may read its peer's memory");
}

#[test]
fn every_packet_flushes_while_the_host_may_write_and_one_behind() {
    let setup = Setup::new(1);
    let buffer = setup.agent(0).vram().alloc(4096).unwrap();
    let guard = buffer.host().unwrap();
    for _ in 0..2 {
        setup.submit();
        assert_eq!(setup.flushed(), [0]);
    }
    drop(guard);
    setup.submit();
    assert_eq!(setup.flushed(), [0]);
    setup.submit();
    assert_eq!(setup.flushed(), [0; 0]);
}

#[test]
fn store_to_a_signal_that_packets_may_wait_for_flushes() {
    let setup = Setup::new(1);
    let signal = Signal::new(&setup.runtime, 1).unwrap();
    setup.queue.barrier(&[&signal], None).unwrap();
    let buffer = setup.agent(0).vram().alloc(4096).unwrap();
    buffer.write(0, b"host").unwrap();
    signal.store(0).unwrap();
    assert_eq!(setup.flushed(), [0]);
    setup.queue.wait_idle(Some(LONG)).unwrap();
}

#[test]
fn words_and_ranges_and_the_callers_own_flush_count_too() {
    let setup = Setup::new(1);
    let agent = setup.agent(0);
    let range = setup.runtime.reserve(1 << 20, 0).unwrap();
    let memory = agent.vram().physical(4096).unwrap();
    range.map(0, &memory, 0, 4096).unwrap();
    range.write(0, b"host").unwrap();
    let queue = RawQueue::create(&agent, raw::RawOptions::default()).unwrap();
    let mut words = Vec::new();
    queues::pm4::push_nops(&mut words, 2);
    queue.submit(&words).unwrap();
    assert_eq!(setup.flushed(), [0]);
    agent.flush_host_writes().unwrap();
    assert_eq!(setup.flushed(), [0]);
}

#[test]
fn what_others_may_look_at_is_flushed_at_once() {
    let setup = Setup::new(1);
    let buffer = setup.agent(0).vram().alloc(4096).unwrap();
    buffer.write(0, b"before").unwrap();
    assert!(setup.flushed().is_empty());
    let exported = buffer.export().unwrap();
    assert_eq!(setup.flushed(), [0], "what was written before is theirs to see, too");
    buffer.write(0, b"after").unwrap();
    assert_eq!(setup.flushed(), [0]);
    drop(buffer.host().unwrap());
    assert_eq!(setup.flushed(), [0], "who knows what was written through the pointer");
    drop(exported);
}

#[test]
fn loaded_code_is_flushed_before_it_can_run() {
    let setup = Setup::new(1);
    let _executable = Executable::load(&setup.agent(0), device_lib::object_for("gfx1100").unwrap()).unwrap();
    setup.submit();
    assert_eq!(setup.flushed(), [0]);
}

#[test]
fn registers_are_gone_in_a_checkpoint_and_what_a_restore_wrote_is_flushed() {
    let setup = Setup::new(1);
    let buffer = setup.agent(0).vram().alloc(4096).unwrap();
    buffer.write(0, b"host").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let pages = || std::fs::read_to_string("/proc/self/maps").unwrap().matches(":mmio:").count();
    let before = pages();
    assert!(before > 0);
    setup.runtime.lock(Mode::Drain, LONG).unwrap();
    setup.runtime.checkpoint(directory.path()).unwrap();
    // Other tests of this process have pages of their own, unless nextest runs them.
    assert!(pages() < before || std::env::var_os("NEXTEST").is_none());
    setup.runtime.restore(None).unwrap();
    setup.runtime.unlock().unwrap();
    setup.flushed();
    setup.submit();
    assert_eq!(setup.flushed(), [0]);
}
