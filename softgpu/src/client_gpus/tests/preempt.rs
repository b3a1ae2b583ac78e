// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waves off the hardware: what their save area holds, read from its layout alone; other devices that go on with them;
//! and queues of every kind preempted all the time.

use std::sync::atomic::AtomicBool;

use queues::sdma;

use super::pm4::{COUNT, Ring, launch};
use super::sdma::Engine;
use super::*;

/// Fills registers and LDS with patterns, then counts in `array[1]` until `array[0]` is set, and adds v3 to `array[4 +
/// lane]`.
const PATTERNS: &str = "
    s_load_b64 s[4:5], s[0:1], 0
    v_and_b32 v0, 0x3ff, v0
    v_lshlrev_b32 v5, 2, v0
    v_mul_u32_u24 v3, 3, v0
    v_add_nc_u32 v3, 0x700, v3
    v_add_nc_u32 v4, 0x11, v3
    ds_store_b32 v5, v4 offset:64
    s_mov_b32 s20, 0x12345678
    s_mov_b32 vcc_lo, 0x0f0f0f0f
    s_mov_b32 m0, 0x77
    v_mov_b32 v6, 0
    v_mov_b32 v2, 0
    s_waitcnt lgkmcnt(0)
  again:
    v_add_nc_u32 v2, 1, v2
    global_store_b32 v6, v2, s[4:5] offset:4
    global_load_b32 v1, v6, s[4:5] glc
    s_waitcnt vmcnt(0)
    v_readfirstlane_b32 s6, v1
    s_cmp_eq_u32 s6, 0
    s_cbranch_scc1 again
    ds_load_b32 v7, v5 offset:64
    s_waitcnt lgkmcnt(0)
    v_add_nc_u32 v7, v7, v3
    global_store_b32 v5, v7, s[4:5] offset:16
    s_endpgm";

/// What a running [`PATTERNS`] uses.
struct Looping {
    array: Buffer,
    arguments: Buffer,
    kernel: Kernel,
}

/// Starts [`PATTERNS`] on a queue and waits until it counts.
fn loop_on(queue: &TestQueue<'_>, done: &Signal) -> Looping {
    let machine = queue.machine;
    let (array, arguments) = (machine.buffer(4096, DATA), machine.buffer(4096, DATA));
    arguments.u64(0).store(array.va, Ordering::Relaxed);
    let kernel = machine.kernel(PATTERNS);
    let packet = KernelDispatch { group_segment_bytes: 1024, ..dispatch(&kernel, arguments.va, 1, done) };
    queue.submit(Packet::KernelDispatch(packet));
    eventually("the loop", || array.u32(4).load(Ordering::SeqCst) > 0);
    Looping { array, arguments, kernel }
}

/// A wave as the kernel's trap handler (`cwsr_trap_handler_gfx10.asm`) lays it out, found without this project's own reader.
struct SavedWave {
    vgprs: Vec<[u32; 32]>,
    sgprs: Vec<u32>,
    hardware: Vec<u32>,
    lds: Vec<u32>,
}

/// Walks the control stack upwards and the records downwards.
fn read_area(area: &[u8], saved: SavedWaves) -> Vec<SavedWave> {
    let word = |at: usize| u32::from_le_bytes([area[at], area[at + 1], area[at + 2], area[at + 3]]);
    let words = |at: usize, count: usize| (0..count).map(|n| word(at + 4 * n)).collect::<Vec<_>>();
    let stack = saved.control_stack_offset as usize;
    let end = stack + saved.control_stack_bytes as usize;
    let mut record_end = saved.wave_state_offset as usize;
    let mut at = stack + 8;
    let mut state = 0;
    let mut waves = Vec::new();
    while at < end {
        let control = word(at);
        if control >> 30 & 1 == 1 {
            at += 4;
        } else if control >> 31 == 1 {
            state = control;
            at += 8;
        } else {
            let registers = ((state & 63) as usize + 1) * 8;
            let lds = if control >> 12 & 1 == 1 { (state >> 10 & 0xff) as usize * 128 } else { 0 };
            assert_eq!(state >> 24 & 1, 1, "a wave of 32");
            let begin = record_end - (registers * 128 + 512 + 64 + 64 + lds * 4);
            let vgprs = (0..registers)
                .map(|register| std::array::from_fn(|lane| word(begin + register * 128 + lane * 4)))
                .collect();
            let scalar = begin + registers * 128;
            waves.push(SavedWave {
                vgprs,
                sgprs: words(scalar, 128),
                hardware: words(scalar + 512, 16),
                lds: words(scalar + 512 + 128, lds),
            });
            record_end = begin;
            at += 4;
        }
    }
    assert_eq!(record_end, end, "stack and records meet");
    waves
}

#[test]
fn save_area_holds_what_a_reader_of_the_layout_expects() {
    let machine = Machine::new();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    let Looping { array, kernel, arguments: _arguments } = loop_on(&queue, &done);
    let saved = queue.stop();
    let counted = array.u32(4).load(Ordering::SeqCst);
    let waves = read_area(&queue.save.bytes(0, SAVE_BYTES as usize), saved);
    assert_eq!(waves.len(), 1);
    let wave = &waves[0];
    for lane in 0..32u32 {
        let at = lane as usize;
        assert_eq!(wave.vgprs[3][at], 3 * lane + 0x700);
        assert!(wave.vgprs[2][at] - counted <= 1, "it stores what it has counted");
        assert_eq!(wave.lds[16 + at], 3 * lane + 0x711);
    }
    assert_eq!((wave.sgprs[20], wave.sgprs[106]), (0x1234_5678, 0x0f0f_0f0f));
    let [m0, pc_low, pc_high, exec] = [0, 1, 2, 3].map(|at| wave.hardware[at]);
    assert_eq!((m0, exec), (0x77, u32::MAX));
    let pc = u64::from(pc_low) | u64::from(pc_high) << 32;
    assert!((kernel.buffer.va + 256..kernel.buffer.va + 512).contains(&pc), "{pc:#x}");
    queue.start();
    array.u32(0).store(1, Ordering::SeqCst);
    done.wait_zero();
}

#[test]
fn another_device_goes_on_with_descriptor_and_memory_alone() {
    let first = Machine::new();
    let (queue, done) = (first.queue(1), first.signal(1));
    let Looping { array, arguments, kernel } = loop_on(&queue, &done);
    queue.stop();
    let TestQueue { ring, pointers, save, mqd, id, .. } = queue;
    let mqd = mqd.into_inner();
    // The buffers outlive the device they were mapped on.
    drop(first);

    let second = Machine::new();
    for (buffer, bytes, access) in [
        (&array, 4096, DATA),
        (&arguments, 4096, DATA),
        (&kernel.buffer, 4096, CODE),
        (&done.buffer, 4096, DATA),
        (&ring, 4096, CODE),
        (&pointers, 4096, DATA),
        (&save, u64::from(SAVE_BYTES), DATA),
    ] {
        second.map(&buffer.pages, buffer.va, bytes, access);
    }
    let queue = TestQueue { machine: &second, ring, pointers, save, id, mqd: Mutex::new(mqd) };
    queue.start();
    let before = array.u32(4).load(Ordering::SeqCst);
    eventually("the loop goes on", || array.u32(4).load(Ordering::SeqCst) > before);
    array.u32(0).store(1, Ordering::SeqCst);
    done.wait_zero();
    for lane in 0..32u32 {
        assert_eq!(array.u32(16 + 4 * lane as usize).load(Ordering::SeqCst), 2 * (3 * lane + 0x700) + 0x11);
    }
}

#[test]
fn saved_changed_restored_and_saved_again_is_equal() {
    let machine = Machine::new();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    let Looping { array, kernel: _kernel, arguments: _arguments } = loop_on(&queue, &done);
    queue.stop();
    let (mqd, area) = (queue.mqd.lock().clone(), queue.save.bytes(0, SAVE_BYTES as usize));
    // Changed: it runs on, and is stopped elsewhere.
    queue.start();
    let before = array.u32(4).load(Ordering::SeqCst);
    eventually("the loop goes on", || array.u32(4).load(Ordering::SeqCst) > before);
    queue.stop();
    assert_ne!(queue.save.bytes(0, SAVE_BYTES as usize), area);
    // Restored, and taken off before it can execute anything.
    queue.save.fill(0, &area);
    let config = queue.config();
    let gpu = Arc::clone(machine.gpus.gpus[0].gpu());
    let again = super::super::queue::Queue::paused(gpu, config, &mqd).unwrap().save().unwrap();
    assert!(*again == mqd, "the descriptor");
    assert_eq!(queue.save.bytes(0, SAVE_BYTES as usize), area, "the waves");
    *queue.mqd.lock() = mqd;
    queue.start();
    array.u32(0).store(1, Ordering::SeqCst);
    done.wait_zero();
}

/// Adds 1 to the word that the kernel argument points at.
const ADD: &str = "
    s_load_b64 s[4:5], s[0:1], 0
    v_mov_b32 v0, 0
    v_mov_b32 v1, 1
    s_mov_b32 exec_lo, 1
    s_waitcnt lgkmcnt(0)
    global_atomic_add_u32 v0, v1, s[4:5]
    s_endpgm";

#[test]
fn save_area_is_empty_only_if_no_dispatch_has_begun_and_not_ended() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let add = machine.kernel(ADD);
    let (word, arguments) = (machine.buffer(4096, DATA), machine.buffer(4096, DATA));
    arguments.u64(0).store(word.va, Ordering::Relaxed);
    let mut without_waves = 0;
    for round in 1..=50 {
        let done = machine.signal(1);
        queue.submit(Packet::KernelDispatch(dispatch(&add, arguments.va, 2048, &done)));
        while done.value() != 0 {
            let saved = queue.stop();
            let is_over = done.value() == 0 && word.u32(0).load(Ordering::SeqCst) == round * 2048;
            let has_begun = queue.read_index() == u64::from(round);
            if (saved.control_stack_bytes, saved.wave_state_bytes) == (0, 0) {
                assert!(is_over || !has_begun, "round {round}");
            } else {
                without_waves += u32::from(saved.wave_state_bytes == 0);
            }
            queue.start();
        }
        assert_eq!(word.u32(0).load(Ordering::SeqCst), round * 2048);
    }
    assert!(without_waves > 0, "none was ever stopped between its waves");
}

/// Adds 1 to a 64-bit word.
fn one_more(address: u64) -> sdma::Packet<'static> {
    let operation = sdma::AtomicOperation::Add64;
    sdma::Packet::Atomic(sdma::Atomic {
        operation,
        address,
        source: 1,
        compare: 0,
        repeat: false,
        interval: 0,
    })
}

/// How long the stress lasts: STASIS_STRESS_SECONDS, or a few seconds.
fn stress() -> Duration {
    let seconds = std::env::var("STASIS_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

#[test]
fn nothing_is_lost_or_doubled_however_often_queues_are_preempted() {
    const PRODUCERS: usize = 16;
    let machine = Machine::new();
    let aql = machine.queue(1);
    let (pm4, sdma) = (Ring::new(&machine, 2), Engine::new(&machine, 3));
    let (add, count) = (machine.kernel(ADD), machine.kernel(COUNT));
    let (words, elements, sum) =
        (machine.buffer(4096, DATA), machine.buffer(64 * 128 + 4096, DATA), machine.buffer(4096, DATA));
    let arguments = machine.buffer(4096, DATA);
    for producer in 0..PRODUCERS {
        arguments.u64(8 * producer).store(words.va + 8 * producer as u64, Ordering::Relaxed);
    }
    let done = machine.signal(0);
    let stop = AtomicBool::new(false);
    let configs = [aql.config(), pm4.config(), sdma.config()];
    let (submitted, launches, adds, stops) = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let (aql, stop, add, done, arguments) = (&aql, &stop, &add, &done, &arguments);
                scope.spawn(move || {
                    let mut submitted = 0u32;
                    while !stop.load(Ordering::Relaxed) {
                        let kernarg = arguments.va + 8 * producer as u64;
                        aql.submit(Packet::KernelDispatch(dispatch(add, kernarg, 1, done)));
                        submitted += 1;
                    }
                    submitted
                })
            })
            .collect();
        let stop = &stop;
        let (count, elements, sum) = (&count, &elements, &sum);
        let launcher = scope.spawn(move || {
            let stream = launch(count, elements.va, 4);
            let mut launches = 0u32;
            while !stop.load(Ordering::Relaxed) {
                pm4.submit(&stream);
                launches += 1;
            }
            pm4.finish();
            launches
        });
        let adder = scope.spawn(move || {
            let mut adds = 0u64;
            while !stop.load(Ordering::Relaxed) {
                sdma.submit(&[one_more(sum.va)]);
                adds += 1;
            }
            sdma.finish();
            adds
        });
        let preempter = scope.spawn(|| {
            let mut stops = 0u64;
            while !stop.load(Ordering::Relaxed) {
                for config in &configs {
                    let mqd = machine.gpus.stop_queue(0, config.id).unwrap().unwrap();
                    machine.gpus.start_queue(0, config, &mqd).unwrap();
                    stops += 1;
                }
            }
            stops
        });
        std::thread::sleep(stress());
        stop.store(true, Ordering::Relaxed);
        let stops = preempter.join().unwrap();
        let submitted: Vec<u32> = producers.into_iter().map(|producer| producer.join().unwrap()).collect();
        (submitted, launcher.join().unwrap(), adder.join().unwrap(), stops)
    });
    let total: u64 = submitted.iter().map(|&n| u64::from(n)).sum();
    eventually("the last packet", || aql.read_index() == total);
    println!(
        "{stops} stops; {total} packets of 16 producers, {launches} PM4 launches, {adds} SDMA additions"
    );
    for (producer, submitted) in submitted.iter().enumerate() {
        assert_eq!(words.u32(8 * producer).load(Ordering::SeqCst), *submitted, "producer {producer}");
    }
    assert_eq!(done.value(), 0u64.wrapping_sub(total));
    for element in 0..4 * 32 {
        assert_eq!(elements.u32(4 * element).load(Ordering::SeqCst), launches, "element {element}");
    }
    assert_eq!(sum.u64(0).load(Ordering::SeqCst), adds);
    assert_eq!(*machine.driver.exceptions.lock(), []);
    assert!(stops > 100, "{stops} stops");
}
