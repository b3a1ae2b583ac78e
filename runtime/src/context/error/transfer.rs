// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of an engine that moves memory for the runtime itself.

use std::time::Duration;

use stasis_protocol::Stopped;

/// An engine did not move bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// It does nothing.
    #[error(
        "The copy engine of agent {agent} has not moved {bytes} bytes in {waited:?}; the kernel log may say why, and another \
         try makes it anew"
    )]
    Stalled {
        /// Whose engine.
        agent: String,
        /// Bytes of the transfer.
        bytes: u64,
        /// How long was waited.
        waited: Duration,
    },
    /// Its packets cannot be written.
    #[error("Packets of the copy engine of agent {agent} cannot be encoded")]
    Packets {
        /// Whose engine.
        agent: String,
        /// Why.
        #[source]
        source: queues::sdma::SdmaError,
    },
    /// The time was over, or somebody cancelled.
    #[error("The transfer was not done: {0}")]
    Stopped(#[from] Stopped),
}
