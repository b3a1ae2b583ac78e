// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that is traced: parts of submission work between two marks each.
//!
//! INVARIANT: tracer and traced go through [`PARTS`] in the same order; a mark is a signal that the tracer swallows. What
//! marks cost themselves is counted by the parts that do nothing.

use std::io::{Read, Write};

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;

use super::line::{Bare, Line};

/// Dispatches over which system calls are counted.
pub const DISPATCHES: u32 = 100_000;
/// Dispatches over which instructions are counted: the tracer is woken for each instruction.
const STEPPED: u32 = 200;
/// Room for all that is submitted while the processor is held.
const PACKETS: u32 = 131_072;

/// What is done between two marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Nothing, counting system calls.
    Nothing,
    /// Empty kernels to a processor at a barrier.
    Held,
    /// Empty kernels to a processor that was parked and runs them meanwhile.
    Free,
    /// Nothing, counting instructions.
    NothingStepped,
    /// Empty kernels, counting instructions.
    EmptyStepped,
    /// Empty kernels in batches, counting instructions.
    EmptyBatchStepped,
    /// Empty kernels of a list, counting instructions.
    EmptyListStepped,
    /// Kernels with arguments and completion, counting instructions.
    AxpyStepped,
    /// The same in batches, counting instructions.
    AxpyBatchStepped,
    /// The same of a list with arguments replaced, counting instructions.
    AxpyListStepped,
    /// The bare loop, counting instructions.
    BareStepped,
}

/// All of them, in their order.
pub const PARTS: [Part; 11] = [
    Part::Nothing,
    Part::Held,
    Part::Free,
    Part::NothingStepped,
    Part::EmptyStepped,
    Part::EmptyBatchStepped,
    Part::EmptyListStepped,
    Part::AxpyStepped,
    Part::AxpyBatchStepped,
    Part::AxpyListStepped,
    Part::BareStepped,
];

impl Part {
    /// Whether instructions are counted, and not system calls.
    pub fn is_stepped(self) -> bool {
        self >= Part::NothingStepped
    }

    /// How many packets are submitted.
    pub fn dispatches(self) -> u32 {
        match self {
            Part::Nothing | Part::NothingStepped => 0,
            Part::Held | Part::Free => DISPATCHES,
            _ => STEPPED,
        }
    }

    fn run(self, line: &mut Line, bare: &mut Bare) -> Result<()> {
        match self {
            Part::Nothing | Part::NothingStepped => Ok(()),
            Part::Held | Part::Free | Part::EmptyStepped => line.submit_empty(self.dispatches()),
            Part::EmptyBatchStepped => line.submit_empty_batch(self.dispatches()),
            Part::EmptyListStepped => line.submit_empty_list(self.dispatches()),
            Part::AxpyStepped => line.submit_axpy(self.dispatches()),
            Part::AxpyBatchStepped => line.submit_axpy_batch(self.dispatches()),
            Part::AxpyListStepped => line.submit_axpy_list(self.dispatches()),
            Part::BareStepped => {
                bare.submit(self.dispatches());
                Ok(())
            }
        }
    }
}

fn mark() -> Result<()> {
    Ok(kill(getpid(), Signal::SIGUSR1)?)
}

/// Gets ready, says so, waits to be told that it is traced, and goes through the parts.
pub fn play() -> Result<()> {
    let mut line = Line::open(PACKETS)?;
    let mut bare = Bare::new(1024);
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_exact(&mut [0])?;
    for part in PARTS {
        if part != Part::Free {
            line.hold()?;
        } else {
            // TIMEOUT: long after the soft device has parked.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        mark()?;
        let done = part.run(&mut line, &mut bare);
        mark()?;
        done?;
        line.release()?;
    }
    Ok(())
}
