// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of all kinds with packets written by the test: PM4 streams, AQL packets, copy engines.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use queues::aql::{self, Barrier, FenceScope, Header, KernelDispatch, PacketKind};
use queues::hsa::KernelDescriptor;
use queues::pm4::{self, Compare};
use queues::sdma::{self, CopyRect, Fence, Generation, PollRegMem, RectSide};
use stasis::checkpoint::Mode;
use stasis::raw::{RawKind, RawOptions, RawQueue};
use stasis::{
    Arg, Buffer, CopyEngine, CopyError, CuMask, CuMaskError, Kernel, QueueError, RawError, Runtime, Signal,
    WaitError,
};
use stasis_tests::gpu::{Gpu, Numbers, SOON, floats, on_a_future_kernel, open_on, values};
use stasis_tests::packets::{arguments, pm4_dispatch, raw_queue};

const SDMA: RawKind = RawKind::Sdma { engine: None };

fn generation(gpu: &Gpu) -> Generation {
    Generation::of(gpu.agent.target()).expect("a target whose copy packets are known")
}

/// Submits as soon as there is room.
fn push(queue: &RawQueue, words: &[u32]) -> u64 {
    loop {
        match queue.submit(words) {
            Ok(end) => return end,
            Err(RawError::Full { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn sdma_words(gpu: &Gpu, packets: &[sdma::Packet<'_>]) -> Vec<u32> {
    let mut words = Vec::new();
    packets.iter().for_each(|packet| packet.encode(generation(gpu), &mut words).unwrap());
    words
}

/// Appends the packets that complete a signal and wake a thread that waits for it.
fn complete(gpu: &Gpu, queue: &RawQueue, words: &mut Vec<u32>, done: &Signal) {
    queue.completes(done);
    let (mailbox, event) = done.mailbox().unwrap().unwrap();
    match queue.kind() {
        RawKind::Aql => {
            let packet = Barrier { completion_signal: done.handle(), ..Barrier::noop() };
            words.extend(aql::Packet::BarrierAnd(packet).encode());
        }
        RawKind::Pm4 => {
            pm4::signal(done.value_va(), 0, pm4::Width::Bits64).encode(words).unwrap();
            pm4::interrupt(mailbox, event).encode(words).unwrap();
        }
        RawKind::Sdma { .. } => {
            let [fence, trap] = sdma::interrupt(generation(gpu), mailbox, event);
            words.extend(sdma_words(gpu, &[sdma::signal_decrement(done.value_va()), fence, trap]));
        }
    }
}

/// Submits words followed by a completion, and waits for it.
fn run(gpu: &Gpu, queue: &RawQueue, words: &[u32]) -> Result<(), WaitError> {
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    let mut words = words.to_vec();
    complete(gpu, queue, &mut words, &done);
    push(queue, &words);
    done.wait_done(SOON)
}

/// The AQL packet that runs a kernel.
fn packet(kernel: &Kernel, arguments: &Buffer, grid: u32, workgroup: u16, done: &Signal) -> aql::RawPacket {
    let header = Header {
        acquire: FenceScope::System,
        release: FenceScope::System,
        ..Header::new(PacketKind::KernelDispatch)
    };
    aql::Packet::KernelDispatch(KernelDispatch {
        header,
        dimensions: 1,
        workgroup: [workgroup, 1, 1],
        grid: [grid, 1, 1],
        private_segment_bytes: 0,
        group_segment_bytes: kernel.descriptor().group_segment_fixed_size,
        kernel_object: kernel.object_va(),
        kernarg_address: arguments.va(),
        completion_signal: done.handle(),
    })
    .encode()
}

#[test]
fn pm4_and_aql_run_a_kernel_on_the_same_buffers() {
    const N: u32 = 10_000;
    let gpu = Gpu::new();
    let (x, y) = (floats(1, N as usize), floats(2, N as usize));
    let (a, b) = (gpu.buffer(&x), gpu.buffer(&y));
    let kernel = gpu.kernel("axpy");
    let args = |factor| [Arg::Buffer(&a), Arg::Buffer(&b), Arg::F32(factor), Arg::U32(N)];
    let expect = |y: &[f32], factor: f32| -> Vec<f32> {
        x.iter().zip(y).map(|(&x, &y)| factor.mul_add(x, y)).collect()
    };
    let compute = raw_queue(&gpu, RawKind::Pm4);
    let block = arguments(&gpu, &kernel, &args(2.5));
    for buffer in [&a, &b, &block] {
        compute.uses(buffer).unwrap();
    }
    compute.uses_kernel(&kernel);
    let words = pm4_dispatch(&gpu, &kernel, &block, [256, 1, 1], [N.div_ceil(256), 1, 1]);
    run(&gpu, &compute, &words).unwrap();
    let after_pm4 = expect(&y, 2.5);
    assert_eq!(values::<f32>(&b), after_pm4);

    let aql = raw_queue(&gpu, RawKind::Aql);
    let (block, done) = (arguments(&gpu, &kernel, &args(-0.75)), Signal::new(&gpu.runtime, 1).unwrap());
    aql.completes(&done);
    assert_eq!(aql.submit(&packet(&kernel, &block, N.next_multiple_of(256), 256, &done)).unwrap(), 1);
    done.wait_done(SOON).unwrap();
    assert_eq!(values::<f32>(&b), expect(&after_pm4, -0.75));
}

#[test]
fn code_in_memory_that_is_not_executable_is_told_by_where_the_wave_stands() {
    let gpu = Gpu::new();
    let (kernel, aql) = (gpu.kernel("axpy"), raw_queue(&gpu, RawKind::Aql));
    let code = gpu.agent.vram().alloc(4096).unwrap();
    let descriptor = KernelDescriptor { kernel_code_entry_byte_offset: 256, ..kernel.descriptor() };
    code.write(0, bytemuck::bytes_of(&descriptor)).unwrap();
    let (block, done) = (gpu.buffer(&[0u32; 64]), Signal::new(&gpu.runtime, 1).unwrap());
    let mut packet = packet(&kernel, &block, 1, 1, &done);
    [packet[8], packet[9]] = queues::words::words(code.va());
    aql.completes(&done);
    aql.submit(&packet).unwrap();
    let fault = match done.wait_done(SOON) {
        Err(WaitError::Queue(fault)) => fault,
        other => panic!("{other:?}"),
    };
    let memory = fault.memory.unwrap();
    // The driver has no flag for it.
    assert!(!memory.not_present && !memory.read_only && !memory.no_execute, "{fault}");
    assert_eq!((memory.address, fault.wave.as_ref().unwrap().pc), (code.va(), code.va() + 256), "{fault}");
    assert!(fault.to_string().contains("instruction fetch from memory that is not executable"), "{fault}");
}

#[test]
fn pm4_moves_words_without_a_kernel() {
    let gpu = Gpu::new();
    let (buffer, compute) = (gpu.buffer(&[7u32; 64]), raw_queue(&gpu, RawKind::Pm4));
    let mut words = Vec::new();
    pm4::Packet::WriteData(pm4::WriteData {
        destination: pm4::Destination::Memory { address: buffer.va() + 16 },
        increment: true,
        confirm: true,
        cache_policy: pm4::CachePolicy::Lru,
        data: &[1, 2, 3],
    })
    .encode(&mut words)
    .unwrap();
    pm4::wait_memory(buffer.va() + 20, Compare::Equal, 2, u32::MAX).encode(&mut words).unwrap();
    pm4::signal(buffer.va() + 32, 0x1234_5678_9abc_def0, pm4::Width::Bits64).encode(&mut words).unwrap();
    pm4::signal(buffer.va() + 40, 0xffff_ffff_0000_0005, pm4::Width::Bits32).encode(&mut words).unwrap();
    pm4::timestamp(buffer.va() + 48).encode(&mut words).unwrap();
    run(&gpu, &compute, &words).unwrap();
    let found = values::<u32>(&buffer);
    assert_eq!(found[..12], [7, 7, 7, 7, 1, 2, 3, 7, 0x9abc_def0, 0x1234_5678, 5, 7]);
    assert_ne!(found[12..14], [7, 7]);
    assert_eq!(found[14..], [7; 50]);
}

#[test]
fn copy_engine_copies_fills_writes_and_stamps() {
    let gpu = Gpu::new();
    let copies = raw_queue(&gpu, SDMA);
    let numbers: Vec<u32> = Numbers(3).take(1 << 18).collect();
    let (from, to) = (gpu.buffer(&numbers), gpu.buffer(&vec![0u32; 1 << 18]));
    copies.uses(&from).unwrap();
    copies.uses(&to).unwrap();
    let mut words = Vec::new();
    // Odd addresses and an odd length.
    sdma::copy(&mut words, generation(&gpu), to.va() + 5, from.va() + 3, 1_000_001).unwrap();
    sdma::fill(&mut words, generation(&gpu), to.va() + 1_000_016, 0xdead_beef, 4000).unwrap();
    words.extend(sdma_words(
        &gpu,
        &[
            sdma::Packet::Write { dst: to.va() + 1_010_000, data: &[10, 20, 30] },
            sdma::Packet::Fence(Fence {
                address: to.va() + 1_010_012,
                value: 40,
                mtype: generation(&gpu).uncached_mtype(),
            }),
            sdma::Packet::Timestamp { address: to.va() + 1_010_016 },
        ],
    ));
    run(&gpu, &copies, &words).unwrap();
    let found: Vec<u8> = bytemuck::cast_slice(&values::<u32>(&to)).to_vec();
    let source: Vec<u8> = bytemuck::cast_slice(&numbers).to_vec();
    assert_eq!(found[..5], [0; 5]);
    assert!(found[5..1_000_006] == source[3..1_000_004], "the copy differs");
    assert_eq!(found[1_000_006..1_000_016], [0; 10]);
    assert!(found[1_000_016..1_004_016].chunks(4).all(|word| word == 0xdead_beef_u32.to_le_bytes()));
    assert_eq!(found[1_004_016..1_004_032], [0; 16]);
    let at = 1_010_000 / 4;
    assert_eq!(values::<u32>(&to)[at..at + 4], [10, 20, 30, 40]);
    assert_ne!(values::<u32>(&to)[at + 4..at + 6], [0, 0]);
}

#[test]
fn copy_engine_copies_rectangles() {
    let gpu = Gpu::new();
    let copies = raw_queue(&gpu, SDMA);
    let numbers: Vec<u32> = (0..64 * 32).collect();
    let (from, to) = (gpu.buffer(&numbers), gpu.buffer(&vec![0u32; 100 * 40]));
    // 20 by 10 elements of 4 bytes from (7, 3) of 64x32 to (50, 20) of 100x40.
    let rect = CopyRect {
        element_log2: 2,
        src: RectSide { address: from.va(), offset: [7, 3, 0], pitch: 64, slice_pitch: 64 * 32 },
        dst: RectSide { address: to.va(), offset: [50, 20, 0], pitch: 100, slice_pitch: 100 * 40 },
        extent: [20, 10, 1],
    };
    run(&gpu, &copies, &sdma_words(&gpu, &[sdma::Packet::CopyRect(rect)])).unwrap();
    for (at, &found) in values::<u32>(&to).iter().enumerate() {
        let (x, y) = (at % 100, at / 100);
        let inside = (50..70).contains(&x) && (20..30).contains(&y);
        let wanted = if inside { (y - 20 + 3) * 64 + x - 50 + 7 } else { 0 };
        assert_eq!(found as usize, wanted, "({x}, {y})");
    }
}

#[test]
fn small_rings_wrap_thousands_of_times() {
    let gpu = Gpu::new();
    const ROUNDS: u32 = 4000;
    // A counter that every submission adds to shows lost and doubled ones; odd lengths shift the wrap each time.
    let count = gpu.buffer(&[0u64; 2]);
    let copies = raw_queue(&gpu, SDMA);
    copies.uses(&count).unwrap();
    for n in 0..ROUNDS {
        let mut words = sdma_words(&gpu, &[sdma::signal_decrement(count.va())]);
        sdma::push_nops(&mut words, 480 + (n as usize * 7) % 41);
        push(&copies, &words);
    }
    copies.wait_idle(SOON).unwrap();
    assert_eq!(values::<i64>(&count)[0], -i64::from(ROUNDS));
    assert!(copies.write_position().unwrap() > u64::from(ROUNDS) / 2 * 4096);

    let log = gpu.buffer(&vec![u32::MAX; ROUNDS as usize]);
    let compute = raw_queue(&gpu, RawKind::Pm4);
    compute.uses(&log).unwrap();
    for n in 0..ROUNDS {
        let mut words = Vec::new();
        let address = log.va() + u64::from(n) * 4;
        pm4::signal(address, u64::from(n), pm4::Width::Bits32).encode(&mut words).unwrap();
        pm4::push_nops(&mut words, 480 + (n as usize * 7) % 41);
        push(&compute, &words);
    }
    compute.wait_idle(SOON).unwrap();
    assert!(values::<u32>(&log).iter().copied().eq(0..ROUNDS), "a write was lost");
    assert!(compute.write_position().unwrap() > u64::from(ROUNDS) / 3 * 1024);

    let barriers = raw_queue(&gpu, RawKind::Aql);
    let done = Signal::new(&gpu.runtime, i64::from(ROUNDS * 16)).unwrap();
    let packet = Barrier { completion_signal: done.handle(), ..Barrier::noop() };
    let sixteen: Vec<u32> =
        std::iter::repeat_n(aql::Packet::BarrierAnd(packet).encode(), 16).flatten().collect();
    for _ in 0..ROUNDS {
        (0..16).for_each(|_| barriers.completes(&done));
        push(&barriers, &sixteen);
    }
    done.wait_done(SOON).unwrap();
    assert_eq!((done.load().unwrap(), barriers.write_position().unwrap()), (0, u64::from(ROUNDS) * 16));
}

#[test]
fn kernels_of_a_pm4_ring_run_once_each() {
    let gpu = Gpu::new();
    let (kernel, counter) = (gpu.kernel("increment"), gpu.buffer(&[0u32]));
    let block = arguments(&gpu, &kernel, &[Arg::Buffer(&counter)]);
    let compute = raw_queue(&gpu, RawKind::Pm4);
    compute.uses(&counter).unwrap();
    compute.uses(&block).unwrap();
    let words = pm4_dispatch(&gpu, &kernel, &block, [1, 1, 1], [3, 1, 1]);
    for _ in 0..300 {
        push(&compute, &words);
    }
    compute.wait_idle(SOON).unwrap();
    assert_eq!(values::<u32>(&counter), [900]);
    assert!(compute.write_position().unwrap() > 10 * 1024);
}

#[test]
fn full_ring_refuses_and_continues() {
    let gpu = Gpu::new();
    let hold = Signal::new(&gpu.runtime, 1).unwrap();
    for kind in [RawKind::Pm4, SDMA] {
        hold.store(1).unwrap();
        let queue = raw_queue(&gpu, kind);
        let mut words = Vec::new();
        match kind {
            RawKind::Pm4 => {
                pm4::wait_memory(hold.value_va(), Compare::Equal, 0, u32::MAX).encode(&mut words).unwrap()
            }
            _ => {
                let poll = PollRegMem::memory(hold.value_va(), sdma::Compare::Equal, 0);
                words.extend(sdma_words(&gpu, &[sdma::Packet::PollRegMem(poll)]));
            }
        }
        queue.submit(&words).unwrap();
        let refused = loop {
            match queue.submit(&words) {
                Ok(end) => assert!(end <= queue.capacity()),
                Err(error) => break error,
            }
        };
        let RawError::Full { wanted, used, free, .. } = refused else { panic!("{refused}") };
        assert!(free < wanted && used + free == queue.capacity(), "{wanted} {used} {free}");
        let end = queue.write_position().unwrap();
        let waited = queue.wait_consumed(end, Some(Duration::from_millis(5)));
        assert!(matches!(waited, Err(WaitError::Consumed { position, .. }) if position == end), "{waited:?}");
        assert!(matches!(queue.destroy(), Err(QueueError::Busy { .. })));
        hold.store(0).unwrap();
        queue.wait_consumed(end, SOON).unwrap();
        run(&gpu, &queue, &words).unwrap();
    }
}

#[test]
fn impossible_queues_are_refused_with_their_limits() {
    let gpu = Gpu::new();
    let refused = |options| RawQueue::create(&gpu.agent, options).unwrap_err();
    let good = RawOptions::default();
    let properties = &gpu.agent.node().properties;
    let engines = properties.num_sdma_engines + properties.num_sdma_xgmi_engines;
    let none = refused(RawOptions { kind: RawKind::Sdma { engine: Some(engines) }, ..good });
    assert!(
        matches!(none, QueueError::Engine { engine, engines: found, .. } if engine == engines && found == engines),
        "{none}"
    );
    for bytes in [0, 1024, 4097, 6144] {
        let error = refused(RawOptions { ring_bytes: bytes, ..good });
        assert!(
            matches!(error, QueueError::RingBytes { bytes: found, min: 4096, .. } if found == bytes),
            "{error}"
        );
    }
    assert!(matches!(refused(RawOptions { priority: 16, ..good }), QueueError::Priority { priority: 16 }));
    assert!(matches!(
        refused(RawOptions { percentage: 0, ..good }),
        QueueError::Percentage { percentage: 0 }
    ));
    for engine in 0..engines {
        let kind = RawKind::Sdma { engine: Some(engine) };
        run(&gpu, &raw_queue(&gpu, kind), &[0]).unwrap();
    }
}

#[test]
fn masks_of_compute_units_are_checked_and_kernels_run_under_them() {
    let gpu = Gpu::new();
    assert!(matches!(CuMask::from_units(&[true; 40]), Err(CuMaskError::Bits { bits: 40, .. })));
    let one_group = CuMask::from_words(&[0b11]).unwrap();
    let half = CuMask::from_words(&[0b1]).unwrap();
    let refused = gpu.queue.set_cu_mask(&half).unwrap_err();
    assert!(
        matches!(refused, QueueError::CuMask(CuMaskError::Pair { first: 0, second: 1, mask: 1 })),
        "{refused}"
    );
    gpu.queue.set_cu_mask(&one_group).unwrap();
    let (kernel, counter) = (gpu.kernel("increment"), gpu.buffer(&[0u32]));
    gpu.run(&kernel, [500, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [500]);
    let compute = raw_queue(&gpu, RawKind::Pm4);
    compute.set_cu_mask(&one_group).unwrap();
    compute.set_priority(15).unwrap();
    run(&gpu, &compute, &[pm4::NOP_SINGLE]).unwrap();
    let error = raw_queue(&gpu, SDMA).set_cu_mask(&one_group).unwrap_err();
    assert!(matches!(error, QueueError::Unsupported { .. }), "{error}");
}

fn freeze_and_thaw(runtime: &Runtime, directory: &Path) {
    runtime.lock(Mode::Drain, Duration::from_secs(60)).unwrap();
    runtime.checkpoint(directory).unwrap();
    runtime.restore(None).unwrap();
    runtime.unlock().unwrap();
}

#[test]
fn queues_of_all_kinds_continue_at_their_positions_after_a_checkpoint() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let kinds = [RawKind::Aql, RawKind::Pm4, SDMA];
    let queues = kinds.map(|kind| raw_queue(&gpu, kind));
    let numbers: Vec<u32> = Numbers(9).take(1000).collect();
    let (from, to, counter) = (gpu.buffer(&numbers), gpu.buffer(&[0u32; 1000]), gpu.buffer(&[0u32]));
    let kernel = gpu.kernel("increment");
    let block = arguments(&gpu, &kernel, &[Arg::Buffer(&counter)]);
    let stream = pm4_dispatch(&gpu, &kernel, &block, [1, 1, 1], [1, 1, 1]);
    for round in 1..=6u32 {
        let mut ends = [0; 3];
        for (queue, end) in queues.iter().zip(&mut ends) {
            let done = Signal::new(&gpu.runtime, 1).unwrap();
            // All in flight when the process is locked.
            *end = match queue.kind() {
                RawKind::Aql => {
                    queue.completes(&done);
                    push(queue, &packet(&kernel, &block, 1, 1, &done))
                }
                RawKind::Pm4 => push(queue, &stream),
                RawKind::Sdma { .. } => {
                    let mut words = Vec::new();
                    sdma::copy(&mut words, generation(&gpu), to.va(), from.va(), 4 * u64::from(round) * 100)
                        .unwrap();
                    sdma::push_nops(&mut words, 97);
                    push(queue, &words)
                }
            };
        }
        freeze_and_thaw(&gpu.runtime, directory.path());
        assert_eq!(values::<u32>(&counter), [2 * round], "a drained queue has completed what it was given");
        let copied = 100 * round as usize;
        assert_eq!(values::<u32>(&to)[..copied], numbers[..copied]);
        for (queue, end) in queues.iter().zip(ends) {
            let at = queue.write_position().unwrap();
            assert!(at >= end && queue.read_position().unwrap() == at, "{at} {end}");
            assert!(at - end < queue.ring_bytes() / 4, "{at} {end}: the position jumped");
        }
    }
}

#[test]
fn wild_address_stops_the_queue_that_used_it() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    let gpu = Gpu::new();
    let (kernel, buffer) = (gpu.kernel("write_at"), gpu.buffer(&[0u32; 16]));
    let block = arguments(&gpu, &kernel, &[Arg::Address(0x5000), Arg::U32(1)]);
    let compute = raw_queue(&gpu, RawKind::Pm4);
    let words = pm4_dispatch(&gpu, &kernel, &block, [1, 1, 1], [1, 1, 1]);
    let error = run(&gpu, &compute, &words).unwrap_err();
    let WaitError::Queue(fault) = &error else { panic!("{error}") };
    assert_eq!(fault.memory.unwrap().address, 0x5000);
    assert_eq!(fault.wave.as_ref().unwrap().kernel.as_ref().unwrap().0, "write_at");
    assert!(matches!(compute.submit(&words), Err(RawError::Queue(_))));

    let copies = raw_queue(&gpu, SDMA);
    let mut words = Vec::new();
    sdma::copy(&mut words, generation(&gpu), 0x7000, buffer.va(), 64).unwrap();
    let error = run(&gpu, &copies, &words).unwrap_err();
    let WaitError::Queue(fault) = &error else { panic!("{error}") };
    assert_eq!(fault.memory.unwrap().address, 0x7000);
    assert!(copies.fault().is_some() && gpu.queue.fault().is_none());
    gpu.run(&gpu.kernel("increment"), [1, 1, 1], [1, 1, 1], &[Arg::Buffer(&buffer)]);
}

#[test]
fn garbage_stops_a_pm4_queue_and_nothing_else() {
    let gpu = Gpu::new();
    let compute = raw_queue(&gpu, RawKind::Pm4);
    let error = run(&gpu, &compute, &[0xc000_ff00, 0]).unwrap_err();
    assert!(matches!(error, WaitError::Queue(_)), "{error}");
    compute.destroy().unwrap();
    let buffer = gpu.buffer(&[0u32]);
    gpu.run(&gpu.kernel("increment"), [1, 1, 1], [1, 1, 1], &[Arg::Buffer(&buffer)]);
    assert_eq!(values::<u32>(&buffer), [1]);
}

#[test]
fn runtime_copies_by_the_engine_it_is_told_to() {
    let gpu = Gpu::new();
    let numbers: Vec<u32> = Numbers(5).take(300_000).collect();
    let (from, to) = (gpu.buffer(&numbers), gpu.runtime.gtt().alloc(1_200_000).unwrap());
    for engine in [CopyEngine::Sdma, CopyEngine::Shader] {
        gpu.runtime.fill_by(engine, to.all(), &[0xab], &[]).unwrap().wait(SOON).unwrap();
        assert!(to.to_vec().unwrap().iter().all(|&byte| byte == 0xab));
        let first = gpu.runtime.copy_by(engine, to.span(0, 600_000), from.span(0, 600_000), &[]).unwrap();
        let rest = gpu.runtime.copy_by(
            engine,
            to.span(600_000, 600_000),
            from.span(600_000, 600_000),
            &[first.signal()],
        );
        let rest = rest.unwrap();
        rest.wait(SOON).unwrap();
        assert_eq!(rest.engine(), engine);
        assert_eq!(values::<u32>(&to), numbers);
    }
    let odd = gpu.runtime.fill_by(CopyEngine::Sdma, to.span(1, 5), &[1], &[]);
    assert!(matches!(odd, Err(CopyError::Dwords { .. })));
    gpu.runtime.fill(to.span(1, 5), &[1], &[]).unwrap().wait(SOON).unwrap();
}

/// The software device executes no kernels of gfx12, so that its copy engines are all that can move bytes there.
#[test]
fn copy_engines_of_gfx12_copy_fill_and_move_rectangles() {
    if stasis_tests::gpu::skip_on_kernel_driver("it asks for a chip that the machine may not have") {
        return;
    }
    let runtime = open_on("soft:gfx1201", None);
    let agent = runtime.agent(0).unwrap();
    let upload = |numbers: &[u32]| {
        let buffer = agent.vram().alloc(size_of_val(numbers) as u64).unwrap();
        buffer.upload(0, bytemuck::cast_slice(numbers)).unwrap();
        buffer
    };
    let numbers: Vec<u32> = Numbers(7).take(300_000).collect();
    let (from, to) = (upload(&numbers), runtime.gtt().alloc(1_200_000).unwrap());
    let filled = runtime.fill_by(CopyEngine::Sdma, to.all(), &[0xab], &[]).unwrap();
    let copied = runtime.copy_by(CopyEngine::Sdma, to.all(), from.all(), &[filled.signal()]).unwrap();
    copied.wait(SOON).unwrap();
    assert_eq!(copied.engine(), CopyEngine::Sdma);
    assert_eq!(values::<u32>(&to), numbers);

    // A rectangle whose offset in x an older engine has no field for: 3 by 2 elements of 4 bytes out of rows of 2^15.
    let rows: Vec<u32> = (0..3 << 15).collect();
    let (from, to) = (upload(&rows), upload(&[0; 6]));
    let rect = sdma::Packet::CopyRect(CopyRect {
        element_log2: 2,
        src: RectSide { address: from.va(), offset: [0x7ffc, 1, 0], pitch: 1 << 15, slice_pitch: 3 << 15 },
        dst: RectSide { address: to.va(), offset: [0; 3], pitch: 3, slice_pitch: 6 },
        extent: [3, 2, 1],
    });
    let generation = Generation::of(agent.target()).unwrap();
    assert!(rect.encode(Generation::V6, &mut Vec::new()).is_err());
    let options = RawOptions { kind: SDMA, ring_bytes: 4096, ..RawOptions::default() };
    let (queue, done) = (RawQueue::create(&agent, options).unwrap(), Signal::new(&runtime, 1).unwrap());
    queue.completes(&done);
    let (mailbox, event) = done.mailbox().unwrap().unwrap();
    let [fence, trap] = sdma::interrupt(generation, mailbox, event);
    let mut words = Vec::new();
    for packet in [rect, sdma::signal_decrement(done.value_va()), fence, trap] {
        packet.encode(generation, &mut words).unwrap();
    }
    push(&queue, &words);
    done.wait_done(SOON).unwrap();
    let row = |y: u32| (0x7ffc..0x7fff).map(move |x| (y << 15) + x);
    assert_eq!(values::<u32>(&to), row(1).chain(row(2)).collect::<Vec<_>>());
}
