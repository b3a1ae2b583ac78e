// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a staged copy is cut into chunks.

/// Chunks under way at a time.
pub(super) const SLOTS: u64 = 2;
/// Least bytes of a chunk, if there are that many.
const MIN_CHUNK: u64 = 1 << 20;
/// Most chunks of a copy: larger copies have larger chunks, so the stage has at most 1/64 of their bytes, and the packets
/// of one copy fit in a queue.
pub(super) const MAX_CHUNKS: u64 = 128;
/// What chunks are multiples of.
const GRAIN: u64 = 4096;

/// Bytes of a chunk of a copy of `bytes` bytes.
pub(super) fn chunk_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(MAX_CHUNKS).next_multiple_of(GRAIN).max(MIN_CHUNK).min(bytes.max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_are_few_and_the_stage_is_small(bytes in 0u64..1 << 45) {
            let chunk = chunk_bytes(bytes);
            prop_assert!(chunk > 0 && bytes.div_ceil(chunk) <= MAX_CHUNKS);
            prop_assert!(chunk * SLOTS <= (bytes / 64 + SLOTS * GRAIN).max(SLOTS * MIN_CHUNK));
            prop_assert!(bytes == 0 || chunk <= bytes);
        }
    }
}
