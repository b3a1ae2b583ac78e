// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a code object lies in an agent's memory, and its bytes for a given address.
//!
//! INVARIANT: all offsets are from the image's first byte, lie in a segment, and were checked when the plan was
//! made; relocating can fail only for the address or for a symbol that is defined nowhere.

use super::elf::{Elf, Load, Referent, Symbol};
use super::error::CodeObjectError;
use queues::words::size;
use std::collections::BTreeMap;

/// The largest image that is accepted, zero-initialised data included.
pub const MAX_IMAGE_BYTES: u64 = 1 << 30;
/// The largest alignment a segment may ask for.
pub(super) const MAX_ALIGNMENT: u64 = 2 << 20;
/// Images are placed on pages.
const PAGE_BYTES: u64 = 4096;

const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// What code may do with a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Instruction fetches.
    pub execute: bool,
}

/// A part of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Bytes from the start of the image.
    pub offset: u64,
    /// Length in memory, in bytes; beyond `contents` it is zero.
    pub bytes: u64,
    /// What may be done with it.
    pub access: Access,
    /// The bytes from the file.
    pub contents: Box<[u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// The whole address.
    Abs64,
    /// The address, which must fit.
    Abs32,
    /// The address's low half.
    Abs32Lo,
    /// The address's high half.
    Abs32Hi,
    /// The distance from the field.
    Rel64,
    /// The distance, which must fit signed.
    Rel32,
    /// The distance's low half.
    Rel32Lo,
    /// The distance's high half.
    Rel32Hi,
}

impl Field {
    /// `R_AMDGPU_*`; RELATIVE64 is an absolute address without a symbol.
    fn from_type(kind: u32) -> Option<Self> {
        Some(match kind {
            1 => Self::Abs32Lo,
            2 => Self::Abs32Hi,
            3 | 13 => Self::Abs64,
            4 => Self::Rel32,
            5 => Self::Rel64,
            6 => Self::Abs32,
            10 => Self::Rel32Lo,
            11 => Self::Rel32Hi,
            _ => return None,
        })
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Abs64 | Self::Rel64 => 8,
            _ => 4,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Relocation {
    offset: u64,
    field: Field,
    referent: Referent,
    addend: i64,
}

/// How a code object is placed in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadPlan {
    segments: Vec<Segment>,
    image_bytes: u64,
    alignment: u64,
    lowest: u64,
    relocations: Vec<Relocation>,
}

impl LoadPlan {
    pub(super) fn new(
        elf: &Elf<'_>,
        loads: Vec<Load<'_>>,
        symbols: &BTreeMap<String, Symbol>,
    ) -> Result<Self, CodeObjectError> {
        let alignment = loads.iter().map(|load| load.align).fold(PAGE_BYTES, u64::max);
        let first = loads.iter().map(|load| load.address).min().unwrap_or(0);
        let lowest = first & !(alignment - 1);
        let end = loads.iter().map(|load| load.address.saturating_add(load.memory)).max().unwrap_or(0);
        let bytes = end.saturating_sub(lowest);
        if bytes > MAX_IMAGE_BYTES {
            return Err(CodeObjectError::ImageTooLarge { bytes, limit: MAX_IMAGE_BYTES });
        }
        let image_bytes = bytes.next_multiple_of(PAGE_BYTES);
        let mut relocations = Vec::new();
        for (index, rela) in elf.relocations(&loads)?.into_iter().enumerate() {
            if rela.kind == 0 {
                continue;
            }
            let Some(field) = Field::from_type(rela.kind) else {
                return Err(CodeObjectError::RelocationKind { index, offset: rela.offset, kind: rela.kind });
            };
            if !loads.iter().any(|load| holds(load.address, load.memory, rela.offset, field.bytes())) {
                return Err(CodeObjectError::RelocationRange {
                    index,
                    offset: rela.offset,
                    bytes: field.bytes(),
                });
            }
            let offset = rela.offset - lowest;
            let referent = locate(rela.referent, symbols);
            relocations.push(Relocation { offset, field, referent, addend: rela.addend });
        }
        let segments = loads
            .into_iter()
            .map(|load| Segment {
                offset: load.address - lowest,
                bytes: load.memory,
                access: Access {
                    read: load.flags & PF_R != 0,
                    write: load.flags & PF_W != 0,
                    execute: load.flags & PF_X != 0,
                },
                contents: load.bytes.into(),
            })
            .collect();
        Ok(Self { segments, image_bytes, alignment, lowest, relocations })
    }

    /// The segments in ascending order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Size of the whole image in bytes, a multiple of the page size.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// What the image's address must be a multiple of, in bytes; at least a page.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Names that the file refers to but does not define; weak ones, which may stay 0, are left out.
    pub fn undefined(&self) -> impl Iterator<Item = &str> {
        self.relocations.iter().filter_map(|relocation| match &relocation.referent {
            Referent::Undefined { name, weak: false } => Some(name.as_str()),
            _ => None,
        })
    }

    /// The image as it must be at `base_va`.
    ///
    /// # Errors
    /// As [`LoadPlan::relocate_with`].
    pub fn relocate(&self, base_va: u64) -> Result<Vec<u8>, CodeObjectError> {
        self.relocate_with(base_va, |_| None)
    }

    /// The image as it must be at `base_va`, with `resolve` asked for the address of undefined symbols.
    ///
    /// # Errors
    /// [`CodeObjectError::ImageAddress`] if the address is misaligned or too high,
    /// [`CodeObjectError::UndefinedSymbol`] if `resolve` does not know a symbol that is not weak,
    /// [`CodeObjectError::RelocationOverflow`] if a 32-bit field cannot hold its address.
    pub fn relocate_with(
        &self,
        base_va: u64,
        resolve: impl Fn(&str) -> Option<u64>,
    ) -> Result<Vec<u8>, CodeObjectError> {
        let unusable = CodeObjectError::ImageAddress {
            address: base_va,
            bytes: self.image_bytes,
            alignment: self.alignment,
        };
        if !base_va.is_multiple_of(self.alignment) || base_va.checked_add(self.image_bytes).is_none() {
            return Err(unusable);
        }
        let length = usize::try_from(self.image_bytes).map_err(|_| unusable)?;
        let mut image = vec![0; length];
        for segment in &self.segments {
            if let Some(place) = range(&mut image, segment.offset, segment.contents.len() as u64) {
                place.copy_from_slice(&segment.contents);
            }
        }
        for relocation in &self.relocations {
            let symbol = match &relocation.referent {
                Referent::Image => self.runtime(base_va, 0),
                Referent::Defined(value) => self.runtime(base_va, *value),
                Referent::Undefined { name, weak } => match resolve(name) {
                    Some(address) => address,
                    None if *weak => 0,
                    None => return Err(CodeObjectError::UndefinedSymbol { name: name.clone() }),
                },
            };
            self.apply(&mut image, base_va, relocation, symbol.wrapping_add_signed(relocation.addend))?;
        }
        Ok(image)
    }

    /// Where an address as linked comes to lie.
    fn runtime(&self, base_va: u64, address: u64) -> u64 {
        base_va.wrapping_sub(self.lowest).wrapping_add(address)
    }

    fn apply(
        &self,
        image: &mut [u8],
        base_va: u64,
        relocation: &Relocation,
        target: u64,
    ) -> Result<(), CodeObjectError> {
        let distance = target.wrapping_sub(base_va.wrapping_add(relocation.offset));
        let overflow = |value| CodeObjectError::RelocationOverflow { offset: relocation.offset, value };
        let value = match relocation.field {
            Field::Abs64 => target,
            Field::Rel64 => distance,
            Field::Abs32 => u32::try_from(target).map_err(|_| overflow(target))?.into(),
            Field::Rel32 => {
                // CAST: reinterpretation, the distance may be negative.
                i32::try_from(distance as i64).map_err(|_| overflow(distance))?;
                distance
            }
            Field::Abs32Lo => target,
            Field::Abs32Hi => target >> 32,
            Field::Rel32Lo => distance,
            Field::Rel32Hi => distance >> 32,
        };
        let bytes = relocation.field.bytes();
        if let Some(place) = range(image, relocation.offset, bytes) {
            place.copy_from_slice(&value.to_le_bytes()[..size(bytes)]);
        }
        Ok(())
    }

    /// The image offset of `bytes` at an address as linked, if a segment holds all of them.
    pub(super) fn offset_of(&self, address: u64, bytes: u64) -> Option<u64> {
        let offset = address.checked_sub(self.lowest)?;
        self.segments
            .iter()
            .any(|segment| holds(segment.offset, segment.bytes, offset, bytes))
            .then_some(offset)
    }

    /// The file's bytes at an image offset.
    pub(super) fn contents(&self, offset: u64, bytes: u64) -> Option<&[u8]> {
        self.segments.iter().find_map(|segment| {
            let start = usize::try_from(offset.checked_sub(segment.offset)?).ok()?;
            segment.contents.get(start..)?.get(..usize::try_from(bytes).ok()?)
        })
    }

    /// Whether instructions can be fetched at an image offset.
    pub(super) fn executable(&self, offset: u64) -> bool {
        self.segments.iter().any(|segment| {
            segment.access.execute && holds(segment.offset, segment.contents.len() as u64, offset, 4)
        })
    }
}

/// A reference that the dynamic table leaves open may still be to a symbol that is only hidden.
fn locate(referent: Referent, symbols: &BTreeMap<String, Symbol>) -> Referent {
    match referent {
        Referent::Undefined { name, weak } => match symbols.get(&name) {
            Some(symbol) => Referent::Defined(symbol.value),
            None => Referent::Undefined { name, weak },
        },
        other => other,
    }
}

fn holds(start: u64, length: u64, at: u64, bytes: u64) -> bool {
    at >= start && at.checked_add(bytes).is_some_and(|end| end <= start.saturating_add(length))
}

fn range(image: &mut [u8], offset: u64, bytes: u64) -> Option<&mut [u8]> {
    image.get_mut(usize::try_from(offset).ok()?..)?.get_mut(..usize::try_from(bytes).ok()?)
}
