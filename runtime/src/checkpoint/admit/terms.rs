// SPDX-License-Identifier: MIT OR Apache-2.0
//! On what terms a process is restored.

use serde::{Deserialize, Serialize};

use super::checks::{Checks, SwitchError};
use super::place::Place;

/// When the contents of a restored process's buffers come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lazy {
    /// Before it runs.
    #[default]
    Off,
    /// When something looks at them; the rest in the background.
    Background,
    /// When something looks at them.
    Asked,
}

impl Lazy {
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

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
    /// Whether the process runs before its buffers' contents are there.
    #[serde(skip_serializing_if = "Lazy::is_off")]
    pub lazy: Lazy,
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
