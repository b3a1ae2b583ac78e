// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Vm::copy` and `Vm::fill32` against libc's `memmove` and `memset` on 64 MiB, which std's slice functions are.
//!
//! The last line is how long a change of the map waits for a copy under way.
//!
//! `cargo run --release -p stasis-softgpu-waves --example copy_speed`. The candidates take turns, since machines are shared.

use std::time::Instant;

use softgpu_waves::{Access, Vm};

const BYTES: usize = 64 << 20;
const ROUNDS: usize = 40;

/// Bytes per nanosecond of each candidate: the best round and the median.
fn race(name: &str, mut candidates: [(&str, &mut dyn FnMut()); 2]) {
    let mut rates = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for ((_, candidate), rates) in candidates.iter_mut().zip(&mut rates) {
            let begun = Instant::now();
            candidate();
            rates.push(BYTES as f64 / begun.elapsed().as_nanos() as f64);
        }
    }
    let [host, gpu] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        (rates[ROUNDS - 1], rates[ROUNDS / 2])
    });
    let [(host_name, _), (gpu_name, _)] = candidates;
    println!("{name}: {host_name} best {:.2} median {:.2} GB/s", host.0, host.1);
    println!("{name}: {gpu_name} best {:.2} median {:.2} GB/s", gpu.0, gpu.1);
    println!("{name}: ratio best {:.2} median {:.2}", gpu.0 / host.0, gpu.1 / host.1);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (src, mut dst) = (vec![1_u8; BYTES], vec![2_u8; BYTES]);
    let (from, to) = (src.as_ptr().expose_provenance() as u64, dst.as_mut_ptr().expose_provenance() as u64);
    let vm = Vm::new();
    // SAFETY: the vector outlives the address space; only one of the copies that are timed runs at a time.
    unsafe { vm.map(from..from + BYTES as u64, Access::READ_WRITE) }?;
    // SAFETY: the vector outlives the address space; only one of the copies that are timed runs at a time.
    unsafe { vm.map(to..to + BYTES as u64, Access::READ_WRITE) }?;
    let mut failed = Ok(());
    let mut last = 0_u8;
    let host = std::cell::RefCell::new(&mut dst);
    race(
        "copy",
        [
            ("memmove", &mut || host.borrow_mut().copy_from_slice(std::hint::black_box(&src))),
            ("Vm::copy", &mut || failed = failed.and(vm.copy(to, from, BYTES as u64))),
        ],
    );
    race(
        "fill",
        [
            ("memset", &mut || {
                last = last.wrapping_add(1);
                host.borrow_mut().fill(std::hint::black_box(last));
            }),
            ("Vm::fill32", &mut || failed = failed.and(vm.fill32(to, 0x0102_0304, BYTES as u64))),
        ],
    );
    let elsewhere = 4096..8192;
    let mut longest = std::time::Duration::ZERO;
    std::thread::scope(|scope| {
        let copier = scope.spawn(|| (0..10).try_for_each(|_| vm.copy(to, from, BYTES as u64)));
        while !copier.is_finished() {
            let begun = Instant::now();
            vm.unmap(elsewhere.clone());
            longest = longest.max(begun.elapsed());
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    });
    println!("unmap during a copy waited {longest:?} at most");
    println!("checksum {}", dst.iter().map(|&byte| u64::from(byte)).sum::<u64>());
    Ok(failed?)
}
