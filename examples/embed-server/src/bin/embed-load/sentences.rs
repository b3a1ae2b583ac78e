// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sentences of a file, and the deterministic choice of those for a request.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Sentences of a request at most.
const MOST: u64 = 4;

/// Reads a line each, or every string of a `.json` file.
///
/// # Errors
/// When the file cannot be read or has none.
pub fn read(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let mut all = Vec::new();
    if path.extension().is_some_and(|extension| extension == "json") {
        let value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
        strings(value, &mut all);
    } else {
        all.extend(text.lines().map(str::to_owned));
    }
    ensure!(!all.is_empty(), "{} has no sentences", path.display());
    Ok(all)
}

fn strings(value: Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) => into.push(text),
        Value::Array(values) => values.into_iter().for_each(|value| strings(value, into)),
        Value::Object(values) => values.into_iter().for_each(|(_, value)| strings(value, into)),
        _ => {}
    }
}

/// Which of `of` sentences a client's request number `n` asks for: one to four, the same ones in every run.
pub fn choice(client: u32, n: u64, of: usize) -> Vec<usize> {
    let mut state = u64::from(client) << 40 ^ n;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(state)
    };
    let count = 1 + next() % MOST;
    // CAST: usize and u64 are the same here.
    (0..count).map(|_| (next() % of as u64) as usize).collect()
}

/// SplitMix64's finish.
fn mixed(state: u64) -> u64 {
    let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_the_same_again_and_of_every_size_and_sentence() {
        let all: Vec<_> = (0..400).map(|n| choice(n % 8, u64::from(n), 10)).collect();

        assert_eq!(all, (0..400).map(|n| choice(n % 8, u64::from(n), 10)).collect::<Vec<_>>());
        for count in 1..=4 {
            assert!(all.iter().any(|choice| choice.len() == count));
        }
        assert!((0..10).all(|index| all.iter().flatten().any(|chosen| *chosen == index)));
        assert!(all.iter().flatten().all(|index| *index < 10));
    }

    #[test]
    fn files_are_lines_or_json() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            read(&path)
        };

        assert_eq!(write("a.txt", "one\n\ntwo\n").unwrap(), ["one", "", "two"]);
        assert_eq!(write("a.json", r#"{"x": ["one", 2], "y": "two"}"#).unwrap(), ["one", "two"]);
        assert!(write("empty.txt", "").is_err());
        assert!(write("bad.json", "one").is_err());
    }
}
