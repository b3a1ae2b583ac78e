// SPDX-License-Identifier: MIT OR Apache-2.0
//! Offload bundles: files with code objects for several targets, of which an agent's is selected.
//!
//! ```text
//! __CLANG_OFFLOAD_BUNDLE__   24 bytes
//! number of entries          u64
//! for each entry             u64 offset from the start, u64 size, u64 length of the id, the id
//! code objects               where the offsets say
//! ```
//!
//! Little-endian, without padding. An id is `<kind>-<triple>-<target id>`: `hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+`; its
//! triple may have three or four parts. Layout and rules of selection: "Bundled Binary File Layout", "Bundle Entry ID" and
//! "Compatibility Rules for Target ID" in `clang/docs/ClangOffloadBundler.rst`; `BinaryFileHandler` and
//! `isCodeObjectCompatible` in `clang/lib/Driver/OffloadBundler.cpp`. A bundle may be compressed (`compressed.rs`).
//!
//! INVARIANT: an entry that was read lies inside the bundle. Memory is taken for the file's entries, one piece and the one
//! entry that is wanted, never for what a header merely claims.

mod compressed;
mod error;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Read;

use queues::target::Target;
use queues::words::size;

use self::compressed::Compressed;
pub use self::error::BundleError;
use super::error::CodeObjectError;
use super::isa::{AgentFeatures, id_text};
use super::loader::MAX_IMAGE_BYTES;
use super::target_id::{Fit, TargetId};

const MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
/// The kind of entries that hold code for the CPU; they are often empty.
const HOST: &str = "host";
/// The most entries that a bundle may have: there are some sixty processors, a few with settings.
pub const MAX_ENTRIES: u64 = 1024;
/// The longest id of an entry, in bytes.
pub const MAX_ID_BYTES: u64 = 512;
/// The longest bundle that is decompressed, in bytes.
pub const MAX_BUNDLE_BYTES: u64 = 4 << 30;
/// The longest entry that is taken out of a compressed bundle, in bytes.
pub const MAX_ENTRY_BYTES: u64 = MAX_IMAGE_BYTES;

/// One entry of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    id: String,
    offset: u64,
    bytes: u64,
}

impl Entry {
    /// Its id, as it is in the file.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Length of its code object, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it is for, if that is an AMD GPU. An entry without code is for none.
    fn target(&self) -> Option<TargetId<'_>> {
        let (kind, target) = self.id.split_once('-')?;
        (kind != HOST && self.bytes > 0).then(|| TargetId::parse_in_bundle(target))?
    }

    /// Whether it has code for an AMD GPU.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.target().is_some()
    }
}

/// Where the bundle's bytes are.
#[derive(Debug, Clone)]
enum Body<'data> {
    Plain(&'data [u8]),
    Compressed(Compressed<'data>),
}

/// A bundle whose entries were read.
#[derive(Debug, Clone)]
pub struct Bundle<'data> {
    body: Body<'data>,
    entries: Vec<Entry>,
}

impl<'data> Bundle<'data> {
    /// Whether a file starts as a bundle does.
    #[must_use]
    pub fn is_bundle(file: &[u8]) -> bool {
        file.starts_with(MAGIC) || file.starts_with(compressed::MAGIC)
    }

    /// Reads the entries of a bundle. Of a compressed one no more is decompressed than that; its length and hash are
    /// checked by [`Bundle::code`].
    ///
    /// # Errors
    /// A variant of [`BundleError`] for the first thing that is wrong with the file.
    pub fn open(file: &'data [u8]) -> Result<Self, BundleError> {
        if file.starts_with(compressed::MAGIC) {
            let compressed = Compressed::parse(file)?;
            let entries = Reader { from: compressed.stream()?, at: 0, bytes: compressed.bytes }
                .entries(|error| compressed.damaged(error))?;
            return Ok(Self { body: Body::Compressed(compressed), entries });
        }
        let damaged = |_| BundleError::NotBundle { start: start_of(file) };
        let mut reader = Reader { from: file, at: 0, bytes: file.len() as u64 };
        let entries = reader.entries(damaged)?;
        let ends = entries.iter().map(|entry| entry.offset + entry.bytes);
        check_rest(file, ends.fold(reader.at, u64::max))?;
        Ok(Self { body: Body::Plain(file), entries })
    }

    /// All entries, in the file's order; those for the host are among them.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry for an agent: its processor's, or else that of a generic target with its processor. Settings that an entry
    /// names must be the agent's; of several such entries it is the one that names most.
    ///
    /// # Errors
    /// [`BundleError::NoCode`] with the agent's target identifier and all ids.
    pub fn select(&self, target: &Target, features: AgentFeatures) -> Result<&Entry, BundleError> {
        let fit = |entry: &Entry| entry.target()?.fit(target.name, features);
        let mut best: Option<(Fit, &Entry)> = None;
        for entry in &self.entries {
            // The first of those that are alike.
            if let Some(fit) = fit(entry)
                && best.is_none_or(|(before, _)| fit > before)
            {
                best = Some((fit, entry));
            }
        }
        let none = || BundleError::NoCode { agent: name_of(target, features), found: self.ids() };
        best.map(|(_, entry)| entry).ok_or_else(none)
    }

    /// The first entry with code for an AMD GPU.
    ///
    /// # Errors
    /// [`BundleError::NoDevice`] with all ids.
    pub fn first_device(&self) -> Result<&Entry, BundleError> {
        let first = self.entries.iter().find(|entry| entry.is_device());
        first.ok_or_else(|| BundleError::NoDevice { found: self.ids() })
    }

    /// The code object of one of its entries.
    ///
    /// # Errors
    /// Of a compressed bundle [`BundleError::TooLarge`], [`BundleError::Decompress`], [`BundleError::Length`],
    /// [`BundleError::Hash`]; of another bundle's entry [`BundleError::EntryRange`].
    pub fn code(&self, entry: &Entry) -> Result<Cow<'data, [u8]>, BundleError> {
        let bytes = match &self.body {
            Body::Plain(file) => file.len() as u64,
            Body::Compressed(compressed) => compressed.bytes,
        };
        entry.check_range(bytes)?;
        match &self.body {
            Body::Plain(file) => {
                // Inside the file, as checked.
                let (from, to) = (size(entry.offset), size(entry.offset + entry.bytes));
                Ok(Cow::Borrowed(file.get(from..to).unwrap_or_default()))
            }
            Body::Compressed(_) if entry.bytes > MAX_ENTRY_BYTES => {
                Err(BundleError::TooLarge { what: "entry", bytes: entry.bytes, limit: MAX_ENTRY_BYTES })
            }
            Body::Compressed(compressed) => compressed.part(entry.offset, entry.bytes).map(Cow::Owned),
        }
    }

    fn ids(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.id.clone()).collect()
    }
}

/// The code object of a file that an agent is to run: the file itself, or its entry in a bundle.
///
/// # Errors
/// [`CodeObjectError::Bundle`]. Whether a file that is no bundle is a code object is not looked at.
pub fn code_for<'data>(
    file: &'data [u8],
    target: &Target,
    features: AgentFeatures,
) -> Result<Cow<'data, [u8]>, CodeObjectError> {
    if !Bundle::is_bundle(file) {
        return Ok(Cow::Borrowed(file));
    }
    let bundle = Bundle::open(file)?;
    Ok(bundle.code(bundle.select(target, features)?)?)
}

impl Entry {
    fn check_range(&self, bytes: u64) -> Result<(), BundleError> {
        let Self { id, offset, bytes: size } = self;
        match offset.checked_add(*size) {
            Some(end) if end <= bytes => Ok(()),
            _ => Err(BundleError::EntryRange { id: id.clone(), offset: *offset, size: *size, bytes }),
        }
    }
}

/// Reads a bundle's header.
struct Reader<R> {
    from: R,
    at: u64,
    /// Length of the bundle.
    bytes: u64,
}

impl<R: Read> Reader<R> {
    /// `damaged` says what it means that bytes inside the bundle cannot be read.
    fn entries(
        &mut self,
        damaged: impl Fn(std::io::Error) -> BundleError,
    ) -> Result<Vec<Entry>, BundleError> {
        let magic = self.take(MAGIC.len() as u64, "the magic string", &damaged)?;
        if magic != MAGIC {
            return Err(BundleError::NotBundle { start: start_of(&magic) });
        }
        let count = self.number("the number of entries", &damaged)?;
        if count > MAX_ENTRIES {
            return Err(BundleError::Entries { found: count, limit: MAX_ENTRIES });
        }
        let (mut entries, mut ids) = (Vec::new(), BTreeSet::new());
        for index in 0..count {
            let offset = self.number("an entry's offset", &damaged)?;
            let bytes = self.number("an entry's size", &damaged)?;
            let length = self.number("the length of an entry's id", &damaged)?;
            if length > MAX_ID_BYTES {
                return Err(BundleError::IdBytes { index, found: length, limit: MAX_ID_BYTES });
            }
            let id = self.take(length, "an entry's id", &damaged)?;
            let is_text = !id.is_empty() && id.iter().all(u8::is_ascii_graphic);
            let id = String::from_utf8(id).map_err(std::string::FromUtf8Error::into_bytes);
            let id = match id {
                Ok(id) if is_text => id,
                Ok(id) => return Err(BundleError::IdText { index, id: id.into_bytes() }),
                Err(id) => return Err(BundleError::IdText { index, id }),
            };
            let entry = Entry { id, offset, bytes };
            entry.check_range(self.bytes)?;
            if !ids.insert(entry.id.clone()) {
                return Err(BundleError::Duplicate { id: entry.id });
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn number(
        &mut self,
        what: &'static str,
        damaged: &impl Fn(std::io::Error) -> BundleError,
    ) -> Result<u64, BundleError> {
        let field = self.take(8, what, damaged)?;
        Ok(field.first_chunk().map_or(0, |field| u64::from_le_bytes(*field)))
    }

    /// `wanted` is at most [`MAX_ID_BYTES`].
    fn take(
        &mut self,
        wanted: u64,
        what: &'static str,
        damaged: &impl Fn(std::io::Error) -> BundleError,
    ) -> Result<Vec<u8>, BundleError> {
        let (at, bytes) = (self.at, self.bytes);
        if wanted > bytes - at {
            return Err(BundleError::Truncated { what, wanted, at, bytes });
        }
        let mut field = vec![0; size(wanted)];
        self.from.read_exact(&mut field).map_err(damaged)?;
        self.at += wanted;
        Ok(field)
    }
}

/// Refuses a file that goes on behind the bundle's end with anything but zeros.
fn check_rest(file: &[u8], end: u64) -> Result<(), BundleError> {
    // Callers have compared it with the file's length.
    let rest = file.get(size(end)..).unwrap_or_default();
    if rest.iter().any(|byte| *byte != 0) {
        return Err(BundleError::Rest { end, bytes: rest.len() as u64 });
    }
    Ok(())
}

fn start_of(bytes: &[u8]) -> Vec<u8> {
    bytes.get(..MAGIC.len()).unwrap_or(bytes).to_vec()
}

/// An agent's target identifier: features in alphabetical order, as in ids.
fn name_of(target: &Target, features: AgentFeatures) -> String {
    let sign = |is_there: bool, is_on| is_there.then_some(if is_on { '+' } else { '-' });
    id_text(target.name, sign(target.sramecc, features.sramecc), sign(target.xnack, features.xnack))
}
