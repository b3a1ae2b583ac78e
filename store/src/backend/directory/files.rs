// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that get their names when they are on the disk, and files that are read through no link.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use queues::words::size;

use crate::error::{StoreError, failed};

/// Makes a directory whose name begins with `prefix` and that nobody else has.
pub(crate) fn make_unique(parent: &Path, prefix: &str) -> Result<PathBuf, StoreError> {
    for n in 0_u64.. {
        let path = parent.join(format!("{prefix}{}-{n}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("create", &path)(error)),
        }
    }
    unreachable!("a number is free")
}

/// Writes a file that is not there.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Writes a text to the disk in a directory of its own in `incoming`, and has it named then.
fn write_and_name<T>(
    incoming: &Path,
    bytes: &[u8],
    name: impl FnOnce(&Path) -> io::Result<T>,
) -> Result<io::Result<T>, StoreError> {
    let own = make_unique(incoming, "")?;
    let pending = own.join("pending");
    let write = || write_new(&pending, bytes)?.sync_all();
    let named = write().map_err(failed("write", &pending)).map(|()| name(&pending));
    let _ = fs::remove_dir_all(&own);
    named
}

/// Gives a text that is on the disk the name `place`, unless there is one of that name: whether it has it.
pub(super) fn publish(incoming: &Path, place: &Path, bytes: &[u8]) -> Result<bool, StoreError> {
    match write_and_name(incoming, bytes, |pending| fs::hard_link(pending, place))? {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        linked => linked.map_err(failed("name", place))?,
    }
    sync_directory(place.parent().unwrap_or(place))?;
    Ok(true)
}

/// Gives a text that is on the disk the name `place`, in the place of what has it.
pub(super) fn replace(incoming: &Path, place: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let renamed = write_and_name(incoming, bytes, |pending| fs::rename(pending, place))?;
    renamed.map_err(failed("replace", place))?;
    sync_directory(place.parent().unwrap_or(place))
}

pub(super) fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(failed("sync", directory))
}

/// Opens what is there, without waiting and through no link.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    File::options().read(true).custom_flags(flags).open(path)
}

/// The bytes of a regular file of at most so many.
pub(super) fn read_at_most(file: File, most: u64) -> io::Result<Vec<u8>> {
    let status = file.metadata()?;
    if !status.is_file() || status.len() > most {
        return Err(io::Error::from(Errno::EFBIG));
    }
    let mut bytes = Vec::with_capacity(size(status.len()));
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The directories in one, without links to others.
pub(super) fn directories(path: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(failed("read", path))?,
    };
    for entry in entries {
        let entry = entry.map_err(failed("read", path))?;
        if entry.file_type().map_err(failed("stat", &entry.path()))?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}
