// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--map OLD=NEW`: which GPU here an agent is to take.
//!
//! INVARIANT: a map names each agent and each GPU at most once; whatever is unknown or ambiguous is refused by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::context::agent::spec;
use crate::context::agent::spec::SpecError;

/// An agent of the process and the GPU here that it is to take, each by position or uuid as `stasis agents` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The agent: its index in the process, or its uuid.
    pub old: String,
    /// The GPU: its position among those here, or its uuid.
    pub new: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.old, self.new)
    }
}

/// Why a map of agents cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// It is not `OLD=NEW`.
    #[error(
        "{text:?} maps no agent; expected OLD=NEW, each an index such as 0, or GPU- and a unique id such as \
         GPU-a1b2c3d4e5f60718"
    )]
    Syntax {
        /// The text.
        text: String,
    },
    /// The process has no such agent.
    #[error("The map {place} names {:?}, which is no agent of the process; it has: {}", place.old, known.join(", "))]
    UnknownOld {
        /// The entry.
        place: Place,
        /// The process's agents.
        known: Vec<String>,
    },
    /// There is no such GPU here.
    #[error("The map {place} names {:?}, which is not here; there are: {}", place.new, known.join(", "))]
    UnknownNew {
        /// The entry.
        place: Place,
        /// The GPUs here.
        known: Vec<String>,
    },
    /// A uuid that was cut short, or that several GPUs have.
    #[error("The map {place} names {text:?}, which could be any of: {}", candidates.join(", "))]
    Ambiguous {
        /// The entry.
        place: Place,
        /// The name.
        text: String,
        /// What it could be.
        candidates: Vec<String>,
    },
    /// An agent is mapped twice.
    #[error("The map {place} places an agent that {first} has placed already")]
    RepeatedOld {
        /// The entry.
        place: Place,
        /// The one before.
        first: Place,
    },
    /// A GPU is given twice.
    #[error("The map {place} gives a GPU that {first} has given already")]
    RepeatedNew {
        /// The entry.
        place: Place,
        /// The one before.
        first: Place,
    },
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let syntax = || PlaceError::Syntax { text: text.to_owned() };
        let (old, new) = text.split_once('=').ok_or_else(syntax)?;
        let (old, new) = (old.trim(), new.trim());
        if old.is_empty() || new.is_empty() || new.contains('=') {
            return Err(syntax());
        }
        Ok(Self { old: old.to_owned(), new: new.to_owned() })
    }
}

enum Side {
    Old,
    New,
}

impl Place {
    /// The position that one side of the entry names among `uuids`.
    fn find(&self, side: &Side, uuids: &[String]) -> Result<usize, PlaceError> {
        let text = match side {
            Side::Old => &self.old,
            Side::New => &self.new,
        };
        let place = || self.clone();
        let found = spec::select(text, uuids).map_err(|error| match (error, side) {
            (SpecError::Unknown { known, .. }, Side::Old) => PlaceError::UnknownOld { place: place(), known },
            (SpecError::Unknown { known, .. }, Side::New) => PlaceError::UnknownNew { place: place(), known },
            (SpecError::Ambiguous { text, candidates, .. }, _) => {
                PlaceError::Ambiguous { place: place(), text, candidates }
            }
            _ => PlaceError::Syntax { text: self.to_string() },
        })?;
        match found[..] {
            [at] => Ok(at),
            _ => Err(PlaceError::Syntax { text: self.to_string() }),
        }
    }
}

/// For each agent of `old`, the position in `new` that a map gives it, if it does.
///
/// # Errors
/// [`PlaceError`], naming the entry.
pub(super) fn resolve(
    places: &[Place],
    old: &[String],
    new: &[String],
) -> Result<Vec<Option<usize>>, PlaceError> {
    let mut taken: Vec<(usize, usize, &Place)> = Vec::new();
    for place in places {
        let (agent, gpu) = (place.find(&Side::Old, old)?, place.find(&Side::New, new)?);
        if let Some((_, _, first)) = taken.iter().find(|(other, _, _)| *other == agent) {
            return Err(PlaceError::RepeatedOld { place: place.clone(), first: (*first).clone() });
        }
        if let Some((_, _, first)) = taken.iter().find(|(_, other, _)| *other == gpu) {
            return Err(PlaceError::RepeatedNew { place: place.clone(), first: (*first).clone() });
        }
        taken.push((agent, gpu, place));
    }
    let gpu = |agent| taken.iter().find(|(other, _, _)| *other == agent).map(|(_, gpu, _)| *gpu);
    Ok((0..old.len()).map(gpu).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(map: &[&str]) -> Result<Vec<Option<usize>>, PlaceError> {
        let places = map.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>()?;
        let uuids = |ids: &[u64]| ids.iter().map(|&id| spec::uuid(id)).collect::<Vec<_>>();
        resolve(&places, &uuids(&[0xa1, 0xa2]), &uuids(&[0xb1, 0xb2, 0xb3]))
    }

    #[test]
    fn agents_are_placed_by_position_and_by_uuid() {
        assert_eq!(resolved(&[]), Ok(vec![None, None]));
        assert_eq!(resolved(&["1=0"]), Ok(vec![None, Some(0)]));
        assert_eq!(
            resolved(&["GPU-00000000000000a2=GPU-00000000000000B3", "0=1"]),
            Ok(vec![Some(1), Some(2)])
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        assert!(matches!(resolved(&["2=0"]), Err(PlaceError::UnknownOld { known, .. }) if known.len() == 2));
        assert!(matches!(resolved(&["GPU-00000000000000b1=0"]), Err(PlaceError::UnknownOld { .. })));
        assert!(matches!(resolved(&["0=3"]), Err(PlaceError::UnknownNew { known, .. }) if known.len() == 3));
        assert!(matches!(resolved(&["0=GPU-00000000000000a1"]), Err(PlaceError::UnknownNew { .. })));
        assert!(matches!(resolved(&["0=1", "1=1"]), Err(PlaceError::RepeatedNew { .. })));
        assert!(matches!(
            resolved(&["0=1", "GPU-00000000000000a1=2"]),
            Err(PlaceError::RepeatedOld { first, .. }) if first.to_string() == "0=1"
        ));
        assert!(matches!(
            resolved(&["0=GPU-00"]),
            Err(PlaceError::Ambiguous { candidates, .. }) if candidates.len() == 3
        ));
        for bad in ["", "0", "=", "0=", "=0", "0=1=2", "0,1=2", "0=1,2", "gpu=1", "0=-1"] {
            assert!(matches!(resolved(&[bad]), Err(PlaceError::Syntax { .. })), "{bad}");
        }
    }

    #[test]
    fn messages_name_the_entry() {
        let text = resolved(&["0=1", "1=1"]).unwrap_err().to_string();
        assert_eq!(text, "The map 1=1 gives a GPU that 0=1 has given already");
        let text = resolved(&["7=1"]).unwrap_err().to_string();
        assert!(text.starts_with("The map 7=1 names \"7\", which is no agent of the process"), "{text}");
    }
}
