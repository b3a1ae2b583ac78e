// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any text is an index or refused; what is taken names nothing outside its directory, and its parts are as long as its files.
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use stasis_store::{ChunkIndex, Part};

fuzz_target!(|bytes: &[u8]| {
    let Ok(index) = ChunkIndex::parse(bytes) else { return };
    let paths = index.directories.iter().chain(index.files.iter().map(|file| &file.path));
    for path in paths {
        assert!(Path::new(path).components().all(|part| matches!(part, Component::Normal(_))));
    }
    for file in &index.files {
        let length = |part: &Part| match *part {
            Part::Chunk(chunk) => index.chunks[chunk as usize].bytes,
            Part::Zeros { zeros } => zeros,
        };
        assert_eq!(file.parts.iter().map(length).sum::<u64>(), file.bytes);
    }
    let again = ChunkIndex::parse(&index.encode().expect("a text")).expect("its own text");
    assert_eq!(again, index);
});
