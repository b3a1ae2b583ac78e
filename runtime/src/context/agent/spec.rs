// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which agents a runtime or a logical device uses: `0`, `GPU-<uuid>`, or a list of them, as in `ROCR_VISIBLE_DEVICES`;
//! the same behind `stasis://`, which alone means all.
//!
//! INVARIANT: a list selects exactly what it names, in its order; anything ambiguous, repeated or absent is refused
//! by name.

use std::env::VarError;

/// The environment variable that ROCm's own runtime reads.
pub const VISIBLE_VARIABLE: &str = "ROCR_VISIBLE_DEVICES";

/// What a list may begin with, as the URI of a logical device does. Nothing behind it means all agents.
pub const SCHEME: &str = "stasis://";

/// Why an agent list cannot be used. Indices count the list's items from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// An item is neither an index nor a uuid.
    #[error(
        "Agent list item {item} is {text:?}; expected an index such as 0, or GPU- and a unique id such as GPU-a1b2c3d4e5f60718"
    )]
    Syntax {
        /// Which item.
        item: usize,
        /// Its text.
        text: String,
    },
    /// No agent has that index or uuid.
    #[error("Agent list item {item} names {text:?}, which is not here; there are: {}", known.join(", "))]
    Unknown {
        /// Which item.
        item: usize,
        /// Its text.
        text: String,
        /// What there is.
        known: Vec<String>,
    },
    /// Several agents have that uuid, or one that starts so.
    #[error("Agent list item {item}, {text:?}, could be any of {}; write the whole unique id or the index", candidates.join(", "))]
    Ambiguous {
        /// Which item.
        item: usize,
        /// Its text.
        text: String,
        /// What it could be.
        candidates: Vec<String>,
    },
    /// An agent is named twice.
    #[error("Agent list item {item}, {text:?}, is the same agent as item {first}")]
    Duplicate {
        /// Which item.
        item: usize,
        /// Its text.
        text: String,
        /// The item that named it first.
        first: usize,
    },
    /// The list is empty.
    #[error("The agent list is empty: no agent is to be used")]
    Empty,
    /// The variable is not UTF-8.
    #[error("{VISIBLE_VARIABLE} is not UTF-8")]
    Encoding,
}

/// The uuid of a GPU: `GPU-` and its 64-bit unique id as 16 hexadecimal digits.
pub fn uuid(unique_id: u64) -> String {
    format!("GPU-{unique_id:016x}")
}

/// The list in [`VISIBLE_VARIABLE`], if it is set.
///
/// # Errors
/// [`SpecError::Encoding`].
pub fn from_env() -> Result<Option<String>, SpecError> {
    match std::env::var(VISIBLE_VARIABLE) {
        Ok(list) => Ok(Some(list)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(SpecError::Encoding),
    }
}

/// Whether a list is a URI that names no agent, and so means all.
pub fn is_all(list: &str) -> bool {
    list.trim() == SCHEME
}

/// The positions in `uuids` of the agents that `list` names, in the list's order; all of them for [`SCHEME`] alone.
///
/// A uuid may be cut short as long as one agent only starts with it.
///
/// # Errors
/// [`SpecError`], naming the item.
pub fn select(list: &str, uuids: &[String]) -> Result<Vec<usize>, SpecError> {
    if is_all(list) {
        return Ok((0..uuids.len()).collect());
    }
    let list = list.trim();
    let list = list.strip_prefix(SCHEME).unwrap_or(list);
    if list.is_empty() {
        return Err(SpecError::Empty);
    }
    let mut chosen: Vec<usize> = Vec::new();
    for (item, text) in list.split(',').map(str::trim).enumerate() {
        let at = find(item, text, uuids)?;
        if let Some(first) = chosen.iter().position(|&already| already == at) {
            return Err(SpecError::Duplicate { item, text: text.to_owned(), first });
        }
        chosen.push(at);
    }
    Ok(chosen)
}

fn find(item: usize, text: &str, uuids: &[String]) -> Result<usize, SpecError> {
    let unknown = || SpecError::Unknown {
        item,
        text: text.to_owned(),
        known: uuids.iter().enumerate().map(|(i, uuid)| format!("{i} ({uuid})")).collect(),
    };
    if !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit()) {
        return text.parse().ok().filter(|&at: &usize| at < uuids.len()).ok_or_else(unknown);
    }
    let digits = text.get(..4).filter(|prefix| prefix.eq_ignore_ascii_case("GPU-")).map(|_| &text[4..]);
    let Some(digits) = digits.filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_hexdigit())) else {
        return Err(SpecError::Syntax { item, text: text.to_owned() });
    };
    let wanted = format!("GPU-{}", digits.to_ascii_lowercase());
    let candidates: Vec<usize> = (0..uuids.len()).filter(|&at| uuids[at].starts_with(&wanted)).collect();
    match candidates[..] {
        [] => Err(unknown()),
        [at] => Ok(at),
        _ => Err(SpecError::Ambiguous {
            item,
            text: text.to_owned(),
            candidates: candidates.iter().map(|&at| format!("{at} ({})", uuids[at])).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uuids() -> Vec<String> {
        vec![uuid(0xa1b2_0000_0000_0001), uuid(0xa1b2_0000_0000_0002), uuid(7)]
    }

    #[test]
    fn select_takes_indices_and_uuids_in_order() {
        assert_eq!(select("2, 0", &uuids()), Ok(vec![2, 0]));
        assert_eq!(select("GPU-A1B2000000000002,GPU-0000", &uuids()), Ok(vec![1, 2]));
    }

    #[test]
    fn select_refuses_by_name() {
        assert!(
            matches!(select("GPU-a1b2", &uuids()), Err(SpecError::Ambiguous { item: 0, candidates, .. }) if candidates.len() == 2)
        );
        assert!(matches!(select("0,3", &uuids()), Err(SpecError::Unknown { item: 1, .. })));
        assert!(matches!(select("0,GPU-ff", &uuids()), Err(SpecError::Unknown { item: 1, .. })));
        assert!(matches!(
            select("0,GPU-0000000000000007,0", &uuids()),
            Err(SpecError::Duplicate { item: 2, first: 0, .. })
        ));
        assert!(matches!(select("2,GPU-07,", &uuids()), Err(SpecError::Unknown { item: 1, .. })));
        for bad in ["gfx1100", "GPU-", "GPU-xyz", "-1", "0,,1", "0;1", "ĞPU-1"] {
            assert!(matches!(select(bad, &uuids()), Err(SpecError::Syntax { .. })), "{bad}");
        }
        assert_eq!(select("", &uuids()), Err(SpecError::Empty));
    }

    #[test]
    fn uris_name_what_their_lists_name() {
        assert_eq!(select("stasis://2,0", &uuids()), Ok(vec![2, 0]));
        assert_eq!(select(" stasis://GPU-A1B2000000000002 ", &uuids()), Ok(vec![1]));
        assert_eq!(select("stasis://", &uuids()), Ok(vec![0, 1, 2]));
        for bad in ["stasis:///0", "stasis:0", "hsa://0", "stasis://0,", "stasis://stasis://0"] {
            assert!(matches!(select(bad, &uuids()), Err(SpecError::Syntax { .. })), "{bad}");
        }
        assert!(matches!(select("stasis://1,1", &uuids()), Err(SpecError::Duplicate { item: 1, .. })));
        assert!(is_all("stasis:// ") && !is_all("stasis://0") && !is_all(""));
    }

    #[test]
    fn identical_uuids_are_ambiguous() {
        let twins = vec![uuid(1), uuid(1)];
        assert!(matches!(select("GPU-0000000000000001", &twins), Err(SpecError::Ambiguous { .. })));
        assert_eq!(select("1", &twins), Ok(vec![1]));
    }

    proptest! {
        #[test]
        fn select_never_panics_and_gives_distinct_agents(list in "[0-9GPUgpu,a-f -]{0,40}|.{0,20}") {
            if let Ok(chosen) = select(&list, &uuids()) {
                let distinct: std::collections::BTreeSet<_> = chosen.iter().collect();
                prop_assert_eq!(distinct.len(), chosen.len());
                prop_assert!(chosen.iter().all(|&at| at < 3));
            }
        }
    }
}
