// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transfers by copy engines.

use softgpu::driver::KernelModel;

use crate::testing::{TestTransport, runtime, runtime_on};
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

/// Takes a buffer from its agent, or gives it back, without the runtime's knowledge.
fn hide(runtime: &Runtime, buffer: &Buffer, hidden: bool) {
    let context = runtime.context();
    let pass = context.gate.enter().unwrap();
    let device = context.device(&pass).unwrap();
    let registry = context.registry.lock();
    let bo = registry.bos.get(buffer.key()).unwrap();
    let handle = kfd::MemoryHandle(bo.kernel.unwrap().handle);
    let gpu = [context.agents[bo.state.agent.at()].gpu()];
    match hidden {
        true => device.kfd().unmap_memory(handle, &gpu).unwrap(),
        false => device.kfd().map_memory(handle, &gpu).unwrap(),
    }
}

#[test]
fn copy_engine_that_faults_breaks_its_transfers_and_is_replaced() {
    // A fault takes only its queue: with released kernels it takes all, and a new one does not run.
    let (runtime, _) = runtime_on(TestTransport::under(KernelModel::Fixed, 1));
    let (to, from) = (runtime.gtt().alloc(64).unwrap(), runtime.gtt().alloc(64).unwrap());
    // An idle compute queue is not suspected.
    let innocent = Queue::create(&runtime.agent(0).unwrap(), QueueOptions::default()).unwrap();
    hide(&runtime, &from, true);
    let copy = runtime.copy_by(CopyEngine::Sdma, to.all(), from.all(), &[]).unwrap();
    let CopyError::Wait(error) = copy.wait(SOON).unwrap_err() else { panic!("it was to fail in the wait") };
    let WaitError::Queue(fault) = *error else { panic!("{error}") };
    assert_eq!(fault.memory.unwrap().address, from.va());
    assert!(fault.packet.as_ref().unwrap().contains("copy"), "{fault}");
    assert!(innocent.fault().is_none());
    innocent.barrier(&[], None).unwrap();
    innocent.wait_idle(SOON).unwrap();
    hide(&runtime, &from, false);
    runtime.copy_by(CopyEngine::Sdma, to.all(), from.all(), &[]).unwrap().wait(SOON).unwrap();
}

/// Two agents with these links: first to second, second to first.
fn pair(there: bool, back: bool) -> (Runtime, Buffer, Buffer, Vec<u8>) {
    let transport = TestTransport::new(2);
    for (is_there, list) in [(there, "nodes/1/p2p_links/2"), (back, "nodes/2/p2p_links/1")] {
        if !is_there {
            transport.sysfs.remove(list);
        }
    }
    let (runtime, _) = runtime_on(transport);
    let [to, from] = [0, 1].map(|n| runtime.agent(n).unwrap().vram().alloc(9 << 20).unwrap());
    let wanted = bytes(9 << 20);
    from.write(0, &wanted).unwrap();
    (runtime, to, from, wanted)
}

#[test]
fn copies_between_agents_take_the_path_there_is() {
    for (there, back, path) in [
        (true, true, CopyPath::PeerSdma(Direction::Pull)),
        (true, false, CopyPath::PeerSdma(Direction::Pull)),
        (false, true, CopyPath::PeerSdma(Direction::Push)),
        (false, false, CopyPath::Staged),
    ] {
        let (runtime, to, from, wanted) = pair(there, back);
        let (offset, n) = (3, (9 << 20) - 5);
        let copy = runtime.copy_by(CopyEngine::Sdma, to.span(offset, n), from.span(offset, n), &[]).unwrap();
        assert_eq!((copy.path(), copy.engine()), (path, CopyEngine::Sdma));
        copy.wait(SOON).unwrap();
        let found = to.to_vec().unwrap();
        let end = (offset + n) as usize;
        assert!(found[3..end] == wanted[3..end] && found[..3] == [0; 3] && found[end..] == [0; 2], "{path}");
    }
}

#[test]
fn forced_paths_that_are_not_there_are_refused_by_name() {
    let (runtime, to, from, _) = pair(true, false);
    let host = runtime.gtt().alloc(9 << 20).unwrap();
    let via = |path, to: &Buffer, from: &Buffer| runtime.copy_via(path, to.all(), from.all(), &[]);
    let refused = via(CopyPath::PeerSdma(Direction::Push), &to, &from).unwrap_err();
    assert!(matches!(&refused, CopyError::NoPath(NoPath { why: Unreachable::OneWay, .. })), "{refused}");
    assert!(via(CopyPath::PeerSdma(Direction::Push), &from, &to).is_ok());
    for (path, to, from) in [
        (CopyPath::Local, &to, &from),
        (CopyPath::Host, &to, &from),
        (CopyPath::Staged, &to, &host),
        (CopyPath::PeerShader(Direction::Pull), &host, &from),
        (CopyPath::Local, &host, &from),
    ] {
        let refused = via(path, to, from).unwrap_err();
        assert!(matches!(refused, CopyError::Impossible { path: named, .. } if named == path), "{refused}");
    }
    assert_eq!(via(CopyPath::Host, &host, &from).unwrap().path(), CopyPath::Host);
}

#[test]
fn staged_copies_in_both_directions_at_once_do_not_wait_for_each_other() {
    let (runtime, to, from, _) = pair(false, false);
    let half = 4 << 20;
    std::thread::scope(|scope| {
        for (to, from) in [(&to, &from), (&from, &to)] {
            let runtime = &runtime;
            scope.spawn(move || {
                let copies: Vec<_> = (0..10)
                    .map(|_| runtime.copy_by(CopyEngine::Sdma, to.span(half, half), from.span(0, half), &[]))
                    .collect::<Result<_, _>>()
                    .unwrap();
                copies.iter().for_each(|copy| copy.wait(SOON).unwrap());
            });
        }
    });
    assert_eq!(to.to_vec().unwrap()[half as usize..][..half as usize], bytes(half)[..]);
    // Handles that were dropped while the other thread submitted are swept up by the next copy.
    runtime.copy_by(CopyEngine::Sdma, to.span(0, 1), from.span(0, 1), &[]).unwrap().wait(SOON).unwrap();
    assert!(runtime.context().layer::<super::staged::Staging>().is_empty(), "stages are kept");
}

#[test]
fn staged_copy_waits_for_what_it_is_told_to_and_outlives_its_handle() {
    let (runtime, to, from, wanted) = pair(false, false);
    let hold = Signal::new(&runtime, 1).unwrap();
    let copy = runtime.copy_by(CopyEngine::Sdma, to.all(), from.all(), &[&hold]).unwrap();
    let done = copy.signal().clone();
    assert!(matches!(copy.wait(Some(std::time::Duration::from_millis(20))), Err(CopyError::Wait(_))));
    drop(copy);
    assert_eq!(to.to_vec().unwrap()[..64], [0; 64]);
    hold.store(0).unwrap();
    done.wait_done(SOON).unwrap();
    assert!(to.to_vec().unwrap() == wanted);
}

#[test]
fn staged_copy_whose_queue_fails_says_so_and_holds_nobody_up() {
    // As above: the failed queue is to be replaced.
    let transport = TestTransport::under(KernelModel::Fixed, 2);
    transport.sysfs.remove("nodes/1/p2p_links/2");
    transport.sysfs.remove("nodes/2/p2p_links/1");
    let (runtime, _) = runtime_on(transport);
    let [to, from] = [0, 1].map(|n| runtime.agent(n).unwrap().vram().alloc(5 << 20).unwrap());
    // The source's dispatch fails: the destination's queue waits for what will never come.
    hide(&runtime, &from, true);
    // It runs when all packets are submitted: a queue that has failed takes no more of them.
    let hold = Signal::new(&runtime, 1).unwrap();
    let copy = runtime.copy_by(CopyEngine::Shader, to.all(), from.all(), &[&hold]).unwrap();
    hold.store(0).unwrap();
    let error = copy.wait(SOON).unwrap_err();
    assert!(matches!(&error, CopyError::Wait(why) if matches!(**why, WaitError::Queue(_))), "{error}");
    assert!(copy.wait(SOON).is_err(), "it failed, and stays so");
    drop(copy);
    let host = runtime.gtt().alloc(4096).unwrap();
    let copy = runtime.copy_by(CopyEngine::Shader, to.span(0, 4096), host.all(), &[]).unwrap();
    copy.wait(SOON).unwrap();
    // The failed queue is made again.
    hide(&runtime, &from, false);
    runtime.copy_by(CopyEngine::Shader, to.all(), from.all(), &[]).unwrap().wait(SOON).unwrap();
}
