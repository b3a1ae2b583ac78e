// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that fail, and what is told of them.

use anyhow::{Context, Result, ensure};
use queues::aql::ExceptionCode;
use stasis::{Arg, Kernel, QueueFault};

use super::super::bench::{Bench, Gpu};
use super::super::probe::{Grade, Probe};

/// What an address of a fault is rounded down to.
const PAGE: u64 = 4096;
/// Bytes of memory that is freed again, to have an address where nothing is.
const HOLE: u64 = 64 << 20;

pub(super) const PROBES: [Probe; 5] = [
    Probe {
        name: "trap",
        grade: Grade::Wanted,
        expects: "a kernel that traps stops, and its queue says so",
        advice: "report it: the trap handler does not run here, so failed assertions of kernels go unnoticed",
        run: trap,
    },
    Probe {
        name: "illegal-code",
        grade: Grade::Wanted,
        expects: "an illegal instruction stops its queue, and is found",
        advice: "report it: such kernels hang here without a word",
        run: illegal_code,
    },
    Probe {
        name: "fault-address",
        grade: Grade::Wanted,
        expects: "a store to nowhere is reported with its page",
        advice: "report the kernel's log: page faults are not told to the process",
        run: fault_address,
    },
    Probe {
        name: "fault-kernel",
        grade: Grade::Optional,
        expects: "the kernel that failed is named",
        advice: "report it: the waves of a failed queue are not where the runtime looks",
        run: fault_kernel,
    },
    Probe {
        name: "other-queues",
        grade: Grade::Wanted,
        expects: "a queue goes on when another one stops",
        advice: "a failed kernel takes the process's other queues along; report the kernel's log",
        run: other_queues,
    },
];

fn stopped(gpu: &Gpu, kernel: &Kernel, code: ExceptionCode) -> Result<std::sync::Arc<QueueFault>> {
    let word = gpu.zeros(1)?;
    let fault = gpu.fails(&gpu.queue()?, kernel, &[Arg::Buffer(word.buffer())])?;
    ensure!(fault.codes.contains(&code), "it was reported as: {fault}");
    let found = word.download()?[0];
    ensure!(found == 1, "the kernel went on: its word is {found}");
    Ok(fault)
}

fn trap(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    // `__builtin_trap` is trap 2, which is an abort.
    Ok(stopped(&gpu, &gpu.kernel("trap")?, ExceptionCode::WaveAbort)?.to_string())
}

fn illegal_code(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    Ok(stopped(&gpu, &gpu.kernel("illegal")?, ExceptionCode::WaveIllegalInstruction)?.to_string())
}

fn fault_address(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (kernel, queue) = (gpu.kernel("write_at")?, gpu.queue()?);
    let hole = gpu.agent.vram().alloc(HOLE)?;
    // What is allocated from now on is small, and so not in its middle.
    let va = hole.va() + HOLE / 2;
    hole.free()?;
    let fault = gpu.fails(&queue, &kernel, &[Arg::Address(va + 64)])?;
    let memory = fault.memory.with_context(|| format!("no address was told: {fault}"))?;
    ensure!(memory.address / PAGE == va / PAGE, "{:#x}, not {va:#x}: {fault}", memory.address);
    ensure!(memory.not_present, "the page is called present: {fault}");
    Ok(fault.to_string())
}

fn fault_kernel(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let fault = stopped(&gpu, &gpu.kernel("illegal")?, ExceptionCode::WaveIllegalInstruction)?;
    let wave = fault.wave.as_ref().with_context(|| format!("no wave was found: {fault}"))?;
    let (name, offset) = wave.kernel.as_ref().with_context(|| format!("no kernel is at {:#x}", wave.pc))?;
    ensure!(name == "illegal", "the kernel {name} was named");
    Ok(format!("{name} + {offset:#x}"))
}

fn other_queues(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, kernel, to) = (gpu.queue()?, gpu.kernel("set")?, gpu.zeros(1)?);
    gpu.run(&queue, &kernel, 1, &[Arg::Buffer(to.buffer())])?;
    stopped(&gpu, &gpu.kernel("illegal")?, ExceptionCode::WaveIllegalInstruction)?;
    to.write(0, &[0])?;
    gpu.run(&queue, &kernel, 1, &[Arg::Buffer(to.buffer())])?;
    ensure!(to.download()?[0] == 1, "it completed without effect");
    Ok("it goes on".to_owned())
}
