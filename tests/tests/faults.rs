// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that fail: the error says what failed, where and in which kernel; the rest of the device goes on.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use stasis::{
    Arg, Condition, Dispatch, Queue, QueueFault, QueueOptions, Signal, SubmitError, WaitError, WaitMode,
};
use stasis_tests::gpu::{Gpu, SOON, on_a_future_kernel, values};

/// Submits what must fail and returns what its completion signal says.
fn fails(gpu: &Gpu, dispatch: Dispatch<'_>) -> Arc<QueueFault> {
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    let dispatch = dispatch.completion(&done);
    dispatch.submit().unwrap();
    match done.wait_done(SOON) {
        Err(WaitError::Queue(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

/// Checks that another queue and the memory still work.
fn still_works(gpu: &Gpu) {
    let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
    let gpu = Gpu { queue, ..gpu.clone() };
    let counter = gpu.buffer(&[0u32]);
    gpu.run(&gpu.kernel("increment"), [100, 1, 1], [32, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [100]);
}

#[test]
fn read_of_unmapped_memory_names_address_and_kernel() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    let gpu = Gpu::new();
    let (kernel, out) = (gpu.kernel("read_at"), gpu.buffer(&[0u32]));
    let args = [Arg::Buffer(&out), Arg::Address(0x1234_5678_9000)];
    let fault = fails(&gpu, gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args));
    let memory = fault.memory.unwrap();
    assert_eq!(memory.address, 0x1234_5678_9000);
    assert!(memory.not_present && !memory.read_only && !memory.no_execute);
    let wave = fault.wave.as_ref().unwrap();
    assert_eq!(wave.kernel.as_ref().unwrap().0, "read_at");
    let text = fault.to_string();
    assert!(text.contains("0x123456789000") && text.contains("read_at+0x"), "{text}");
    still_works(&gpu);
}

#[test]
fn write_past_the_end_of_a_buffer_faults_and_harms_no_neighbour() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    let gpu = Gpu::new();
    let buffers: Vec<_> = (0..3).map(|_| gpu.buffer(&[5u32; 1024])).collect();
    let (kernel, past) = (gpu.kernel("write_at"), buffers[1].va() + 4096);
    let args = [Arg::Address(past), Arg::U32(0xdead)];
    let fault = fails(&gpu, gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args));
    let memory = fault.memory.unwrap();
    assert_eq!(memory.address, past);
    // The driver says "read only" of every refused write, and here there is nothing that could be.
    assert!(memory.not_present && !memory.read_only && !memory.no_execute);
    assert!(fault.to_string().contains("access to memory that is not mapped"), "{fault}");
    assert!(buffers.iter().all(|buffer| values::<u32>(buffer) == [5; 1024]));
    still_works(&gpu);
}

#[test]
fn buffer_that_was_freed_is_unmapped() {
    let gpu = Gpu::new();
    let buffer = gpu.buffer(&[1u32; 64]);
    let (va, kernel) = (buffer.va(), gpu.kernel("write_at"));
    buffer.free().unwrap();
    let args = [Arg::Address(va), Arg::U32(1)];
    let fault = fails(&gpu, gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args));
    assert_eq!(fault.memory.unwrap().address, va);
}

#[test]
fn work_group_of_the_fault_is_named() {
    let gpu = Gpu::new();
    // Only the group that covers the hole after the buffer faults: 64 items of 4 bytes are a 16th of a page.
    let (buffer, kernel) = (gpu.buffer(&[0f32; 1024]), gpu.kernel("axpy"));
    let args = [Arg::Buffer(&buffer), Arg::Buffer(&buffer), Arg::F32(1.0), Arg::U32(1025)];
    let fault = fails(&gpu, gpu.queue.dispatch(&kernel).grid([1280, 1, 1]).block([256, 1, 1]).args(&args));
    assert_eq!(fault.memory.unwrap().address, buffer.va() + 4096);
    assert_eq!(fault.wave.as_ref().unwrap().workgroup, [4, 0, 0]);
}

#[test]
fn illegal_instruction_names_pc_bytes_and_kernel() {
    let gpu = Gpu::new();
    let (kernel, out) = (gpu.kernel("illegal"), gpu.buffer(&[0u32]));
    let fault = fails(&gpu, gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&[Arg::Buffer(&out)]));
    let wave = fault.wave.as_ref().unwrap();
    assert_eq!(wave.bytes[..4], 0xbfff_0000u32.to_le_bytes(), "{fault}");
    let (name, offset) = wave.kernel.as_ref().unwrap();
    assert!(name == "illegal" && *offset > 0 && *offset % 4 == 0, "{fault}");
    assert!(fault.memory.is_none());
    let text = fault.to_string();
    assert!(text.contains("00 00 ff bf") && text.contains(&format!("pc {:#x}", wave.pc)), "{text}");
    assert_ne!(values::<u32>(&out), [2], "it went on after the illegal instruction");
    still_works(&gpu);
}

#[test]
fn failed_queue_refuses_packets_and_is_destroyed_and_replaced() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    let gpu = Gpu::new();
    let (kernel, increment) = (gpu.kernel("write_at"), gpu.kernel("increment"));
    let (args, counter) = ([Arg::Address(0x5000), Arg::U32(1)], gpu.buffer(&[0u32]));
    let later = Signal::new(&gpu.runtime, 1).unwrap();
    let bad = Signal::new(&gpu.runtime, 1).unwrap();
    let counted = [Arg::Buffer(&counter)];
    gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args).completion(&bad).submit().unwrap();
    // This dispatch is submitted before the fault is known, or refused because of it: it never runs, and its signal
    // says so.
    let after = gpu.queue.dispatch(&increment).grid([1, 1, 1]).args(&counted).completion(&later).submit();
    assert!(matches!(bad.wait_done(SOON), Err(WaitError::Queue(_))));
    if after.is_ok() {
        assert!(matches!(later.wait_done(SOON), Err(WaitError::Queue(_))));
    }
    assert!(matches!(gpu.queue.barrier(&[], None), Err(SubmitError::Queue(_))));
    assert!(matches!(gpu.queue.wait_idle(SOON), Err(WaitError::Queue(_))));
    assert!(gpu.queue.fault().is_some());
    gpu.queue.destroy().unwrap();
    still_works(&gpu);
    assert_eq!(values::<u32>(&counter), [0]);
    counter.free().unwrap();
}

#[test]
fn threads_asleep_on_a_failing_queue_are_all_told() {
    let gpu = Gpu::new();
    let hold = Signal::new(&gpu.runtime, 1).unwrap();
    gpu.queue.barrier(&[&hold], None).unwrap();
    let signals: Vec<Signal> = (0..4).map(|_| Signal::new(&gpu.runtime, 1).unwrap()).collect();
    let kernel = gpu.kernel("write_at");
    for signal in &signals {
        let args = [Arg::Address(0x7000), Arg::U32(1)];
        gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args).completion(signal).submit().unwrap();
    }
    std::thread::scope(|scope| {
        let waiters: Vec<_> = signals
            .iter()
            .map(|signal| scope.spawn(|| signal.wait(Condition::Equal(0), SOON, WaitMode::Blocked)))
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        hold.store(0).unwrap();
        for waiter in waiters {
            assert!(matches!(waiter.join().unwrap(), Err(WaitError::Queue(_))));
        }
    });
}

#[test]
fn other_queue_in_the_middle_of_its_work_is_not_disturbed() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    let gpu = Gpu::new();
    let (spin, increment) = (gpu.kernel("spin"), gpu.kernel("increment"));
    let (flag, counter) = (gpu.runtime.gtt().alloc(4).unwrap(), gpu.buffer(&[0u32]));
    flag.write(0, &[0; 4]).unwrap();
    let busy = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
    busy.dispatch(&spin).grid([64, 1, 1]).block([64, 1, 1]).args(&[Arg::Buffer(&flag)]).submit().unwrap();
    busy.dispatch(&increment).grid([64, 1, 1]).args(&[Arg::Buffer(&counter)]).submit().unwrap();
    let (kernel, args) = (gpu.kernel("write_at"), [Arg::Address(0x9000), Arg::U32(1)]);
    fails(&gpu, gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args));
    assert!(busy.fault().is_none());
    assert_eq!(values::<u32>(&counter), [0]);
    flag.write(0, &[1; 4]).unwrap();
    busy.wait_idle(SOON).unwrap();
    assert_eq!(values::<u32>(&counter), [64]);
}

#[test]
fn fault_on_one_agent_leaves_the_other_alone() {
    // With released kernels a fault takes every queue of the process on that GPU for good.
    on_a_future_kernel();
    if stasis_tests::gpu::skip_on_kernel_driver("it asks for two agents, which the machine may not have") {
        return;
    }
    let runtime = stasis_tests::gpu::open_on("soft:gfx1100,gfx1100", None);
    let (bad, good) = (Gpu::on(&runtime, 0), Gpu::on(&runtime, 1));
    // Memory of the other agent is not mapped here.
    let foreign = good.buffer(&[3u32; 64]);
    let (kernel, args) = (bad.kernel("write_at"), [Arg::Address(foreign.va()), Arg::U32(1)]);
    let fault = fails(&bad, bad.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args));
    assert_eq!(fault.memory.unwrap().address, foreign.va());
    good.run(&good.kernel("store"), [32, 1, 1], [32, 1, 1], &[Arg::Buffer(&foreign), Arg::U32(4)]);
    assert_eq!(values::<u32>(&foreign)[31..33], [4, 3]);
    still_works(&bad);
}
