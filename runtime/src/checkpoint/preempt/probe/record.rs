// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a round trip found, kept for the other processes of this user until the machine starts again.
//!
//! INVARIANT: a record is used only if it is whole, this user's, writable by nobody else, and of exactly this subject.
//! Anything else counts as no record. A record is written under another name and renamed.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{geteuid, getpid};
use serde::{Deserialize, Serialize};

use super::round_trip::Step;
use crate::linux::regular::{Links, open, read_rest};

/// First line of a record.
const HEAD: &str = "stasis restore probe 1";
/// A longer file is no record.
const LONGEST: u64 = 16 << 10;
/// Bits that let others write.
const OTHERS_WRITE: u32 = 0o022;

/// What a round trip found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// The queue came back and worked.
    Restores,
    /// The driver refused.
    Refuses { step: Step, errno: i32, text: String },
}

/// The directory for what lasts until the machine starts again: `$XDG_RUNTIME_DIR/stasis`, for root `/run/stasis`.
/// Without the variable other users have none.
pub(super) fn directory() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let of_root = || geteuid().is_root().then(|| PathBuf::from("/run"));
    named.or_else(of_root).map(|path| path.join("stasis"))
}

fn place(directory: &Path, subject: &str) -> PathBuf {
    let hash = blake3::hash(subject.as_bytes()).to_hex();
    directory.join(format!("restore-probe.{}", &hash[..16]))
}

/// The record without its last line.
fn body(subject: &str, verdict: &str) -> String {
    format!("{HEAD}\n{subject}\n{verdict}\n")
}

fn sum(body: &str) -> String {
    format!("{}\n", blake3::hash(body.as_bytes()).to_hex())
}

/// The verdict on `subject`, if there is one to be trusted.
pub(super) fn read(directory: &Path, subject: &str) -> Option<Verdict> {
    let ours =
        |metadata: &fs::Metadata| metadata.uid() == geteuid().as_raw() && metadata.mode() & OTHERS_WRITE == 0;
    fs::symlink_metadata(directory).ok().filter(|it| it.is_dir() && ours(it))?;
    let path = place(directory, subject);
    let mut file = open(&path, Links::Refuse).ok()?;
    file.metadata().ok().filter(ours)?;
    let text = String::from_utf8(read_rest(&mut file, &path, LONGEST).ok()?).ok()?;
    let head = format!("{HEAD}\n{subject}\n");
    let (verdict, _) = text.strip_prefix(&head)?.split_once('\n')?;
    let body = body(subject, verdict);
    (text == body.clone() + &sum(&body)).then(|| serde_json::from_str(verdict).ok())?
}

/// Keeps the verdict on `subject`.
///
/// # Errors
/// As the system refuses the directory or the file. What was there before is untouched then.
pub(super) fn write(directory: &Path, subject: &str, verdict: &Verdict) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let body = body(subject, &serde_json::to_string(verdict)?);
    let path = place(directory, subject);
    let new = path.with_extension(format!("{}.new", getpid()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all((body.clone() + &sum(&body)).as_bytes());
    let kept = written.and_then(|()| fs::rename(&new, &path));
    kept.inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const SUBJECT: &str = "boot 1\nkernel 9.9\ntarget gfx1100";

    fn kept() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("stasis");
        write(&directory, SUBJECT, &Verdict::Restores).unwrap();
        (parent, directory)
    }

    #[test]
    fn verdicts_come_back_for_their_subject_only() {
        let (_parent, directory) = kept();
        assert_eq!(read(&directory, SUBJECT), Some(Verdict::Restores));
        assert_eq!(read(&directory, "boot 2\nkernel 9.9\ntarget gfx1100"), None);
        let refused = Verdict::Refuses { step: Step::Restore, errno: 22, text: "two\nlines".to_owned() };
        write(&directory, SUBJECT, &refused).unwrap();
        assert_eq!(read(&directory, SUBJECT), Some(refused));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }

    #[test]
    fn record_of_another_subject_under_this_name_is_none() {
        let (_parent, directory) = kept();
        let other = "boot 2\nkernel 9.9\ntarget gfx1100";
        fs::rename(place(&directory, SUBJECT), place(&directory, other)).unwrap();
        assert_eq!(read(&directory, other), None);
    }

    #[test]
    fn torn_changed_or_longer_record_is_none() {
        let (_parent, directory) = kept();
        let path = place(&directory, SUBJECT);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(read(&directory, SUBJECT), None, "the first {length} bytes");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            assert_eq!(read(&directory, SUBJECT), None, "byte {at}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert_eq!(read(&directory, SUBJECT), None);
        fs::write(&path, whole).unwrap();
        assert_eq!(read(&directory, SUBJECT), Some(Verdict::Restores));
    }

    #[test]
    fn record_that_others_may_write_or_that_is_a_link_is_none() {
        let (_parent, directory) = kept();
        let path = place(&directory, SUBJECT);
        let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        allow(&path, 0o666);
        assert_eq!(read(&directory, SUBJECT), None);
        allow(&path, 0o600);
        allow(&directory, 0o777);
        assert_eq!(read(&directory, SUBJECT), None);
        allow(&directory, 0o700);
        assert_eq!(read(&directory, SUBJECT), Some(Verdict::Restores));
        fs::rename(&path, directory.join("moved")).unwrap();
        symlink("moved", &path).unwrap();
        assert_eq!(read(&directory, SUBJECT), None);
        if geteuid().is_root() {
            fs::rename(directory.join("moved"), &path).unwrap();
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            assert_eq!(read(&directory, SUBJECT), None);
        }
    }
}
