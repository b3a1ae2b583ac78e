// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of the topology file that can be written in several ways: sizes, 64-bit numbers, bandwidths, PCI slots.
//!
//! INVARIANT: what cannot be read exactly is refused with what could have been written; nothing is rounded.

use std::fmt;

use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// Distance of a NUMA node to itself and, if nothing is said, to another (`LOCAL_DISTANCE`, `REMOTE_DISTANCE`).
pub(super) const DISTANCES: (u32, u32) = (10, 20);

/// A size: a number of bytes, or text with KiB, MiB, GiB or TiB behind a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes(pub u64);

/// A 64-bit number; text in hexadecimal for those that TOML's signed integers cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wide(pub u64);

/// How much of the VRAM the CPU and PCIe peers see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bar {
    /// All of it.
    Large,
    /// The 256 MiB of a board without resizable BAR.
    Small,
    /// So many bytes.
    Visible(u64),
}

/// Least and most MB/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bandwidth {
    pub min: u32,
    pub max: u32,
}

/// A PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub domain: u32,
    /// `bus << 8 | device << 3 | function`.
    pub location_id: u32,
}

impl Bytes {
    fn parse(text: &str) -> Option<u64> {
        let at = text.find(|digit: char| !digit.is_ascii_digit())?;
        let (number, unit) = text.split_at(at);
        let shift = match unit.trim_start() {
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            "TiB" => 40,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(1 << shift)
    }
}

impl Slot {
    fn parse(text: &str) -> Option<Self> {
        let (front, function) = text.split_once('.')?;
        let mut parts = front.rsplit(':');
        let (device, bus) = (hex(parts.next()?, 2)?, hex(parts.next()?, 2)?);
        let domain = parts.next().map_or(Some(0), |domain| hex(domain, 4))?;
        let function = hex(function, 1)?;
        let whole = parts.next().is_none() && device < 32 && function < 8;
        whole.then_some(Self { domain, location_id: bus << 8 | device << 3 | function })
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.location_id;
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, id >> 8, id >> 3 & 31, id & 7)
    }
}

/// Exactly so many hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u32> {
    let plain = text.len() == digits && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok())?
}

/// Takes an integer as it is and text through a function.
struct NumberOrText<F> {
    expecting: &'static str,
    parse: F,
}

impl<F: Fn(&str) -> Option<u64>> Visitor<'_> for NumberOrText<F> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
        u64::try_from(value).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        (self.parse)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor =
            NumberOrText { expecting: "a number of bytes, or a size such as \"24GiB\"", parse: Self::parse };
        deserializer.deserialize_any(visitor).map(Self)
    }
}

impl<'de> Deserialize<'de> for Wide {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| {
            let digits = text.strip_prefix("0x")?;
            let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok())?
        };
        let expecting = "a number from 0, or one of up to 64 bits such as \"0xa1b2c3d4e5f60718\"";
        deserializer.deserialize_any(NumberOrText { expecting, parse }).map(Self)
    }
}

impl<'de> Deserialize<'de> for Bar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Sizes that no VRAM has stand for the words.
        let parse = |text: &str| match text {
            "large" => Some(u64::MAX),
            "small" => Some(u64::MAX - 1),
            text => Bytes::parse(text),
        };
        let expecting = "\"large\", \"small\", or how much memory is visible, such as \"512MiB\"";
        deserializer.deserialize_any(NumberOrText { expecting, parse }).map(|bytes| match bytes {
            u64::MAX => Self::Large,
            bytes if bytes == u64::MAX - 1 => Self::Small,
            bytes => Self::Visible(bytes),
        })
    }
}

impl<'de> Deserialize<'de> for Slot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let expected = "a PCI address such as \"0000:03:00.0\"";
        Self::parse(&text).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &expected))
    }
}

impl<'de> Deserialize<'de> for Bandwidth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrTwo;

        impl<'de> Visitor<'de> for OneOrTwo {
            type Value = Bandwidth;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("MB/s, or [least, most] MB/s")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Bandwidth, E> {
                let both = u32::try_from(value);
                let both = both.map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))?;
                Ok(Bandwidth { min: both, max: both })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Bandwidth, A::Error> {
                let mut next = |at| {
                    let number = numbers.next_element::<u32>()?;
                    number.ok_or_else(|| A::Error::invalid_length(at, &"[least, most] MB/s"))
                };
                let both = Bandwidth { min: next(0)?, max: next(1)? };
                match numbers.next_element::<u32>()? {
                    None => Ok(both),
                    Some(_) => Err(A::Error::invalid_length(3, &self)),
                }
            }
        }

        deserializer.deserialize_any(OneOrTwo)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct One<T> {
        v: T,
    }

    fn read<T: DeserializeOwned>(value: &str) -> Result<T, String> {
        let text = format!("v = {value}");
        toml::from_str::<One<T>>(&text).map(|one| one.v).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_are_numbers_or_have_a_unit() {
        assert_eq!(read("25753026560"), Ok(Bytes(25_753_026_560)));
        assert_eq!(read("\"24GiB\""), Ok(Bytes(24 << 30)));
        assert_eq!(read("\"512 MiB\""), Ok(Bytes(512 << 20)));
        for bad in ["-1", "\"24GB\"", "\"GiB\"", "\"24\"", "\"-1GiB\"", "\"99999999999TiB\"", "1.5", "true"] {
            let error = read::<Bytes>(bad).unwrap_err();
            assert!(error.contains("a size such as \"24GiB\""), "{error}");
        }
    }

    #[test]
    fn wide_numbers_may_be_hexadecimal_text() {
        assert_eq!(read("7"), Ok(Wide(7)));
        assert_eq!(read("\"0xffffffffffffffff\""), Ok(Wide(u64::MAX)));
        for bad in ["\"7\"", "\"0x\"", "\"0x+7\"", "\"0x10000000000000000\"", "-7"] {
            assert!(read::<Wide>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bars_are_words_or_sizes() {
        assert_eq!(read("\"large\""), Ok(Bar::Large));
        assert_eq!(read("\"small\""), Ok(Bar::Small));
        assert_eq!(read("\"512MiB\""), Ok(Bar::Visible(512 << 20)));
        assert!(read::<Bar>("\"huge\"").unwrap_err().contains("\"small\""));
    }

    #[test]
    fn slots_have_an_optional_domain() {
        let slot = Slot { domain: 0x10, location_id: 0xc3f9 };
        assert_eq!(read("\"0010:c3:1f.1\""), Ok(slot));
        assert_eq!(slot.to_string(), "0010:c3:1f.1");
        assert_eq!(read("\"03:00.0\""), Ok(Slot { domain: 0, location_id: 0x300 }));
        for bad in ["03:20.0", "03:00.8", "3:00.0", "03:00", "1:0000:03:00.0", "+3:00.0", ""] {
            assert!(read::<Slot>(&format!("\"{bad}\"")).unwrap_err().contains("0000:03:00.0"), "{bad}");
        }
    }

    #[test]
    fn bandwidths_are_one_number_or_two() {
        assert_eq!(read("50000"), Ok(Bandwidth { min: 50_000, max: 50_000 }));
        assert_eq!(read("[312, 32000]"), Ok(Bandwidth { min: 312, max: 32_000 }));
        for bad in ["[]", "[1]", "[1, 2, 3]", "-1", "\"1\""] {
            assert!(read::<Bandwidth>(bad).unwrap_err().contains("MB/s"), "{bad}");
        }
    }
}
