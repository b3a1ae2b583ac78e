// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model's kernels on an agent, and which of them a precision needs.

use stasis::{Agent, Executable, Kernel};

use super::error::EngineError;
use super::precision::Precision;

include!(concat!(env!("OUT_DIR"), "/embed.rs"));

/// The kernels of a precision.
#[derive(Debug)]
pub struct Kernels {
    pub embed: Kernel,
    pub norm: Kernel,
    pub pool: Kernel,
    pub gemm_bias: Kernel,
    pub gemm_gelu: Kernel,
    pub gemm_residual: Kernel,
    /// Only f16 has it.
    pub gemm_transposed: Option<Kernel>,
    pub attention: Kernel,
}

impl Kernels {
    /// Loads the code object for the agent's target.
    pub fn load(agent: &Agent, precision: Precision) -> Result<Self, EngineError> {
        // Matrix instructions are gfx11's here; for other targets the object is empty.
        let object = OBJECTS
            .iter()
            .find_map(|(target, object)| (*target == agent.name()).then_some(*object))
            .filter(|_| agent.name().starts_with("gfx11"))
            .ok_or(EngineError::Target { target: agent.name() })?;
        let executable = Executable::load(agent, object)?;
        let kernel = |name: &str| executable.kernel(&format!("{name}_{}", precision.name()));
        Ok(Self {
            embed: kernel("embed")?,
            norm: kernel("norm")?,
            pool: executable.kernel("pool")?,
            gemm_bias: kernel("gemm_bias")?,
            gemm_gelu: kernel("gemm_gelu")?,
            gemm_residual: kernel("gemm_residual")?,
            gemm_transposed: match precision {
                Precision::F16 => Some(kernel("gemm_transposed")?),
                Precision::F32 => None,
            },
            attention: kernel("attention")?,
        })
    }
}
