// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transfers by copy engines against the fake driver.

use crate::testing::runtime;
use crate::*;

const SOON: Option<std::time::Duration> = Some(std::time::Duration::from_secs(10));

fn bytes(n: u64) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 7) as u8).collect()
}

#[test]
fn sdma_copies_both_ways_and_within_the_agent() {
    let (runtime, kernel) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (host, back) = (runtime.gtt().alloc(70_000).unwrap(), runtime.gtt().alloc(70_000).unwrap());
    let (first, second) = (agent.vram().alloc(70_000).unwrap(), agent.vram().alloc(70_000).unwrap());
    let wanted = bytes(70_000);
    host.write(0, &wanted).unwrap();
    let copy = |to: &Buffer, from: &Buffer, after: &[&Signal]| {
        runtime.copy_by(CopyEngine::Sdma, to.span(3, 69_990), from.span(3, 69_990), after).unwrap()
    };
    let one = copy(&first, &host, &[]);
    let two = copy(&second, &first, &[one.signal()]);
    let three = copy(&back, &second, &[two.signal()]);
    three.wait(SOON).unwrap();
    assert_eq!(three.engine(), CopyEngine::Sdma);
    assert_eq!(back.to_vec().unwrap()[3..69_993], wanted[3..69_993]);
    assert_eq!(back.to_vec().unwrap()[..3], [0; 3]);
    let queues = kernel.created();
    assert_eq!(queues, [(1, 0, 100, 7); 2], "one queue a direction, and no kernels");
    // The transfers are over: nothing keeps the buffers.
    for buffer in [&host, &first, &second, &back] {
        buffer.free().unwrap();
    }
}

#[test]
fn sdma_waits_for_what_it_is_told_to() {
    let (runtime, _) = runtime(1);
    let (to, from) = (runtime.gtt().alloc(64).unwrap(), runtime.gtt().alloc(64).unwrap());
    from.write(0, &[5; 64]).unwrap();
    let holds = [Signal::new(&runtime, 1).unwrap(), Signal::new(&runtime, 1 << 32).unwrap()];
    let after: Vec<&Signal> = holds.iter().collect();
    let copy = runtime.copy_by(CopyEngine::Sdma, to.all(), from.all(), &after).unwrap();
    for hold in &holds {
        let short = Some(std::time::Duration::from_millis(10));
        assert!(matches!(copy.wait(short), Err(CopyError::Wait(_))));
        assert!(matches!(to.free(), Err(FreeError::Pending { .. })));
        hold.store(0).unwrap();
    }
    copy.wait(SOON).unwrap();
    assert_eq!(to.to_vec().unwrap(), [5; 64]);
}

#[test]
fn sdma_fills_dwords_and_refuses_others() {
    let (runtime, _) = runtime(1);
    let buffer = runtime.gtt().alloc(4096).unwrap();
    let fill = |offset, bytes, pattern: &[u8]| {
        runtime.fill_by(CopyEngine::Sdma, buffer.span(offset, bytes), pattern, &[])
    };
    fill(4, 4000, &[1, 2]).unwrap().wait(SOON).unwrap();
    let found = buffer.to_vec().unwrap();
    assert!(found[4..4004].chunks(2).all(|pair| pair == [1, 2]) && found[..4] == [0; 4] && found[4004] == 0);
    assert!(matches!(fill(2, 4, &[1]), Err(CopyError::Dwords { bytes: 4, .. })));
    assert!(matches!(fill(0, 6, &[1, 2]), Err(CopyError::Dwords { .. })));
    assert!(matches!(fill(0, 16, &[1, 2, 3, 4, 5, 6, 7, 8]), Err(CopyError::Dwords { pattern: 8, .. })));
    assert!(matches!(fill(0, 8192, &[1]), Err(CopyError::Range { .. })));
}

#[test]
fn transfers_beyond_the_ring_all_arrive() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (words, total) = (agent.vram().alloc(8192).unwrap(), 3000u32);
    let mut last = None;
    for n in 0..total {
        let span = words.span(u64::from(n % 2048) * 4, 4);
        last = Some(runtime.fill_by(CopyEngine::Sdma, span, &n.to_le_bytes(), &[]).unwrap());
    }
    last.unwrap().wait(SOON).unwrap();
    let found = words.to_vec().unwrap();
    for (at, word) in found.chunks(4).enumerate() {
        let newest = if at < 3000 - 2048 { at + 2048 } else { at };
        assert_eq!(word, (newest as u32).to_le_bytes());
    }
}

#[test]
fn copy_engine_that_faults_breaks_its_transfers_and_is_replaced() {
    let (runtime, kernel) = runtime(1);
    let (to, from) = (runtime.gtt().alloc(64).unwrap(), runtime.gtt().alloc(64).unwrap());
    // An idle compute queue is not suspected.
    let innocent = Queue::create(&runtime.agent(0).unwrap(), QueueOptions::default()).unwrap();
    kernel.raise_on_dispatch(5, Some(0xdead_b000));
    let copy = runtime.copy_by(CopyEngine::Sdma, to.all(), from.all(), &[]).unwrap();
    let CopyError::Wait(error) = copy.wait(SOON).unwrap_err() else { panic!("it was to fail in the wait") };
    let WaitError::Queue(fault) = *error else { panic!("{error}") };
    assert_eq!(fault.memory.unwrap().address, 0xdead_b000);
    assert!(fault.packet.as_ref().unwrap().contains("copy"), "{fault}");
    assert!(innocent.fault().is_none());
    innocent.barrier(&[], None).unwrap();
    innocent.wait_idle(SOON).unwrap();
    runtime.copy_by(CopyEngine::Sdma, to.all(), from.all(), &[]).unwrap().wait(SOON).unwrap();
}
