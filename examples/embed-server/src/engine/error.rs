// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why an engine could not be made.

/// Why there is no engine on an agent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A target that there are no kernels for.
    #[error("There are no kernels for {target}: the server runs on gfx11 agents")]
    Target {
        /// The agent's target.
        target: &'static str,
    },
    /// A batch size that leaves no room for a sentence, or needs more rows than kernels count.
    #[error("A batch of {tokens} tokens is not between {least}, the longest sentence, and {most}")]
    BatchTokens {
        /// What was asked for.
        tokens: usize,
        /// The model's positions.
        least: usize,
        /// What fits in 32-bit indices.
        most: usize,
    },
    /// The runtime did not load the code object.
    #[error("The kernels could not be loaded")]
    Load(#[from] stasis::LoadError),
    /// The runtime had no memory or no signal.
    #[error("There is no memory for {what}")]
    Memory {
        /// What it is for.
        what: &'static str,
        /// What the runtime said.
        #[source]
        source: stasis::AllocError,
    },
    /// The weights could not be written.
    #[error("The weights could not be written into the agent's memory")]
    Upload(#[from] stasis::CopyError),
    /// The runtime made no queue.
    #[error("The agent gave no queue")]
    Queue(#[from] stasis::QueueError),
    /// The agent's clock could not be read.
    #[error("A kernel's time could not be taken")]
    Clock(#[source] Box<dyn std::error::Error + Send + Sync>),
}
