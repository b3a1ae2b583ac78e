// SPDX-License-Identifier: MIT OR Apache-2.0
//! What CRIU says of its own dump: the image `stats-dump` (CRIU's `images/stats.proto`), times in microseconds.

use std::path::{Path, PathBuf};
use std::{fs, io};

use prost::Message;
use serde::Serialize;
use thiserror::Error;

/// First words of the image: `IMG_SERVICE_MAGIC` and `STATS_MAGIC`, then the message's length.
const MAGIC: [u32; 2] = [0x5510_5940, 0x5709_3306];
/// Longest message, bytes; CRIU's has some dozens.
const MAX_BYTES: u32 = 4096;

#[derive(Clone, PartialEq, Message)]
struct DumpEntry {
    #[prost(uint32, required, tag = "1")]
    freezing: u32,
    #[prost(uint32, required, tag = "2")]
    frozen: u32,
    #[prost(uint32, required, tag = "3")]
    memdump: u32,
    #[prost(uint32, required, tag = "4")]
    memwrite: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(message, optional, tag = "1")]
    dump: Option<DumpEntry>,
}

/// How long the parts of a dump took, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DumpStats {
    /// Stopping the tasks.
    pub freezing_ms: f64,
    /// The tasks stood still.
    pub frozen_ms: f64,
    /// Taking their pages.
    pub memdump_ms: f64,
    /// Writing their pages.
    pub memwrite_ms: f64,
}

/// The statistics are not to be had; the dump is none the worse for it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StatsError {
    /// No file, or not readable.
    #[error("Cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Not what CRIU writes.
    #[error("{} is not CRIU's statistics of a dump: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
}

impl DumpStats {
    /// Reads them from a directory with CRIU's images.
    ///
    /// # Errors
    /// [`StatsError`].
    pub fn read(images: &Path) -> Result<Self, StatsError> {
        let path = images.join("stats-dump");
        match fs::read(&path) {
            Ok(bytes) => Self::parse(&bytes).map_err(|what| StatsError::Format { path, what }),
            Err(source) => Err(StatsError::Io { path, source }),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let word = |n: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(n * 4..n * 4 + 4)?.try_into().ok()?))
        };
        if [word(0), word(1)] != MAGIC.map(Some) {
            return Err("it has another magic number");
        }
        let length = word(2).filter(|&length| length <= MAX_BYTES).ok_or("its length is impossible")?;
        let message = bytes.get(12..12 + length as usize).ok_or("it is truncated")?;
        let entry = Entry::decode(message).map_err(|_| "its message does not parse")?;
        let dump = entry.dump.ok_or("it is of another command")?;
        let ms = |us: u32| f64::from(us) / 1e3;
        Ok(Self {
            freezing_ms: ms(dump.freezing),
            frozen_ms: ms(dump.frozen),
            memdump_ms: ms(dump.memdump),
            memwrite_ms: ms(dump.memwrite),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read_and_damage_is_named() {
        let dump = DumpEntry { freezing: 1500, frozen: 3600, memdump: 700, memwrite: 90 };
        let message = Entry { dump: Some(dump) }.encode_to_vec();
        let mut bytes = Vec::new();
        [MAGIC[0], MAGIC[1], message.len() as u32].iter().for_each(|w| bytes.extend(w.to_le_bytes()));
        bytes.extend(&message);
        let stats = DumpStats::parse(&bytes).unwrap();
        assert_eq!((stats.freezing_ms, stats.frozen_ms, stats.memwrite_ms), (1.5, 3.6, 0.09));
        assert_eq!(DumpStats::parse(&bytes[..bytes.len() - 1]), Err("it is truncated"));
        assert_eq!(DumpStats::parse(&bytes[4..]), Err("it has another magic number"));
        bytes[11] = 0xFF;
        assert_eq!(DumpStats::parse(&bytes), Err("its length is impossible"));
    }
}
