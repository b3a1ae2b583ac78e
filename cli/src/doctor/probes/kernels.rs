// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kernels need.

use anyhow::{Context, Result, ensure};
use stasis::{Arg, Executable};

use super::super::bench::{Bench, Gpu, ITEMS, same, tripled};
use super::super::probe::{Grade, Probe, Skip};

/// Work-groups: more than a small chip runs at a time.
const GROUPS: usize = 256;

pub(super) const PROBES: [Probe; 7] = [
    Probe {
        name: "kernel",
        grade: Grade::Required,
        expects: "every work-item of a grid computes its result",
        advice: "report what was seen: nothing else can be trusted",
        run: |bench| mapped(bench, "numbers", |at, from| from[at].wrapping_mul(3).wrapping_add(index(at))),
    },
    Probe {
        name: "local-memory",
        grade: Grade::Required,
        expects: "a work-group exchanges values through LDS",
        advice: "report what was seen",
        run: |bench| mapped(bench, "reverse", |at, from| from[at / ITEMS * ITEMS + ITEMS - 1 - at % ITEMS]),
    },
    Probe {
        name: "private-memory",
        grade: Grade::Required,
        expects: "every work-item has scratch memory of its own",
        advice: "report what was seen, with the node's properties: the scratch of the queue is described wrongly",
        run: |bench| mapped(bench, "private_memory", |at, from| from[at].wrapping_add(15)),
    },
    Probe {
        name: "atomics",
        grade: Grade::Required,
        expects: "no atomic addition is lost",
        advice: "report what was seen",
        run: atomics,
    },
    Probe {
        name: "host-results",
        grade: Grade::Required,
        expects: "the host sees in system memory what a kernel has written",
        advice: "do PCIe atomics and snooping work here? Report `lspci -vv` of the GPU and its bridges",
        run: host_results,
    },
    Probe {
        name: "new-code",
        grade: Grade::Required,
        expects: "code that is loaded to a used address is what runs",
        advice: "report it: the invalidation of instruction caches does not work here",
        run: new_code,
    },
    Probe {
        name: "timestamps",
        grade: Grade::Wanted,
        expects: "a dispatch has a begin before its end",
        advice: "times of dispatches cannot be trusted; report what was seen",
        run: timestamps,
    },
];

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn groups() -> u32 {
    index(GROUPS)
}

fn mapped(bench: &Bench, kernel: &str, wanted: fn(usize, &[u32]) -> u32) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, kernel) = (gpu.queue()?, gpu.kernel(kernel)?);
    let (numbers, from) = gpu.numbers(1, GROUPS)?;
    let to = gpu.zeros(GROUPS)?;
    gpu.run(&queue, &kernel, groups(), &[Arg::Buffer(from.buffer()), Arg::Buffer(to.buffer())])?;
    same("the result", &to.download()?, (0..numbers.len()).map(|at| wanted(at, &numbers)))?;
    Ok(format!("{} work-items", numbers.len()))
}

fn atomics(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, kernel, counter) = (gpu.queue()?, gpu.kernel("count")?, gpu.zeros(1)?);
    gpu.run(&queue, &kernel, groups(), &[Arg::Buffer(counter.buffer())])?;
    let found = counter.download()?[0];
    let wanted = index(GROUPS * ITEMS);
    ensure!(found == wanted, "{found} of {wanted}");
    Ok(format!("{wanted} additions"))
}

fn host_results(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, kernel) = (gpu.queue()?, gpu.kernel("numbers")?);
    let (numbers, from) = gpu.numbers(5, GROUPS)?;
    let to = gpu.runtime.gtt().upload(&vec![0_u32; numbers.len()])?;
    to.buffer().allow(&gpu.agent)?;
    gpu.run(&queue, &kernel, groups(), &[Arg::Buffer(from.buffer()), Arg::Buffer(to.buffer())])?;
    same("the result", &to.download()?, tripled(&numbers))?;
    Ok(format!("{} work-items", numbers.len()))
}

fn answer(gpu: &Gpu, object: &[u8]) -> Result<(u64, u32)> {
    let (queue, to) = (gpu.queue()?, gpu.zeros(1)?);
    let kernel =
        Executable::load(&gpu.agent, object).context("Cannot load the code object")?.kernel("answer")?;
    gpu.run(&queue, &kernel, 1, &[Arg::Buffer(to.buffer())])?;
    Ok((kernel.entry_va(), to.download()?[0]))
}

fn new_code(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let [first, second] = gpu.answers()?;
    let mut places = Vec::new();
    for _ in 0..10 {
        for (object, wanted) in [(first, 41), (second, 42)] {
            let (place, found) = answer(&gpu, object)?;
            ensure!(found == wanted, "the code at {place:#x} answers {found}, not {wanted}");
            places.push(place);
        }
    }
    places.dedup();
    if places.len() > 1 {
        return Err(Skip("the objects were loaded to different addresses".to_owned()).into());
    }
    Ok(format!("20 objects at {:#x}", places[0]))
}

fn timestamps(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, kernel, counter) = (gpu.queue()?, gpu.kernel("count")?, gpu.zeros(1)?);
    let done = gpu.start(&queue, &kernel, groups(), &[Arg::Buffer(counter.buffer())], true)?;
    done.wait_done(Some(gpu.patience))?;
    let (begin, end) = done.timestamps(&gpu.agent)?;
    let now = gpu.agent.clocks()?.gpu;
    ensure!(0 < begin && begin <= end && end <= now, "begin {begin}, end {end}, now {now}");
    Ok(format!("{} ticks", end - begin))
}
