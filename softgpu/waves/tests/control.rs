// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pausing, resuming, aborting, and the exceptions a wave can raise.

mod common;

use std::time::{Duration, Instant};

use common::Device;
use softgpu_kernels::{Arguments, Random};
use softgpu_waves::{Access, AccessKind, Cause, Control, Outcome};

fn exception(outcome: Outcome) -> Box<softgpu_waves::WaveException> {
    match outcome {
        Outcome::Exception(e) => e,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pause_and_resume_give_the_same_memory() {
    let d = Device::with_kernels(2);
    let mut r = Random(20);
    let x: Vec<u32> = (0..2048).map(|_| r.u32()).collect();
    let rounds = 400;
    let whole = d.buffer(&x);
    d.complete(&d.launch(
        "long_mix",
        [2048, 1, 1],
        [256, 1, 1],
        Arguments::new().u64(whole.address()).u32(rounds).bytes(),
    ));
    let mut pauses = 0;
    // On a busy machine a timer may be late for most of the runs: there are more of them then.
    for trial in 0..200u64 {
        if trial >= 10 && pauses > 5 {
            break;
        }
        let data = d.buffer(&x);
        let launch = d.launch(
            "long_mix",
            [2048, 1, 1],
            [256, 1, 1],
            Arguments::new().u64(data.address()).u32(rounds).bytes(),
        );
        let mut state = None;
        loop {
            let control = Control::new();
            let remote = control.clone();
            let after = Duration::from_micros(60 + trial % 10 * 20 + u64::from(r.u32() % 300));
            let timer = std::thread::spawn(move || {
                std::thread::sleep(after);
                remote.pause();
            });
            let outcome = d.run(&launch, &control, state.take());
            timer.join().expect("timer");
            match outcome {
                Outcome::Completed => break,
                Outcome::Paused(s) => {
                    pauses += 1;
                    state = Some(s.clone());
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(data.get(), whole.get(), "trial {trial}");
    }
    assert!(pauses > 5, "only {pauses} pauses");
}

#[test]
fn endless_kernel_pauses_resumes_and_aborts_quickly() {
    let d = Device::with_kernels(2);
    let out = d.buffer(&[0u32; 64]);
    let launch = d.launch("spin", [256, 1, 1], [64, 1, 1], Arguments::new().u64(out.address()).bytes());
    let mut state = None;
    for command in ["pause", "pause", "abort"] {
        let control = Control::new();
        let (outcome, late) = std::thread::scope(|scope| {
            let run = scope.spawn(|| (d.run(&launch, &control, state.take()), Instant::now()));
            std::thread::sleep(Duration::from_millis(30));
            let asked = Instant::now();
            if command == "pause" {
                control.pause()
            } else {
                control.abort()
            }
            let (outcome, done) = run.join().expect("run");
            (outcome, done - asked)
        });
        assert!(late < Duration::from_millis(100), "{command} took {late:?}");
        match (command, outcome) {
            ("pause", Outcome::Paused(s)) => {
                // On a busy machine some of the four workgroups may not have had their turn yet.
                assert_eq!(s.waves.len() as u64, 2 * s.next_workgroup);
                assert!(s.next_workgroup > 0);
                state = Some(s);
            }
            ("abort", Outcome::Aborted) => {}
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn more_spinning_workgroups_than_workers_make_progress() {
    let d = Device::with_kernels(1);
    let flag = d.buffer(&[0u32; 16]);
    let launch =
        d.launch("endless", [8 * 32, 1, 1], [32, 1, 1], Arguments::new().u64(flag.address()).bytes());
    std::thread::scope(|scope| {
        let run = scope.spawn(|| d.run(&launch, &Control::new(), None));
        std::thread::sleep(Duration::from_millis(50));
        d.write(flag.address(), &[1]);
        assert!(matches!(run.join().expect("run"), Outcome::Completed));
    });
    assert_eq!(&flag.get()[1..9], &[7; 8]);
}

#[test]
fn wild_store_is_a_memory_violation_with_its_address() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 32]);
    let args = Arguments::new().u64(out.address()).u64(0xdead_0000);
    let launch = d.launch("wild", [32, 1, 1], [32, 1, 1], args.bytes());
    let e = exception(d.run(&launch, &Control::new(), None));
    let want = Cause::MemoryViolation {
        address: 0xdead_0000,
        access: AccessKind::Write,
        not_present: true,
        read_only: false,
        no_execute: false,
    };
    assert_eq!(e.cause, want);
    assert_eq!(e.record.pc, e.pc);
    assert_eq!(e.record.exec, 1 << 5);
}

#[test]
fn store_to_read_only_memory_says_so() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 32]);
    let memory = d.allocate(4096, Access { read: true, write: false, execute: false });
    let constant = memory.address();
    let args = Arguments::new().u64(out.address()).u64(constant + 8);
    let e = exception(d.run(&d.launch("wild", [32, 1, 1], [32, 1, 1], args.bytes()), &Control::new(), None));
    assert!(
        matches!(e.cause, Cause::MemoryViolation { read_only: true, not_present: false, address, .. } if address == constant + 8)
    );
}

#[test]
fn trap_builtin_aborts_the_queue() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[1u32, 0]);
    let e = exception(d.run(
        &d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes()),
        &Control::new(),
        None,
    ));
    assert!(matches!(e.cause, Cause::Aborted(_) | Cause::Trap(_)), "{:?}", e.cause);
}

#[test]
fn code_without_execute_permission_faults() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    let mut launch = d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes());
    launch.entry = out.address();
    let e = exception(d.run(&launch, &Control::new(), None));
    assert!(matches!(e.cause, Cause::MemoryViolation { no_execute: true, access: AccessKind::Execute, .. }));
}

#[test]
fn undecodable_words_are_an_illegal_instruction() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    let mut launch = d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes());
    let memory = d.allocate(4096, Access::ALL);
    let code = memory.address();
    d.write(code, &[0xBF80_0000, 0xFFFF_FFFF]);
    launch.entry = code;
    let e = exception(d.run(&launch, &Control::new(), None));
    assert!(matches!(&e.cause, Cause::IllegalInstruction { words } if words[0] == u32::MAX), "{:?}", e.cause);
    assert_eq!(e.pc, code + 4);
}

#[test]
fn code_that_changed_is_predecoded_again() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    let mut launch = d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes());
    let memory = d.allocate(4096, Access::ALL);
    let code = memory.address();
    launch.entry = code;
    // s_trap 2, then s_endpgm in its place.
    d.write(code, &[0xBF90_0002]);
    let e = exception(d.run(&launch, &Control::new(), None));
    assert_eq!(e.cause, Cause::Trap(2));
    d.write(code, &[0xBFB0_0000]);
    assert!(matches!(d.run(&launch, &Control::new(), None), Outcome::Completed));
}

#[test]
fn scratch_that_does_not_fit_is_refused() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    let mut launch = d.launch(
        "spill",
        [64, 1, 1],
        [64, 1, 1],
        Arguments::new().u64(out.address()).u64(out.address()).bytes(),
    );
    launch.scratch = None;
    let e = exception(d.run(&launch, &Control::new(), None));
    assert!(matches!(e.cause, Cause::ScratchTooSmall { .. }));
}
