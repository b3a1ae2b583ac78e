// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one text format of topology files: lines of `key value`, numbers unsigned and decimal.
//!
//! INVARIANT: any text either parses or gives an error that names file, line and key.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::TopologyError;

/// No topology file is larger (the kernel gives at most a page).
const MAX_FILE_BYTES: usize = 1 << 20;

/// One line of a properties file.
#[derive(Debug)]
pub(super) struct Line<'a> {
    file: &'a str,
    number: usize,
    /// The word before the first blank.
    pub key: &'a str,
    /// The rest.
    pub value: &'a str,
}

impl Line<'_> {
    /// Stores the value in `slot`.
    pub fn number<T: FromStr>(&self, slot: &mut T) -> Result<(), TopologyError> {
        let digits = !self.value.is_empty() && self.value.bytes().all(|byte| byte.is_ascii_digit());
        match self.value.parse() {
            Ok(value) if digits => {
                *slot = value;
                Ok(())
            }
            _ => Err(self.bad_value(std::any::type_name::<T>())),
        }
    }

    /// Stores the value in an optional `slot`.
    pub fn optional<T: FromStr + Default>(&self, slot: &mut Option<T>) -> Result<(), TopologyError> {
        let mut value = T::default();
        self.number(&mut value)?;
        *slot = Some(value);
        Ok(())
    }

    /// Stores a comma-separated list of 0 and 1; the kernel leaves a trailing comma.
    pub fn flags(&self, slot: &mut Vec<bool>) -> Result<(), TopologyError> {
        let list = self.value.strip_suffix(',').unwrap_or(self.value);
        let parse = |flag: &str| match flag.trim() {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.bad_value("list of 0 and 1")),
        };
        *slot = match list.trim() {
            "" => Vec::new(),
            list => list.split(',').map(parse).collect::<Result<_, _>>()?,
        };
        Ok(())
    }

    fn bad_value(&self, wanted: &'static str) -> TopologyError {
        TopologyError::Value {
            file: self.file.to_owned(),
            line: self.number,
            key: self.key.to_owned(),
            value: shorten(self.value),
            wanted,
        }
    }
}

/// Calls `each` for every line of `text`; a repeated key is an error.
pub(super) fn for_each_line<'a>(
    file: &'a str,
    text: &'a str,
    mut each: impl FnMut(&Line<'a>) -> Result<(), TopologyError>,
) -> Result<(), TopologyError> {
    if text.len() > MAX_FILE_BYTES {
        return Err(TopologyError::TooLarge {
            file: file.to_owned(),
            bytes: text.len(),
            limit: MAX_FILE_BYTES,
        });
    }
    let mut seen = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        let Some((key, value)) = line.split_once([' ', '\t']) else {
            return Err(TopologyError::Line { file: file.to_owned(), line: number, text: shorten(line) });
        };
        if !seen.insert(key) {
            return Err(TopologyError::Repeated { file: file.to_owned(), line: number, key: shorten(key) });
        }
        each(&Line { file, number, key, value: value.trim() })?;
    }
    Ok(())
}

/// The single number of a file such as `gpu_id`.
pub(super) fn single_number(file: &str, text: &str) -> Result<u32, TopologyError> {
    let mut value = 0;
    Line { file, number: 1, key: file.rsplit('/').next().unwrap_or(file), value: text.trim() }
        .number(&mut value)
        .map(|()| value)
}

/// The beginning of an untrusted text, for an error message.
pub(super) fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
