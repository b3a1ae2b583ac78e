// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the plugin may be told. CRIU has no options for plugins, so it is told by CRIU's environment.

use std::env;
use std::ffi::{OsStr, OsString};

use stasis::checkpoint::Mode;
use thiserror::Error;

/// `drain` (the default: kernels run to their end) or `preempt`.
pub(crate) const MODE: &str = "STASIS_CRIU_MODE";
/// How long stopping the queues may take, milliseconds.
pub(crate) const DEADLINE: &str = "STASIS_CRIU_DEADLINE_MS";
/// How long a process waits to be frozen before it runs on, milliseconds.
pub(crate) const LEASE: &str = "STASIS_CRIU_LEASE_MS";

/// A variable with a value that means nothing.
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
        Ok(Self {
            mode,
            deadline_ms: milliseconds(DEADLINE, 10_000)?,
            lease_ms: milliseconds(LEASE, 30_000)?,
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
        let settings = parse(&[]).unwrap();
        assert_eq!(settings, Settings { mode: Mode::Drain, deadline_ms: 10_000, lease_ms: 30_000 });
        let settings = parse(&[(MODE, "preempt"), (DEADLINE, "0"), (LEASE, "7")]).unwrap();
        assert_eq!(settings, Settings { mode: Mode::Preempt, deadline_ms: 0, lease_ms: 7 });
    }

    #[test]
    fn nonsense_is_refused_by_name_and_value() {
        for (name, value) in [(MODE, "Drain"), (MODE, ""), (DEADLINE, "-1"), (LEASE, "1 s")] {
            let error = parse(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
