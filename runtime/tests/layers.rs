// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers of the crate, as ARCHITECTURE.md lists them: what each folder may import of the others.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() && name != "tests" {
            files(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// The modules at the crate's root that a file names, outside its tests and comments.
fn imports(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).expect("a source file");
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut found = BTreeSet::new();
    for line in lines {
        for part in line.split("crate::").skip(1) {
            let name: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.insert(name);
        }
    }
    found
}

/// Asserts that the files of a folder import nothing but these modules of the crate.
fn only(folder: &str, allowed: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder);
    let mut found = Vec::new();
    files(&root, &mut found);
    assert!(!found.is_empty(), "{folder} has no files");
    for file in found {
        let wrong: Vec<_> =
            imports(&file).into_iter().filter(|name| !allowed.contains(&name.as_str())).collect();
        assert!(wrong.is_empty(), "{} imports {wrong:?}; {folder} may import {allowed:?}", file.display());
    }
}

#[test]
fn core_imports_nothing_above_it() {
    only("context", &["context", "code_object", "linux"]);
}

#[test]
fn what_is_below_the_core_knows_no_device() {
    only("code_object", &["code_object"]);
    only("linux", &["linux"]);
    only("image", &["image", "linux"]);
}

#[test]
fn handles_copies_and_sharing_know_no_checkpoint() {
    let handles = [
        "context",
        "code_object",
        "agent",
        "runtime",
        "pool",
        "signal",
        "executable",
        "queue",
        "raw",
        "copy",
    ];
    only("pool", &handles);
    only("vmem", &[&handles[..], &["vmem"]].concat());
    only("raw", &handles);
    only("copy", &handles);
    only("share", &[&handles[..], &["share", "image", "linux", "vmem"]].concat());
}
