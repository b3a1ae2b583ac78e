// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels end to end, and endless ones paused, resumed and destroyed.

use super::*;

/// Stores `lane + 32 * group` into an array.
const IOTA: &str = "
    s_load_b64 s[4:5], s[0:1], 0
    s_lshl_b32 s6, s2, 5
    v_and_b32 v0, 0x3ff, v0
    v_add_nc_u32 v0, s6, v0
    v_lshlrev_b32 v1, 2, v0
    s_waitcnt lgkmcnt(0)
    global_store_b32 v1, v0, s[4:5]
    s_endpgm";

/// Counts in `array[1]` until `array[0]` is set, then stores 7 into `array[2]`.
pub(super) const UNTIL_FLAG: &str = "
    s_load_b64 s[4:5], s[0:1], 0
    v_mov_b32 v0, 0
    v_mov_b32 v2, 0
    s_waitcnt lgkmcnt(0)
  again:
    v_add_nc_u32 v2, 1, v2
    global_store_b32 v0, v2, s[4:5] offset:4
    global_load_b32 v1, v0, s[4:5] glc
    s_waitcnt vmcnt(0)
    v_readfirstlane_b32 s6, v1
    s_cmp_eq_u32 s6, 0
    s_cbranch_scc1 again
    v_mov_b32 v1, 7
    global_store_b32 v0, v1, s[4:5] offset:8
    s_endpgm";

pub(super) fn with_array(machine: &Machine, bytes: usize) -> (Buffer, Buffer) {
    let (array, arguments) = (machine.buffer(bytes, DATA), machine.buffer(4096, DATA));
    arguments.u64(0).store(array.va, Ordering::Relaxed);
    (array, arguments)
}

#[test]
fn dispatch_runs_every_work_item_and_completes() {
    let machine = Machine::new();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    let (array, arguments) = with_array(&machine, 64 * 128);
    let kernel = machine.kernel(IOTA);
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, arguments.va, 64, &done)));
    done.wait_zero();
    for index in 0..64 * 32 {
        assert_eq!(array.u32(index * 4).load(Ordering::SeqCst), u32::try_from(index).unwrap());
    }
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn queues_of_one_gpu_run_at_the_same_time() {
    let machine = Machine::new();
    let (waiting, other) = (machine.queue(1), machine.queue(2));
    let (first, second) = (machine.signal(1), machine.signal(1));
    let (array, arguments) = with_array(&machine, 4096);
    let (loops, iota) = (machine.kernel(UNTIL_FLAG), machine.kernel(IOTA));
    let (_, elsewhere) = with_array(&machine, 4096);
    waiting.submit(Packet::KernelDispatch(dispatch(&loops, arguments.va, 1, &first)));
    eventually("the loop", || array.u32(4).load(Ordering::SeqCst) > 0);
    other.submit(Packet::KernelDispatch(dispatch(&iota, elsewhere.va, 4, &second)));
    second.wait_zero();
    assert_eq!(first.value(), 1);
    array.u32(0).store(1, Ordering::SeqCst);
    first.wait_zero();
}

#[test]
fn endless_kernel_pauses_saves_its_waves_and_goes_on() {
    let machine = Machine::new();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    let (array, arguments) = with_array(&machine, 4096);
    let kernel = machine.kernel(UNTIL_FLAG);
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, arguments.va, 1, &done)));
    for _ in 0..5 {
        let before = array.u32(4).load(Ordering::SeqCst);
        eventually("progress", || array.u32(4).load(Ordering::SeqCst) > before);
        let since = Instant::now();
        let saved = queue.stop();
        let took = since.elapsed();
        println!("endless kernel off the hardware and saved in {took:?}");
        assert!(took < Duration::from_millis(100), "{took:?}");
        assert!(saved.control_stack_bytes > 0 && saved.wave_state_bytes > 0, "{saved:?}");
        let paused = array.u32(4).load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(array.u32(4).load(Ordering::SeqCst), paused, "nothing runs while it is off");
        assert_eq!(queue.read_index(), 1, "begun");
        queue.start();
    }
    array.u32(0).store(1, Ordering::SeqCst);
    done.wait_zero();
    assert_eq!(array.u32(8).load(Ordering::SeqCst), 7);
    assert_eq!(queue.stop().wave_state_bytes, 0);
}

#[test]
fn endless_kernel_is_destroyed_at_once() {
    let machine = Machine::new();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    let (array, arguments) = with_array(&machine, 4096);
    let kernel = machine.kernel(UNTIL_FLAG);
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, arguments.va, 1, &done)));
    eventually("progress", || array.u32(4).load(Ordering::SeqCst) > 0);
    let since = Instant::now();
    queue.destroy();
    assert!(since.elapsed() < Duration::from_millis(100), "{:?}", since.elapsed());
    let after = array.u32(4).load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(array.u32(4).load(Ordering::SeqCst), after);
    assert_eq!(done.value(), 1);
}

#[test]
fn memory_is_unmapped_under_a_running_kernel() {
    let machine = Machine::new();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    let (array, arguments) = with_array(&machine, 4096);
    let kernel = machine.kernel(UNTIL_FLAG);
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, arguments.va, 1, &done)));
    eventually("progress", || array.u32(4).load(Ordering::SeqCst) > 0);
    machine.gpus.unmap(0, array.va, 4096);
    assert_eq!(machine.exceptions(), [(1, ExceptionCode::WaveMemoryViolation)]);
}

#[test]
fn stops_at_any_moment_lose_and_repeat_nothing() {
    const DISPATCHES: u64 = 300;
    let machine = Machine::new();
    let (queue, done) = (machine.queue(1), machine.signal(DISPATCHES));
    let (array, arguments) = with_array(&machine, 64 * 128);
    // Adds 1 to every element, so that a repeated or lost work-group shows.
    let kernel = machine.kernel(
        "
        s_load_b64 s[4:5], s[0:1], 0
        s_lshl_b32 s6, s2, 5
        v_and_b32 v0, 0x3ff, v0
        v_add_nc_u32 v0, s6, v0
        v_lshlrev_b32 v1, 2, v0
        v_mov_b32 v2, 1
        s_waitcnt lgkmcnt(0)
        global_atomic_add_u32 v1, v2, s[4:5]
        s_endpgm",
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..DISPATCHES {
                queue.submit(Packet::KernelDispatch(dispatch(&kernel, arguments.va, 64, &done)));
            }
        });
        let mut stops = 0;
        while done.value() != 0 {
            queue.stop();
            queue.start();
            stops += 1;
            std::thread::sleep(Duration::from_micros(stops % 7 * 50));
            assert_eq!(*machine.driver.exceptions.lock(), []);
        }
        println!("{stops} stops in {DISPATCHES} dispatches");
    });
    assert_eq!(queue.read_index(), DISPATCHES);
    for index in 0..64 * 32 {
        assert_eq!(u64::from(array.u32(index * 4).load(Ordering::SeqCst)), DISPATCHES, "element {index}");
    }
}
