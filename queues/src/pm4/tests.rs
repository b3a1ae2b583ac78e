// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets against the streams of real clients, against hand-written words, and against themselves.

mod dispatch;
mod inverse;
mod stream;

use super::*;

/// The words of packets, one behind the other.
fn encoded(packets: &[Packet<'_>]) -> Vec<u32> {
    let mut out = Vec::new();
    for packet in packets {
        packet.encode(&mut out).unwrap();
    }
    out
}

/// Every packet of a stream, which must decode to its end.
fn decoded(mut stream: &[u32]) -> Vec<Packet<'_>> {
    let mut packets = Vec::new();
    while !stream.is_empty() {
        let (packet, dwords) = decode(stream).unwrap();
        packets.push(packet);
        stream = &stream[dwords..];
    }
    packets
}

/// At least one packet of every kind and form.
fn samples() -> Vec<Packet<'static>> {
    let release = ReleaseMem {
        event: event::CACHE_FLUSH_AND_INV_TS,
        index: event_index::SHADER_DONE,
        caches: release_gcr::SYSTEM,
        cache_policy: CachePolicy::Bypass,
        update_status: true,
        scalar_invalidate: true,
        destination: ReleaseDestination::L2,
        int_sel: IntSel::ConfirmOnly,
        data_sel: DataSel::None,
        address: 0x1_0000_0003,
        value: 0x1122_3344_5566_7788,
        context_id: 7,
    };
    let buffer = IndirectBuffer {
        address: 0x7f00_1234_5674,
        dwords: 0xf_ffff,
        chain: true,
        offload_polling: true,
        valid: false,
        vmid: 9,
        cache_policy: CachePolicy::Stream,
    };
    let copy = CopyData {
        source: CopySource::GpuClock,
        destination: Destination::Memory { address: 0x7f00_0000_1008 },
        wide: true,
        confirm: true,
        source_policy: CachePolicy::NoAllocate,
        destination_policy: CachePolicy::Stream,
    };
    let wait = WaitRegMem {
        target: WaitTarget::PreemptibleMemory { address: 0x7f00_0000_2004 },
        function: Compare::NotEqual,
        reference: 5,
        mask: 0xff,
        poll_interval: 0xffff,
        cache_policy: CachePolicy::Bypass,
        offload: true,
    };
    let write = WriteData {
        destination: Destination::L2 { address: 0x7f00_0000_3004 },
        increment: false,
        confirm: true,
        cache_policy: CachePolicy::Stream,
        data: &[1, 2, 3],
    };
    vec![
        Packet::Nop(Nop::Filler),
        Packet::Nop(Nop::Single),
        Packet::Nop(Nop::Payload(&[0xdead_beef, 1])),
        Packet::DispatchDirect { groups: [1, 2, 3], initiator: Initiator(0x8005) },
        Packet::DispatchIndirect { address: 0x7f00_0000_0010, initiator: Initiator(5) },
        Packet::PredExec(PredExec { dwords: 0x3fff, xccs: 0x81 }),
        Packet::WriteData(write),
        Packet::WriteData(WriteData { destination: Destination::Register { register: 0x3_ffff }, ..write }),
        Packet::WriteData(WriteData { destination: Destination::Memory { address: 4 }, ..write }),
        Packet::WaitRegMem(wait),
        Packet::WaitRegMem(WaitRegMem { target: WaitTarget::Register { register: 0x1234 }, ..wait }),
        wait_memory(0x1000, Compare::GreaterEqual, 1, u32::MAX),
        Packet::WaitRegMem(WaitRegMem {
            target: WaitTarget::Request { request: 0xE26, done: 0xE27 },
            ..wait
        }),
        Packet::IndirectBuffer(buffer),
        Packet::IndirectBuffer(IndirectBuffer::new(0x1000, 16)),
        Packet::CopyData(copy),
        Packet::CopyData(CopyData { source: CopySource::SystemClock, ..copy }),
        Packet::CopyData(CopyData { source: CopySource::AtomicReturn, ..copy }),
        Packet::CopyData(CopyData { source: CopySource::Immediate { value: u64::MAX }, ..copy }),
        Packet::CopyData(CopyData { source: CopySource::Register { register: 0xC200 }, wide: false, ..copy }),
        Packet::CopyData(CopyData {
            source: CopySource::PerfCounter { register: 0xD000 },
            destination: Destination::L2 { address: 8 },
            ..copy
        }),
        Packet::CopyData(CopyData {
            source: CopySource::Memory { address: 16 },
            destination: Destination::Register { register: 0x2E40 },
            ..copy
        }),
        Packet::CopyData(CopyData {
            source: CopySource::L2 { address: 4 },
            destination: Destination::PerfCounter { register: 1 },
            wide: false,
            ..copy
        }),
        cs_partial_flush(),
        Packet::EventWrite(EventWrite { event: 0x3f, index: 15, address: Some(0x7f00_0000_0008) }),
        Packet::ReleaseMem(release),
        signal(0x1000, 1, Width::Bits64),
        interrupt(0x2004, 3),
        timestamp(0x2008),
        memory_barrier(),
        Packet::AcquireMem(AcquireMem {
            caches: AcquireCaches::Coherency(coher::CODE),
            size: 1,
            base: 0xff_ffff_ffff_ffff,
            poll_interval: 10,
        }),
        Packet::SetShReg { register: reg::COMPUTE_USER_DATA_0, values: &[1, 2] },
        Packet::SetUconfigReg { register: 0xC200, values: &[0xe000_0000] },
    ]
}
