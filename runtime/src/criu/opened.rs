// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint directory that is held open.
//!
//! INVARIANT: every file of it is opened from its descriptor, part by part and through no link: whatever its path names
//! meanwhile, what is checked lies in this directory. Each is a regular file of somebody who is trusted.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{geteuid, syncfs};

use super::error::ManifestError;
use crate::image::{EarlierFile, Image};
use crate::linux::regular::{open_at, read_rest};

/// Permissions of others than the owner to change a file.
const OTHERS_WRITE: u32 = 0o022;
/// Permissions of others than the owner to enter a directory.
const OTHERS_ENTER: u32 = 0o011;

/// Whose files are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Everybody's: for tools that only look, and for whoever says so.
    Anyone,
    /// Those of these users, if nobody else can write them.
    Users(Vec<u32>),
}

impl Trust {
    /// Of the caller and of root; where root was lent by sudo, of the user who asked for it, too.
    #[must_use]
    pub fn of_caller() -> Self {
        let own = geteuid().as_raw();
        let invoker = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse::<u32>().ok());
        let mut users = vec![0, own];
        users.extend(invoker.filter(|_| own == 0));
        users.sort_unstable();
        users.dedup();
        Self::Users(users)
    }

    /// Whether somebody is trusted who owns this; others may have the right to write only what they cannot reach.
    fn check(&self, path: &Path, (owner, mode): (u32, u32), is_private: bool) -> Result<(), ManifestError> {
        let Self::Users(trusted) = self else { return Ok(()) };
        if !trusted.contains(&owner) {
            return Err(ManifestError::Owner { path: path.into(), owner, trusted: trusted.clone() });
        }
        if !is_private && mode & OTHERS_WRITE != 0 {
            return Err(ManifestError::Writable { path: path.into(), mode: mode & 0o777 });
        }
        Ok(())
    }
}

/// What a directory has under a name.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub name: String,
    /// Its type, of the bits of `S_IFMT`.
    pub kind: SFlag,
    /// Length of a file.
    pub bytes: u64,
}

/// A checkpoint directory, held open.
#[derive(Debug)]
pub struct OpenDirectory {
    path: PathBuf,
    fd: OwnedFd,
    trust: Trust,
    /// Nobody else can enter it, or one above it: CRIU makes files with the permissions that the umask leaves.
    is_private: bool,
}

fn failed(act: &'static str, path: &Path) -> impl FnOnce(Errno) -> ManifestError {
    move |error| ManifestError::Io { act, path: path.into(), source: error.into() }
}

impl OpenDirectory {
    /// Opens a directory whose files are to be those of `trust`. A link is not followed: resolve the path before.
    ///
    /// # Errors
    /// [`ManifestError::Io`], [`ManifestError::Owner`], [`ManifestError::Writable`].
    pub fn open(path: &Path, trust: Trust) -> Result<Self, ManifestError> {
        Self::enter_at(AT_FDCWD, path, path.into(), trust, false)
    }

    fn enter_at(
        at: BorrowedFd<'_>,
        name: &Path,
        path: PathBuf,
        trust: Trust,
        is_in_private: bool,
    ) -> Result<Self, ManifestError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(at, name, flags, Mode::empty()).map_err(failed("open the directory", &path))?;
        let status = fstat(&fd).map_err(failed("stat", &path))?;
        trust.check(&path, (status.st_uid, status.st_mode), is_in_private)?;
        let is_private = is_in_private || status.st_mode & OTHERS_ENTER == 0;
        Ok(Self { path, fd, trust, is_private })
    }

    /// Its path when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it.
    pub(super) fn enter(&self, name: &str) -> Result<Self, ManifestError> {
        let path = self.path.join(name);
        Self::enter_at(self.fd.as_fd(), Path::new(name), path, self.trust.clone(), self.is_private)
    }

    /// Opens a regular file: a plain name, or one in a directory here.
    ///
    /// # Errors
    /// [`ManifestError::Io`], [`ManifestError::File`], [`ManifestError::Owner`], [`ManifestError::Writable`].
    pub fn file(&self, relative: &str) -> Result<File, ManifestError> {
        if let Some((directory, name)) = relative.split_once('/') {
            return self.enter(directory)?.file(name);
        }
        let path = self.path.join(relative);
        let file = open_at(&self.fd, Path::new(relative), &path)?;
        let status = file.metadata().map_err(|source| ManifestError::Io {
            act: "stat",
            path: path.clone(),
            source,
        })?;
        self.trust.check(&path, (status.uid(), status.mode()), self.is_private)?;
        Ok(file)
    }

    /// The bytes of a file of at most `limit`, if there is one of that name.
    ///
    /// # Errors
    /// As for [`OpenDirectory::file`].
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, ManifestError> {
        match self.file(name) {
            Err(ManifestError::File(error)) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
            Ok(mut file) => Ok(Some(read_rest(&mut file, &self.path.join(name), limit)?)),
        }
    }

    /// All that is in it, by name; regular files are those of somebody who is trusted.
    pub(super) fn list(&self) -> Result<Vec<Entry>, ManifestError> {
        let io = |act| failed(act, &self.path);
        let mut entries = Vec::new();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut directory = Dir::openat(&self.fd, ".", flags, Mode::empty()).map_err(io("read"))?;
        for entry in directory.iter() {
            let entry = entry.map_err(io("read"))?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = self.path.join(&name);
            let status = fstatat(&self.fd, entry.file_name(), AtFlags::AT_SYMLINK_NOFOLLOW)
                .map_err(failed("stat", &path))?;
            let kind = SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT;
            if kind == SFlag::S_IFREG {
                self.trust.check(&path, (status.st_uid, status.st_mode), self.is_private)?;
            }
            let bytes = u64::try_from(status.st_size).unwrap_or(0);
            entries.push(Entry { name, kind, bytes });
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Writes the file system's files that are here to the disk.
    pub(super) fn sync(&self) -> Result<(), ManifestError> {
        syncfs(&self.fd).map_err(failed("sync the file system of", &self.path))
    }
}

/// Opens the image `name` in a checkpoint directory, and the files of earlier ones that it has contents in: all from there.
///
/// # Errors
/// [`ManifestError::Image`], and as for [`OpenDirectory::file`].
pub fn open_image(directory: &OpenDirectory, name: &str) -> Result<Image, ManifestError> {
    let path = directory.path().join(name);
    let open = |_, earlier: &EarlierFile| {
        let beside = Path::new(name).with_file_name(&earlier.name);
        directory.file(&beside.to_string_lossy()).map_err(std::io::Error::other)
    };
    Ok(Image::of_files(directory.file(name)?, &path, open)?)
}

/// What something that is no regular file is called.
pub(super) fn called(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFREG => "a file",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        _ => "a device",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_of_others_and_files_that_others_can_write_are_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        fs::create_dir(path.join("criu")).unwrap();
        fs::write(path.join("criu/a.img"), "a").unwrap();
        let own = geteuid().as_raw();
        mode(path, 0o755);
        let open = |trust| OpenDirectory::open(path, trust);
        let directory = open(Trust::of_caller()).unwrap();
        directory.file("criu/a.img").unwrap();
        let stranger = Trust::Users(vec![own + 1]);
        let error = open(stranger).unwrap_err();
        assert!(matches!(error, ManifestError::Owner { owner, .. } if owner == own), "{error}");
        assert!(error.to_string().contains("--trust-owner"), "{error}");
        for (name, bits) in [("criu/a.img", 0o602), ("criu/a.img", 0o620), ("criu", 0o770)] {
            let before = fs::metadata(path.join(name)).unwrap().permissions();
            mode(&path.join(name), bits);
            let error = directory.file("criu/a.img").unwrap_err();
            assert!(
                matches!(&error, ManifestError::Writable { path, .. } if path.ends_with(name)),
                "{name} {bits:o}: {error}"
            );
            open(Trust::Anyone).unwrap().file("criu/a.img").unwrap();
            // What others cannot reach they cannot write.
            mode(path, 0o700);
            open(Trust::of_caller()).unwrap().file("criu/a.img").unwrap();
            mode(path, 0o755);
            fs::set_permissions(path.join(name), before).unwrap();
        }
    }

    #[test]
    fn links_are_not_followed_wherever_they_are() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        fs::create_dir_all(path.join("real/criu")).unwrap();
        fs::write(path.join("real/criu/a.img"), "a").unwrap();
        symlink(path.join("real"), path.join("link")).unwrap();
        assert!(OpenDirectory::open(&path.join("link"), Trust::Anyone).is_err());
        symlink(path.join("real/criu"), path.join("real/other")).unwrap();
        symlink(path.join("real/criu/a.img"), path.join("real/criu/b.img")).unwrap();
        let directory = OpenDirectory::open(&path.join("real"), Trust::Anyone).unwrap();
        assert!(directory.file("criu/a.img").is_ok());
        assert!(directory.file("other/a.img").is_err());
        let error = directory.file("criu/b.img").unwrap_err();
        assert!(error.to_string().contains("a symbolic link"), "{error}");
        assert_eq!(directory.read("missing", 10).unwrap(), None);
        let names = directory.enter("criu").unwrap().list().unwrap();
        let names: Vec<_> = names.iter().map(|entry| (entry.name.as_str(), called(entry.kind))).collect();
        assert_eq!(names, [("a.img", "a file"), ("b.img", "a symbolic link")]);
    }
}
