// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format of a file with generated code.
//!
//! INVARIANT: bytes are read as code only if all of them are covered by the hash at their end, and every number in them was
//! checked: each block's head is a step of the program, and its code lies within the code.
//!
//! ```text
//! magic (8) key (32) steps heads words bytes (4 each)  heads: (step, offset) ...  words ...  code ...  BLAKE3 of all before (32)
//! ```

use thiserror::Error;

use super::key::Key;

/// The format: the last byte is its version.
const MAGIC: [u8; 8] = *b"SGPUJIT\x01";
const HEADER: usize = MAGIC.len() + Key::BYTES + 16;
const HASH: usize = blake3::OUT_LEN;
/// Most bytes of a file. Larger code is generated again each time.
pub(crate) const MAX_FILE: usize = 8 << 20;

/// Generated code, not executable yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Generated {
    pub code: Vec<u8>,
    /// The constants that the code reads.
    pub pool: Vec<u32>,
    /// Step and offset of the code of each block's head, by step.
    pub heads: Vec<(u32, u32)>,
    /// Steps of the program.
    pub steps: u32,
}

/// Why a file is not one with the code that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum FileError {
    #[error("No file of this format has {0} bytes")]
    Length(usize),
    #[error("The file does not begin as files of this format do")]
    Magic,
    #[error("The file has other code than its name says")]
    Key,
    #[error("The file's hash is not that of its contents")]
    Hash,
    #[error("The file's numbers add up to {expected} bytes; it has {found}")]
    Parts { expected: u64, found: usize },
    #[error(
        "The head at step {step} is not one of {steps} steps in order, or its code at {offset} not within {bytes} bytes"
    )]
    Head { step: u32, steps: u32, offset: u32, bytes: usize },
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

impl Generated {
    /// As a file; `None` if it would be too long.
    pub(crate) fn encode(&self, key: &Key) -> Option<Vec<u8>> {
        let length = HEADER + 8 * self.heads.len() + 4 * self.pool.len() + self.code.len() + HASH;
        if length > MAX_FILE {
            return None;
        }
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(MAGIC);
        bytes.extend(key.0);
        // CAST: below the length of a file.
        let counts = [self.heads.len() as u32, self.pool.len() as u32, self.code.len() as u32];
        let heads = self.heads.iter().flat_map(|&(step, offset)| [step, offset]);
        for number in [self.steps].into_iter().chain(counts).chain(heads).chain(self.pool.iter().copied()) {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(&self.code);
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        Some(bytes)
    }

    /// The code in a file, if it is that of `key`.
    ///
    /// # Errors
    /// [`FileError`] if it is not, or not as it was written.
    pub(crate) fn parse(bytes: &[u8], key: &Key) -> Result<Generated, FileError> {
        if bytes.len() < HEADER + HASH || bytes.len() > MAX_FILE {
            return Err(FileError::Length(bytes.len()));
        }
        let (contents, hash) = bytes.split_at(bytes.len() - HASH);
        let (header, rest) = contents.split_at(HEADER);
        let (magic, header) = header.split_at(MAGIC.len());
        let (name, numbers) = header.split_at(Key::BYTES);
        if magic != MAGIC {
            return Err(FileError::Magic);
        }
        if name != key.0 {
            return Err(FileError::Key);
        }
        if blake3::hash(contents).as_bytes() != hash {
            return Err(FileError::Hash);
        }
        let [steps, heads, words, code] = std::array::from_fn(|k| word(&numbers[4 * k..]));
        let expected = 8 * u64::from(heads) + 4 * u64::from(words) + u64::from(code);
        if expected != rest.len() as u64 {
            return Err(FileError::Parts { expected, found: rest.len() });
        }
        let (heads, rest) = rest.split_at(8 * heads as usize);
        let (pool, code) = rest.split_at(4 * words as usize);
        let heads: Vec<_> = heads.chunks_exact(8).map(|pair| (word(pair), word(&pair[4..]))).collect();
        let mut next = 0;
        for &(step, offset) in &heads {
            // No block begins where the code is entered.
            if step < next || step >= steps || offset == 0 || offset as usize >= code.len() {
                return Err(FileError::Head { step, steps, offset, bytes: code.len() });
            }
            next = step + 1;
        }
        Ok(Generated { code: code.to_vec(), pool: pool.chunks_exact(4).map(word).collect(), heads, steps })
    }
}
