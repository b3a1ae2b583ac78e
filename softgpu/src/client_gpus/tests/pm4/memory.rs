// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets that read, write, wait and interrupt.

use queues::pm4::{
    CopyData, CopySource, DataSel, Destination, IntSel, ReleaseDestination, ReleaseMem, WaitRegMem,
    WaitTarget, WriteData, reg,
};

use super::*;

fn release(data_sel: DataSel, int_sel: IntSel, address: u64, context_id: u32) -> Packet<'static> {
    Packet::ReleaseMem(ReleaseMem {
        event: pm4::event::CACHE_FLUSH_AND_INV_TS,
        index: pm4::event_index::END_OF_PIPE,
        caches: 0,
        cache_policy: CachePolicy::Lru,
        update_status: false,
        scalar_invalidate: false,
        destination: ReleaseDestination::Memory,
        int_sel,
        data_sel,
        address,
        value: 0x1122_3344_5566_7788,
        context_id,
    })
}

fn copy(source: CopySource, destination: Destination, wide: bool) -> Packet<'static> {
    Packet::CopyData(CopyData {
        source,
        destination,
        wide,
        confirm: true,
        source_policy: CachePolicy::Lru,
        destination_policy: CachePolicy::Lru,
    })
}

#[test]
fn release_mem_writes_what_it_selects_and_interrupts_when_it_says() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    array.fill(0, &[0xff; 64]);
    let before = machine.gpus.clock(0);
    queue.submit_packets(&[
        release(DataSel::None, IntSel::None, array.va, 10),
        release(DataSel::Low32, IntSel::ConfirmOnly, array.va + 8, 11),
        release(DataSel::All64, IntSel::AfterWriteConfirm, array.va + 16, 12),
        release(DataSel::GpuClock, IntSel::Unconditional, array.va + 24, 13),
        release(DataSel::None, IntSel::Only, 0, 14),
    ]);
    queue.finish();
    let after = machine.gpus.clock(0);
    let words: [u64; 4] = std::array::from_fn(|index| array.u64(index * 8).load(Ordering::SeqCst));
    assert_eq!(words[..3], [u64::MAX, 0xffff_ffff_5566_7788, 0x1122_3344_5566_7788]);
    assert!((before..=after).contains(&words[3]), "{before} {} {after}", words[3]);
    assert_eq!(*machine.driver.events.lock(), [12, 13, 14]);
}

#[test]
fn queues_wait_for_each_other() {
    let machine = Machine::new();
    let (first, second) = (Ring::new(&machine, 1), Ring::new(&machine, 2));
    let (array, done) = (machine.buffer(4096, DATA), machine.signal(1));
    for round in 0..200 {
        first.submit_packets(&[wait_for(array.va, 2 * round), write_data(array.va, &[2 * round + 1])]);
        second.submit_packets(&[
            wait_for(array.va, 2 * round + 1),
            pm4::signal(array.va, u64::from(2 * round + 2), Width::Bits32),
        ]);
    }
    second.submit_packets(&[completes(&done)]);
    done.wait_zero();
    assert_eq!(dword(&array, 0), 400);
}

#[test]
fn write_data_goes_to_memory_in_a_row_or_to_one_place() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    let long: Vec<u32> = (1..=100).collect();
    let Packet::WriteData(row) = write_data(array.va, &long) else { unreachable!() };
    queue.submit_packets(&[
        Packet::WriteData(row),
        Packet::WriteData(WriteData {
            destination: Destination::L2 { address: array.va + 1024 },
            increment: false,
            ..row
        }),
    ]);
    queue.finish();
    assert_eq!([0, 99, 100].map(|index| dword(&array, index)), [1, 100, 0]);
    assert_eq!([256, 257].map(|index| dword(&array, index)), [100, 0]);
}

#[test]
fn copy_data_moves_words_between_memory_registers_clock_and_packet() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    array.u64(0).store(0xaaaa_bbbb_cccc_dddd, Ordering::SeqCst);
    let place = |offset| Destination::Memory { address: array.va + offset };
    let source = CopySource::Memory { address: array.va };
    let user = reg::COMPUTE_USER_DATA_0 + 3;
    let before = machine.gpus.clock(0);
    queue.submit_packets(&[
        copy(source, place(8), false),
        copy(source, place(16), true),
        copy(source, Destination::Register { register: user }, true),
        copy(CopySource::Register { register: user }, place(24), true),
        copy(CopySource::Register { register: user + 1 }, place(32), false),
        copy(CopySource::Immediate { value: 0x5555_6666_7777_8888 }, place(40), true),
        copy(CopySource::Immediate { value: 0x5555_6666_7777_8888 }, place(48), false),
        copy(CopySource::GpuClock, place(56), true),
        copy(CopySource::Register { register: 0x1234 }, place(0), true),
    ]);
    queue.finish();
    let after = machine.gpus.clock(0);
    let words: [u64; 8] = std::array::from_fn(|index| array.u64(index * 8).load(Ordering::SeqCst));
    assert_eq!(
        words[..7],
        [
            0,
            0xcccc_dddd,
            0xaaaa_bbbb_cccc_dddd,
            0xaaaa_bbbb_cccc_dddd,
            0xaaaa_bbbb,
            0x5555_6666_7777_8888,
            0x7777_8888,
        ]
    );
    assert!((before..=after).contains(&words[7]));
}

#[test]
fn registers_are_set_by_every_packet_that_can_and_others_swallow() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    let read = |register, offset| {
        copy(CopySource::Register { register }, Destination::Memory { address: array.va + offset }, false)
    };
    let Packet::WriteData(write) = write_data(0, &[7, 8]) else { unreachable!() };
    let to =
        |register| Packet::WriteData(WriteData { destination: Destination::Register { register }, ..write });
    queue.submit_packets(&[
        Packet::SetShReg { register: reg::COMPUTE_RESTART_X, values: &[1, 2, 3] },
        Packet::SetShReg { register: reg::COMPUTE_USER_DATA_0 + 15, values: &[4, 5, 6] },
        Packet::SetUconfigReg { register: 0xC200, values: &[1] },
        to(reg::COMPUTE_PGM_LO),
        to(0x3_0000),
        read(reg::COMPUTE_RESTART_Z, 0),
        read(reg::COMPUTE_USER_DATA_0 + 15, 4),
        read(reg::COMPUTE_USER_DATA_0 + 16, 8),
        read(reg::COMPUTE_PGM_HI, 12),
        read(0x3_0000, 16),
    ]);
    queue.finish();
    assert_eq!([0, 1, 2, 3, 4].map(|index| dword(&array, index)), [3, 4, 0, 8, 0]);
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn flush_of_the_host_path_is_done_at_once_and_other_registers_read_as_zero() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let wait = |target, function, reference| {
        Packet::WaitRegMem(WaitRegMem {
            target,
            function,
            reference,
            mask: u32::MAX,
            poll_interval: 4,
            cache_policy: CachePolicy::Lru,
            offload: false,
        })
    };
    let user = reg::COMPUTE_USER_DATA_0;
    queue.submit_packets(&[
        // Flushes of the host data path, wherever a chip has their registers.
        wait(WaitTarget::Request { request: 0xE26, done: 0xE27 }, Compare::GreaterEqual, u32::MAX),
        wait(WaitTarget::Request { request: 0x106, done: 0x107 }, Compare::GreaterEqual, u32::MAX),
        wait(WaitTarget::Register { register: 0x100 }, Compare::Equal, 0),
        wait(WaitTarget::Request { request: user, done: user }, Compare::Equal, 5),
    ]);
    queue.finish();
    let done = machine.signal(1);
    queue.submit_packets(&[
        wait(WaitTarget::Register { register: 0x100 }, Compare::Equal, 1),
        completes(&done),
    ]);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(2));
        queue.stop();
        queue.start();
    }
    assert_eq!(done.value(), 1, "it waits for ever");
    let since = Instant::now();
    queue.destroy();
    assert!(since.elapsed() < Duration::from_millis(500));
    assert_eq!(*machine.driver.exceptions.lock(), []);
}
