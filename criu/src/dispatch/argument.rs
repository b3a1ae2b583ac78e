// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel arguments as they are written on the command line: `in:F.npy`, `out:f32[1024]`, `u32:7`.

use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Element types the command line knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
}

const NAMES: [(&str, Element, usize); 10] = [
    ("u8", Element::U8, 1),
    ("i8", Element::I8, 1),
    ("u16", Element::U16, 2),
    ("i16", Element::I16, 2),
    ("u32", Element::U32, 4),
    ("i32", Element::I32, 4),
    ("u64", Element::U64, 8),
    ("i64", Element::I64, 8),
    ("f32", Element::F32, 4),
    ("f64", Element::F64, 8),
];

impl Element {
    /// Size in bytes.
    pub fn bytes(self) -> usize {
        NAMES.iter().find(|(_, e, _)| *e == self).map_or(0, |(_, _, bytes)| *bytes)
    }

    fn by_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(n, _, _)| *n == name).map(|(_, e, _)| *e)
    }

    /// The little-endian bytes of a number written as text.
    fn encode(self, text: &str) -> Option<Vec<u8>> {
        fn to<T: FromStr, const N: usize>(text: &str, bytes: fn(T) -> [u8; N]) -> Option<Vec<u8>> {
            text.parse().ok().map(|v| bytes(v).to_vec())
        }
        match self {
            Self::U8 => to(text, u8::to_le_bytes),
            Self::I8 => to(text, i8::to_le_bytes),
            Self::U16 => to(text, u16::to_le_bytes),
            Self::I16 => to(text, i16::to_le_bytes),
            Self::U32 => to(text, u32::to_le_bytes),
            Self::I32 => to(text, i32::to_le_bytes),
            Self::U64 => to(text, u64::to_le_bytes),
            Self::I64 => to(text, i64::to_le_bytes),
            Self::F32 => to(text, f32::to_le_bytes),
            Self::F64 => to(text, f64::to_le_bytes),
        }
    }
}

/// One `--arg`.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A buffer filled from a file; `.npy` or raw bytes.
    Input(PathBuf),
    /// The same, meant to be saved afterwards.
    InOut(PathBuf),
    /// A zeroed buffer.
    Output(Element, usize),
    /// A number by value.
    Scalar(Vec<u8>),
}

/// Why an `--arg` or `--save` was not understood.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{text:?} is not an argument: write in:FILE, inout:FILE, out:TYPE[COUNT] or TYPE:NUMBER with a TYPE of u8, i8, \
     u16, i16, u32, i32, u64, i64, f32, f64 that the number fits"
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
                let count: usize = count.parse().ok().filter(|c| *c > 0)?;
                let element = Element::by_name(name)?;
                count.checked_mul(element.bytes())?;
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
            let value = |d: u8| (d as char).to_digit(16).map(|v| v as u8);
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
    fn wrong_arguments_are_refused_with_the_grammar() {
        for text in
            ["", "in:", "u8:256", "u32:-1", "f16:1", "out:f32", "out:f32[0]", "out:f32[99999999999999999999]"]
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
