// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every benchmark on the device begins with: the runtime, an agent, and our kernels on it.

use anyhow::{Context, Result};
use stasis::{Agent, Executable, Kernel, Runtime};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The kernels' code object for a target.
pub fn object(target: &str) -> Result<&'static [u8]> {
    find(OBJECTS, target)
}

/// The code object for a target in a table of build.rs.
pub fn find(objects: &'static [(&'static str, &'static [u8])], target: &str) -> Result<&'static [u8]> {
    let found = objects.iter().find_map(|(name, object)| (*name == target).then_some(*object));
    found.with_context(|| format!("The benchmarks have no kernels for {target}"))
}

/// An open device.
#[derive(Debug)]
pub struct Gpu {
    /// The process's runtime.
    pub runtime: Runtime,
    /// Its first agent.
    pub agent: Agent,
    executable: Executable,
}

impl Gpu {
    /// Opens what `STASIS_DEVICE` names.
    pub fn open() -> Result<Self> {
        let runtime = Runtime::open_default()?;
        let agent = runtime.agent(0).context("There is no agent")?;
        let executable = Executable::load(&agent, object(agent.name())?)?;
        Ok(Self { runtime, agent, executable })
    }

    /// A kernel of kernels.c.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        Ok(self.executable.kernel(name)?)
    }
}
