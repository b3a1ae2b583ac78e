// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON files that end with their own hash: a last member `blake3`, of all the text before it.
//!
//! It finds damage. Whoever can write the file can write the hash, too.

use serde::Serialize;

const BEFORE: &str = ",\n  \"blake3\": \"";
const AFTER: &str = "\"\n}\n";
/// Digits of a hash.
const DIGITS: usize = 64;
const ENDING: usize = BEFORE.len() + DIGITS + AFTER.len();

fn ending(text: &[u8]) -> String {
    format!("{BEFORE}{}{AFTER}", blake3::hash(text).to_hex())
}

/// The text of a struct with at least one field.
///
/// # Errors
/// As for `serde_json::to_vec`.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut text = serde_json::to_vec_pretty(value)?;
    // The closing brace, on a line of its own.
    text.truncate(text.len().saturating_sub("\n}".len()));
    let ending = ending(&text);
    text.extend_from_slice(ending.as_bytes());
    Ok(text)
}

/// Whether a text ends with the hash of what is before it.
pub(super) fn fits(text: &[u8]) -> bool {
    let Some(at) = text.len().checked_sub(ENDING) else { return false };
    let (before, end) = text.split_at(at);
    ending(before).as_bytes() == end
}

/// Whether a text has a hash at its end, right or wrong.
pub(super) fn ends_with_one(text: &[u8]) -> bool {
    text.len().checked_sub(ENDING).is_some_and(|at| text[at..].starts_with(BEFORE.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_json_and_every_flipped_bit_is_found() {
        #[derive(Serialize)]
        struct Value {
            number: u32,
            list: Vec<&'static str>,
        }
        let text = encode(&Value { number: 7, list: vec!["a", "b"] }).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((&value["number"], &value["list"][1]), (&7.into(), &"b".into()));
        assert_eq!(value["blake3"].as_str().map(str::len), Some(DIGITS));
        assert!(fits(&text));
        for bit in 0..text.len() * 8 {
            let mut other = text.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!fits(&other), "bit {bit}");
        }
        assert!(!fits(&text[..text.len() - 1]) && !fits(b"{}") && !fits(b""));
    }
}
