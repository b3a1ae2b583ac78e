// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every device call of every verb fails once with every errno: the verb says so and leaves the state it found with
//! everything as it was, and works once the fault is gone.

use std::error::Error;
use std::time::{Duration, Instant};

use kfd::Errno;

use super::{Mode, State};
use crate::linux::incarnation::Incarnation;
use crate::testing::TestDriver;
use crate::testing::faulty::{self, Faults, Holdings};
use crate::*;

const ERRNOS: [Errno; 7] =
    [Errno::ENOMEM, Errno::EINTR, Errno::EAGAIN, Errno::EIO, Errno::ENOSPC, Errno::ENODEV, Errno::ETIMEDOUT];

/// TIMEOUT: a generous limit for what takes microseconds.
const SOON: Duration = Duration::from_secs(60);

/// More calls than any verb makes.
const MANY: u64 = 10_000;

/// Waits for threads that are on their way out, then compares.
#[track_caller]
fn assert_holds(kernel: &TestDriver, before: &Holdings, what: &str) {
    let deadline = Instant::now() + SOON;
    let look =
        || Holdings { process: before.process.and(Holdings::of(kernel).process), ..Holdings::of(kernel) };
    let mut found = look();
    while found != *before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
        found = look();
    }
    assert_eq!(found, *before, "{what}");
}

/// The causes of an error, which must say what was refused.
fn assert_named(error: &dyn Error, call: &str, errno: Errno, what: &str) {
    let text = explain(error);
    if errno == Errno::ENOMEM && text.contains("is out of memory") {
        // Said with what was wanted and what there is.
        return;
    }
    let (name, number) = (format!("{errno:?}"), format!("(os error {})", errno as i32));
    assert!(text.contains(&name) || text.contains(&number), "{what}: {text}");
    // An ioctl has a name; mmap and open have the path.
    let name = call.rsplit(' ').next().unwrap();
    assert!(text.contains(name), "{what}: {name} is not named: {text}");
}

/// Does something under a fault; if it fails, everything must be as before, and doing it again must work. Says whether
/// it failed.
fn attempt<T, E: Error>(
    kernel: &TestDriver,
    faults: &Faults,
    errno: Errno,
    what: &str,
    mut act: impl FnMut() -> Result<T, E>,
) -> (T, bool) {
    let before = Holdings::of(kernel);
    match act() {
        Ok(done) => (done, false),
        Err(error) => {
            let call = faults.taken().unwrap_or_else(|| panic!("{what} failed without a fault: {error:?}"));
            faults.disarm();
            let what = format!("{what}, {errno} from {call}");
            assert_named(&error, &call, errno, &what);
            assert_holds(kernel, &before, &what);
            let done = act().unwrap_or_else(|error| panic!("{what}, then without a fault: {error:?}"));
            (done, true)
        }
    }
}

/// Does `round` with the n-th call failing, for every n and each of these errnos; says how many calls failed and how many
/// rounds saw it.
fn exhaust(faults: &Faults, errnos: &[Errno], mut round: impl FnMut(u64, Errno) -> bool) -> (u64, u64) {
    let mut failures = 0;
    for &errno in errnos {
        for n in 0.. {
            assert!(n < MANY, "it never ends");
            let before = faults.struck();
            faults.arm(n, errno);
            failures += u64::from(round(n, errno));
            faults.disarm();
            if faults.struck() == before {
                break;
            }
        }
    }
    println!("{} calls failed, {failures} rounds saw it", faults.struck());
    (faults.struck(), failures)
}

/// A failed assertion drops handles, which waits at the closed gate for ever: it ends the process instead.
fn end_when_it_fails() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(101);
    }));
}

#[test]
fn every_call_of_a_freeze_and_a_thaw_can_fail_once() {
    end_when_it_fails();
    // The agent's thread, which these runtimes have not, makes it when the process opens its runtime.
    Incarnation::current().unwrap();
    let (runtime, kernel, faults) = faulty::runtime(2);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let other = Queue::create(&runtime.agent(1).unwrap(), QueueOptions::default()).unwrap();
    let (vram, gtt) = (agent.vram().alloc(10_000).unwrap(), runtime.gtt().alloc(3).unwrap());
    let (signal, directory) = (Signal::new(&runtime, 7).unwrap(), tempfile::tempdir().unwrap());
    vram.write(5_000, b"vram").unwrap();
    gtt.write(0, b"gtt").unwrap();
    // A range with parts for both agents, one of them cut.
    let (range, memory) = (runtime.reserve(1 << 20, 0).unwrap(), runtime.gtt().physical(32 << 10).unwrap());
    memory.write(12_288, b"part").unwrap();
    range.map(8_192, &memory, 0, 32 << 10).unwrap();
    range.map(65_536, &memory, 4_096, 8_192).unwrap();
    let second = runtime.agent(1).unwrap();
    range.set_access(12_288, 8_192, &[(&agent, Access::ReadWrite), (&second, Access::Read)]).unwrap();
    range.set_access(65_536, 8_192, &[(&agent, Access::Read)]).unwrap();
    let (mappings, parts) = (range.mappings(), kernel.parts());
    assert_eq!((mappings.len(), parts), (4, (2, 3)));
    let begin = Holdings::of(&kernel);
    let round = |n, errno| {
        let what = |verb: &str| format!("call {n} from the lock on, {verb}");
        let attempt = |verb: &str, from, act: &dyn Fn() -> Result<(), super::CheckpointError>| {
            assert_eq!(runtime.state(), from, "{}", what(verb));
            let act =
                || act().inspect_err(|error| assert_eq!(runtime.state(), from, "{}: {error}", what(verb)));
            attempt(&kernel, &faults, errno, &what(verb), act).1
        };
        let mut failed = attempt("lock", State::Running, &|| runtime.lock(Mode::Drain, SOON));
        failed |= attempt("checkpoint", State::Locked, &|| runtime.checkpoint(directory.path()).map(drop));
        assert_eq!(kernel.counts(), (1, 0, 0), "{}: more than the event page is left", what("checkpointed"));
        assert_eq!(kernel.parts(), (0, 0), "{}: parts of a range are left", what("checkpointed"));
        failed |= attempt("restore", State::Checkpointed, &|| runtime.restore(None).map(drop));
        failed |= attempt("unlock", State::Locked, &|| runtime.unlock());
        assert_holds(&kernel, &begin, &what("afterwards"));
        let (mut four, mut three) = ([0; 4], [0; 3]);
        vram.read(5_000, &mut four).unwrap();
        gtt.read(0, &mut three).unwrap();
        assert_eq!((&four, &three), (b"vram", b"gtt"), "{}", what("afterwards"));
        memory.read(12_288, &mut four).unwrap();
        assert_eq!((&four, range.mappings(), kernel.parts()), (b"part", mappings.clone(), parts));
        for queue in [&queue, &other] {
            signal.store(1).unwrap();
            queue.barrier(&[], Some(&signal)).unwrap();
            signal.wait(Condition::Equal(0), Some(SOON), WaitMode::Blocked).unwrap();
        }
        failed
    };
    let (calls, failures) = exhaust(&faults, &ERRNOS, round);
    assert!(calls > 200 && failures > calls / 2, "{calls} calls, {failures} failures");
}

#[test]
fn packets_that_wait_run_once_whichever_call_fails() {
    end_when_it_fails();
    Incarnation::current().unwrap();
    let (runtime, _kernel, faults) = faulty::runtime(2);
    let queues =
        [0, 1].map(|agent| Queue::create(&runtime.agent(agent).unwrap(), QueueOptions::default()).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let (gate, done) = (Signal::new(&runtime, 1).unwrap(), Signal::new(&runtime, 5).unwrap());
    let round = |n: u64, errno: Errno| {
        for queue in [&queues[0], &queues[0], &queues[1], &queues[1]] {
            queue.barrier(&[&gate], Some(&done)).unwrap();
        }
        let mut failed = false;
        let mut act = |act: &dyn Fn() -> Result<(), super::CheckpointError>| {
            let done = act();
            failed |= done.is_err();
            done.is_ok()
        };
        while !act(&|| runtime.lock(Mode::Drain, SOON)) {}
        // After an unlock that failed one queue may be on the hardware and the other not: it is frozen as it is.
        loop {
            while !act(&|| runtime.checkpoint(directory.path()).map(drop)) {}
            while !act(&|| runtime.restore(None).map(drop)) {}
            if act(&|| runtime.unlock()) {
                break;
            }
        }
        assert_eq!(done.load().unwrap(), 5, "call {n}, {errno}: it did not wait");
        gate.store(0).unwrap();
        for queue in &queues {
            queue.wait_idle(Some(SOON)).unwrap();
        }
        assert_eq!(done.load().unwrap(), 1, "call {n}, {errno}");
        gate.store(1).unwrap();
        done.store(5).unwrap();
        failed
    };
    let (calls, failures) = exhaust(&faults, &[Errno::EIO, Errno::ETIMEDOUT], round);
    assert!(calls > 100 && failures > calls / 4, "{calls} calls, {failures} failures");
}

#[test]
fn every_call_of_an_opening_can_fail_once() {
    let (mut calls, mut failures) = (0, 0);
    for errno in ERRNOS {
        for n in 0..MANY {
            // A process has one life with a driver; so every opening is another driver's.
            let (transport, kernel, faults) = faulty::transport(2);
            let base = Holdings::of(&kernel);
            faults.arm(n, errno);
            let failed = match crate::context::open::open(transport, None) {
                Ok(context) => {
                    // What is only dropped can tell nobody.
                    faults.disarm();
                    drop(Runtime::from_context(&context));
                    false
                }
                Err(error) => {
                    let call = faults.taken().unwrap();
                    assert_named(&error, &call, errno, &format!("call {n} of opening"));
                    true
                }
            };
            // The event page and its events are freed with the process only: it has one life with a driver.
            let deadline = Instant::now() + SOON;
            while failed && (Holdings::of(&kernel).files != base.files || kernel.counts().2 != 0) {
                assert!(Instant::now() < deadline, "call {n} of opening left {:?}", Holdings::of(&kernel));
                std::thread::sleep(Duration::from_millis(1));
            }
            failures += u64::from(failed);
            calls += faults.struck();
            if faults.struck() == 0 {
                break;
            }
        }
    }
    assert!(calls > 50 && failures > calls / 2, "{calls} calls, {failures} failures");
}

#[test]
fn every_call_of_making_and_unmaking_can_fail_once() {
    let (runtime, kernel, faults) = faulty::runtime(1);
    let agent = runtime.agent(0).unwrap();
    let object = device_lib::object_for("gfx1100").unwrap();
    // Pools and slots that stay are there before anything is counted.
    drop(Queue::create(&agent, QueueOptions::default()).unwrap());
    let warm = Signal::new(&runtime, 1).unwrap();
    drop(Executable::load(&agent, object).unwrap());
    let mut begin = None;
    let mut round = |n, errno| {
        let what = |act: &str| format!("call {n}, {act}");
        let mut failed = false;
        macro_rules! attempt {
            ($name:literal, $act:expr) => {{
                let (made, one) = attempt(&kernel, &faults, errno, &what($name), || $act);
                failed |= one;
                made
            }};
        }
        let queue = attempt!("queue", Queue::create(&agent, QueueOptions::default()));
        let vram = attempt!("vram", agent.vram().alloc(70_000));
        let gtt = attempt!("gtt", runtime.gtt().alloc(5));
        let executable = attempt!("executable", Executable::load(&agent, object));
        let signal = attempt!("signal", Signal::new(&runtime, 1));
        attempt!("destroy", queue.destroy());
        attempt!("free vram", vram.free());
        attempt!("free gtt", gtt.free());
        // What is only dropped can tell nobody; its turn comes without a fault.
        let was_borne = faults.taken().is_some();
        faults.disarm();
        drop((executable, signal, queue));
        if was_borne {
            // A buffer that the driver would not free while its queue was destroyed stays there; nobody can be told.
            begin = None;
        }
        // The first round leaves what later ones use again.
        assert_holds(&kernel, begin.get_or_insert_with(|| Holdings::of(&kernel)), &what("afterwards"));
        failed
    };
    for _ in 0..5 {
        round(MANY, Errno::EIO);
    }
    let (calls, failures) = exhaust(&faults, &ERRNOS, round);
    drop(warm);
    assert!(calls > 100 && failures > calls / 2, "{calls} calls, {failures} failures");
}
