// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a stream: greetings and frames. All numbers are little-endian.
//!
//! ```text
//! greeting of the sender    "STASISST" u8 version  u8 1: it is answered  6 bytes, zero  32 bytes: nonce
//! greeting of the receiver  "STASISSR" u8 version  7 bytes, zero                        32 bytes: nonce  32 bytes: proof
//! of the sender             32 bytes: proof
//! of the receiver           frame 6 or 7
//!
//! 1 index   u8 1: the last  u64 microseconds that the process has stood still, or all ones  u64 length of the text
//!           u64 length of its object  32 bytes: its name  32 bytes: proof  object
//! 2 wanted  u32 number of chunks  a bit for each, from the lowest of the first byte on
//! 3 chunk   u32 place in the index  u32 length of its object  object
//! 4 end
//! 5 done    32 bytes: proof
//! 6 failed  u32 length  UTF-8 text
//! 7 alive   the side that says so is at work; between any two frames
//! ```
//! Without a key a proof is zeros.

use std::io::{self, ErrorKind, Read, Write};

use queues::words::count;

use crate::StoreError;
use crate::index::{MAX_CHUNK_BYTES, MAX_INDEX_BYTES};
use crate::object::Codec;

pub(super) const VERSION: u8 = 1;
pub(super) const SENDER: &[u8; 8] = b"STASISST";
pub(super) const RECEIVER: &[u8; 8] = b"STASISSR";
/// After so many words that the other side is at work no reason is expected any more.
const MAX_ALIVE: usize = 64;
/// Length of a nonce, and of a proof.
pub(super) const PROOF_BYTES: usize = 32;
/// Length of a greeting: magic, version and flags, nonce.
pub(super) const GREETING_BYTES: usize = 16 + PROOF_BYTES;
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
    Alive,
}

/// Kinds of frames.
pub(super) const INDEX: u8 = 1;
pub(super) const WANTED: u8 = 2;
pub(super) const CHUNK: u8 = 3;
pub(super) const END: u8 = 4;
pub(super) const DONE: u8 = 5;
const FAILED: u8 = 6;
const ALIVE: u8 = 7;

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

/// Takes a greeting apart: the byte behind the version, and the nonce.
pub(super) fn parse_greeting(
    greeting: &[u8; GREETING_BYTES],
    magic: &[u8; 8],
) -> Result<(u8, [u8; PROOF_BYTES]), StoreError> {
    if greeting[..8] != *magic {
        return Err(bad("it does not begin like one of `stasis`"));
    }
    if greeting[8] != VERSION {
        let found = greeting[8];
        return Err(bad(format!(
            "its version is {found}, and {VERSION} is read: use the same on both sides"
        )));
    }
    if greeting[10..16] != [0; 6] {
        return Err(bad("a byte that has no meaning is not zero"));
    }
    let mut nonce = [0; PROOF_BYTES];
    nonce.copy_from_slice(&greeting[16..]);
    Ok((greeting[9], nonce))
}

/// A greeting.
pub(super) fn greeting(magic: &[u8; 8], flags: u8, nonce: &[u8; PROOF_BYTES]) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(magic);
    (bytes[8], bytes[9]) = (VERSION, flags);
    bytes[16..].copy_from_slice(nonce);
    bytes
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
            Self::Alive => "that it is at work",
        }
    }

    pub(super) fn write(&self, writer: &mut dyn Write) -> Result<(), StoreError> {
        let mut front = Vec::new();
        let rest: &[u8] = match self {
            Self::Index(index) => {
                front.extend([INDEX, u8::from(index.is_last)]);
                front.extend(index.stopped_us.to_le_bytes());
                front.extend(index.bytes.to_le_bytes());
                front.extend((index.object.len() as u64).to_le_bytes());
                front.extend(index.name);
                front.extend(index.proof);
                &index.object
            }
            Self::Wanted(wanted) => {
                front.push(WANTED);
                front.extend(count(wanted.len()).to_le_bytes());
                let byte =
                    |bits: &[bool]| (0..).zip(bits).fold(0, |byte, (n, bit)| byte | u8::from(*bit) << n);
                front.extend(wanted.chunks(8).map(byte));
                &[]
            }
            Self::Chunk { place, object } => {
                front.push(CHUNK);
                front.extend(place.to_le_bytes());
                front.extend(count(object.len()).to_le_bytes());
                object
            }
            Self::End => {
                front.push(END);
                &[]
            }
            Self::Done { proof } => {
                front.push(DONE);
                front.extend(proof);
                &[]
            }
            Self::Failed(text) => {
                let mut text = text.clone();
                while text.len() as u64 > u64::from(MAX_TEXT) {
                    text.pop();
                }
                front.push(FAILED);
                front.extend(count(text.len()).to_le_bytes());
                front.extend(text.into_bytes());
                &[]
            }
            Self::Alive => {
                front.push(ALIVE);
                &[]
            }
        };
        writer
            .write_all(&front)
            .and_then(|()| writer.write_all(rest))
            .map_err(broken("nothing more could be sent"))
    }

    /// Reads the next frame, which has to be of one of `kinds`, or a failure; what is wanted, of so many `chunks`. That the other side is
    /// at work is passed over.
    pub(super) fn read(reader: &mut dyn Read, kinds: &[u8], chunks: usize) -> Result<Self, StoreError> {
        loop {
            let [kind] = array(reader)?;
            if kind == ALIVE && !kinds.contains(&ALIVE) {
                continue;
            }
            if kind != FAILED && !kinds.contains(&kind) {
                return Err(bad(format!("a frame of kind {kind} came where it has no place")));
            }
            return Self::read_rest(reader, kind, chunks);
        }
    }

    /// The text of a failure, if that is what comes next. That the other side is at work is passed over, but not for ever.
    pub(super) fn read_failure(reader: &mut dyn Read) -> Option<String> {
        for _ in 0..MAX_ALIVE {
            let [kind] = array(reader).ok()?;
            if kind != ALIVE {
                let frame = (kind == FAILED).then(|| Self::read_rest(reader, kind, 0));
                return frame.and_then(Result::ok).and_then(|frame| match frame {
                    Self::Failed(text) => Some(text),
                    _ => None,
                });
            }
        }
        None
    }

    /// Waits until the other side says that it has taken what it was greeted with.
    pub(super) fn read_accepted(reader: &mut dyn Read) -> Result<Self, StoreError> {
        Self::read(reader, &[ALIVE], 0)
    }

    fn read_rest(reader: &mut dyn Read, kind: u8, chunks: usize) -> Result<Self, StoreError> {
        Ok(match kind {
            INDEX => {
                let [is_last] = array(reader)?;
                if is_last > 1 {
                    return Err(bad("whether an index is the last has two answers"));
                }
                let (stopped_us, bytes, length) = (u64_of(reader)?, u64_of(reader)?, u64_of(reader)?);
                if bytes > MAX_INDEX_BYTES || length > Codec::most(MAX_INDEX_BYTES) {
                    return Err(bad(format!("an index has {bytes} bytes")));
                }
                let (name, proof) = (array(reader)?, array(reader)?);
                let object = bytes_of(reader, length)?;
                Self::Index(IndexFrame { is_last: is_last == 1, stopped_us, bytes, name, proof, object })
            }
            WANTED => {
                let found = u32_of(reader)?;
                if found as usize != chunks {
                    return Err(bad(format!("{found} chunks can be wanted, and the index has {chunks}")));
                }
                let bytes = bytes_of(reader, u64::from(found.div_ceil(8)))?;
                let bits = bytes.iter().flat_map(|byte| (0..8).map(move |n| byte >> n & 1 == 1));
                Self::Wanted(bits.take(chunks).collect())
            }
            CHUNK => {
                let (place, length) = (u32_of(reader)?, u64::from(u32_of(reader)?));
                if length > Codec::most(MAX_CHUNK_BYTES) {
                    return Err(bad(format!("the object of a chunk has {length} bytes")));
                }
                Self::Chunk { place, object: bytes_of(reader, length)? }
            }
            END => Self::End,
            DONE => Self::Done { proof: array(reader)? },
            FAILED => {
                let length = u32_of(reader)?.min(MAX_TEXT);
                let text = bytes_of(reader, length.into())?;
                let text = String::from_utf8_lossy(&text);
                // It ends up on a terminal.
                Self::Failed(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
            }
            _ => Self::Alive,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u8; 5] = [INDEX, WANTED, CHUNK, END, DONE];

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
        let wanted = vec![true, false, false, true, true, false, true, false, true];
        let frames = [
            (Frame::Index(index), 0),
            (Frame::Wanted(wanted), 9),
            (Frame::Wanted(Vec::new()), 0),
            (Frame::Chunk { place: 70000, object: vec![1, 2, 3] }, 0),
            (Frame::End, 0),
            (Frame::Done { proof: [3; 32] }, 0),
            (Frame::Failed("the disk is full".into()), 0),
        ];
        for (frame, chunks) in frames {
            let mut bytes = Vec::new();
            Frame::Alive.write(&mut bytes).unwrap();
            frame.write(&mut bytes).unwrap();
            assert_eq!(Frame::read(&mut &bytes[..], &ALL, chunks).unwrap(), frame);
            for length in 0..bytes.len() {
                let error = Frame::read(&mut &bytes[..length], &ALL, chunks).unwrap_err();
                assert!(matches!(error, StoreError::Broken { .. }), "{}: {error}", frame.kind());
            }
        }
    }

    #[test]
    fn impossible_frames_are_refused_before_memory_is_used_for_them() {
        let long = [&[CHUNK][..], &[0; 4], &u32::MAX.to_le_bytes()].concat();
        let longer = [&[INDEX, 1][..], &[0xff; 24]].concat();
        let many = [&[WANTED][..], &u32::MAX.to_le_bytes()].concat();
        for bytes in [&[0][..], &[8], &[INDEX, 2], &long, &longer, &many] {
            assert!(
                matches!(Frame::read(&mut &bytes[..], &ALL, 5), Err(StoreError::Stream { .. })),
                "{bytes:?}"
            );
        }
        assert!(matches!(Frame::read(&mut &[END][..], &[CHUNK], 0), Err(StoreError::Stream { .. })));
        let mut text = Vec::new();
        Frame::Failed("\x1b[2Jx".repeat(2000)).write(&mut text).unwrap();
        let Frame::Failed(text) = Frame::read(&mut &text[..], &[], 0).unwrap() else { panic!() };
        assert!(text.len() <= 4096 && text.starts_with(" [2Jx"));
    }

    #[test]
    fn greeting_of_another_version_or_program_is_refused() {
        let good = greeting(SENDER, 1, &[9; 32]);
        assert_eq!(parse_greeting(&good, SENDER).unwrap(), (1, [9; 32]));
        assert!(parse_greeting(&good, RECEIVER).is_err());
        let mut newer = good;
        newer[8] += 1;
        assert!(parse_greeting(&newer, SENDER).unwrap_err().to_string().contains("version is 2"));
        let mut request = [b' '; GREETING_BYTES];
        request[..16].copy_from_slice(b"GET / HTTP/1.1\r\n");
        assert!(parse_greeting(&request, SENDER).is_err());
    }
}
