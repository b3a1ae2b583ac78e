// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel's explicit arguments, laid out as C lays out a structure of them.

/// Arguments, each at its natural alignment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments(Vec<u8>);

impl Arguments {
    /// None yet.
    #[must_use]
    pub fn new() -> Arguments {
        Arguments::default()
    }

    fn push(mut self, bytes: &[u8]) -> Arguments {
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0);
        self.0.extend(bytes);
        self
    }

    /// Adds a pointer or another number of 64 bits.
    #[must_use]
    pub fn u64(self, value: u64) -> Arguments {
        self.push(&value.to_le_bytes())
    }

    /// Adds a number of 32 bits.
    #[must_use]
    pub fn u32(self, value: u32) -> Arguments {
        self.push(&value.to_le_bytes())
    }

    /// Adds a float of 32 bits.
    #[must_use]
    pub fn f32(self, value: f32) -> Arguments {
        self.push(&value.to_le_bytes())
    }

    /// The block so far, without padding behind the last argument.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The block, padded to the alignment of what follows it.
    #[must_use]
    pub fn padded(mut self) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_aligned_and_padded() {
        let arguments = Arguments::new().u32(1).u64(2).f32(0.5);

        assert_eq!(arguments.bytes(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x3F]);
        assert_eq!(arguments.padded().len(), 24);
    }
}
