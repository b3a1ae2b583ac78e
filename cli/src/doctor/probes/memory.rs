// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory as the host sees it.

use anyhow::{Context, Result, ensure};
use stasis::{Arg, Buffer, Pool};

use super::super::bench::{Bench, Gpu, same, tripled};
use super::super::probe::{Grade, Probe};

/// Bytes that are written and read back.
const BYTES: usize = 4 << 20;
/// Times that the host changes what a kernel reads.
const ROUNDS: u32 = 100;

pub(super) const PROBES: [Probe; 5] = [
    Probe {
        name: "host-memory",
        grade: Grade::Required,
        expects: "system memory for the GPU keeps what the host writes",
        advice: "is the machine's memory limit (ulimit -l, ttm.pages_limit) large enough?",
        run: |bench| kept(|gpu| gpu.runtime.gtt(), bench),
    },
    Probe {
        name: "device-memory",
        grade: Grade::Required,
        expects: "the GPU's memory keeps what the host writes through the BAR",
        advice: "report the kernel's log and `lspci -vv` of the GPU",
        run: |bench| kept(|gpu| gpu.agent.vram(), bench),
    },
    Probe {
        name: "large-bar",
        grade: Grade::Optional,
        expects: "the host sees all of the GPU's memory",
        advice: "enable Above 4G Decoding and Resizable BAR in the firmware",
        run: large_bar,
    },
    Probe {
        name: "fresh-memory",
        grade: Grade::Wanted,
        expects: "memory that was another's comes back as zeros",
        advice: "report it: processes can read what others left in the GPU's memory",
        run: fresh_memory,
    },
    Probe {
        name: "host-writes",
        grade: Grade::Required,
        expects: "a kernel sees what the host has written before",
        advice: "report it: the flush of the host data path does not work here",
        run: host_writes,
    },
];

fn pattern() -> Vec<u8> {
    (0..BYTES / 4)
        .flat_map(|at| u32::try_from(at).unwrap_or(0).wrapping_mul(0x9e37_79b9).to_le_bytes())
        .collect()
}

fn check(buffer: &Buffer, wanted: &[u8]) -> Result<()> {
    let found = buffer.to_vec()?;
    let wrong = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    ensure!(wrong.is_none(), "byte {} is another", wrong.unwrap_or(0));
    Ok(())
}

fn kept(pool: fn(&Gpu) -> Pool, bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (pattern, buffer) = (pattern(), pool(&gpu).alloc(BYTES as u64).context("Cannot allocate")?);
    buffer.write(0, &pattern)?;
    check(&buffer, &pattern)?;
    Ok(format!("{} MiB", BYTES >> 20))
}

fn large_bar(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    ensure!(
        gpu.agent.vram().is_visible(),
        "the host sees a part only; contents go through copies by the GPU"
    );
    Ok(format!("{} MiB", gpu.agent.vram_bytes() >> 20))
}

fn fresh_memory(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    for _ in 0..4 {
        let buffer = gpu.agent.vram().alloc(BYTES as u64).context("Cannot allocate")?;
        let found = buffer.to_vec()?;
        let dirty = found.iter().position(|&byte| byte != 0);
        ensure!(dirty.is_none(), "byte {} was not 0", dirty.unwrap_or(0));
        buffer.write(0, &pattern())?;
        buffer.free()?;
    }
    Ok("zeros".to_owned())
}

fn host_writes(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, kernel) = (gpu.queue()?, gpu.kernel("numbers")?);
    let (_, from) = gpu.numbers(0, 1)?;
    let to = gpu.zeros(1)?;
    for round in 0..ROUNDS {
        let numbers: Vec<u32> = (0..64).map(|at| round * 1000 + at).collect();
        from.write(0, &numbers)?;
        gpu.run(&queue, &kernel, 1, &[Arg::Buffer(from.buffer()), Arg::Buffer(to.buffer())])?;
        same(&format!("round {round}"), &to.download()?, tripled(&numbers))?;
    }
    Ok(format!("{ROUNDS} changes"))
}
