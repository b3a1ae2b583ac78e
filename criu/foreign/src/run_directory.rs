// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory of a `stasis run`: the library that its processes load, and the files of its machine. It is made when the run
//! begins, and again when a checkpoint of the run is restored.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use tempfile::TempDir;
use thiserror::Error;

/// What the names of such directories begin with.
const PREFIX: &str = "stasis-run-";
/// The files of the machine.
const MACHINE: &str = "machine";
/// It is there when the program ends because it was checkpointed.
pub const CHECKPOINTED_FILE: &str = "checkpointed";
/// What softgpud tells of its clients.
pub const REPORT_FILE: &str = "report";
/// The library.
const LIBRARY: &str = "libstasis_kfd.so";

/// Why there is no directory.
#[derive(Debug, Error)]
pub enum RunDirectoryError {
    /// The name is not one that `stasis run` gives.
    #[error("{} is not the machine of a `stasis run`, which is {PREFIX}NAME/{MACHINE}; nothing there was changed", path.display())]
    Name {
        /// The name.
        path: PathBuf,
    },
    /// The directory belongs to another user.
    #[error("{} belongs to user {found}, and not to user {wanted}, whose run it would be", path.display())]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found: u32,
        /// Whose it was to be.
        wanted: u32,
    },
    /// A file system refused something.
    #[error("Cannot {act} {}", path.display())]
    System {
        /// What was tried.
        act: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

fn system(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RunDirectoryError + use<> {
    let path = path.to_owned();
    move |source| RunDirectoryError::System { act, path, source }
}

/// The directory of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDirectory(PathBuf);

impl RunDirectory {
    /// Makes one in `parent`, for programs that load `library`; it is removed again when the second value is dropped.
    ///
    /// # Errors
    /// [`RunDirectoryError`]; nothing is left then.
    pub fn make_in(parent: &Path, library: &Path) -> Result<(Self, TempDir), RunDirectoryError> {
        let directory = TempDir::with_prefix_in(PREFIX, parent)
            .and_then(|made| Ok((Self(made.path().canonicalize()?), made)));
        let (own, made) = directory.map_err(system("make a directory in", parent))?;
        own.fill(library)?;
        Ok((own, made))
    }

    /// The one whose machine is in `machine`.
    ///
    /// # Errors
    /// [`RunDirectoryError::Name`] for a name that no run has: the directory is removed with all that is in it.
    pub fn of_machine(machine: &Path) -> Result<Self, RunDirectoryError> {
        let named = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let root = machine.parent().filter(|root| {
            let is_run = named(root).is_some_and(|name| name.starts_with(PREFIX));
            is_run && named(machine).is_some_and(|name| name == MACHINE) && root.is_absolute()
        });
        root.map(|root| Self(root.to_owned()))
            .ok_or_else(|| RunDirectoryError::Name { path: machine.to_owned() })
    }

    /// Makes it anew, as at the beginning of the run, whatever a command that was killed has left there.
    ///
    /// # Errors
    /// [`RunDirectoryError`].
    pub fn remake(&self, library: &Path) -> Result<(), RunDirectoryError> {
        for left in [self.machine(), self.library()] {
            let removed = if left.is_dir() { fs::remove_dir_all(&left) } else { fs::remove_file(&left) };
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(system("remove", &left)(error));
                }
                _ => {}
            }
        }
        let made = DirBuilder::new().mode(0o700).recursive(true).create(&self.0);
        made.map_err(system("make", &self.0))?;
        self.fill(library)
    }

    fn fill(&self, library: &Path) -> Result<(), RunDirectoryError> {
        symlink(library, self.library()).map_err(system("make", &self.library()))?;
        fs::create_dir(self.machine()).map_err(system("make", &self.machine()))
    }

    /// Opens it, as the process `root` sees its path, or as this process does; it has to belong to `user`.
    ///
    /// # Errors
    /// [`RunDirectoryError::System`], [`RunDirectoryError::Owner`].
    pub fn open(&self, root: Option<i32>, user: u32) -> Result<OpenRunDirectory, RunDirectoryError> {
        let top = root.map_or_else(|| PathBuf::from("/"), |pid| format!("/proc/{pid}/root").into());
        let failed = || {
            let raise = system("open", &self.0);
            move |errno: Errno| raise(errno.into())
        };
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let top = openat(AT_FDCWD, &top, flags | OFlag::O_PATH, Mode::empty()).map_err(failed())?;
        // No link in it leads out of that root.
        let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(flags | OFlag::O_NOFOLLOW).resolve(resolve);
        let below = self.0.strip_prefix("/").unwrap_or(&self.0);
        let directory = openat2(&top, below, how).map_err(failed())?;
        let found = fstat(&directory).map_err(failed())?.st_uid;
        match found == user {
            true => Ok(OpenRunDirectory { directory, path: self.0.clone() }),
            false => Err(RunDirectoryError::Owner { path: self.0.clone(), found, wanted: user }),
        }
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The files of the machine, below `sys`, `dev` and `proc`.
    #[must_use]
    pub fn machine(&self) -> PathBuf {
        self.0.join(MACHINE)
    }

    /// What softgpud tells of its clients, for `stasis run`, which has the file open.
    #[must_use]
    pub fn report(&self) -> PathBuf {
        self.0.join(REPORT_FILE)
    }

    /// A link to the library that the run's processes load: the dynamic linker takes no spaces and no colons in the name.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.0.join(LIBRARY)
    }
}

/// The directory of a run that is held open, and is its user's.
#[derive(Debug)]
pub struct OpenRunDirectory {
    directory: OwnedFd,
    path: PathBuf,
}

impl OpenRunDirectory {
    /// Writes a new file; one of that name is removed before.
    ///
    /// # Errors
    /// [`RunDirectoryError::System`].
    pub fn write_new(&self, name: &str, text: &[u8]) -> Result<(), RunDirectoryError> {
        self.remove(name)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IRGRP | Mode::S_IROTH;
        let made = openat(&self.directory, name, flags, mode).map_err(io::Error::from);
        let written = made.and_then(|file| fs::File::from(file).write_all(text));
        written.map_err(system("write", &self.path.join(name)))
    }

    /// Removes a file, if there is one.
    ///
    /// # Errors
    /// [`RunDirectoryError::System`].
    pub fn remove(&self, name: &str) -> Result<(), RunDirectoryError> {
        match unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(system("remove", &self.path.join(name))(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_in_a_directory_of_the_user_only_and_through_no_link() {
        let parent = tempfile::tempdir().unwrap();
        let directory = RunDirectory(parent.path().join("stasis-run-x"));
        fs::create_dir(directory.path()).unwrap();
        let user = nix::unistd::geteuid().as_raw();
        let victim = parent.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        symlink(&victim, directory.path().join("mark")).unwrap();
        let opened = directory.open(None, user).unwrap();
        opened.write_new("mark", b"said").unwrap();
        assert_eq!(fs::read(directory.path().join("mark")).unwrap(), b"said");
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
        opened.remove("mark").unwrap();
        opened.remove("mark").unwrap();
        assert!(matches!(directory.open(None, user + 1), Err(RunDirectoryError::Owner { .. })));
        let own = std::process::id().cast_signed();
        directory.open(Some(own), user).unwrap();
        let link = RunDirectory(parent.path().join("stasis-run-y"));
        symlink(directory.path(), link.path()).unwrap();
        assert!(matches!(link.open(None, user), Err(RunDirectoryError::System { .. })));
    }

    #[test]
    fn names_that_no_run_has_are_refused() {
        let of = |path: &str| RunDirectory::of_machine(Path::new(path));
        assert_eq!(of("/dev/shm/stasis-run-x/machine").unwrap().path(), Path::new("/dev/shm/stasis-run-x"));
        for wrong in ["", "machine", "/", "/home/machine", "/dev/shm/stasis-run-x", "stasis-run-x/machine"] {
            assert!(matches!(of(wrong), Err(RunDirectoryError::Name { .. })), "{wrong}");
        }
    }

    #[test]
    fn directory_is_made_again_from_whatever_is_left_of_it() {
        let parent = tempfile::tempdir().unwrap();
        let directory = RunDirectory(parent.path().join("stasis-run-x"));
        let library = parent.path().join("library");
        fs::write(&library, "").unwrap();
        for _ in 0..2 {
            directory.remake(&library).unwrap();
            assert!(
                directory.library().is_file() && fs::read_dir(directory.machine()).unwrap().next().is_none()
            );
            fs::write(directory.machine().join("half"), "").unwrap();
        }
        fs::remove_file(directory.library()).unwrap();
        directory.remake(&library).unwrap();
        assert!(directory.library().is_file());
    }
}
