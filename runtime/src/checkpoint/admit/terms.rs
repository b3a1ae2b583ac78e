// SPDX-License-Identifier: MIT OR Apache-2.0
//! On what terms a process is restored.

use serde::{Deserialize, Serialize};

use super::checks::{Checks, SwitchError};
use super::place::Place;

/// On what terms a process is restored: which differences are borne, on which device, and which GPU an agent is to take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Admission {
    /// The checks that are made.
    pub checks: Checks,
    /// Where agents are to go; the others find their places by themselves.
    pub places: Vec<Place>,
    /// A path between two agents may be missing, or be less than it was: copies go through the host's memory instead.
    pub allow_staged: bool,
    /// The device that a restored copy takes instead of the one it had: a [`kfd::DeviceSpec`] as text, which is read
    /// where the copy is. A process that lives on has its device for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The instance of softgpud for `device`, instead of the copy's own (`STASIS_SOFTGPU_INSTANCE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

impl Admission {
    /// As the switches in the environment of this process say, with no agent placed, on the device that there was.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn from_env() -> Result<Self, SwitchError> {
        Ok(Self { checks: Checks::from_env()?, ..Self::default() })
    }
}
