// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout byte by byte, there and back, and every lie a save area can tell.

use proptest::prelude::*;

use super::*;
use crate::cwsr::{CwsrGeometry, NodeShape};

const STACK: u32 = 0x2000;
const SAVE: u32 = 0x6_0000;

fn area() -> Vec<u8> {
    vec![0; to_usize(SAVE)]
}

/// A wave whose every word is different.
fn wave(lanes: u32, registers: usize, seed: u32) -> WaveRecord {
    let lanes_usize = to_usize(lanes);
    WaveRecord {
        lanes,
        vgprs: (0..registers * lanes_usize).map(|i| seed + u32::try_from(i).unwrap()).collect(),
        sgprs: std::array::from_fn(|i| 0x5000_0000 | seed << 8 | u32::try_from(i).unwrap()),
        m0: 0x6d30_0000 | seed,
        pc: 0x0000_1000_0000_2000 + u64::from(seed),
        exec: 0xffff_0000_ffff_0001,
        status: 0x0001_0021 | status::SCRATCH_EN,
        trapsts: 0x400,
        mode: 0x3f0,
        flat_scratch: 0x2000_0000_4000,
        ttmp: std::array::from_fn(|i| 0x7000_0000 | seed << 8 | u32::try_from(i).unwrap()),
        lds: None,
        first_in_group: false,
        last_in_group: false,
    }
}

fn words_of(area: &[u8], offset: u32, count: usize) -> Vec<u32> {
    (0..count).map(|i| word_at(area, to_usize(offset) + 4 * i)).collect()
}

#[test]
fn one_wave_has_the_documented_bytes() {
    let mut area = area();
    let mut one = wave(32, 16, 1);
    (one.first_in_group, one.last_in_group, one.lds) = (true, true, Some(vec![0xd5; 256]));

    let state = write_waves(&mut area, STACK, SAVE, std::slice::from_ref(&one)).unwrap();

    // Filler, filler, state, state, wave; then 16 registers of 128 B, 512 B, 64 B, 64 B, 1024 B of LDS.
    let record = 16 * 128 + 512 + 64 + 64 + 1024;
    assert_eq!(
        state,
        WaveState {
            control_stack_offset: STACK - 20,
            control_stack_size: 20,
            wave_state_offset: STACK + record,
            wave_state_size: record,
        }
    );
    // State: 2 blocks of VGPRs less 1, SGPRs 7, 2 blocks of LDS, wave32. Wave: scratch, first, last.
    let stack = words_of(&area, STACK - 20, 5);
    assert_eq!(stack[2..], [0x8100_09c1, 0, 0x2000_1800]);
    assert_eq!(words_of(&area, STACK, 33)[32], 33, "v1 lane 0");
    let sgprs = STACK + 16 * 128;
    assert_eq!(words_of(&area, sgprs, 1), [0x5000_0100]);
    assert_eq!(
        words_of(&area, sgprs + 512, 16),
        [
            0x6d30_0001,
            0x2001,
            0x1000,
            0xffff_0001,
            0xffff_0000,
            0x2001_0021,
            0x400,
            0,
            0x3f0,
            0x4000,
            0x2000,
            0,
            0,
            0,
            0,
            0
        ]
    );
    // The kernel's view: TTMPs at +0x40 of the 128 B block.
    assert_eq!(words_of(&area, sgprs + 512 + 0x40, 2), [0x7000_0100, 0x7000_0101]);
    assert_eq!(words_of(&area, sgprs + 640, 1), [0xd5]);
    assert_eq!(SaveAreaHeader::read(&area).unwrap().wave_state, state);
    assert_eq!(read_waves(&area), Ok(vec![one]));
}

#[test]
fn first_wave_lies_highest_and_states_are_shared() {
    let mut area = area();
    let mut waves = [wave(32, 8, 1), wave(32, 8, 2), wave(64, 4, 3)];
    (waves[0].first_in_group, waves[0].lds) = (true, Some(vec![9; 128]));
    waves[1].last_in_group = true;
    (waves[2].first_in_group, waves[2].last_in_group) = (true, true);

    let state = write_waves(&mut area, STACK, SAVE, &waves).unwrap();

    // Two fillers, state of the first group and its two waves, state of the second and its wave.
    assert_eq!(state.control_stack_size, 4 * (2 + 2 + 2 + 2 + 1));
    let first = 8 * 128 + 640 + 512;
    assert_eq!(words_of(&area, state.wave_state_offset - first, 1), [1]);
    assert_eq!(words_of(&area, STACK, 1), [3]);
    assert_eq!(read_waves(&area).unwrap(), waves);
}

#[test]
fn empty_and_never_saved_areas_have_no_waves() {
    let mut area = area();
    assert_eq!(read_waves(&area), Ok(vec![]));
    let state = write_waves(&mut area, STACK, SAVE, &[]).unwrap();
    assert_eq!((state.control_stack_offset, state.wave_state_offset), (STACK, STACK));
    assert_eq!(read_waves(&area), Ok(vec![]));
}

#[test]
fn write_leaves_the_process_part_of_the_header() {
    let mut area = area();
    let ours = SaveAreaHeader {
        debug_offset: SAVE,
        debug_size: 0x8000,
        err_payload_addr: 0x1234_5678_9abc,
        err_event_id: 7,
        ..SaveAreaHeader::default()
    };
    ours.write(&mut area).unwrap();
    let wave_state = write_waves(&mut area, STACK, SAVE, &[wave(64, 8, 1)]).unwrap();
    assert_eq!(SaveAreaHeader::read(&area), Ok(SaveAreaHeader { wave_state, ..ours }));
}

#[test]
fn event_words_are_skipped() {
    let mut area = area();
    let state = write_waves(&mut area, STACK, SAVE, &[wave(32, 8, 1)]).unwrap();
    // Put an event before everything else by moving the used part down a word.
    let begin = to_usize(state.control_stack_offset);
    area.copy_within(begin..begin + 8, begin - 4);
    area[begin + 4..begin + 8].copy_from_slice(&0xc000_0000_u32.to_le_bytes());
    let moved = WaveState {
        control_stack_offset: state.control_stack_offset - 4,
        control_stack_size: state.control_stack_size + 4,
        ..state
    };
    area[..16].copy_from_slice(&moved.to_bytes());
    assert_eq!(read_waves(&area).unwrap(), [wave(32, 8, 1)]);
}

#[test]
fn write_refuses_waves_without_a_shape_and_touches_nothing() {
    type Damage = (fn(&mut WaveRecord), SaveAreaError);
    let cases: &[Damage] = &[
        (|w| w.lanes = 16, SaveAreaError::Lanes { wave: 1, lanes: 16 }),
        (|w| w.vgprs.clear(), SaveAreaError::Vgprs { wave: 1, lanes: 32, words: 0, block: 8 }),
        (|w| w.vgprs.truncate(255), SaveAreaError::Vgprs { wave: 1, lanes: 32, words: 255, block: 8 }),
        (
            |w| w.vgprs.resize(65 * 256, 0),
            SaveAreaError::Vgprs { wave: 1, lanes: 32, words: 16640, block: 8 },
        ),
        (|w| w.lds = Some(vec![0; 128]), SaveAreaError::LdsNotFirst { wave: 1 }),
        (
            |w| (w.first_in_group, w.lds) = (true, Some(vec![0; 100])),
            SaveAreaError::Lds { wave: 1, words: 100 },
        ),
        (|w| (w.first_in_group, w.lds) = (true, Some(vec![])), SaveAreaError::Lds { wave: 1, words: 0 }),
        (
            |w| (w.first_in_group, w.lds) = (true, Some(vec![0; 256 * 128])),
            SaveAreaError::Lds { wave: 1, words: 32768 },
        ),
    ];
    for (damage, error) in cases {
        let mut bad = wave(32, 8, 2);
        damage(&mut bad);
        let mut bytes = area();
        assert_eq!(write_waves(&mut bytes, STACK, SAVE, &[wave(32, 8, 1), bad]), Err(*error));
        assert_eq!(bytes, area());
    }
}

#[test]
fn write_refuses_what_does_not_fit() {
    let waves = vec![wave(32, 8, 1); 200];
    let record = 8 * 128 + 640;
    let mut bytes = area();
    assert_eq!(
        write_waves(&mut bytes, 64, SAVE, &waves),
        Err(SaveAreaError::ControlStackFull { wanted: 4 * 204, available: 24 })
    );
    assert_eq!(
        write_waves(&mut bytes, STACK, STACK + record, &waves),
        Err(SaveAreaError::WaveAreaFull { wanted: 200 * to_usize(record), available: to_usize(record) })
    );
    for (stack, save) in
        [(0, SAVE), (36, SAVE), (4098, SAVE), (STACK, STACK - 4), (STACK, SAVE + 1), (u32::MAX, u32::MAX)]
    {
        assert!(matches!(write_waves(&mut bytes, stack, save, &waves), Err(SaveAreaError::Area { .. })));
    }
    assert!(matches!(write_waves(&mut [], STACK, SAVE, &[]), Err(SaveAreaError::Area { .. })));
    assert_eq!(bytes, area());
}

#[test]
fn read_names_the_lie() {
    let written = || {
        let mut bytes = area();
        let state = write_waves(&mut bytes, STACK, SAVE, &[wave(32, 8, 1), wave(32, 8, 2)]).unwrap();
        (bytes, state)
    };
    let with_header = |change: fn(&mut WaveState)| {
        let (mut bytes, mut state) = written();
        change(&mut state);
        bytes[..16].copy_from_slice(&state.to_bytes());
        read_waves(&bytes).unwrap_err()
    };
    let with_word = |index: usize, word: u32| {
        let (mut bytes, state) = written();
        let offset = to_usize(state.control_stack_offset) + 4 * index;
        bytes[offset..offset + 4].copy_from_slice(&word.to_le_bytes());
        read_waves(&bytes).unwrap_err()
    };
    assert_eq!(read_waves(&[0; 39]), Err(SaveAreaError::NoHeader { area: 39 }));
    assert!(matches!(with_header(|s| s.control_stack_offset = 36), SaveAreaError::ControlStack { .. }));
    assert!(matches!(with_header(|s| s.control_stack_size = u32::MAX), SaveAreaError::ControlStack { .. }));
    assert!(matches!(with_header(|s| s.wave_state_offset += 4), SaveAreaError::WaveArea { .. }));
    assert!(matches!(with_header(|s| s.wave_state_size = u32::MAX), SaveAreaError::WaveArea { .. }));
    let beyond = |s: &mut WaveState| (s.wave_state_offset, s.wave_state_size) = (SAVE + 4, SAVE + 4 - STACK);
    assert!(matches!(with_header(beyond), SaveAreaError::WaveArea { .. }));
    let longer = |s: &mut WaveState| (s.wave_state_offset, s.wave_state_size) = (SAVE, SAVE - STACK);
    assert!(matches!(with_header(longer), SaveAreaError::RecordsLeft { .. }));
    // Words: 0 and 1 filler, 2 and 3 state, 4 and 5 waves.
    assert_eq!(with_word(2, 0), SaveAreaError::WaveWithoutState { offset: 8 });
    assert_eq!(with_word(5, 0x8100_01c0), SaveAreaError::StackTruncated { offset: 20, size: 24 });
    assert_eq!(with_word(2, 0x8500_01c0), SaveAreaError::SharedVgprs { offset: 8, blocks: 1 });
    assert_eq!(
        with_word(2, 0x8100_01c1),
        SaveAreaError::RecordsExhausted { offset: 20, wanted: 2688, left: 640 }
    );
    assert_eq!(with_word(5, 0x4000_0000), SaveAreaError::RecordsLeft { left: 1664 });
    let tiny = |s: &mut WaveState| (s.control_stack_offset, s.control_stack_size) = (STACK - 4, 4);
    assert_eq!(with_header(tiny), SaveAreaError::StackTruncated { offset: 0, size: 4 });
}

#[test]
fn initial_header_points_at_the_debug_memory_behind_all_areas() {
    let node = NodeShape {
        gfx_target_version: 90402,
        simd_count: 1216,
        simd_per_cu: 4,
        num_xcc: 8,
        array_count: 32,
        simd_arrays_per_engine: 1,
        ..NodeShape::default()
    };
    let geometry = CwsrGeometry::for_node(&node).unwrap();
    for xcc in 0..8 {
        let header = SaveAreaHeader::initial(&geometry, xcc, 0x1000, 5).unwrap();
        let debug = geometry.area_offset(xcc).unwrap() + u64::from(header.debug_offset);
        assert_eq!(debug, 8 * u64::from(geometry.save_bytes));
        assert_eq!(header.debug_size, 8 * geometry.debug_bytes);
        assert_eq!((header.err_payload_addr, header.err_event_id), (0x1000, 5));
        assert_eq!(SaveAreaHeader::from_bytes(&header.to_bytes()), header);
    }
    assert_eq!(SaveAreaHeader::initial(&geometry, 8, 0, 0), None);
}

#[test]
fn lds_words_are_whole_blocks() {
    for (bytes, words) in [(0, 0), (1, 128), (512, 128), (513, 256), (65_536, 16_384)] {
        assert_eq!(WaveRecord::lds_words_for(bytes), words);
    }
    assert_eq!(WaveRecord::lds_words_for(u32::MAX), 1 << 30);
}

/// A wave of any shape; contents from a few random words, repeated, to keep cases small.
fn waves() -> impl Strategy<Value = WaveRecord> {
    let shape = (any::<bool>(), 1_usize..=3, proptest::option::of(1_usize..=2), any::<[bool; 2]>());
    (shape, any::<[u32; 8]>(), any::<[u64; 3]>()).prop_map(|((wide, blocks, lds, ends), words, longs)| {
        let fill = |count: usize, salt: u32| {
            let word = move |i: usize| words[i % 8].rotate_left(salt) ^ u32::try_from(i).unwrap();
            (0..count).map(word).collect::<Vec<u32>>()
        };
        WaveRecord {
            lanes: if wide { 64 } else { 32 },
            vgprs: fill(blocks * 256, 1),
            sgprs: fill(128, 2).try_into().unwrap(),
            m0: words[0],
            pc: longs[0],
            exec: longs[1],
            status: words[1],
            trapsts: words[2],
            mode: words[3],
            flat_scratch: longs[2],
            ttmp: fill(16, 3).try_into().unwrap(),
            lds: lds.filter(|_| ends[0]).map(|blocks| fill(blocks * 128, 4)),
            first_in_group: ends[0],
            last_in_group: ends[1],
        }
    })
}

fn written(waves: &[WaveRecord]) -> Vec<u8> {
    let mut bytes = area();
    write_waves(&mut bytes, STACK, SAVE, waves).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn read_inverts_write(waves in proptest::collection::vec(waves(), 0..12)) {
        let bytes = written(&waves);
        prop_assert_eq!(read_waves(&bytes), Ok(waves));
    }

    #[test]
    fn rewriting_what_was_read_gives_the_same_bytes(waves in proptest::collection::vec(waves(), 0..8)) {
        let bytes = written(&waves);
        prop_assert_eq!(written(&read_waves(&bytes).unwrap()), bytes);
    }

    #[test]
    fn damaged_headers_and_stacks_never_panic(
        waves in proptest::collection::vec(waves(), 1..6),
        damage in proptest::collection::vec((0_usize..60, any::<u32>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = written(&waves);
        let stack = to_usize(SaveAreaHeader::read(&bytes).unwrap().wave_state.control_stack_offset);
        for (place, word) in damage {
            // Word 0 to 3 of the header, or one of the stack.
            let offset = if place < 4 { 4 * place } else { stack + 4 * (place - 4) };
            if let Some(target) = bytes.get_mut(offset..offset + 4) {
                target.copy_from_slice(&word.to_le_bytes());
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = read_waves(&bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        header in any::<[u16; 4]>(),
        body in proptest::collection::vec(any::<u8>(), 0..4096),
    ) {
        let mut bytes = vec![0; 40];
        for (chunk, half) in bytes.chunks_exact_mut(4).zip(header) {
            chunk.copy_from_slice(&u32::from(half % 4096).to_le_bytes());
        }
        bytes.extend(body);
        let _ = read_waves(&bytes);
    }

    #[test]
    fn aligned_lies_never_panic(words in proptest::collection::vec(any::<u32>(), 2..64), records in 0_u32..40_000) {
        // A header that is consistent over a random stack: the words themselves must hold.
        let stack = u32::try_from(4 * words.len()).unwrap();
        let begin = u32::try_from(HEADER_BYTES).unwrap();
        let state = WaveState {
            control_stack_offset: begin,
            control_stack_size: stack,
            wave_state_offset: begin + stack + records,
            wave_state_size: records,
        };
        let mut bytes = vec![0; to_usize(state.wave_state_offset)];
        bytes[..16].copy_from_slice(&state.to_bytes());
        for (chunk, word) in bytes[HEADER_BYTES..].chunks_exact_mut(4).zip(&words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        let _ = read_waves(&bytes);
    }
}
