// SPDX-License-Identifier: MIT OR Apache-2.0
//! `model.safetensors`: the tensors by name, their shapes checked against the configuration.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use super::ModelError;

/// A model's weights as the file has them: f32, rows of a linear layer are its outputs.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Weights {
    /// Reads a model's weights.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`ModelError::Safetensors`].
    pub fn open(directory: &Path) -> Result<Self, ModelError> {
        let path = directory.join("model.safetensors");
        let bytes = fs::read(&path).map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let weights = Self { path, bytes };
        weights.tensors().map(drop)?;
        Ok(weights)
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, ModelError> {
        SafeTensors::deserialize(&self.bytes)
            .map_err(|source| ModelError::Safetensors { path: self.path.clone(), source })
    }

    /// The numbers of a tensor of this shape, row by row.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] when it is missing, is not f32 or has another shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let wrong = |found: String| ModelError::Tensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            found,
            needed: format!("F32 {shape:?}"),
        };
        let tensors = self.tensors()?;
        let view = tensors.tensor(name).map_err(|_| wrong("missing".to_owned()))?;
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            return Err(wrong(format!("{:?} {:?}", view.dtype(), view.shape())));
        }
        Ok(view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}
