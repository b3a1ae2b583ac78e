// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a kernel: its buffers made and filled, the runs timed, what is to be kept saved.
//!
//! INVARIANT: no size from the command line or a file is allocated before it was found to be one that can be had.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use stasis::{Agent, Arg, Buffer, Kernel, Queue, QueueOptions, Runtime, Signal, WaitError};

use super::args::DispatchArgs;
use super::argument::{Argument, RawKernarg, RawPart};
use super::array::{Array, Layout};
use super::times::Times;
use super::watchdog::Watchdog;

/// Zeros written at a time.
const PIECE: u64 = 1 << 20;

/// An argument with what was made for it.
enum Prepared {
    Buffer { buffer: Buffer, layout: Layout },
    Scalar(Vec<u8>),
}

impl Prepared {
    fn new(argument: &Argument, agent: &Agent, available: u64) -> Result<Self> {
        let (bytes, array) = match argument {
            Argument::Scalar(bytes) => return Ok(Self::Scalar(bytes.clone())),
            Argument::Input(path) | Argument::InOut(path) => {
                let array = Array::read(path, available)?;
                (array.bytes.len() as u64, Some(array))
            }
            Argument::Output(element, count) => (count.saturating_mul(element.bytes() as u64), None),
        };
        ensure!(bytes > 0, "A buffer argument has no bytes");
        ensure!(
            bytes <= available,
            "It has {bytes} bytes, and {available} are available to {} {}",
            agent.name(),
            agent.uuid()
        );
        let buffer = agent.vram().alloc(bytes)?;
        let layout = match (array, argument) {
            (Some(array), _) => {
                buffer.upload(0, &array.bytes)?;
                array.layout
            }
            (None, Argument::Output(element, count)) => {
                zero(&buffer, bytes)?;
                Layout { element: Some(*element), shape: vec![*count] }
            }
            (None, _) => bail!("There is nothing to fill it with"),
        };
        Ok(Self::Buffer { buffer, layout })
    }

    fn as_argument(&self) -> Arg<'_> {
        match self {
            Self::Buffer { buffer, .. } => Arg::Buffer(buffer),
            Self::Scalar(bytes) => Arg::Bytes(bytes),
        }
    }
}

/// A new buffer may have what one before it left.
fn zero(buffer: &Buffer, bytes: u64) -> Result<()> {
    // CAST: no more than PIECE.
    let zeros = vec![0; bytes.min(PIECE) as usize];
    let mut done = 0;
    while done < bytes {
        let part = &zeros[..(bytes - done).min(PIECE) as usize];
        buffer.upload(done, part)?;
        done += part.len() as u64;
    }
    Ok(())
}

/// Bytes that a buffer on this agent can have. The software device's memory is the host's.
fn available(runtime: &Runtime, agent: &Agent) -> Result<u64> {
    let free = agent.vram_available()?;
    if !runtime.transport_name().starts_with("soft") {
        return Ok(free);
    }
    Ok(kfd::meminfo::bytes("MemAvailable").map_or(free, |bytes| free.min(bytes)))
}

fn prepare(args: &DispatchArgs, runtime: &Runtime, agent: &Agent) -> Result<Vec<Prepared>> {
    let one = |(index, argument): (usize, &Argument)| {
        Prepared::new(argument, agent, available(runtime, agent)?)
            .with_context(|| format!("--arg {index} ({argument}) cannot be made"))
    };
    args.arguments.iter().enumerate().map(one).collect()
}

fn raw_block(raw: &RawKernarg, prepared: &[Prepared]) -> Result<Vec<u8>> {
    let mut block = Vec::new();
    for part in &raw.0 {
        match part {
            RawPart::Bytes(bytes) => block.extend_from_slice(bytes),
            RawPart::Address(index) => match prepared.get(*index) {
                Some(Prepared::Buffer { buffer, .. }) => block.extend_from_slice(&buffer.va().to_le_bytes()),
                _ => bail!("{{{index}}} in --arg-bytes names no buffer among the --arg"),
            },
        }
    }
    Ok(block)
}

/// Runs the kernel as often as wanted and saves what is to be saved; how long it took.
pub fn run(
    args: &DispatchArgs,
    runtime: &Runtime,
    kernel: &Kernel,
    (grid, block): ([u32; 3], [u16; 3]),
    watchdog: &Watchdog,
) -> Result<Times> {
    watchdog.step("making the arguments");
    let agent = kernel.executable().agent();
    let prepared = prepare(args, runtime, agent)?;
    let scratch_lane_bytes = kernel.metadata().private_bytes;
    let queue = Queue::create(agent, QueueOptions { scratch_lane_bytes, ..QueueOptions::default() })?;
    let done = Signal::new(runtime, 1)?;
    let arguments: Vec<_> = prepared.iter().map(Prepared::as_argument).collect();
    let raw = args.arg_bytes.as_ref().map(|raw| raw_block(raw, &prepared)).transpose()?;
    let dispatch = queue.dispatch(kernel).grid(grid).block(block).dynamic_lds(args.lds).completion(&done);
    let dispatch = match &raw {
        Some(raw) => dispatch.raw_kernarg(raw),
        None => dispatch.args(&arguments),
    };
    let limit = args.limit();
    let mut runs = Vec::new();
    let all = args.warm_up + args.repeat;
    for number in 0..all {
        done.store(1)?;
        watchdog.step("running the kernel");
        let started = Instant::now();
        dispatch.clone().submit()?;
        let finished = done.wait_done(Some(limit));
        if finished.is_err() {
            watchdog.step("closing it");
        }
        finished.map_err(|error| late(error, kernel.name(), limit, (number + 1, all)))?;
        if number >= args.warm_up {
            runs.push(started.elapsed());
        }
    }
    watchdog.step("saving what it wrote");
    save(args, &prepared)?;
    // The process is about to end, and the driver takes back all that it has at once: one by one that is a fifth of what a
    // short dispatch asks of it. What the device writes down about a queue is whole when the queue is gone.
    if !args.observe.is_watched() {
        std::mem::forget((queue, done, prepared));
    }
    Ok(Times::of(args.warm_up, runs))
}

/// Names the kernel that did not end in time; what else ends a wait names it already.
fn late(error: WaitError, kernel: &str, limit: Duration, (run, all): (u32, u32)) -> anyhow::Error {
    let is_late = matches!(error, WaitError::Timeout { .. });
    let error = anyhow::Error::from(error);
    if !is_late {
        return error;
    }
    let which = if all > 1 { format!(" in run {run} of {all}") } else { String::new() };
    error.context(format!(
        "The kernel {kernel} did not end within {limit:?}{which}; --timeout-ms gives it longer"
    ))
}

fn save(args: &DispatchArgs, prepared: &[Prepared]) -> Result<()> {
    for save in &args.save {
        if let Some(Prepared::Buffer { buffer, layout }) = prepared.get(save.argument) {
            layout.write(&save.path, buffer.len(), |offset, piece| Ok(buffer.download(offset, piece)?))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_median_of_odd_and_even_numbers_of_runs() {
        let of = |ms: &[u64]| Times::of(2, ms.iter().map(|ms| Duration::from_millis(*ms)).collect());
        let times = of(&[9, 1, 5]);
        assert_eq!((times.min_ms, times.median_ms, times.max_ms), (1.0, 5.0, 9.0));
        assert_eq!((times.warm_up, times.repeat), (2, 3));
        assert_eq!(of(&[4, 2]).median_ms, 3.0);
        assert_eq!(of(&[7]).median_ms, 7.0);
    }

    #[test]
    fn only_a_timeout_is_given_the_kernels_name() {
        let timeout = WaitError::Timeout { value: 1, waited: Duration::from_millis(7) };
        let error = late(timeout, "spin", Duration::from_millis(5), (2, 3));
        assert_eq!(
            format!("{error:#}"),
            "The kernel spin did not end within 5ms in run 2 of 3; --timeout-ms gives it longer: The signal is still 1 \
             after 7ms"
        );
    }
}
