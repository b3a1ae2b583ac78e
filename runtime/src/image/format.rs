// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of an image: header, section table and chunk table, encoded and distrustfully decoded.
//!
//! ```text
//! 0      "STASISIM"            magic
//! 8      u16 major, u16 minor  version; readers take the same major and any minor not newer than theirs
//! 12     u32                   flags, zero
//! 16     u64                   length of the whole file
//! 24     u32, u32              number of sections (3, or 4 with earlier files), zero
//! 32     32 B                  BLAKE3 of bytes 0..32 and of the section table
//! 64     3 or 4 x 64 B         sections {u32 kind, u32 zero, u64 offset, u64 length, 32 B BLAKE3, u64 zero}
//! 4096   ...                   contents: chunks, each at a multiple of 4096
//! ...                          chunk table: 64 B each {u32 extent, u32 file, u64 offset in extent, u64 length,
//!                              u64 offset in file, 32 B BLAKE3}; file 0 is this one, n the n-th earlier one
//! ...                          metadata: JSON
//! ...                          earlier files: 128 B each {u64 length, 32 B BLAKE3 of its first 4096 bytes, 88 B name}
//! ```
//! All numbers are little-endian. The contents section's hash is that of the chunk table, which holds theirs.

use std::path::PathBuf;

use queues::words::{count, halves, size};
use thiserror::Error;

use stasis_protocol::Stopped;

use super::engine::EngineError;
use super::worker::PAGE;

/// Format generation; a reader refuses any other.
pub const MAJOR: u16 = 1;
/// Additions a reader of the same major can live without; a reader refuses a newer one.
pub const MINOR: u16 = 7;

pub(super) const MAGIC: [u8; 8] = *b"STASISIM";
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const SECTION_BYTES: usize = 64;
pub(super) const CHUNK_ENTRY_BYTES: usize = 64;
pub(super) const EARLIER_ENTRY_BYTES: usize = 128;
pub(super) const CONTENTS_OFFSET: u64 = 4096;
/// Most earlier files that an image has chunks in. Chunks of the others are written again.
pub(super) const MAX_EARLIER: usize = 15;
/// Most bytes of an earlier file's name.
const NAME_BYTES: usize = 88;
/// Bound on the metadata before it is read into memory.
pub(super) const MAX_META_BYTES: u64 = 1 << 30;
/// Bound on the chunk table: 16 TiB of contents.
pub(super) const MAX_CHUNKS: u64 = 1 << 23;

/// Why an image could not be written or taken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file operation failed.
    #[error("Cannot {act} {}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The name is not a file's own.
    #[error("{} is {found}, not a regular file: name the image itself", path.display())]
    NotAFile {
        /// The name.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The file is another user's, who could change it while it is used.
    #[error(
        "{} belongs to user {owner}; an image is taken from user {us} or root: copy it if it is to be trusted",
        path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who asks.
        us: u32,
    },
    /// The file does not start like an image.
    #[error("{} is not a Stasis image: its first bytes are {found:02x?}; check the directory", path.display())]
    NotAnImage {
        /// The file.
        path: PathBuf,
        /// Its first eight bytes.
        found: [u8; 8],
    },
    /// The image is of another format generation.
    #[error(
        "{} has image format {major}.{minor}; this program reads {MAJOR}.0 to {MAJOR}.{MINOR}: use the version of \
         Stasis that wrote it, or a newer one", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its major version.
        major: u16,
        /// Its minor version.
        minor: u16,
    },
    /// The file is shorter or longer than its header says.
    #[error("{} has {found} bytes where its header says {expected}: it is truncated or was appended to", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes the header promises.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// A number in the image lies outside its bounds, or a hash does not fit.
    #[error("{} is corrupt in section {section} at offset {offset}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// `header`, `sections`, `chunks`, `contents`, `metadata` or `earlier`.
        section: &'static str,
        /// Byte offset in the file.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// An earlier image's file, which this one's contents are in, cannot be had.
    #[error(
        "{} has contents in {}, which cannot be opened: put the file back, or use a checkpoint that was squashed",
        path.display(), earlier.display()
    )]
    Earlier {
        /// The image.
        path: PathBuf,
        /// The earlier one's file.
        earlier: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An earlier image's file is not the one that it was.
    #[error("{} has contents in {}, which is another file than it was: {what}", path.display(), earlier.display())]
    OtherEarlier {
        /// The image.
        path: PathBuf,
        /// The earlier one's file.
        earlier: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// The parent is where none of its files can have a second name.
    #[error(
        "{} cannot share contents with {}: they are on different file systems; checkpoint beside the parent, or without it",
        path.display(), parent.display()
    )]
    Elsewhere {
        /// The image.
        path: PathBuf,
        /// The parent.
        parent: PathBuf,
    },
    /// The metadata is not the JSON it should be.
    #[error("{} holds metadata that does not fit this version's schema", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        #[source]
        source: serde_json::Error,
    },
    /// The work was stopped.
    #[error("The image was not done: {0}")]
    Stopped(#[from] Stopped),
    /// An agent's engine did not move contents.
    #[error("Contents could not be moved by a copy engine")]
    Engine(#[source] EngineError),
    /// The extents given do not fit those the image was made from.
    #[error("The image holds {expected} buffers' contents, {found} were given to fill")]
    Extents {
        /// Extents in the image.
        expected: usize,
        /// Extents given.
        found: usize,
    },
    /// An extent's length differs from the one in the image.
    #[error("Buffer {extent} has {found} bytes where the image has a chunk ending at {expected}")]
    ExtentLength {
        /// Which extent.
        extent: usize,
        /// Bytes the image needs.
        expected: u64,
        /// Bytes the extent has.
        found: u64,
    },
}

impl From<EngineError> for ImageError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Stopped(stopped) => Self::Stopped(stopped),
            other => Self::Engine(other),
        }
    }
}

/// The section kinds, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectionKind {
    Contents = 1,
    Chunks = 2,
    Metadata = 3,
    Earlier = 4,
}

/// The kinds in their order, those without earlier files first.
const KINDS: [SectionKind; 4] =
    [SectionKind::Contents, SectionKind::Chunks, SectionKind::Metadata, SectionKind::Earlier];

/// One row of the section table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub kind: SectionKind,
    pub offset: u64,
    pub length: u64,
    pub hash: [u8; 32],
}

/// A file of an earlier image, which has contents of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierFile {
    /// Its name in this image's directory.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// BLAKE3 of its first 4096 bytes, which have the hashes of its tables.
    pub front: [u8; 32],
}

impl EarlierFile {
    pub(super) fn encode(&self) -> [u8; EARLIER_ENTRY_BYTES] {
        let mut out = [0; EARLIER_ENTRY_BYTES];
        out[0..8].copy_from_slice(&self.bytes.to_le_bytes());
        out[8..40].copy_from_slice(&self.front);
        for (to, from) in out[40..].iter_mut().zip(self.name.bytes()) {
            *to = from;
        }
        out
    }

    /// `None` if there is no proper name.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let name = bytes.get(40..)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let (name, padding) = name.split_at(end);
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name))?;
        let is_padded = padding.iter().all(|byte| *byte == 0);
        is_padded.then(|| Self { name: name.to_owned(), bytes: u64_at(bytes, 0), front: hash_at(bytes, 8) })
    }
}

/// Whether an earlier file can have this name: that of a file in the image's own directory.
pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_plain)
}

/// One non-zero piece of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index of the extent it belongs to.
    pub extent: u32,
    /// Byte offset in the extent.
    pub offset: u64,
    /// Length in bytes, at most [`super::CHUNK_BYTES`].
    pub length: u64,
    /// The file that it is in: 0 for the image's own, n for the n-th earlier one.
    pub file: u32,
    /// Byte offset in the file.
    pub file_offset: u64,
    /// BLAKE3 of its bytes.
    pub hash: [u8; 32],
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn hash_at(bytes: &[u8], at: usize) -> [u8; 32] {
    let mut hash = [0; 32];
    if let Some(found) = bytes.get(at..at + 32) {
        hash.copy_from_slice(found);
    }
    hash
}

impl Chunk {
    /// Where it ends in its file: all begin at whole pages.
    pub(super) fn file_end(&self) -> u64 {
        self.file_offset + self.length.next_multiple_of(PAGE)
    }

    pub(super) fn encode(&self) -> [u8; CHUNK_ENTRY_BYTES] {
        let mut out = [0; CHUNK_ENTRY_BYTES];
        out[0..4].copy_from_slice(&self.extent.to_le_bytes());
        out[4..8].copy_from_slice(&self.file.to_le_bytes());
        out[8..16].copy_from_slice(&self.offset.to_le_bytes());
        out[16..24].copy_from_slice(&self.length.to_le_bytes());
        out[24..32].copy_from_slice(&self.file_offset.to_le_bytes());
        out[32..64].copy_from_slice(&self.hash);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self {
            extent: u32_at(bytes, 0),
            offset: u64_at(bytes, 8),
            length: u64_at(bytes, 16),
            file: u32_at(bytes, 4),
            file_offset: u64_at(bytes, 24),
            hash: hash_at(bytes, 32),
        }
    }
}

/// Encodes header and section table: the first bytes of the file.
pub(super) fn encode_front(file_bytes: u64, sections: &[Section]) -> Vec<u8> {
    let mut table = Vec::with_capacity(sections.len() * SECTION_BYTES);
    for section in sections {
        let mut row = [0; SECTION_BYTES];
        row[0..4].copy_from_slice(&(section.kind as u32).to_le_bytes());
        row[8..16].copy_from_slice(&section.offset.to_le_bytes());
        row[16..24].copy_from_slice(&section.length.to_le_bytes());
        row[24..56].copy_from_slice(&section.hash);
        table.extend_from_slice(&row);
    }
    let mut front = Vec::with_capacity(HEADER_BYTES + table.len());
    front.extend_from_slice(&MAGIC);
    front.extend_from_slice(&MAJOR.to_le_bytes());
    front.extend_from_slice(&MINOR.to_le_bytes());
    front.extend_from_slice(&0u32.to_le_bytes());
    front.extend_from_slice(&file_bytes.to_le_bytes());
    front.extend_from_slice(&count(sections.len()).to_le_bytes());
    front.extend_from_slice(&0u32.to_le_bytes());
    let hash = blake3::Hasher::new().update(&front).update(&table).finalize();
    front.extend_from_slice(hash.as_bytes());
    front.extend_from_slice(&table);
    front
}

/// Bytes of header and section table of an image that begins with these.
pub(super) fn front_bytes(front: &[u8]) -> usize {
    let sections = if u32_at(front, 24) == count(KINDS.len()) { KINDS.len() } else { KINDS.len() - 1 };
    (HEADER_BYTES + sections * SECTION_BYTES).min(front.len())
}

/// Decodes and checks header and section table, which are all of `front`. An image without earlier files has none of
/// length zero.
pub(super) fn decode_front(
    path: &std::path::Path,
    front: &[u8],
    file_bytes: u64,
) -> Result<[Section; 4], ImageError> {
    let corrupt = |section, offset, what| ImageError::Corrupt { path: path.into(), section, offset, what };
    let mut found = [0; 8];
    if let Some(start) = front.get(0..8) {
        found.copy_from_slice(start);
    }
    if found != MAGIC {
        return Err(ImageError::NotAnImage { path: path.into(), found });
    }
    let too_short = || ImageError::Length { path: path.into(), expected: CONTENTS_OFFSET, found: file_bytes };
    if front.len() < 12 {
        return Err(too_short());
    }
    let version = u32_at(front, 8);
    let [major, minor] = halves(version);
    if major != MAJOR || minor > MINOR {
        return Err(ImageError::Version { path: path.into(), major, minor });
    }
    if front.len() < HEADER_BYTES + 3 * SECTION_BYTES {
        return Err(too_short());
    }
    let table = &front[HEADER_BYTES..];
    let hash = blake3::Hasher::new().update(&front[..32]).update(table).finalize();
    if *hash.as_bytes() != hash_at(front, 32) {
        return Err(corrupt("header", 32, "the hash of header and section table does not fit"));
    }
    let expected = u64_at(front, 16);
    if expected != file_bytes {
        return Err(ImageError::Length { path: path.into(), expected, found: file_bytes });
    }
    let sections = size(u64::from(u32_at(front, 24)));
    if sections * SECTION_BYTES != table.len() || (sections == KINDS.len() && minor < 5) {
        return Err(corrupt("header", 24, "the number of sections is not 3, nor 4 with earlier files"));
    }
    let mut at = CONTENTS_OFFSET;
    let mut found = KINDS.map(|kind| Section { kind, offset: file_bytes, length: 0, hash: [0; 32] });
    for (n, (row, out)) in table.chunks_exact(SECTION_BYTES).zip(&mut found).enumerate() {
        let place = (HEADER_BYTES + n * SECTION_BYTES) as u64;
        if u32_at(row, 0) != out.kind as u32 {
            return Err(corrupt(
                "sections",
                place,
                "the sections are not contents, chunks, metadata, earlier files in this order",
            ));
        }
        (out.offset, out.length, out.hash) = (u64_at(row, 8), u64_at(row, 16), hash_at(row, 24));
        if out.offset != at {
            return Err(corrupt("sections", place + 8, "a section does not start where the one before ends"));
        }
        at = at
            .checked_add(out.length)
            .filter(|end| *end <= file_bytes)
            .ok_or_else(|| corrupt("sections", place + 16, "a section ends beyond the file"))?;
    }
    if at != file_bytes {
        return Err(corrupt("sections", HEADER_BYTES as u64, "the sections do not cover the file"));
    }
    let length_at = |section: usize| (HEADER_BYTES + section * SECTION_BYTES) as u64 + 16;
    let [_, chunks, metadata, earlier] = &found;
    if metadata.length > MAX_META_BYTES {
        return Err(corrupt("sections", length_at(2), "the metadata is longer than 1 GiB"));
    }
    let whole = |section: &Section, entry: usize, most: u64| {
        section.length.is_multiple_of(entry as u64) && section.length / entry as u64 <= most
    };
    if !whole(chunks, CHUNK_ENTRY_BYTES, MAX_CHUNKS) {
        return Err(corrupt("sections", length_at(1), "the chunk table has an impossible length"));
    }
    if !whole(earlier, EARLIER_ENTRY_BYTES, MAX_EARLIER as u64)
        || (sections == KINDS.len()) != (earlier.length > 0)
    {
        return Err(corrupt("sections", length_at(3), "the table of earlier files has an impossible length"));
    }
    Ok(found)
}
