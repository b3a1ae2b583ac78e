// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of real clients, dword by dword, and every way to be wrong.

use super::*;
use crate::target::{TARGETS, Target};

const V6: Generation = Generation::V6;
const V7: Generation = Generation::V7;

/// The texts of a stream's packets, which must encode to the stream again.
fn read(stream: &[u32], generation: Generation) -> Vec<String> {
    let (mut texts, mut again) = (Vec::new(), Vec::new());
    for (start, packet) in packets(stream, generation) {
        assert_eq!(start, again.len());
        let packet = packet.unwrap();
        packet.encode(generation, &mut again).unwrap();
        assert_eq!(again.len(), start + packet.dwords());
        texts.push(packet.to_string());
    }
    assert_eq!(again, stream);
    texts
}

fn write(packets: &[Packet<'_>], generation: Generation) -> Vec<u32> {
    let mut out = Vec::new();
    for packet in packets {
        packet.encode(generation, &mut out).unwrap();
    }
    out
}

fn refusal(stream: &[u32], generation: Generation) -> SdmaError {
    decode(stream, generation).unwrap_err()
}

/// tinygrad 0.14.0: wait, copy 4 MiB, timeline fence, mailbox fence, trap, and the ring's zero tail.
#[rustfmt::skip]
const TINYGRAD: [u32; 32] = [
    0xd000_0008, 0x0000_1000, 0x7f00, 3, 0xffff_ffff, 0x0fff_0004,
    0x0000_020d, 0x0000_1008, 0x7f00,
    0x0000_0001, 0x003f_ffff, 0, 0x0020_0000, 0x7f01, 0x0040_0000, 0x7f02,
    0x0003_0005, 0x0000_1000, 0x7f00, 4,
    0x0003_0005, 0x0000_2010, 0x7f00, 5,
    0x0000_0006, 5,
    0x0000_0002, 0x0000_3000, 0x7f00, 0, 9,
    0,
];

#[test]
fn tinygrads_stream() {
    assert_eq!(
        read(&TINYGRAD, V6),
        [
            "poll memory 0x7f0000001000 & 0xffffffff >= 0x3 interval=4 retry=4095",
            "timestamp address=0x7f0000001008",
            "copy bytes=4194304 src=0x7f0100200000 dst=0x7f0200400000",
            "fence address=0x7f0000001000 value=0x4 mtype=3",
            "fence address=0x7f0000002010 value=0x5 mtype=3",
            "trap event=5",
            "write dst=0x7f0000003000 dwords=1 first=0x9",
            "nop skip=0",
        ]
    );
}

#[test]
fn tinygrads_stream_is_what_our_helpers_write() {
    let mut out = write(
        &[
            Packet::PollRegMem(PollRegMem::memory(0x7f00_0000_1000, Compare::GreaterEqual, 3)),
            Packet::Timestamp { address: 0x7f00_0000_1008 },
        ],
        V6,
    );
    copy(&mut out, V6, 0x7f02_0040_0000, 0x7f01_0020_0000, 4 << 20).unwrap();
    let mtype = V6.uncached_mtype();
    let [mailbox, trap] = interrupt(V6, 0x7f00_0000_2010, 5);
    let fence = Packet::Fence(Fence { address: 0x7f00_0000_1000, value: 4, mtype });
    out.extend(write(&[fence, mailbox, trap, Packet::Write { dst: 0x7f00_0000_3000, data: &[9] }], V6));
    push_nops(&mut out, 1);
    assert_eq!(out, TINYGRAD);
}

#[test]
fn rocrs_stream() {
    let poll = |address| Packet::PollRegMem(PollRegMem::memory(address, Compare::Equal, 0));
    let mut out = write(
        &[poll(0x1_0000_000c), poll(0x1_0000_0008), Packet::HdpFlush, Packet::Gcr(Gcr::invalidate())],
        V6,
    );
    copy(&mut out, V6, 0x2_0000_0000, 0x3_0000_0001, 100).unwrap();
    out.extend(write(&[Packet::Gcr(Gcr::write_back()), signal_decrement(0x1_0000_0048)], V6));
    #[rustfmt::skip]
    let wanted = [
        0xb000_0008, 0x0000_000c, 1, 0, 0xffff_ffff, 0x0fff_0004,
        0xb000_0008, 0x0000_0008, 1, 0, 0xffff_ffff, 0x0fff_0004,
        0x0000_0008, 0, 0x8000_0000, 0, 0, 0,
        0x0000_0111, 0, 0xc3c0_0000, 0, 0,
        0x0000_0001, 99, 0, 1, 3, 0, 2,
        0x0000_0111, 0, 0x8040_0000, 0, 0,
        0x5e00_000a, 0x0000_0048, 1, 0xffff_ffff, 0xffff_ffff, 0, 0, 0,
    ];
    assert_eq!(out, wanted);
    assert_eq!(read(&out, V6)[2..4], ["hdp_flush", "gcr base=0x0 limit=0x0 control=0xc3c0"]);
    assert!(read(&out, V6)[6].starts_with("atomic add64 address=0x100000048 source=0xffffffffffffffff"));
}

#[test]
fn gfx900_pads_submissions_with_one_nop() {
    // ROCr fills a submission up to 256 bytes: (dwords - 1) << 16, then zeros.
    let mut out = vec![0x0000_0006, 7];
    push_nops(&mut out, 62);
    assert_eq!(out[2], 61 << 16);
    assert_eq!(read(&out, Generation::V4), ["trap event=7", "nop skip=61"]);
}

#[test]
fn what_a_nop_skips_is_kept() {
    let stream = [0x0002_0000, 0xdead_beef, 6, 0x0000_0006, 1];
    assert_eq!(decode(&stream, V6), Ok((Packet::Nop { skipped: &[0xdead_beef, 6] }, 3)));
    assert_eq!(read(&stream, V6), ["nop skip=2", "trap event=1"]);
}

#[test]
fn rectangle_fields_are_where_the_engine_wants_them() {
    let rect = CopyRect {
        element_log2: 2,
        src: RectSide { address: 0x1_0000_0004, offset: [1, 2, 3], pitch: 0x80, slice_pitch: 0x4000 },
        dst: RectSide { address: 0x2_0000_0008, offset: [4, 5, 6], pitch: 1 << 19, slice_pitch: 1 << 28 },
        extent: [1 << 14, 16, 2],
    };
    let out = write(&[Packet::CopyRect(rect)], V6);
    #[rustfmt::skip]
    assert_eq!(out, [
        0x4000_0401,
        4, 1, 2 << 16 | 1, 0x7f << 13 | 3, 0x3fff,
        8, 2, 5 << 16 | 4, 0x7_ffff << 13 | 6, 0x0fff_ffff,
        15 << 16 | 0x3fff, 1,
    ]);
    assert_eq!(
        read(&out, V6),
        ["copy_rect 16384x16x2 of 4 B src=0x100000004+(1,2,3) pitch 128 slice 16384 \
          dst=0x200000008+(4,5,6) pitch 524288 slice 268435456"]
    );
    let deep = Packet::CopyRect(CopyRect { extent: [1, 1, 1 << 13], ..rect });
    assert_eq!(write(&[deep], Generation::V5)[12], 0x1fff);
    let refused = deep.encode(Generation::V4, &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, SdmaError::OutOfRange { value: 0x2000, most: 0x800, .. }), "{refused}");
    // The z offset of version 4 has 11 bits, the two above it belong to nothing.
    let mut stream = out;
    stream[4] |= 1 << 12;
    assert!(decode(&stream, V6).is_ok());
    let dword = 4;
    let error = refusal(&stream, Generation::V4);
    assert_eq!(error, SdmaError::Reserved { packet: "rectangle copy", dword, bits: 1 << 12 });
}

#[test]
fn rectangle_of_sdma_7_has_fields_of_other_widths() {
    let rect = CopyRect {
        element_log2: 2,
        src: RectSide { address: 0x1_0000_0004, offset: [1, 2, 3], pitch: 0x80, slice_pitch: 0x4000 },
        dst: RectSide {
            address: 0x2_0000_0008,
            offset: [0xffff, 0x8000, 0x3fff],
            pitch: 1 << 16,
            slice_pitch: 1 << 32,
        },
        extent: [1 << 16, 1 << 15, 1 << 14],
    };
    let out = write(&[Packet::CopyRect(rect)], V7);
    #[rustfmt::skip]
    assert_eq!(out, [
        0x4000_0401,
        4, 1, 2 << 16 | 1, 0x7f << 16 | 3, 0x3fff,
        8, 2, 0x8000_ffff, 0xffff_3fff, 0xffff_ffff,
        0x7fff_ffff, 0x3fff,
    ]);
    assert_eq!(decode(&out, V7), Ok((Packet::CopyRect(rect), 13)));
    // The same dwords mean something else, or nothing, to an older engine.
    assert!(matches!(refusal(&out, V6), SdmaError::Reserved { .. }));
    // Cache policies and what is between the fields.
    for (dword, reserved) in [(4, 3 << 14), (9, 3 << 14), (12, 0xffff_c000_u32)] {
        for bit in (0..32).filter(|bit| reserved >> bit & 1 != 0) {
            let mut stream = out.clone();
            stream[dword] |= 1 << bit;
            let bits = 1 << bit;
            assert_eq!(refusal(&stream, V7), SdmaError::Reserved { packet: "rectangle copy", dword, bits });
        }
    }
    let wide = RectSide { pitch: (1 << 16) + 1, ..rect.src };
    let refused = Packet::CopyRect(CopyRect { src: wide, ..rect }).encode(V7, &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, SdmaError::OutOfRange { value: 0x1_0001, most: 0x1_0000, .. }), "{refused}");
    let deep = RectSide { slice_pitch: (1 << 32) + 1, ..rect.src };
    let refused = Packet::CopyRect(CopyRect { src: deep, ..rect }).encode(V7, &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, SdmaError::OutOfRange { most: 0x1_0000_0000, .. }), "{refused}");
}

#[test]
fn sdma_7_has_all_other_packets_of_sdma_6_and_none_for_compressed_memory() {
    assert_eq!(read(&TINYGRAD, V7), read(&TINYGRAD, V6));
    // The kernel's copy has a dword more behind the header's bit 19, its fill has bit 16.
    for (stream, bits) in
        [([0x0008_0001, 3, 0, 0, 1, 0, 2, 0], 1 << 19), ([0x0001_000b, 0, 1, 7, 3, 0, 0, 0], 1 << 16)]
    {
        assert!(
            matches!(refusal(&stream, V7), SdmaError::Reserved { dword: 0, bits: found, .. } if found == bits)
        );
    }
}

#[test]
fn both_spellings_of_a_fill_mean_the_same_bytes() {
    // kfdtest writes bytes - 1, ROCr (dwords - 1) * 4; both say dword elements.
    for (count, spelling) in [(0xfff, FillCount::LastByte), (0xffc, FillCount::LastElement)] {
        let stream = [0x8000_000b, 0x1000, 2, 0xabcd_abcd, count];
        let (packet, _) = decode(&stream, V6).unwrap();
        let Packet::ConstFill(fill) = packet else { panic!("{packet}") };
        assert_eq!((fill.bytes, fill.element_bytes(), fill.count), (0x1000, 4, spelling));
        assert_eq!(read(&stream, V6), ["fill dst=0x200001000 bytes=4096 value=0xabcdabcd element=4 B"]);
    }
    for count in [0xffd, 0xffe] {
        let error = refusal(&[0x8000_000b, 0x1000, 2, 0, count], V6);
        assert!(matches!(error, SdmaError::Unaligned { field: "bytes", alignment: 4, .. }), "{error}");
    }
    // Bytes have one spelling only.
    let (packet, _) = decode(&[0x0000_000b, 0x1001, 2, 7, 0], V6).unwrap();
    let Packet::ConstFill(fill) = packet else { panic!("{packet}") };
    assert_eq!((fill.bytes, fill.dst, fill.count), (1, 0x2_0000_1001, FillCount::LastByte));
    assert_eq!(
        refusal(&[0xc000_000b, 0, 0, 0, 0], V6).to_string(),
        "The element size code of an SDMA constant fill packet must be 0 to 2, found 3"
    );
}

#[test]
fn a_gcr_range_keeps_all_its_bits() {
    let gcr = Gcr { base: 0xffff_ffff_ff80, limit: 0x1234_5678_9a80, control: 0x7_ffff };
    let out = write(&[Packet::Gcr(gcr)], Generation::V5);
    assert_eq!(out, [0x111, 0xffff_ff80, 0xffff_ffff, 0x5678_9a87, 0x1234]);
    assert_eq!(decode(&out, Generation::V5), Ok((Packet::Gcr(gcr), 5)));
    for bad in [Gcr { base: 64, ..gcr }, Gcr { limit: 1 << 48, ..gcr }, Gcr { control: 1 << 19, ..gcr }] {
        assert!(Packet::Gcr(bad).encode(V6, &mut Vec::new()).is_err(), "{bad}");
    }
    let unknown = SdmaError::UnknownOperation { op: 17, sub_op: 1 };
    assert_eq!(refusal(&out, Generation::V4_4), unknown);
    assert_eq!(Packet::Gcr(gcr).encode(Generation::V4, &mut Vec::new()), Err(unknown));
}

#[test]
fn widths_of_counts_follow_the_generation() {
    for generation in Generation::ALL {
        let wide = generation.copy_count_bits() == 30;
        let stream = [1, 0x3fff_ffff, 0, 0, 0, 0, 0];
        match decode(&stream, generation) {
            Ok((Packet::CopyLinear(copy), 7)) => assert!(wide && copy.bytes == 1 << 30),
            other => {
                let bits = 0x3fc0_0000;
                assert_eq!(other, Err(SdmaError::Reserved { packet: "linear copy", dword: 1, bits }));
                assert!(!wide);
            }
        }
        assert!(max_copy_bytes(generation) <= 1 << generation.copy_count_bits());
        assert!(MAX_FILL_BYTES <= 1 << generation.fill_count_bits());
        assert_eq!(decode(&[0x0003_0005, 0, 0, 0], generation).is_ok(), generation.has_gcr());
    }
}

#[test]
fn targets_have_the_engines_that_clients_assume() {
    let of = |name| Generation::of(Target::by_name(name).unwrap());
    for (name, generation) in [
        ("gfx900", Some(Generation::V4)),
        ("gfx908", Some(Generation::V4)),
        ("gfx90a", Some(Generation::V4_4)),
        ("gfx942", Some(Generation::V4_4)),
        ("gfx1010", Some(Generation::V5)),
        ("gfx1030", Some(Generation::V5_2)),
        ("gfx1100", Some(Generation::V6)),
        ("gfx1151", Some(Generation::V6)),
        ("gfx1200", Some(Generation::V7)),
        ("gfx1201", Some(Generation::V7)),
    ] {
        assert_eq!(of(name), generation, "{name}");
    }
    assert!(TARGETS.iter().all(|target| target.sdma.is_some()));
}

#[test]
fn every_bit_of_a_header_that_means_nothing_is_refused() {
    let stream = [0_u32; 16];
    for (first, known) in [
        (0x0000_0000_u32, 0x3fff_0000_u32),
        (0x0000_0001, 0),
        (0x0000_0401, 0xe000_0000),
        (0x0000_0002, 0),
        (0x0000_0005, 0x0007_0000),
        (0x0000_0006, 0),
        (0x8000_0008, 0xf000_0000),
        (0x5e00_000a, 0xfe01_0000),
        (0x0000_000b, 0xc000_0000),
        (0x0000_020d, 0),
        (0x0000_0111, 0),
    ] {
        let mut stream = stream;
        stream[0] = first;
        assert!(decode(&stream, V6).is_ok(), "{first:#x}");
        for bit in (16..32).filter(|bit| known >> bit & 1 == 0) {
            stream[0] = first | 1 << bit;
            let error = refusal(&stream, V6);
            assert!(matches!(error, SdmaError::Reserved { dword: 0, .. }), "{first:#x} bit {bit}: {error}");
        }
    }
}

#[test]
fn errors_name_what_was_found() {
    for (stream, text) in [
        (&[][..], "SDMA stream ends inside a packet: wanted 1 dwords, 0 are left"),
        (&[1, 0, 0], "SDMA stream ends inside a packet: wanted 7 dwords, 3 are left"),
        (&[0x0003_0000, 0], "SDMA stream ends inside a packet: wanted 4 dwords, 2 are left"),
        (&[2, 0, 0, 7, 1, 2], "SDMA stream ends inside a packet: wanted 12 dwords, 6 are left"),
        (&[8, 0], "SDMA stream ends inside a packet: wanted 6 dwords, 2 are left"),
        (&[4, 0], "SDMA operation 4 sub-operation 0 is not supported"),
        (&[0x0d], "SDMA operation 13 sub-operation 0 is not supported"),
        (
            &[0x1100_000a, 0, 0, 0, 0, 0, 0, 0],
            "SDMA atomic operation 8 is not supported, wanted 47 (add, 64 bits)",
        ),
        (&[6, 1 << 28], "Bits of dword 1 of an SDMA trap packet must be 0, found 0x10000000"),
        (&[0xf000_0008, 0, 0, 0, 0, 0], "Bits of dword 0 of an SDMA poll packet must be 0, found 0x70000000"),
        (&[5, 2, 0, 0], "The address of an SDMA fence packet must be a multiple of 4, found 0x2"),
        (&[0x20d, 4, 0], "The address of an SDMA timestamp packet must be a multiple of 8, found 0x4"),
    ] {
        assert_eq!(refusal(stream, V6).to_string(), text);
    }
    let mut out = vec![1];
    for packet in [
        Packet::Trap { event_id: MAX_EVENT_ID + 1 },
        Packet::CopyLinear(CopyLinear { bytes: 0, src: 0, dst: 0 }),
        Packet::CopyLinear(CopyLinear { bytes: (1 << 30) + 1, src: 0, dst: 0 }),
        Packet::Write { dst: 0, data: &[] },
        Packet::Nop { skipped: &[0; 0x4000] },
        Packet::Fence(Fence { address: 0, value: 0, mtype: 8 }),
        Packet::PollRegMem(PollRegMem { retry: 0x1000, ..PollRegMem::memory(0, Compare::Always, 0) }),
    ] {
        let error = packet.encode(V6, &mut out).unwrap_err();
        assert!(matches!(error, SdmaError::OutOfRange { .. }), "{packet}: {error}");
    }
    assert_eq!(out, [1], "a packet that is refused writes nothing");
}

#[test]
fn comparisons_are_unsigned_and_masked() {
    use Compare as C;
    for (compare, holds) in [
        (C::Always, [true, true, true]),
        (C::Less, [true, false, false]),
        (C::LessEqual, [true, true, false]),
        (C::Equal, [false, true, false]),
        (C::NotEqual, [true, false, true]),
        (C::GreaterEqual, [false, true, true]),
        (C::Greater, [false, false, true]),
    ] {
        let wanted = 0x8000_0000;
        assert_eq!([wanted - 1, wanted, wanted + 1].map(|found| compare.holds(found, wanted)), holds);
    }
    let poll = PollRegMem { mask: 0xff, ..PollRegMem::memory(0, C::Equal, 3) };
    assert!(poll.is_satisfied_by(0xffff_ff03) && !poll.is_satisfied_by(0x13));
}

#[test]
fn ring_rules_that_cannot_be_kept_are_errors() {
    assert_eq!(pad_to_fit(0x1_0000_0ff0, 4096, 4), Ok(0), "ends at the ring's end");
    assert_eq!(pad_to_fit(0x1_0000_0ff0, 4096, 5), Ok(4));
    assert_eq!(pad_to_fit(0, 4096, 1024), Ok(0));
    for (position, ring, dwords) in [(0, 4096, 1025), (2, 4096, 1), (0, 4095, 1), (0, 0, 0)] {
        let error = pad_to_fit(position, ring, dwords).unwrap_err();
        assert!(matches!(error, SdmaError::Ring { .. }));
    }
}

#[test]
fn splits_that_cannot_be_written_are_errors() {
    let mut out = Vec::new();
    let too_many = copy(&mut out, V6, 0, 0, MAX_SPLIT_BYTES + 1).unwrap_err();
    assert!(matches!(too_many, SdmaError::OutOfRange { field: "bytes", .. }), "{too_many}");
    let (address, bytes) = (u64::MAX - 7, 9);
    assert_eq!(copy(&mut out, V6, 0, address, bytes), Err(SdmaError::Wraps { address, bytes }));
    assert_eq!(copy(&mut out, V6, address, 0, bytes), Err(SdmaError::Wraps { address, bytes }));
    assert!(matches!(fill(&mut out, V6, 2, 0, 4), Err(SdmaError::Unaligned { field: "address", .. })));
    assert!(matches!(fill(&mut out, V6, 4, 0, 5), Err(SdmaError::Unaligned { field: "bytes", .. })));
    copy(&mut out, V6, 1, 2, 0).unwrap();
    assert_eq!(out, []);
}
