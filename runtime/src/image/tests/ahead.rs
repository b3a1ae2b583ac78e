// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contents in the page cache are taken from there, and are checked as those of a disk are.

use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicUsize, Ordering};

use kfd::linux::cached_pages;
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::*;

/// An image of which nothing is in the page cache, in a directory on a disk: that of temporary files may be in memory.
fn on_disk() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("x.img");
    write(ImageWriter::create(&path).unwrap(), &mut sample());
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    (directory, path)
}

/// Whether all of the first chunk, 2 MiB, is in the page cache. Small ones are brought there when an image is opened, with the tables that
/// they lie beside. `None` where nothing is read past the cache, as in memory, or the kernel does not tell: it does since Linux 6.5, but not of
/// every file system.
fn is_cached(path: &Path) -> Option<bool> {
    let pages = |path: &Path, offset, bytes| cached_pages(File::open(path).unwrap().as_fd(), offset, bytes);
    let written = path.with_extension("written");
    fs::write(&written, [1; 4096]).unwrap();
    let is_past = File::options().read(true).custom_flags(OFlag::O_DIRECT.bits()).open(&written).is_ok()
        && statfs(&written).unwrap().filesystem_type() != TMPFS_MAGIC;
    if !is_past || pages(&written, 0, 4096) != Ok(1) {
        return None;
    }
    let chunk = Image::open(path).unwrap().chunks()[0];
    Some(pages(path, chunk.file_offset, chunk.length) == Ok(chunk.length / 4096))
}

#[test]
fn contents_come_ahead_for_as_long_as_they_are_wanted() {
    let (_directory, path) = on_disk();
    assert_ne!(is_cached(&path), Some(true));
    let image = Image::open(&path).unwrap();
    image.read_ahead(|| false);
    assert_ne!(is_cached(&path), Some(true));
    image.read_ahead(|| true);
    assert_ne!(is_cached(&path), Some(false));
    assert_holds(&image, &sample());
}

#[test]
fn contents_past_the_cache_stay_out_of_it() {
    let (_directory, path) = on_disk();
    assert_holds(&Image::open(&path).unwrap(), &sample());
    assert_ne!(is_cached(&path), Some(true));
}

#[test]
fn wrong_bytes_in_the_cache_are_found() {
    let (_directory, path) = on_disk();
    let image = Image::open(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    // Of a chunk that is filled where it belongs, and of one that goes through a buffer.
    for chunk in image.chunks().iter().take(2) {
        let mut byte = [0];
        image.read_ahead(|| true);
        File::open(&path).unwrap().read_exact_at(&mut byte, chunk.file_offset).unwrap();
        file.write_all_at(&[!byte[0]], chunk.file_offset).unwrap();
        let mut filled = sample();
        let found = image.fill(&extents(&mut filled), false, &Limit::none());
        assert!(matches!(found, Err(ImageError::Corrupt { offset, .. }) if offset == chunk.file_offset));
        file.write_all_at(&byte, chunk.file_offset).unwrap();
    }
    assert_holds(&image, &sample());
}

#[test]
fn image_that_is_cut_off_while_it_is_read_ahead_is_left_to_its_reader() {
    let (_directory, path) = on_disk();
    let image = Image::open(&path).unwrap();
    let asked = AtomicUsize::new(0);
    image.read_ahead(|| {
        asked.fetch_add(1, Ordering::Relaxed);
        File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
        true
    });
    assert_eq!(asked.into_inner(), 1);
    assert!(matches!(image.verify(), Err(ImageError::Io { act: "read contents of", .. })));
}
