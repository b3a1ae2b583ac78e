// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any text is a manifest or an index of a session, or refused; what is taken names nothing outside its directory.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use stasis::criu::{Manifest, SessionIndex};

fuzz_target!(|bytes: &[u8]| {
    let directory = Path::new("/checkpoint");
    if let Ok(manifest) = Manifest::parse(bytes, &directory.join("manifest.json")) {
        let listed = manifest.files.iter().map(|file| file.path.clone());
        let places = manifest.runtimes(directory).into_iter().map(|(_, place)| place);
        for path in manifest.image_names().chain(listed).map(|name| directory.join(name)).chain(places) {
            let inside = path.strip_prefix(directory).expect("a path in the directory");
            assert!(inside.components().all(|part| matches!(part, std::path::Component::Normal(_))));
        }
        let _ = manifest.listed_bytes();
    }
    if let Ok(index) = SessionIndex::parse(bytes, &directory.join("session.json")) {
        assert!(index.directories(directory).iter().all(|tree| tree.parent() == Some(directory)));
    }
});
