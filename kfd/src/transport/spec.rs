// SPDX-License-Identifier: MIT OR Apache-2.0
//! `STASIS_DEVICE`: which transport, and which soft agents.

use std::env::VarError;
use std::fmt;
use std::str::FromStr;

/// The environment variable that names the device.
pub const DEVICE_VARIABLE: &str = "STASIS_DEVICE";

/// Most soft agents in one specification.
const MAX_DEVICES: usize = 64;

/// Which device to use.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum DeviceSpec {
    /// The kernel's if it has a GPU node, else one soft gfx1100.
    #[default]
    Auto,
    /// The kernel's driver.
    Kfd,
    /// The software device with these targets, such as `["gfx1100", "gfx1100"]`.
    Soft(Vec<String>),
}

/// Why a device specification is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The value names no transport.
    #[error("Unknown device {found:?}; expected kfd, soft, or soft:TARGET,TARGET such as soft:gfx1100")]
    Transport {
        /// The value.
        found: String,
    },
    /// One of the targets is no target.
    #[error(
        "Agent {index} of the soft device is {found:?}; expected gfx and 3 to 5 lower-case hexadecimal digits"
    )]
    Target {
        /// Which, from 0.
        index: usize,
        /// The text.
        found: String,
    },
    /// Too many targets.
    #[error("The soft device was asked for {found} agents, it has at most {limit}")]
    TooMany {
        /// How many were asked for.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The variable is not UTF-8.
    #[error("{DEVICE_VARIABLE} is not UTF-8; expected kfd, soft, or soft:TARGET,TARGET")]
    Encoding,
}

/// What `soft` without a list means.
pub(super) fn default_devices() -> Vec<String> {
    vec!["gfx1100".to_owned()]
}

impl DeviceSpec {
    /// Reads `STASIS_DEVICE`; unset or empty is [`DeviceSpec::Auto`].
    ///
    /// # Errors
    /// [`SpecError`] if the value is not understood.
    pub fn from_env() -> Result<Self, SpecError> {
        match std::env::var(DEVICE_VARIABLE) {
            Ok(text) if text.is_empty() => Ok(Self::Auto),
            Ok(text) => text.parse(),
            Err(VarError::NotPresent) => Ok(Self::Auto),
            Err(VarError::NotUnicode(_)) => Err(SpecError::Encoding),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.split_once(':') {
            None if text == "kfd" => Ok(Self::Kfd),
            None if text == "soft" => Ok(Self::Soft(default_devices())),
            None if text == "auto" => Ok(Self::Auto),
            Some(("soft", list)) => parse_targets(list).map(Self::Soft),
            _ => Err(SpecError::Transport { found: text.to_owned() }),
        }
    }
}

fn parse_targets(list: &str) -> Result<Vec<String>, SpecError> {
    let found = list.split(',').count();
    if found > MAX_DEVICES {
        return Err(SpecError::TooMany { found, limit: MAX_DEVICES });
    }
    let parse = |(index, target): (usize, &str)| {
        let digits = target.strip_prefix("gfx").unwrap_or_default();
        let hexadecimal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if (3..=5).contains(&digits.len()) && hexadecimal {
            Ok(target.to_owned())
        } else {
            Err(SpecError::Target { index, found: target.to_owned() })
        }
    };
    list.split(',').enumerate().map(parse).collect()
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Kfd => f.write_str("kfd"),
            Self::Soft(devices) => write!(f, "soft:{}", devices.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parse_accepts_the_documented_forms() {
        assert_eq!("kfd".parse(), Ok(DeviceSpec::Kfd));
        assert_eq!("soft".parse(), Ok(DeviceSpec::Soft(vec!["gfx1100".into()])));
        assert_eq!(
            "soft:gfx90a,gfx1100".parse(),
            Ok(DeviceSpec::Soft(vec!["gfx90a".into(), "gfx1100".into()]))
        );
    }

    #[test]
    fn parse_names_the_bad_agent() {
        let error = "soft:gfx1100,".parse::<DeviceSpec>();
        assert_eq!(error, Err(SpecError::Target { index: 1, found: String::new() }));
        let error = "soft:gfx1100,GFX90A".parse::<DeviceSpec>();
        assert_eq!(error, Err(SpecError::Target { index: 1, found: "GFX90A".into() }));
    }

    #[test]
    fn parse_refuses_other_transports_and_crowds() {
        assert!(matches!("hip".parse::<DeviceSpec>(), Err(SpecError::Transport { .. })));
        assert!(matches!("kfd:gfx1100".parse::<DeviceSpec>(), Err(SpecError::Transport { .. })));
        let crowd = format!("soft:{}", vec!["gfx1100"; 65].join(","));
        assert_eq!(crowd.parse::<DeviceSpec>(), Err(SpecError::TooMany { found: 65, limit: 64 }));
    }

    proptest! {
        #[test]
        fn parse_never_panics_and_display_round_trips(text in ".{0,80}|soft:[gfx0-9a-f,]{0,40}") {
            if let Ok(spec) = text.parse::<DeviceSpec>() {
                prop_assert_eq!(spec.to_string().parse::<DeviceSpec>(), Ok(spec));
            }
        }
    }
}
