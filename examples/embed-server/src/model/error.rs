// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a model's directory.

use std::path::PathBuf;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file that does not exist or cannot be read.
    #[error("Cannot read {path}: `cargo xtask setup` fetches the model, --model names its directory")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file that is not JSON of the expected shape.
    #[error("{path} is not a configuration this server reads")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A model that the kernels were not written for.
    #[error("{path}: {field} is {found}, this server's kernels need {needed}")]
    Unsupported {
        /// The file with the field.
        path: PathBuf,
        /// The field of the configuration.
        field: &'static str,
        /// What it says.
        found: String,
        /// What there are kernels for.
        needed: String,
    },
    /// Weights that are no safetensors file.
    #[error("{path} is not a safetensors file")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: safetensors::SafeTensorError,
    },
    /// A tensor that is missing, or has another shape or type than the configuration implies.
    #[error("{path}: tensor {tensor} is {found}, not {needed}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Type and shape it has, or that it is missing.
        found: String,
        /// Type and shape it should have.
        needed: String,
    },
    /// A vocabulary that the tokenizer does not take.
    #[error("{path} is not a tokenizer this server reads: {why}")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}
