// SPDX-License-Identifier: MIT OR Apache-2.0
//! Meetings in one process: threads as members, plain files as memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::registrations::Registrations;
use super::wire::{Answer, Ask};
use super::*;
use crate::context::device::identify;
use crate::context::registry::state::DmabufId;
use crate::linux::process::Process;

/// TIMEOUT: longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

fn memory(inode: u64) -> DmabufId {
    DmabufId { device: 1, inode }
}

fn file() -> OwnedFd {
    nix::sys::memfd::memfd_create("memory", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap()
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

/// One member that wants all of `wanted`; what it got, and the coordinator if it led.
fn come(
    point: &RendezvousPoint,
    name: &str,
    members: &[String],
    wanted: &[DmabufId],
    made: &AtomicU32,
) -> (Vec<DmabufId>, Option<Coordinator>) {
    let (client, coordinator) = point.join(name, members, PATIENCE, &Limit::none()).unwrap();
    let mut got = Vec::new();
    let make = client.claim(wanted).unwrap();
    for (id, _) in wanted.iter().zip(&make).filter(|(_, make)| **make) {
        let file = file();
        made.fetch_add(1, Ordering::Relaxed);
        got.push(identify(&file).unwrap());
        client.put(*id, file.as_fd()).unwrap();
    }
    for (id, _) in wanted.iter().zip(&make).filter(|(_, make)| !**make) {
        let Claim::Found(file) = client.fetch(*id, PATIENCE, &Limit::none()).unwrap() else {
            panic!("made by others")
        };
        got.push(identify(&file).unwrap());
    }
    client.done().unwrap();
    got.sort_unstable();
    (got, coordinator)
}

#[test]
fn members_in_any_order_share_what_was_made_once() {
    let directory = tempfile::tempdir().unwrap();
    let point = RendezvousPoint::of(directory.path()).unwrap();
    let (members, wanted, made) = (names(4), [memory(1), memory(2), memory(3)], AtomicU32::new(0));
    let got: Vec<_> = std::thread::scope(|scope| {
        let come = |name: &String| {
            let name = name.clone();
            let (point, members, wanted, made) = (&point, &members, &wanted, &made);
            scope.spawn(move || come(point, &name, members, wanted, made))
        };
        let threads: Vec<_> = members.iter().map(come).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(made.load(Ordering::Relaxed), 3);
    assert!(got.iter().all(|(ids, _)| *ids == got[0].0), "{got:?}");
    assert_eq!(got.iter().filter(|(_, coordinator)| coordinator.is_some()).count(), 1);
    drop(got);
    assert!(!point.file("sock").exists());
}

#[test]
fn late_member_finds_the_coordinator_and_one_later_than_that_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let point = RendezvousPoint::of(directory.path()).unwrap();
    let (members, made) = (names(3), AtomicU32::new(0));
    let (first, coordinator) = come(&point, "m0", &members, &[memory(1)], &made);
    assert!(!coordinator.as_ref().unwrap().is_over());
    let (second, none) = come(&point, "m1", &members, &[memory(1)], &made);
    assert_eq!((first, none.is_none(), made.load(Ordering::Relaxed)), (second, true, 1));
    let twice = point.join("m1", &members, PATIENCE, &Limit::none()).unwrap_err();
    assert!(matches!(&twice, RendezvousError::Refused { reason } if reason.contains("m1")), "{twice}");
    // The coordinator ends before the third came, and another participant has finished with what it had.
    drop(coordinator);
    let alive = serde_json::json!([{ "name": "m1", "pid": 1, "started": Process::of(1).unwrap().started }]);
    fs::write(point.file("record"), alive.to_string()).unwrap();
    let error = point.join("m2", &members, PATIENCE, &Limit::none()).unwrap_err();
    assert!(matches!(&error, RendezvousError::GoneOn { names } if names == &["m1"]), "{error}");
}

#[test]
fn participants_that_ended_leave_the_point_to_a_new_rendezvous() {
    let directory = tempfile::tempdir().unwrap();
    let point = RendezvousPoint::of(directory.path()).unwrap();
    let finished = serde_json::json!([{ "name": "m0", "pid": 1, "started": u64::MAX }]);
    fs::write(point.file("record"), finished.to_string()).unwrap();
    let made = AtomicU32::new(0);
    come(&point, "m1", &names(2), &[memory(1)], &made);
    assert_eq!(made.load(Ordering::Relaxed), 1);
}

#[test]
fn maker_that_leaves_is_replaced_and_a_wait_can_be_ended() {
    let directory = tempfile::tempdir().unwrap();
    let point = RendezvousPoint::of(directory.path()).unwrap();
    let members = names(2);
    let (maker, _coordinator) = point.join("m0", &members, PATIENCE, &Limit::none()).unwrap();
    assert_eq!(maker.claim(&[memory(1)]).unwrap(), [true]);
    let (other, _) = point.join("m1", &members, PATIENCE, &Limit::none()).unwrap();
    assert_eq!(other.claim(&[memory(1)]).unwrap(), [false]);
    drop(other);
    let short = Duration::from_millis(50);
    for (patience, limit) in [(PATIENCE, Limit::within(short)), (short, Limit::none())] {
        let (other, _) = point.join("m1", &members, PATIENCE, &Limit::none()).unwrap();
        let late = other.fetch(memory(1), patience, &limit).unwrap_err();
        assert!(matches!(late, RendezvousError::Late { dmabuf, .. } if dmabuf == memory(1)), "{late}");
    }
    let (other, _) = point.join("m1", &members, PATIENCE, &Limit::none()).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.fetch(memory(1), PATIENCE, &Limit::none()).unwrap());
        drop(maker);
        assert!(matches!(waiter.join().unwrap(), Claim::Make));
    });
}

/// What a member of the model does next.
#[derive(Clone, Debug)]
enum Step {
    Claim(usize, u64),
    Put(usize),
    Fetch(usize, u64),
    Leave(usize),
    Done(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4usize, 0..3u64).prop_map(|(m, id)| Step::Claim(m, id)),
        (0..4usize).prop_map(Step::Put),
        (0..4usize, 0..3u64).prop_map(|(m, id)| Step::Fetch(m, id)),
        (0..4usize).prop_map(Step::Leave),
        (0..4usize).prop_map(Step::Done),
    ]
}

proptest! {
    /// Whatever members do, no memory is put twice, nobody gets two answers, and who waits is answered as soon as the
    /// memory is there or becomes his to make.
    #[test]
    fn no_memory_is_made_twice_and_nobody_waits_for_nobody(steps in prop::collection::vec(step(), 1..80)) {
        let names = names(4);
        let mut registrations = Registrations::<u64>::new(&names);
        // By member: what it makes, what it waits for, whether it is there.
        let (mut makes, mut waits, mut here) = (vec![Vec::new(); 4], vec![None; 4], vec![false; 4]);
        let mut ready = std::collections::BTreeMap::<u64, u64>::new();
        let mut next = 100;
        for step in steps {
            let (m, replies) = match step {
                Step::Claim(m, _) | Step::Fetch(m, _) if waits[m].is_some() => (m, Vec::new()),
                Step::Claim(m, id) => {
                    if !here[m] {
                        let join = Ask::Join { name: names[m].clone(), process: Process { pid: 1, started: 1 } };
                        here[m] = matches!(registrations.handle(m as u64, join, None)[0].answer, Answer::Granted);
                    }
                    (m, registrations.handle(m as u64, Ask::Claim(vec![memory(id)]), None))
                }
                Step::Put(m) => {
                    let Some(id) = makes[m].pop() else { continue };
                    prop_assert!(ready.insert(id, next).is_none(), "made twice");
                    let replies = registrations.handle(m as u64, Ask::Put(memory(id)), Some(next));
                    prop_assert!(matches!(replies[0].answer, Answer::Granted));
                    next += 1;
                    (m, replies[1..].iter().map(|r| super::registrations::Reply { participant: r.participant, answer: Answer::Found, file: r.file }).collect())
                }
                Step::Fetch(m, id) if here[m] && !makes[m].contains(&id) => {
                    waits[m] = Some(id);
                    (m, registrations.handle(m as u64, Ask::Fetch(memory(id)), None))
                }
                Step::Fetch(..) => continue,
                Step::Leave(m) | Step::Done(m) => {
                    let replies = match step {
                        Step::Done(_) if here[m] && waits[m].is_none() => {
                            let mut replies = registrations.handle(m as u64, Ask::Done, None);
                            replies.remove(0);
                            replies
                        }
                        _ => registrations.disconnected(m as u64),
                    };
                    (makes[m], waits[m], here[m]) = (Vec::new(), None, false);
                    (m, replies)
                }
            };
            for reply in replies {
                let to = reply.participant as usize;
                match (reply.answer, reply.file) {
                    (Answer::Found, Some(file)) => {
                        let id = waits[to].take().unwrap();
                        prop_assert_eq!(ready.get(&id), Some(&file));
                    }
                    (Answer::Make(make), None) => {
                        // To the claimant of this step, or to one that waits.
                        let id = match (waits[to].take(), &step) {
                            (Some(id), _) => id,
                            (None, Step::Claim(_, id)) => *id,
                            (None, other) => panic!("nobody asked: {other:?}"),
                        };
                        if make == [true] && !makes[to].contains(&id) {
                            prop_assert!(!ready.contains_key(&id));
                            makes[to].push(id);
                        }
                    }
                    (Answer::Refused(_), None) => prop_assert!(!here[m]),
                    (other, _) => panic!("{other:?}"),
                }
            }
            for id in waits.iter().flatten() {
                prop_assert!(!ready.contains_key(id), "{id} is there and waited for");
                prop_assert!(makes.iter().any(|made| made.contains(id)), "nobody makes {id}");
            }
            for id in 0..3 {
                prop_assert!(makes.iter().filter(|made| made.contains(&id)).count() <= 1);
            }
        }
    }
}
