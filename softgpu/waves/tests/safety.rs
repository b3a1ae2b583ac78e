// SPDX-License-Identifier: MIT OR Apache-2.0
//! Malicious and broken code, by every engine: the device stays in control.

mod common;

use std::time::{Duration, Instant};

use common::{CODE_BYTES, Device};
use softgpu_kernels::{Array, Assembly, Shape, WaveSize};
use softgpu_waves::{Control, Engine, Launch, Outcome, Workers};

const ENGINES: [Engine; 3] = [Engine::Interp, Engine::Jit, Engine::Quick];
/// Eight waves.
const SHAPE: Shape = Shape { size: WaveSize::W32, items: 256, workgroup: 256, lds_bytes: 1024 };

/// A device, code that it may execute and write, and an output buffer, whose address is in s[0:1].
struct Setup {
    device: Device,
    code: Assembly,
    out: Array<u32>,
}

impl Setup {
    fn new(engine: Engine, text: &str) -> Setup {
        let device = Device::with_workers(Workers::with_engine(1, engine));
        let (code, out) = (device.assemble(text), device.buffer(&[0u32; 256]));
        Setup { device, code, out }
    }

    fn launch(&self) -> Launch {
        self.code.launch(SHAPE, self.out.address())
    }

    fn run(&self) -> Outcome {
        self.device.run(&self.launch(), &Control::new(), None)
    }

    /// Stops code that does not stop by itself, by pause and by abort, within a second each.
    fn can_be_stopped(&self) {
        for abort in [false, true] {
            let control = Control::new();
            let (outcome, late) = std::thread::scope(|scope| {
                let run = scope.spawn(|| (self.device.run(&self.launch(), &control, None), Instant::now()));
                std::thread::sleep(Duration::from_millis(20));
                let asked = Instant::now();
                if abort {
                    control.abort()
                } else {
                    control.pause()
                }
                let (outcome, done) = run.join().expect("run");
                (outcome, done.saturating_duration_since(asked))
            });
            let right = matches!((abort, &outcome), (false, Outcome::Paused(_)) | (true, Outcome::Aborted));
            assert!(right, "{outcome:?}");
            assert!(late < Duration::from_secs(1), "took {late:?}");
        }
    }
}

#[test]
fn endless_scalar_loop_is_stopped() {
    for engine in ENGINES {
        Setup::new(engine, "s_branch -1\ns_endpgm\n").can_be_stopped();
    }
}

#[test]
fn endless_loop_of_several_blocks_is_stopped() {
    let text = "top: s_add_u32 s4, s4, 1\ns_bitcmp1_b32 s4, 3\ns_cbranch_scc1 other\nv_add_nc_u32 v1, v1, v0\n\
                other: v_add_f32 v2, v2, v1\ns_branch top\ns_endpgm\n";
    for engine in ENGINES {
        Setup::new(engine, text).can_be_stopped();
    }
}

#[test]
fn endless_calls_are_stopped() {
    let text = "s_getpc_b64 s[4:5]\ns_swappc_b64 s[6:7], s[4:5]\ns_endpgm\n";
    for engine in ENGINES {
        Setup::new(engine, text).can_be_stopped();
    }
}

#[test]
fn branch_into_the_middle_of_an_instruction_runs_what_is_there() {
    // The literal of the second instruction is s_endpgm.
    let text = "s_branch 1\ns_mov_b32 s4, 0xbfb00000\ns_branch -1\n";
    for engine in ENGINES {
        let setup = Setup::new(engine, text);
        let outcome = setup.run();
        assert!(matches!(outcome, Outcome::Completed), "{engine:?}: {outcome:?}");
    }
}

#[test]
fn jump_out_of_the_code_is_a_fault() {
    let text = "s_mov_b64 s[4:5], 0x1000\ns_setpc_b64 s[4:5]\ns_endpgm\n";
    for engine in ENGINES {
        let outcome = Setup::new(engine, text).run();
        assert!(matches!(outcome, Outcome::Exception(_)), "{engine:?}: {outcome:?}");
    }
}

#[test]
fn run_off_the_end_of_the_code_is_a_fault() {
    for engine in ENGINES {
        let setup = Setup::new(engine, "s_nop 0\n");
        // s_nop to the last word of the mapping.
        setup.code.write(&[0xBF80_0000; CODE_BYTES / 4]).expect("room");
        let outcome = setup.run();
        assert!(matches!(outcome, Outcome::Exception(_)), "{engine:?}: {outcome:?}");
    }
}

#[test]
fn code_that_overwrites_itself_ends_and_what_it_wrote_runs_after_an_invalidation() {
    // The first word becomes "s_endpgm": a dispatch that fetches it stores nothing.
    let text = "s_nop 5\ns_getpc_b64 s[4:5]\nhere: s_sub_u32 s4, s4, 8\ns_subb_u32 s5, s5, 0\n\
                v_mov_b32 v1, 0xbfb00000\nv_mov_b32 v2, 0\nglobal_store_b32 v2, v1, s[4:5]\n\
                v_lshlrev_b32 v0, 2, v0\nv_mov_b32 v3, 7\nglobal_store_b32 v0, v3, s[0:1]\ns_endpgm\n";
    for engine in ENGINES {
        let setup = Setup::new(engine, text);
        assert!(matches!(setup.run(), Outcome::Completed));
        assert_eq!(setup.out.get(), [7; 256], "{engine:?}");
        for k in 0..256 {
            setup.out.set(k, 1);
        }
        assert!(matches!(setup.run(), Outcome::Completed));
        assert_eq!(setup.out.get(), [7; 256], "{engine:?} fetched code that is in the instruction caches");
        for k in 0..256 {
            setup.out.set(k, 1);
        }
        setup.device.vm().invalidate_instructions();
        assert!(matches!(setup.run(), Outcome::Completed));
        assert_eq!(setup.out.get(), [1; 256], "{engine:?} ran the old code");
    }
}

#[test]
fn wild_store_is_a_fault_with_its_address() {
    let text = "v_mov_b32 v1, 0x1000\nv_mov_b32 v2, 0\nglobal_store_b32 v[1:2], v0, off\ns_endpgm\n";
    for engine in ENGINES {
        match Setup::new(engine, text).run() {
            Outcome::Exception(e) => assert!(format!("{:?}", e.cause).contains("4096"), "{:?}", e.cause),
            other => panic!("{engine:?}: {other:?}"),
        }
    }
}
