// SPDX-License-Identifier: MIT OR Apache-2.0
//! End to end: C kernels through clang, run by the interpreter, compared with the same computation in Rust.

mod common;

use common::Device;
use softgpu_kernels::{Arguments, Random};

#[test]
fn axpy_with_a_partial_last_wave() {
    let d = Device::with_kernels(2);
    let n = 1000usize;
    let mut r = Random(1);
    let x: Vec<f32> = (0..n).map(|_| r.f32()).collect();
    let y: Vec<f32> = (0..n).map(|_| r.f32()).collect();
    let (bx, by) = (d.buffer(&x), d.buffer(&y));
    let args = Arguments::new().u64(bx.address()).u64(by.address()).f32(1.5).u32(n as u32);
    d.complete(&d.launch("axpy", [1000, 1, 1], [256, 1, 1], args.bytes()));
    let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x.mul_add(1.5, *y)).collect();
    assert_eq!(by.get(), want);
}

#[test]
fn stencil_leaves_the_border() {
    let d = Device::with_kernels(2);
    let (w, h) = (64usize, 48usize);
    let mut r = Random(2);
    let x: Vec<f32> = (0..w * h).map(|_| r.f32()).collect();
    let (bx, by) = (d.buffer(&x), d.buffer(&vec![0f32; w * h]));
    let args = Arguments::new().u64(bx.address()).u64(by.address()).u32(w as u32).u32(h as u32);
    d.complete(&d.launch("stencil", [64, 48, 1], [32, 8, 1], args.bytes()));
    let mut want = vec![0f32; w * h];
    for j in 1..h - 1 {
        for i in 1..w - 1 {
            let k = j * w + i;
            want[k] = 0.5 * x[k] + 0.125 * (x[k - 1] + x[k + 1] + x[k - w] + x[k + w]);
        }
    }
    assert_eq!(by.get(), want);
}

#[test]
fn gemm_with_lds_tiles_and_barriers() {
    let d = Device::with_kernels(2);
    let n = 64usize;
    let mut r = Random(3);
    let a: Vec<f32> = (0..n * n).map(|_| r.f32()).collect();
    let b: Vec<f32> = (0..n * n).map(|_| r.f32()).collect();
    let (ba, bb, bc) = (d.buffer(&a), d.buffer(&b), d.buffer(&vec![0f32; n * n]));
    let args = Arguments::new().u64(ba.address()).u64(bb.address()).u64(bc.address()).u32(n as u32);
    d.complete(&d.launch("gemm", [64, 64, 1], [16, 16, 1], args.bytes()));
    let mut want = vec![0f32; n * n];
    for i in 0..n {
        for j in 0..n {
            want[i * n + j] = (0..n).fold(0f32, |s, k| a[i * n + k].mul_add(b[k * n + j], s));
        }
    }
    assert_eq!(bc.get(), want);
}

#[test]
fn collatz_diverges() {
    let d = Device::with_kernels(2);
    let x: Vec<u32> = (1..=256).collect();
    let (bx, by) = (d.buffer(&x), d.buffer(&vec![0u32; 256]));
    d.complete(&d.launch(
        "collatz",
        [256, 1, 1],
        [64, 1, 1],
        Arguments::new().u64(bx.address()).u64(by.address()).bytes(),
    ));
    let steps = |mut n: u32| {
        let mut k = 0;
        while n != 1 {
            n = if n & 1 != 0 { 3 * n + 1 } else { n / 2 };
            k += 1;
        }
        k
    };
    assert_eq!(by.get(), x.iter().map(|&n| steps(n)).collect::<Vec<u32>>());
}

#[test]
fn reduction_by_dpp_and_bpermute_is_a_prefix_sum() {
    let d = Device::with_kernels(1);
    let mut r = Random(4);
    let x: Vec<u32> = (0..128).map(|_| r.u32()).collect();
    let (bx, by) = (d.buffer(&x), d.buffer(&vec![0u32; 128]));
    d.complete(&d.launch(
        "reduce",
        [128, 1, 1],
        [32, 1, 1],
        Arguments::new().u64(bx.address()).u64(by.address()).bytes(),
    ));
    let want: Vec<u32> =
        (0..128).map(|i| x[i / 32 * 32..=i].iter().fold(0, |s: u32, v| s.wrapping_add(*v))).collect();
    assert_eq!(by.get(), want);
}

#[test]
fn integer_hash_and_64_bit() {
    let d = Device::with_kernels(2);
    let n = 512;
    let mut r = Random(5);
    let x: Vec<u32> = (0..n).map(|_| r.u32()).collect();
    let (bx, by, bz) = (d.buffer(&x), d.buffer(&vec![0u32; n]), d.buffer(&vec![0u64; n]));
    let args = Arguments::new().u64(bx.address()).u64(by.address()).u64(bz.address());
    d.complete(&d.launch("hash", [512, 1, 1], [128, 1, 1], args.bytes()));
    let (hashes, wide) = (by.get(), bz.get());
    for i in 0..n {
        let mut h = x[i];
        for k in 0..8u32 {
            h ^= h >> 16;
            h = h.wrapping_mul(0x7feb_352d);
            h = h.rotate_left(13);
            h ^= h >> 15;
            h = h.wrapping_add(k.wrapping_mul(0x846c_a68b));
            h = (h % 1_000_003).wrapping_add(h / 7);
        }
        assert_eq!(hashes[i], h, "hash {i}");
        let mut z = u64::from(h).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(i as u64);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z /= i as u64 + 3;
        assert_eq!(wide[i], z << (i & 31) ^ ((z as i64) >> 7) as u64, "wide {i}");
    }
}

#[test]
fn doubles_divide_and_root_exactly() {
    let d = Device::with_kernels(2);
    let n = 256;
    let mut r = Random(6);
    let x: Vec<f64> = (0..n).map(|_| f64::from(r.f32()) * 1000.0 + f64::from(r.f32()) * 1e-7).collect();
    let (bx, by, bn) = (d.buffer(&x), d.buffer(&vec![0f64; n]), d.buffer(&vec![0i64; n]));
    let args = Arguments::new().u64(bx.address()).u64(by.address()).u64(bn.address());
    d.complete(&d.launch("doubles", [256, 1, 1], [64, 1, 1], args.bytes()));
    let (y, whole) = (by.get(), bn.get());
    for i in 0..n {
        let a = x[i];
        let mut r = a.abs().sqrt() / (a * a + 1.0) + a.mul_add(0.25, -3.0);
        r += a.floor() - f64::from(a as i32);
        let want = if a < 0.0 { -r } else { r };
        assert_eq!(y[i].to_bits(), want.to_bits(), "{i}: {a} {} {want}", y[i]);
        assert_eq!(whole[i], (a * 1000.0) as i64, "{i}");
    }
}

#[test]
fn histogram_with_lds_and_global_atomics() {
    let d = Device::with_kernels(2);
    let n = 4096;
    let mut r = Random(7);
    let x: Vec<u32> = (0..n).map(|_| r.u32()).collect();
    let (bx, bins, top, sum) = (d.buffer(&x), d.buffer(&[0u32; 64]), d.buffer(&[0u32]), d.buffer(&[0f32]));
    let args = Arguments::new().u64(bx.address()).u64(bins.address()).u64(top.address()).u64(sum.address());
    d.complete(&d.launch("histogram", [4096, 1, 1], [256, 1, 1], args.bytes()));
    let mut want = vec![0u32; 64];
    x.iter().for_each(|v| want[(v & 63) as usize] += 1);
    assert_eq!(bins.get(), want);
    assert_eq!(top.get()[0], x.iter().copied().max().expect("values"));
    assert_eq!(sum.get()[0], x.iter().filter(|&v| v & 1023 == 7).count() as f32 * 0.5);
}

#[test]
fn private_arrays_live_in_scratch() {
    let d = Device::with_kernels(2);
    let mut r = Random(8);
    let x: Vec<u32> = (0..256).map(|_| r.u32() >> 1).collect();
    let (bx, by) = (d.buffer(&x), d.buffer(&vec![0u32; 256]));
    let launch = d.launch(
        "spill",
        [256, 1, 1],
        [64, 1, 1],
        Arguments::new().u64(bx.address()).u64(by.address()).bytes(),
    );
    assert!(launch.packet.private_segment_bytes >= 160);
    d.complete(&launch);
    for (i, got) in by.get().into_iter().enumerate() {
        let mut stack: Vec<u32> = (0..40).map(|k| x[i].wrapping_mul(k + 1)).collect();
        let mut sum = 0u32;
        for k in 0..200u32 {
            let at = (x[i].wrapping_add(k * 7) % 40) as usize;
            sum = sum.wrapping_mul(31).wrapping_add(stack[at]);
            stack[at] = sum;
        }
        assert_eq!(got, sum.wrapping_add(sum >> (i & 15) & 0xFF), "{i}");
    }
}

#[test]
fn floats_divide_root_and_convert_exactly() {
    let d = Device::with_kernels(2);
    let n = 1024usize;
    let mut r = Random(9);
    let special = [
        0.0,
        -0.0,
        1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-45,
        -1e-40,
        f32::MAX,
        f32::MIN_POSITIVE,
    ];
    let mut value = |i: usize, k: usize| match i % 3 {
        0 => special[(i / 3 + k * (i / 30)) % special.len()],
        1 => f32::from_bits(r.u32()),
        _ => r.f32() * 100.0,
    };
    let x: Vec<f32> = (0..n).map(|i| value(i, 1)).collect();
    let y: Vec<f32> = (0..n).map(|i| value(i, 3)).collect();
    let (bx, by, bo) = (d.buffer(&x), d.buffer(&y), d.buffer(&vec![0f32; 5 * n]));
    let args = Arguments::new().u64(bx.address()).u64(by.address()).u64(bo.address()).u32(n as u32);
    d.complete(&d.launch("floats", [1024, 1, 1], [64, 1, 1], args.bytes()));
    let out = bo.get();
    let same = |got: f32, want: f32| got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
    for i in 0..n {
        let (a, b) = (x[i], y[i]);
        assert!(same(out[i], a / b), "{a:e} / {b:e} = {:e}, not {:e}", out[i], a / b);
        assert!(same(out[n + i], a.abs().sqrt()), "sqrt {a:e} = {:e}", out[n + i]);
        assert!(same(out[2 * n + i], a.max(b) - a.min(b)), "max-min {a:e} {b:e} = {:e}", out[2 * n + i]);
        let picked = if a > b {
            a.abs()
        } else if b.is_nan() {
            1.0
        } else {
            -b
        };
        assert!(same(out[4 * n + i], picked), "pick {a:e} {b:e}");
        if a.abs() < 1e6 && b.abs() < 1e6 && b >= 0.0 {
            let want = (a as i32 as f32) + (b as u32 as f32) + a.trunc() + b.round_ties_even() + a.ceil();
            assert!(same(out[3 * n + i], want), "convert {a:e} {b:e}");
        }
    }
}

#[test]
fn packed_halves_and_shorts() {
    let d = Device::with_kernels(2);
    let n = 256;
    let mut r = Random(10);
    // Small integers in eighths: exact in f16, so f32 arithmetic is a reference.
    let mut half = || ((r.u32() % 65) as f32 - 32.0) / 8.0;
    let x: Vec<[f32; 2]> = (0..n).map(|_| [half(), half()]).collect();
    let y: Vec<[f32; 2]> = (0..n).map(|_| [half(), half()]).collect();
    let bits = |v: f32| -> u32 {
        // f16 of a value that f16 holds exactly.
        if v == 0.0 {
            return 0;
        }
        let b = v.to_bits();
        (b >> 16 & 0x8000) | ((b >> 23 & 0xFF) - 112) << 10 | (b >> 13 & 0x3FF)
    };
    let pack = |v: &[f32; 2]| bits(v[0]) | bits(v[1]) << 16;
    let px: Vec<u32> = x.iter().map(pack).collect();
    let py: Vec<u32> = y.iter().map(pack).collect();
    let s: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(0x1234_5679)).collect();
    let (bx, by, bo) = (d.buffer(&px), d.buffer(&py), d.buffer(&vec![0u32; n]));
    let (bf, bs) = (d.buffer(&vec![1f32; n]), d.buffer(&s));
    let args = Arguments::new()
        .u64(bx.address())
        .u64(by.address())
        .u64(bo.address())
        .u64(bf.address())
        .u64(bs.address());
    d.complete(&d.launch("halves", [256, 1, 1], [64, 1, 1], args.bytes()));
    let (out, f, shorts) = (bo.get(), bf.get(), bs.get());
    for i in 0..n {
        assert_eq!(f[i], x[i][0] * y[i][1] + 1.0);
        for k in 0..2 {
            let h = out[i] >> (16 * k) & 0xFFFF;
            let got = if h & 0x7FFF == 0 {
                0.0
            } else {
                f32::from_bits(((h & 0x8000) << 16) | (((h & 0x7FFF) << 13) + (112 << 23)))
            };
            // Products in 64ths below 16 and their sums fit f16's 11 bits unless they are large; then allow one rounding each.
            let want = x[i][k] * y[i][k] + x[i][k];
            assert!((got - want).abs() <= want.abs() / 1024.0 + 1e-7, "{i} {k}: {got} {want}");
            let p = (s[i] >> (16 * k)) as i16;
            let q = p.wrapping_add(3).wrapping_mul(p).wrapping_sub(p >> 2);
            assert_eq!((shorts[i] >> (16 * k)) as i16, q, "{i} {k}");
        }
    }
}

#[test]
fn bytes_and_shorts_in_memory() {
    let d = Device::with_kernels(2);
    let n = 300usize;
    let mut r = Random(11);
    let x: Vec<u8> = (0..n).map(|_| r.u32() as u8).collect();
    let (bx, by, bw) = (d.buffer(&x), d.buffer(&vec![0u8; n]), d.buffer(&vec![0u16; n]));
    let args = Arguments::new().u64(bx.address()).u64(by.address()).u64(bw.address()).u32(n as u32);
    d.complete(&d.launch("chars", [320, 1, 1], [64, 1, 1], args.bytes()));
    let (out, wide) = (by.get(), bw.get());
    for i in 0..n {
        let (a, b) = (x[i], x[(i * 7 + 3) % n]);
        assert_eq!(out[i], if a > b { a - b } else { (a ^ b).wrapping_add(1) });
        assert_eq!(wide[i], (u16::from(a) * u16::from(b)) >> (b & 7));
    }
}

#[test]
fn recursive_calls_use_the_stack() {
    let d = Device::with_kernels(1);
    let out = d.buffer(&[0u32; 64]);
    d.complete(&d.launch("calls", [64, 1, 1], [32, 1, 1], Arguments::new().u64(out.address()).bytes()));
    let fib = [0, 1, 1, 2, 3, 5, 8, 13];
    assert_eq!(out.get(), (0..64).map(|i| fib[i & 7]).collect::<Vec<u32>>());
}

#[test]
fn flat_addresses_reach_lds_private_and_global() {
    let d = Device::with_kernels(1);
    for which in 0..3u32 {
        let out = d.buffer(&[0u32; 128]);
        let args = Arguments::new().u64(out.address()).u32(which);
        d.complete(&d.launch("flat", [64, 1, 1], [64, 1, 1], args.bytes()));
        let got = out.get();
        for t in 0..64u32 {
            let mine = |k: u32| [t, t + 1, 5, 6][k as usize];
            let shared = t * 3 + if which == 0 { 100 } else { 0 };
            let (pointed, own) = match which {
                0 => ((t ^ 1) * 3 + 100, mine(t & 3)),
                1 => (mine(t & 3) + 100, mine(t & 3) + 100),
                _ => (100, mine(t & 3)),
            };
            assert_eq!(got[t as usize], pointed + shared + own, "{which} {t}");
        }
    }
}
