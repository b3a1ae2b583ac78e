// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a stream: greetings and frames. All numbers are little-endian.
//!
//! ```text
//! greeting of the sender    "STASISST" u8 version  u8 1: it is answered  6 bytes, zero
//! greeting of the receiver  "STASISSR" u8 version  7 bytes, zero         32 bytes: challenge
//! 1 index   u8 1: the last  u64 microseconds that the process has stood still, or all ones  u64 length of the text
//!           u64 length of its object  32 bytes: its name  32 bytes: proof  object
//! 2 wanted  u32 number of chunks  a bit for each, from the lowest of the first byte on
//! 3 chunk   u32 place in the index  u32 length of its object  object
//! 4 end
//! 5 done    32 bytes: proof
//! 6 failed  u32 length  UTF-8 text
//! ```

use std::io::{self, ErrorKind, Read, Write};

use queues::words::count;

use crate::StoreError;
use crate::index::{MAX_CHUNK_BYTES, MAX_INDEX_BYTES};
use crate::object::Codec;

pub(super) const VERSION: u8 = 1;
pub(super) const SENDER: &[u8; 8] = b"STASISST";
pub(super) const RECEIVER: &[u8; 8] = b"STASISSR";
/// A time that nobody knows.
pub(super) const NOT_KNOWN: u64 = u64::MAX;
/// Longest text of a failure, bytes.
const MAX_TEXT: u32 = 4096;

/// What an index is sent with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexFrame {
    pub(super) is_last: bool,
    /// How long the process has stood still, microseconds.
    pub(super) stopped_us: u64,
    /// Length of its text.
    pub(super) bytes: u64,
    /// Name of its object.
    pub(super) name: [u8; 32],
    /// That the sender has the key, for this connection; zeros without a key.
    pub(super) proof: [u8; 32],
    pub(super) object: Vec<u8>,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Index(IndexFrame),
    /// A bit for each chunk.
    Wanted(Vec<bool>),
    Chunk {
        place: u32,
        object: Vec<u8>,
    },
    End,
    Done {
        proof: [u8; 32],
    },
    Failed(String),
}

fn bad(what: impl Into<String>) -> StoreError {
    StoreError::Stream { what: what.into() }
}

/// The error of a stream that ended, or a system call's.
pub(super) fn broken(act: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Broken { act, source }
}

const READING: &str = "nothing more came";

fn array<const N: usize>(reader: &mut dyn Read) -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes).map_err(broken(READING))?;
    Ok(bytes)
}

fn u32_of(reader: &mut dyn Read) -> Result<u32, StoreError> {
    array(reader).map(u32::from_le_bytes)
}

fn u64_of(reader: &mut dyn Read) -> Result<u64, StoreError> {
    array(reader).map(u64::from_le_bytes)
}

/// So many bytes; memory is used for what has come only.
fn bytes_of(reader: &mut dyn Read, length: u64) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    let read = reader.take(length).read_to_end(&mut bytes).map_err(broken(READING))?;
    match read as u64 == length {
        true => Ok(bytes),
        false => Err(broken(READING)(ErrorKind::UnexpectedEof.into())),
    }
}

/// Reads a greeting; returns the byte behind the version.
pub(super) fn read_greeting(reader: &mut dyn Read, magic: &[u8; 8]) -> Result<u8, StoreError> {
    let greeting: [u8; 16] = array(reader)?;
    if greeting[..8] != *magic {
        return Err(bad("it does not begin like one of `stasis`"));
    }
    if greeting[8] != VERSION {
        return Err(bad(format!(
            "its version is {}, and {VERSION} is read: use the same on both sides",
            greeting[8]
        )));
    }
    match greeting[10..] == [0; 6] {
        true => Ok(greeting[9]),
        false => Err(bad("a byte that has no meaning is not zero")),
    }
}

/// A greeting.
pub(super) fn greeting(magic: &[u8; 8], flags: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(magic);
    (bytes[8], bytes[9]) = (VERSION, flags);
    bytes
}

/// Reads the challenge behind the receiver's greeting.
pub(super) fn read_challenge(reader: &mut dyn Read) -> Result<[u8; 32], StoreError> {
    array(reader)
}

impl Frame {
    /// What it is, for errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Index(_) => "an index",
            Self::Wanted(_) => "what is wanted",
            Self::Chunk { .. } => "a chunk",
            Self::End => "the end",
            Self::Done { .. } => "that it is done",
            Self::Failed(_) => "that it failed",
        }
    }

    pub(super) fn write(&self, writer: &mut dyn Write) -> Result<(), StoreError> {
        let mut front = Vec::new();
        let rest: &[u8] = match self {
            Self::Index(index) => {
                front.extend([1, u8::from(index.is_last)]);
                front.extend(index.stopped_us.to_le_bytes());
                front.extend(index.bytes.to_le_bytes());
                front.extend((index.object.len() as u64).to_le_bytes());
                front.extend(index.name);
                front.extend(index.proof);
                &index.object
            }
            Self::Wanted(wanted) => {
                front.push(2);
                front.extend(count(wanted.len()).to_le_bytes());
                let byte =
                    |bits: &[bool]| (0..).zip(bits).fold(0, |byte, (n, bit)| byte | u8::from(*bit) << n);
                front.extend(wanted.chunks(8).map(byte));
                &[]
            }
            Self::Chunk { place, object } => {
                front.push(3);
                front.extend(place.to_le_bytes());
                front.extend(count(object.len()).to_le_bytes());
                object
            }
            Self::End => {
                front.push(4);
                &[]
            }
            Self::Done { proof } => {
                front.push(5);
                front.extend(proof);
                &[]
            }
            Self::Failed(text) => {
                let mut text = text.clone();
                while text.len() as u64 > u64::from(MAX_TEXT) {
                    text.pop();
                }
                front.push(6);
                front.extend(count(text.len()).to_le_bytes());
                front.extend(text.into_bytes());
                &[]
            }
        };
        writer
            .write_all(&front)
            .and_then(|()| writer.write_all(rest))
            .map_err(broken("nothing more could be sent"))
    }

    pub(super) fn read(reader: &mut dyn Read) -> Result<Self, StoreError> {
        let [kind] = array(reader)?;
        Ok(match kind {
            1 => {
                let [is_last] = array(reader)?;
                if is_last > 1 {
                    return Err(bad("an index is neither the last nor not"));
                }
                let (stopped_us, bytes, length) = (u64_of(reader)?, u64_of(reader)?, u64_of(reader)?);
                if bytes > MAX_INDEX_BYTES || length > Codec::most(MAX_INDEX_BYTES) {
                    return Err(bad(format!("an index has {bytes} bytes")));
                }
                let (name, proof) = (array(reader)?, array(reader)?);
                let object = bytes_of(reader, length)?;
                Self::Index(IndexFrame { is_last: is_last == 1, stopped_us, bytes, name, proof, object })
            }
            2 => {
                let chunks = u32_of(reader)?;
                let bytes = bytes_of(reader, u64::from(chunks.div_ceil(8)))?;
                let bits = bytes.iter().flat_map(|byte| (0..8).map(move |n| byte >> n & 1 == 1));
                Self::Wanted(bits.take(chunks as usize).collect())
            }
            3 => {
                let (place, length) = (u32_of(reader)?, u64::from(u32_of(reader)?));
                if length > Codec::most(MAX_CHUNK_BYTES) {
                    return Err(bad(format!("the object of a chunk has {length} bytes")));
                }
                Self::Chunk { place, object: bytes_of(reader, length)? }
            }
            4 => Self::End,
            5 => Self::Done { proof: array(reader)? },
            6 => {
                let length = u32_of(reader)?.min(MAX_TEXT);
                let text = bytes_of(reader, length.into())?;
                let text = String::from_utf8_lossy(&text);
                // It ends up on a terminal.
                Self::Failed(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
            }
            kind => return Err(bad(format!("a frame has kind {kind}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_and_never_in_part() {
        let index = IndexFrame {
            is_last: true,
            stopped_us: 5,
            bytes: 3,
            name: [1; 32],
            proof: [2; 32],
            object: vec![9; 4],
        };
        let frames = [
            Frame::Index(index),
            Frame::Wanted(vec![true, false, false, true, true, false, true, false, true]),
            Frame::Wanted(Vec::new()),
            Frame::Chunk { place: 70000, object: vec![1, 2, 3] },
            Frame::End,
            Frame::Done { proof: [3; 32] },
            Frame::Failed("the disk is full".into()),
        ];
        for frame in frames {
            let mut bytes = Vec::new();
            frame.write(&mut bytes).unwrap();
            assert_eq!(Frame::read(&mut &bytes[..]).unwrap(), frame);
            for length in 0..bytes.len() {
                let error = Frame::read(&mut &bytes[..length]).unwrap_err();
                assert!(matches!(error, StoreError::Broken { .. }), "{}: {error}", frame.kind());
            }
        }
    }

    #[test]
    fn impossible_frames_are_refused() {
        let long = [&[3][..], &[0; 4], &u32::MAX.to_le_bytes()].concat();
        let longer = [&[1, 1][..], &[0xff; 24]].concat();
        for bytes in [&[0][..], &[7], &[1, 2], &long, &longer] {
            assert!(matches!(Frame::read(&mut &bytes[..]), Err(StoreError::Stream { .. })), "{bytes:?}");
        }
        let mut text = Vec::new();
        Frame::Failed("\x1b[2Jx".repeat(2000)).write(&mut text).unwrap();
        let Frame::Failed(text) = Frame::read(&mut &text[..]).unwrap() else { panic!() };
        assert!(text.len() <= 4096 && text.starts_with(" [2Jx"));
    }

    #[test]
    fn greeting_of_another_version_or_program_is_refused() {
        let good = greeting(SENDER, 1);
        assert_eq!(read_greeting(&mut &good[..], SENDER).unwrap(), 1);
        assert!(read_greeting(&mut &good[..], RECEIVER).is_err());
        let mut newer = good;
        newer[8] += 1;
        assert!(read_greeting(&mut &newer[..], SENDER).unwrap_err().to_string().contains("version is 2"));
        assert!(read_greeting(&mut &b"GET / HTTP/1.1\r\n"[..], SENDER).is_err());
    }
}
