// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which kernel's driver is imitated where kernels differ, or where none does what a process would need.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The environment variable that chooses.
pub const VARIABLE: &str = "SOFTGPU_KERNEL";

/// The imitated driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelModel {
    /// Linux 6.12: a memory fault takes all of the process's queues on that GPU off the hardware for good
    /// (`kfd_dqm_evict_pasid`).
    V6_12,
    /// A kernel whose faults stop the queue that caused them and no other.
    #[default]
    Fixed,
}

/// The variable names no kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{VARIABLE} is {0:?}; it can be 6.12 or fixed (the default)")]
pub struct KernelModelError(String);

impl FromStr for KernelModel {
    type Err = KernelModelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "6.12" => Ok(Self::V6_12),
            "" | "fixed" => Ok(Self::Fixed),
            other => Err(KernelModelError(other.to_owned())),
        }
    }
}

impl fmt::Display for KernelModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V6_12 => "6.12",
            Self::Fixed => "fixed",
        })
    }
}

impl KernelModel {
    /// Reads `SOFTGPU_KERNEL`.
    ///
    /// # Errors
    /// [`KernelModelError`] when it names no kernel.
    pub fn from_env() -> Result<Self, KernelModelError> {
        std::env::var(VARIABLE).unwrap_or_default().parse()
    }

    /// Whether a memory fault costs the process all its queues on the GPU.
    pub(super) fn evicts_on_fault(self) -> bool {
        self == Self::V6_12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for model in [KernelModel::V6_12, KernelModel::Fixed] {
            assert_eq!(model.to_string().parse(), Ok(model));
        }
        assert_eq!("".parse(), Ok(KernelModel::Fixed));
        assert!("5.4".parse::<KernelModel>().unwrap_err().to_string().contains("5.4"));
    }
}
