// SPDX-License-Identifier: MIT OR Apache-2.0
//! The marker `stasis.json` among CRIU's images: which processes have contents beside them, and which files have the devices of
//! programs under `stasis run`.
//!
//! INVARIANT: the marker exists only beside images whose processes have closed their devices or have a paused one, and is read
//! before a restore has done anything. So contents that are missing (because only the files were copied, without the
//! directories) or damaged are found while the plugin can still refuse the restore. Afterwards CRIU does not ask the
//! plugins any more.

use std::fs;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};
use stasis::checkpoint::{IMAGE_FILE, Metadata};
use stasis::image::{Image, ImageError};
use stasis::regular::{RegularError, open_at, read_rest};
use thiserror::Error;

/// Its name.
pub(crate) const MARKER: &str = "stasis.json";
/// The marker's name while it is written.
const UNFINISHED: &str = "stasis.json.new";
/// Version of its layout; the first, without devices, is written where there are none, so that an older plugin reads it.
const LAYOUT: u32 = 2;
const WITHOUT_DEVICES: u32 = 1;
/// Longest marker that is read, bytes.
const LONGEST: u64 = 16 << 20;

/// A process with contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The process's pid in its innermost pid namespace.
    pub pid: i32,
    /// Name of the directory of its contents, beside the marker.
    pub name: String,
    /// Where that directory was when the contents were written.
    pub written_to: PathBuf,
}

/// A file of a saved device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct File {
    /// Its name beside the marker.
    name: String,
    /// Its bytes.
    bytes: u64,
    /// Their BLAKE3 hash, hexadecimal.
    hash: String,
}

impl File {
    /// The file of this name, hashed, and written to the disk.
    pub fn of(directory: BorrowedFd<'_>, path: &Path, name: String) -> Result<Self, MarkerError> {
        let (file, bytes, hash) = hash(directory, path, &name)?;
        file.sync_all().map_err(MarkerError::Write)?;
        Ok(Self { name, bytes, hash })
    }

    fn check(&self, directory: BorrowedFd<'_>, path: &Path) -> Result<(), MarkerError> {
        let (_, bytes, hash) = hash(directory, path, &self.name)?;
        match bytes == self.bytes && hash == self.hash {
            true => Ok(()),
            false => Err(MarkerError::Altered { path: path.join(&self.name) }),
        }
    }
}

/// A file of a directory, its bytes and their hash.
fn hash(directory: BorrowedFd<'_>, path: &Path, name: &str) -> Result<(fs::File, u64, String), MarkerError> {
    let path = path.join(name);
    let file = open_at(directory, Path::new(name), &path)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&file).map_err(|source| MarkerError::Hash { path, source })?;
    Ok((file, hasher.count(), hasher.finalize().to_hex().to_string()))
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    layout: u32,
    processes: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    devices: Option<Vec<File>>,
}

/// Why images are not restored, or not marked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum MarkerError {
    #[error("Cannot write {MARKER} beside the images")]
    Write(#[source] io::Error),
    #[error(transparent)]
    Read(#[from] RegularError),
    #[error("{MARKER} beside the images is not one of this version")]
    Parse(#[source] serde_json::Error),
    #[error("{MARKER} has layout {0}; this plugin knows {LAYOUT}: use a newer one")]
    Layout(u32),
    #[error("Cannot read {}, a part of a device", path.display())]
    Hash {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "The images in {} are of programs with a device, and {MARKER} beside them lists none. Copy the images with all files \
         (cp -a). Nothing was restored", path.display()
    )]
    NoDevices { path: PathBuf },
    #[error("{} is not what was written. Nothing was restored", path.display())]
    Altered { path: PathBuf },
    #[error(
        "The contents of process {pid} are missing: neither {} nor {} has them. Copy the images with their \
         directories (cp -a). Nothing was restored", here.display(), written_to.display()
    )]
    Missing { pid: i32, here: PathBuf, written_to: PathBuf },
    #[error(
        "Process {pid} shares memory with others of its tree, and the directory where they meet is not at {}. Copy the \
         images with their directories (cp -a). Nothing was restored", meeting.display()
    )]
    NoMeeting { pid: i32, meeting: PathBuf },
    #[error("The contents of process {pid} are not good. Nothing was restored")]
    Spoilt {
        pid: i32,
        #[source]
        source: ImageError,
    },
}

/// Writes the marker into a directory of images, if there are processes with contents, or devices. Otherwise removes the marker of
/// an earlier dump.
pub(crate) fn write(
    directory: BorrowedFd<'_>,
    processes: Vec<Entry>,
    devices: Option<Vec<File>>,
) -> Result<(), MarkerError> {
    if processes.is_empty() && devices.is_none() {
        return match unlinkat(directory, MARKER, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(MarkerError::Write(error.into())),
        };
    }
    let layout = if devices.is_some() { LAYOUT } else { WITHOUT_DEVICES };
    let marker = Marker { layout, processes, devices };
    let text = serde_json::to_vec_pretty(&marker).map_err(|error| MarkerError::Write(error.into()))?;
    let put = || -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = fs::File::from(openat(directory, UNFINISHED, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        file.write_all(&text)?;
        file.sync_all()?;
        Ok(renameat(directory, UNFINISHED, directory, MARKER)?)
    };
    put().map_err(MarkerError::Write)
}

/// Checks that all contents that belong to these images are there, and the files of devices; whether there are any of these. Images
/// without a marker need no contents.
pub(crate) fn check(directory: BorrowedFd<'_>, path: &Path) -> Result<bool, MarkerError> {
    let at = path.join(MARKER);
    let mut file = match open_at(directory, Path::new(MARKER), &at) {
        Err(error) if error.is_not_found() => return Ok(false),
        opened => opened?,
    };
    let text = read_rest(&mut file, &at, LONGEST)?;
    let marker: Marker = serde_json::from_slice(&text).map_err(MarkerError::Parse)?;
    let wanted = if marker.devices.is_some() { LAYOUT } else { WITHOUT_DEVICES };
    if marker.layout != wanted {
        return Err(MarkerError::Layout(marker.layout));
    }
    marker.processes.iter().try_for_each(|entry| entry.check(path))?;
    let devices = marker.devices.unwrap_or_default();
    devices.iter().try_for_each(|file| file.check(directory, path))?;
    Ok(!devices.is_empty())
}

impl Entry {
    fn check(&self, images: &Path) -> Result<(), MarkerError> {
        // Only the last part of the name counts: a name of several parts would lead out of the directory.
        let name = Path::new(&self.name).file_name().unwrap_or_default();
        let here = images.join(name);
        let written_to = self.written_to.clone();
        let Some(image) = [&here, &written_to].map(|d| d.join(IMAGE_FILE)).into_iter().find(|p| p.is_file())
        else {
            return Err(MarkerError::Missing { pid: self.pid, here, written_to });
        };
        let spoilt = |source| MarkerError::Spoilt { pid: self.pid, source };
        let metadata: Metadata = Image::open(&image).and_then(|image| image.metadata()).map_err(spoilt)?;
        let shared = metadata.sharing.filter(|sharing| !sharing.objects.is_empty());
        let order = shared.and_then(|sharing| sharing.order).filter(|order| order.members.len() > 1);
        let meeting = order.and_then(|order| Some(image.parent()?.join(order.from_image)));
        match meeting {
            Some(meeting) if !meeting.is_dir() => Err(MarkerError::NoMeeting { pid: self.pid, meeting }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn open(path: &Path) -> fs::File {
        fs::File::open(path).unwrap()
    }

    fn entry(name: &str, written_to: &Path) -> Entry {
        Entry { pid: 7, name: name.into(), written_to: written_to.into() }
    }

    #[test]
    fn images_without_a_marker_need_nothing_and_a_stale_one_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let fd = open(directory.path());
        check(fd.as_fd(), directory.path()).unwrap();
        write(fd.as_fd(), vec![], None).unwrap();
        write(fd.as_fd(), vec![entry("stasis-7", Path::new("/gone"))], None).unwrap();
        write(fd.as_fd(), vec![], None).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn contents_that_are_missing_or_spoilt_are_refused() {
        let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let fd = open(directory.path());
        write(fd.as_fd(), vec![entry("stasis-7", elsewhere.path())], None).unwrap();
        let error = check(fd.as_fd(), directory.path()).unwrap_err();
        assert!(matches!(error, MarkerError::Missing { pid: 7, .. }), "{error}");
        assert!(error.to_string().contains("cp -a"), "{error}");
        // In both places where they are looked for.
        fs::create_dir(directory.path().join("stasis-7")).unwrap();
        for place in [elsewhere.path().to_path_buf(), directory.path().join("stasis-7")] {
            fs::write(place.join(IMAGE_FILE), "no image").unwrap();
            let error = check(fd.as_fd(), directory.path()).unwrap_err();
            assert!(matches!(error, MarkerError::Spoilt { pid: 7, .. }), "{error}");
        }
    }

    #[test]
    fn file_of_a_device_that_is_missing_or_not_what_was_written_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (fd, path) = (open(directory.path()), directory.path());
        fs::write(path.join("foreign.json"), "{}").unwrap();
        let file = File::of(fd.as_fd(), path, "foreign.json".to_owned()).unwrap();
        write(fd.as_fd(), Vec::new(), Some(vec![file])).unwrap();
        assert!(check(fd.as_fd(), path).unwrap());
        for wrong in ["{ ", "{}\n", ""] {
            fs::write(path.join("foreign.json"), wrong).unwrap();
            let error = check(fd.as_fd(), path).unwrap_err();
            assert!(matches!(error, MarkerError::Altered { .. }), "{error}");
        }
        fs::remove_file(path.join("foreign.json")).unwrap();
        assert!(matches!(check(fd.as_fd(), path), Err(MarkerError::Read(_))));
        write(fd.as_fd(), Vec::new(), None).unwrap();
        assert!(!check(fd.as_fd(), path).unwrap());
    }

    #[test]
    fn hostile_markers_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let fd = open(directory.path());
        let marked = |text: &str| {
            fs::write(directory.path().join(MARKER), text).unwrap();
            check(fd.as_fd(), directory.path()).unwrap_err()
        };
        assert!(matches!(marked("{"), MarkerError::Parse(_)));
        assert!(matches!(marked(r#"{"layout":3,"processes":[]}"#), MarkerError::Layout(3)));
        let text = r#"{"layout":1,"processes":[{"pid":1,"name":"../../etc","written_to":"/nowhere"}]}"#;
        assert!(
            matches!(marked(text), MarkerError::Missing { here, .. } if here.parent() == Some(directory.path()))
        );
        fs::remove_file(directory.path().join(MARKER)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join(MARKER)).unwrap();
        assert!(matches!(check(fd.as_fd(), directory.path()), Err(MarkerError::Read(_))));
        fs::remove_file(directory.path().join(MARKER)).unwrap();
        // No process writes to this FIFO: an open that blocks would never return.
        nix::unistd::mkfifoat(&fd, MARKER, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let error = check(fd.as_fd(), directory.path()).unwrap_err();
        assert!(error.to_string().contains("stasis.json is a FIFO"), "{error}");
    }
}
