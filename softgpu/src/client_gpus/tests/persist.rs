// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPUs that are saved and restored: their pages, their clock, and what the host data path held back.

use std::os::fd::AsFd;

use super::super::GpusState;
use super::hdp::FAR;
use super::*;
use crate::journal::Journal;
use crate::persist::{Memories, PersistError};

fn save(gpus: &ClientGpus) -> (GpusState, Memories) {
    let (state, memories) = gpus.save().unwrap();
    (state, memories.into_iter().collect())
}

fn restore(state: &GpusState, memories: &Memories) -> Result<ClientGpus, PersistError> {
    ClientGpus::restore(&[chip()], Arc::<Journal>::default(), state, memories)
}

/// The state without the time.
fn timeless(state: GpusState) -> GpusState {
    at(0, state)
}

/// The state when the clock counters were at `ticks`.
fn at(ticks: u64, mut state: GpusState) -> GpusState {
    state.gpus.iter_mut().for_each(|gpu| gpu.ticks = ticks);
    state
}

#[test]
fn pages_come_back_as_they_were() {
    let gpus = ClientGpus::new(&[chip()]).unwrap();
    let (slice, _parked) = gpus.doorbells(0).unwrap();
    nix::sys::uio::pwrite(&slice, &77u64.to_le_bytes(), 40).unwrap();
    let page = gpus.hdp_page(0).unwrap();
    let (state, memories) = save(&gpus);
    drop(gpus);
    let again = restore(&state, &memories).unwrap();
    let identity = |fd: &std::os::fd::OwnedFd| super::super::identity(fd.as_fd()).unwrap();
    let (restored, _) = again.doorbells(0).unwrap();
    assert_eq!(identity(&restored), identity(&slice));
    assert_eq!(identity(&again.hdp_page(0).unwrap()), identity(&page));
    assert_eq!(again.gpus[0].gpu().doorbells.value(40), 77);
    assert_eq!(timeless(save(&again).0), timeless(state.clone()));
    let names: Vec<_> = state.memories().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    assert_eq!(names.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [8192, 4096, 4096]);
    assert!(names.iter().all(|(name, bytes)| memories.get(name).unwrap().bytes == *bytes));
    let bytes = postcard::to_stdvec(&state).unwrap();
    assert_eq!(postcard::from_bytes::<GpusState>(&bytes).unwrap(), state);
}

#[test]
fn a_client_that_only_stores_is_known_as_one() {
    let gpus = ClientGpus::new(&[chip()]).unwrap();
    gpus.expect_stores(0, None).unwrap();
    let (state, memories) = save(&gpus);
    assert_eq!(state.gpus[0].storing_mappings, Some(1));
    let again = restore(&state, &memories).unwrap();
    assert_eq!(timeless(save(&again).0), timeless(state));
    assert_eq!(save(&ClientGpus::new(&[chip()]).unwrap()).0.gpus[0].storing_mappings, None);
}

#[test]
fn the_clock_goes_on_from_where_it_was() {
    let gpus = ClientGpus::new(&[chip()]).unwrap();
    let (state, memories) = save(&gpus);
    // From a machine that has been on for longer; and from one that was switched on later.
    for ticks in [state.gpus[0].ticks + (1 << 50), state.gpus[0].ticks, 5] {
        let again = restore(&at(ticks, state.clone()), &memories).unwrap();
        let now = again.clock(0);
        assert!((ticks..ticks + 1_000_000_000).contains(&now), "{ticks} {now}");
        std::thread::sleep(Duration::from_millis(1));
        assert!(again.clock(0) >= now + 100_000);
    }
}

#[test]
fn stores_that_were_held_back_or_late_arrive() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let (late, held) = (machine.behind_aperture(8 * 4096), machine.behind_aperture(8 * 4096));
    late.u32(FAR).store(7, Ordering::SeqCst);
    held.u32(FAR).store(8, Ordering::SeqCst);
    assert_eq!(machine.seen(&queue, late.va + FAR as u64), 0, "not flushed");
    assert_eq!(late.u32(FAR).load(Ordering::SeqCst), 0);
    queue.stop();
    save(&machine.gpus);
    assert_eq!(late.u32(FAR).load(Ordering::SeqCst), 7);
    queue.start();
    for (buffer, value) in [(&late, 7), (&held, 8)] {
        assert_eq!(machine.seen(&queue, buffer.va + FAR as u64), value);
    }
}

#[test]
fn states_of_other_gpus_and_without_their_pages_are_refused() {
    let gpus = ClientGpus::new(&[chip()]).unwrap();
    let (state, memories) = save(&gpus);
    let refused = |state: &GpusState, memories: &Memories| restore(state, memories).map(drop).unwrap_err();
    let mut other = state.clone();
    other.gpus[0].chip = "gfx90a".to_owned();
    assert_eq!(refused(&other, &memories).to_string(), "GPU 0 was a gfx90a of 1 XCCs, it is a gfx1100 of 1");
    other = state.clone();
    other.gpus.push(other.gpus[0].clone());
    assert!(matches!(refused(&other, &memories), PersistError::Damaged { .. }));
    assert!(matches!(refused(&state, &Memories::new()), PersistError::NoMemory { .. }));
    // One page in two places, and the slice and the page exchanged.
    other = state.clone();
    other.gpus[0].hdp = Some(state.gpus[0].parked.clone());
    assert!(matches!(refused(&other, &memories), PersistError::Damaged { .. }));
    other = state.clone();
    let gpu = &mut other.gpus[0];
    std::mem::swap(&mut gpu.doorbells, &mut gpu.parked);
    assert!(matches!(refused(&other, &memories), PersistError::MemorySize { bytes: 8192, found: 4096, .. }));
}
