// SPDX-License-Identifier: MIT OR Apache-2.0
//! The switches: which differences are borne. They have the names and meanings of CRIU's amdgpu plugin.
//!
//! INVARIANT: a switch that is not set is on, and one that says anything but yes or no is an error, never a guess.

use std::ffi::OsString;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A switch, named as in the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Switch {
    /// `KFD_FW_VER_CHECK`: compute firmware not older.
    FwVersion,
    /// `KFD_SDMA_FW_VER_CHECK`: copy engine firmware not older.
    SdmaFwVersion,
    /// `KFD_CACHES_COUNT_CHECK`: not fewer caches.
    CachesCount,
    /// `KFD_NUM_GWS_CHECK`: not fewer global wave sync barriers.
    NumGws,
    /// `KFD_VRAM_SIZE_CHECK`: not less memory.
    VramSize,
    /// `KFD_NUMA_CHECK`: GPUs of one CPU node come to one CPU node.
    Numa,
    /// `KFD_CAPABILITY_CHECK`: the same capabilities.
    Capability,
}

impl Switch {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::FwVersion,
        Self::SdmaFwVersion,
        Self::CachesCount,
        Self::NumGws,
        Self::VramSize,
        Self::Numa,
        Self::Capability,
    ];

    /// Its environment variable.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::FwVersion => "KFD_FW_VER_CHECK",
            Self::SdmaFwVersion => "KFD_SDMA_FW_VER_CHECK",
            Self::CachesCount => "KFD_CACHES_COUNT_CHECK",
            Self::NumGws => "KFD_NUM_GWS_CHECK",
            Self::VramSize => "KFD_VRAM_SIZE_CHECK",
            Self::Numa => "KFD_NUMA_CHECK",
            Self::Capability => "KFD_CAPABILITY_CHECK",
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.variable())
    }
}

/// A switch is neither on nor off.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{switch} is {value:?}; set it to 1 or YES to check, to 0 or NO not to")]
pub struct SwitchError {
    /// Which one.
    pub switch: Switch,
    /// What it says, with replacement characters where that is not UTF-8.
    pub value: String,
}

/// Which of the checks that can be switched off are made. All of them by default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_excessive_bools)] // They are independent, and named after the variables.
pub struct Checks {
    /// `KFD_FW_VER_CHECK`.
    pub fw_version: bool,
    /// `KFD_SDMA_FW_VER_CHECK`.
    pub sdma_fw_version: bool,
    /// `KFD_CACHES_COUNT_CHECK`.
    pub caches_count: bool,
    /// `KFD_NUM_GWS_CHECK`.
    pub num_gws: bool,
    /// `KFD_VRAM_SIZE_CHECK`.
    pub vram_size: bool,
    /// `KFD_NUMA_CHECK`.
    pub numa: bool,
    /// `KFD_CAPABILITY_CHECK`.
    pub capability: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            fw_version: true,
            sdma_fw_version: true,
            caches_count: true,
            num_gws: true,
            vram_size: true,
            numa: true,
            capability: true,
        }
    }
}

impl Checks {
    /// As the environment of this process says.
    ///
    /// # Errors
    /// [`SwitchError`] for the first that says neither yes nor no.
    pub fn from_env() -> Result<Self, SwitchError> {
        Self::read(|variable| std::env::var_os(variable))
    }

    /// As `lookup` says of each variable: `1` and `YES` check, `0` and `NO` do not, in any case.
    ///
    /// # Errors
    /// [`SwitchError`] for the first that says anything else.
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, SwitchError> {
        let mut checks = Self::default();
        for switch in Switch::ALL {
            let Some(value) = lookup(switch.variable()) else { continue };
            let text = value.to_string_lossy();
            let on = match text.to_ascii_lowercase().as_str() {
                "1" | "yes" => true,
                "0" | "no" => false,
                _ => return Err(SwitchError { switch, value: text.into_owned() }),
            };
            *checks.of_mut(switch) = on;
        }
        Ok(checks)
    }

    /// Whether a check is made.
    #[must_use]
    pub fn is_on(&self, switch: Switch) -> bool {
        match switch {
            Switch::FwVersion => self.fw_version,
            Switch::SdmaFwVersion => self.sdma_fw_version,
            Switch::CachesCount => self.caches_count,
            Switch::NumGws => self.num_gws,
            Switch::VramSize => self.vram_size,
            Switch::Numa => self.numa,
            Switch::Capability => self.capability,
        }
    }

    /// All checks but one.
    #[must_use]
    pub fn without(switch: Switch) -> Self {
        let mut checks = Self::default();
        *checks.of_mut(switch) = false;
        checks
    }

    fn of_mut(&mut self, switch: Switch) -> &mut bool {
        match switch {
            Switch::FwVersion => &mut self.fw_version,
            Switch::SdmaFwVersion => &mut self.sdma_fw_version,
            Switch::CachesCount => &mut self.caches_count,
            Switch::NumGws => &mut self.num_gws,
            Switch::VramSize => &mut self.vram_size,
            Switch::Numa => &mut self.numa,
            Switch::Capability => &mut self.capability,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn with(switch: Switch, value: &str) -> Result<Checks, SwitchError> {
        Checks::read(|variable| (variable == switch.variable()).then(|| value.into()))
    }

    #[test]
    fn every_switch_turns_its_own_check_off_and_no_other() {
        for switch in Switch::ALL {
            for off in ["0", "NO", "no", "No"] {
                let checks = with(switch, off).unwrap();
                assert_eq!(checks, Checks::without(switch));
                let still = Switch::ALL.into_iter().filter(|&other| checks.is_on(other)).count();
                assert!(!checks.is_on(switch) && still == 6, "{switch}={off}");
            }
            for on in ["1", "YES", "yes"] {
                assert_eq!(with(switch, on), Ok(Checks::default()), "{switch}={on}");
            }
        }
        assert_eq!(Checks::read(|_| None), Ok(Checks::default()));
    }

    #[test]
    fn anything_else_is_an_error_with_its_name() {
        for switch in Switch::ALL {
            for bad in ["", "2", "off", "false", " 0", "00"] {
                let error = with(switch, bad).unwrap_err();
                assert_eq!(error, SwitchError { switch, value: bad.to_owned() });
                let text = error.to_string();
                assert!(text.contains(switch.variable()) && text.contains(&format!("{bad:?}")), "{text}");
            }
        }
        let bytes = Checks::read(|_| Some(OsString::from_vec(vec![0xff])));
        assert!(matches!(bytes, Err(SwitchError { switch: Switch::FwVersion, .. })));
    }

    #[test]
    fn checks_that_a_message_leaves_out_are_on() {
        let checks: Checks = serde_json::from_str(r#"{"numa": false}"#).unwrap();
        assert_eq!(checks, Checks::without(Switch::Numa));
        let text = serde_json::to_string(&checks).unwrap();
        assert_eq!(serde_json::from_str::<Checks>(&text).unwrap(), checks);
    }
}
