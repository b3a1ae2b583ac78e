// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the large buffer holds, made and looked at piece by piece, so that it is never in the process's own memory.

use anyhow::{Result, ensure};
use stasis::{Buffer, Runtime};

const PIECE: usize = 16 << 20;

/// The contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// Bytes that neither compress nor repeat, always the same.
    Random,
    /// Written zeros.
    Zeros,
}

/// xorshift64*, eight bytes a step.
fn random(into: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in into.as_chunks_mut::<8>().0 {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        *word = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
    }
}

impl Pieces {
    /// As reported.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Zeros => "zeros",
        }
    }

    /// `seed` tells buffers apart.
    fn each(self, seed: u64, bytes: u64, mut take: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut piece = vec![0; PIECE.min(bytes as usize)];
        let each = piece.len() as u64;
        for n in 0..bytes / each {
            if self == Self::Random {
                random(&mut piece, 1 + (seed << 32) + n);
            }
            take(n * each, &piece)?;
        }
        Ok(())
    }

    /// Fills memory of the process's own.
    pub fn write_memory(self, memory: &mut [u8]) {
        for (n, piece) in memory.chunks_mut(PIECE).enumerate() {
            match self {
                Self::Random => random(piece, 1 + n as u64),
                Self::Zeros => piece.fill(0),
            }
        }
    }

    /// Fills the n-th buffer, whose length is a multiple of a piece's, or less.
    pub fn write(self, n: u64, buffer: &Buffer) -> Result<()> {
        self.each(n, buffer.len(), |at, piece| Ok(buffer.upload(at, piece)?))
    }

    /// As [`Pieces::write`], by the device: the process has none of the buffer's pages in its page tables then, as of most memory that only
    /// kernels use.
    pub fn write_by_device(self, n: u64, runtime: &Runtime, buffer: &Buffer) -> Result<()> {
        let staging = runtime.gtt().alloc(PIECE as u64)?;
        self.each(n, buffer.len(), |at, piece| {
            staging.upload(0, piece)?;
            let to = buffer.span(at, piece.len() as u64);
            Ok(runtime.copy(to, staging.span(0, piece.len() as u64), &[])?.wait(None)?)
        })
    }

    /// Compares the n-th buffer with what [`Pieces::write`] wrote.
    pub fn verify(self, n: u64, buffer: &Buffer) -> Result<()> {
        let mut found = vec![0; PIECE.min(buffer.len() as usize)];
        self.each(n, buffer.len(), |at, piece| {
            buffer.download(at, &mut found)?;
            ensure!(found == piece, "the bytes at {at:#x} of buffer {n} differ");
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_of_a_seed_are_the_same_and_of_another_differ() {
        let bytes = |seed| {
            let mut bytes = [0; 64];
            random(&mut bytes, seed);
            bytes
        };
        assert_eq!(bytes(1), bytes(1));
        assert_ne!(bytes(1), bytes(2));
        assert!(bytes(0).as_chunks::<8>().0.iter().all(|word| *word != [0; 8]));
    }
}
