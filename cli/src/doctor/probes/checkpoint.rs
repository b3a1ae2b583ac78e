// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints of the probe's own process, without CRIU.

use anyhow::{Context, Result, ensure};
use stasis::Arg;
use stasis::checkpoint::{CheckpointError, CheckpointOptions, Mode, RestoreOptions};

use super::super::bench::{Bench, same, tripled};
use super::super::counting::Counting;
use super::super::probe::{Grade, Probe, Skip};

/// Work-groups of the numbers that are carried through: 64 KiB.
const GROUPS: u16 = 256;

pub(super) const PROBES: [Probe; 2] = [
    Probe {
        name: "checkpoint",
        grade: Grade::Wanted,
        expects: "memory, signals and queues are the same after a checkpoint and a restore",
        advice: "report what was seen",
        run: checkpoint,
    },
    Probe {
        name: "preempt",
        grade: Grade::Optional,
        expects: "waves stop in the middle of a kernel and go on with the same registers",
        advice: "use drained checkpoints; report what was seen",
        run: preempt,
    },
];

fn checkpoint(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, kernel) = (gpu.queue()?, gpu.kernel("numbers")?);
    let (numbers, from) = gpu.numbers(9, GROUPS.into())?;
    let (to, va) = (gpu.zeros(GROUPS.into())?, from.va());
    let directory = tempfile::tempdir().context("Cannot make a directory")?;
    let deadline = gpu.patience;
    gpu.runtime.lock(Mode::Drain, deadline)?;
    let taken = gpu
        .runtime
        .checkpoint_with(directory.path(), &CheckpointOptions { deadline, ..CheckpointOptions::default() });
    if let Err(error) = taken {
        gpu.runtime.unlock()?;
        return Err(error).context("Cannot take a checkpoint");
    }
    gpu.runtime.restore_with(&RestoreOptions { deadline, ..RestoreOptions::default() })?;
    gpu.runtime.unlock()?;
    ensure!(from.va() == va, "the buffer moved from {va:#x} to {:#x}", from.va());
    same("the buffer", &from.download()?, numbers.iter().copied())?;
    gpu.run(&queue, &kernel, GROUPS.into(), &[Arg::Buffer(from.buffer()), Arg::Buffer(to.buffer())])?;
    same("a result behind it", &to.download()?, tripled(&numbers))?;
    Ok(format!("{} KiB, same addresses", GROUPS / 4))
}

fn preempt(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let queue = gpu.queue()?;
    let counting = Counting::start(&gpu, &queue)?;
    counting.counts(&gpu, "the kernel's begin")?;
    for _ in 0..3 {
        match gpu.runtime.lock(Mode::Preempt, gpu.patience) {
            Ok(()) => gpu.runtime.unlock()?,
            Err(CheckpointError::Preempt(why)) => {
                counting.end(&gpu)?;
                return Err(Skip(why.to_string()).into());
            }
            Err(error) => return Err(error).context("Cannot stop the waves"),
        }
        counting.counts(&gpu, "the waves going on")?;
    }
    counting.end(&gpu)?;
    ensure!(counting.is_whole()?, "the registers of the waves changed");
    Ok("stopped three times".to_owned())
}
