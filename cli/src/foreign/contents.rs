// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of memory that no task has: into a file of the checkpoint, and back into new memory.
//!
//! INVARIANT: holes cost nothing, neither in the file nor in the memory that is made of it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::unistd::{Whence, lseek};

use super::description::{Extent, Memory, Place};

/// Bytes that are copied at once.
const CHUNK: usize = 4 << 20;

/// How many of so many bytes are copied at once.
fn chunk(bytes: u64) -> usize {
    usize::try_from(bytes).map_or(CHUNK, |bytes| bytes.min(CHUNK))
}

/// Writes the contents of memories one behind the other.
#[derive(Debug)]
pub struct Writer {
    file: File,
    end: u64,
}

impl Writer {
    /// Makes the file.
    ///
    /// # Errors
    /// The system's answer.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::options().write(true).create_new(true).open(path);
        Ok(Self { file: file.with_context(|| format!("Cannot make {}", path.display()))?, end: 0 })
    }

    /// Appends what is no hole of a memory of so many bytes; where that is.
    ///
    /// # Errors
    /// The system's answer.
    pub fn append(&mut self, memory: &OwnedFd, bytes: u64) -> io::Result<Place> {
        let source = File::from(memory.try_clone()?);
        let mut extents = Vec::new();
        let mut buffer = vec![0; CHUNK];
        let mut from = 0;
        while let Some((start, end)) = data(memory, from, bytes)? {
            extents.push(Extent { offset: start, at: self.end, bytes: end - start });
            let mut at = start;
            while at < end {
                let part = &mut buffer[..chunk(end - at)];
                source.read_exact_at(part, at)?;
                self.file.write_all(part)?;
                at += part.len() as u64;
            }
            self.end += end - start;
            from = end;
        }
        Ok(Place::Here(extents))
    }

    /// Has all written to the disk; the bytes of the file.
    ///
    /// # Errors
    /// The system's answer.
    pub fn finish(self) -> io::Result<u64> {
        self.file.sync_all()?;
        Ok(self.end)
    }
}

/// The next part behind `from` that is no hole.
fn data(memory: &OwnedFd, from: u64, bytes: u64) -> io::Result<Option<(u64, u64)>> {
    let offset = |value: u64| i64::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    if from >= bytes {
        return Ok(None);
    }
    let start = match lseek(memory.as_fd(), offset(from)?, Whence::SeekData) {
        Err(Errno::ENXIO) => return Ok(None),
        found => found?.cast_unsigned(),
    };
    let end = lseek(memory.as_fd(), offset(start)?, Whence::SeekHole)?.cast_unsigned();
    Ok(Some((start, end.min(bytes))).filter(|(start, end)| start < end))
}

/// Makes memory of a name and fills it from the file of contents.
///
/// # Errors
/// The system's answer, or that the file is too short.
pub fn make(memory: &Memory, extents: &[Extent], contents: Option<&File>) -> Result<OwnedFd> {
    let failed = || format!("Cannot make the memory {:?} of {} bytes", memory.name, memory.bytes);
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    let fd = kfd::linux::memfd(&memory.name, memory.bytes, seals).with_context(failed)?;
    let target = File::from(fd.try_clone().with_context(failed)?);
    let mut buffer = vec![0; chunk(memory.bytes)];
    for extent in extents {
        let contents = contents.context("The checkpoint lacks its file of memory")?;
        let mut done = 0;
        while done < extent.bytes {
            let part = &mut buffer[..chunk(extent.bytes - done)];
            contents.read_exact_at(part, extent.at + done).with_context(failed)?;
            target.write_all_at(part, extent.offset + done).with_context(failed)?;
            done += part.len() as u64;
        }
    }
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_with_its_bytes_and_its_holes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c");
        let bytes = 3 * CHUNK as u64;
        let memory = kfd::linux::memfd("one", bytes, SealFlag::F_SEAL_SHRINK).unwrap();
        let view = File::from(memory.try_clone().unwrap());
        let some: Vec<u8> = (0..CHUNK + 5000).map(|n| (n % 251) as u8 + 1).collect();
        view.write_all_at(&some, 8192).unwrap();
        view.write_all_at(&[9; 10], bytes - 10).unwrap();
        let empty = kfd::linux::memfd("empty", 1 << 40, SealFlag::empty()).unwrap();
        let mut writer = Writer::create(&path).unwrap();
        assert_eq!(writer.append(&empty, 1 << 40).unwrap(), Place::Here(Vec::new()));
        let place = writer.append(&memory, bytes).unwrap();
        let written = writer.finish().unwrap();
        assert!(written < CHUNK as u64 + 64 * 1024, "{written}");
        let Place::Here(extents) = place.clone() else { panic!("{place:?}") };
        let named = Memory { name: "two".into(), bytes, place };
        let made = make(&named, &extents, Some(&File::open(&path).unwrap())).unwrap();
        let read = |fd: &OwnedFd| {
            let mut all = vec![0; bytes as usize];
            File::from(fd.try_clone().unwrap()).read_exact_at(&mut all, 0).unwrap();
            all
        };
        assert!(read(&made) == read(&memory));
        assert!(kfd::linux::seals(&made).unwrap().contains(SealFlag::F_SEAL_SHRINK));
        assert!(make(&named, &extents, None).is_err());
        File::options().write(true).open(&path).unwrap().set_len(written - 1).unwrap();
        assert!(make(&named, &extents, Some(&File::open(&path).unwrap())).is_err());
    }
}
