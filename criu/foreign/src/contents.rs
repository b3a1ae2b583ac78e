// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of memory that CRIU does not carry: into a file of the checkpoint, and back into memory, on all cores.
//!
//! INVARIANT: holes cost nothing, neither in the file nor in the memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::unistd::{Whence, lseek};
use stasis::Stopped;
use stasis::image::{CHUNK_BYTES, ChunkBuffer, Limit, for_each};

use crate::description::{Extent, Memory};
use crate::error::{ForeignError, system};

/// Bytes that are copied at once: a core's second cache has room for them.
const PIECE: usize = 1 << 20;
const _: () = assert!(PIECE as u64 <= CHUNK_BYTES, "a buffer has room for a piece");

/// A part of a file that is copied into another.
#[derive(Debug)]
struct Piece<'a> {
    from: (&'a File, u64),
    to: (&'a File, u64),
    bytes: usize,
}

/// The pieces of an extent; `turn` gives what is copied from and to where.
fn pieces<'a>(
    extent: &Extent,
    turn: impl Fn(u64) -> ((&'a File, u64), (&'a File, u64)),
) -> impl Iterator<Item = Piece<'a>> {
    let bytes = extent.bytes;
    (0..bytes).step_by(PIECE).map(move |done| {
        let (from, to) = turn(done);
        Piece { from, to, bytes: usize::try_from(bytes - done).map_or(PIECE, |left| left.min(PIECE)) }
    })
}

/// Why a copy failed.
struct CopyError(io::Error);

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

impl From<Stopped> for CopyError {
    fn from(stopped: Stopped) -> Self {
        Self(io::Error::other(stopped))
    }
}

/// Copies all pieces, each core some.
fn copy(pieces: &[Piece<'_>]) -> io::Result<()> {
    let copied = for_each(pieces.len(), 1, &Limit::none(), |n, buffer: &mut ChunkBuffer| {
        let Piece { from, to, bytes } = &pieces[n];
        let part = &mut buffer.bytes()?[..*bytes];
        from.0.read_exact_at(part, from.1)?;
        Ok::<_, CopyError>(to.0.write_all_at(part, to.1)?)
    });
    copied.map_err(|CopyError(error)| error)
}

/// The contents of memories, to be written one behind the other.
#[derive(Debug, Default)]
pub struct Plan {
    sources: Vec<(File, Vec<Extent>)>,
    end: u64,
}

impl Plan {
    /// Appends what is no hole of a memory of so many bytes; where that will be.
    ///
    /// # Errors
    /// The system's answer.
    pub fn append(&mut self, memory: OwnedFd, bytes: u64) -> io::Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut from = 0;
        while let Some((start, end)) = data(&memory, from, bytes)? {
            extents.push(Extent { offset: start, at: self.end, bytes: end - start });
            self.end += end - start;
            from = end;
        }
        self.sources.push((memory.into(), extents.clone()));
        Ok(extents)
    }

    /// Writes all to a new file, unless there is nothing to write, and to the disk; the bytes of the file.
    ///
    /// # Errors
    /// The system's answer.
    pub fn write(self, path: &Path) -> Result<u64, ForeignError> {
        if self.sources.is_empty() {
            return Ok(0);
        }
        let failed = || system(format!("write {}", path.display()));
        let file = File::options().write(true).create_new(true).open(path).map_err(failed())?;
        let mut all = Vec::new();
        for (memory, extents) in &self.sources {
            for extent in extents {
                let turn = |done| ((memory, extent.offset + done), (&file, extent.at + done));
                all.extend(pieces(extent, turn));
            }
        }
        copy(&all).map_err(failed())?;
        file.sync_all().map_err(failed())?;
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

/// Makes memory of a name, without contents.
///
/// # Errors
/// The system's answer.
pub fn make(memory: &Memory) -> Result<OwnedFd, ForeignError> {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    let made = kfd::linux::memfd(&memory.name, memory.bytes, seals);
    made.map_err(system(format!("make the memory {:?} of {} bytes", memory.name, memory.bytes)))
}

/// Fills memories from the file of contents.
///
/// # Errors
/// The system's answer, or that a memory or the file is too short.
pub fn fill(memories: &[(File, &Memory, &[Extent])], contents: &File) -> Result<(), ForeignError> {
    let mut all = Vec::new();
    for (file, memory, extents) in memories {
        let found = file.metadata().map_err(system(format!("look at the memory {:?}", memory.name)))?.len();
        if found < memory.bytes {
            return Err(ForeignError::Short { name: memory.name.clone(), found, wanted: memory.bytes });
        }
        for extent in *extents {
            let turn = |done| ((contents, extent.at + done), (file, extent.offset + done));
            all.extend(pieces(extent, turn));
        }
    }
    copy(&all).map_err(system("fill the memory of devices"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::Place;

    fn read(fd: &OwnedFd, bytes: u64) -> Vec<u8> {
        let mut all = vec![0; bytes as usize];
        File::from(fd.try_clone().unwrap()).read_exact_at(&mut all, 0).unwrap();
        all
    }

    #[test]
    fn memory_comes_back_with_its_bytes_and_its_holes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c");
        let bytes = 9 * PIECE as u64;
        let memory = kfd::linux::memfd("one", bytes, SealFlag::F_SEAL_SHRINK).unwrap();
        let view = File::from(memory.try_clone().unwrap());
        let some: Vec<u8> = (0..5 * PIECE + 5000).map(|n| (n % 251) as u8 + 1).collect();
        view.write_all_at(&some, 8192).unwrap();
        view.write_all_at(&[9; 10], bytes - 10).unwrap();
        let empty = kfd::linux::memfd("empty", 1 << 40, SealFlag::empty()).unwrap();
        let mut plan = Plan::default();
        assert_eq!(plan.append(empty, 1 << 40).unwrap(), []);
        let extents = plan.append(memory.try_clone().unwrap(), bytes).unwrap();
        let written = plan.write(&path).unwrap();
        assert_eq!(written, std::fs::metadata(&path).unwrap().len());
        assert!(written < 5 * PIECE as u64 + 64 * 1024, "{written}");
        let named = Memory { name: "two".into(), bytes, place: Place::Here(extents.clone()) };
        let made = make(&named).unwrap();
        let fill_from = |path: &Path, bytes: u64| {
            let target = File::from(made.try_clone().unwrap());
            let memory = Memory { bytes, ..named.clone() };
            fill(&[(target, &memory, &extents)], &File::open(path).unwrap())
        };
        fill_from(&path, bytes).unwrap();
        assert!(read(&made, bytes) == read(&memory, bytes));
        assert!(kfd::linux::seals(&made).unwrap().contains(SealFlag::F_SEAL_SHRINK));
        assert!(fill_from(&path, bytes + 1).unwrap_err().to_string().contains("two"));
        File::options().write(true).open(&path).unwrap().set_len(written - 1).unwrap();
        assert!(fill_from(&path, bytes).is_err());
        assert!(Plan::default().write(&path).is_ok_and(|written| written == 0));
    }
}
