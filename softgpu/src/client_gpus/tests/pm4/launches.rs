// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels: the recorded stream of a real client, and how registers become waves.

use queues::pm4::{Initiator, reg};

use super::*;

/// Sets registers that follow each other.
fn set(register: u32, values: &[u32]) -> Vec<u32> {
    encode(&[Packet::SetShReg { register, values }])
}

/// Registers of a launch, without its dispatch packet.
fn registers(kernel: &Kernel, array: u64) -> Vec<u32> {
    let mut words = launch(kernel, array, 1);
    words.truncate(words.len() - 5);
    words
}

fn start(initiator: u32, groups: [u32; 3]) -> Vec<u32> {
    let initiator = Initiator(initiator | Initiator::COMPUTE_SHADER_EN | Initiator::CS_W32_EN);
    encode(&[Packet::DispatchDirect { groups, initiator }])
}

/// How often each of the array's first elements was counted.
fn counts<const N: usize>(array: &Buffer) -> [u32; N] {
    std::array::from_fn(|index| dword(array, index))
}

#[test]
fn recorded_stream_runs_its_kernel_and_signals() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let (array, shared) = (machine.buffer(4096, DATA), machine.buffer(4096, DATA));
    let kernel = machine.kernel(COUNT);
    let [timeline, mailbox] = [shared.va, shared.va + 0x18].map(pointer);
    let program = pointer((kernel.buffer.va + 256) >> 8);
    let [array_low, array_high] = pointer(array.va);
    shared.u32(0).store(41, Ordering::SeqCst);
    #[rustfmt::skip]
    queue.submit(&[
        0xC005_3C00, 0x15, timeline[0], timeline[1], 41, !0, 4,
        0xC005_3C00, 0x45, 0xE26, 0xE27, !0, !0, 4,
        0xC006_5800, 0, !0, !0, 0, 0, 0, 0xC3F1,
        0xC006_5800, 0, !0, !0, 0, 0, 0, 0x3F0,
        0xC002_7600, 0x20C, program[0], program[1],
        0xC002_7600, 0x212, 0x001f_0003, 2 << 1 | 1 << 7,
        0xC001_7600, 0x228, 0,
        0xC001_7600, 0x218, 0x20200,
        0xC002_7600, 0x210, 0, 0,
        0xC003_7600, 0x21B, 0, 0, 0,
        0xC002_7600, 0x240, array_low, array_high,
        0xC001_7600, 0x215, 0,
        0xC008_7600, 0x204, 0, 0, 0, 32, 1, 1, 0, 0,
        0xC003_1500, 10, 1, 1, 0x8005,
        0xC000_4600, 0x407,
        0xC006_4900, 0x70F514, 0x2000_0000, timeline[0], timeline[1], 42, 0, 0,
        0xC006_4900, 0x514, 0x2200_0000, mailbox[0], mailbox[1], 3, 0, 3,
    ]);
    eventually("the interrupt", || !machine.driver.events.lock().is_empty());
    assert_eq!(*machine.driver.events.lock(), [3]);
    assert_eq!((dword(&shared, 0), dword(&shared, 6)), (42, 3), "timeline and mailbox, before the interrupt");
    assert_eq!(counts::<320>(&array), [1; 320]);
    assert_eq!(dword(&array, 320), 0);
    queue.finish();
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn stream_waits_for_its_timeline() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let (timeline, done) = (machine.buffer(4096, DATA), machine.signal(1));
    queue.submit_packets(&[
        pm4::wait_memory(timeline.va, Compare::GreaterEqual, 5, u32::MAX),
        completes(&done),
    ]);
    for value in [1, 4] {
        timeline.u32(0).store(value, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(done.value(), 1);
        assert_eq!(queue.read_pointer(), 0, "the wait stays in the ring");
    }
    timeline.u32(0).store(6, Ordering::SeqCst);
    done.wait_zero();
}

#[test]
fn indirect_dispatch_takes_its_sizes_from_memory() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let (array, sizes) = (machine.buffer(4096, DATA), machine.buffer(4096, DATA));
    let kernel = machine.kernel(COUNT);
    queue.submit(&registers(&kernel, array.va));
    let initiator = Initiator(0x8005);
    // Written by the queue itself just before.
    queue.submit_packets(&[
        write_data(sizes.va + 16, &[3, 1, 1]),
        Packet::DispatchIndirect { address: sizes.va + 16, initiator },
        Packet::DispatchIndirect { address: sizes.va, initiator },
    ]);
    queue.finish();
    assert_eq!(counts::<97>(&array)[..96], [1; 96]);
    assert_eq!(dword(&array, 96), 0);
}

#[test]
fn partial_groups_thread_sizes_and_first_groups() {
    for (initiator, first, threads, size, wanted) in [
        (0, 0, 32, 2, [1, 1, 1, 1, 0]),
        (0, 0, 32 | 8 << 16, 2, [1, 1, 1, 1, 0]),
        (Initiator::PARTIAL_TG_EN, 0, 32 | 8 << 16, 2, [1, 1, 1, 0, 0]),
        (Initiator::USE_THREAD_DIMENSIONS, 0, 32, 40, [1, 1, 1, 0, 0]),
        (0, 1, 32, 2, [0, 0, 1, 1, 0]),
        (Initiator::FORCE_START_AT_000, 1, 32, 2, [1, 1, 1, 1, 0]),
        (0, 2, 32, 2, [0; 5]),
        (0, 0, 32, 0, [0; 5]),
    ] {
        let machine = Machine::new();
        let queue = Ring::new(&machine, 1);
        let array = machine.buffer(4096, DATA);
        let kernel = machine.kernel(COUNT);
        queue.submit(&registers(&kernel, array.va));
        queue.submit(&set(reg::COMPUTE_START_X, &[first, 0, 0, threads, 1 | 1 << 16, 1 | 1 << 16]));
        queue.submit(&start(initiator, [size, 1, 1]));
        queue.finish();
        let found = [0, 31, 39, 63, 64].map(|index| dword(&array, index));
        assert_eq!(found, wanted, "initiator {initiator:#x}, {size} from {first}, {threads:#x}");
        if wanted[3] == 0 {
            assert_eq!(dword(&array, 40), 0, "the partial group has 8 items");
        }
        assert_eq!(*machine.driver.exceptions.lock(), []);
    }
}

#[test]
fn dispatch_without_compute_shader_en_is_no_work() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    let kernel = machine.kernel(COUNT);
    queue.submit(&registers(&kernel, array.va));
    queue.submit_packets(&[Packet::DispatchDirect { groups: [1; 3], initiator: Initiator(0x8004) }]);
    queue.finish();
    assert_eq!(dword(&array, 0), 0);
}

/// Stores s2, s13, s14 and s15 into the array of s[0:1], at 16 bytes for each work-group that the given SGPR names.
fn sgpr_dump(group: u32) -> String {
    format!(
        "s_lshl_b32 s20, s{group}, 4
         v_mov_b32 v0, s20
         v_mov_b32 v1, s2
         v_mov_b32 v2, s13
         v_mov_b32 v3, s14
         v_mov_b32 v4, s15
         global_store_b128 v0, v[1:4], s[0:1]
         s_endpgm"
    )
}

#[test]
fn work_group_id_is_behind_the_user_sgprs_of_rsrc2() {
    for (user_sgprs, wanted) in [(2, [1, 13, 14, 15]), (13, [2, 1, 14, 15]), (15, [2, 13, 14, 1])] {
        let machine = Machine::new();
        let queue = Ring::new(&machine, 1);
        let array = machine.buffer(4096, DATA);
        let kernel = machine.kernel(&sgpr_dump(user_sgprs));
        let descriptor = KernelDescriptor { compute_pgm_rsrc2: user_sgprs << 1 | 1 << 7, ..resources() };
        // Every user data register says its number; the pointer is where clients put it.
        let mut user_data: [u32; 16] = std::array::from_fn(|index| u32::try_from(index).unwrap());
        user_data[..2].copy_from_slice(&pointer(array.va));
        let mut words = Vec::new();
        launch_with(&kernel, &descriptor, &user_data, 2).encode(&mut words).unwrap();
        queue.submit(&words);
        queue.finish();
        let found: [u32; 4] = std::array::from_fn(|index| dword(&array, 4 + index));
        assert_eq!(found, wanted, "of work-group 1 with USER_SGPR {user_sgprs}");
        assert_eq!(*machine.driver.exceptions.lock(), []);
    }
}

#[test]
fn scratch_lds_and_wave_size_come_from_registers() {
    // Through LDS, then through scratch, then out: lane * 3 + 1.
    let assembly = "
        v_and_b32 v0, 0x3ff, v0
        v_lshlrev_b32 v1, 2, v0
        v_mul_u32_u24 v2, 3, v0
        ds_store_b32 v1, v2
        s_waitcnt lgkmcnt(0)
        ds_load_b32 v3, v1
        s_waitcnt lgkmcnt(0)
        v_add_nc_u32 v3, 1, v3
        scratch_store_b32 off, v3, off offset:60
        s_waitcnt vmcnt(0)
        s_waitcnt_vscnt null, 0
        scratch_load_b32 v4, off, off offset:60
        s_waitcnt vmcnt(0)
        global_store_b32 v1, v4, s[0:1]
        s_endpgm";
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let (array, scratch) = (machine.buffer(4096, DATA), machine.buffer(64 << 10, DATA));
    let kernel = machine.kernel(assembly);
    let descriptor = KernelDescriptor { compute_pgm_rsrc2: resources().compute_pgm_rsrc2 | 1, ..resources() };
    let user_data = pointer(array.va);
    for wave32 in [true, false] {
        let dispatch = pm4::Dispatch {
            group_segment_bytes: 256,
            scratch: Some(pm4::Scratch { base: scratch.va, wave_bytes: 4096, waves: 2 }),
            workgroup: [64, 1, 1],
            wave32,
            ..launch_with(&kernel, &descriptor, &user_data, 1)
        };
        array.fill(0, &[0; 256]);
        let mut words = Vec::new();
        dispatch.encode(&mut words).unwrap();
        queue.submit(&words);
        queue.finish();
        assert_eq!(counts::<64>(&array), std::array::from_fn(|lane| u32::try_from(lane).unwrap() * 3 + 1));
    }
    assert!(scratch.bytes(0, 4096).iter().any(|&byte| byte != 0), "it was the client's memory");
    assert_eq!(*machine.driver.exceptions.lock(), []);
}
