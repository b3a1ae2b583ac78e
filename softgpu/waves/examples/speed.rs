// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wave instructions per second and core for axpy, the 5-point stencil and an LDS-tiled gemm.
//!
//! `cargo run --release -p stasis-softgpu-waves --example speed` (SOFTGPU_CPU=baseline|avx2 lowers the CPU level). Time is CPU
//! time of the whole process, since machines are shared; one worker thread does all the work.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Duration;

use common::Device;
use nix::time::{ClockId, clock_gettime};
use softgpu_kernels::Arguments;
use softgpu_waves::{Launch, Level};

fn cpu_seconds() -> f64 {
    // A process has this clock.
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(0.0, |t| Duration::from(t).as_secs_f64())
}

fn measure(name: &str, d: &Device, launch: &Launch, times: usize) {
    d.complete(launch);
    let mut best = f64::MAX;
    let mut instructions = 0;
    for _ in 0..times {
        let start = cpu_seconds();
        instructions = d.complete(launch);
        best = best.min(cpu_seconds() - start);
    }
    let rate = instructions as f64 / best / 1e6;
    println!("{name:10} {rate:8.1} M wave instructions/s  ({instructions} in {:.3} ms)", best * 1e3);
}

fn main() {
    println!("CPU level {:?}, one worker", Level::current());
    let d = Device::with_kernels(1);
    let n = 1usize << 20;
    let (x, y) = (d.buffer(&vec![1f32; n]), d.buffer(&vec![2f32; n]));
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|o| o == name);
    let times = if only.is_some() { 100 } else { 15 };
    if wanted("axpy") {
        let args = Arguments::new().u64(x.address()).u64(y.address()).f32(1.5).u32(n as u32);
        measure("axpy", &d, &d.launch("axpy", [n as u32, 1, 1], [256, 1, 1], args.bytes()), times);
    }
    if wanted("stencil") {
        let args = Arguments::new().u64(x.address()).u64(y.address()).u32(1024).u32(1024);
        measure("stencil", &d, &d.launch("stencil", [1024, 1024, 1], [32, 8, 1], args.bytes()), times);
    }
    if wanted("gemm") {
        let args = Arguments::new().u64(x.address()).u64(x.address()).u64(y.address()).u32(256);
        measure("gemm", &d, &d.launch("gemm", [256, 256, 1], [16, 16, 1], args.bytes()), times);
    }
    if wanted("hash") {
        let (h, w) = (d.buffer(&vec![7u32; n]), d.buffer(&vec![0u64; n]));
        let args = Arguments::new().u64(h.address()).u64(h.address()).u64(w.address());
        measure("hash", &d, &d.launch("hash", [1 << 17, 1, 1], [128, 1, 1], args.bytes()), times);
    }
}
