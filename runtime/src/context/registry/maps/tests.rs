// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bookkeeping against an array with an entry for every page.

use proptest::prelude::*;

use super::*;
use crate::Access;
use crate::context::registry::Key;

/// First address of the model's range.
const BASE: u64 = 1 << 44;
/// Its pages.
const PAGES: u64 = 24;

/// A page of the model: which page of which memory is there, and what the agents may do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Page {
    memory: u32,
    page: u64,
    access: [Access; 2],
}

#[derive(Clone, Debug)]
enum Step {
    Map { at: u64, pages: u64, memory: u32, offset: u64 },
    Unmap { at: u64, pages: u64 },
    Access { at: u64, pages: u64, agent: u32, access: Access },
}

fn span() -> impl Strategy<Value = (u64, u64)> {
    (0..PAGES).prop_flat_map(|at| (Just(at), 1..=PAGES - at))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let access = prop_oneof![
        Just(Access::None),
        Just(Access::Read),
        Just(Access::ReadWrite),
        Just(Access::ReadWriteExecute)
    ];
    let map = (span(), 0..3u32, 0..9u64);
    let step = prop_oneof![
        3 => map.prop_map(|((at, pages), memory, offset)| Step::Map { at, pages: pages.min(6), memory, offset }),
        2 => span().prop_map(|(at, pages)| Step::Unmap { at, pages: pages.min(5) }),
        2 => (span(), 0..2u32, access).prop_map(|((at, pages), agent, access)| Step::Access {
            at,
            pages: pages.min(7),
            agent,
            access
        }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Cuts at the edges of a span that is mapped throughout and gives the entries inside; what the API does around its
/// calls of the driver.
fn inside(maps: &mut Maps, va: u64, bytes: u64) -> Option<Vec<MapKey>> {
    if maps.hole(va, bytes).is_some() {
        return None;
    }
    for edge in [va, va + bytes] {
        if let Some((key, _)) = maps.at(edge) {
            maps.cut(key, edge);
        }
    }
    Some(maps.touching(va, bytes))
}

fn apply(maps: &mut Maps, step: &Step) -> bool {
    match *step {
        Step::Map { at, pages, memory, offset } => maps
            .insert(MapState {
                range: Key::from_raw(9, 0),
                va: BASE + at * PAGE,
                bytes: pages * PAGE,
                memory: Key::from_raw(memory, 0),
                offset: offset * PAGE,
                access: Vec::new(),
            })
            .is_ok(),
        Step::Unmap { at, pages } => match inside(maps, BASE + at * PAGE, pages * PAGE) {
            Some(keys) => keys.into_iter().all(|key| maps.remove(key).is_some()),
            None => false,
        },
        Step::Access { at, pages, agent, access } => match inside(maps, BASE + at * PAGE, pages * PAGE) {
            Some(keys) => {
                for key in keys {
                    maps.get_mut(key).unwrap().state.set_access(AgentIndex(agent), access);
                }
                true
            }
            None => false,
        },
    }
}

fn apply_to_model(model: &mut [Option<Page>], step: &Step) -> bool {
    let span = |at: u64, pages: u64| at as usize..(at + pages) as usize;
    match *step {
        Step::Map { at, pages, memory, offset } => {
            let place = &mut model[span(at, pages)];
            if place.iter().any(Option::is_some) {
                return false;
            }
            for (page, n) in place.iter_mut().zip(offset..) {
                *page = Some(Page { memory, page: n, access: [Access::None; 2] });
            }
            true
        }
        Step::Unmap { at, pages } => {
            let place = &mut model[span(at, pages)];
            let whole = place.iter().all(Option::is_some);
            if whole {
                place.fill(None);
            }
            whole
        }
        Step::Access { at, pages, agent, access } => {
            let place = &mut model[span(at, pages)];
            let whole = place.iter().all(Option::is_some);
            if whole {
                place.iter_mut().flatten().for_each(|page| page.access[agent as usize] = access);
            }
            whole
        }
    }
}

fn pages_of(maps: &Maps) -> Vec<Option<Page>> {
    (0..PAGES)
        .map(|n| {
            let va = BASE + n * PAGE;
            let (_, entry) = maps.at(va)?;
            let access = [0, 1].map(|agent| entry.state.access_of(AgentIndex(agent)));
            let page = (entry.state.offset + (va - entry.state.va)) / PAGE;
            Some(Page { memory: entry.state.memory.index(), page, access })
        })
        .collect()
}

proptest! {
    #[test]
    fn entries_say_of_every_page_what_a_page_array_says(steps in steps()) {
        let (mut maps, mut model) = (Maps::default(), vec![None; PAGES as usize]);
        for step in &steps {
            let before = pages_of(&maps);
            let taken = apply(&mut maps, step);
            prop_assert_eq!(taken, apply_to_model(&mut model, step), "{:?}", step);
            let after = pages_of(&maps);
            prop_assert_eq!(&after, &model, "{:?}", step);
            prop_assert!(taken || before == after, "a refused step changed something: {:?}", step);
            let mapped = model.iter().flatten().count() as u64;
            prop_assert_eq!(maps.iter().map(|(_, entry)| entry.state.bytes).sum::<u64>(), mapped * PAGE);
        }
        let state = maps.save();
        let copy = Maps::restore((), &state).unwrap();
        prop_assert_eq!(copy.save(), state);
        prop_assert_eq!(pages_of(&copy), model);
    }
}

#[test]
fn hole_is_the_first_address_without_memory() {
    let mut maps = Maps::default();
    assert!(apply(&mut maps, &Step::Map { at: 1, pages: 2, memory: 0, offset: 0 }));
    assert!(apply(&mut maps, &Step::Map { at: 3, pages: 1, memory: 1, offset: 4 }));
    assert_eq!(maps.hole(BASE + PAGE, 3 * PAGE), None);
    assert_eq!(maps.hole(BASE + PAGE, 4 * PAGE), Some(BASE + 4 * PAGE));
    assert_eq!(maps.hole(BASE, 4 * PAGE), Some(BASE));
    assert_eq!(maps.touching(BASE + 2 * PAGE, PAGE).len(), 1);
    assert_eq!(maps.touching(BASE + 2 * PAGE + 1, PAGE).len(), 2);
    assert!(maps.touching(BASE + 2 * PAGE, 0).is_empty());
}

#[test]
fn overlap_names_the_first_in_the_way() {
    let mut maps = Maps::default();
    assert!(apply(&mut maps, &Step::Map { at: 2, pages: 2, memory: 0, offset: 0 }));
    let (first, entry) = maps.iter().next().unwrap();
    let state = MapState { va: BASE + 3 * PAGE, bytes: 4 * PAGE, ..entry.state.clone() };
    assert_eq!(maps.insert(state), Err(first));
    assert_eq!(maps.len(), 1);
}
