// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues that are stopped anywhere and go on elsewhere in time.

use nix::errno::Errno;
use proptest::prelude::*;
use queues::pm4::{IndirectBuffer, RSRC1_PRIV, reg};

use super::*;
use crate::client_gpus::queue_context::QueueContext;
use crate::client_gpus::xccs::SplitWaves;
use crate::client_gpus::{mqd, save};

/// Packets in memory.
fn buffer_of(machine: &Machine, words: &[u32]) -> (Buffer, Packet<'static>) {
    let buffer = machine.buffer(words.len() * 4, DATA);
    buffer.fill(0, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    let call = Packet::IndirectBuffer(IndirectBuffer::new(buffer.va, u32::try_from(words.len()).unwrap()));
    (buffer, call)
}

/// What storing the state gives that the queue's descriptor and save area hold.
fn stored_again(queue: &Ring<'_>) -> Mqd {
    let config = queue.config();
    let gpu = queue.machine.gpus.gpus[0].gpu();
    let saved = queue.mqd.lock().clone();
    let waves = save::load(&gpu.vm, &config, &saved.waves()).unwrap();
    let (context, halt) = QueueContext::load(gpu, &config, &saved, vec![waves]).unwrap();
    let mut writer = mqd::Writer::new(&config, 1);
    let place = Some(saved.waves()).filter(|waves| waves.wave_state_bytes != 0);
    writer.waves(0, &config, place);
    context.store(&mut writer, halt.map(|halt| halt.code), &SplitWaves::new(Vec::new(), 1));
    *writer.finish()
}

#[test]
fn dispatch_inside_two_buffers_is_saved_and_goes_on() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let (array, done) = (machine.buffer(4096, DATA), machine.signal(1));
    let kernel = machine.kernel(UNTIL_FLAG);
    let mut words = launch(&kernel, array.va, 3);
    words.extend(encode(&[pm4::cs_partial_flush(), write_data(array.va + 16, &[1])]));
    let (_inner, inner) = buffer_of(&machine, &words);
    let (_outer, outer) = buffer_of(&machine, &encode(&[inner, write_data(array.va + 20, &[2])]));
    queue.submit_packets(&[
        pm4::cs_partial_flush(),
        outer,
        write_data(array.va + 24, &[3]),
        completes(&done),
    ]);
    for _ in 0..5 {
        let before = dword(&array, 1);
        eventually("progress", || dword(&array, 1) != before);
        let saved = queue.stop();
        assert!(saved.control_stack_bytes > 0 && saved.wave_state_bytes > 0, "{saved:?}");
        let paused = dword(&array, 1);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(dword(&array, 1), paused, "nothing runs while it is off");
        assert_eq!(queue.read_pointer(), 2, "behind the last packet that is done");
        assert_eq!(stored_again(&queue).bytes(), queue.mqd.lock().bytes());
        // COMPUTE_PGM_RSRC1 lies where v11_compute_mqd has it.
        assert_eq!(queue.mqd.lock().word(19), 3 | 0xf0 << 12 | RSRC1_PRIV);
        queue.start();
    }
    array.u32(0).store(1, Ordering::SeqCst);
    done.wait_zero();
    assert_eq!([2, 4, 5, 6].map(|index| dword(&array, index)), [21, 1, 2, 3]);
    queue.finish();
    assert_eq!(queue.stop().wave_state_bytes, 0);
    assert_eq!(stored_again(&queue).bytes(), queue.mqd.lock().bytes());
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn wait_inside_a_buffer_begins_anew() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    let (_buffer, call) = buffer_of(
        &machine,
        &encode(&[write_data(array.va, &[1]), wait_for(array.va + 4, 9), write_data(array.va + 8, &[2])]),
    );
    queue.submit_packets(&[call, write_data(array.va + 12, &[3])]);
    eventually("the first write", || dword(&array, 0) == 1);
    let mut last: Option<Mqd> = None;
    for _ in 0..10 {
        queue.stop();
        assert_eq!(stored_again(&queue).bytes(), queue.mqd.lock().bytes());
        let saved = queue.mqd.lock().clone();
        assert!(last.is_none_or(|last| last == saved), "a wait changes nothing");
        last = Some(saved);
        // It must not begin with the buffer's first packet again.
        array.u32(0).store(0, Ordering::SeqCst);
        queue.start();
        std::thread::sleep(Duration::from_micros(500));
    }
    array.u32(4).store(9, Ordering::SeqCst);
    queue.finish();
    assert_eq!([0, 1, 2, 3].map(|index| dword(&array, index)), [0, 9, 2, 3]);
}

#[test]
fn stops_at_any_moment_lose_and_repeat_nothing() {
    const LAUNCHES: u32 = 300;
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(64 * 128 + 4096, DATA);
    let kernel = machine.kernel(COUNT);
    let words = launch(&kernel, array.va, 64);
    let (_buffer, call) = buffer_of(&machine, &words);
    let mut interrupted = 0;
    for round in 0..LAUNCHES {
        if round % 2 == 0 {
            queue.submit(&words)
        } else {
            queue.submit_packets(&[call])
        }
        std::thread::sleep(Duration::from_micros(u64::from(round % 11) * 30));
        interrupted += u32::from(queue.stop().wave_state_bytes != 0);
        queue.start();
    }
    queue.finish();
    println!("{interrupted} of {LAUNCHES} stops found waves");
    for index in 0..64 * 32 {
        assert_eq!(dword(&array, index), LAUNCHES, "element {index}");
    }
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

/// Stops a queue with a running wave that was started with this bit in `COMPUTE_PGM_RSRC1`.
/// As [`launch`], with or without PRIV.
pub(in super::super) fn launch_privileged(kernel: &Kernel, array: u64, privileged: bool) -> Vec<u32> {
    let mut words = launch(kernel, array, 1);
    let dispatch = words.split_off(words.len() - 5);
    let bit = if privileged { RSRC1_PRIV } else { 0 };
    let rsrc1 = resources().compute_pgm_rsrc1 | bit;
    words.extend(encode(&[Packet::SetShReg { register: reg::COMPUTE_PGM_RSRC1, values: &[rsrc1] }]));
    words.extend(dispatch);
    words
}

fn stop_with(chip: Chip, privileged: bool) -> (Machine, Result<bool, Errno>) {
    let machine = Machine::with_chip(chip);
    let result = {
        let queue = Ring::new(&machine, 1);
        let array = machine.buffer(4096, DATA);
        let kernel = machine.kernel(UNTIL_FLAG);
        queue.submit(&launch_privileged(&kernel, array.va, privileged));
        eventually("progress", || dword(&array, 1) > 0);
        let result = machine.gpus.stop_queue(0, 1).map(|mqd| mqd.unwrap().waves().wave_state_bytes > 0);
        assert_eq!(machine.gpus.stop_queue(0, 1).unwrap(), None, "off the hardware in any case");
        result
    };
    (machine, result)
}

#[test]
fn wave_without_priv_hangs_the_gpu_where_real_ones_hang() {
    let (machine, result) = stop_with(chip(), false);
    assert_eq!(result, Err(Errno::ETIME));
    assert_eq!(*machine.driver.hangs.lock(), [0]);
    let (machine, result) = stop_with(chip(), true);
    assert_eq!(result, Ok(true));
    assert!(machine.driver.hangs.lock().is_empty());
    let (machine, result) = stop_with(Chip { errata: false, ..chip() }, false);
    assert_eq!(result, Ok(true));
    assert!(machine.driver.hangs.lock().is_empty());
}

#[test]
fn queue_between_dispatches_stops_without_priv() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    let kernel = machine.kernel(COUNT);
    let mut words = launch(&kernel, array.va, 1);
    words.truncate(words.len() - 5);
    words.extend(encode(&[Packet::SetShReg { register: reg::COMPUTE_PGM_RSRC1, values: &[3] }]));
    words.extend([0xC003_1500, 1, 1, 1, 0x8005]);
    queue.submit(&words);
    queue.finish();
    queue.stop();
    assert!(machine.driver.hangs.lock().is_empty());
    assert_eq!(dword(&array, 0), 1);
}

#[test]
fn spoiled_descriptors_are_refused_or_do_no_harm() {
    let machine = Machine::new();
    let (queue, good) = (Ring::new(&machine, 1), Ring::new(&machine, 2));
    let array = machine.buffer(4096, DATA);
    let kernel = machine.kernel(UNTIL_FLAG);
    let (_buffer, call) = buffer_of(&machine, &launch(&kernel, array.va, 3));
    queue.submit_packets(&[call]);
    eventually("progress", || dword(&array, 1) > 0);
    queue.stop();
    let saved = queue.mqd.lock().clone();
    let spoiled = (1..100_usize, prop_oneof![any::<u32>(), 0..4_u32, (0..32_u32).prop_map(|bit| 1 << bit)]);
    proptest!(ProptestConfig::with_cases(300), |(changes in prop::collection::vec(spoiled, 1..4))| {
        let mut mqd = saved.clone();
        for &(word, value) in &changes {
            mqd.set_word(if word < 80 { 256 + word } else { word - 80 }, value);
        }
        match machine.gpus.start_queue(0, &queue.config(), &mqd) {
            Ok(()) => {
                std::thread::sleep(Duration::from_micros(200));
                queue.destroy();
            }
            Err(errno) => prop_assert!([Errno::EINVAL, Errno::EFAULT].contains(&errno), "{errno}"),
        }
        good.assert_alive();
        let exceptions = std::mem::take(&mut *machine.driver.exceptions.lock());
        prop_assert!(exceptions.iter().all(|(_, code)| *code != ExceptionCode::PreemptionError), "{exceptions:?}");
    });
    // The unspoiled one goes on.
    machine.gpus.start_queue(0, &queue.config(), &saved).unwrap();
    array.u32(0).store(1, Ordering::SeqCst);
    queue.finish();
    assert_eq!(dword(&array, 2), 21);
}
