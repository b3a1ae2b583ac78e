// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images round-trip wherever they are kept, and names that are not images' own are not followed.

#![allow(unsafe_code)]

mod ahead;
mod engine;
mod golden;
mod hostile;
mod parent;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use proptest::prelude::*;
use stasis_protocol::{Limit, Stopped};

use super::*;

/// Owns the memory behind an extent, which begins so many bytes after a page's start.
struct Memory {
    store: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Memory {
    fn new(bytes: &[u8], after_page: usize) -> Self {
        let mut store = vec![0; bytes.len() + 8192];
        let start = store.as_ptr().align_offset(4096) + after_page;
        store[start..start + bytes.len()].copy_from_slice(bytes);
        Self { store, start, bytes: bytes.len() }
    }

    fn of(bytes: &[u8]) -> Self {
        Self::new(bytes, 0)
    }

    fn get(&self) -> &[u8] {
        &self.store[self.start..self.start + self.bytes]
    }

    fn extent(&mut self) -> Extent<'_> {
        let start = self.store[self.start..].as_mut_ptr();
        // SAFETY: the vector outlives the extent in every test below and is not resized.
        unsafe { Extent::new(NonNull::new(start).unwrap(), self.bytes as u64) }
    }

    /// Other contents of the same form.
    fn overwritten(&self) -> Self {
        Self::new(&vec![0xaa; self.bytes], self.start - self.store.as_ptr().align_offset(4096))
    }
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn sample() -> Vec<Memory> {
    let mut holes = vec![0; 3 * CHUNK_BYTES as usize];
    holes[2 * CHUNK_BYTES as usize + 5] = 1;
    vec![
        Memory::of(&noise(CHUNK_BYTES as usize + 4096, 1)),
        Memory::of(&holes),
        Memory::new(&noise(100, 3), 1),
        Memory::of(&[0; 4096]),
    ]
}

fn extents(memories: &mut [Memory]) -> Vec<Extent<'_>> {
    memories.iter_mut().map(Memory::extent).collect()
}

fn write(mut writer: ImageWriter, memories: &mut [Memory]) -> Finished {
    writer.write_contents(&extents(memories), &Limit::none()).unwrap();
    writer.finish(&vec!["meta"]).unwrap()
}

fn written() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.img");
    write(ImageWriter::create(&path).unwrap(), &mut sample());
    (directory, path)
}

fn in_memory(memories: &mut [Memory]) -> File {
    write(ImageWriter::in_memory().unwrap(), memories).file
}

fn assert_holds(image: &Image, memories: &[Memory]) {
    assert_eq!(image.metadata::<Vec<String>>().unwrap(), ["meta"]);
    image.verify().unwrap();
    let mut filled: Vec<_> = memories.iter().map(Memory::overwritten).collect();
    image.fill(&extents(&mut filled), false, &Limit::none()).unwrap();
    for (got, want) in filled.iter().zip(memories) {
        assert!(got.get() == want.get());
    }
}

#[test]
fn fill_gives_back_every_byte_and_zeroes_the_rest() {
    let (_directory, path) = written();
    assert_holds(&Image::open(&path).unwrap(), &sample());
}

#[test]
fn image_in_memory_is_of_the_same_bytes_and_has_no_name() {
    let file = in_memory(&mut sample());
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let name = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    assert_eq!(name, Path::new("/memfd:stasis-image (deleted)"));
    assert!(kfd::linux::closes_on_exec(&file).unwrap());
    assert_holds(&Image::of_file(file, Path::new("memory")).unwrap(), &sample());
}

#[test]
fn image_in_memory_of_a_longer_one_holds_nothing_of_it() {
    let earlier = in_memory(&mut sample());
    let mut memories = [Memory::of(&noise(5000, 9)), Memory::new(&noise(777, 8), 3)];
    let again = write(ImageWriter::in_memory_of(earlier).unwrap(), &mut memories);
    let file = again.file;
    assert_eq!(file.metadata().unwrap().len(), again.stats.file_bytes);
    let bytes = |file: &File| fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)));
    assert!(bytes(&file).unwrap() == bytes(&in_memory(&mut memories)).unwrap());
    assert_holds(&Image::of_file(file, Path::new("memory")).unwrap(), &memories);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]
    #[test]
    fn buffers_of_any_length_and_alignment_come_back(
        forms in prop::collection::vec((0usize..20_000, 0usize..4096, any::<u64>(), 0u8..4), 0..40),
        large in (0usize..5 << 20, any::<bool>()),
    ) {
        let mut memories: Vec<_> = forms
            .iter()
            .map(|&(bytes, after_page, seed, kind)| match kind {
                0 => Memory::new(&vec![0; bytes], after_page),
                1 => Memory::of(&noise(bytes.next_multiple_of(4096), seed)),
                _ => Memory::new(&noise(bytes, seed), after_page),
            })
            .collect();
        memories.push(Memory::new(&noise(large.0, 5), usize::from(large.1)));
        for place in ["/tmp", "/dev/shm"].map(Path::new).into_iter().filter(|place| place.exists()) {
            let directory = tempfile::tempdir_in(place).unwrap();
            let path = directory.path().join("x.img");
            write(ImageWriter::create(&path).unwrap(), &mut memories);
            assert_holds(&Image::open(&path).unwrap(), &memories);
        }
        let file = in_memory(&mut memories);
        assert_holds(&Image::of_file(file, Path::new("memory")).unwrap(), &memories);
    }
}

#[test]
fn zero_chunks_cost_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let writer = ImageWriter::create(&directory.path().join("z.img")).unwrap();
    let stats = write(writer, &mut [Memory::of(&vec![0; 64 << 20])]).stats;
    assert_eq!(stats.stored_bytes, 0);
    assert!(stats.file_bytes < 8192, "{stats:?}");
}

#[test]
fn small_buffers_share_a_transfer_and_no_bytes() {
    let mut memories: Vec<_> = (0..2000).map(|n| Memory::of(&noise(1 + n % 9000, n as u64))).collect();
    let image = Image::of_file(in_memory(&mut memories), Path::new("memory")).unwrap();
    assert_holds(&image, &memories);
}

#[test]
fn fill_refuses_other_buffers_before_writing() {
    let (_directory, path) = written();
    let image = Image::open(&path).unwrap();
    let mut one = [Memory::of(&[7; 4096])];
    assert!(matches!(
        image.fill(&extents(&mut one), false, &Limit::none()),
        Err(ImageError::ExtentLength { extent: 0, .. })
    ));
    assert!(one[0].get().iter().all(|b| *b == 7));
}

#[test]
fn cancelled_work_ends_by_name_and_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let limit = Limit::cancellable(Duration::MAX, Arc::new(AtomicBool::new(true)));
    let mut writer = ImageWriter::create(&directory.path().join("x.img")).unwrap();
    let stopped = writer.write_contents(&extents(&mut sample()), &limit);
    assert!(matches!(stopped, Err(ImageError::Stopped(Stopped::Cancelled { .. }))));
    drop(writer);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let image = Image::of_file(in_memory(&mut sample()), Path::new("memory")).unwrap();
    let stopped = image.fill(&extents(&mut sample()), true, &limit);
    assert!(matches!(stopped, Err(ImageError::Stopped(Stopped::Cancelled { .. }))));
}

#[test]
fn unfinished_image_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    drop(ImageWriter::create(&directory.path().join("x.img")).unwrap());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn image_is_the_owners_alone() {
    let (_directory, path) = written();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn planted_links_are_replaced_and_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let victim = directory.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o644)).unwrap();
    let path = directory.path().join("x.img");
    symlink(&victim, &path).unwrap();
    symlink(&victim, path.with_extension(format!("tmp-{}", std::process::id()))).unwrap();
    write(ImageWriter::create(&path).unwrap(), &mut sample());
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o777, 0o644);
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_holds(&Image::open(&path).unwrap(), &sample());
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let (directory, path) = written();
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
    for (name, what) in [
        ("link", "a symbolic link"),
        ("fifo", "a FIFO"),
        ("socket", "a socket"),
        (".", "a directory"),
        ("/dev/null", "a device or socket"),
    ] {
        let error = Image::open(&directory.path().join(name)).unwrap_err();
        assert!(matches!(error, ImageError::NotAFile { found, .. } if found == what), "{error}");
    }
}

#[test]
fn another_users_image_is_only_looked_at() {
    let (_directory, path) = written();
    if std::os::unix::fs::chown(&path, Some(4321), None).is_err() {
        return; // Only root can give a file away.
    }
    let us = nix::unistd::geteuid().as_raw();
    let error = Image::open(&path).unwrap_err();
    assert!(matches!(error, ImageError::Owner { owner: 4321, us: found, .. } if found == us), "{error}");
    assert_holds(&Image::inspect(&path).unwrap(), &sample());
}

#[test]
fn foreign_file_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x");
    fs::write(&path, b"\x7fELF and so on").unwrap();
    assert!(matches!(Image::open(&path), Err(ImageError::NotAnImage { .. })));
}
