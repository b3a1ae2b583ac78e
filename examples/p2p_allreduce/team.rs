// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agents that work together: a queue and the kernels on each, and their buffers.
//!
//! INVARIANT: inputs are small whole numbers, so every order of additions gives the same f32 to the last bit.

use std::time::Duration;

use anyhow::{Result, ensure};
use stasis::{
    Arg, Buffer, CopyPath, Executable, Kernel, LogicalDevice, Queue, QueueOptions, Signal, Span, Transfer,
};
use stasis_examples::code_for;

include!(concat!(env!("OUT_DIR"), "/allreduce.rs"));

/// Work-items of a workgroup.
const GROUP: u32 = 256;
/// TIMEOUT: one all-reduce, on the slowest software device.
pub const SOON: Option<Duration> = Some(Duration::from_secs(300));

/// One agent's part.
pub struct Member {
    pub queue: Queue,
    pub add: Kernel,
    pub sum: Kernel,
    /// Its input; with the ring the sum ends here, too.
    pub data: Buffer,
    /// The vectors from other agents.
    pub inbox: Buffer,
    /// The sum of direct reads.
    pub sums: Buffer,
}

/// All of them.
pub struct Team {
    pub device: LogicalDevice,
    pub members: Vec<Member>,
    /// Floats of a vector.
    pub floats: u32,
    /// The path for copies; `None` for the best one.
    pub forced: Option<CopyPath>,
}

fn input(member: usize, at: u32) -> f32 {
    // CAST: below 2^24, so exact.
    ((at.wrapping_mul(7) + member as u32 * 131) % 1021) as f32
}

impl Team {
    pub fn new(device: LogicalDevice, floats: u32) -> Result<Self> {
        let bytes = u64::from(floats) * 4;
        let others = device.agents().len() as u64 - 1;
        let member = |agent: &stasis::Agent| {
            let code = code_for(agent, "p2p_allreduce", OBJECTS)?;
            let executable = Executable::load(agent, code)?;
            Ok(Member {
                queue: Queue::create(agent, QueueOptions::default())?,
                add: executable.kernel("add")?,
                sum: executable.kernel("sum")?,
                data: agent.vram().alloc(bytes)?,
                inbox: agent.vram().alloc(bytes * others)?,
                sums: agent.vram().alloc(bytes)?,
            })
        };
        let members = device.agents().iter().map(member).collect::<Result<Vec<_>>>()?;
        Ok(Self { device, members, floats, forced: None })
    }

    /// Bytes of a vector.
    pub fn bytes(&self) -> u64 {
        u64::from(self.floats) * 4
    }

    /// Puts the inputs in place.
    pub fn fill(&self) -> Result<()> {
        for (n, member) in self.members.iter().enumerate() {
            let values: Vec<f32> = (0..self.floats).map(|at| input(n, at)).collect();
            member.data.upload(0, bytemuck::cast_slice(&values))?;
        }
        Ok(())
    }

    /// Compares a result of every agent with the CPU's.
    pub fn check(&self, of: impl Fn(&Member) -> &Buffer) -> Result<()> {
        let expected: Vec<f32> =
            (0..self.floats).map(|at| (0..self.members.len()).map(|n| input(n, at)).sum()).collect();
        let mut found = vec![0f32; expected.len()];
        for (n, member) in self.members.iter().enumerate() {
            of(member).download(0, bytemuck::cast_slice_mut(&mut found))?;
            let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            if let Some(at) = wrong {
                let (found, expected) = (found[at], expected[at]);
                anyhow::bail!("agent {n}: element {at} is {found}, the CPU says {expected}");
            }
        }
        Ok(())
    }

    /// Copies by the path that was asked for.
    pub fn copy(&self, to: Span<'_>, from: Span<'_>, after: &[&Signal]) -> Result<Transfer> {
        let runtime = self.device.runtime();
        Ok(match self.forced {
            Some(path) => runtime.copy_via(path, to, from, after)?,
            None => runtime.copy(to, from, after)?,
        })
    }

    /// A signal for one completion.
    pub fn signal(&self) -> Result<Signal> {
        Ok(Signal::new(self.device.runtime(), 1)?)
    }
}

impl Member {
    /// Runs a kernel over `floats` elements once `after` are done, and completes `done`.
    pub fn run(
        &self,
        kernel: &Kernel,
        floats: u32,
        args: &[Arg<'_>],
        after: &[&Signal],
        done: &Signal,
    ) -> Result<()> {
        ensure!(floats > 0, "there is nothing to add");
        for five in after.chunks(5) {
            self.queue.barrier(five, None)?;
        }
        self.queue
            .dispatch(kernel)
            .grid([floats.next_multiple_of(GROUP), 1, 1])
            .block([GROUP as u16, 1, 1])
            .args(args)
            .barrier(true)
            .completion(done)
            .submit()?;
        Ok(())
    }
}
