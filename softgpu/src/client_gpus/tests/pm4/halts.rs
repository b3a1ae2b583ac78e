// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams that halt their queue, and leave everything else alone.

use proptest::prelude::*;
use queues::aql::ExceptionCode::*;
use queues::pm4::{IndirectBuffer, Initiator, opcode, reg};

use super::*;

/// Submits words that must halt the queue, and a packet behind them that must not run.
fn halted_by(machine: &Machine, words: &[u32]) -> Vec<(u32, ExceptionCode)> {
    let (bad, good) = (Ring::new(machine, 1), Ring::new(machine, 2));
    let done = machine.signal(1);
    let mut stream = words.to_vec();
    stream.extend(encode(&[completes(&done)]));
    bad.submit(&stream);
    let exceptions = machine.exceptions();
    good.assert_alive();
    bad.stop();
    bad.start();
    bad.submit_packets(&[completes(&done)]);
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(done.value(), 1, "halted for good: {words:x?}");
    bad.destroy();
    assert_eq!(machine.driver.exceptions.lock().len(), 1, "{words:x?}");
    exceptions
}

#[test]
fn words_that_are_no_packets_halt_the_queue() {
    let jump = IndirectBuffer { chain: true, ..IndirectBuffer::new(0, 4) };
    let invalid = IndirectBuffer { valid: false, ..IndirectBuffer::new(0, 4) };
    for (words, code) in [
        (vec![0], PacketUnsupported),
        (vec![0x4000_0000], PacketUnsupported),
        (vec![0xC003_5000, 0, 0, 0, 0], PacketUnsupported),
        (vec![0xC000_4601, 0x407], PacketReserved),
        (vec![0xC001_4600, 0x407, 0], PacketReserved),
        (vec![0xC002_4600, 0x07, 0x1000, 0], PacketUnsupported),
        (vec![0xC005_3C00, 0x17, 0, 0, 0, 0, 4], PacketReserved),
        (vec![0xC002_3F00, 2, 0, 1 << 23], PacketReserved),
        (encode(&[Packet::IndirectBuffer(jump)]), PacketReserved),
        (encode(&[Packet::IndirectBuffer(invalid)]), PacketReserved),
        (encode(&[Packet::SetShReg { register: reg::SH_BASE, values: &[1] }]), PacketUnsupported),
        // Longer than the ring: its end will never come.
        (vec![0xC3FF_1000], PacketReserved),
    ] {
        assert_eq!(halted_by(&Machine::new(), &words), [(1, code)], "{words:x?}");
    }
}

#[test]
fn registers_that_no_device_takes_raise_what_aql_packets_raise() {
    const GO: u32 = 0x8005;
    let good = |register, value| vec![(register, value)];
    for (changes, initiator, size, code) in [
        (good(reg::COMPUTE_NUM_THREAD_Y, 0), GO, 1, PacketDispatchWorkGroupSizeInvalid),
        (good(reg::COMPUTE_NUM_THREAD_X, 1025), GO, 1, PacketDispatchWorkGroupSizeInvalid),
        (vec![], GO, u32::MAX, PacketDispatchDimInvalid),
        (good(reg::COMPUTE_PGM_LO, 0), GO, 1, PacketDispatchCodeInvalid),
        (good(reg::COMPUTE_PGM_RSRC2, 129 << 15), GO, 1, PacketDispatchGroupSegmentSizeInvalid),
        (good(reg::COMPUTE_PGM_RSRC1, 63), GO, 1, PacketDispatchRegisterInvalid),
        (good(reg::COMPUTE_PGM_RSRC2, 1), GO, 1, WaveApertureViolation),
        (vec![], GO | Initiator::RESTORE, 1, PacketUnsupported),
        (vec![], GO | Initiator::ORDERED_APPEND_ENBL, 1, PacketUnsupported),
    ] {
        let machine = Machine::new();
        let mut words = Vec::new();
        let mut set = |register, value| {
            Packet::SetShReg { register, values: &[value] }.encode(&mut words).unwrap();
        };
        set(reg::COMPUTE_PGM_LO, 0x10_0000);
        // One private dword of each lane, and no wave that has any.
        set(reg::COMPUTE_TMPRING_SIZE, 1 << 12);
        for register in [reg::COMPUTE_NUM_THREAD_X, reg::COMPUTE_NUM_THREAD_Y, reg::COMPUTE_NUM_THREAD_Z] {
            set(register, 2);
        }
        changes.iter().for_each(|&(register, value)| set(register, value));
        let initiator = Initiator(initiator);
        Packet::DispatchDirect { groups: [size, 1, 1], initiator }.encode(&mut words).unwrap();
        assert_eq!(halted_by(&machine, &words), [(1, code)], "{changes:x?} {initiator} {size}");
    }
}

#[test]
fn memory_that_is_not_there_is_a_fault_with_its_address() {
    let away = 15 << 40;
    let wide = |data_sel: u32| vec![0xC006_4900, 0x514, data_sel << 29, 0, 0xf00, 0, 0, 0];
    for (words, access) in [
        (encode(&[Packet::IndirectBuffer(IndirectBuffer::new(away, 1))]), VmFault::READ),
        (encode(&[Packet::DispatchIndirect { address: away, initiator: Initiator(5) }]), VmFault::READ),
        (encode(&[write_data(away, &[1])]), VmFault::WRITE),
        (encode(&[write_data(away, &[1; 100])]), VmFault::WRITE),
        (encode(&[wait_for(away, 1)]), VmFault::READ),
        (vec![0xC004_4000, 0x501, 0, 0xf00, 0x1000, 0], VmFault::READ),
        (vec![0xC004_4000, 0x1_0509, 0, 0, 0, 0xf00], VmFault::WRITE),
        (wide(1), VmFault::WRITE),
        (wide(2), VmFault::WRITE),
        (wide(3), VmFault::WRITE),
    ] {
        let machine = Machine::new();
        assert_eq!(halted_by(&machine, &words), [(1, WaveMemoryViolation)], "{words:x?}");
        let fault = VmFault { address: away, permission_faults: VmFault::VALID | access };
        assert_eq!(*machine.driver.faults.lock(), [(0, fault)], "{words:x?}");
    }
}

#[test]
fn read_only_memory_is_not_written_and_data_not_executed() {
    let machine = Machine::new();
    let target = machine.buffer(4096, READ_ONLY);
    assert_eq!(halted_by(&machine, &encode(&[write_data(target.va, &[1])])), [(1, WaveMemoryViolation)]);
    assert_eq!(machine.driver.faults.lock()[0].1.permission_faults, VmFault::WRITE);

    let machine = Machine::new();
    let kernel = Kernel { buffer: machine.buffer(4096, DATA) };
    assert_eq!(halted_by(&machine, &launch(&kernel, 0, 1)), [(1, WaveMemoryViolation)]);
    assert_eq!(machine.driver.faults.lock()[0].1.permission_faults, VmFault::EXECUTE);
}

#[test]
fn buffer_that_ends_inside_a_packet_raises() {
    let machine = Machine::new();
    let array = machine.buffer(4096, DATA);
    array.fill(0, &0xC000_4600_u32.to_le_bytes());
    let words = encode(&[Packet::IndirectBuffer(IndirectBuffer::new(array.va, 1))]);
    assert_eq!(halted_by(&machine, &words), [(1, PacketReserved)]);
}

#[test]
fn wave_that_stops_is_left_in_the_save_area() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let kernel = machine.kernel(".long 0xffffffff\ns_endpgm");
    let mut words = encode(&[pm4::cs_partial_flush()]);
    words.extend(launch(&kernel, 0, 1));
    queue.submit(&words);
    assert_eq!(machine.exceptions(), [(1, WaveIllegalInstruction)]);
    let saved = queue.stop();
    assert!(saved.wave_state_bytes > 0 && saved.control_stack_bytes > 0, "{saved:?}");
    assert_eq!(queue.read_pointer(), (words.len() - 5) as u64, "the dispatch was never done");
}

/// Dwords with which a stream may go on, most of them packets that get past their header.
fn piece(place: u64) -> impl Strategy<Value = Vec<u32>> {
    let opcodes = [
        opcode::NOP,
        opcode::DISPATCH_DIRECT,
        opcode::DISPATCH_INDIRECT,
        opcode::PRED_EXEC,
        opcode::WRITE_DATA,
        opcode::WAIT_REG_MEM,
        opcode::INDIRECT_BUFFER,
        opcode::COPY_DATA,
        opcode::EVENT_WRITE,
        opcode::RELEASE_MEM,
        opcode::ACQUIRE_MEM,
        opcode::SET_SH_REG,
        opcode::SET_UCONFIG_REG,
    ];
    let [low, high] = pointer(place);
    let body = prop_oneof![
        any::<u32>(),
        0..8_u32,
        Just(low),
        Just(high),
        Just(0x8005),
        (0x200..0x250_u32),
        (0..32_u32).prop_map(|bit| 1 << bit),
    ];
    let packet = (prop::sample::select(opcodes.to_vec()), prop::collection::vec(body, 1..10)).prop_map(
        |(opcode, body)| {
            let count = u32::try_from(body.len()).unwrap() - 1;
            let mut words = vec![3 << 30 | count << 16 | u32::from(opcode) << 8];
            words.extend(body);
            words
        },
    );
    let dispatch = (0..4_u32, 0..66_u32, any::<u8>()).prop_map(|(groups, threads, bits)| {
        let mut words =
            encode(&[Packet::SetShReg { register: reg::COMPUTE_NUM_THREAD_X, values: &[threads, 1, 1] }]);
        let initiator = Initiator(0x8001 | u32::from(bits));
        words.extend(encode(&[Packet::DispatchDirect { groups: [groups, 1, 1], initiator }]));
        words
    });
    let call = (0..16_u32, any::<bool>()).prop_map(move |(dwords, chain)| {
        encode(&[Packet::IndirectBuffer(IndirectBuffer { chain, ..IndirectBuffer::new(place, dwords) })])
    });
    prop_oneof![
        6 => packet,
        1 => dispatch,
        1 => call,
        1 => prop::collection::vec(any::<u32>(), 1..4),
    ]
}

#[test]
fn random_streams_leave_the_device_alive() {
    let machine = Machine::new();
    let (bad, good) = (Ring::new(&machine, 1), Ring::new(&machine, 2));
    let target = machine.buffer(4096, CODE);
    let stream = prop::collection::vec(piece(target.va), 1..12);
    proptest!(ProptestConfig::with_cases(400), |(stream in stream, stop in any::<bool>())| {
        let words = stream.concat();
        // Buffers that are called hold the stream too.
        target.fill(0, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
        bad.submit(&words);
        std::thread::sleep(Duration::from_micros(300));
        if stop {
            match machine.gpus.stop_queue(0, 1) {
                Ok(mqd) => *bad.mqd.lock() = *mqd.unwrap(),
                // A wave that lacked PRIV.
                Err(errno) => assert_eq!(errno, nix::errno::Errno::ETIME),
            }
            machine.gpus.start_queue(0, &bad.config(), &bad.mqd.lock()).unwrap();
        }
        good.assert_alive();
        bad.renew();
        let exceptions = std::mem::take(&mut *machine.driver.exceptions.lock());
        prop_assert!(exceptions.iter().all(|(id, code)| *id == 1 && *code != PreemptionError), "{exceptions:?}");
    });
}
