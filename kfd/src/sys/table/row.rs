// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a row of the ioctl table says, and how to read it against the bytes of an argument.
//!
//! INVARIANT: a field that a shorter argument lacks reads as zero, as the drivers zero-extend arguments; no argument
//! makes these functions fail.

use super::super::number::ioc_size;

/// One ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The name that errors print, such as `CREATE_QUEUE`.
    pub name: &'static str,
    /// The number with the direction, the type byte and the size of the argument struct.
    pub command: u32,
    /// What the argument's fields name beside plain values.
    pub parts: &'static [Part],
}

/// What one field of an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Memory of the caller.
    Array(Array),
    /// A descriptor that the driver takes.
    Descriptor(Place),
    /// A descriptor that the driver makes.
    NewDescriptor(Place, CloseOnExec),
    /// Parts that apply only if the u32 field at `selector` is `value`. None of them is an operation itself.
    Operation {
        /// Offset of the field that names the operation.
        selector: usize,
        /// The operation.
        value: u32,
        /// Its parts.
        parts: &'static [Part],
    },
}

/// An array of the caller that an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Offset of the u64 field with its address.
    pub pointer: usize,
    /// How long it is.
    pub length: Length,
    /// Whether the driver writes it. The driver may read it in any case.
    pub writable: bool,
}

/// How long an array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// As many elements of `element` bytes as the u32 field at `count` says.
    Count32 {
        /// Offset of the field.
        count: usize,
        /// Bytes of an element.
        element: usize,
    },
    /// As many elements of `element` bytes as the u64 field at `count` says.
    Count64 {
        /// Offset of the field.
        count: usize,
        /// Bytes of an element.
        element: usize,
    },
    /// The u32 field at `count` counts bits, in u32 words; the driver looks at `most` of them.
    Bits {
        /// Offset of the field.
        count: usize,
        /// Most bits that the driver reads.
        most: u32,
    },
    /// The u32 field at `count` counts elements, the u32 field at `element` says how many bytes each has.
    Product {
        /// Offset of the count.
        count: usize,
        /// Offset of the element's size.
        element: usize,
    },
    /// This many bytes, which no field limits. A driver for another chip may write more, so that only an unsafe
    /// wrapper can issue the ioctl.
    Fixed(usize),
}

/// Where the number of a descriptor stands: a 32-bit field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this offset of the argument.
    Argument(u16),
    /// At offset `at` of each element of an array.
    Element {
        /// The array.
        array: Array,
        /// Bytes of an element.
        element: usize,
        /// Offset in the element.
        at: usize,
    },
}

/// Whether a descriptor that the driver makes closes on exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseOnExec {
    /// If the u32 field at this offset has `O_CLOEXEC`.
    Flags(usize),
    /// Never.
    Never,
}

impl Row {
    /// Bytes of the argument struct.
    pub const fn argument_bytes(&self) -> usize {
        ioc_size(self.command)
    }

    /// The parts that apply to an argument with these bytes; none of them is an operation.
    pub fn parts_of(&self, arg: &[u8]) -> impl Iterator<Item = &'static Part> {
        self.parts.iter().flat_map(move |part| match part {
            Part::Operation { selector, value, parts } if u32_at(arg, *selector) == *value => *parts,
            Part::Operation { .. } => &[],
            part => std::slice::from_ref(part),
        })
    }

    /// The offset of the only descriptor field of the argument, for a row with such a field.
    ///
    /// # Panics
    /// If the row has no such field; a constant's evaluation fails then.
    pub const fn descriptor_field(&self) -> u16 {
        let mut index = 0;
        while index < self.parts.len() {
            match self.parts[index] {
                Part::Descriptor(Place::Argument(at)) | Part::NewDescriptor(Place::Argument(at), _) => {
                    return at;
                }
                _ => index += 1,
            }
        }
        panic!("PANIC: the row has no descriptor in its argument")
    }

    /// Whether the driver may access memory of the caller through a field of the argument.
    pub(super) const fn names_memory(parts: &[Part]) -> bool {
        let mut index = 0;
        while index < parts.len() {
            let names = match parts[index] {
                Part::Array(_)
                | Part::Descriptor(Place::Element { .. })
                | Part::NewDescriptor(Place::Element { .. }, _) => true,
                Part::Descriptor(Place::Argument(_)) | Part::NewDescriptor(Place::Argument(_), _) => false,
                Part::Operation { parts, .. } => Self::names_memory(parts),
            };
            if names {
                return true;
            }
            index += 1;
        }
        false
    }
}

impl Array {
    /// Its address.
    pub fn address(&self, arg: &[u8]) -> u64 {
        u64_at(arg, self.pointer)
    }

    /// Its bytes.
    pub fn bytes(&self, arg: &[u8]) -> u64 {
        match self.length {
            Length::Count32 { count, element } => {
                u64::from(u32_at(arg, count)).saturating_mul(element as u64)
            }
            Length::Count64 { count, element } => u64_at(arg, count).saturating_mul(element as u64),
            Length::Bits { count, most } => u64::from(u32_at(arg, count).min(most) / u32::BITS) * 4,
            Length::Product { count, element } => {
                u64::from(u32_at(arg, count)) * u64::from(u32_at(arg, element))
            }
            Length::Fixed(bytes) => bytes as u64,
        }
    }
}

impl CloseOnExec {
    /// Whether a descriptor made for this argument closes on exec.
    pub fn holds(self, arg: &[u8]) -> bool {
        match self {
            Self::Flags(at) => u32_at(arg, at) & nix::libc::O_CLOEXEC.cast_unsigned() != 0,
            Self::Never => false,
        }
    }
}

fn u32_at(arg: &[u8], offset: usize) -> u32 {
    let field = arg.get(offset..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn u64_at(arg: &[u8], offset: usize) -> u64 {
    let field = arg.get(offset..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}
