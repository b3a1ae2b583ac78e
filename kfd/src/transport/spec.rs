// SPDX-License-Identifier: MIT OR Apache-2.0
//! `STASIS_DEVICE`: which transport, and which soft agents.

use std::env::VarError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::machine;

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
    /// The software device as the topology file at this absolute path describes it (`docs/topology.md`).
    SoftFile(PathBuf),
}

/// Why a device specification is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The value names no transport.
    #[error(
        "Unknown device {found:?}; expected kfd, soft, soft:TARGET,TARGET*COUNT such as soft:gfx1100, or soft:FILE.toml"
    )]
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
    #[error("{DEVICE_VARIABLE} is not UTF-8; expected kfd, soft, soft:TARGET,TARGET*COUNT or soft:FILE.toml")]
    Encoding,
    /// One of the targets has a count that is none.
    #[error(
        "Agent {index} of the soft device is {found:?}; expected TARGET*COUNT with COUNT from 1 to {limit}"
    )]
    Count {
        /// Which item of the list, from 0.
        index: usize,
        /// The item.
        found: String,
        /// The largest count.
        limit: usize,
    },
    /// The topology file is not there, or has a path that cannot be passed on.
    #[error("Cannot use the topology file {} ({kind}); expected the path of a readable file that ends in .toml", path.display())]
    File {
        /// The path as given.
        path: PathBuf,
        /// Why.
        kind: io::ErrorKind,
    },
}

/// The targets that `soft` without a list means.
pub fn default_devices() -> Vec<String> {
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
            Some(("soft", file)) if file.ends_with(machine::EXTENSION) => {
                find(Path::new(file)).map(Self::SoftFile)
            }
            Some(("soft", list)) => parse_targets(list).map(Self::Soft),
            _ => Err(SpecError::Transport { found: text.to_owned() }),
        }
    }
}

fn find(path: &Path) -> Result<PathBuf, SpecError> {
    machine::canonical(path).map_err(|error| SpecError::File { path: path.to_owned(), kind: error.kind() })
}

/// The targets of a list, each as often as its count says.
fn parse_targets(list: &str) -> Result<Vec<String>, SpecError> {
    let (mut targets, mut wanted) = (Vec::new(), 0usize);
    for (index, item) in list.split(',').enumerate() {
        let (target, count) = match item.split_once('*') {
            None => (item, 1),
            Some((target, count)) => (target, parse_count(index, item, count)?),
        };
        if !is_target(target) {
            return Err(SpecError::Target { index, found: item.to_owned() });
        }
        wanted = wanted.saturating_add(count);
        if wanted <= MAX_DEVICES {
            targets.extend(std::iter::repeat_n(target.to_owned(), count));
        }
    }
    if wanted > MAX_DEVICES {
        return Err(SpecError::TooMany { found: wanted, limit: MAX_DEVICES });
    }
    Ok(targets)
}

fn parse_count(index: usize, item: &str, count: &str) -> Result<usize, SpecError> {
    let number = count.bytes().all(|digit| digit.is_ascii_digit()).then(|| count.parse().ok()).flatten();
    let error = || SpecError::Count { index, found: item.to_owned(), limit: MAX_DEVICES };
    number.filter(|count| *count > 0).ok_or_else(error)
}

fn is_target(name: &str) -> bool {
    let digits = name.strip_prefix("gfx").unwrap_or_default();
    let hexadecimal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    (3..=5).contains(&digits.len()) && hexadecimal
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Kfd => f.write_str("kfd"),
            Self::Soft(devices) => write!(f, "soft:{}", devices.join(",")),
            Self::SoftFile(path) => write!(f, "soft:{}", path.display()),
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
    fn parse_expands_counts() {
        let expanded = ["gfx1100", "gfx1100", "gfx1201"].map(str::to_owned).to_vec();
        let spec: DeviceSpec = "soft:gfx1100*2,gfx1201".parse().unwrap();
        assert_eq!(spec, DeviceSpec::Soft(expanded));
        assert_eq!(spec.to_string(), "soft:gfx1100,gfx1100,gfx1201");
        for bad in ["gfx1100*", "gfx1100*0", "gfx1100*x", "gfx1100*+1", "gfx1100*99999999999999999999"] {
            let error = format!("soft:gfx1201,{bad}").parse::<DeviceSpec>();
            assert_eq!(error, Err(SpecError::Count { index: 1, found: bad.into(), limit: 64 }), "{bad}");
        }
        let error = "soft:gfx1100*64,gfx1100".parse::<DeviceSpec>();
        assert_eq!(error, Err(SpecError::TooMany { found: 65, limit: 64 }));
    }

    #[test]
    fn parse_finds_a_topology_file_and_display_round_trips() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().canonicalize().unwrap().join("two sockets.toml");
        std::fs::write(&file, "").unwrap();
        let dotted =
            directory.path().join("..").join(directory.path().file_name().unwrap()).join("two sockets.toml");
        let spec: DeviceSpec = format!("soft:{}", dotted.display()).parse().unwrap();
        assert_eq!(spec, DeviceSpec::SoftFile(file.clone()));
        assert_eq!(spec.to_string(), format!("soft:{}", file.display()));
        assert_eq!(spec.to_string().parse(), Ok(spec));
        let missing = directory.path().join("none.toml");
        let error = format!("soft:{}", missing.display()).parse::<DeviceSpec>();
        assert_eq!(error, Err(SpecError::File { path: missing, kind: io::ErrorKind::NotFound }));
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
        fn parse_never_panics_and_display_round_trips(text in ".{0,80}|soft:[gfx0-9a-f*,]{0,40}|soft:(gfx1100(\\*[0-9]{1,2})?,){0,4}gfx90a") {
            if let Ok(spec) = text.parse::<DeviceSpec>() {
                prop_assert_eq!(spec.to_string().parse::<DeviceSpec>(), Ok(spec));
            }
        }
    }
}
