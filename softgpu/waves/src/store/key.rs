// SPDX-License-Identifier: MIT OR Apache-2.0
//! What generated code depends on, as one hash.
//!
//! INVARIANT: two pieces of generated code with one key are interchangeable. Code does not depend on the address of a program,
//! so addresses count from the entry.

use std::fmt;

use crate::engine::Effort;
use crate::facts::Fact;
use crate::level::Level;
use crate::predecoded::Predecoded;
use crate::wave::Wave;

/// The generator: its sources and its compiler (`build.rs`), and the packages for when there were no sources to see.
const GENERATOR: &str = concat!("softgpu code ", env!("SOFTGPU_GENERATOR"), " ", env!("CARGO_PKG_VERSION"));

/// The name of generated code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(pub [u8; Key::BYTES]);

impl Key {
    pub(crate) const BYTES: usize = 32;

    /// Of the code for `program` with these properties.
    pub(crate) fn new(
        program: &Predecoded,
        level: Level,
        mode: u32,
        items: Option<Fact>,
        effort: Effort,
    ) -> Key {
        let mut hasher = blake3::Hasher::new();
        for text in [GENERATOR, softgpu_isa::VERSION, level.name()] {
            number(&mut hasher, text.len() as u64);
            hasher.update(text.as_bytes());
        }
        // Where fields are that generated code addresses, beside the structs whose layout is C's.
        for place in [size_of::<Wave>(), std::mem::offset_of!(Wave, s), std::mem::offset_of!(Wave, v)] {
            number(&mut hasher, place as u64);
        }
        number(&mut hasher, mode.into());
        number(&mut hasher, (effort == Effort::Full).into());
        let Fact { stride, width, align, bits, repeats } = items.unwrap_or(Fact::NOTHING);
        for value in [items.is_some().into(), stride, width.into(), align.into(), bits.into(), repeats.into()]
        {
            number(&mut hasher, value.into());
        }
        number(&mut hasher, program.shape.halves as u64);
        number(&mut hasher, program.shape.vgprs as u64);
        program.each_part(|distance, words| {
            number(&mut hasher, distance);
            number(&mut hasher, words.len() as u64);
            for chunk in words.chunks(256) {
                let mut bytes = [0; 1024];
                for (place, word) in bytes.chunks_exact_mut(4).zip(chunk) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
                hasher.update(&bytes[..chunk.len() * 4]);
            }
        });
        Key(hasher.finalize().into())
    }
}

fn number(hasher: &mut blake3::Hasher, value: u64) {
    hasher.update(&value.to_le_bytes());
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}
