// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers and signals sent from process to process, memory of other exporters, and both through checkpoints.
#![allow(clippy::unwrap_used)]

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use stasis_tests::gpu::on_a_future_kernel;
use stasis_tests::sharer::language::{Answer, Ask, By};
use stasis_tests::sharer::{Pending, Sharers};
use stasis_tests::worker::{refused, succeeded, wait_until};

const DEVICE: &str = "soft:gfx1100,gfx1100";
const BYTES: u64 = 2 * 4096;

fn fails(on: &Sharers, worker: &str, ask: Ask) -> String {
    match on.try_ask(worker, ask.clone()) {
        Answer::Failed(why) => why,
        other => panic!("{worker} {ask:?}: {other:?}"),
    }
}

fn round(on: &mut Sharers) {
    if let Err(errors) = on.around(&on.names()) {
        panic!("{errors:?}\n{}", on.log());
    }
}

/// Through CRIU: all end, and come back from another directory.
fn criu(on: &Sharers, generation: &str) {
    let (images, moved) = (on.path(generation), on.path(&format!("{generation}-moved")));
    succeeded(&on.checkpoint("root", &images, &[]));
    on.bury();
    fs::rename(&images, &moved).unwrap();
    succeeded(&on.restore(&moved));
}

fn has(on: &Sharers, worker: &str, fd: &str) -> bool {
    matches!(on.ask(worker, Ask::Descriptors), Answer::Descriptors(fds) if fds.contains_key(fd))
}

fn send(on: &Sharers, fd: &str) {
    on.ask("root", Ask::Send { fd: fd.into(), to: on.socket_of("a") });
    let came = || matches!(on.ask("a", Ask::Descriptors), Answer::Descriptors(fds) if fds.contains_key(fd));
    wait_until("the descriptor", came);
}

/// `root` and `a` with a connected socket between them, which `root` calls `near` and `a` calls `far`.
fn connected() -> Sharers {
    let on = Sharers::start(DEVICE, &["root", "a"]);
    on.adopt();
    on.ask("root", Ask::Pair { one: "near".into(), other: "far".into() });
    send(&on, "far");
    on.ask("root", Ask::Close { fd: "far".into() });
    on
}

/// Both have the buffer `x` of agent 0 and the signals `go` and `done`, which `root` has made and sent.
fn partners() -> Sharers {
    let on = connected();
    on.ask("root", Ask::Alloc { buffer: "x".into(), bytes: BYTES, agent: Some(0) });
    for signal in ["go", "done"] {
        on.ask("root", Ask::Signal { signal: signal.into(), value: 1, is_shared: true });
    }
    let signals = vec!["go".to_owned(), "done".to_owned()];
    on.ask("root", Ask::Pass { over: "near".into(), buffers: vec!["x".into()], signals });
    let names = ["x", "go", "done"].map(str::to_owned).to_vec();
    on.ask("a", Ask::Receive { over: "far".into(), agent: 1, names });
    on
}

/// `root` begins to wait for `go` on the CPU.
fn wait_for_go(on: &Sharers, round: &str) -> Pending {
    let begun = on.path(round);
    let waits = on.tell("root", Ask::Await { signal: "go".into(), below: 1, begun: begun.clone() });
    wait_until("the wait", || begun.exists());
    waits
}

/// `a` begins to wait for `go` on its agent, which is to read `x` then.
fn read_after_go(on: &Sharers, round: &str) -> Pending {
    let begun = on.path(round);
    let (buffer, offset, signal) = ("x".into(), 4096, "go".into());
    let reads = on.tell("a", Ask::Consume { buffer, offset, bytes: 64, signal, begun: begun.clone() });
    wait_until("the wait", || begun.exists());
    reads
}

/// `worker` has an agent write `x` and complete `go`.
fn produce(on: &Sharers, worker: &str, byte: u8) {
    let (buffer, offset, signal) = ("x".into(), 4096, "go".into());
    on.ask(worker, Ask::Produce { buffer, offset, bytes: vec![byte; 64], signal });
}

fn read(on: &Sharers, worker: &str, buffer: &str, by: By) -> Answer {
    on.ask(worker, Ask::Read { buffer: buffer.into(), offset: 4096, bytes: 64, by })
}

fn set(on: &Sharers, worker: &str, signal: &str, value: i64) {
    on.ask(worker, Ask::Store { signal: signal.into(), value });
}

fn value(on: &Sharers, worker: &str, signal: &str) -> Answer {
    on.ask(worker, Ask::Load { signal: signal.into() })
}

/// Every way in which one process can wait for a signal that the other completes.
fn signals_cross(on: &Sharers, name: &str, byte: u8) {
    // The agent of one process completes a signal that a thread of the other waits for, and the written memory is
    // visible by then.
    set(on, "a", "go", 1);
    assert_eq!(value(on, "root", "go"), Answer::Value(1));
    let waits = wait_for_go(on, &format!("{name}-1"));
    assert!(!waits.is_answered());
    produce(on, "a", byte);
    assert_eq!(waits.answer(), Answer::Value(0));
    assert_eq!(read(on, "root", "x", By::Cpu), Answer::Bytes(vec![byte; 64]));
    // The agent of one waits for the agent of the other.
    set(on, "root", "go", 1);
    let reads = read_after_go(on, &format!("{name}-2"));
    assert!(!reads.is_answered());
    produce(on, "root", byte + 1);
    assert_eq!(reads.answer(), Answer::Bytes(vec![byte + 1; 64]));
    // A store wakes the waiting thread.
    set(on, "root", "go", 7);
    let waits = wait_for_go(on, &format!("{name}-3"));
    set(on, "a", "go", -5);
    assert_eq!(waits.answer(), Answer::Value(-5));
    // The two signals are independent.
    set(on, "a", "done", i64::from(byte));
    assert_eq!(value(on, "root", "done"), Answer::Value(i64::from(byte)));
    assert_eq!(value(on, "root", "go"), Answer::Value(-5));
}

#[test]
fn one_process_waits_for_what_the_other_completes_before_and_after_checkpoints() {
    let mut on = partners();
    signals_cross(&on, "before", 10);
    round(&mut on);
    assert_eq!((value(&on, "root", "done"), value(&on, "a", "done")), (Answer::Value(10), Answer::Value(10)));
    signals_cross(&on, "in-place", 20);
    criu(&on, "images");
    assert_eq!((value(&on, "root", "done"), value(&on, "a", "done")), (Answer::Value(20), Answer::Value(20)));
    signals_cross(&on, "restored", 30);
    round(&mut on);
    signals_cross(&on, "again", 40);
}

fn send_signal(on: &Sharers, signal: Signal) {
    kill(Pid::from_raw(on.pid("root")), signal).unwrap();
}

fn name(on: &Sharers, worker: &str, object: &str) -> Vec<u8> {
    match on.ask(worker, Ask::Name { object: object.into() }) {
        Answer::Bytes(name) => name,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_and_signals_are_had_by_names_that_stay_right_across_checkpoints() {
    let mut on = Sharers::start(DEVICE, &["root", "a"]);
    on.adopt();
    on.ask("root", Ask::Alloc { buffer: "x".into(), bytes: BYTES, agent: Some(0) });
    for signal in ["go", "done"] {
        on.ask("root", Ask::Signal { signal: signal.into(), value: 1, is_shared: true });
    }
    let names = ["x", "go", "done"].map(|object| name(&on, "root", object));
    assert_eq!(names[0], name(&on, "root", "x"));
    let [buffer, signals @ ..] = &names;
    let within = |limit_ms: u64, name: &Vec<u8>| Ask::ImportNamed {
        name: name.clone(),
        buffer: "x".into(),
        agent: 1,
        limit_ms,
    };
    let import = |name: &Vec<u8>| within(60_000, name);
    on.ask("a", import(buffer));
    for (signal, name) in ["go", "done"].into_iter().zip(signals) {
        on.ask("a", Ask::ImportNamedSignal { name: name.clone(), signal: signal.into() });
    }
    signals_cross(&on, "before", 10);
    round(&mut on);
    criu(&on, "images");
    signals_cross(&on, "restored", 30);
    // Asked for anew by the name from before.
    on.ask("a", Ask::Free { buffer: "x".into() });
    on.ask("a", import(buffer));
    signals_cross(&on, "again", 50);
    // An owner that does not answer is asked until the limit, and later again.
    send_signal(&on, Signal::SIGSTOP);
    let error = fails(&on, "a", within(500, buffer));
    send_signal(&on, Signal::SIGCONT);
    assert!(error.contains("was locked, checkpointed or stopped"), "{error}");
    on.ask("a", import(buffer));
    // A buffer is no signal, and what is not for others has no name.
    let error = fails(&on, "a", Ask::ImportNamedSignal { name: buffer.clone(), signal: "none".into() });
    assert!(error.contains("are no signal"), "{error}");
    on.ask("root", Ask::Signal { signal: "own".into(), value: 1, is_shared: false });
    let error = fails(&on, "root", Ask::Name { object: "own".into() });
    assert!(error.contains("this process's alone"), "{error}");
    // Names of nothing: freed, never drawn, of a process without a runtime, of no process.
    on.ask("a", Ask::Free { buffer: "x".into() });
    on.ask("root", Ask::Free { buffer: "x".into() });
    let mut other = buffer.clone();
    other[19] ^= 1;
    for name in [buffer, &other] {
        let error = fails(&on, "a", import(name));
        assert!(error.contains("has nothing of this name"), "{error}");
    }
    for (owner, why) in [(1_i32, "cannot be asked"), (i32::MAX, "cannot be asked"), (-1, "has nothing of")] {
        other[..4].copy_from_slice(&owner.to_le_bytes());
        let error = fails(&on, "a", import(&other));
        assert!(error.contains(why), "{owner}: {error}");
    }
}

#[test]
fn thread_that_waits_for_a_shared_signal_waits_on_across_checkpoints() {
    let mut on = partners();
    let waits = wait_for_go(&on, "thread");
    round(&mut on);
    criu(&on, "first");
    assert!(!waits.is_answered());
    produce(&on, "a", 50);
    assert_eq!(waits.answer(), Answer::Value(0));
}

#[test]
fn queue_that_waits_for_another_process_is_frozen_as_it_stands() {
    on_a_future_kernel();
    let on = partners();
    let reads = read_after_go(&on, "agent");
    let images = on.path("images");
    // No driver stops a kernel in the middle that may use shared memory.
    let error = refused(&on.checkpoint("root", &images, &["--preempt"]));
    assert!(error.contains("memory that others may hold"), "{error}");
    assert!(!images.exists());
    // The wait does not end while the other process is stopped: its packet is kept.
    succeeded(&on.checkpoint("root", &images, &["--leave-running"]));
    assert!(!reads.is_answered());
    produce(&on, "root", 51);
    assert_eq!(reads.answer(), Answer::Bytes(vec![51; 64]));
    criu(&on, "again");
    signals_cross(&on, "restored", 60);
}

#[test]
fn signal_lives_on_when_its_maker_has_dropped_it() {
    let mut on = partners();
    on.ask("root", Ask::DropSignal { signal: "go".into() });
    on.ask("root", Ask::DropSignal { signal: "done".into() });
    on.ask("a", Ask::ExportSignal { signal: "go".into(), fd: "go".into() });
    on.ask("a", Ask::Send { fd: "go".into(), to: on.socket_of("root") });
    on.ask("a", Ask::Close { fd: "go".into() });
    // All that is left of `go` in `root` is its descriptor.
    round(&mut on);
    on.ask("root", Ask::ImportSignal { fd: "go".into(), signal: "go".into() });
    set(&on, "a", "go", 3);
    assert_eq!(value(&on, "root", "go"), Answer::Value(3));
    on.ask("root", Ask::DropSignal { signal: "go".into() });
    on.ask("root", Ask::Close { fd: "go".into() });
    on.ask("root", Ask::Free { buffer: "x".into() });
    assert_eq!(on.objects("root").shared, 0);
    assert_eq!(on.objects("a").shared, 3);
}

#[test]
fn other_memory_is_no_signal_and_a_usual_signal_is_not_shared() {
    let mut on = partners();
    let before = on.objects("root").shared;
    on.ask("root", Ask::Export { buffer: "x".into(), fd: "x".into() });
    on.ask("root", Ask::Memfd { fd: "m".into(), bytes: 4096, is_sealed: true });
    for fd in ["x", "m"] {
        let error = fails(&on, "root", Ask::ImportSignal { fd: fd.into(), signal: "no".into() });
        assert!(error.contains("are no signal"), "{error}");
    }
    assert_eq!(on.objects("root").shared, before);
    on.ask("root", Ask::Signal { signal: "own".into(), value: 1, is_shared: false });
    let error = fails(&on, "root", Ask::ExportSignal { signal: "own".into(), fd: "no".into() });
    assert!(error.contains("Signal::shared"), "{error}");
    let signals = vec!["own".to_owned()];
    let error = fails(&on, "root", Ask::Pass { over: "near".into(), buffers: vec![], signals });
    assert!(error.contains("Signal::shared"), "{error}");
    // Nothing of the refused message was sent: the next message is complete.
    on.ask("root", Ask::Pass { over: "near".into(), buffers: vec!["x".into()], signals: vec!["go".into()] });
    on.ask("a", Ask::Receive { over: "far".into(), agent: 0, names: vec!["x2".into(), "go".into()] });
    signals_cross(&on, "after", 60);
    round(&mut on);
    signals_cross(&on, "in-place", 70);
}

#[test]
fn garbage_on_the_socket_is_refused() {
    let messages: [(&[u8], &str); 5] = [
        (b"GET / HTTP/1.1\r\n\r\n", "does not send shared objects"),
        (b"STIP\xff\xff\xff\xff", "does not send shared objects"),
        (b"STIP\x03\0\0\0abc", "expected value"),
        (b"STIP\x09\0\0\0[\"buffe\"]", "unknown variant"),
        (b"STIP\x0a\0\0\0[\"buffer\"]", "descriptors were lost"),
    ];
    let on = connected();
    for (bytes, why) in messages {
        on.ask("root", Ask::Speak { over: "near".into(), bytes: bytes.to_vec() });
        let error = fails(&on, "a", Ask::Receive { over: "far".into(), agent: 0, names: vec![] });
        assert!(error.contains("Cannot receive shared objects") && error.contains(why), "{error}");
        // The rest of the message would disturb the next one: a new socket is used.
        on.ask("root", Ask::Pair { one: "near".into(), other: "far".into() });
        on.ask("a", Ask::Close { fd: "far".into() });
        send(&on, "far");
        on.ask("root", Ask::Close { fd: "far".into() });
    }
    on.ask("root", Ask::Speak { over: "near".into(), bytes: b"STI".to_vec() });
    on.ask("root", Ask::Close { fd: "near".into() });
    let error = fails(&on, "a", Ask::Receive { over: "far".into(), agent: 0, names: vec![] });
    assert!(error.contains("Cannot receive shared objects"), "{error}");
    assert_eq!(on.objects("a").shared, 0);
}

#[test]
fn memory_of_another_exporter_stays_one_memory_in_place_and_through_criu() {
    let mut on = connected();
    on.ask("root", Ask::Memfd { fd: "m".into(), bytes: BYTES, is_sealed: true });
    on.ask("root", Ask::Memfd { fd: "loose".into(), bytes: BYTES, is_sealed: false });
    let error = fails(&on, "root", Ask::Import { fd: "loose".into(), buffer: "no".into(), agent: 0 });
    assert!(error.contains("the descriptor is no DMABuf"), "{error}");
    assert_eq!(on.objects("root").shared, 0);
    on.ask("root", Ask::Close { fd: "loose".into() });
    send(&on, "m");
    on.ask("root", Ask::Import { fd: "m".into(), buffer: "one".into(), agent: 0 });
    on.ask("root", Ask::Import { fd: "m".into(), buffer: "two".into(), agent: 1 });
    on.ask("a", Ask::Import { fd: "m".into(), buffer: "far".into(), agent: 1 });
    let aliases = [("root", "one"), ("root", "two"), ("a", "far")];
    let hold = |on: &Sharers, mut byte: u8| {
        for by in [By::Cpu, By::Device] {
            for (worker, buffer) in aliases {
                byte += 1;
                let (buffer, bytes) = (buffer.into(), vec![byte; 64]);
                on.ask(worker, Ask::Write { buffer, offset: 4096, bytes, by });
                for (worker, buffer) in aliases {
                    assert_eq!(read(on, worker, buffer, By::Cpu), Answer::Bytes(vec![byte; 64]));
                    assert_eq!(read(on, worker, buffer, By::Device), Answer::Bytes(vec![byte; 64]));
                }
            }
        }
        byte
    };
    let mut byte = 0;
    for generation in 0..4 {
        byte = hold(&on, byte);
        if generation % 2 == 0 {
            round(&mut on)
        } else {
            criu(&on, &format!("images-{generation}"))
        }
        for (worker, buffer) in aliases {
            assert_eq!(read(&on, worker, buffer, By::Cpu), Answer::Bytes(vec![byte; 64]));
        }
    }
    hold(&on, byte);
}

#[test]
fn message_that_nobody_has_received_is_named_and_nothing_is_changed() {
    let mut on = connected();
    on.ask("root", Ask::Alloc { buffer: "x".into(), bytes: BYTES, agent: None });
    let bytes = vec![9; 64];
    on.ask("root", Ask::Write { buffer: "x".into(), offset: 4096, bytes: bytes.clone(), by: By::Cpu });
    on.ask("root", Ask::Pass { over: "near".into(), buffers: vec!["x".into()], signals: vec![] });
    let images = on.path("images");
    let error = refused(&on.checkpoint("root", &images, &[]));
    assert!(error.contains("waits in the queue of socket fd"), "{error}");
    assert!(!images.exists());
    let errors = format!("{:?}", on.around(&on.names()).unwrap_err());
    assert!(errors.contains("waits in the queue of socket fd"), "{errors}");
    on.ask("a", Ask::Receive { over: "far".into(), agent: 1, names: vec!["y".into()] });
    criu(&on, "received");
    assert_eq!(read(&on, "a", "y", By::Device), Answer::Bytes(bytes));
    // The connection goes on.
    on.ask("a", Ask::Pass { over: "far".into(), buffers: vec!["y".into()], signals: vec![] });
    on.ask("root", Ask::Receive { over: "near".into(), agent: 0, names: vec!["z".into()] });
    on.ask("root", Ask::Write { buffer: "z".into(), offset: 4096, bytes: vec![8; 64], by: By::Device });
    assert_eq!(read(&on, "root", "x", By::Cpu), Answer::Bytes(vec![8; 64]));
    assert_eq!(read(&on, "a", "y", By::Cpu), Answer::Bytes(vec![8; 64]));
}

/// CRIU would give each tree its own copy, and the runtime could not detect that they were the same memory.
#[test]
fn memory_of_another_exporter_in_two_trees_is_refused() {
    let mut on = Sharers::start(DEVICE, &["root", "a", "b"]);
    on.adopt();
    on.ask("root", Ask::Memfd { fd: "m".into(), bytes: BYTES, is_sealed: true });
    for name in ["a", "b"] {
        on.ask("root", Ask::Send { fd: "m".into(), to: on.socket_of(name) });
        wait_until("the descriptor", || has(&on, name, "m"));
        on.ask(name, Ask::Import { fd: "m".into(), buffer: "x".into(), agent: 0 });
        on.ask(name, Ask::Lead);
    }
    on.exit("root");
    let (other, images) = (on.pid("b").to_string(), on.path("images"));
    let error = refused(&on.checkpoint("a", &images, &["--session", &other]));
    assert!(error.contains(&format!("it is shared with process {other}")), "{error}");
    assert!(!images.exists());
    // In place nothing is copied.
    round(&mut on);
    on.ask("a", Ask::Write { buffer: "x".into(), offset: 4096, bytes: vec![4; 64], by: By::Device });
    assert_eq!(read(&on, "b", "x", By::Cpu), Answer::Bytes(vec![4; 64]));
}
