// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device lists such as `gfx1100*2,gfx1201`, and why a description of devices is refused.
//!
//! INVARIANT: a list has one canonical form, every GPU by name, separated by commas, which is what clients ask for.

use queues::cwsr::GeometryError;
use thiserror::Error;

use super::chips::{Chip, known};
use super::description::Description;
use super::machine_error::MachineError;

/// GPUs one specification may name.
pub const MAX_SPEC_GPUS: usize = 16;

/// Why a device specification is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Nothing named.
    #[error("The device list is empty; name at least one of: {}", known())]
    Empty,
    /// An unknown chip name.
    #[error("Unknown device {name:?}; known are: {}", known())]
    Unknown {
        /// The name.
        name: String,
    },
    /// A count that is no number from 1.
    #[error("Bad count in {item:?}; write NAME*COUNT with COUNT from 1 to {MAX_SPEC_GPUS}")]
    BadCount {
        /// The list item.
        item: String,
    },
    /// Too many.
    #[error("{wanted} devices are listed, at most {MAX_SPEC_GPUS} can be")]
    TooMany {
        /// Devices listed.
        wanted: usize,
    },
    /// The chip table contradicts itself.
    #[error("No context save geometry for {name}")]
    Geometry {
        /// The chip.
        name: &'static str,
        /// Why.
        #[source]
        source: GeometryError,
    },
    /// A topology file that is no TOML, or has keys or types that none has.
    #[error("The topology file is not understood")]
    Toml(#[source] Box<toml::de::Error>),
    /// A topology file that describes no possible machine.
    #[error("The topology file describes no machine")]
    Machine(#[source] MachineError),
}

/// The canonical form of a list: every GPU by name, separated by commas.
///
/// # Errors
/// [`SpecError::Empty`], [`SpecError::Unknown`], [`SpecError::BadCount`], [`SpecError::TooMany`].
pub fn canonical_spec(spec: &str) -> Result<String, SpecError> {
    Ok(parse(spec)?.join(","))
}

/// The machine of a list: that many GPUs under one CPU node.
pub(super) fn description(spec: &str) -> Result<Description, SpecError> {
    Ok(Description::of_chips(parse(spec)?))
}

fn parse(spec: &str) -> Result<Vec<&'static str>, SpecError> {
    let mut chips = Vec::new();
    let mut wanted = 0usize;
    if spec.trim().is_empty() {
        return Err(SpecError::Empty);
    }
    for item in spec.split(',').map(str::trim) {
        let (name, count) = match item.split_once('*') {
            None => (item, 1),
            Some((name, count)) => {
                let count: Option<usize> = count.trim().parse().ok().filter(|count| *count > 0);
                (name.trim(), count.ok_or_else(|| SpecError::BadCount { item: item.to_owned() })?)
            }
        };
        let chip = Chip::by_name(name).ok_or_else(|| SpecError::Unknown { name: name.to_owned() })?;
        wanted = wanted.saturating_add(count);
        if wanted <= MAX_SPEC_GPUS {
            chips.extend(std::iter::repeat_n(chip.name, count));
        }
    }
    if wanted > MAX_SPEC_GPUS {
        return Err(SpecError::TooMany { wanted });
    }
    Ok(chips)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::GpuModel;
    use proptest::prelude::*;

    #[test]
    fn parse_spec_accepts_lists_and_counts() {
        assert_eq!(GpuModel::parse_spec("gfx1100").unwrap().len(), 1);
        assert_eq!(canonical_spec("gfx1100*2").unwrap(), "gfx1100,gfx1100");
        assert_eq!(canonical_spec(" gfx1100 , gfx1201 * 2 ").unwrap(), "gfx1100,gfx1201,gfx1201");
    }

    #[test]
    fn parse_spec_errors_name_the_culprit_and_the_known() {
        let unknown = GpuModel::parse_spec("gfx1100,gfx9000").unwrap_err().to_string();
        assert_eq!(
            unknown,
            "Unknown device \"gfx9000\"; known are: gfx1100, gfx1101, gfx1102, gfx1201, gfx90a, gfx942"
        );
        assert!(matches!(parse(""), Err(SpecError::Empty)));
        assert!(matches!(parse("gfx1100,"), Err(SpecError::Unknown { name }) if name.is_empty()));
        assert!(matches!(parse("gfx1100*0"), Err(SpecError::BadCount { .. })));
        assert!(matches!(parse("gfx1100*x"), Err(SpecError::BadCount { .. })));
        assert!(matches!(parse("gfx1100*17"), Err(SpecError::TooMany { wanted: 17 })));
        assert!(matches!(parse("gfx1100*99999999999"), Err(SpecError::TooMany { .. })));
    }

    proptest! {
        #[test]
        fn parse_spec_never_panics(spec in "[gfx1290a*, ]{0,40}") {
            let _ = GpuModel::parse_spec(&spec);
        }
    }
}
