// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of which chunks the files of a checkpoint are made.
//!
//! INVARIANT: an index that was parsed names files below its directory only, each once, and their parts are chunks that it
//! lists and zeros, whose lengths add up to the file's. Every chunk that it lists is part of a file.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::assembly::OWN;

/// Longest chunk, bytes: that of the runtime's images.
pub const MAX_CHUNK_BYTES: u64 = stasis::image::CHUNK_BYTES;
/// Longest text of an index that is read, bytes.
pub(crate) const MAX_INDEX_BYTES: u64 = 256 << 20;
/// The version of the schema.
const VERSION: u32 = 1;
/// Most directories on the way to a file: those of the tree, of the runtime, of CRIU's images.
const MAX_DEPTH: usize = 4;
/// Most directories and files.
const MAX_NAMES: usize = 1 << 20;
/// Most parts of all files, and most chunks.
const MAX_PARTS: usize = 1 << 23;

/// A chunk: the BLAKE3 of its bytes, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkName {
    /// BLAKE3.
    pub hash: [u8; 32],
    /// Length, 1 to [`MAX_CHUNK_BYTES`].
    pub bytes: u64,
}

impl ChunkName {
    /// The name of a chunk with these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self { hash: *blake3::hash(bytes).as_bytes(), bytes: bytes.len() as u64 }
    }
}

impl Serialize for ChunkName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (blake3::Hash::from(self.hash).to_hex().as_str(), self.bytes).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ChunkName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (digits, bytes) = <(String, u64)>::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(digits).map_err(serde::de::Error::custom)?;
        Ok(Self { hash: hash.into(), bytes })
    }
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The chunk at this place of the list.
    Chunk(u32),
    /// So many zero bytes.
    Zeros {
        /// At least one.
        zeros: u64,
    },
}

/// Where a part is in its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) part: Part,
}

/// A part in the text of an index. Numbers are counted back, so that two indices of nearly the same chunks have nearly the same text.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum TextPart {
    /// 0 is the first chunk of the list that was in no part before; n the n-th before that one.
    Back(u32),
    Zeros {
        zeros: u64,
    },
}

/// A file in the text of an index.
#[derive(Debug, Serialize, Deserialize)]
struct TextFile {
    path: String,
    bytes: u64,
    parts: Vec<TextPart>,
}

/// The text of an index.
#[derive(Debug, Serialize, Deserialize)]
struct Text {
    version: u32,
    directories: Vec<String>,
    files: Vec<TextFile>,
    chunks: Vec<ChunkName>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedFile {
    /// Its path in the checkpoint's directory, with slashes.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// What it is made of, in order.
    pub parts: Vec<Part>,
}

/// How the files of a checkpoint are made of chunks. Chunks are listed in the order in which the files have them first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkIndex {
    version: u32,
    /// The directories in the checkpoint's, each behind the one that it is in.
    pub directories: Vec<String>,
    /// Its files.
    pub files: Vec<IndexedFile>,
    /// The chunks, each once.
    pub chunks: Vec<ChunkName>,
}

impl ChunkIndex {
    /// The index of nothing.
    pub(crate) fn new() -> Self {
        Self { version: VERSION, directories: Vec::new(), files: Vec::new(), chunks: Vec::new() }
    }

    /// Its text.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] when it is longer than what is read.
    pub fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let text = self
            .text()
            .ok_or_else(|| StoreError::Index { what: "its chunks are not in order".to_owned() })?;
        let text =
            serde_json::to_vec(&text).map_err(|error| StoreError::Index { what: error.to_string() })?;
        match text.len() as u64 > MAX_INDEX_BYTES {
            true => Err(StoreError::TooLarge { bytes: self.file_bytes(), index: text.len() as u64 }),
            false => Ok(text),
        }
    }

    /// Takes a text apart that somebody else wrote.
    ///
    /// # Errors
    /// [`StoreError::Index`], saying what is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, StoreError> {
        let bad = |what| StoreError::Index { what };
        // Each value but the first has one before it: so much memory is used for them at most.
        let commas = text.iter().filter(|byte| **byte == b',').count();
        if commas > 3 * MAX_PARTS {
            return Err(bad(format!("it has more than {MAX_PARTS} parts")));
        }
        let text: Text = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        let index = Self::of_text(text);
        index.ok_or_else(|| bad("a file has a chunk that is not listed".to_owned()))?.checked()
    }

    /// Its text, if its chunks are in the order of the files.
    fn text(&self) -> Option<Text> {
        let mut next = 0_u32;
        let mut part = |part: &Part| match *part {
            Part::Zeros { zeros } => Some(TextPart::Zeros { zeros }),
            Part::Chunk(chunk) => {
                let back = next.checked_sub(chunk)?;
                next += u32::from(back == 0);
                Some(TextPart::Back(back))
            }
        };
        let mut file = |file: &IndexedFile| {
            let parts = file.parts.iter().map(&mut part).collect::<Option<_>>()?;
            Some(TextFile { path: file.path.clone(), bytes: file.bytes, parts })
        };
        let files = self.files.iter().map(&mut file).collect::<Option<_>>()?;
        Some(Text {
            version: self.version,
            directories: self.directories.clone(),
            files,
            chunks: self.chunks.clone(),
        })
    }

    /// What a text says, if it counts back to chunks.
    fn of_text(text: Text) -> Option<Self> {
        let mut next = 0_u32;
        let mut part = |part: TextPart| match part {
            TextPart::Zeros { zeros } => Some(Part::Zeros { zeros }),
            TextPart::Back(back) => {
                let chunk = next.checked_sub(back)?;
                next = next.checked_add(u32::from(back == 0))?;
                Some(Part::Chunk(chunk))
            }
        };
        let mut file = |file: TextFile| {
            let parts = file.parts.into_iter().map(&mut part).collect::<Option<_>>()?;
            Some(IndexedFile { path: file.path, bytes: file.bytes, parts })
        };
        let Text { version, directories, files, chunks } = text;
        let files = files.into_iter().map(&mut file).collect::<Option<_>>()?;
        Some(Self { version, directories, files, chunks })
    }

    /// It, if a reader takes it.
    ///
    /// # Errors
    /// [`StoreError::Index`].
    pub(crate) fn checked(self) -> Result<Self, StoreError> {
        match self.check() {
            Ok(()) => Ok(self),
            Err(what) => Err(StoreError::Index { what }),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!(
                "its version is {}, and {VERSION} is read: use that of the writer",
                self.version
            ));
        }
        if self.directories.len() + self.files.len() > MAX_NAMES {
            return Err(format!("it has more than {MAX_NAMES} files"));
        }
        let parts: usize = self.files.iter().map(|file| file.parts.len()).sum();
        if parts.max(self.chunks.len()) > MAX_PARTS {
            return Err(format!("it has more than {MAX_PARTS} parts"));
        }
        let mut directories = BTreeSet::from([""]);
        let mut names = BTreeSet::new();
        for (path, is_directory) in self.paths() {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            let is_plain = !name.is_empty()
                && name.len() < 256
                && name != "."
                && name != ".."
                && !name.starts_with(OWN)
                && !name.contains('\0');
            if !is_plain || !directories.contains(parent) || path.split('/').count() > MAX_DEPTH {
                return Err(format!("{path:?} is no path in a checkpoint"));
            }
            if !names.insert(path) {
                return Err(format!("{path:?} is there twice"));
            }
            if is_directory {
                directories.insert(path);
            }
        }
        for chunk in &self.chunks {
            if chunk.bytes == 0 || chunk.bytes > MAX_CHUNK_BYTES {
                return Err(format!("a chunk has {} bytes", chunk.bytes));
            }
        }
        let mut is_used = vec![false; self.chunks.len()];
        let mut all = 0_u64;
        for file in &self.files {
            let mut sum = 0_u64;
            for part in &file.parts {
                let bytes = match *part {
                    Part::Zeros { zeros } => zeros,
                    Part::Chunk(chunk) => {
                        let name = self.chunks.get(chunk as usize);
                        let name =
                            name.ok_or_else(|| format!("{:?} has a chunk that is not listed", file.path))?;
                        is_used[chunk as usize] = true;
                        name.bytes
                    }
                };
                let added = sum.checked_add(bytes).filter(|_| bytes > 0);
                sum = added.ok_or_else(|| format!("{:?} has a part of {bytes} bytes", file.path))?;
            }
            if sum != file.bytes {
                return Err(format!(
                    "the parts of {:?} have {sum} bytes, and it has {}",
                    file.path, file.bytes
                ));
            }
            // As a file's length has to fit, so do all together.
            all = all
                .checked_add(sum)
                .filter(|all| i64::try_from(*all).is_ok())
                .ok_or("the files are too long")?;
        }
        let mut seen = BTreeSet::new();
        if !is_used.iter().all(|used| *used) || !self.chunks.iter().all(|chunk| seen.insert(chunk.hash)) {
            return Err("a chunk is listed that no file has, or twice".to_owned());
        }
        Ok(())
    }

    /// All paths, and whether they are of directories.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&str, bool)> {
        let directories = self.directories.iter().map(|path| (path.as_str(), true));
        directories.chain(self.files.iter().map(|file| (file.path.as_str(), false)))
    }

    /// The parts of a file of this index, which was checked, with their offsets and lengths.
    pub(crate) fn spans<'i>(&'i self, file: &'i IndexedFile) -> impl Iterator<Item = Span> + use<'i> {
        let mut next = 0;
        file.parts.iter().map(move |part| {
            let bytes = match *part {
                Part::Zeros { zeros } => zeros,
                Part::Chunk(chunk) => self.chunks[chunk as usize].bytes,
            };
            let offset = next;
            next += bytes;
            Span { offset, bytes, part: *part }
        })
    }

    /// Bytes of all files that are no zeros: so much of a disk they need.
    pub(crate) fn written_bytes(&self) -> u64 {
        let spans = self.files.iter().flat_map(|file| self.spans(file));
        spans.filter(|span| matches!(span.part, Part::Chunk(_))).map(|span| span.bytes).sum()
    }

    /// Bytes of all files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Bytes of all chunks, each once.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.bytes).sum()
    }

    /// Where the chunks are, by their places in the list: file and offset.
    pub(crate) fn places(&self) -> Vec<Vec<(usize, u64)>> {
        let mut places = vec![Vec::new(); self.chunks.len()];
        for (n, file) in self.files.iter().enumerate() {
            for Span { offset, part, .. } in self.spans(file) {
                if let Part::Chunk(chunk) = part {
                    places[chunk as usize].push((n, offset));
                }
            }
        }
        places
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file of a chunk, zeros and the chunk again; another of a chunk of its own.
    pub(crate) fn index() -> ChunkIndex {
        let file =
            |path: &str, bytes, parts: &[Part]| IndexedFile { path: path.into(), bytes, parts: parts.into() };
        ChunkIndex {
            directories: vec!["criu".into(), "criu/no-plugins".into()],
            files: vec![
                file("manifest.json", 14, &[Part::Chunk(0), Part::Zeros { zeros: 4 }, Part::Chunk(0)]),
                file("criu/core.img", 3, &[Part::Chunk(1)]),
                file("criu/empty.img", 0, &[]),
            ],
            chunks: vec![ChunkName::of(b"bytes"), ChunkName::of(b"two")],
            ..ChunkIndex::new()
        }
    }

    #[test]
    fn index_is_parsed_as_it_was_encoded() {
        let index = index();
        assert_eq!(ChunkIndex::parse(&index.encode().unwrap()).unwrap(), index);
        assert_eq!((index.file_bytes(), index.chunk_bytes()), (17, 8));
        assert_eq!(index.places(), [vec![(0, 0), (0, 9)], vec![(1, 0)]]);
        let text = String::from_utf8(index.encode().unwrap()).unwrap();
        assert!(text.contains(r#""parts":[0,{"zeros":4},1]"#) && text.contains(r#""parts":[0]"#), "{text}");
    }

    #[test]
    fn impossible_indices_are_refused_with_a_reason() {
        let refused = |change: &dyn Fn(&mut ChunkIndex), reason: &str| {
            let mut index = index();
            change(&mut index);
            let error = index.encode().and_then(|text| ChunkIndex::parse(&text)).unwrap_err().to_string();
            assert!(error.contains(reason), "{reason}: {error}");
        };
        for path in [
            "",
            "/etc/passwd",
            "../x",
            "a/../x",
            "criu//x",
            "other/x",
            ".",
            "criu/..",
            "a\0b",
            ".stasis-partial",
        ] {
            refused(&|index| index.files[0].path = path.into(), "is no path");
        }
        for path in ["criu/core.img", "criu", "criu/no-plugins"] {
            refused(&|index| index.files[0].path = path.into(), "there twice");
        }
        refused(&|index| index.directories.reverse(), "is no path");
        refused(&|index| index.files[0].bytes += 1, "have 14 bytes, and it has 15");
        for text in [r#"[1]"#, r#"[0, 2]"#, r#"[0, 4294967295]"#] {
            let text = format!(
                r#"{{"version": 1, "directories": [], "files": [{{"path": "a", "bytes": 3, "parts": {text}}}], "chunks": []}}"#
            );
            let error = ChunkIndex::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("not listed"), "{error}");
        }
        refused(&|index| index.files[1].parts.push(Part::Zeros { zeros: 0 }), "a part of 0 bytes");
        refused(&|index| index.files[1].parts.push(Part::Zeros { zeros: u64::MAX }), "a part of");
        refused(&|index| index.files[2].parts.push(Part::Zeros { zeros: u64::MAX >> 1 }), "and it has 0");
        let long = |index: &mut ChunkIndex| {
            let zeros = u64::MAX >> 1;
            index.files[2] =
                IndexedFile { bytes: zeros, parts: vec![Part::Zeros { zeros }], ..index.files[2].clone() };
        };
        refused(&long, "too long");
        refused(&|index| index.chunks.push(ChunkName::of(b"more")), "no file has");
        refused(&|index| index.chunks[1] = index.chunks[0], "and it has 3");
        refused(&|index| index.chunks[1].bytes = MAX_CHUNK_BYTES + 1, "a chunk has");
        refused(&|index| index.chunks.truncate(1), "not listed");
        refused(&|index| index.files[0].parts[0] = Part::Chunk(1), "not in order");
        refused(&|index| index.version = 2, "its version is 2");
        assert!(ChunkIndex::parse(b"{").is_err());
    }
}
