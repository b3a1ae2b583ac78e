// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: where packets end, what is refused, and what dumps say.

use super::super::*;
use super::{decoded, encoded, samples};
use crate::target::Target;

#[test]
fn vendor_packet_contents_are_those_of_amds_runtime() {
    for (name, wanted) in [
        ("gfx1100", &[0xC006_5800, 0, !0, 0xff, 0, 0, 0, 0x4381][..]),
        ("gfx1030", &[0xC006_5800, 0, !0, 0xff, 0, 0, 0, 0x4381]),
        ("gfx90a", &[0xC005_5800, 0x2884_0000, !0, 0xff, 0, 0, 0]),
    ] {
        let packet = code_invalidate(Target::by_name(name).unwrap());
        assert_eq!(encoded(&[packet]), wanted, "{name}");
        assert_eq!(decode(wanted), Ok((packet, wanted.len())), "{name}");
    }
    let jump = [0xC002_3F00, 0x5678_1000, 0x7f12, 0x0080_0010];
    assert_eq!(encoded(&[Packet::IndirectBuffer(IndirectBuffer::new(0x7f12_5678_1000, 16))]), jump);
}

#[test]
fn timestamp_and_wide_signal_are_dword_exact() {
    let words = encoded(&[timestamp(0x7f00_0000_1008), signal(0x7f00_0000_1000, u64::MAX, Width::Bits64)]);
    assert_eq!(words[..8], [0xC006_4900, 0x514, 0x6000_0000, 0x1008, 0x7f00, 0, 0, 0]);
    assert_eq!(words[8..], [0xC006_4900, 0x70F514, 0x4000_0000, 0x1000, 0x7f00, !0, !0, 0]);
    let narrow = encoded(&[signal(0x1000, 0x1_0000_0002, Width::Bits32)]);
    assert_eq!(narrow[5..7], [2, 0]);
}

#[test]
fn streams_decode_packet_by_packet() {
    let packets = samples();
    assert_eq!(decoded(&encoded(&packets)), packets);
}

#[test]
fn every_cut_is_reported_with_both_lengths() {
    for packet in samples() {
        let words = encoded(&[packet]);
        for available in 0..words.len() {
            let wanted = if available == 0 { 1 } else { words.len() };
            assert_eq!(decode(&words[..available]), Err(Pm4Error::Truncated { wanted, available }));
        }
    }
}

#[test]
fn words_that_are_no_packets_are_refused() {
    assert_eq!(decode(&[0; 4]), Err(Pm4Error::Kind { kind: 0, header: 0 }));
    assert_eq!(decode(&[0x4000_0000]), Err(Pm4Error::Kind { kind: 1, header: 0x4000_0000 }));
    assert_eq!(decode(&[0x8000_0002]), Err(Pm4Error::Kind { kind: 2, header: 0x8000_0002 }));
    assert_eq!(decode(&[!0; 4]), Err(Pm4Error::Opcode { opcode: 0xff, dwords: 0x4001 }));
    assert_eq!(decode(&[0xC003_5000]), Err(Pm4Error::Opcode { opcode: 0x50, dwords: 5 }));
    for header in 0..=u16::MAX {
        let stream = [0xC000_0000 | u32::from(header), 0];
        // With a body of one zero, three opcodes are whole packets and all others are refused.
        let opcode = (header >> 8).to_le_bytes()[0];
        let whole =
            header & 0xfd == 0 && [opcode::NOP, opcode::PRED_EXEC, opcode::EVENT_WRITE].contains(&opcode);
        assert_eq!(decode(&stream).is_ok(), whole, "{header:#x}");
    }
}

#[test]
fn header_accepts_the_compute_bit_and_nothing_else() {
    let plain = encoded(&[cs_partial_flush()]);
    assert_eq!(decode(&[plain[0] | 2, plain[1]]), Ok((cs_partial_flush(), 2)));
    assert_eq!(decode(&[NOP_SINGLE | 2]), Ok((Packet::Nop(Nop::Single), 1)));
    for bit in [0, 2, 3, 4, 5, 6, 7] {
        let header = plain[0] | 1 << bit;
        assert_eq!(decode(&[header, plain[1]]), Err(Pm4Error::Header { header, bits: 1 << bit }));
    }
}

#[test]
fn bodies_that_mean_nothing_are_refused() {
    let reserved = |packet, dword, bits| Pm4Error::Reserved { packet, dword, bits };
    let value = |packet, field, value| Pm4Error::Value { packet, field, value };
    let misaligned = |packet, address, align| Pm4Error::Misaligned { packet, address, align };
    let length = |packet, body, wanted| Pm4Error::Length { packet, body, wanted };
    for (words, wanted) in [
        (&[0xC001_4600, 7, 0][..], length("EVENT_WRITE", 2, "1 or 3")),
        (&[0xC000_4600, 0x8000_0407], reserved("EVENT_WRITE", 1, 0x8000_0000)),
        (&[0xC002_4600, 7, 4, 0], misaligned("EVENT_WRITE", 4, 8)),
        (&[0xC004_1500, 1, 1, 1, 5, 0], length("DISPATCH_DIRECT", 5, "4")),
        (&[0xC002_1600, 2, 0, 5], misaligned("DISPATCH_INDIRECT", 2, 4)),
        (&[0xC000_2300, 0x4000], reserved("PRED_EXEC", 1, 0x4000)),
        (&[0xC002_3700, 0x500, 0, 0], length("WRITE_DATA", 3, "4 or more")),
        (&[0xC003_3700, 0x400, 0, 0, 0], value("WRITE_DATA", "dst_sel", 4)),
        (&[0xC003_3700, 0x500, 1, 0, 0], misaligned("WRITE_DATA", 1, 4)),
        (&[0xC003_3700, 0, 1, 1, 0], reserved("WRITE_DATA", 3, 1)),
        (&[0xC005_3C00, 0x17, 0, 0, 0, 0, 4], value("WAIT_REG_MEM", "function", 7)),
        (&[0xC005_3C00, 0x55, 0, 0, 0, 0, 4], value("WAIT_REG_MEM", "operation", 1)),
        (&[0xC005_3C00, 0x25, 0, 0, 0, 0, 4], value("WAIT_REG_MEM", "mem_space", 2)),
        (&[0xC005_3C00, 0x115, 0, 0, 0, 0, 4], reserved("WAIT_REG_MEM", 1, 0x100)),
        (&[0xC005_3C00, 0x5, 8, 1, 0, 0, 4], reserved("WAIT_REG_MEM", 3, 1)),
        (&[0xC005_3C00, 0x15, 2, 1, 0, 0, 4], misaligned("WAIT_REG_MEM", 0x1_0000_0002, 4)),
        (&[0xC002_3F00, 2, 0, 1 << 23], misaligned("INDIRECT_BUFFER", 2, 4)),
        (&[0xC002_3F00, 0, 0, 1 << 31], reserved("INDIRECT_BUFFER", 3, 1 << 31)),
        (&[0xC004_4000, 0x503, 0, 0, 0, 0], value("COPY_DATA", "src_sel", 3)),
        (&[0xC004_4000, 0x305, 0, 0, 0, 0], value("COPY_DATA", "dst_sel", 3)),
        (&[0xC004_4000, 0x0001_0501, 4, 0, 0, 0], misaligned("COPY_DATA", 4, 8)),
        (&[0xC004_4000, 0x509, 0, 1, 0, 0], reserved("COPY_DATA", 3, 1)),
        (&[0xC004_4000, 5, 0, 0, 0, 1], reserved("COPY_DATA", 5, 1)),
        (&[0xC006_4900, 0x514, 4 << 29, 0, 0, 0, 0, 0], value("RELEASE_MEM", "data_sel", 4)),
        (&[0xC006_4900, 0x514, 5 << 29, 0, 0, 0, 0, 0], value("RELEASE_MEM", "data_sel", 5)),
        (&[0xC006_4900, 0x514, 5 << 24, 0, 0, 0, 0, 0], value("RELEASE_MEM", "int_sel", 5)),
        (&[0xC006_4900, 0x514, 2 << 16, 0, 0, 0, 0, 0], value("RELEASE_MEM", "dst_sel", 2)),
        (&[0xC006_4900, 0x554, 0, 0, 0, 0, 0, 0], reserved("RELEASE_MEM", 1, 0x40)),
        (&[0xC006_4900, 0x514, 2 << 29, 4, 0, 0, 0, 0], misaligned("RELEASE_MEM", 4, 8)),
        (&[0xC000_5800, 0], length("ACQUIRE_MEM", 1, "6 or 7")),
        (&[0xC007_5800, 0, 0, 0, 0, 0, 0, 0, 0], length("ACQUIRE_MEM", 8, "6 or 7")),
        (&[0xC006_5800, 1, 0, 0, 0, 0, 0, 0], reserved("ACQUIRE_MEM", 1, 1)),
        (&[0xC006_5800, 0, 0, 0, 0, 0, 0, 0x8_0000], reserved("ACQUIRE_MEM", 7, 0x8_0000)),
        (&[0xC005_5800, 0, 0, 0, 0, 0x100_0000, 0], reserved("ACQUIRE_MEM", 5, 0x100_0000)),
        (&[0xC001_7600, 0x1_0000, 0], reserved("SET_SH_REG", 1, 0x1_0000)),
        (
            &[0xC000_7600, 0x240],
            Pm4Error::Registers {
                packet: "SET_SH_REG",
                register: 0x2E40,
                count: 0,
                first: 0x2C00,
                end: 0x3000,
            },
        ),
        (
            &[0xC002_7600, 0x3ff, 1, 2],
            Pm4Error::Registers {
                packet: "SET_SH_REG",
                register: 0x2FFF,
                count: 2,
                first: 0x2C00,
                end: 0x3000,
            },
        ),
        (
            &[0xC001_7900, 0x4000, 1],
            Pm4Error::Registers {
                packet: "SET_UCONFIG_REG",
                register: 0x1_0000,
                count: 1,
                first: 0xC000,
                end: 0x1_0000,
            },
        ),
    ] {
        assert_eq!(decode(words), Err(wanted), "{words:x?}");
        assert!(!wanted.to_string().is_empty());
    }
}

#[test]
fn values_that_do_not_fit_are_not_written() {
    let range = |packet, field, value, limit| Pm4Error::Range { packet, field, value, limit };
    let wide_buffer = IndirectBuffer::new(0, 1 << 20);
    let far = AcquireMem { caches: AcquireCaches::Gcr(0), size: 0, base: 1 << 56, poll_interval: 0 };
    let acquire = |caches| Packet::AcquireMem(AcquireMem { caches, base: 0, ..far });
    let long = vec![0; 0x4000];
    let write = |destination, data| {
        Packet::WriteData(WriteData {
            destination,
            increment: true,
            confirm: true,
            cache_policy: CachePolicy::Lru,
            data,
        })
    };
    for (packet, wanted) in [
        (Packet::IndirectBuffer(wide_buffer), range("INDIRECT_BUFFER", "dwords", 1 << 20, 0xf_ffff)),
        (Packet::AcquireMem(far), range("ACQUIRE_MEM", "base", 1 << 56, (1 << 56) - 1)),
        (acquire(AcquireCaches::Gcr(1 << 19)), range("ACQUIRE_MEM", "gcr_cntl", 1 << 19, 0x7_ffff)),
        (
            acquire(AcquireCaches::Coherency(1 << 31)),
            range("ACQUIRE_MEM", "coher_cntl", 1 << 31, 0x7fff_ffff),
        ),
        (
            Packet::PredExec(PredExec { dwords: 0x4000, xccs: 1 }),
            range("PRED_EXEC", "dwords", 0x4000, 0x3fff),
        ),
        (
            Packet::EventWrite(EventWrite { event: 0x40, index: 0, address: None }),
            range("EVENT_WRITE", "event", 0x40, 0x3f),
        ),
        (Packet::Nop(Nop::Payload(&long)), Pm4Error::TooLong { packet: "NOP", body: 0x4000, limit: 0x3fff }),
        (Packet::Nop(Nop::Payload(&[])), Pm4Error::Length { packet: "NOP", body: 0, wanted: "1 or more" }),
        (
            write(Destination::Memory { address: 0 }, &long),
            Pm4Error::TooLong { packet: "WRITE_DATA", body: 0x4003, limit: 0x4000 },
        ),
        (
            write(Destination::Register { register: 1 << 18 }, &[1]),
            range("WRITE_DATA", "register", 1 << 18, (1 << 18) - 1),
        ),
        (
            write(Destination::PerfCounter { register: 0 }, &[1]),
            Pm4Error::Value { packet: "WRITE_DATA", field: "dst_sel", value: 4 },
        ),
        (
            Packet::SetShReg { register: 0xC000, values: &[1] },
            Pm4Error::Registers {
                packet: "SET_SH_REG",
                register: 0xC000,
                count: 1,
                first: 0x2C00,
                end: 0x3000,
            },
        ),
        (signal(4, 0, Width::Bits64), Pm4Error::Misaligned { packet: "RELEASE_MEM", address: 4, align: 8 }),
    ] {
        let mut out = vec![7];
        assert_eq!(packet.encode(&mut out), Err(wanted));
        assert_eq!(out, [7]);
    }
}

#[test]
fn longest_packets_come_back() {
    let data = vec![0x5555_aaaa; 0x3ffd];
    let write = Packet::WriteData(WriteData {
        destination: Destination::Memory { address: 0x1000 },
        increment: true,
        confirm: false,
        cache_policy: CachePolicy::Lru,
        data: &data,
    });
    let words = encoded(&[write]);
    assert_eq!((words[0], words.len()), (0xFFFF_3700, 0x4001));
    assert_eq!(decode(&words), Ok((write, 0x4001)));
}

#[test]
fn nops_fill_exactly_and_with_few_packets() {
    let mut out = Vec::new();
    for dwords in (1..=600).chain(0x3ff0..=0x4010).chain(0x7ff0..=0x8010).chain((601..=40000).step_by(83)) {
        out.clear();
        push_nops(&mut out, dwords);
        assert_eq!(out.len(), dwords);
        let packets = decoded(&out);
        assert!(packets.iter().all(|packet| matches!(packet, Packet::Nop(_))));
        assert_eq!(packets.len(), dwords.div_ceil(0x4000), "{dwords}");
    }
    out.clear();
    push_nops(&mut out, 0);
    assert!(out.is_empty());
    push_nops(&mut out, 1);
    assert_eq!(out, [NOP_SINGLE]);
}

#[test]
fn comparisons_are_unsigned() {
    let mask = 0xffff_0000;
    for (function, below, same, above) in [
        (Compare::Always, true, true, true),
        (Compare::Less, true, false, false),
        (Compare::LessEqual, true, true, false),
        (Compare::Equal, false, true, false),
        (Compare::NotEqual, true, false, true),
        (Compare::GreaterEqual, false, true, true),
        (Compare::Greater, false, false, true),
    ] {
        let Packet::WaitRegMem(wait) = wait_memory(0, function, 0x7fff_0000, mask) else { unreachable!() };
        let found = [0x7ffe_ffff, 0x7fff_ffff, 0x8000_0000].map(|value| wait.holds(value));
        assert_eq!(found, [below, same, above], "{function}");
    }
}

#[test]
fn addresses_are_those_of_the_public_headers() {
    // gc_11_0_0_offset.h counts from segment 0 at 0x1260.
    for (register, offset) in [
        (reg::COMPUTE_DISPATCH_INITIATOR, 0x1ba0),
        (reg::COMPUTE_START_X, 0x1ba4),
        (reg::COMPUTE_PGM_LO, 0x1bac),
        (reg::COMPUTE_PGM_RSRC1, 0x1bb2),
        (reg::COMPUTE_RESOURCE_LIMITS, 0x1bb5),
        (reg::COMPUTE_STATIC_THREAD_MGMT_SE0, 0x1bb6),
        (reg::COMPUTE_TMPRING_SIZE, 0x1bb8),
        (reg::COMPUTE_STATIC_THREAD_MGMT_SE2, 0x1bb9),
        (reg::COMPUTE_RESTART_X, 0x1bbb),
        (reg::COMPUTE_USER_DATA_0, 0x1be0),
    ] {
        assert_eq!(register, 0x1260 + offset);
        assert!(reg::COMPUTE_RANGE.contains(&register) && reg::SH_RANGE.contains(&register));
        assert!(reg::name(register).is_some());
    }
}

#[test]
fn dump() {
    let lines: Vec<String> = samples().iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(lines.join("\n"));
}
