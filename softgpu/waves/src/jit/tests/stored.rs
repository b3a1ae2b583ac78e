// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generated code that another process saved: the same results, wherever the program is in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::random::Random;
use super::{Left, Place, disagreement, random, session_in, wave};
use crate::code::{WaveStop, Waves};
use crate::control::Control;
use crate::engine::{Effort, Engine};
use crate::facts::Fact;
use crate::interp::{interpret_wave, run_waves};
use crate::level::Level;
use crate::predecode::Shape;
use crate::program::Cache;
use crate::run_compiled::run;
use crate::store::{Key, Store};
use crate::wave::Wave;

fn store(directory: &Path) -> Arc<Store> {
    Store::in_directory(&directory.join("code")).unwrap()
}

/// Runs generated code, as a new process does.
fn in_new_process(place: &Place, w: &mut Wave, store: &Arc<Store>) -> Left {
    let cache = Cache::with_store(Some(Arc::clone(store)));
    session_in(&cache, place, w, Level::best(), Engine::Jit, |w, env, code| {
        run(&mut Waves::alone(w), env, code, &Control::new(), 100_000).expect("generated code")
    })
}

#[test]
fn saved_code_gives_the_same_results_at_another_address() {
    if Level::best() < Level::Avx2 {
        println!("skipped: this CPU has no AVX2, so there is no generated code");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (Place::new(), Place::new());
    let mut r = Random(0x5709_ED01);
    for _ in 0..200 {
        let seed = r.next();
        let words = random::program(&mut Random(seed | 1), 1 + (seed >> 8) as usize % 20, 3, &[]);
        let lanes = if seed & 2 == 0 { 32 } else { 64 };
        let start = |place: &Place| {
            place.put(&words);
            let mut w = wave(&mut Random(seed | 1), lanes, place.at);
            w.set_s64(random::DATA as usize, place.data());
            w
        };
        let mut saving = start(&first);
        in_new_process(&first, &mut saving, &store(directory.path()));
        let mut want = start(&second);
        let cache = Cache::default();
        let expected =
            session_in(&cache, &second, &mut want, Level::best(), Engine::Interp, |w, env, code| {
                interpret_wave(w, env, code, &Control::new(), 100_000)
            });
        let (mut got, again) = (start(&second), store(directory.path()));
        let found = in_new_process(&second, &mut got, &again);
        assert!(again.found() > 0 && again.saved() == 0, "seed {seed:#x}");
        assert_eq!(disagreement((&want, &expected), (&got, &found)), None, "seed {seed:#x}");
    }
}

/// s30 = 60; do { v0 += 1; s30 -= 1 } while (s30 != 0).
const LOOP: [u32; 6] = [0xBE9E_00BC, 0x4A00_0081, 0x809E_811E, 0xBF07_801E, 0xBFA2_FFFC, random::END];

#[test]
fn saved_code_is_used_before_any_would_be_generated_and_after_a_restore() {
    if Level::best() < Level::Avx2 {
        println!("skipped: this CPU has no AVX2, so there is no generated code");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = Place::new();
    place.put(&LOOP);
    let auto = |w: &mut Wave, store: &Arc<Store>, budget: u32, is_there: bool| {
        let cache = Cache::with_store(Some(Arc::clone(store)));
        session_in(&cache, &place, w, Level::best(), Engine::Auto, |w, env, code| {
            // The file is looked for by another thread.
            let deadline = Instant::now() + Duration::from_secs(if is_there { 60 } else { 0 });
            while !code.programs[0].has_code(code.level, w) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(code.programs[0].has_code(code.level, w), is_there);
            run_waves(&mut Waves::alone(w), env, code, &Control::new(), budget)
        })
        .0
    };
    let mut start = Wave::new(32, 8);
    (start.pc, start.items) = (place.at, None);
    start.set_exec(u64::MAX);

    // Too few instructions to have code generated.
    let cold = store(directory.path());
    assert_eq!(auto(&mut start.clone(), &cold, 100_000, false), WaveStop::Ended);
    assert_eq!((cold.found(), cold.saved()), (0, 0));

    in_new_process(&place, &mut start.clone(), &cold);
    assert_eq!(cold.saved(), 1);
    let warm = store(directory.path());
    let mut w = start.clone();
    assert_eq!(auto(&mut w, &warm, 40, true), WaveStop::Quantum);
    assert_eq!((warm.found(), warm.saved()), (1, 0));
    // The wave goes on in a process that knows its registers only.
    let (restored, mut moved) = (store(directory.path()), Wave::new(32, 8));
    moved.v.clone_from(&w.v);
    (moved.s, moved.pc, moved.scc, moved.mode) = (w.s, w.pc, w.scc, w.mode);
    assert_ne!(moved.pc, place.at);
    assert_eq!(auto(&mut moved, &restored, 100_000, true), WaveStop::Ended);
    assert_eq!((restored.found(), restored.saved()), (1, 0));
    assert_eq!(moved.v[0].0, [60; 32]);
}

#[test]
fn what_code_depends_on_is_in_its_key() {
    let place = Place::new();
    let key_of =
        |words: &[u32], shape: Shape, level: Level, mode: u32, items: Option<Fact>, effort: Effort| {
            place.put(words);
            let (cache, map) = (Cache::default(), place.vm.lock());
            Key::new(&cache.get(&map, level.min(Level::best()), shape, place.at), level, mode, items, effort)
        };
    let key =
        |words: &[u32], shape, level, mode, items| key_of(words, shape, level, mode, items, Effort::Full);
    let shape = Shape { halves: 1, vgprs: 8 };
    let items = Fact::of_items([256, 1, 1], u32::MAX);
    let mut other = LOOP;
    other[1] += 1;
    let keys = [
        key(&LOOP, shape, Level::Avx2, 0xF0, None),
        key(&other, shape, Level::Avx2, 0xF0, None),
        key(&LOOP, Shape { halves: 2, ..shape }, Level::Avx2, 0xF0, None),
        key(&LOOP, Shape { vgprs: 16, ..shape }, Level::Avx2, 0xF0, None),
        key(&LOOP, shape, Level::Avx512, 0xF0, None),
        key(&LOOP, shape, Level::Avx2, 0xF1, None),
        key(&LOOP, shape, Level::Avx2, 0xF0, items),
        key(&LOOP, shape, Level::Avx2, 0xF0, Fact::of_items([16, 16, 1], u32::MAX)),
        key(&LOOP, shape, Level::Avx2, 0xF0, Some(Fact::NOTHING)),
        key_of(&LOOP, shape, Level::Avx2, 0xF0, None, Effort::Quick),
    ];
    for (k, one) in keys.iter().enumerate() {
        assert!(keys[..k].iter().all(|other| other != one), "{k}");
    }
    assert_eq!(keys[0], key(&LOOP, shape, Level::Avx2, 0xF0, None));
}
