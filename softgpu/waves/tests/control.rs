// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pausing, resuming, aborting, and the exceptions a wave can raise.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Device;
use parking_lot::Mutex;
use softgpu_kernels::{Arguments, Random};
use softgpu_waves::{Access, AccessKind, Cause, Control, Messages, Outcome, TrapHandler};

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
    let launch = |data: u64, rounds: u32| {
        let arguments = Arguments::new();
        d.launch("long_mix", [2048, 1, 1], [256, 1, 1], arguments.u64(data).u32(rounds).bytes())
    };
    let (mut rounds, mut pauses) = (400, 0);
    for trial in 0..200u64 {
        if trial >= 10 && pauses > 5 {
            break;
        }
        let (whole, data) = (d.buffer(&x), d.buffer(&x));
        d.complete(&launch(whole.address(), rounds));
        let launch = launch(data.address(), rounds);
        let before = pauses;
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
        // On a fast processor, or with a timer that a busy machine makes late, the kernel is over too soon: it runs longer.
        if pauses == before {
            rounds = (2 * rounds).min(1 << 18);
        }
    }
    assert!(pauses > 5, "only {pauses} pauses");
}

#[test]
fn endless_kernel_pauses_resumes_and_aborts_quickly() {
    let d = Device::with_kernels(2);
    let out = d.buffer(&[0u32; 65]);
    let launch = d.launch("spin", [256, 1, 1], [64, 1, 1], Arguments::new().u64(out.address()).bytes());
    let mut state = None;
    for command in ["pause", "pause", "abort"] {
        let control = Control::new();
        let (outcome, late) = std::thread::scope(|scope| {
            let run = scope.spawn(|| (d.run(&launch, &control, state.take()), Instant::now()));
            // Under an emulator, or on a busy machine, the first wave comes late.
            while out.get()[64] == 0 && !run.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
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
        assert!(late < Duration::from_secs(1), "{command} took {late:?}");
        match (command, outcome) {
            ("pause", Outcome::Paused(s)) => {
                // On a busy machine some of the four workgroups may not have run yet.
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
fn workgroups_meet_if_the_chip_holds_them_all_and_wait_for_ever_if_not() {
    let d = Device::with_kernels(2);
    let there = d.buffer(&[0u32; 16]);
    let launch = |groups: u32| {
        let arguments = Arguments::new().u64(there.address()).u32(groups);
        let mut launch = d.launch("meet", [groups * 64, 1, 1], [64, 1, 1], arguments.bytes());
        // One workgroup processor: 64 waves.
        launch.compute_units = 2;
        launch
    };
    assert_eq!(launch(32).resident_workgroups(), 32);
    assert!(matches!(d.run(&launch(32), &Control::new(), None), Outcome::Completed));
    d.write(there.address(), &[0]);
    let (launch, control) = (launch(33), Control::new());
    std::thread::scope(|scope| {
        let run = scope.spawn(|| d.run(&launch, &control, None));
        while there.get()[0] < 32 && !run.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        control.pause();
        match run.join().expect("run") {
            Outcome::Paused(state) => assert_eq!((state.next_workgroup, state.waves.len()), (32, 64)),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(there.get()[0], 32);
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
    let want = Cause::MemoryViolation { address: 0xdead_0000, access: AccessKind::Write, not_present: true };
    assert_eq!(e.cause, want);
    // Without a handler of the client the wave is halted in front of where it stood.
    assert_eq!((e.record.pc, e.record.status & HALT), (e.pc - 8, HALT));
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
        matches!(e.cause, Cause::MemoryViolation { access: AccessKind::Write, not_present: false, address } if address == constant + 8)
    );
}

/// What compilers make of `__builtin_trap` for gfx11: an `s_trap`, and behind it a message and a halt, for waves that do not
/// trap.
#[test]
fn trap_builtin_sends_an_abort_and_halts() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[1u32, 0]);
    for privileged in [false, true] {
        let received = Arc::new(Received::default());
        let mut launch =
            d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes());
        (launch.privileged, launch.doorbell) = (privileged, 9);
        d.vm().set_messages(Arc::clone(&received) as Arc<dyn Messages>);
        let e = exception(d.run(&launch, &Control::new(), None));
        assert_eq!((e.cause, e.record.status & HALT), (Cause::Halted, HALT));
        assert_eq!(*received.0.lock(), [(1 << 10 | 9, privileged)]);
    }
}

const HALT: u32 = 1 << 13;

#[derive(Debug, Default)]
struct Received(Mutex<Vec<(u32, bool)>>);

impl Messages for Received {
    fn memory_fault(&self, _: u64, _: AccessKind, _: bool) {}

    fn interrupt(&self, m0: u32, privileged: bool) {
        self.0.lock().push((m0, privileged));
    }

    fn counter(&self) -> u64 {
        0
    }
}

/// A device with these instructions for a kernel and these for a trap handler; the handler's memory is at 0x7654_0000_3210.
fn with_handler(kernel: &[u32], handler: &[u32]) -> (Outcome, u64, u64, Vec<(u32, bool)>) {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    let mut launch = d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes());
    let memory = d.allocate(4096, Access::ALL);
    let code = memory.address();
    d.write(code, kernel);
    d.write(code + 1024, handler);
    d.vm().set_trap_handler(TrapHandler { code: code + 1024, data: 0x7654_0000_3210 });
    launch.entry = code;
    let received = Arc::new(Received::default());
    d.vm().set_messages(Arc::clone(&received) as Arc<dyn Messages>);
    let outcome = d.run(&launch, &Control::new(), None);
    let sent = received.0.lock().clone();
    (outcome, code, code + 1024, sent)
}

const S_NOP: u32 = 0xBF80_0000;
const S_TRAP_3: u32 = 0xBF90_0003;
const S_ENDPGM: u32 = 0xBFB0_0000;

#[test]
fn without_a_handler_traps_are_skipped() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    let mut launch = d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes());
    let memory = d.allocate(4096, Access::ALL);
    d.write(memory.address(), &[S_NOP, S_TRAP_3, S_ENDPGM]);
    launch.entry = memory.address();
    assert!(matches!(d.run(&launch, &Control::new(), None), Outcome::Completed));
}

/// s_movk_i32 m0, 0x407; s_sendmsg INTERRUPT; s_getreg_b32 ttmp7, TRAPSTS; s_bitset1_b32 ttmp12, 13;
/// s_setreg_b32 STATUS, ttmp12; s_rfe_b64 ttmp[0:1]
const HALTING: [u32; 6] = [0xB07D_0407, 0xBFB6_0001, 0xB8F3_F803, 0xBEF8_128D, 0xB978_F802, 0xBE80_4A6C];

#[test]
fn handler_runs_privileged_with_the_cause_and_halts_the_wave() {
    let (outcome, code, _, sent) = with_handler(&[S_NOP, S_TRAP_3, S_ENDPGM], &HALTING);
    let e = exception(outcome);
    assert_eq!((&e.cause, e.pc, sent), (&Cause::Trap(3), code + 4, vec![(0x407, true)]));
    let r = &e.record;
    assert_eq!((r.pc, r.status & (HALT | 1 << 5), r.m0), (code + 4, HALT, 0x407));
    let low = (code + 4) as u32;
    let high = ((code + 4) >> 32) as u32;
    assert_eq!([r.ttmp[0], r.ttmp[1]], [low, high | 3 << 16]);
    assert_eq!([r.ttmp[14], r.ttmp[15]], [0x3210, 0x7654]);

    let (outcome, code, _, sent) = with_handler(&[S_NOP, u32::MAX], &HALTING);
    let e = exception(outcome);
    assert!(matches!(e.cause, Cause::IllegalInstruction { .. }));
    assert_eq!((e.pc, sent.len()), (code + 4, 1));
    assert_eq!((e.record.ttmp[1] >> 16, e.record.ttmp[7], e.record.trapsts), (0, 1 << 11, 1 << 11));
}

#[test]
fn handler_that_steps_over_a_trap_lets_the_wave_go_on() {
    // s_add_u32 ttmp0, ttmp0, 4; s_addc_u32 ttmp1, ttmp1, 0; s_setreg_b32 STATUS, ttmp12; s_rfe_b64 ttmp[0:1]
    let handler = [0x806C_846C, 0x826D_806D, 0xB978_F802, 0xBE80_4A6C];
    let (outcome, _, _, sent) = with_handler(&[S_TRAP_3, S_NOP, S_TRAP_3, S_ENDPGM], &handler);
    assert!(matches!(outcome, Outcome::Completed), "{outcome:?}");
    assert_eq!(sent, []);
}

#[test]
fn handler_that_faults_or_never_ends_halts_the_wave() {
    // s_branch to itself; s_barrier; an illegal instruction; s_sethalt, then s_rfe.
    let handlers: [&[u32]; 4] =
        [&[0xBFA0_FFFF], &[0xBFBD_0000, 0xBFA0_FFFE], &[u32::MAX], &[0xBF82_0001, 0xBE80_4A6C]];
    for handler in handlers {
        let (outcome, code, ..) = with_handler(&[S_NOP, S_TRAP_3, S_ENDPGM], handler);
        let e = exception(outcome);
        assert_eq!(
            (&e.cause, e.pc, e.record.status & HALT),
            (&Cause::Trap(3), code + 4, HALT),
            "{handler:x?}"
        );
    }
}

#[test]
fn code_without_execute_permission_faults() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    let mut launch = d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes());
    launch.entry = out.address();
    let e = exception(d.run(&launch, &Control::new(), None));
    assert!(matches!(
        e.cause,
        Cause::MemoryViolation { access: AccessKind::Execute, not_present: false, .. }
    ));
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
fn code_that_changed_runs_as_it_was_until_the_instruction_caches_are_invalidated() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    let mut launch = d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes());
    let memory = d.allocate(4096, Access::ALL);
    let code = memory.address();
    launch.entry = code;
    // s_sethalt 1, then s_endpgm in its place.
    d.write(code, &[0xBF82_0001]);
    let e = exception(d.run(&launch, &Control::new(), None));
    assert_eq!(e.cause, Cause::Halted);
    d.write(code, &[0xBFB0_0000]);
    let e = exception(d.run(&launch, &Control::new(), None));
    assert_eq!(e.cause, Cause::Halted, "a store does not reach the instruction caches");
    d.vm().invalidate_instructions();
    assert!(matches!(d.run(&launch, &Control::new(), None), Outcome::Completed));
}

#[test]
fn mapping_memory_again_does_not_invalidate_the_instruction_caches() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    let mut launch = d.launch("trap", [32, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes());
    let memory = d.allocate(4096, Access::ALL);
    let (code, page) = (memory.address(), memory.address()..memory.address() + 4096);
    launch.entry = code;
    d.write(code, &[0xBF82_0001]);
    let run = || d.run(&launch, &Control::new(), None);
    assert_eq!(exception(run()).cause, Cause::Halted);
    d.write(code, &[0xBFB0_0000]);
    d.vm().protect(page.clone(), Access::READ_WRITE);
    d.vm().protect(page.clone(), Access::ALL);
    assert_eq!(exception(run()).cause, Cause::Halted, "a change of the page tables is no invalidation");
    // But what must not be executed is not, whatever the caches hold.
    d.vm().protect(page.clone(), Access::READ_WRITE);
    let e = exception(run());
    assert!(
        matches!(e.cause, Cause::MemoryViolation { access: AccessKind::Execute, not_present: false, .. }),
        "{:?}",
        e.cause
    );
    d.vm().protect(page, Access::ALL);
    d.vm().invalidate_instructions();
    assert!(matches!(run(), Outcome::Completed));
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
