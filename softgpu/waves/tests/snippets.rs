// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hand-written assembly, assembled by llvm-mc: instructions that C kernels rarely reach.

mod common;

use common::Device;
use softgpu_kernels::{Shape, WaveSize};
use softgpu_waves::{Control, Engine, Outcome, Workers};

/// Runs `text` in one wave with v0 = lane and s[0:1] = an output buffer; `text` leaves a dword per lane in v1.
fn run(text: &str, wave32: bool) -> Vec<u32> {
    run_on(&Device::new(1), text, wave32)
}

/// As [`run`], on a device of the caller's.
fn run_on(d: &Device, text: &str, wave32: bool) -> Vec<u32> {
    let lanes: usize = if wave32 { 32 } else { 64 };
    let out = d.buffer(&vec![0xAAAA_AAAAu32; lanes]);
    let directive = if wave32 { "" } else { ".amdgcn_target \"amdgcn-amd-amdhsa--gfx1100\"\n" };
    let tail = "v_lshlrev_b32 v0, 2, v0\nglobal_store_b32 v0, v1, s[0:1]\ns_endpgm\n";
    let code = d.assemble(&format!("{directive}v_and_b32 v0, 0x3ff, v0\n{text}\n{tail}"));
    let size = if wave32 { WaveSize::W32 } else { WaveSize::W64 };
    let shape = Shape { size, items: lanes as u32, workgroup: lanes as u16, lds_bytes: 4096 };
    let mut launch = code.launch(shape, out.address());
    launch.doorbell = 0x55;
    match d.run(&launch, &Control::new(), None) {
        Outcome::Completed => out.get(),
        Outcome::Exception(e) => panic!("{:x?} at +{:#x}", e.cause, e.pc - code.address()),
        other => panic!("{other:?}"),
    }
}

fn lanes(f: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(f).collect()
}

#[test]
fn both_engines_take_words_of_later_compilers() {
    // v_ldexp_f32 v3, v3, v8 and v_lshlrev_b64 v[4:5], 2, v[0:1] with the inline constant 0 where the third source would be.
    let text = "v_cvt_f32_u32 v3, v0\nv_mov_b32 v8, 3\n.long 0xd71c0003, 0x02021103\nv_cvt_u32_f32 v1, v3\n\
                v_mov_b32 v2, v1\nv_mov_b32 v1, 0\n.long 0xd73c0004, 0x02020082\nv_add_nc_u32 v1, v2, v4";
    for engine in [Engine::Interp, Engine::Jit, Engine::Quick] {
        let device = Device::with_workers(Workers::with_engine(1, engine));
        assert_eq!(run_on(&device, text, true), lanes(|i| 8 * i + 4 * i), "{}", engine.name());
    }
}

#[test]
fn dpp_patterns_move_lanes_in_rows() {
    let quad =
        run("v_mov_b32 v1, 7\nv_mov_b32_dpp v1, v0 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf", true);
    assert_eq!(quad, lanes(|i| (i & !3) | (3 - (i & 3))));
    let shr = run("v_mov_b32 v1, 7\nv_mov_b32_dpp v1, v0 row_shr:1 row_mask:0xf bank_mask:0xf", true);
    assert_eq!(shr, lanes(|i| if i & 15 == 0 { 7 } else { i - 1 }));
    let zero =
        run("v_mov_b32 v1, 7\nv_mov_b32_dpp v1, v0 row_shl:2 row_mask:0xf bank_mask:0xf bound_ctrl:1", true);
    assert_eq!(zero, lanes(|i| if i & 15 >= 14 { 0 } else { i + 2 }));
    let ror = run("v_mov_b32_dpp v1, v0 row_ror:4 row_mask:0xf bank_mask:0xf", true);
    assert_eq!(ror, lanes(|i| (i & 16) | (i + 12) & 15));
    let mirror = run("v_mov_b32_dpp v1, v0 row_mirror row_mask:0xf bank_mask:0xf", true);
    assert_eq!(mirror, lanes(|i| i ^ 15));
    let share = run("v_mov_b32_dpp v1, v0 row_share:5 row_mask:0xf bank_mask:0xf", true);
    assert_eq!(share, lanes(|i| (i & 16) + 5));
    let xmask = run("v_mov_b32_dpp v1, v0 row_xmask:6 row_mask:0xf bank_mask:0xf", true);
    assert_eq!(xmask, lanes(|i| i ^ 6));
    let masked = run("v_mov_b32 v1, 7\nv_mov_b32_dpp v1, v0 row_mirror row_mask:0x2 bank_mask:0x5", true);
    assert_eq!(masked, lanes(|i| if i >= 16 && (i / 4) & 1 == 0 { i ^ 15 } else { 7 }));
    let eight = run("v_mov_b32_dpp v1, v0 dpp8:[7,6,5,4,3,2,1,0]", true);
    assert_eq!(eight, lanes(|i| i ^ 7));
    let add =
        run("v_mov_b32 v2, 100\nv_add_nc_u32_dpp v1, v0, v2 row_xmask:1 row_mask:0xf bank_mask:0xf", true);
    assert_eq!(add, lanes(|i| (i ^ 1) + 100));
}

#[test]
fn lane_crossings_read_the_lanes_they_name() {
    let swapped =
        run("s_mov_b32 s4, 0x76543210\ns_mov_b32 s5, 0xfedcba98\nv_permlanex16_b32 v1, v0, s4, s5", true);
    assert_eq!(swapped, lanes(|i| i ^ 16));
    let one = run("v_readlane_b32 s4, v0, 9\nv_mov_b32 v1, s4\nv_writelane_b32 v1, 77, 3", true);
    assert_eq!(one, lanes(|i| if i == 3 { 77 } else { 9 }));
    let back = run("v_sub_nc_u32 v2, 31, v0\nv_lshlrev_b32 v2, 2, v2\nds_bpermute_b32 v1, v2, v0", true);
    assert_eq!(back, lanes(|i| 31 - i));
    let pushed = run("v_lshlrev_b32 v2, 3, v0\nds_permute_b32 v1, v2, v0", true);
    assert_eq!(pushed, lanes(|i| if i & 1 == 0 { i / 2 + 16 } else { 0 }));
    let broadcast = run("ds_swizzle_b32 v1, v0 offset:swizzle(BITMASK_PERM,\"00p11\")", true);
    assert_eq!(broadcast, lanes(|i| (i & 4) | 3));
}

#[test]
fn masks_zero_inactive_lanes() {
    let text = "s_mov_b32 exec_lo, 0xffff\ns_mov_b32 s4, -1\nv_cmp_gt_u32 s4, 8, v0\ns_mov_b32 exec_lo, -1\nv_mov_b32 v1, s4";
    assert_eq!(run(text, true), vec![0xFF; 32]);
    let cmpx = "v_mov_b32 v1, 1\nv_cmpx_lt_u32 10, v0\nv_mov_b32 v1, 2\ns_mov_b32 exec_lo, -1";
    assert_eq!(run(cmpx, true), lanes(|i| if i > 10 { 2 } else { 1 }));
    let carry = "v_mov_b32 v2, -1\nv_add_co_u32 v1, vcc_lo, v2, v0\nv_add_co_ci_u32 v1, vcc_lo, 0, 0, vcc_lo";
    assert_eq!(run(carry, true), lanes(|i| u32::from(i > 0)));
}

#[test]
fn dual_issue_reads_before_it_writes() {
    // Both halves read the other's destination: a swap.
    let text = "v_add_nc_u32 v2, 5, v0\nv_mov_b32 v3, 9\nv_dual_mov_b32 v2, v3 :: v_dual_mov_b32 v3, v2\nv_lshlrev_b32 v2, 16, v2\nv_or_b32 v1, v2, v3";
    assert_eq!(run(text, true), lanes(|i| 9 << 16 | (i + 5)));
}

#[test]
fn modifiers_clamp_and_modes() {
    let clamp = run(
        "v_cvt_f32_u32 v2, v0\nv_mul_f32 v2, 0.5, v2\nv_add_f32 v1, v2, -v2 clamp\nv_add_f32 v1, v2, 0 clamp",
        true,
    );
    assert_eq!(clamp, lanes(|i| (i as f32 * 0.5).min(1.0).to_bits()));
    // Toward zero by MODE: 1 + 2^-24 * 3 rounds down instead of up.
    let rounded =
        run("v_mov_b32 v2, 0x34400000\ns_round_mode 0x3\nv_add_f32 v1, 1.0, v2\ns_round_mode 0x0", true);
    assert_eq!(rounded[0], 0x3F80_0001);
    let nearest = run("v_mov_b32 v2, 0x34400000\nv_add_f32 v1, 1.0, v2", true);
    assert_eq!(nearest[0], 0x3F80_0002);
    let flushed =
        run("v_mov_b32 v2, 0x00400000\ns_denorm_mode 0xc\nv_add_f32 v1, v2, v2\ns_denorm_mode 0xf", true);
    assert_eq!(flushed[0], 0);
    let kept = run("v_mov_b32 v2, 0x00400000\nv_add_f32 v1, v2, v2", true);
    assert_eq!(kept[0], 0x0080_0000);
    let half = run("v_mov_b32 v1, 0x12345678\nv_mov_b32 v2, 0x3c004000\nv_add_f16 v1, v2, v2", true);
    assert_eq!(half[0], 0x1234_4400);
}

#[test]
fn scalar_unit_and_messages() {
    let text = "s_mov_b32 s4, 0xff00\ns_bfe_u32 s5, s4, 0x40008\ns_bcnt1_i32_b32 s6, s4\ns_add_u32 s5, s5, s6\ns_ctz_i32_b32 s6, s4\ns_lshl_b32 s6, s6, 16\ns_or_b32 s5, s5, s6\nv_mov_b32 v1, s5";
    assert_eq!(run(text, true)[0], 8 << 16 | (15 + 8));
    let mode = "s_getreg_b32 s4, hwreg(HW_REG_MODE, 4, 4)\ns_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 2\ns_getreg_b32 s5, hwreg(HW_REG_MODE, 0, 2)\ns_lshl_b32 s5, s5, 8\ns_or_b32 s4, s4, s5\nv_mov_b32 v1, s4";
    assert_eq!(run(mode, true)[0], 0x20F);
    assert_eq!(
        run(
            "s_sendmsg_rtn_b32 s4, sendmsg(MSG_RTN_GET_DOORBELL)\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v1, s4",
            true
        )[0],
        0x55
    );
    let call = "s_getpc_b64 s[4:5]\ns_add_u32 s4, s4, 20\ns_addc_u32 s5, s5, 0\ns_swappc_b64 s[6:7], s[4:5]\nv_add_nc_u32 v1, 1, v1\ns_branch 2\nv_mov_b32 v1, 41\ns_setpc_b64 s[6:7]";
    assert_eq!(run(call, true)[0], 42);
}

#[test]
fn lds_two_address_and_out_of_range() {
    let text = "v_lshlrev_b32 v2, 2, v0\nv_add_nc_u32 v3, 100, v0\nds_store_2addr_b32 v2, v0, v3 offset0:0 offset1:64\nds_load_2addr_stride64_b32 v[4:5], v2 offset0:0 offset1:1\ns_waitcnt lgkmcnt(0)\nv_lshl_add_u32 v1, v5, 8, v4";
    assert_eq!(run(text, true), lanes(|i| ((i + 100) << 8) + i));
    let outside = "v_lshlrev_b32 v2, 7, v0\nds_store_b32 v2, v0 offset:2048\nds_load_b32 v1, v2 offset:2048\ns_waitcnt lgkmcnt(0)";
    assert_eq!(run(outside, true), lanes(|i| if i < 16 { i } else { 0 }));
    let misaligned = "v_lshlrev_b32 v2, 3, v0\nv_mov_b32 v3, 0x44332211\nds_store_b32 v2, v3 offset:1\nds_load_u16 v1, v2 offset:2\ns_waitcnt lgkmcnt(0)";
    assert_eq!(run(misaligned, true), vec![0x3322; 32]);
}

#[test]
fn wave64_runs_both_halves() {
    // llvm-mc takes these for wave32; the width of VCC is not encoded.
    let text = "v_cmp_gt_u32 vcc_lo, 40, v0\nv_cndmask_b32 v1, 0, 5, vcc_lo\nv_readlane_b32 s4, v0, 63\nv_add_nc_u32 v1, s4, v1\nv_mbcnt_lo_u32_b32 v2, -1, 0\nv_mbcnt_hi_u32_b32 v2, -1, v2\nv_lshl_add_u32 v1, v2, 8, v1";
    let got = run(text, false);
    let want: Vec<u32> = (0..64).map(|i| (i << 8) + 63 + if i < 40 { 5 } else { 0 }).collect();
    assert_eq!(got, want);
}
