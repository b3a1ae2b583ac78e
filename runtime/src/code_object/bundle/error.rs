// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with an offload bundle, and with the choice of an entry.

use thiserror::Error;

/// A file that is no usable offload bundle, or one without code for the agent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The file does not start as a bundle does.
    #[error("Not an offload bundle: it starts with {start:02x?}, wanted __CLANG_OFFLOAD_BUNDLE__ or CCOB")]
    NotBundle {
        /// Its first bytes.
        start: Vec<u8>,
    },
    /// The bundle ends inside its header.
    #[error("Truncated offload bundle: {what} has {wanted} bytes at {at:#x}, the bundle ends at {bytes:#x}")]
    Truncated {
        /// The part of the header.
        what: &'static str,
        /// Its length.
        wanted: u64,
        /// Where it begins.
        at: u64,
        /// Length of the bundle.
        bytes: u64,
    },
    /// More entries than any compiler makes.
    #[error("The offload bundle has {found} entries, more than the limit of {limit}")]
    Entries {
        /// Entries in the header.
        found: u64,
        /// [`super::MAX_ENTRIES`].
        limit: u64,
    },
    /// An entry's id is too long.
    #[error("Entry {index} of the offload bundle has an id of {found} bytes, more than the limit of {limit}")]
    IdBytes {
        /// Its number, from 0.
        index: u64,
        /// Length of the id.
        found: u64,
        /// [`super::MAX_ID_BYTES`].
        limit: u64,
    },
    /// An entry's id is no text.
    #[error("The id of entry {index} of the offload bundle is not printable ASCII: {}", id.escape_ascii())]
    IdText {
        /// Its number, from 0.
        index: u64,
        /// The id.
        id: Vec<u8>,
    },
    /// Two entries have the same id.
    #[error("The offload bundle has two entries {id}")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// An entry's code lies outside the bundle.
    #[error("Entry {id}: {size} bytes at {offset:#x} are not inside the bundle of {bytes:#x} bytes")]
    EntryRange {
        /// The entry's id.
        id: String,
        /// First byte.
        offset: u64,
        /// How many.
        size: u64,
        /// Length of the bundle.
        bytes: u64,
    },
    /// Something follows the bundle.
    #[error(
        "The offload bundle ends at {end:#x}, and {bytes} bytes follow that are not padding: if these are several bundles, \
         split them first"
    )]
    Rest {
        /// Where the bundle ends.
        end: u64,
        /// Bytes behind it.
        bytes: u64,
    },
    /// A compressed bundle of an unknown version.
    #[error("Version {found} of compressed offload bundles is not supported, only 1, 2 and 3")]
    Version {
        /// The version.
        found: u16,
    },
    /// A compressed bundle by an unknown method.
    #[error("Compression method {found} is not supported, only 0 (zlib) and 1 (zstd)")]
    Method {
        /// The method.
        found: u16,
    },
    /// The file's length in the header cannot be.
    #[error(
        "The compressed offload bundle says that it has {declared} bytes; its header has {header}, the file {found}"
    )]
    FileBytes {
        /// From the header.
        declared: u64,
        /// Length of the header.
        header: u64,
        /// Length of the file.
        found: u64,
    },
    /// The decompressed bundle, or an entry of it, would be unreasonably large.
    #[error("The {what} has {bytes} bytes when decompressed, more than the limit of {limit}")]
    TooLarge {
        /// `offload bundle` or `entry`.
        what: &'static str,
        /// Its length.
        bytes: u64,
        /// [`super::MAX_BUNDLE_BYTES`] or [`super::MAX_ENTRY_BYTES`].
        limit: u64,
    },
    /// The compressed data are damaged.
    #[error("The offload bundle cannot be decompressed by {method}: {why}")]
    Decompress {
        /// `zlib` or `zstd`.
        method: &'static str,
        /// What the decoder said.
        why: String,
    },
    /// The data have another length than the header says.
    #[error("The offload bundle has {found} bytes{} when decompressed, its header says {declared}", if found > declared { " or more" } else { "" })]
    Length {
        /// From the header.
        declared: u64,
        /// Decompressed.
        found: u64,
    },
    /// The data have another hash than the header says.
    #[error("The decompressed offload bundle has the hash {found:016x}, its header says {declared:016x}")]
    Hash {
        /// From the header.
        declared: u64,
        /// Of the data.
        found: u64,
    },
    /// No entry suits the agent.
    #[error("The offload bundle has no code for {agent}; its entries are: {}", found.join(", "))]
    NoCode {
        /// The agent's target identifier.
        agent: String,
        /// All ids.
        found: Vec<String>,
    },
    /// No entry is for an AMD GPU.
    #[error("The offload bundle has no code for any AMD GPU; its entries are: {}", found.join(", "))]
    NoDevice {
        /// All ids.
        found: Vec<String>,
    },
}
