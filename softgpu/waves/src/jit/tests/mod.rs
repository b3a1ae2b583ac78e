// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generated code against the interpreter: random programs, all state compared bit for bit.

mod random;

use std::sync::Arc;

use random::{Random, VGPRS};
use softgpu_isa::{Op, decode};

use super::run;
use crate::engine::Engine;
use crate::env::{Env, Hot, Identity, Lds};
use crate::interp::{Code, Control, WaveStop, interpret_wave};
use crate::level::Level;
use crate::predecode::Shape;
use crate::program::Cache;
use crate::vm::{Access, Vm};
use crate::wave::{Wave, mode};

fn wave(r: &mut Random, lanes: usize, at: u64) -> Wave {
    let mut w = Wave::new(lanes, VGPRS as usize);
    let calm = r.chance(2);
    for row in w.v.iter_mut() {
        for x in &mut row.0 {
            *x = if calm { (r.below(4000) as f32 / 32.0 - 40.0).to_bits() } else { r.bits() };
        }
    }
    for k in 0..108 {
        w.s[k] = r.bits();
    }
    w.set_exec(if r.chance(2) { u64::MAX } else { r.next() & r.next() | r.next() << 40 });
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

/// Memory that programs are put into, mapped for execution, and their data behind it.
struct Place {
    vm: Arc<Vm>,
    at: u64,
}

const BYTES: usize = 1 << 16;

/// Everything a program leaves beside the wave.
type Left = (WaveStop, u64, Vec<u32>, Vec<u8>);

impl Place {
    fn new() -> Place {
        // Aligned, so that no offset within it carries into the high dword.
        let memory: &'static mut [u32] = Box::leak(vec![0u32; BYTES / 2].into_boxed_slice());
        let at = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(BYTES as u64);
        let vm = Vm::new();
        vm.map(at..at + BYTES as u64, Access::ALL).unwrap();
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

fn execute(place: &Place, w: &mut Wave, level: Level, engine: Engine) -> Left {
    let cache = Cache::default();
    let map = place.vm.lock();
    let shape = Shape { halves: w.halves, vgprs: w.vgprs() };
    let main = cache.get(&map, level.min(Level::Avx2), shape, place.at);
    let mut code = Code { cache: &cache, level, shape, programs: vec![main], hot: Hot::new(), engine };
    let pattern: Vec<u8> = (0..random::DATA_BYTES as usize).map(|k| (k * 7 + k / 251) as u8).collect();
    drop(map);
    place.vm.write_bytes(place.data(), &pattern).unwrap();
    let map = place.vm.lock();
    let (mut lds, mut hot) = (Lds::new(), Hot::new());
    for (k, x) in lds.iter_mut().enumerate() {
        *x = (k as u32).wrapping_mul(0x9E37_79B9);
    }
    let mut env = Env::new(&map, &mut lds, &mut hot, Identity::default());
    let control = Control::new();
    let stop = match engine {
        Engine::Interp => interpret_wave(w, &mut env, &mut code, &control, 100_000),
        _ => run(w, &mut env, &mut code, &control, 100_000).expect("generated code"),
    };
    let executed = env.executed;
    drop(map);
    let mut data = pattern;
    place.vm.read_bytes(place.data(), &mut data).unwrap();
    (stop, executed, lds.to_vec(), data)
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

/// What differs, in words.
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

fn compare(place: &Place, seed: u64, body: usize, turns: u32, ops: &[Op]) -> Result<(), String> {
    let mut r = Random(seed | 1);
    let words = random::program(&mut r, body, turns, ops);
    place.put(&words);
    let lanes = if r.chance(4) { 64 } else { 32 };
    let mut start = wave(&mut r, lanes, place.at);
    start.set_s64(random::DATA as usize, place.data());
    let mut want = start.clone();
    let stop = execute(place, &mut want, Level::best(), Engine::Interp);
    for level in [Level::Avx2, Level::Avx512].into_iter().filter(|&l| l <= Level::best()) {
        let mut got = start.clone();
        let other = execute(place, &mut got, level, Engine::Jit);
        let what = if (stop.0, stop.1) != (other.0, other.1) {
            Some(format!("{:?} is {:?}", (stop.0, stop.1), (other.0, other.1)))
        } else if stop.2 != other.2 {
            let at = (0..stop.2.len()).find(|&k| stop.2[k] != other.2[k]);
            Some(format!("LDS at dword {at:?}"))
        } else if stop.3 != other.3 {
            let at = (0..stop.3.len()).find(|&k| stop.3[k] != other.3[k]);
            Some(format!("memory at {at:?}"))
        } else if stop.0 == WaveStop::Exception {
            // A fault is imprecise: what stood in front of the access may not have happened yet.
            None
        } else {
            difference(&want, &got)
        };
        if let Some(what) = what {
            return Err(format!(
                "seed {seed}, {body} x {turns}, {lanes} lanes, {level:?}, mode {:#x}, exec {:#x}: {what}\n{}",
                start.mode,
                start.exec(),
                listing(&words)
            ));
        }
    }
    Ok(())
}

/// The smallest of some random programs that fail, if any does.
fn hunt(first: u64, count: u64, body: usize, turns: u32, ops: &[Op]) {
    let place = Place::new();
    let mut r = Random(first | 1);
    let mut failures = 0;
    for _ in 0..count {
        let seed = r.next();
        let size = 1 + r.below(body as u64) as usize;
        if let Err(text) = compare(&place, seed, size, 1 + r.below(u64::from(turns)) as u32, ops) {
            println!("{text}");
            failures += 1;
        }
    }
    assert_eq!(failures, 0);
}

/// How many random programs a test runs; `STASIS_FUZZ_PROGRAMS` asks for more.
fn programs() -> u64 {
    std::env::var("STASIS_FUZZ_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

#[test]
fn single_instructions_agree() {
    if Level::best() < Level::Avx2 {
        println!("skipped: this CPU has no AVX2, so there is no generated code");
        return;
    }
    hunt(0x1234_5678, programs() * 4, 1, 2, &[]);
}

#[test]
fn programs_of_any_operations_agree() {
    if Level::best() < Level::Avx2 {
        println!("skipped: this CPU has no AVX2, so there is no generated code");
        return;
    }
    hunt(0x9876_5432, programs(), 40, 3, &[]);
}
