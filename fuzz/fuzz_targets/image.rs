// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any file is an image or refused; contents that verify fit their hashes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stasis::checkpoint::Metadata;
use stasis::image::{Image, own_chunks};

fuzz_target!(|bytes: &[u8]| {
    let path = std::env::temp_dir().join(format!("stasis-fuzz-{}.img", std::process::id()));
    if std::fs::write(&path, bytes).is_ok()
        && let Ok(image) = Image::open(&path)
    {
        let _ = image.verify();
        let _ = image.metadata::<Metadata>();
    }
    if let Ok(file) = std::fs::File::open(&path)
        && let Ok(chunks) = own_chunks(&file, &path)
    {
        let length = bytes.len() as u64;
        let mut end = 0;
        for chunk in chunks {
            assert!(chunk.file_offset >= end && chunk.file_offset + chunk.length <= length);
            end = chunk.file_offset + chunk.length;
        }
    }
});
