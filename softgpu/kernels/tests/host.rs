// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reference itself: the host's coroutines give barriers, LDS and wave operations the meaning that plain Rust says.

use softgpu_kernels::{Argument, Engine, Host, Problem, WaveSize, case};

fn run(name: &str, size: WaveSize) -> (Problem, Vec<Vec<u8>>) {
    let problem = (case(name).expect("case").problem)(size);
    let buffers = Host::new(size).expect("host library").run(&problem).expect("host run");
    (problem, buffers)
}

/// The start of the `k`-th buffer.
fn start(problem: &Problem, k: usize) -> Vec<u8> {
    let mut buffers = problem.arguments.iter().filter_map(|argument| match argument {
        Argument::Buffer(buffer) => Some(buffer.bytes.clone()),
        Argument::U32(_) => None,
    });
    buffers.nth(k).expect("buffer")
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    words(bytes).into_iter().map(f32::from_bits).collect()
}

#[test]
fn tiles_and_barriers_multiply_matrices() {
    for (name, n) in [("gemm_lds", 48), ("gemm_8x8", 128)] {
        let (problem, buffers) = run(name, WaveSize::W32);
        let (a, b) = (floats(&start(&problem, 0)), floats(&start(&problem, 1)));
        let want: Vec<f32> = (0..n * n)
            .map(|at| (0..n).fold(0f32, |sum, k| a[at / n * n + k].mul_add(b[k * n + at % n], sum)))
            .collect();
        assert_eq!(floats(&buffers[2]), want, "{name}");
    }
}

#[test]
fn wave_operations_scan_and_reduce() {
    for size in [WaveSize::W32, WaveSize::W64] {
        let (problem, buffers) = run("scan", size);
        let mut want = words(&start(&problem, 0));
        for group in want.chunks_mut(256) {
            for k in 1..256 {
                group[k] = group[k].wrapping_add(group[k - 1]);
            }
        }
        assert_eq!(words(&buffers[1]), want, "{size:?}");

        let (problem, buffers) = run("reduce_dpp", size);
        let values = floats(&start(&problem, 0));
        let sums = values.chunks(1000).map(|c| c.iter().map(|&x| f64::from(x)).sum::<f64>());
        for (got, want) in floats(&buffers[1]).into_iter().zip(sums) {
            assert!((f64::from(got) - want).abs() < 1e-4, "{size:?}: {got} {want}");
        }
    }
}

#[test]
fn matrix_operations_multiply_bytes() {
    for size in [WaveSize::W32, WaveSize::W64] {
        let (problem, buffers) = run("gemm_wmma_iu8", size);
        let (a, b) = (start(&problem, 0), start(&problem, 1));
        let value = |at: usize| -> i32 {
            (0..64).map(|k| i32::from(a[at / 64 * 64 + k] as i8) * i32::from(b[at % 64 * 64 + k])).sum()
        };
        let want: Vec<u32> = (0..64 * 64).map(|at| value(at) as u32).collect();
        assert_eq!(words(&buffers[2]), want, "{size:?}");
    }
}

#[test]
fn sorting_sorts() {
    let (problem, buffers) = run("bitonic_sort", WaveSize::W32);
    let mut want = words(&start(&problem, 0));
    want.chunks_mut(512).for_each(<[u32]>::sort_unstable);
    assert_eq!(words(&buffers[0]), want);
}

#[test]
fn lanes_read_one_another_as_the_isa_says() {
    let (problem, buffers) = run("lane_exchanges", WaveSize::W32);
    let (v, out) = (words(&start(&problem, 0)), words(&buffers[1]));
    // The first wave's results of quad_perm [3,1,2,0], row_shl:1, row_ror:5, row_mirror, row_share:9 and row_xmask:6.
    for lane in 0..32 {
        let row = lane / 16 * 16;
        let shifted = if lane % 16 < 15 { v[lane + 1] } else { 0 };
        assert_eq!(out[lane], v[lane / 4 * 4 + [3, 1, 2, 0][lane % 4]]);
        assert_eq!(out[96 + lane], shifted);
        assert_eq!(out[5 * 96 + lane], v[row + (lane + 11) % 16]);
        assert_eq!(out[6 * 96 + lane], v[row + 15 - lane % 16]);
        assert_eq!(out[8 * 96 + lane], v[row + 9]);
        assert_eq!(out[9 * 96 + lane], v[lane ^ 6]);
    }
}

#[test]
fn rounding_directions_round_their_way() {
    let (problem, buffers) = run("rounding_modes", WaveSize::W32);
    let n = start(&problem, 0).len() / 4;
    let out = floats(&buffers[2]);
    // Twelve results in each direction: nearest, up, down, towards zero. All but v_rndne's depend on it.
    let row = |direction: usize, k: usize| &out[(12 * direction + k) * n..][..n];
    for k in 0..12 {
        let (nearest, up, down, zero) = (row(0, k), row(1, k), row(2, k), row(3, k));
        for i in 0..n {
            assert!(down[i] <= nearest[i] && nearest[i] <= up[i], "result {k} of item {i}");
        }
        assert_eq!(up == down, k == 5, "result {k}");
        assert_eq!(zero == nearest, k == 5, "result {k}");
    }
}
