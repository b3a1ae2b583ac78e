// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoint directories for the tests: an image of buffers, and files that stand for CRIU's.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use stasis::checkpoint::CheckpointReport;
use stasis::criu::{CriuOptions, LAYOUT, Manifest, NO_PLUGINS, Trust, commit_now, prepare};
use stasis::image::{Extent, IMAGE_FILE, Image, ImageWriter, Limit};

use crate::{Checkpoint, Grain};

/// Bytes that do not repeat.
pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut noise);
    noise
}

/// Writes a complete checkpoint with these buffers and these pages.
pub(crate) fn write(directory: &Path, buffers: &[Vec<u8>], pages: &[u8]) -> PathBuf {
    write_upon(directory, buffers, pages, None)
}

/// The same upon an earlier one.
pub(crate) fn write_upon(
    directory: &Path,
    buffers: &[Vec<u8>],
    pages: &[u8],
    parent: Option<&Path>,
) -> PathBuf {
    let directory = prepare(directory).unwrap();
    let image = directory.join(IMAGE_FILE);
    let mut buffers = buffers.to_vec();
    let mut extents = Vec::new();
    for buffer in &mut buffers {
        let address = NonNull::new(buffer.as_mut_ptr()).unwrap();
        // SAFETY: the vectors outlive the extents, and nobody else uses them meanwhile.
        extents.push(unsafe { Extent::new(address, buffer.len() as u64) });
    }
    let mut writer = match parent {
        None => ImageWriter::create(&image).unwrap(),
        Some(parent) => {
            ImageWriter::create_upon(&image, &Image::open(&parent.join(IMAGE_FILE)).unwrap(), 15).unwrap()
        }
    };
    writer.write_contents(&extents, &Limit::none()).unwrap();
    writer.finish(&"metadata").unwrap();
    fs::create_dir(directory.join("criu").join(NO_PLUGINS)).unwrap();
    fs::write(directory.join("criu/pages-1.img"), pages).unwrap();
    fs::write(directory.join("criu/core-7.img"), "registers").unwrap();
    fs::write(directory.join("criu/dump.log"), "what only CRIU writes").unwrap();
    let manifest = Manifest {
        layout: LAYOUT,
        pid: 7,
        command: vec!["program".into()],
        executable: None,
        criu: "4.2".into(),
        options: CriuOptions::default(),
        images: vec![IMAGE_FILE.into()],
        members: Vec::new(),
        foreign: None,
        report: CheckpointReport::default(),
        files: Vec::new(),
    };
    manifest.write_pending(&directory).unwrap();
    commit_now(&directory).unwrap();
    directory
}

pub(crate) fn open(directory: &Path) -> Checkpoint {
    Checkpoint::open(directory, Trust::of_caller(), Grain::Table, &|_, _| ()).unwrap()
}

/// All files of a directory and their bytes, but for CRIU's log, which no checkpoint needs.
pub(crate) fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(
                self::files(&path)
                    .into_iter()
                    .map(|(name, bytes)| (Path::new(path.file_name().unwrap()).join(name), bytes)),
            ),
            false if path.ends_with("dump.log") => {}
            false => drop(files.insert(path.file_name().unwrap().into(), fs::read(&path).unwrap())),
        }
    }
    files
}
