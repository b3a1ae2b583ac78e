// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of every kind.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::{Pid, gettid};
use queues::pm4;
use stasis::raw::{RawKind, RawOptions, RawQueue};
use stasis::{Condition, CopyEngine, CopyError, Queue, WaitMode};

use super::super::bench::{Bench, Gpu, same};
use super::super::probe::{Grade, Probe, Skip};

/// Work-groups of the copied numbers: 16 KiB.
const GROUPS: usize = 64;
/// Queues at the same time.
const QUEUES: usize = 8;
/// Within this a thread is awake on a busy machine; one that nobody wakes looks 5 s after it fell asleep.
const AWAKE: Duration = Duration::from_secs(2);
/// Within this it has fallen asleep.
const ASLEEP: Duration = Duration::from_secs(2);
/// TIMEOUT: between two looks at whether it sleeps.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// How often it may be too late for that.
const ATTEMPTS: u32 = 4;

pub(super) const PROBES: [Probe; 5] = [
    Probe {
        name: "aql",
        grade: Grade::Required,
        expects: "a barrier packet completes",
        advice: "report the kernel's log: the queue was made, and nothing reads it",
        run: aql,
    },
    Probe {
        name: "interrupt",
        grade: Grade::Wanted,
        expects: "a thread that sleeps is woken by a completion",
        advice: "waits must poll; report the kernel's log",
        run: interrupt,
    },
    Probe {
        name: "pm4",
        grade: Grade::Wanted,
        expects: "a PM4 queue stores to memory",
        advice: "report the kernel's log",
        run: pm4,
    },
    Probe {
        name: "sdma",
        grade: Grade::Wanted,
        expects: "a copy engine copies every byte",
        advice: "copies fall back to kernels (CopyEngine::Shader); report the kernel's log",
        run: sdma,
    },
    Probe {
        name: "many-queues",
        grade: Grade::Wanted,
        expects: "eight AQL queues at the same time",
        advice: "use fewer queues; report the kernel's log",
        run: many_queues,
    },
];

fn aql(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (queue, done) = (gpu.queue()?, gpu.signal()?);
    queue.barrier(&[], Some(&done))?;
    done.wait(Condition::Equal(0), Some(gpu.patience), WaitMode::Busy)
        .context("The packet did not complete")?;
    Ok(format!("{} packets in its ring", queue.packets()))
}

fn interrupt(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let queue = gpu.queue()?;
    for _ in 0..ATTEMPTS {
        if let Some(waited) = wakes(&gpu, &queue)? {
            ensure!(waited < AWAKE, "nobody woke it: it looked by itself, after {waited:?}");
            return Ok("woken".to_owned());
        }
    }
    Err(Skip(format!("a thread that waits did not fall asleep within {ASLEEP:?}: the machine is too busy"))
        .into())
}

/// For how long a thread that sleeps on a completion still waits from the moment when it may come. `None` if it was not soon asleep.
fn wakes(gpu: &Gpu, queue: &Queue) -> Result<Option<Duration>> {
    let (first, done) = (gpu.signal()?, gpu.signal()?);
    queue.barrier(&[&first], Some(&done))?;
    let (tell, told) = mpsc::channel();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            // The other end is there as long as this thread.
            let _ = tell.send(gettid());
            done.wait(Condition::Equal(0), Some(gpu.patience), WaitMode::Blocked)
        });
        let was_asleep = told.recv().is_ok_and(|thread| falls_asleep(thread, started));
        let stored = first.store(0);
        let begun = Instant::now();
        let is_in_time = begun - started < ASLEEP;
        waits.join().map_err(|_| anyhow::anyhow!("the thread that waited has panicked"))?.map(drop)?;
        let waited = begun.elapsed();
        stored?;
        Ok((was_asleep && is_in_time).then_some(waited))
    })
}

/// Whether a thread of this process sleeps on and on before [`ASLEEP`] has passed since it was started.
fn falls_asleep(thread: Pid, started: Instant) -> bool {
    let mut before = None;
    while started.elapsed() < ASLEEP {
        let sleeps = sleeps(thread);
        if sleeps.is_some() && sleeps == before {
            return true;
        }
        before = sleeps;
        std::thread::sleep(BETWEEN_LOOKS);
    }
    false
}

/// How often a thread that sleeps has fallen asleep so far (proc_pid_status(5)).
fn sleeps(thread: Pid) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    field("State:").filter(|state| state.starts_with('S'))?;
    field("voluntary_ctxt_switches:")?.parse().ok()
}

fn pm4(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let options = RawOptions { kind: RawKind::Pm4, ring_bytes: 4096, ..RawOptions::default() };
    let queue = RawQueue::create(&gpu.agent, options).context("Cannot create a PM4 queue")?;
    let done = gpu.signal()?;
    queue.completes(&done);
    let mut words = Vec::new();
    pm4::signal(done.value_va(), 0, pm4::Width::Bits64).encode(&mut words)?;
    queue.submit(&words)?;
    done.wait(Condition::Equal(0), Some(gpu.patience), WaitMode::Busy).context("Nothing was stored")?;
    Ok("stored".to_owned())
}

fn sdma(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let (numbers, from) = gpu.numbers(3, GROUPS)?;
    let to = gpu.zeros(GROUPS)?;
    let (to_span, from_span) = (to.buffer().all(), from.buffer().all());
    match gpu.runtime.copy_by(CopyEngine::Sdma, to_span, from_span, &[]) {
        Ok(transfer) => transfer.wait(Some(gpu.patience))?,
        Err(error @ CopyError::NoEngine { .. }) => return Err(Skip(error.to_string()).into()),
        Err(error) => return Err(error).context("Cannot submit the copy"),
    }
    same("the copy", &to.download()?, numbers)?;
    Ok(format!("{} KiB", GROUPS / 4))
}

fn many_queues(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let queues: Vec<_> = (0..QUEUES).map(|_| gpu.queue()).collect::<Result<_>>()?;
    let done: Vec<_> = (0..QUEUES).map(|_| gpu.signal()).collect::<Result<_>>()?;
    for (queue, done) in queues.iter().zip(&done) {
        queue.barrier(&[], Some(done))?;
    }
    for (at, done) in done.iter().enumerate() {
        done.wait_done(Some(gpu.patience))
            .with_context(|| format!("Queue {at} of {QUEUES} did not complete"))?;
    }
    ensure!(queues.iter().all(|queue| queue.fault().is_none()), "one of them stopped");
    Ok(format!("{QUEUES} queues"))
}
