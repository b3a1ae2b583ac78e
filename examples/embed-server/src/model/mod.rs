// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model's directory: configuration, weights and vocabulary in the layout of sentence-transformers.

mod config;
mod error;
mod pieces;
mod tokenizer;
mod weights;

pub use self::config::{Config, HEAD, HIDDEN};
pub use self::error::ModelError;
pub use self::tokenizer::{Length, TokenizeError, Tokenizer};
pub use self::weights::Weights;
