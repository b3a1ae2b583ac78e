// SPDX-License-Identifier: MIT OR Apache-2.0
//! Items working together (`collective.c`).

use super::Case;
use crate::problem::{Check, Problem};
use crate::random::Random;

pub(super) const CASES: &[Case] = &[
    Case { name: "reduce_dpp", problem: |_| reduce_dpp() },
    Case { name: "argmax_bpermute", problem: |_| argmax() },
    Case { name: "reduce_lds", problem: |_| reduce_lds() },
    Case { name: "lane_exchanges", problem: |_| lane_exchanges() },
    Case { name: "write_lanes", problem: |_| write_lanes() },
    Case { name: "histogram", problem: |_| histogram() },
    Case { name: "transpose", problem: |_| transpose() },
    Case { name: "scan", problem: |_| scan() },
    Case { name: "scan_lds", problem: |_| scan_lds() },
    Case { name: "bitonic_sort", problem: |_| bitonic_sort() },
    Case { name: "gather_scatter", problem: |_| gather_scatter() },
    Case { name: "compact", problem: |_| compact() },
];

fn reduce_dpp() -> Problem {
    let (groups, per_group) = (4, 1000);
    let mut r = Random(31);
    Problem::line("reduce_dpp", groups * 256, 256)
        .with(&r.list((groups * per_group) as usize, Random::f32))
        .zeroes::<f32>(groups as usize, Check::Exact)
        .number(per_group)
}

fn argmax() -> Problem {
    let mut r = Random(32);
    // Few enough values that the highest comes more than once.
    Problem::line("argmax_bpermute", 1024, 128).with(&r.list(1024, |r| r.below(300))).with(&[0u64])
}

fn reduce_lds() -> Problem {
    let mut r = Random(33);
    Problem::line("reduce_lds", 1024, 256).with(&r.list(1024, Random::u32)).with(&[0u32; 4])
}

fn lane_exchanges() -> Problem {
    let mut r = Random(34);
    // 48 items: the last wave of a workgroup is partial.
    Problem::line("lane_exchanges", 96, 48)
        .with(&r.list(96, Random::u32))
        .zeroes::<u32>(31 * 96, Check::Exact)
        .number(96)
}

fn write_lanes() -> Problem {
    let mut r = Random(42);
    Problem::line("write_lanes", 256, 128)
        .with(&r.list(256, Random::u32))
        .zeroes::<u32>(4 * 256, Check::Exact)
        .number(256)
        .number(21)
}

fn histogram() -> Problem {
    let mut r = Random(35);
    Problem::line("histogram", 1024, 256)
        .with(&r.list(5000, |r| (r.u32() & r.u32() & 0xFF) as u8))
        .zeroes::<u32>(256, Check::Exact)
        .number(5000)
}

fn transpose() -> Problem {
    let (width, height) = (96, 64);
    let mut r = Random(36);
    Problem::grid("transpose", [width, height / 4, 1], [32, 8, 1])
        .with(&r.list((width * height) as usize, Random::f32))
        .zeroes::<f32>((width * height) as usize, Check::Exact)
        .number(width)
        .number(height)
}

fn scan() -> Problem {
    let mut r = Random(37);
    Problem::line("scan", 512, 256).with(&r.list(512, Random::u32)).zeroes::<u32>(512, Check::Exact)
}

fn scan_lds() -> Problem {
    let mut r = Random(38);
    Problem::line("scan_lds", 512, 256).with(&r.list(512, Random::u64)).zeroes::<u64>(512, Check::Exact)
}

fn bitonic_sort() -> Problem {
    let mut r = Random(39);
    Problem::line("bitonic_sort", 512, 256).with(&r.list(1024, Random::u32))
}

fn gather_scatter() -> Problem {
    let n = 512;
    let mut r = Random(40);
    let mut index: Vec<u32> = (0..n).collect();
    for k in (1..n).rev() {
        index.swap(k as usize, r.below(k + 1) as usize);
    }
    let n = n as usize;
    Problem::line("gather_scatter", 512, 128)
        .with(&index)
        .with(&r.list(4 * n, Random::u32))
        .zeroes::<u32>(n, Check::Exact)
        .zeroes::<u64>(n, Check::Exact)
        .zeroes::<u32>(3 * n, Check::Exact)
        .zeroes::<u32>(4 * n, Check::Exact)
}

fn compact() -> Problem {
    let mut r = Random(41);
    Problem::line("compact", 1024, 128)
        .with(&r.list(1024, |r| if r.below(3) == 0 { r.u32() } else { 0 }))
        .zeroes::<u32>(1024, Check::Unordered)
        .with(&[0u32])
}
