// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plugin's settings. CRIU has no options for plugins, so they are variables of CRIU's environment.

use std::env;
use std::ffi::{OsStr, OsString};

use stasis::checkpoint::Mode;
use thiserror::Error;

/// `drain` (the default: kernels run to their end) or `preempt`.
pub(crate) const MODE: &str = "STASIS_CRIU_MODE";
/// How long the queues may take to stop, milliseconds.
pub(crate) const DEADLINE: &str = "STASIS_CRIU_DEADLINE_MS";
/// How long a process waits to be frozen before it runs on, milliseconds.
pub(crate) const LEASE: &str = "STASIS_CRIU_LEASE_MS";
/// Whether processes keep their contents in their own memory: `1` always, `0` never; without the variable, those that
/// cannot see the images.
pub(crate) const SELF_CONTAINED: &str = "STASIS_CRIU_SELF_CONTAINED";

/// A variable has a value that is not valid.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{name} is {value:?}; it must be {wanted}")]
pub(crate) struct SettingsError {
    name: &'static str,
    value: OsString,
    wanted: &'static str,
}

/// How processes are checkpointed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub mode: Mode,
    pub deadline_ms: u64,
    pub lease_ms: u64,
    /// `None`: only those that cannot see the directory of the images.
    pub self_contained: Option<bool>,
}

impl Settings {
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::from(|name| env::var_os(name))
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        let milliseconds = |name: &'static str, default: u64| {
            let Some(value) = variable(name) else { return Ok(default) };
            let number = value.to_str().and_then(|text| text.parse().ok());
            number.ok_or(SettingsError { name, value, wanted: "a number of milliseconds" })
        };
        let mode = match variable(MODE) {
            None => Mode::Drain,
            Some(value) if value == OsStr::new("drain") => Mode::Drain,
            Some(value) if value == OsStr::new("preempt") => Mode::Preempt,
            Some(value) => return Err(SettingsError { name: MODE, value, wanted: "drain or preempt" }),
        };
        let self_contained = match variable(SELF_CONTAINED) {
            None => None,
            Some(value) if value == OsStr::new("0") => Some(false),
            Some(value) if value == OsStr::new("1") => Some(true),
            Some(value) => return Err(SettingsError { name: SELF_CONTAINED, value, wanted: "0 or 1" }),
        };
        Ok(Self {
            mode,
            deadline_ms: milliseconds(DEADLINE, 10_000)?,
            lease_ms: milliseconds(LEASE, 30_000)?,
            self_contained,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(set: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from(|name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn defaults_are_those_of_the_command() {
        let usual =
            Settings { mode: Mode::Drain, deadline_ms: 10_000, lease_ms: 30_000, self_contained: None };
        assert_eq!(parse(&[]).unwrap(), usual);
        let settings = parse(&[(MODE, "preempt"), (DEADLINE, "0"), (LEASE, "7")]).unwrap();
        assert_eq!(settings, Settings { mode: Mode::Preempt, deadline_ms: 0, lease_ms: 7, ..usual });
        for (value, meaning) in [("0", false), ("1", true)] {
            assert_eq!(parse(&[(SELF_CONTAINED, value)]).unwrap().self_contained, Some(meaning));
        }
    }

    #[test]
    fn nonsense_is_refused_by_name_and_value() {
        for (name, value) in
            [(MODE, "Drain"), (MODE, ""), (DEADLINE, "-1"), (LEASE, "1 s"), (SELF_CONTAINED, "yes")]
        {
            let error = parse(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
