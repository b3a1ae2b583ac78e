// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets and kernels that halt their queue, and leave everything else alone.

use queues::aql::ExceptionCode::*;
use queues::save_area::{SaveAreaHeader, Stopped, WaveState, read_waves};

use super::*;

/// That a queue still works.
fn assert_alive(machine: &Machine, queue: &TestQueue<'_>) {
    let done = machine.signal(1);
    queue.barrier(&[], Some(&done));
    done.wait_zero();
}

fn raises(raw: &RawPacket, code: ExceptionCode) {
    let machine = Machine::new();
    let (bad, good) = (machine.queue(1), machine.queue(2));
    let done = machine.signal(1);
    bad.submit_raw(raw);
    assert_eq!(machine.exceptions(), [(1, code)]);
    bad.barrier(&[], Some(&done));
    assert_alive(&machine, &good);
    assert_eq!((done.value(), bad.read_index()), (1, 0), "halted for good");
    bad.stop();
    bad.start();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(done.value(), 1, "also after it was off");
    bad.destroy();
    assert_eq!(machine.exceptions().len(), 1);
}

#[test]
fn malformed_packets_raise_what_hardware_raises() {
    let machine = Machine::new();
    let signal = machine.signal(1);
    let kernel = machine.kernel("s_endpgm");
    let good = dispatch(&kernel, 0, 1, &signal);
    let raw = |packet: KernelDispatch| Packet::KernelDispatch(packet).encode();
    raises(&[0; 16], PacketVendorUnsupported);
    raises(&[9; 16], PacketUnsupported);
    let mut agent_dispatch = [0; 16];
    agent_dispatch[0] = 4;
    raises(&agent_dispatch, PacketUnsupported);
    raises(&raw(KernelDispatch { dimensions: 0, ..good }), PacketDispatchDimInvalid);
    raises(&raw(KernelDispatch { grid: [0, 1, 1], ..good }), PacketDispatchDimInvalid);
    raises(&raw(KernelDispatch { workgroup: [1025, 1, 1], ..good }), PacketDispatchWorkGroupSizeInvalid);
    raises(&raw(KernelDispatch { kernel_object: 0, ..good }), PacketDispatchCodeInvalid);
    raises(
        &raw(KernelDispatch { group_segment_bytes: 65537, ..good }),
        PacketDispatchGroupSegmentSizeInvalid,
    );
    let mut reserved = raw(good);
    reserved[12] = 1;
    raises(&reserved, PacketReserved);
}

#[test]
fn misaligned_kernel_object_is_code_invalid() {
    let machine = Machine::new();
    let (queue, signal) = (machine.queue(1), machine.signal(1));
    let kernel = machine.kernel("s_endpgm");
    let good = dispatch(&kernel, 0, 1, &signal);
    queue.submit(Packet::KernelDispatch(KernelDispatch { kernel_object: good.kernel_object + 4, ..good }));
    assert_eq!(machine.exceptions(), [(1, PacketDispatchCodeInvalid)]);
}

#[test]
fn unmapped_kernel_object_is_memory_fault() {
    let machine = Machine::new();
    let (queue, signal) = (machine.queue(1), machine.signal(1));
    let kernel = machine.kernel("s_endpgm");
    let address = 15 << 40;
    let packet = KernelDispatch { kernel_object: address, ..dispatch(&kernel, 0, 1, &signal) };
    queue.submit(Packet::KernelDispatch(packet));
    assert_eq!(machine.exceptions(), [(1, WaveMemoryViolation)]);
    let fault = VmFault { address, permission_faults: VmFault::VALID | VmFault::READ };
    assert_eq!(*machine.driver.faults.lock(), [(0, fault)]);
}

#[test]
fn unmapped_signal_is_memory_fault_and_other_queues_go_on() {
    let machine = Machine::new();
    let (bad, good) = (machine.queue(1), machine.queue(2));
    let barrier = Barrier { completion_signal: 0x40, ..Barrier::noop() };
    bad.submit(Packet::BarrierAnd(barrier));
    assert_eq!(machine.exceptions(), [(1, WaveMemoryViolation)]);
    assert_alive(&machine, &good);
}

#[test]
fn private_segment_without_scratch_is_aperture_violation() {
    let machine = Machine::new();
    let (queue, signal) = (machine.queue(1), machine.signal(1));
    let kernel = machine.kernel("s_endpgm");
    let packet = KernelDispatch { private_segment_bytes: 16, ..dispatch(&kernel, 0, 1, &signal) };
    queue.submit(Packet::KernelDispatch(packet));
    assert_eq!(machine.exceptions(), [(1, WaveApertureViolation)]);
}

/// What a kernel raises, and the one wave found in the save area afterwards.
fn kernel_raises(
    assembly: &str,
    kernarg: u64,
    code: ExceptionCode,
) -> (Machine, queues::save_area::WaveRecord) {
    let machine = Machine::new();
    let wave = {
        let (bad, good) = (machine.queue(1), machine.queue(2));
        let (kernel, signal) = (machine.kernel(assembly), machine.signal(1));
        bad.submit(Packet::KernelDispatch(dispatch(&kernel, kernarg, 1, &signal)));
        assert_eq!(machine.exceptions(), [(1, code)]);
        assert_alive(&machine, &good);
        assert_eq!(signal.value(), 1, "never completed");
        assert_eq!(bad.read_index(), 1, "it was begun");
        let saved = bad.stop();
        let mut area = bad.save.bytes(0, SAVE_BYTES as usize);
        let header = SaveAreaHeader {
            wave_state: WaveState {
                control_stack_offset: saved.control_stack_offset,
                control_stack_size: saved.control_stack_bytes,
                wave_state_offset: saved.wave_state_offset,
                wave_state_size: saved.wave_state_bytes,
            },
            ..SaveAreaHeader::default()
        };
        assert!(area[..40].iter().all(|&byte| byte == 0), "the header is the driver's");
        header.write(&mut area).unwrap();
        let mut waves = read_waves(&area).unwrap();
        assert_eq!(waves.len(), 1);
        let mut wave = waves.remove(0);
        wave.pc = Stopped::of(chip().target, wave.pc, &wave.ttmp).unwrap().pc - (kernel.buffer.va + 256);
        wave
    };
    (machine, wave)
}

#[test]
fn illegal_instruction_halts_and_leaves_its_wave() {
    let (_, wave) =
        kernel_raises("s_mov_b32 s7, 0x1234\n.long 0xffffffff\ns_endpgm", 0, WaveIllegalInstruction);
    assert_eq!((wave.pc, wave.sgprs[7]), (8, 0x1234));
}

/// A chip whose waves are not privileged on AQL queues, and so do trap.
fn trapping_chip() -> Chip {
    Chip {
        target: Target::by_name("gfx1150").unwrap(),
        compute_units: 16,
        arrays: 2,
        engines: 1,
        xccs: 1,
        compute_queues: 8,
        errata: true,
        counter_ahead: 0,
    }
}

#[test]
fn handler_reports_traps_by_their_id_and_steps_over_debug_traps() {
    for (trap, code) in [(2, WaveAbort), (1, WaveTrap), (200, WaveTrap)] {
        let machine = Machine::with_chip(trapping_chip());
        let (queue, signal) = (machine.queue(1), machine.signal(1));
        // 3 is the debug trap, and nobody debugs.
        let kernel = machine.kernel(&format!("s_trap 3\n s_trap {trap}\n s_endpgm"));
        queue.submit(Packet::KernelDispatch(dispatch(&kernel, 0, 1, &signal)));
        assert_eq!(machine.exceptions(), [(1, code)]);
        assert_eq!(signal.value(), 1, "never completed");
    }
}

#[test]
fn without_a_handler_traps_are_skipped_and_other_waves_hang_in_silence() {
    let machine = Machine::without_trap_handler(trapping_chip());
    let (queue, signal) = (machine.queue(1), machine.signal(1));
    let kernel = machine.kernel("s_trap 2\n s_endpgm");
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, 0, 1, &signal)));
    signal.wait_zero();

    let signal = machine.signal(1);
    let kernel = machine.kernel(".long 0xffffffff\n s_endpgm");
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, 0, 1, &signal)));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((signal.value(), machine.driver.exceptions.lock().len()), (1, 0));
    queue.destroy();
}

/// How device code wakes the host: the message names an event.
#[test]
fn message_of_a_wave_without_privilege_is_an_event() {
    let machine = Machine::with_chip(trapping_chip());
    let (queue, signal) = (machine.queue(1), machine.signal(1));
    let kernel = machine.kernel("s_movk_i32 m0, 0x123\n s_sendmsg sendmsg(MSG_INTERRUPT)\n s_endpgm");
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, 0, 1, &signal)));
    signal.wait_zero();
    assert_eq!(*machine.driver.messages.lock(), [0x123]);
}

#[test]
fn store_to_unmapped_memory_is_a_fault_with_its_address() {
    let assembly = "v_mov_b32 v0, 0\n v_mov_b32 v1, 0x2000\n global_store_b32 v[0:1], v0, off\n s_endpgm";
    let (machine, wave) = kernel_raises(assembly, 0, WaveMemoryViolation);
    let fault = VmFault { address: 0x2000 << 32, permission_faults: VmFault::VALID | VmFault::WRITE };
    assert_eq!(*machine.driver.faults.lock(), [(0, fault)]);
    assert_eq!(wave.lanes, 32);
}

#[test]
fn store_to_read_only_memory_is_a_read_only_fault() {
    let machine = Machine::new();
    let (queue, signal) = (machine.queue(1), machine.signal(1));
    let (target, arguments) = (machine.buffer(4096, READ_ONLY), machine.buffer(4096, DATA));
    arguments.u64(0).store(target.va, Ordering::Relaxed);
    let kernel = machine.kernel(
        "s_load_b64 s[4:5], s[0:1], 0\n s_waitcnt lgkmcnt(0)\n v_mov_b32 v0, 0\n
         global_store_b32 v0, v0, s[4:5]\n s_endpgm",
    );
    queue.submit(Packet::KernelDispatch(dispatch(&kernel, arguments.va, 1, &signal)));
    assert_eq!(machine.exceptions(), [(1, WaveMemoryViolation)]);
    let fault = VmFault { address: target.va, permission_faults: VmFault::WRITE };
    assert_eq!(*machine.driver.faults.lock(), [(0, fault)]);
}

#[test]
fn data_is_not_executable() {
    let machine = Machine::new();
    let (queue, signal) = (machine.queue(1), machine.signal(1));
    let kernel = machine.kernel("s_endpgm");
    let copy = machine.buffer(4096, DATA);
    copy.fill(0, &kernel.buffer.bytes(0, 4096));
    let packet = KernelDispatch { kernel_object: copy.va, ..dispatch(&kernel, 0, 1, &signal) };
    queue.submit(Packet::KernelDispatch(packet));
    assert_eq!(machine.exceptions(), [(1, WaveMemoryViolation)]);
    assert_eq!(machine.driver.faults.lock()[0].1.permission_faults, VmFault::EXECUTE);
}

#[test]
fn queue_pointers_unmapped_under_a_running_queue_only_halt_it() {
    let machine = Machine::new();
    let (bad, good) = (machine.queue(1), machine.queue(2));
    let done = machine.signal(1);
    machine.gpus.unmap(0, bad.pointers.va, 4096);
    bad.barrier(&[], Some(&done));
    machine.exceptions();
    assert_alive(&machine, &good);
}

#[test]
fn random_packets_leave_the_device_alive() {
    let machine = Machine::new();
    let good = machine.queue(1);
    let queue = machine.queue(2);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 32) as u32
    };
    for round in 0..300 {
        let mut raw: RawPacket = std::array::from_fn(|_| random());
        // Mostly packets that get past their header.
        raw[0] = raw[0] & 0x0003_1f00 | [2, 3, 5, raw[0] & 0xff][round % 4];
        if round % 3 == 0 {
            raw[1..4].copy_from_slice(&[0x0001_0020, 1, 0x40]);
            raw[4..6].copy_from_slice(&[1, 1]);
            raw[12..14].fill(0);
        }
        queue.submit_raw(&raw);
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        queue.destroy();
        queue.ring.u32(0).store(PacketKind::Invalid as u32, Ordering::SeqCst);
        queue.pointers.u64(56).store(0, Ordering::SeqCst);
        queue.pointers.u64(128).store(0, Ordering::SeqCst);
        queue.start();
    }
    assert_alive(&machine, &good);
    assert!(machine.driver.exceptions.lock().iter().all(|(id, code)| *id == 2 && *code != PreemptionError));
}
