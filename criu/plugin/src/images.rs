// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directories of contents: `stasis-PID` for each process with an agent, beside CRIU's images, and `stasis-session`
//! for the rendezvous of processes that share memory.
//!
//! INVARIANT: such a directory is a real directory, not a link. It belongs to CRIU's user or to the process's, and no
//! other user may enter it. The pid in its name is the one in the innermost pid namespace of the process, which a
//! restore gives back.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, unlinkat};
use stasis::checkpoint::IMAGE_FILE;
use thiserror::Error;

use crate::host::{self, Level, log};
use crate::process::{Process, proc_directory};
use crate::settings::SELF_CONTAINED;

const PRIVATE: Mode = Mode::S_IRWXU;

/// Why there is no place for a process's contents.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum PlaceError {
    #[error("This criu does not say where its images are (criu_get_image_dir)")]
    NoImages,
    #[error("Cannot find the path of the images' directory")]
    Path(#[source] io::Error),
    #[error("Cannot make {} for the contents of process {pid}", path.display())]
    Make {
        pid: i32,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("Cannot draw a name for a session")]
    Session {
        #[source]
        source: io::Error,
    },
    #[error("Cannot clear {} of an earlier dump", path.display())]
    Clear {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} belongs to user {owner}, who is neither criu's nor that of process {pid}: remove it", path.display())]
    Owner { pid: i32, path: PathBuf, owner: u32 },
    #[error(
        "Process {pid} cannot see {}, where its contents are to go: it lives in another mount namespace; give criu a \
         directory (-D) that has the same path there, or leave {SELF_CONTAINED} unset", path.display()
    )]
    OutOfSight { pid: i32, path: PathBuf },
}

/// CRIU's directory of images.
#[derive(Debug)]
pub(crate) struct Images {
    pub fd: BorrowedFd<'static>,
    pub path: PathBuf,
}

/// Where a process's contents go.
#[derive(Debug)]
pub(crate) enum Contents {
    /// Into a directory beside CRIU's images.
    Beside(Place),
    /// The contents stay in the process's memory, which CRIU dumps.
    Inside,
}

impl Contents {
    /// Their directory, if they have one.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Beside(place) => Some(place),
            Self::Inside => None,
        }
    }
}

/// The directory of one process.
#[derive(Debug)]
pub(crate) struct Place {
    pub path: PathBuf,
    /// The directory was not there before.
    is_new: bool,
    fd: OwnedFd,
}

/// Name of the directory of a process.
pub(crate) fn name_of(process: &Process) -> String {
    format!("stasis-{}", process.own_pid)
}

/// Whether a process finds the same directory under this path; `true` where that cannot be known.
fn sees(process: &Process, path: &Path, directory: BorrowedFd<'_>) -> bool {
    let inside = proc_directory(process.pid).join("root").join(path.strip_prefix("/").unwrap_or(path));
    match (fs::metadata(inside), fstat(directory)) {
        (Ok(seen), Ok(meant)) => (seen.dev(), seen.ino()) == (meant.st_dev, meant.st_ino),
        (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
        (_, Err(_)) => true,
    }
}

impl Images {
    pub fn open() -> Result<Self, PlaceError> {
        Self::of(host::image_directory().ok_or(PlaceError::NoImages)?)
    }

    fn of(fd: BorrowedFd<'static>) -> Result<Self, PlaceError> {
        let path = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(PlaceError::Path)?;
        Ok(Self { fd, path })
    }

    /// Finds a place for a process's contents. A container has its own files, and the container engine keeps the images
    /// among the host's files: unless told otherwise, a process of a container keeps its contents in its memory.
    pub fn contents_of(
        &self,
        process: &Process,
        self_contained: Option<bool>,
    ) -> Result<Contents, PlaceError> {
        if self_contained == Some(true) {
            return Ok(Contents::Inside);
        }
        match self.make(process) {
            Err(PlaceError::OutOfSight { pid, .. }) if self_contained.is_none() => {
                log(
                    Level::Info,
                    &format!(
                        "process {pid} does not see the images' directory: it keeps its contents in its own memory"
                    ),
                );
                Ok(Contents::Inside)
            }
            made => made.map(Contents::Beside),
        }
    }

    /// Makes the directory of a process, or takes the one of an earlier dump.
    pub fn make(&self, process: &Process) -> Result<Place, PlaceError> {
        self.make_named(name_of(process), process)
    }

    /// Makes an empty directory for the rendezvous of one user's processes, or clears the one of an earlier dump. It is
    /// given to the user of `process`, which is one of them.
    pub fn make_meeting(&self, name: String, process: &Process) -> Result<Place, PlaceError> {
        let place = self.make_named(name, process)?;
        let clear = || {
            for entry in fs::read_dir(format!("/proc/self/fd/{}", place.fd.as_raw_fd()))? {
                unlinkat(&place.fd, entry?.file_name().as_os_str(), UnlinkatFlags::NoRemoveDir)?;
            }
            Ok(())
        };
        clear().map_err(|source| PlaceError::Clear { path: place.path.clone(), source })?;
        Ok(place)
    }

    fn make_named(&self, name: String, process: &Process) -> Result<Place, PlaceError> {
        let (pid, path) = (process.pid, self.path.join(&name));
        let cannot = |source: Errno| PlaceError::Make { pid, path: path.clone(), source: source.into() };
        let is_new = match mkdirat(self.fd, name.as_str(), PRIVATE) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(error) => return Err(cannot(error)),
        };
        let fd = self.enter(&name).map_err(cannot)?;
        let owner = fstat(&fd).map_err(cannot)?.st_uid;
        if owner != geteuid().as_raw() && owner != process.uid {
            return Err(PlaceError::Owner { pid, path, owner });
        }
        if owner != process.uid {
            let (uid, gid) = (Uid::from_raw(process.uid), Gid::from_raw(process.gid));
            fchown(&fd, Some(uid), Some(gid)).map_err(cannot)?;
        }
        fchmod(&fd, PRIVATE).map_err(cannot)?;
        let place = Place { path: path.clone(), is_new, fd };
        if sees(process, &path, place.fd.as_fd()) {
            return Ok(place);
        }
        self.discard(&place);
        Err(PlaceError::OutOfSight { pid, path })
    }

    fn enter(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        openat(self.fd, name, flags, Mode::empty())
    }

    /// Removes a directory that this dump made, with all its files. Only for processes that run again.
    pub fn discard(&self, place: &Place) {
        if place.is_new {
            // Files that cannot be removed stay; CRIU does not take the images beside them for complete.
            let entries = fs::read_dir(format!("/proc/self/fd/{}", place.fd.as_raw_fd()));
            for entry in entries.into_iter().flatten().flatten() {
                let _ = unlinkat(&place.fd, entry.file_name().as_os_str(), UnlinkatFlags::NoRemoveDir);
            }
            if let Some(name) = place.path.file_name() {
                let _ = unlinkat(self.fd, name, UnlinkatFlags::RemoveDir);
            }
        }
    }

    /// Where the contents of a restored process are, if they are beside the images and the process can see them.
    pub fn find(&self, process: &Process) -> Option<PathBuf> {
        let name = name_of(process);
        let directory = self.enter(&name).ok()?;
        fstatat(&directory, IMAGE_FILE, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        let path = self.path.join(name);
        sees(process, &path, directory.as_fd()).then_some(path)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// The images' directory, and this process.
    pub(crate) fn images(directory: &Path) -> (Images, Process) {
        let opened: &'static fs::File = Box::leak(Box::new(fs::File::open(directory).unwrap()));
        let images = Images::of(opened.as_fd()).unwrap();
        let own = std::process::id().cast_signed();
        let (uid, gid) = (geteuid().as_raw(), nix::unistd::getegid().as_raw());
        (images, Process { pid: own, own_pid: 77, uid, gid })
    }

    #[test]
    fn place_is_private_made_once_and_discarded_by_its_maker() {
        let directory = tempfile::tempdir().unwrap();
        let (images, process) = images(directory.path());
        let first = images.make(&process).unwrap();
        assert_eq!(first.path, directory.path().canonicalize().unwrap().join("stasis-77"));
        assert_eq!(images.find(&process), None);
        fs::write(first.path.join(IMAGE_FILE), "").unwrap();
        assert_eq!(images.find(&process), Some(first.path.clone()));
        fs::set_permissions(&first.path, fs::Permissions::from_mode(0o777)).unwrap();
        let second = images.make(&process).unwrap();
        assert_eq!(fs::metadata(&second.path).unwrap().permissions().mode() & 0o777, 0o700);
        images.discard(&second);
        assert!(second.path.join(IMAGE_FILE).exists());
        images.discard(&first);
        assert!(!first.path.exists());
    }

    #[test]
    fn meeting_is_private_and_empty_whatever_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let (images, process) = images(directory.path());
        for _ in 0..2 {
            let place = images.make_meeting("stasis-session".to_owned(), &process).unwrap();
            assert_eq!(fs::read_dir(&place.path).unwrap().count(), 0);
            assert_eq!(fs::metadata(&place.path).unwrap().permissions().mode() & 0o777, 0o700);
            fs::write(place.path.join("decision"), "").unwrap();
        }
        // A directory that cannot be cleared is refused.
        fs::create_dir(directory.path().join("stasis-session/sub")).unwrap();
        let error = images.make_meeting("stasis-session".to_owned(), &process).unwrap_err();
        assert!(matches!(error, PlaceError::Clear { .. }), "{error}");
    }

    #[test]
    fn link_or_file_in_its_place_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (images, process) = images(directory.path());
        let place = directory.path().join("stasis-77");
        symlink("/tmp", &place).unwrap();
        assert!(matches!(images.make(&process), Err(PlaceError::Make { .. })));
        assert_eq!(images.find(&process), None);
        fs::remove_file(&place).unwrap();
        fs::write(&place, "").unwrap();
        assert!(matches!(images.make(&process), Err(PlaceError::Make { .. })));
    }

    #[test]
    fn directory_that_the_process_does_not_have_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (images, process) = images(directory.path());
        // The directory was moved: its path leads nowhere.
        let moved = Images { path: PathBuf::from("/nowhere"), ..images };
        let error = moved.contents_of(&process, Some(false)).unwrap_err();
        assert!(matches!(error, PlaceError::OutOfSight { .. }), "{error}");
        assert!(error.to_string().contains(SELF_CONTAINED), "{error}");
        assert!(!directory.path().join("stasis-77").exists());
        // A process that may keep its contents keeps them in its memory.
        assert!(moved.contents_of(&process, None).unwrap().place().is_none());
        assert!(!directory.path().join("stasis-77").exists());
    }

    #[test]
    fn process_that_sees_the_directory_keeps_its_contents_only_if_told() {
        let directory = tempfile::tempdir().unwrap();
        let (images, process) = images(directory.path());
        assert!(images.contents_of(&process, Some(true)).unwrap().place().is_none());
        assert!(!directory.path().join("stasis-77").exists());
        for told in [None, Some(false)] {
            let contents = images.contents_of(&process, told).unwrap();
            assert!(contents.place().is_some_and(|place| place.path.ends_with("stasis-77")));
        }
    }

    #[test]
    fn other_reasons_for_no_place_stay_errors() {
        let directory = tempfile::tempdir().unwrap();
        let (images, process) = images(directory.path());
        fs::write(directory.path().join("stasis-77"), "").unwrap();
        assert!(matches!(images.contents_of(&process, None), Err(PlaceError::Make { .. })));
    }
}
