// SPDX-License-Identifier: MIT OR Apache-2.0
//! One conversion of C's printf, by the C library, which knows how floating-point numbers are printed.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};

use nix::libc;

/// Bytes that a conversion gives at most: [`MOST`] digits behind the point, and those of the largest number before it.
const BYTES: usize = MOST as usize + 512;
/// The widest field, and the most digits.
pub const MOST: u32 = 4096;

/// A conversion without its length modifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Which of `-+ #0` it has, as bits in that order.
    flags: u8,
    width: Option<u32>,
    precision: Option<u32>,
}

/// The characters of the flags.
const FLAGS: &[u8; 5] = b"-+ #0";

impl Conversion {
    /// One without flags.
    pub const PLAIN: Self = Self { flags: 0, width: None, precision: None };

    /// Adds a flag; `false` if the character is none.
    pub fn add_flag(&mut self, character: u8) -> bool {
        let found = FLAGS.iter().position(|flag| *flag == character);
        self.flags |= found.map_or(0, |bit| 1 << bit);
        found.is_some()
    }

    /// Sets the width; a negative one is a flag and a width.
    pub fn set_width(&mut self, width: i64) {
        if width < 0 {
            self.add_flag(b'-');
        }
        self.width = Some(bounded(width.unsigned_abs()));
    }

    /// Sets the precision; a negative one is none.
    pub fn set_precision(&mut self, precision: i64) {
        self.precision = u64::try_from(precision).ok().map(bounded);
    }

    /// The precision.
    pub fn precision(self) -> Option<u32> {
        self.precision
    }

    /// A signed number.
    pub fn signed(self, value: i64) -> Vec<u8> {
        // SAFETY: the conversion takes one `long long`.
        self.print("lld", |to, bytes, format| unsafe { libc::snprintf(to, bytes, format, value) })
    }

    /// A pointer, as the GNU C library prints it.
    pub fn pointer(mut self, value: u64) -> Vec<u8> {
        if value == 0 {
            return self.bytes(b"(nil)");
        }
        self.add_flag(b'#');
        self.unsigned(Radix::Hex, value)
    }

    /// An unsigned number, by `o`, `u`, `x` or `X`.
    pub fn unsigned(self, by: Radix, value: u64) -> Vec<u8> {
        // SAFETY: the conversion takes one `unsigned long long`.
        self.print(by.letters(), |to, bytes, format| unsafe { libc::snprintf(to, bytes, format, value) })
    }

    /// A floating-point number, by `f`, `e`, `g`, `a` or their capitals.
    pub fn float(self, by: Form, value: f64) -> Vec<u8> {
        // SAFETY: the conversion takes one `double`.
        self.print(by.letter(), |to, bytes, format| unsafe { libc::snprintf(to, bytes, format, value) })
    }

    /// Bytes, in a field of the width.
    pub fn bytes(self, value: &[u8]) -> Vec<u8> {
        let room = (self.width.unwrap_or(0) as usize).saturating_sub(value.len());
        let padding = vec![b' '; room];
        if self.flags & 1 != 0 { [value, &padding].concat() } else { [&padding, value].concat() }
    }

    /// Has the C library print with this conversion; `print` is given room, its size and the format.
    fn print(self, letters: &str, print: impl Fn(*mut c_char, usize, *const c_char) -> c_int) -> Vec<u8> {
        let flags = FLAGS.iter().enumerate().filter(|(bit, _)| self.flags & 1 << bit != 0);
        let flags: String = flags.map(|(_, flag)| char::from(*flag)).collect();
        let width = self.width.map_or(String::new(), |width| width.to_string());
        let precision = self.precision.map_or(String::new(), |digits| format!(".{digits}"));
        let Ok(format) = CString::new(format!("%{flags}{width}{precision}{letters}")) else {
            return Vec::new();
        };
        let mut text = vec![0u8; BYTES];
        let length = print(text.as_mut_ptr().cast(), text.len(), format.as_ptr());
        // What did not fit was cut off, and a 0 put behind what did.
        text.truncate(usize::try_from(length).unwrap_or(0).min(BYTES - 1));
        text
    }
}

fn bounded(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(MOST).min(MOST)
}

/// How an unsigned number is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Radix {
    Octal,
    Decimal,
    Hex,
    HexCapitals,
}

impl Radix {
    const fn letters(self) -> &'static str {
        match self {
            Self::Octal => "llo",
            Self::Decimal => "llu",
            Self::Hex => "llx",
            Self::HexCapitals => "llX",
        }
    }
}

/// How a floating-point number is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Fixed { capitals: bool },
    Exponent { capitals: bool },
    General { capitals: bool },
    Hex { capitals: bool },
}

impl Form {
    const fn letter(self) -> &'static str {
        match self {
            Self::Fixed { capitals: false } => "f",
            Self::Fixed { capitals: true } => "F",
            Self::Exponent { capitals: false } => "e",
            Self::Exponent { capitals: true } => "E",
            Self::General { capitals: false } => "g",
            Self::General { capitals: true } => "G",
            Self::Hex { capitals: false } => "a",
            Self::Hex { capitals: true } => "A",
        }
    }
}
