// SPDX-License-Identifier: MIT OR Apache-2.0
//! Element types: their names on the command line, their sizes, and what NumPy calls them.

use std::str::FromStr;

use anyhow::{Result, bail};
use half::{bf16, f16};
use npyz::{DType, Endianness, TypeChar};

/// Element types the command line knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

struct Row {
    name: &'static str,
    element: Element,
    bytes: usize,
    /// What a `.npy` file with such elements says.
    descr: &'static str,
}

const fn row(name: &'static str, element: Element, bytes: usize, descr: &'static str) -> Row {
    Row { name, element, bytes, descr }
}

const ROWS: [Row; 13] = [
    row("bool", Element::Bool, 1, "|b1"),
    row("u8", Element::U8, 1, "|u1"),
    row("i8", Element::I8, 1, "|i1"),
    row("u16", Element::U16, 2, "<u2"),
    row("i16", Element::I16, 2, "<i2"),
    row("u32", Element::U32, 4, "<u4"),
    row("i32", Element::I32, 4, "<i4"),
    row("u64", Element::U64, 8, "<u8"),
    row("i64", Element::I64, 8, "<i8"),
    row("f16", Element::F16, 2, "<f2"),
    // NumPy has no such type: its bits.
    row("bf16", Element::Bf16, 2, "<u2"),
    row("f32", Element::F32, 4, "<f4"),
    row("f64", Element::F64, 8, "<f8"),
];

impl Element {
    fn row(self) -> &'static Row {
        // INVARIANT: in the order of the variants, which a test checks.
        &ROWS[self as usize]
    }

    /// Size in bytes.
    pub fn bytes(self) -> usize {
        self.row().bytes
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// NumPy's name of it, byte order included.
    pub fn descr(self) -> &'static str {
        self.row().descr
    }

    /// The type that the command line calls `name`.
    pub fn by_name(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.element)
    }

    /// All names.
    pub fn names() -> String {
        ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")
    }

    /// The type of a `.npy` file's elements.
    ///
    /// # Errors
    /// For types that no kernel argument has, and for big-endian ones.
    pub fn of_numpy(dtype: &DType) -> Result<Self> {
        let DType::Plain(plain) = dtype else { bail!("structured types are not kernel arguments") };
        let element = match (plain.type_char(), plain.size_field()) {
            (TypeChar::Bool, 1) => Self::Bool,
            (TypeChar::Uint, 1) => Self::U8,
            (TypeChar::Int, 1) => Self::I8,
            (TypeChar::Uint, 2) => Self::U16,
            (TypeChar::Int, 2) => Self::I16,
            (TypeChar::Uint, 4) => Self::U32,
            (TypeChar::Int, 4) => Self::I32,
            (TypeChar::Uint, 8) => Self::U64,
            (TypeChar::Int, 8) => Self::I64,
            (TypeChar::Float, 2) => Self::F16,
            (TypeChar::Float, 4) => Self::F32,
            (TypeChar::Float, 8) => Self::F64,
            // What NumPy makes of a bfloat16 that another package has taught it.
            (TypeChar::RawData, 2) => Self::Bf16,
            _ => bail!(
                "the types known are b1, u1, i1, u2, i2, u4, i4, u8, i8, f2, f4, f8, and V2 for bfloat16; pass others \
                 as raw bytes (.bin)"
            ),
        };
        if plain.size_field() > 1 && matches!(plain.endianness(), Endianness::Big) {
            bail!("big-endian data; convert it with astype");
        }
        Ok(element)
    }

    /// The little-endian bytes of a number written as text; nothing if it does not fit.
    pub fn encode(self, text: &str) -> Option<Vec<u8>> {
        fn to<T: FromStr, const N: usize>(text: &str, bytes: fn(T) -> [u8; N]) -> Option<Vec<u8>> {
            text.parse().ok().map(|value| bytes(value).to_vec())
        }
        // What is finite as text must stay so.
        let float = || text.parse::<f64>().ok().filter(|value| value.is_finite() || !is_digits(text));
        let fits = |wide: f64, narrow: f64| narrow.is_finite() || !wide.is_finite();
        match self {
            Self::Bool => match text {
                "true" | "1" => Some(vec![1]),
                "false" | "0" => Some(vec![0]),
                _ => None,
            },
            Self::U8 => to(text, u8::to_le_bytes),
            Self::I8 => to(text, i8::to_le_bytes),
            Self::U16 => to(text, u16::to_le_bytes),
            Self::I16 => to(text, i16::to_le_bytes),
            Self::U32 => to(text, u32::to_le_bytes),
            Self::I32 => to(text, i32::to_le_bytes),
            Self::U64 => to(text, u64::to_le_bytes),
            Self::I64 => to(text, i64::to_le_bytes),
            Self::F16 => {
                let (wide, narrow) = float().map(|wide| (wide, f16::from_f64(wide)))?;
                fits(wide, narrow.into()).then(|| narrow.to_le_bytes().to_vec())
            }
            Self::Bf16 => {
                let (wide, narrow) = float().map(|wide| (wide, bf16::from_f64(wide)))?;
                fits(wide, narrow.into()).then(|| narrow.to_le_bytes().to_vec())
            }
            Self::F32 => {
                // Rounded once, not by way of f64.
                let (wide, narrow) = (float()?, text.parse::<f32>().ok()?);
                fits(wide, narrow.into()).then(|| narrow.to_le_bytes().to_vec())
            }
            Self::F64 => float().map(|value| value.to_le_bytes().to_vec()),
        }
    }
}

/// Whether a number is written with digits, rather than as `inf` or `nan`.
fn is_digits(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_variants() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!((row.element as usize, row.element.name()), (index, row.name));
            assert_eq!(Element::by_name(row.name), Some(row.element));
        }
    }

    #[test]
    fn numbers_become_the_bytes_of_their_type() {
        for (element, text, bytes) in [
            (Element::F16, "1.5", &0x3e00u16.to_le_bytes()[..]),
            (Element::F16, "-65504", &0xfbffu16.to_le_bytes()),
            (Element::F16, "inf", &0x7c00u16.to_le_bytes()),
            (Element::Bf16, "1.5", &0x3fc0u16.to_le_bytes()),
            (Element::Bf16, "-3e38", &0xff62u16.to_le_bytes()),
            (Element::Bool, "true", &[1]),
            (Element::Bool, "0", &[0]),
            (Element::I8, "-128", &[0x80]),
            (Element::F32, "0.1", &0.1f32.to_le_bytes()),
            (Element::F64, "-inf", &f64::NEG_INFINITY.to_le_bytes()),
        ] {
            assert_eq!(element.encode(text).as_deref(), Some(bytes), "{} {text}", element.name());
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_none() {
        for (element, text) in [
            (Element::F16, "65520"),
            (Element::Bf16, "3.4e38"),
            (Element::F32, "1e39"),
            (Element::F64, "1e999"),
            (Element::Bool, "2"),
            (Element::Bool, "yes"),
            (Element::U8, "256"),
            (Element::I8, "128"),
            (Element::F16, ""),
        ] {
            assert_eq!(element.encode(text), None, "{} {text}", element.name());
        }
    }
}
