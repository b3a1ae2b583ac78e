// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contents that are brought into the page cache for somebody else, who reads them soon ([`super::worker::Bulk`] looks there first).

use std::os::unix::fs::FileExt;

use nix::fcntl::PosixFadviseAdvice::POSIX_FADV_WILLNEED as WILLNEED;
use nix::fcntl::posix_fadvise;
use queues::words::size;

use super::CHUNK_BYTES;
use super::format::{CONTENTS_OFFSET, Chunk};
use super::reader::Image;
use super::worker::ChunkBuffer;

/// Chunks that a disk is asked for at a time.
const ASKED: u64 = 4;

impl Image {
    /// Brings contents into the page cache, in their order in the image's own file, for as long as they `are_wanted`: those of a process
    /// that is about to read them, while something else keeps it waiting. Only a help: nothing is checked here, and what cannot be read is
    /// left to the one who needs it. Does nothing for an image in memory, or one that is not read past the page cache.
    pub fn read_ahead(&self, are_wanted: impl Fn() -> bool) {
        let own = &self.places()[0];
        let (Some(file), mut buffer) = (own.bulk.cached(), ChunkBuffer::default()) else { return };
        let Ok(buffer) = buffer.bytes() else { return };
        let ends = self.chunks().iter().filter(|chunk| chunk.file == 0).map(Chunk::file_end);
        let end = ends.max().unwrap_or(CONTENTS_OFFSET);
        let mut asked = CONTENTS_OFFSET;
        let mut at = CONTENTS_OFFSET;
        while at < end && are_wanted() {
            while asked < end.min(at + ASKED * CHUNK_BYTES) {
                let bytes = CHUNK_BYTES.min(end - asked);
                // Whether or not this is taken, the bytes are read below.
                let _ = posix_fadvise(file, asked.cast_signed(), bytes.cast_signed(), WILLNEED);
                asked += bytes;
            }
            let bytes = CHUNK_BYTES.min(end - at);
            if file.read_exact_at(&mut buffer[..size(bytes)], at).is_err() {
                return;
            }
            at += bytes;
        }
    }
}
