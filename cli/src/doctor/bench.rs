// SPDX-License-Identifier: MIT OR Apache-2.0
//! What probes have in common: a runtime with an agent, kernels for its target, and short ways to run them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kfd::transport::Transport;
use kfd::{Kfd, Topology};
use stasis::{
    Agent, Arg, Executable, Kernel, Options, Queue, QueueFault, QueueOptions, Runtime, Signal, TypedBuffer,
    WaitError,
};

use super::probe::Skip;

mod objects {
    pub(super) mod doctor {
        include!(concat!(env!("OUT_DIR"), "/doctor.rs"));
        pub(in super::super) const TABLE: &[(&str, &[u8])] = OBJECTS;
    }
    pub(super) mod first {
        include!(concat!(env!("OUT_DIR"), "/answer1.rs"));
        pub(in super::super) const TABLE: &[(&str, &[u8])] = OBJECTS;
    }
    pub(super) mod second {
        include!(concat!(env!("OUT_DIR"), "/answer2.rs"));
        pub(in super::super) const TABLE: &[(&str, &[u8])] = OBJECTS;
    }
}

/// Items of a work-group of all kernels.
pub(super) const ITEMS: usize = WORKGROUP as usize;
const WORKGROUP: u16 = 64;

/// What a probe is made on.
#[derive(Debug)]
pub struct Bench {
    options: Options,
    agent: usize,
    /// How long a probe waits for the device.
    patience: Duration,
}

impl Bench {
    pub(super) fn new(options: Options, agent: usize, patience: Duration) -> Self {
        Self { options, agent, patience }
    }

    /// The driver's device, without a runtime.
    pub(super) fn driver(&self) -> Result<(Arc<dyn Transport>, Kfd)> {
        let spec = match &self.options.device {
            Some(spec) => spec.clone(),
            None => kfd::DeviceSpec::from_env()?,
        };
        let transport = kfd::open_default(spec).context("Cannot reach the device")?;
        let kfd = Kfd::open(&*transport).context("Cannot open the device")?;
        Ok((transport, kfd))
    }

    /// The topology, without a runtime.
    pub(super) fn topology(&self) -> Result<Topology> {
        let (transport, _kfd) = self.driver()?;
        Topology::read(transport.sysfs()).context("Cannot read the topology")
    }

    /// A runtime with the agent.
    pub(super) fn open(&self) -> Result<Gpu> {
        let runtime = Runtime::open(self.options.clone()).context("Cannot open the runtime")?;
        let agent = runtime.agent(self.agent).with_context(|| {
            let left_out: Vec<_> = runtime.left_out().iter().map(|out| out.reason.to_string()).collect();
            format!("There is no agent {}; left out: {left_out:?}", self.agent)
        })?;
        Ok(Gpu { runtime, agent, patience: self.patience })
    }
}

/// An agent of a runtime.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) runtime: Runtime,
    pub(super) agent: Agent,
    pub(super) patience: Duration,
}

fn object(table: &'static [(&'static str, &'static [u8])], agent: &Agent) -> Result<&'static [u8]> {
    let found = table.iter().find(|(target, _)| *target == agent.name());
    let skip = || Skip(format!("this program has no kernels for {}", agent.name()));
    Ok(found.ok_or_else(skip)?.1)
}

impl Gpu {
    pub(super) fn queue(&self) -> Result<Queue> {
        Queue::create(&self.agent, QueueOptions::default()).context("Cannot create an AQL queue")
    }

    pub(super) fn signal(&self) -> Result<Signal> {
        Signal::new(&self.runtime, 1).context("Cannot create a signal")
    }

    pub(super) fn kernel(&self, name: &str) -> Result<Kernel> {
        let object = object(objects::doctor::TABLE, &self.agent)?;
        let executable = Executable::load(&self.agent, object).context("Cannot load the code object")?;
        executable.kernel(name).with_context(|| format!("The code object has no kernel {name}"))
    }

    /// Two code objects that differ in the number that their kernel `answer` stores: 41 and 42.
    pub(super) fn answers(&self) -> Result<[&'static [u8]; 2]> {
        Ok([object(objects::first::TABLE, &self.agent)?, object(objects::second::TABLE, &self.agent)?])
    }

    /// Numbers in the agent's memory, written by the host.
    pub(super) fn numbers(&self, seed: u32, groups: usize) -> Result<(Vec<u32>, TypedBuffer<u32>)> {
        // Weyl's sequence: no two equal, no zero page.
        let number = |at: usize| u32::try_from(at).unwrap_or(0).wrapping_add(seed).wrapping_mul(0x9e37_79b9);
        let numbers: Vec<u32> = (0..ITEMS * groups).map(number).collect();
        let buffer = self.agent.vram().upload(&numbers).context("Cannot write to the agent's memory")?;
        Ok((numbers, buffer))
    }

    pub(super) fn zeros(&self, groups: usize) -> Result<TypedBuffer<u32>> {
        self.agent.vram().upload(&vec![0; ITEMS * groups]).context("Cannot write to the agent's memory")
    }

    /// Runs a kernel of `groups` work-groups and waits for it.
    pub(super) fn run(&self, queue: &Queue, kernel: &Kernel, groups: u32, args: &[Arg<'_>]) -> Result<()> {
        let done = self.start(queue, kernel, groups, args, true)?;
        done.wait_done(Some(self.patience)).with_context(|| format!("{} did not complete", kernel.name()))
    }

    /// Starts a kernel of `groups` work-groups, behind all before it or beside them.
    pub(super) fn start(
        &self,
        queue: &Queue,
        kernel: &Kernel,
        groups: u32,
        args: &[Arg<'_>],
        barrier: bool,
    ) -> Result<Signal> {
        let done = self.signal()?;
        let items = groups * u32::from(WORKGROUP);
        let dispatch = queue.dispatch(kernel).grid([items, 1, 1]).block([WORKGROUP, 1, 1]);
        let dispatch = dispatch.args(args).barrier(barrier).completion(&done);
        dispatch.submit().with_context(|| format!("Cannot submit {}", kernel.name()))?;
        Ok(done)
    }

    /// Runs a kernel of one work-group that is to stop its queue, and waits for the report of that.
    pub(super) fn fails(&self, queue: &Queue, kernel: &Kernel, args: &[Arg<'_>]) -> Result<Arc<QueueFault>> {
        let done = self.start(queue, kernel, 1, args, true)?;
        match done.wait_done(Some(self.patience)) {
            Ok(()) => anyhow::bail!("{} completed, as if nothing had happened", kernel.name()),
            Err(WaitError::Queue(fault)) => Ok(fault),
            Err(error) => {
                Err(error).with_context(|| format!("nobody reported that {} failed", kernel.name()))
            }
        }
    }

    /// Waits until `holds`.
    pub(super) fn until(&self, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !holds()? {
            ensure!(begun.elapsed() < self.patience, "{what} did not happen within {:?}", self.patience);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// What the kernel `numbers` makes of some.
pub(super) fn tripled(numbers: &[u32]) -> impl Iterator<Item = u32> {
    (0..).zip(numbers).map(|(at, number): (u32, _)| number.wrapping_mul(3).wrapping_add(at))
}

/// Fails with the first element that is not as wanted.
pub(super) fn same(what: &str, found: &[u32], wanted: impl IntoIterator<Item = u32>) -> Result<()> {
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        ensure!(*found == wanted, "{what}: element {at} is {found:#x}, not {wanted:#x}");
    }
    Ok(())
}
