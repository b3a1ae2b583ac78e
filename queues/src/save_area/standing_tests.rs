// SPDX-License-Identifier: MIT OR Apache-2.0
//! Areas of every family, built here word by word from the sources and read by what is tested.

use proptest::prelude::*;

use super::*;
use crate::target::{TARGETS, Target};
use crate::words::words;

const STATE: u32 = 1 << 31;
const EVENT: u32 = 1 << 30;
const STACK: usize = 0x1000;

/// How a chip saves waves of 24 vector registers and a work-group of 3 blocks (1536 B) of LDS.
struct Family {
    state: &'static [u32],
    first: u32,
    last: u32,
    /// Words in front of the hardware registers.
    registers: usize,
    /// Words behind a record that mean nothing.
    unused: usize,
    lds_words: usize,
    /// Bits of word 6 that are faults.
    faults: &'static [u32],
}

const TRAPSTS: &[u32] = &[8, 11, 28];
/// 24 VGPRs: 6 blocks of 4. 112 SGPRs, 16 of them trap temporaries: 7 blocks. 3 blocks of LDS.
const GFX9: Family = Family {
    state: &[STATE | 3 << 9 | 6 << 6 | 5],
    first: 1 << 17,
    last: 1 << 16,
    registers: 24 * 64 + 96,
    unused: 16,
    lds_words: 384,
    faults: TRAPSTS,
};
const GFX908: Family = Family { registers: 2 * 24 * 64 + 96, ..GFX9 };
/// 24 VGPRs: 3 blocks of 8, the accumulation registers from the 12th on. Bit 17 is not of the LDS.
const GFX90A: Family = Family { state: &[STATE | 2 << 24 | 1 << 17 | 3 << 9 | 6 << 6 | 2], ..GFX9 };
/// No LDS.
const GFX950: Family = Family { state: &[STATE | 2 << 24 | 6 << 6 | 2], lds_words: 0, ..GFX9 };
/// Waves of 32: 3 blocks of 8.
const GFX10: Family = Family {
    state: &[STATE | 1 << 24 | 3 << 10 | 7 << 6 | 2, 0x8765_4321],
    first: 1 << 12,
    last: 1 << 29,
    registers: 24 * 32 + 128,
    unused: 0,
    lds_words: 384,
    faults: TRAPSTS,
};
const GFX12: Family = Family { faults: &[4, 6, 12], ..GFX10 };

fn family(target: &Target) -> &'static Family {
    match target.name {
        "gfx900" | "gfx906" => &GFX9,
        "gfx908" => &GFX908,
        "gfx90a" | "gfx942" => &GFX90A,
        "gfx950" => &GFX950,
        "gfx1200" | "gfx1201" => &GFX12,
        _ => &GFX10,
    }
}

fn target(name: &str) -> &'static Target {
    Target::by_name(name).unwrap()
}

#[derive(Clone, Copy, Default)]
struct Wave {
    pc: u64,
    exceptions: u32,
    ttmp: [u32; 16],
}

/// The record: registers and LDS of noise, so that a reader that is off by a word reads nonsense.
fn record(family: &Family, wave: &Wave, is_first: bool) -> Vec<u32> {
    let noise = |i: usize| 0xabcd_0000 | u32::try_from(i).unwrap();
    let mut record: Vec<u32> = (0..family.registers).map(noise).collect();
    let [pc_lo, pc_hi] = words(wave.pc);
    // Above the program counter is state of instruction replay.
    let hardware = [1, pc_lo, pc_hi | 0xfa00_0000, 3, 4, 5, wave.exceptions];
    record.extend(hardware.into_iter().chain(7..16));
    record.extend(wave.ttmp);
    record.extend((0..if is_first { family.lds_words } else { 0 }).map(noise));
    record.extend((0..family.unused).map(noise));
    record
}

/// One XCC's area with a work-group of these waves.
fn area(family: &Family, waves: &[Wave]) -> Vec<u8> {
    let mut stack = vec![0xc000_1000, 0, EVENT | STATE];
    stack.extend(family.state);
    let mut records = Vec::new();
    for (index, wave) in waves.iter().enumerate() {
        let is_first = index == 0;
        let ends = [(is_first, family.first), (index + 1 == waves.len(), family.last)];
        stack.push(ends.iter().map(|&(is, bit)| if is { bit } else { 0 }).sum());
        // The first wave's is highest.
        records = [record(family, wave, is_first), records].concat();
    }
    let [stack_bytes, record_bytes] = [stack.len(), records.len()].map(|words| 4 * words);
    let begin = STACK - stack_bytes;
    let header = [begin, stack_bytes, STACK + record_bytes, record_bytes];
    let mut area: Vec<u8> =
        header.iter().flat_map(|&word| u32::try_from(word).unwrap().to_le_bytes()).collect();
    area.resize(begin, 0);
    area.extend(stack.iter().chain(&records).flat_map(|word| word.to_le_bytes()));
    area
}

/// Trap temporaries of work-group (7, 8, 9) as SPI fills them in.
fn temporaries(target: &Target) -> [u32; 16] {
    let mut ttmp = [0; 16];
    if target.major >= 12 {
        (ttmp[9], ttmp[7], ttmp[8]) = (7, 9 << 16 | 8, 1 << 30);
    } else {
        ttmp[8..11].copy_from_slice(&[7, 8, 9]);
    }
    ttmp
}

#[test]
fn waves_of_every_chip_say_where_they_stand() {
    for target in TARGETS {
        let family = family(target);
        let ttmp = temporaries(target);
        let faulted = Wave { pc: 0x7fff_1234_5678, exceptions: 1 << family.faults[0], ttmp };
        let innocent = Wave { pc: 0x1000_0000_0040, exceptions: 0, ttmp };
        // Halted at an s_trap 2 at 0x7eee_0000_0100 by a handler at 0x5000, or where it is.
        let mut trapped = Wave { pc: 0x5000, ttmp, ..Wave::default() };
        trapped.ttmp[6] = 1 << 30 | 2 << 25;
        match target.parked_pc {
            Some(low) => (trapped.ttmp[low], trapped.ttmp[11]) = (0x0104, 0x7eee << 7),
            None => trapped.pc = 0x7eee_0000_0104,
        }
        let standings = read_standings(target, &area(family, &[faulted, innocent, trapped])).unwrap();
        let [first, second, third] = standings[..] else { panic!("{target}: {standings:x?}") };
        let workgroup = [7, 8, 9];
        let quiet = Standing { pc: innocent.pc, faulted: false, stopped: None, workgroup };
        assert_eq!(first, Standing { pc: faulted.pc, faulted: true, ..quiet }, "{target}");
        assert_eq!(second, quiet, "{target}");
        let pc = if target.parked_pc.is_some() { 0x7eee_0000_0100 } else { trapped.pc - 4 };
        assert_eq!((third.faulted, third.stopped), (false, Some(Stopped { pc, trap: 2 })), "{target}");
    }
}

#[test]
fn faults_are_the_bits_of_the_family() {
    for target in TARGETS {
        let family = family(target);
        let faults: Vec<u32> = (0..32)
            .filter(|bit| {
                let wave = Wave { exceptions: 1 << bit, ..Wave::default() };
                read_standings(target, &area(family, &[wave])).unwrap()[0].faulted
            })
            .collect();
        assert_eq!(faults, family.faults, "{target}");
    }
}

#[test]
fn other_chips_waves_are_not_read_in_the_layout_of_gfx11() {
    for target in TARGETS.iter().filter(|target| ![10, 11].contains(&target.major)) {
        // Begin of a wave on gfx12, a memory violation before.
        let wave = Wave { pc: 0x1000, exceptions: 1 << 8, ttmp: temporaries(target) };
        let area = area(family(target), &[wave, wave]);
        let right = read_standings(target, &area).unwrap();
        let gfx11 = Target::by_name("gfx1100").unwrap();
        match read_standings(gfx11, &area) {
            Ok(wrong) => assert!(target.major == 12 && wrong[0].faulted && !right[0].faulted, "{target}"),
            Err(error) => assert!(target.major == 9 && right.len() == 2, "{target}: {error}"),
        }
    }
}

#[test]
fn gfx12_has_one_dimension_unless_it_says_more() {
    let target = target("gfx1201");
    let mut ttmp = temporaries(target);
    ttmp[8] = 0;
    let area = area(&GFX12, &[Wave { ttmp, ..Wave::default() }]);
    assert_eq!(read_standings(target, &area).unwrap()[0].workgroup, [7, 0, 0]);
}

#[test]
fn lds_of_unknown_unit_and_shared_registers_are_refused() {
    let with = |family: Family| area(&family, &[Wave::default()]);
    let lds = Family { state: &[STATE | 3 << 9 | 6 << 6 | 2], lds_words: 384, ..GFX9 };
    assert_eq!(
        read_standings(target("gfx950"), &with(lds)),
        Err(SaveAreaError::LdsUnit { offset: 12, blocks: 3 })
    );
    for chip in ["gfx1030", "gfx1100", "gfx1201"] {
        let shared = Family { state: &[STATE | 1 << 26 | 7 << 6, 0], ..GFX10 };
        let refused = Err(SaveAreaError::SharedVgprs { offset: 12, blocks: 1 });
        assert_eq!(read_standings(target(chip), &with(shared)), refused);
    }
}

#[test]
fn area_that_was_never_saved_has_no_waves() {
    for target in TARGETS {
        assert_eq!(read_standings(target, &[0; 64]), Ok(vec![]));
        assert_eq!(read_standings(target, &[0; 39]), Err(SaveAreaError::NoHeader { area: 39 }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(
        target in prop::sample::select(TARGETS.iter().collect::<Vec<_>>()),
        bytes in proptest::collection::vec(any::<u8>(), 0..4096),
    ) {
        let _ = read_standings(target, &bytes);
    }

    #[test]
    fn arbitrary_stacks_behind_a_true_header_never_panic(
        target in prop::sample::select(TARGETS.iter().collect::<Vec<_>>()),
        stack in proptest::collection::vec(any::<u32>(), 0..64),
        records in 0_usize..40_000,
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let header = [40, 4 * stack.len(), 40 + 4 * stack.len() + records, records];
        let mut bytes: Vec<u8> =
            header.iter().flat_map(|&word| u32::try_from(word).unwrap().to_le_bytes()).collect();
        bytes.resize(40, 0);
        bytes.extend(stack.iter().flat_map(|word| word.to_le_bytes()));
        bytes.resize(bytes.len() + records, 0x5a);
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = read_standings(target, &bytes);
    }

    #[test]
    fn damaged_areas_never_panic(
        target in prop::sample::select(TARGETS.iter().collect::<Vec<_>>()),
        damage in proptest::collection::vec((0_usize..16, any::<u32>()), 1..4),
    ) {
        let mut bytes = area(family(target), &[Wave::default(); 3]);
        let stack = to_usize(SaveAreaHeader::read(&bytes).unwrap().wave_state.control_stack_offset);
        for (place, word) in damage {
            // A word of the kernel's header, or one of the stack.
            let offset = if place < 4 { 4 * place } else { stack + 4 * (place - 4) };
            if let Some(target) = bytes.get_mut(offset..offset + 4) {
                target.copy_from_slice(&word.to_le_bytes());
            }
        }
        let _ = read_standings(target, &bytes);
    }
}
