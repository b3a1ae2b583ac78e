// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device that a restored copy takes instead of the one it had: another machine's.
//!
//! INVARIANT: a transport is exchanged only in a copy, which no driver knows yet; a process that a driver knows with its
//! address spaces stays with that driver or is refused by name. Until the agents are admitted nothing of the process
//! points to the other device.

use std::env::VarError;

use kfd::DeviceSpec;
use kfd::transport::soft::INSTANCE_VARIABLE;
use kfd::transport::{DEVICE_VARIABLE, SpecError};
use thiserror::Error;

use super::terms::Admission;

/// Why a process cannot take the device that its restorer names.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ElsewhereError {
    /// It names none.
    #[error("The restore is to take the device {text:?}, which is none")]
    Spec {
        /// As it came.
        text: String,
        /// Why.
        #[source]
        source: SpecError,
    },
    /// The process is no copy.
    #[error(
        "The process lives on and is known to {had} with its address spaces; only a restored copy can take {wanted}: \
         unset STASIS_DEVICE or leave out --device"
    )]
    Known {
        /// The device that it has.
        had: String,
        /// The device that was asked for.
        wanted: String,
    },
}

impl Admission {
    /// The same terms on the device that `named` says (a command line's), else `STASIS_DEVICE` in the environment of
    /// this process; and if there is one, on the instance of `STASIS_SOFTGPU_INSTANCE`. Files are named by their full
    /// paths: a copy has another working directory.
    ///
    /// # Errors
    /// [`ElsewhereError::Spec`].
    pub fn on_device(self, named: Option<&str>) -> Result<Self, ElsewhereError> {
        let in_environment =
            |variable| std::env::var(variable).map(|text| Some(text).filter(|t| !t.is_empty()));
        let text = match (named, in_environment(DEVICE_VARIABLE)) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Ok(text)) => text,
            (None, Err(VarError::NotPresent)) => None,
            (None, Err(VarError::NotUnicode(text))) => {
                let text = text.to_string_lossy().into_owned();
                return Err(ElsewhereError::Spec { text, source: SpecError::Encoding });
            }
        };
        let Some(text) = text else { return Ok(self) };
        let spec = parse(&text)?;
        // As the device itself is looked for: an instance that is not UTF-8 is none.
        let instance = in_environment(INSTANCE_VARIABLE).unwrap_or_default();
        Ok(Self { device: Some(spec.to_string()), instance, ..self })
    }
}

pub(super) fn parse(text: &str) -> Result<DeviceSpec, ElsewhereError> {
    text.parse().map_err(|source| ElsewhereError::Spec { text: text.to_owned(), source })
}
