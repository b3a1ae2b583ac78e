// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels in Triton's language, against the same computation in Rust.

use std::collections::HashMap;
use std::path::Path;

use device_cc::newest;
use softgpu_kernels::{Check, Device, Engine, Problem, Random};

use crate::directory;

/// Triton's work-items in a workgroup: four warps.
const ITEMS: u16 = 128;

/// What the compiler said of a kernel, and its code object.
struct Compiled {
    code: Vec<u8>,
    lds: u32,
}

fn compile() -> HashMap<String, Compiled> {
    let place = directory("triton");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("newest/triton_kernels.py");
    // Its cache is new, so that each run compiles.
    let listing = newest::script(&source, std::slice::from_ref(&place), &place.join("cache"));
    let listing = listing.unwrap_or_else(|why| panic!("{why}"));
    let kernel = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        let lds = words.next()?.parse().ok()?;
        assert_eq!(words.next(), Some("4"), "warps of {name}");
        let code = std::fs::read(place.join(format!("{name}.hsaco"))).ok()?;
        Some((name, Compiled { code, lds }))
    };
    let kernels: HashMap<_, _> = listing.lines().filter_map(kernel).collect();
    std::fs::remove_dir_all(&place).expect("a directory of our own");
    kernels
}

/// `groups` workgroups of `name`; the arguments follow.
fn launch(name: &'static str, groups: [u32; 2]) -> Problem {
    Problem::grid(name, [groups[0] * u32::from(ITEMS), groups[1], 1], [ITEMS, 1, 1])
}

const NEAR: Check = Check::Near { bytes: 4, relative: 2e-5, absolute: 2e-6 };

fn floats(seed: u64, count: usize) -> Vec<f32> {
    let mut r = Random(seed);
    // Sixteenths, which f16 holds too.
    (0..count).map(|_| (r.below(65) as f32 - 32.0) / 16.0).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Runs `problem` in both engines; the buffers in `changed` are to hold `want`, the others what they held.
fn check(kernels: &HashMap<String, Compiled>, problem: Problem, changed: usize, want: Vec<u8>) {
    let kernel = &kernels[problem.kernel];
    // Triton passes two more pointers, to scratch of its own that these kernels do not use.
    let problem = problem.dynamic_lds(kernel.lds).with(&[0u64; 2]).with(&[0u64; 2]);
    for engine in [softgpu_waves::Engine::Interp, softgpu_waves::Engine::Jit, softgpu_waves::Engine::Quick] {
        let device = Device::with_code(&kernel.code, 2, engine).expect("device");
        let got = device.run(&problem).unwrap_or_else(|e| panic!("{}, {engine:?}: {e}", problem.kernel));
        let mut wanted = got.clone();
        for (k, buffer) in problem.buffers().enumerate() {
            wanted[k] = if k == changed { want.clone() } else { buffer.bytes.clone() };
        }
        problem.compare(&got, &wanted).unwrap_or_else(|e| panic!("{engine:?}: {e}"));
    }
}

#[test]
fn triton_kernels_agree_with_the_cpu() {
    let kernels = compile();
    assert_eq!(kernels.len(), 6);
    add(&kernels);
    softmax(&kernels);
    matmul(&kernels);
    layernorm(&kernels);
    dropout(&kernels);
    total(&kernels);
}

fn add(kernels: &HashMap<String, Compiled>) {
    let n = 5000;
    let (x, y) = (floats(1, n), floats(2, n));
    let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    let problem = launch("add", [5, 1]).with(&x).with(&y).zeroes::<f32>(n, Check::Exact).number(n as u32);
    check(kernels, problem, 2, bytes(&want));
}

fn softmax(kernels: &HashMap<String, Compiled>) {
    let (rows, columns) = (7, 781);
    let x = floats(3, rows * columns);
    let row = |row: &[f32]| -> Vec<f32> {
        let most = row.iter().fold(f32::MIN, |a, &b| a.max(b));
        let e: Vec<f64> = row.iter().map(|x| f64::from(x - most).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.iter().map(|e| (e / sum) as f32).collect()
    };
    let want: Vec<f32> = x.chunks(columns).flat_map(row).collect();
    let problem =
        launch("softmax", [rows as u32, 1]).with(&x).zeroes::<f32>(x.len(), NEAR).number(columns as u32);
    check(kernels, problem, 1, bytes(&want));
}

/// f16 bits of a sixteenth between -2 and 2.
fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    // CAST: a sign, 5 bits of exponent and 10 of fraction.
    let magnitude = if value == 0.0 { 0 } else { ((bits >> 23 & 0xFF) - 112) << 10 | (bits >> 13 & 0x3FF) };
    (bits >> 16 & 0x8000 | magnitude) as u16
}

fn matmul(kernels: &HashMap<String, Compiled>) {
    let n = 96;
    let (a, b) = (floats(4, n * n), floats(5, n * n));
    let halves = |values: &[f32]| values.iter().map(|&value| half(value)).collect::<Vec<u16>>();
    // Sums of products of sixteenths are exact.
    let cell = |i: usize| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum::<f32>();
    let want: Vec<f32> = (0..n * n).map(cell).collect();
    let problem = launch("matmul", [3, 3]).with(&halves(&a)).with(&halves(&b));
    check(kernels, problem.zeroes::<f32>(n * n, Check::Exact).number(n as u32), 2, bytes(&want));
}

fn layernorm(kernels: &HashMap<String, Compiled>) {
    let (rows, columns, epsilon) = (5, 384, 1e-5f32);
    let (x, w, b) = (floats(6, rows * columns), floats(7, columns), floats(8, columns));
    let row = |row: &[f32]| -> Vec<f32> {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / columns as f64;
        let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / columns as f64;
        let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
        let one = |(k, &x): (usize, &f32)| (f64::from(x) - mean) * scale * f64::from(w[k]) + f64::from(b[k]);
        row.iter().enumerate().map(|pair| one(pair) as f32).collect()
    };
    let want: Vec<f32> = x.chunks(columns).flat_map(row).collect();
    let problem = launch("layernorm", [rows as u32, 1]).with(&x).with(&w).with(&b);
    let problem = problem.zeroes::<f32>(x.len(), NEAR).number(columns as u32).number(epsilon.to_bits());
    check(kernels, problem, 3, bytes(&want));
}

/// The first word of Philox 4x32 with ten rounds, for the counter (at, 0, 0, 0) and the key (seed, 0).
fn philox(at: u32, seed: u32) -> u32 {
    let (mut c, mut key) = ([at, 0, 0, 0], [seed, 0]);
    for _ in 0..10 {
        let wide = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let (a, b) = (wide(0xD251_1F53, c[0]), wide(0xCD9E_8D57, c[2]));
        c = [(b >> 32) as u32 ^ c[1] ^ key[0], b as u32, (a >> 32) as u32 ^ c[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c[0]
}

fn dropout(kernels: &HashMap<String, Compiled>) {
    let (n, p, seed) = (3000, 0.375f32, 1234u32);
    let x: Vec<f32> = floats(9, n).iter().map(|x| x + 4.0).collect();
    // Triton folds the sign in and scales to just below 1.
    let uniform = |at: u32| {
        let bits = philox(at, seed) as i32;
        (if bits < 0 { -bits - 1 } else { bits }) as f32 * 4.656_612_7e-10
    };
    let value = |(k, &x): (usize, &f32)| if uniform(k as u32) > p { x / (1.0 - p) } else { 0.0 };
    let want: Vec<f32> = x.iter().enumerate().map(value).collect();
    let kept = want.iter().filter(|&&value| value != 0.0).count();
    assert!((1700..2050).contains(&kept), "{kept}");
    let problem = launch("dropout", [3, 1]).with(&x).zeroes::<f32>(n, NEAR).number(n as u32);
    check(kernels, problem.number(p.to_bits()).number(seed), 1, bytes(&want));
}

fn total(kernels: &HashMap<String, Compiled>) {
    let n = 10_001;
    let mut r = Random(10);
    let x: Vec<u32> = (0..n).map(|_| r.u32()).collect();
    let want = x.iter().fold(7u32, |sum, &value| sum.wrapping_add(value));
    let problem = launch("total", [10, 1]).with(&x).with(&[7u32]).number(n);
    check(kernels, problem, 1, want.to_le_bytes().to_vec());
}
