// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of files that only this user can have written.
//!
//! INVARIANT: a file is read only through descriptors of a directory and of a regular file that both belong to the effective
//! user and that nobody else can write, as was found out about these descriptors. None stays open behind a call, so that
//! a process that is checkpointed has none.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use thiserror::Error;

use super::file::MAX_FILE;

/// Of files that are being written.
const UNFINISHED: &[u8] = b"new-";
/// After this time whoever began to write a file does not finish it.
const ABANDONED: Duration = Duration::from_secs(3600);
/// How old the time of a file's last use may become before it is set again.
const TOUCHED: Duration = Duration::from_secs(60);

/// Why a directory or a file in it is not used.
#[derive(Debug, Error)]
pub(super) enum AccessError {
    #[error("{call} of {}", name.display())]
    Call {
        call: &'static str,
        name: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} belongs to user {found}, not to {wanted}", name.display())]
    Owner { name: PathBuf, found: u32, wanted: u32 },
    #[error("Other users can write {}: its mode is {mode:o}", name.display())]
    Mode { name: PathBuf, mode: u32 },
    #[error("{} is no regular file of at most {MAX_FILE} bytes: mode {mode:o}, {bytes} bytes", name.display())]
    Kind { name: PathBuf, mode: u32, bytes: i64 },
}

impl AccessError {
    /// Whether a file is something that was not written as one of these files.
    pub(super) fn is_strange(&self) -> bool {
        let strange = [Errno::ELOOP, Errno::ENXIO].map(|errno| Some(errno as i32));
        match self {
            Self::Call { source, .. } => strange.contains(&source.raw_os_error()),
            Self::Owner { .. } | Self::Mode { .. } | Self::Kind { .. } => true,
        }
    }
}

fn failed(call: &'static str, name: impl AsRef<Path>) -> impl FnOnce(Errno) -> AccessError {
    let name = name.as_ref().to_owned();
    move |errno| AccessError::Call { call, name, source: errno.into() }
}

/// Where the directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Exists. Links are followed, since it is what the user named.
    pub base: PathBuf,
    /// Whether it has to be the effective user's. Root, for example, may have another user's home.
    pub is_own: bool,
    /// Directories in it, each in the one before; made when they are not there.
    pub below: Vec<OsString>,
}

/// The owner has to be the effective user, and nobody else may write.
fn check(name: &Path, status: &FileStat) -> Result<(), AccessError> {
    let wanted = geteuid().as_raw();
    if status.st_uid != wanted {
        return Err(AccessError::Owner { name: name.to_owned(), found: status.st_uid, wanted });
    }
    if status.st_mode & 0o022 != 0 {
        return Err(AccessError::Mode { name: name.to_owned(), mode: status.st_mode });
    }
    Ok(())
}

impl Place {
    /// Opens the directory.
    fn open(&self) -> Result<OwnedFd, AccessError> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let mut name = self.base.clone();
        let mut directory = open(&name, flags, Mode::empty()).map_err(failed("open", &name))?;
        if self.is_own {
            let status = fstat(&directory).map_err(failed("fstat", &name))?;
            let (found, wanted) = (status.st_uid, geteuid().as_raw());
            if found != wanted {
                return Err(AccessError::Owner { name, found, wanted });
            }
        }
        for part in &self.below {
            name.push(part);
            let part = part.as_os_str();
            let flags = flags | OFlag::O_NOFOLLOW;
            let opened = match openat(&directory, part, flags, Mode::empty()) {
                Err(Errno::ENOENT) => {
                    match mkdirat(&directory, part, Mode::S_IRWXU) {
                        // Another process was faster.
                        Ok(()) | Err(Errno::EEXIST) => {}
                        Err(errno) => return Err(failed("mkdir", &name)(errno)),
                    }
                    openat(&directory, part, flags, Mode::empty())
                }
                opened => opened,
            };
            directory = opened.map_err(failed("open", &name))?;
            check(&name, &fstat(&directory).map_err(failed("fstat", &name))?)?;
        }
        Ok(directory)
    }

    /// The contents of a file; `None` if there is none. That it was used is noted.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, AccessError> {
        let directory = self.open()?;
        // Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = match openat(&directory, name, flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(None),
            opened => opened.map_err(failed("open", name))?,
        };
        let status = fstat(&file).map_err(failed("fstat", name))?;
        check(Path::new(name), &status)?;
        let is_regular = status.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
        let length = usize::try_from(status.st_size).ok().filter(|&length| is_regular && length <= MAX_FILE);
        let Some(length) = length else {
            let (mode, bytes) = (status.st_mode, status.st_size);
            return Err(AccessError::Kind { name: name.into(), mode, bytes });
        };
        let mut file = File::from(file);
        let mut bytes = vec![0; length];
        let call = |call| move |source| AccessError::Call { call, name: name.into(), source };
        file.read_exact(&mut bytes).map_err(call("read"))?;
        let now = SystemTime::now();
        let used = file.metadata().and_then(|metadata| metadata.modified());
        if used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age > TOUCHED)) {
            file.set_modified(now).map_err(call("utimens"))?;
        }
        Ok(Some(bytes))
    }

    /// Writes a file, which is there as a whole or not at all.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), AccessError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let directory = self.open()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unfinished = format!("new-{}-{number}", std::process::id());
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file =
            openat(&directory, unfinished.as_str(), flags, mode).map_err(failed("create", &unfinished))?;
        let written = File::from(file).write_all(bytes);
        let written =
            written.map_err(|source| AccessError::Call { call: "write", name: name.into(), source });
        let written = written.and_then(|()| {
            renameat(&directory, unfinished.as_str(), &directory, name).map_err(failed("rename", name))
        });
        if written.is_err() {
            // It cannot be told how this fails as well.
            let _ = unlinkat(&directory, unfinished.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        written
    }

    /// Removes a file or link that is not what it should be, if it is the user's own.
    pub(super) fn remove(&self, name: &str) -> Result<(), AccessError> {
        let directory = self.open()?;
        let status = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed("stat", name))?;
        let (found, wanted) = (status.st_uid, geteuid().as_raw());
        if found != wanted {
            return Err(AccessError::Owner { name: name.into(), found, wanted });
        }
        unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir).map_err(failed("unlink", name))
    }

    /// Removes the files that were not used for longest if all have more than `limit` bytes, until three quarters are left;
    /// of those only whose name `is_known`. Files that were never finished go as well.
    pub(super) fn trim(&self, limit: u64, is_known: impl Fn(&OsStr) -> bool) -> Result<(), AccessError> {
        let directory = self.open()?;
        let duplicate = directory.try_clone().map_err(|source| AccessError::Call {
            call: "dup",
            name: self.base.clone(),
            source,
        })?;
        let mut entries = Dir::from_fd(duplicate).map_err(failed("readdir", &self.base))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (mut files, mut total) = (Vec::new(), 0);
        for entry in entries.iter() {
            let entry = entry.map_err(failed("readdir", &self.base))?;
            let name = entry.file_name();
            // Another process may remove it meanwhile.
            let Ok(status) = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            let used = Duration::from_secs(u64::try_from(status.st_mtime).unwrap_or(0));
            if name.to_bytes().starts_with(UNFINISHED) {
                if now.saturating_sub(used) > ABANDONED {
                    unlink(&directory, name)?;
                }
            } else if is_known(OsStr::from_bytes(name.to_bytes())) {
                let bytes = u64::try_from(status.st_size).unwrap_or(0);
                total += bytes;
                files.push((used, status.st_mtime_nsec, name.to_owned(), bytes));
            }
        }
        if total <= limit {
            return Ok(());
        }
        files.sort();
        for (_, _, name, bytes) in files {
            if total <= limit / 4 * 3 {
                break;
            }
            unlink(&directory, &name)?;
            total -= bytes;
        }
        Ok(())
    }
}

fn unlink(directory: impl AsFd, name: &CStr) -> Result<(), AccessError> {
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        // Another process was faster.
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(failed("unlink", OsStr::from_bytes(name.to_bytes()))(errno)),
    }
}
