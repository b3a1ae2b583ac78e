// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generated code against the interpreter: random programs, all state compared bit for bit.
#![allow(unsafe_code)]

mod chains;
mod features;
mod listed;
mod loops;
mod matrices;
mod products;
mod progressions;
mod random;
mod runs;
mod stored;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use listed::INLINE;
use random::{Random, VGPRS};
use softgpu_isa::{Op, decode};

use crate::code::{Code, WaveStop, Waves};
use crate::control::Control;
use crate::engine::{Effort, Engine};
use crate::env::{Env, Hot, Identity, Lds};
use crate::facts::Fact;
use crate::interp::{interpret_wave, run_waves};
use crate::jit::emit::Emitter;
use crate::jit::generator::Wide;
use crate::level::Level;
use crate::predecode::Shape;
use crate::program::Cache;
use crate::run_compiled::run;
use crate::vm::{Access, Vm};
use crate::wave::{Wave, mode};

fn wave(r: &mut Random, lanes: usize, at: u64) -> Wave {
    wave_with(r, lanes, at, VGPRS as usize)
}

/// A wave with so many registers, in a random state.
fn wave_with(r: &mut Random, lanes: usize, at: u64, vgprs: usize) -> Wave {
    let mut w = Wave::new(lanes, vgprs);
    let kind = r.below(6);
    for row in w.v.iter_mut() {
        for x in &mut row.0 {
            *x = match kind {
                0..=2 => (r.below(4000) as f32 / 32.0 - 40.0).to_bits(),
                3 => r.near_a_limit(),
                _ => r.bits(),
            };
        }
    }
    for k in 0..108 {
        w.s[k] = r.bits();
    }
    if r.chance(2) {
        start_as_items(r, &mut w);
    }
    w.set_exec(if w.items.is_some() || r.chance(2) {
        u64::MAX
    } else {
        r.next() & r.next() | r.next() << 40
    });
    w.s[125] = r.below(8) as u32;
    if r.chance(6) {
        w.mode = w.mode & !0xFF | r.next() as u32 & 0xFF;
    }
    if r.chance(4) {
        w.mode ^= mode::IEEE;
    }
    w.pc = at;
    w.lds_bytes = 8192;
    w
}

/// Puts the numbers of work-items into the first register, as they are in a wave of some workgroup.
fn start_as_items(r: &mut Random, w: &mut Wave) {
    const GROUPS: [[u32; 3]; 6] = [[256, 1, 1], [1024, 1, 1], [16, 16, 1], [32, 8, 2], [8, 8, 4], [64, 2, 1]];
    let group = GROUPS[r.below(6) as usize];
    let [x, y, z] = group;
    let lanes = w.lanes() as u32;
    let first = r.below(u64::from(x * y * z / lanes)) as u32 * lanes;
    for lane in 0..lanes {
        let item = first + lane;
        let number = if y == 1 { item } else { (item % x) | ((item / x % y) << 10) | ((item / x / y) << 20) };
        w.set_vgpr(0, lane as usize, number);
    }
    w.items = Fact::of_items(group, u32::MAX);
}

/// Memory for programs, mapped for execution, and for their data after it.
struct Place {
    vm: Arc<Vm>,
    at: u64,
}

const BYTES: usize = 1 << 16;

/// All state that a program leaves beside the wave.
type Left = (WaveStop, u64, Vec<u32>, Vec<u8>);

impl Place {
    fn new() -> Place {
        // Aligned, so that no offset within it carries into the high dword.
        let memory: &'static mut [u32] = Box::leak(vec![0u32; BYTES / 2].into_boxed_slice());
        let at = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(BYTES as u64);
        let vm = Vm::new();
        // SAFETY: the memory was allocated for this lab and lives as long.
        unsafe { vm.map(at..at + BYTES as u64, Access::ALL) }.unwrap();
        Place { vm, at }
    }

    fn data(&self) -> u64 {
        self.at + BYTES as u64 - random::DATA_BYTES
    }

    fn put(&self, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert!(bytes.len() < BYTES - random::DATA_BYTES as usize);
        self.vm.write_bytes(self.at, &bytes).unwrap();
    }
}

/// Runs a wave by `drive`, and returns all state that it leaves.
fn session(
    place: &Place,
    w: &mut Wave,
    level: Level,
    engine: Engine,
    drive: impl Fn(&mut Wave, &mut Env<'_>, &mut Code<'_>) -> WaveStop,
) -> Left {
    session_in(&Cache::default(), place, w, level, engine, drive)
}

/// As [`session`], with these programs.
fn session_in(
    cache: &Cache,
    place: &Place,
    w: &mut Wave,
    level: Level,
    engine: Engine,
    drive: impl Fn(&mut Wave, &mut Env<'_>, &mut Code<'_>) -> WaveStop,
) -> Left {
    let pattern: Vec<u8> = (0..random::DATA_BYTES as usize).map(|k| (k * 7 + k / 251) as u8).collect();
    place.vm.write_bytes(place.data(), &pattern).unwrap();
    let map = place.vm.lock();
    let shape = Shape { halves: w.halves, vgprs: w.vgprs() };
    let main = cache.get(&map, level.min(Level::Avx2), shape, place.at);
    let mut code = Code::new(cache, level, main, shape, engine);
    let (mut lds, mut hot) = (Lds::new(), Hot::new());
    for (k, x) in lds.iter_mut().enumerate() {
        *x = (k as u32).wrapping_mul(0x9E37_79B9);
    }
    let mut env = Env::new(&map, &mut lds, &mut hot, Identity::default());
    let stop = drive(w, &mut env, &mut code);
    let executed = env.executed;
    drop(map);
    let mut data = pattern;
    place.vm.read_bytes(place.data(), &mut data).unwrap();
    (stop, executed, lds.to_vec(), data)
}

fn execute(place: &Place, w: &mut Wave, level: Level, engine: Engine) -> Left {
    let control = Control::new();
    session(place, w, level, engine, |w, env, code| match engine {
        Engine::Interp => interpret_wave(w, env, code, &control, 100_000),
        _ => run(&mut Waves::alone(w), env, code, &control, 100_000).expect("generated code"),
    })
}

/// Stops a wave at random: the interpreter at any instruction, generated code where it can stop, alternately.
fn take_turns(place: &Place, w: &mut Wave, level: Level, engine: Engine, seed: u64) -> Left {
    let r = std::cell::RefCell::new(Random(seed | 1));
    session(place, w, level, engine, |w, env, code| {
        loop {
            let stop = if r.borrow_mut().chance(2) {
                let control = Control::new();
                control.pause_after(1 + r.borrow_mut().below(12));
                run_waves(&mut Waves::alone(w), env, code, &control, 100_000)
            } else {
                let budget = 1 + r.borrow_mut().below(30) as u32;
                run(&mut Waves::alone(w), env, code, &Control::new(), budget).expect("generated code")
            };
            match stop {
                WaveStop::Interrupted | WaveStop::Quantum => {}
                other => return other,
            }
            // A wave restored from a save area has no hint, and nothing is known of its registers.
            if r.borrow_mut().chance(8) {
                w.items = None;
            }
            w.hint = r.borrow_mut().below(4) as usize * 1000;
        }
    })
}

fn listing(words: &[u32]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < words.len() {
        match decode(&words[at..]) {
            Ok(inst) => {
                text += &format!("  {at:3}: {}\n", inst.text(softgpu_isa::WaveSize::W32));
                at += inst.size as usize / 4;
            }
            Err(_) => at += 1,
        }
    }
    text
}

/// The differences as text.
fn difference(a: &Wave, b: &Wave) -> Option<String> {
    for (row, (x, y)) in a.v.iter().zip(&b.v).enumerate().take(a.vgprs() * a.halves) {
        for lane in 0..32 {
            if x.0[lane] != y.0[lane] {
                return Some(format!("row {row} lane {lane}: {:#x} is {:#x}", x.0[lane], y.0[lane]));
            }
        }
    }
    let scalars = (0..128).find(|&k| k != 124 && a.s[k] != b.s[k]);
    if let Some(k) = scalars {
        return Some(format!("scalar {k}: {:#x} is {:#x}", a.s[k], b.s[k]));
    }
    (a.scc != b.scc || a.pc != b.pc || a.mode != b.mode)
        .then(|| format!("scc {} {}, pc {:#x} {:#x}", a.scc, b.scc, a.pc, b.pc))
}

/// Runs `words` from one random state with both engines at every level.
fn compare_words(place: &Place, words: &[u32], lanes: usize, seed: u64) -> Result<(), String> {
    compare_from(place, words, wave(&mut Random(seed | 1), lanes, place.at), seed)
}

/// As [`compare_words`], from this state.
fn compare_from(place: &Place, words: &[u32], mut start: Wave, seed: u64) -> Result<(), String> {
    place.put(words);
    let lanes = start.lanes();
    start.set_s64(random::DATA as usize, place.data());
    let mut want = start.clone();
    let stop = execute(place, &mut want, Level::best(), Engine::Interp);
    for level in [Level::Avx2, Level::Avx512].into_iter().filter(|&l| l <= Level::best()) {
        let mut got = start.clone();
        let other = execute(place, &mut got, level, Engine::Jit);
        let mut got_quickly = start.clone();
        let quick = execute(place, &mut got_quickly, level, Engine::Quick);
        let mut turns = start.clone();
        let engine = if seed & 4 == 0 { Engine::Jit } else { Engine::Quick };
        let by_turns = take_turns(place, &mut turns, level, engine, seed);
        // Instructions that predecode drops are not counted when the interpreter stops next to them.
        let by_turns = (by_turns.0, stop.1, by_turns.2, by_turns.3);
        let ways = [
            ("generated", &got, &other),
            ("generated quickly", &got_quickly, &quick),
            ("by turns", &turns, &by_turns),
        ];
        for (way, got, other) in ways {
            if let Some(what) = disagreement((&want, &stop), (got, other)) {
                let line: Vec<String> = words.iter().map(|w| format!("{w:08x}")).collect();
                return Err(format!(
                    "{way}, {level:?}, mode {:#x}, exec {:#x}: {what}\n{}for the corpus: {lanes} {seed:x} {}",
                    start.mode,
                    start.exec(),
                    listing(words),
                    line.join(" ")
                ));
            }
        }
    }
    Ok(())
}

fn disagreement((want, stop): (&Wave, &Left), (got, other): (&Wave, &Left)) -> Option<String> {
    if (stop.0, stop.1) != (other.0, other.1) {
        Some(format!("{:?} is {:?}", (stop.0, stop.1), (other.0, other.1)))
    } else if stop.2 != other.2 {
        let at = (0..stop.2.len()).find(|&k| stop.2[k] != other.2[k]);
        Some(format!("LDS at dword {at:?}"))
    } else if stop.3 != other.3 {
        let at = (0..stop.3.len()).find(|&k| stop.3[k] != other.3[k]);
        Some(format!("memory at {at:?}"))
    } else if stop.0 == WaveStop::Exception {
        // A fault is imprecise: instructions before the access may not have run yet.
        None
    } else {
        difference(want, got)
    }
}

/// Whether this CPU has generated code; says so if not.
fn generates_code() -> bool {
    let has_avx2 = Level::best() >= Level::Avx2;
    if !has_avx2 {
        println!("skipped: this CPU has no AVX2, so there is no generated code");
    }
    has_avx2
}

/// Calls `f` with the emitter of a program for work-items, and each block of it.
fn each_block(place: &Place, words: &[u32], wide: Wide, f: impl FnMut(&mut Emitter<'_>, Range<usize>)) {
    each_block_with(place, words, wide, VGPRS as usize, f);
}

/// As [`each_block`], for waves with so many registers.
fn each_block_with(
    place: &Place,
    words: &[u32],
    wide: Wide,
    vgprs: usize,
    mut f: impl FnMut(&mut Emitter<'_>, Range<usize>),
) {
    place.put(words);
    let (cache, map) = (Cache::default(), place.vm.lock());
    let shape = Shape { halves: 1, vgprs };
    let program = cache.get(&map, Level::Baseline, shape, place.at);
    let items = Fact::of_items([256, 1, 1], u32::MAX);
    let mut emitter = Emitter::new(&program, wide, mode::FP_DEFAULT | mode::IEEE, items, Effort::Full);
    let blocks: Vec<usize> = emitter.leaders.iter().copied().chain([program.steps.len()]).collect();
    for (k, range) in blocks.windows(2).enumerate() {
        emitter.enter(k);
        f(&mut emitter, range[0]..range[1]);
    }
}

/// Compares programs, each of so many lanes, for some seconds: always the same programs in the same order. Returns how many
/// there were, and how many of them `is_special`.
fn compare_programs(
    seed: u64,
    make: impl Fn(&mut Random) -> (Vec<u32>, usize),
    is_special: impl Fn(&Place, &[u32]) -> bool,
) -> (u32, u32) {
    compare_programs_in(&Place::new(), seed, make, is_special)
}

/// As [`compare_programs`], with programs and data there.
fn compare_programs_in(
    place: &Place,
    seed: u64,
    make: impl Fn(&mut Random) -> (Vec<u32>, usize),
    is_special: impl Fn(&Place, &[u32]) -> bool,
) -> (u32, u32) {
    let mut r = Random(seed);
    let deadline = Instant::now() + seconds();
    let (mut programs, mut special) = (0, 0);
    while Instant::now() < deadline {
        let (words, lanes) = make(&mut r);
        special += u32::from(is_special(place, &words));
        if let Err(text) = compare_words(place, &words, lanes, r.next()) {
            panic!("{text}");
        }
        programs += 1;
    }
    assert!(programs > 20, "only {programs} programs in {:?}", seconds());
    (programs, special)
}

/// Lanes of a random program.
fn lanes(r: &mut Random) -> usize {
    if r.chance(4) { 64 } else { 32 }
}

/// Runs random programs for some seconds.
fn hunt(first: u64, body: usize, turns: u32, ops: &[Op]) {
    if !generates_code() {
        return;
    }
    let make = |r: &mut Random| {
        let size = 1 + r.below(body as u64) as usize;
        let turns = 1 + random::below(r, turns);
        (random::program(r, size, turns, ops), lanes(r))
    };
    let (programs, _) = compare_programs(first | 1, make, |_, _| false);
    println!("{programs} programs");
}

/// How long a test runs random programs: 4 s, or `STASIS_FUZZ_SECONDS`.
fn seconds() -> Duration {
    let asked = std::env::var("STASIS_FUZZ_SECONDS").ok().and_then(|n| n.parse().ok());
    Duration::from_secs(asked.unwrap_or(4))
}

#[test]
fn single_instructions_agree() {
    hunt(0x1234_5678, 1, 2, &[]);
}

#[test]
fn short_programs_agree() {
    hunt(0x5555_4321, 8, 4, &[]);
}

#[test]
fn long_programs_agree() {
    hunt(0x9876_5432, 60, 3, &[]);
}

#[test]
fn programs_that_once_failed_agree() {
    if !generates_code() {
        return;
    }
    let place = Place::new();
    for line in include_str!("corpus.txt").lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let mut parts = line.split_whitespace();
        let lanes = parts.next().and_then(|n| n.parse().ok()).expect("lanes");
        let seed = parts.next().and_then(|n| u64::from_str_radix(n, 16).ok()).expect("seed");
        let mut words: Vec<u32> = parts.map(|w| u32::from_str_radix(w, 16).expect("word")).collect();
        if words.last() != Some(&random::END) {
            words.push(random::END);
        }
        for change in 0..16 {
            if let Err(text) = compare_words(&place, &words, lanes, seed ^ (change << 8)) {
                panic!("{text}");
            }
        }
    }
}

/// Shifts of two registers by a constant, for which VBMI2 would have an instruction.
#[test]
fn shifts_of_register_pairs_agree() {
    if !generates_code() {
        return;
    }
    let ops = {
        use Op::*;
        [V_ALIGNBIT_B32, V_ALIGNBYTE_B32, V_LSHLREV_B64, V_LSHRREV_B64, V_ASHRREV_I64]
    };
    let (place, mut r) = (Place::new(), Random(0x0F0F_5817));
    for n in 0..1500 {
        let mut words = random::instruction(&mut r, Some(ops[n % ops.len()]));
        words.push(random::END);
        let lanes = lanes(&mut r);
        if let Err(text) = compare_words(&place, &words, lanes, r.next()) {
            panic!("{text}");
        }
    }
}

#[test]
fn generated_code_gives_the_documented_values() {
    if !generates_code() {
        return;
    }
    let place = Place::new();
    for example in crate::semantics::document::EXAMPLES {
        let row = softgpu_isa::info(example.op);
        let opcode =
            row.opcode(softgpu_isa::EncodingFamily::Gfx11, softgpu_isa::Fmt::Vop1).expect("a short form");
        // v5 = op(v3)
        place.put(&[0x7E0A_0103 | u32::from(opcode) << 9, random::END]);
        for level in [Level::Avx2, Level::Avx512].into_iter().filter(|&l| l <= Level::best()) {
            let mut w = Wave::new(32, VGPRS as usize);
            w.mode = mode::FP_DEFAULT;
            w.set_exec(u64::MAX);
            w.pc = place.at;
            w.v[3].0 = [example.argument; 32];
            execute(&place, &mut w, level, Engine::Jit);
            let half = row.name.ends_with("_f16");
            let got = w.v[5].0[7] & if half { 0xFFFF } else { u32::MAX };
            let (argument, want) = (example.argument, example.result);
            assert_eq!(got, want, "{level:?}: {}({argument:#x}) is {got:#x}, not {want:#x}", row.name);
        }
    }
}

#[test]
fn a_sum_into_four_scalars_is_illegal() {
    // v_mqsad_u32_u8 v[0:3], v[4:5], v6, null
    assert!(steps(&[0xD63D_0000, 0x01F2_0D04]).is_empty());
    assert_eq!(steps(&[0xD63D_0000, 0x0422_0D04]).len(), 1, "v[8:11]");
}

/// Steps of one instruction in a wave of 32 lanes.
fn steps(words: &[u32]) -> Vec<crate::step::Step> {
    let inst = decode(words).expect("a valid instruction");
    let shape = Shape { halves: 1, vgprs: VGPRS as usize };
    match crate::predecode::lower(Level::Baseline, shape, 0, &inst) {
        crate::predecode::Lowered::Steps(steps) => steps,
        _ => Vec::new(),
    }
}

#[test]
fn permuted_operations_are_inline() {
    let floats = super::floats::Floats::of(mode::FP_DEFAULT | mode::IEEE);
    // v_add_f32 v1, v2, v3 row_shr:1, with and without bound_ctrl, then for some rows only; v_mov_b32 with DPP8.
    for words in [
        [0x0602_06FA, 0xFF08_1102],
        [0x0602_06FA, 0xFF00_1102],
        [0x0602_06FA, 0xAF00_1102],
        [0x7E02_02E9, 0x0539_7702],
    ] {
        let steps = steps(&words);
        assert_eq!(steps.len(), 3);
        for at in 0..3 {
            for wide in [Wide::Z, Wide::Y] {
                let emit = super::dpp::emitter(&steps, at, wide, floats);
                assert!(emit.is_some(), "step {at} of {words:x?} at {wide:?}");
            }
        }
    }
}

#[test]
fn scalar_operations_agree() {
    use Op::*;
    #[rustfmt::skip]
    let ops = [
        S_MIN_I32, S_MIN_U32, S_MAX_I32, S_MAX_U32, S_LSHL1_ADD_U32, S_LSHL2_ADD_U32, S_LSHL3_ADD_U32, S_LSHL4_ADD_U32,
        S_PACK_LL_B32_B16, S_PACK_LH_B32_B16, S_PACK_HL_B32_B16, S_PACK_HH_B32_B16, S_MULK_I32, S_MUL_HI_U32, S_MUL_HI_I32,
        S_BFE_U32, S_BFE_I32, S_SEXT_I32_I8, S_SEXT_I32_I16, S_CTZ_I32_B32, S_CLZ_I32_U32, S_BCNT1_I32_B32,
        S_BCNT1_I32_B64, S_ABS_I32, S_BITSET0_B32, S_BITSET1_B32, S_BITCMP0_B32, S_BITCMP1_B32, S_NOT_B64,
        S_AND_SAVEEXEC_B64, S_OR_SAVEEXEC_B64, S_XOR_SAVEEXEC_B64, S_AND_NOT0_SAVEEXEC_B64, S_AND_NOT1_SAVEEXEC_B64,
        S_OR_NOT0_SAVEEXEC_B64,
    ];
    hunt(0x05CA_1A51, 6, 2, &ops);
}

/// Scalars from lanes and to lanes, between operations whose rows are in registers.
#[test]
fn lanes_as_scalars_agree() {
    use Op::*;
    let ops = [V_READLANE_B32, V_READFIRSTLANE_B32, V_WRITELANE_B32, V_ADD_NC_U32, V_XOR_B32, V_CMP_LT_U32];
    hunt(0x0A5C_A1A2, 3, 2, &ops);
    hunt(0x0A5C_A1A4, 24, 3, &ops);
}

/// Permutations of rows, also those that write the register they read.
#[test]
fn permuted_rows_agree() {
    use Op::*;
    let ops = [V_PERMLANE16_B32, V_PERMLANEX16_B32, V_ADD_NC_U32, V_XOR_B32];
    hunt(0x0EE5_0EE5, 2, 2, &ops);
    hunt(0x0EE6_0EE6, 16, 3, &ops);
}

#[test]
fn permuted_operations_agree() {
    if !generates_code() {
        return;
    }
    let ops = {
        use Op::*;
        [V_MOV_B32, V_ADD_F32, V_MAX_F32, V_ADD_NC_U32, V_MIN_U32, V_FMAC_F32, V_CNDMASK_B32, V_CMP_LT_F32]
    };
    hunt(0x0DD5_0DD5, 2, 2, &ops);
    hunt(0x0DD6_0DD6, 24, 3, &ops);
}
