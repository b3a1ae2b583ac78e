// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compressed bundles: the header of versions 1 to 3, and the bundle's bytes out of it.
//!
//! ```text
//!             magic  version  method  file's bytes  bundle's bytes  hash
//! version 1   CCOB   u16      u16     -             u32             u64     then the compressed bundle
//! version 2   CCOB   u16      u16     u32           u32             u64
//! version 3   CCOB   u16      u16     u64           u64             u64
//! ```
//!
//! Little-endian, without padding. Methods are those of LLVM's `compression::Format`; the hash is the first half of the
//! bundle's MD5. Layout: "Compression and Decompression" in `clang/docs/ClangOffloadBundler.rst`, and
//! `RawCompressedBundleHeader` in `clang/lib/Driver/OffloadBundler.cpp`.
//!
//! INVARIANT: what is kept is no longer than what was asked for; the rest of the bundle passes through one piece of
//! memory. Nothing is handed out before length and hash are those of the header.

use std::io::Read;

use flate2::read::ZlibDecoder;
use queues::words::size;
use ruzstd::decoding::StreamingDecoder;

use super::error::BundleError;
use super::{MAX_BUNDLE_BYTES, check_rest};

/// Its first bytes.
pub(super) const MAGIC: &[u8] = b"CCOB";
/// The longest window of zstd: that of its long-distance matching, which compilers use for bundles.
const MAX_WINDOW_BYTES: u64 = 128 << 20;
/// Bytes decompressed at a time.
const PIECE: usize = 64 << 10;

/// How the bundle was compressed.
#[derive(Debug, Clone, Copy)]
enum Method {
    Zlib,
    Zstd,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }
}

/// A compressed bundle whose header was checked.
#[derive(Debug, Clone)]
pub(super) struct Compressed<'data> {
    method: Method,
    /// Length of the bundle, as the header says.
    pub bytes: u64,
    hash: u64,
    data: &'data [u8],
}

impl<'data> Compressed<'data> {
    /// Reads the header.
    pub fn parse(file: &'data [u8]) -> Result<Self, BundleError> {
        let mut header = Header { file, at: MAGIC.len() };
        let version = u16::from_le_bytes(header.take("the version")?);
        if !(1..=3).contains(&version) {
            return Err(BundleError::Version { found: version });
        }
        let method = match u16::from_le_bytes(header.take("the compression method")?) {
            0 => Method::Zlib,
            1 => Method::Zstd,
            found => return Err(BundleError::Method { found }),
        };
        let is_wide = version == 3;
        let in_file = match version {
            1 => None,
            _ => Some(header.length("the file's length", is_wide)?),
        };
        let bytes = header.length("the bundle's length", is_wide)?;
        let hash = u64::from_le_bytes(header.take("the hash")?);
        if bytes > MAX_BUNDLE_BYTES {
            return Err(BundleError::TooLarge { what: "offload bundle", bytes, limit: MAX_BUNDLE_BYTES });
        }
        let (start, found) = (header.at, file.len() as u64);
        let declared = in_file.unwrap_or(found);
        let end = usize::try_from(declared).ok().filter(|end| (start..=file.len()).contains(end));
        let data = end.and_then(|end| file.get(start..end));
        let data = data.ok_or(BundleError::FileBytes { declared, header: start as u64, found })?;
        check_rest(file, declared)?;
        Ok(Self { method, bytes, hash, data })
    }

    /// The bundle from its start. Neither length nor hash are checked.
    pub fn stream(&self) -> Result<Box<dyn Read + 'data>, BundleError> {
        Ok(match self.method {
            Method::Zlib => Box::new(ZlibDecoder::new(self.data)),
            Method::Zstd => {
                let decoder = StreamingDecoder::new_with_max_window_size(self.data, MAX_WINDOW_BYTES);
                Box::new(decoder.map_err(|error| self.damaged(error))?)
            }
        })
    }

    /// An error of the decoder.
    pub fn damaged(&self, error: impl std::fmt::Display) -> BundleError {
        BundleError::Decompress { method: self.method.name(), why: error.to_string() }
    }

    /// `bytes` bytes from `offset` on, after all of the bundle was decompressed and compared with the header.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, BundleError> {
        let (mut from, mut hash) = (self.stream()?, md5::Context::new());
        let (mut piece, mut kept, mut at) = (vec![0; PIECE], Vec::new(), 0u64);
        loop {
            let n = from.read(&mut piece).map_err(|error| self.damaged(error))?;
            let piece = &piece[..n];
            if piece.is_empty() {
                break;
            }
            hash.consume(piece);
            // Both ends are at most the piece's length.
            let inside = |place: u64| size(place.saturating_sub(at).min(n as u64));
            kept.extend_from_slice(&piece[inside(offset)..inside(offset.saturating_add(bytes))]);
            at += n as u64;
            if at > self.bytes {
                break;
            }
        }
        if at != self.bytes {
            return Err(BundleError::Length { declared: self.bytes, found: at });
        }
        let found = first_half(&hash.finalize().0);
        if found != self.hash {
            return Err(BundleError::Hash { declared: self.hash, found });
        }
        Ok(kept)
    }
}

/// The first eight bytes of a hash as a number.
fn first_half(hash: &[u8; 16]) -> u64 {
    hash.first_chunk().map_or(0, |half| u64::from_le_bytes(*half))
}

/// Takes fields from the start of a file.
struct Header<'data> {
    file: &'data [u8],
    at: usize,
}

impl Header<'_> {
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], BundleError> {
        let field = self.file.get(self.at..).and_then(|rest| rest.first_chunk());
        let (at, bytes) = (self.at as u64, self.file.len() as u64);
        let field = field.ok_or(BundleError::Truncated { what, wanted: N as u64, at, bytes })?;
        self.at += N;
        Ok(*field)
    }

    /// A length of 64 or of 32 bits.
    fn length(&mut self, what: &'static str, is_wide: bool) -> Result<u64, BundleError> {
        match is_wide {
            true => self.take(what).map(u64::from_le_bytes),
            false => self.take(what).map(|field| u32::from_le_bytes(field).into()),
        }
    }
}
