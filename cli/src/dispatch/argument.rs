// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel arguments as they are written on the command line: `in:F.npy`, `out:f32[1024]`, `u32:7`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use super::element::Element;

/// One `--arg`.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A buffer filled from a file; `.npy` or raw bytes.
    Input(PathBuf),
    /// The same, meant to be saved afterwards.
    InOut(PathBuf),
    /// A zeroed buffer.
    Output(Element, u64),
    /// A number by value.
    Scalar(Vec<u8>),
}

impl Argument {
    /// Whether it is a buffer.
    pub fn is_buffer(&self) -> bool {
        !matches!(self, Self::Scalar(_))
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(path) => write!(f, "in:{}", path.display()),
            Self::InOut(path) => write!(f, "inout:{}", path.display()),
            Self::Output(element, count) => write!(f, "out:{}[{count}]", element.name()),
            Self::Scalar(bytes) => write!(f, "a number of {} bytes", bytes.len()),
        }
    }
}

/// Why an `--arg` or `--save` was not understood.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{text:?} is not an argument: write in:FILE, inout:FILE, out:TYPE[COUNT] or TYPE:NUMBER with a TYPE of {} that the \
     number fits",
    Element::names()
)]
pub struct ArgumentError {
    text: String,
}

impl FromStr for Argument {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once(':').and_then(|(kind, rest)| match kind {
            "in" if !rest.is_empty() => Some(Self::Input(rest.into())),
            "inout" if !rest.is_empty() => Some(Self::InOut(rest.into())),
            "out" => {
                let (name, count) = rest.strip_suffix(']')?.split_once('[')?;
                let count: u64 = count.parse().ok().filter(|c| *c > 0)?;
                let element = Element::by_name(name)?;
                count.checked_mul(element.bytes() as u64)?;
                Some(Self::Output(element, count))
            }
            name => Some(Self::Scalar(Element::by_name(name)?.encode(rest)?)),
        });
        parsed.ok_or_else(|| ArgumentError { text: text.into() })
    }
}

/// `--save K=FILE`: which argument's buffer goes where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// Index of the argument, from 0.
    pub argument: usize,
    /// Target; `.npy` or raw bytes.
    pub path: PathBuf,
}

impl FromStr for Save {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once('=')
            .and_then(|(k, f)| Some(Self { argument: k.parse().ok()?, path: f.into() }))
            .filter(|s| !s.path.as_os_str().is_empty())
            .ok_or_else(|| format!("{text:?} is not K=FILE, with K the number of an --arg counted from 0"))
    }
}

/// `X,Y,Z`, `X,Y` or `X`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent3(pub [u32; 3]);

impl FromStr for Extent3 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut out = [1; 3];
        let parts: Vec<_> = text.split(',').collect();
        if parts.len() > 3 {
            return Err(format!("{text:?} has more than three dimensions"));
        }
        for (slot, part) in out.iter_mut().zip(parts) {
            *slot = part.trim().parse().map_err(|_| format!("{part:?} in {text:?} is not a number"))?;
        }
        Ok(Self(out))
    }
}

impl Extent3 {
    /// Work-items of so many workgroups of `block` work-items.
    pub fn times(self, block: Self) -> Result<Self, String> {
        let mut items = self.0;
        for (groups, size) in items.iter_mut().zip(block.0) {
            let product = groups.checked_mul(size);
            *groups = product.ok_or_else(|| {
                format!("{groups} workgroups of {size} work-items are more work-items than a grid has")
            })?;
        }
        Ok(Self(items))
    }
}

/// A raw kernarg block: hex digits, in which `{K}` stands for the address of the K-th `--arg` buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawKernarg(pub Vec<RawPart>);

/// A piece of a raw kernarg block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawPart {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Eight bytes: the address of this argument's buffer.
    Address(usize),
}

impl FromStr for RawKernarg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad =
            || format!("{text:?} is not a kernarg block: write hex digits, and {{K}} for a buffer's address");
        let mut parts = Vec::new();
        for (n, piece) in text.split('{').enumerate() {
            let hex = if n == 0 {
                piece
            } else {
                let (index, rest) = piece.split_once('}').ok_or_else(bad)?;
                parts.push(RawPart::Address(index.parse().map_err(|_| bad())?));
                rest
            };
            let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
            let value = |d: u8| (d as char).to_digit(16).map(|v| v.to_le_bytes()[0]);
            let bytes: Option<Vec<u8>> = digits
                .chunks(2)
                .map(|pair| match pair {
                    [high, low] => Some(value(*high)? << 4 | value(*low)?),
                    _ => None,
                })
                .collect();
            let bytes = bytes.ok_or_else(bad)?;
            if !bytes.is_empty() {
                parts.push(RawPart::Bytes(bytes));
            }
        }
        Ok(Self(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_parse_as_documented() {
        assert_eq!("in:a.npy".parse(), Ok(Argument::Input("a.npy".into())));
        assert_eq!("inout:a:b.bin".parse(), Ok(Argument::InOut("a:b.bin".into())));
        assert_eq!("out:f32[1024]".parse(), Ok(Argument::Output(Element::F32, 1024)));
        assert_eq!("i64:-1".parse(), Ok(Argument::Scalar(vec![0xff; 8])));
        assert_eq!("f32:1.5".parse(), Ok(Argument::Scalar(1.5f32.to_le_bytes().to_vec())));
    }

    #[test]
    fn groups_times_block_is_the_grid_or_too_much() {
        let (groups, block) = (Extent3([3, 2, 1]), Extent3([64, 4, 1]));
        assert_eq!(groups.times(block), Ok(Extent3([192, 8, 1])));
        assert!(Extent3([1 << 26, 1, 1]).times(block).unwrap_err().contains("67108864 workgroups of 64"));
    }

    #[test]
    fn arguments_are_shown_as_they_are_written() {
        for text in ["in:a.npy", "inout:b:c", "out:bf16[7]"] {
            assert_eq!(text.parse::<Argument>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_arguments_are_refused_with_the_grammar() {
        for text in
            ["", "in:", "u8:256", "u32:-1", "f8:1", "out:f32", "out:f32[0]", "out:f32[99999999999999999999]"]
        {
            assert!(text.parse::<Argument>().unwrap_err().to_string().contains("out:TYPE[COUNT]"), "{text}");
        }
    }

    #[test]
    fn raw_kernarg_mixes_bytes_and_addresses() {
        let parts = "{1}00ff {0}".parse::<RawKernarg>().unwrap().0;
        assert_eq!(parts, [RawPart::Address(1), RawPart::Bytes(vec![0, 255]), RawPart::Address(0)]);
        assert!("0".parse::<RawKernarg>().is_err());
        assert!("{x}".parse::<RawKernarg>().is_err());
    }
}
