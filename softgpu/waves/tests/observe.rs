// SPDX-License-Identifier: MIT OR Apache-2.0
//! The observation of assembled kernels whose instructions can be counted by hand.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::PathBuf;

use common::Device;
use softgpu_kernels::{Array, Assembly, Shape, WaveSize};
use softgpu_waves::{Control, Engine, Launch, Observe, Outcome, Workers};

/// Two workgroups of 48 work-items: waves of 32 and of 16 lanes.
const GRID: u32 = 96;
const GROUP: u16 = 48;

/// 26 instructions a wave; the store, the atomic and the dual move run in lanes 0 to 15 of the first wave only.
const COUNTED: &str = "
v_and_b32 v0, 0x3ff, v0
v_lshlrev_b32 v2, 2, v0
s_load_b128 s[4:7], s[0:1], null
s_waitcnt lgkmcnt(0)
ds_store_b32 v2, v0
s_waitcnt lgkmcnt(0)
s_barrier
ds_load_b32 v3, v2
s_mov_b32 s8, 3
again:
s_nop 0
s_sub_u32 s8, s8, 1
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 again
v_cmpx_gt_u32 16, v0
global_store_b64 v2, v[2:3], s[0:1]
global_atomic_add_u32 v2, v0, s[0:1]
v_dual_mov_b32 v4, v0 :: v_dual_mov_b32 v5, v2
s_endpgm
";

/// Lanes 0 to 7 store to LDS, the others to global memory, by one instruction.
const FLAT: &str = "
v_and_b32 v0, 0x3ff, v0
v_lshlrev_b32 v2, 2, v0
v_add_co_u32 v4, vcc_lo, s0, v2
v_add_co_ci_u32_e64 v5, vcc_lo, s1, 0, vcc_lo
v_cmp_gt_u32 vcc_lo, 8, v0
v_cndmask_b32 v4, v4, v2, vcc_lo
v_mov_b32 v6, 0x10000
v_cndmask_b32 v5, v5, v6, vcc_lo
flat_store_b32 v[4:5], v0
s_endpgm
";

const FAULTS: &str = "
s_mov_b64 s[4:5], 16
v_mov_b32 v0, 0
global_load_b32 v1, v0, s[4:5]
s_endpgm
";

struct Files {
    directory: PathBuf,
}

impl Files {
    fn new(name: &str) -> Files {
        let directory = std::env::temp_dir().join(format!("observe-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        Files { directory }
    }

    fn wish(&self, stats: bool, trace: u64) -> Observe {
        Observe {
            stats: stats.then(|| self.directory.join("stats")),
            trace: (trace > 0).then(|| (self.directory.join("trace"), trace)),
        }
    }

    fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.directory.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn device(observe: Observe) -> Device {
    Device::with_workers(Workers::with_observer(2, Engine::Auto, observe))
}

/// A launch of assembled code; s[0:1] holds the address of `out`.
fn launch(code: &Assembly, out: &Array<u32>, items: u32, workgroup: u16) -> Launch {
    let shape = Shape { size: WaveSize::W32, items, workgroup, lds_bytes: 8192 };
    let mut launch = code.launch(shape, out.address());
    (launch.kernel_object, launch.packet.kernel_object, launch.dispatch_id) = (0x40, 0x40, 5);
    launch
}

fn words() -> Vec<u32> {
    (1..=64).collect()
}

fn number(line: &str, name: &str) -> u64 {
    let at = line.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {line}"));
    let digits = line[at + name.len() + 3..].chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

#[test]
fn counts_of_a_known_kernel_are_exact() {
    let files = Files::new("counts");
    let d = device(files.wish(true, 0));
    let out = d.buffer(&words());
    assert_eq!(d.complete(&launch(&d.assemble(COUNTED), &out, GRID, GROUP)), 104);
    let lines = files.lines("stats");
    assert_eq!(lines.len(), 1);
    for part in [
        "{\"dispatch_id\":5,\"kernel_object\":64,\"outcome\":\"completed\",\"workgroups\":2,\"waves\":4,\"lanes\":32,",
        "\"instructions\":{\"total\":104,\"valu\":12,\"vopd\":4,\"matrix\":0,\"salu\":28,\"smem\":4,\"vmem_load\":0,\
         \"vmem_store\":4,\"ds\":8,\"atomic\":4,\"branch\":12,\"hint\":20,\"other\":8},",
        "\"bytes\":{\"global\":{\"loaded\":128,\"stored\":384},\"lds\":{\"loaded\":384,\"stored\":384},\
         \"scratch\":{\"loaded\":0,\"stored\":0},\"scalar\":{\"loaded\":64,\"stored\":0}},",
        "\"vector_instructions\":32,\"average_active_lanes\":18.000,",
        "\"occupancy\":{\"vgprs\":72,\"lds_bytes\":8192,\"scratch_bytes\":0,\"waves_per_workgroup\":2,\
         \"waves_per_simd\":8.00,\"slots_per_simd\":16,\"limited_by\":\"LDS\"},",
    ] {
        assert!(lines[0].contains(part), "wanted {part}\nin {}", lines[0]);
    }
    assert_eq!(lines[0].matches('{').count(), lines[0].matches('}').count());
}

#[test]
fn watched_kernels_compute_the_same() {
    let run = |observe| {
        let d = device(observe);
        let out = d.buffer(&words());
        d.complete(&launch(&d.assemble(COUNTED), &out, 48, GROUP));
        out.get()
    };
    let files = Files::new("same");
    let plain = run(Observe::default());
    assert_ne!(plain, words());
    assert_eq!(run(files.wish(true, 10)), plain);
    assert_eq!(run(files.wish(false, 3)), plain);
    assert_eq!(files.lines("stats").len(), 1);
}

#[test]
fn flat_bytes_are_counted_where_they_go() {
    let files = Files::new("flat");
    let d = device(files.wish(true, 0));
    let out = d.buffer(&words());
    d.complete(&launch(&d.assemble(FLAT), &out, 32, 32));
    let want = "\"global\":{\"loaded\":0,\"stored\":96},\"lds\":{\"loaded\":0,\"stored\":32}";
    assert!(files.lines("stats")[0].contains(want), "{:?}", files.lines("stats"));
    assert_eq!(out.get()[7..9], [8, 8]);
}

#[test]
fn a_paused_grid_leaves_its_parts() {
    let files = Files::new("paused");
    let d = device(files.wish(true, 1000));
    // Each pause is at another place; the sum of the parts is always the same.
    for pause in [1, 17, 30, 60] {
        let out = d.buffer(&words());
        let code = d.assemble(COUNTED);
        let launch = launch(&code, &out, GRID, GROUP);
        let control = Control::new();
        control.pause_after(pause);
        let Outcome::Paused(state) = d.run(&launch, &control, None) else { panic!("not paused at {pause}") };
        assert!(matches!(d.run(&launch, &Control::new(), Some(state)), Outcome::Completed));
    }
    let lines = files.lines("stats");
    assert_eq!(lines.len(), 8);
    for parts in lines.chunks(2) {
        assert!(parts[0].contains("\"paused\"") && parts[1].contains("\"completed\""));
        // A wave that waited at a barrier executes the barrier again.
        let total: u64 = parts.iter().map(|line| number(line, "total")).sum();
        let barriers: u64 = parts.iter().map(|line| number(line, "other")).sum();
        assert_eq!(total - barriers, 96, "{parts:#?}");
        assert!((8..=10).contains(&barriers), "{parts:#?}");
        assert_eq!(parts.iter().map(|line| number(line, "waves")).sum::<u64>(), 4);
    }
}

#[test]
fn the_first_wave_is_traced_with_what_it_changes() {
    let files = Files::new("trace");
    let d = device(files.wish(false, 11));
    let out = d.buffer(&words());
    // One workgroup, so that no other adds to the buffer first.
    let code = d.assemble(COUNTED);
    let launch = launch(&code, &out, 48, GROUP);
    d.complete(&launch);
    let lines = files.lines("trace");
    assert_eq!(lines[0], format!("dispatch 5 kernel_object 0x40 entry {:#x}", launch.entry));
    let want = [
        ("+0x0000", "v_and_b32_e32 v0, 0x3ff, v0", "exec=ffffffff"),
        ("+0x0008", "v_lshlrev_b32_e32 v2, 2, v0", "exec=ffffffff v2[0]=0x0 (31 lanes)"),
        ("+0x000c", "s_load_b128 s[4:7], s[0:1], null", "exec=ffffffff s4=0x1 s5=0x2 s6=0x3 s7=0x4"),
        ("+0x0014", "s_waitcnt lgkmcnt(0)", "exec=ffffffff"),
        ("+0x0018", "ds_store_b32 v2, v0", "exec=ffffffff"),
        ("+0x0020", "s_waitcnt lgkmcnt(0)", "exec=ffffffff"),
        ("+0x0024", "s_barrier", "exec=ffffffff"),
        ("+0x0028", "ds_load_b32 v3, v2", "exec=ffffffff v3[0]=0x0 (31 lanes)"),
        ("+0x0030", "s_mov_b32 s8, 3", "exec=ffffffff s8=0x3"),
        ("+0x0034", "s_nop 0", "exec=ffffffff"),
        ("+0x0038", "s_sub_u32 s8, s8, 1", "exec=ffffffff s8=0x2"),
    ];
    assert_eq!(lines.len(), 1 + want.len(), "{lines:#?}");
    for (line, (place, text, end)) in lines[1..].iter().zip(want) {
        assert!(line.contains(place) && line.contains(text) && line.ends_with(end), "{line}\nwanted {end}");
    }
}

#[test]
fn a_trace_ends_with_the_instruction_that_stopped_the_wave() {
    let files = Files::new("fault");
    let d = device(files.wish(true, 100));
    let out = d.buffer(&words());
    let outcome = d.run(&launch(&d.assemble(FAULTS), &out, 32, 32), &Control::new(), None);
    assert!(matches!(outcome, Outcome::Exception(_)));
    let lines = files.lines("trace");
    assert_eq!(lines.len(), 4);
    assert!(lines[3].ends_with("exec=ffffffff stopped: Read of 0x10 is not allowed"), "{}", lines[3]);
    // The instruction that stopped the wave was not executed.
    let stats = &files.lines("stats")[0];
    assert!(stats.contains("\"exception\"") && stats.contains("\"total\":2,"), "{stats}");
    assert!(stats.contains("\"vmem_load\":0") && stats.contains("\"waves\":0"), "{stats}");
}
