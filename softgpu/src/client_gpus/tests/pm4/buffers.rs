// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring itself, indirect buffers and predication: which dwords are executed, and in which order.

use queues::aql::Pm4Ib;
use queues::pm4::{IndirectBuffer, PredExec};

use super::*;

/// A buffer of packets in memory, with its dwords.
fn program(machine: &Machine, packets: &[Packet<'_>]) -> (Buffer, u32) {
    let words = encode(packets);
    let buffer = machine.buffer(words.len() * 4, DATA);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    buffer.fill(0, &bytes);
    (buffer, u32::try_from(words.len()).unwrap())
}

fn call((buffer, dwords): &(Buffer, u32)) -> Packet<'static> {
    Packet::IndirectBuffer(IndirectBuffer::new(buffer.va, *dwords))
}

fn jump((buffer, dwords): &(Buffer, u32)) -> Packet<'static> {
    Packet::IndirectBuffer(IndirectBuffer { chain: true, ..IndirectBuffer::new(buffer.va, *dwords) })
}

#[test]
fn indirect_buffers_return_to_where_they_were_called() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    // Each step waits for what the one before it wrote: in any other order it waits for ever.
    let inner = program(&machine, &[wait_for(array.va, 1), write_data(array.va, &[2])]);
    let empty = (machine.buffer(4096, DATA), 0);
    let outer = program(
        &machine,
        &[
            wait_for(array.va, 0),
            write_data(array.va, &[1]),
            call(&empty),
            call(&inner),
            wait_for(array.va, 2),
            write_data(array.va, &[3]),
        ],
    );
    queue.submit_packets(&[call(&outer), wait_for(array.va, 3), write_data(array.va, &[4])]);
    queue.finish();
    assert_eq!(dword(&array, 0), 4);
}

#[test]
fn chained_buffer_does_not_return() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    let second = program(&machine, &[write_data(array.va + 4, &[2])]);
    let first =
        program(&machine, &[write_data(array.va, &[1]), jump(&second), write_data(array.va + 8, &[3])]);
    queue.submit_packets(&[call(&first), write_data(array.va + 12, &[4])]);
    queue.finish();
    assert_eq!([0, 1, 2, 3].map(|index| dword(&array, index)), [1, 2, 0, 4]);
}

#[test]
fn third_level_of_buffers_raises() {
    let machine = Machine::new();
    let (bad, good) = (Ring::new(&machine, 1), Ring::new(&machine, 2));
    let third = program(&machine, &[pm4::cs_partial_flush()]);
    let second = program(&machine, &[call(&third)]);
    let first = program(&machine, &[call(&second)]);
    good.submit_packets(&[call(&second)]);
    good.finish();
    bad.submit_packets(&[call(&first)]);
    assert_eq!(machine.exceptions(), [(1, ExceptionCode::PacketUnsupported)]);
    good.assert_alive();
}

#[test]
fn endless_chain_of_empty_buffers_leaves_when_asked() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let page = machine.buffer(4096, DATA);
    let loops = (page, 4);
    let words = encode(&[jump(&loops)]);
    loops.0.fill(0, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    queue.submit_packets(&[call(&loops)]);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(2));
        let since = Instant::now();
        queue.stop();
        assert!(since.elapsed() < Duration::from_millis(500), "{:?}", since.elapsed());
        queue.start();
    }
    assert_eq!(queue.read_pointer(), 0);
    queue.destroy();
}

#[test]
fn predication_skips_what_is_for_other_xccs() {
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    // One WRITE_DATA of one dword is five dwords.
    let only = |xccs| Packet::PredExec(PredExec { dwords: 5, xccs });
    let packets = [
        only(1),
        write_data(array.va, &[1]),
        only(2),
        write_data(array.va + 4, &[1]),
        only(0),
        write_data(array.va + 8, &[1]),
        only(0xff),
        write_data(array.va + 12, &[1]),
    ];
    queue.submit_packets(&packets);
    queue.finish();
    assert_eq!([0, 1, 2, 3].map(|index| dword(&array, index)), [1, 0, 0, 1]);
    array.u32(0).store(0, Ordering::SeqCst);
    let buffer = program(&machine, &packets);
    queue.submit_packets(&[call(&buffer)]);
    queue.finish();
    assert_eq!([0, 1, 2, 3].map(|index| dword(&array, index)), [1, 0, 0, 1]);
    // What is to be skipped may come later than the packet that says so.
    queue.submit_packets(&[only(2)]);
    queue.finish();
    queue.submit_packets(&[write_data(array.va + 16, &[1])]);
    queue.finish();
    queue.submit_packets(&[write_data(array.va + 20, &[1])]);
    queue.finish();
    assert_eq!([4, 5].map(|index| dword(&array, index)), [0, 1]);
}

#[test]
fn aql_queue_executes_an_indirect_buffer() {
    let machine = Machine::new();
    let (queue, done) = (machine.queue(1), machine.signal(1));
    let array = machine.buffer(4096, DATA);
    let kernel = machine.kernel(COUNT);
    let mut words = launch(&kernel, array.va, 2);
    words.extend(encode(&[wait_for(array.va + 4, 1), write_data(array.va + 256, &[9])]));
    let buffer = machine.buffer(4096, DATA);
    buffer.fill(0, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    let packet = Pm4Ib::new(buffer.va, u32::try_from(words.len()).unwrap());
    queue.submit(queues::aql::Packet::Pm4Ib(Pm4Ib { completion_signal: done.handle(), ..packet }));
    done.wait_zero();
    assert_eq!([0, 63, 64].map(|index| dword(&array, index)), [1, 1, 9]);
    assert_eq!(queue.read_index(), 1);
}

#[test]
fn thousands_of_packets_wrap_around_a_small_ring() {
    const PACKETS: u32 = 6000;
    let machine = Machine::new();
    let queue = Ring::new(&machine, 1);
    let array = machine.buffer(4096, DATA);
    for count in 0..PACKETS {
        let mut words = Vec::new();
        // Lengths that share no factor with the ring's, so that packets of all kinds straddle its end.
        pm4::push_nops(&mut words, usize::try_from(count * 7 % 61).unwrap());
        words.extend(encode(&[wait_for(array.va, count), write_data(array.va, &[count + 1, !count, count])]));
        queue.submit(&words);
    }
    queue.finish();
    assert!(queue.put.get() > 100 * queue.size, "{} dwords", queue.put.get());
    assert_eq!([0, 1, 2].map(|index| dword(&array, index)), [PACKETS, !(PACKETS - 1), PACKETS - 1]);
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn packet_that_is_half_written_waits_for_its_rest() {
    let machine = Machine::new();
    let (queue, done) = (Ring::new(&machine, 1), machine.signal(1));
    let words = encode(&[completes(&done)]);
    for word in &words[..words.len() - 1] {
        queue.submit(&[*word]);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!((done.value(), queue.read_pointer()), (1, 0));
    }
    queue.submit(&words[words.len() - 1..]);
    done.wait_zero();
    assert_eq!(*machine.driver.exceptions.lock(), []);
}

#[test]
fn write_pointer_counts_without_a_doorbell_only_when_the_queue_starts() {
    let machine = Machine::new();
    let (queue, done) = (Ring::new(&machine, 1), machine.signal(1));
    queue.finish();
    queue.stop();
    queue.write(&encode(&[completes(&done)]));
    queue.pointers.u64(56).store(queue.put.get(), Ordering::SeqCst);
    queue.start();
    done.wait_zero();
    let later = machine.signal(1);
    queue.write(&encode(&[completes(&later)]));
    queue.pointers.u64(56).store(queue.put.get(), Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(later.value(), 1);
    queue.ring();
    later.wait_zero();
}
