// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names the version of the code generator: a hash of what generated code may depend on, so that nobody has to remember to
//! change it.
//!
//! INVARIANT: another source of this crate or of the instruction table, or another compiler, which may lay structs out in
//! another way, gives another version. The hash is not one against attackers: whoever changes sources builds the program.

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// All files below `at`, sorted.
fn files(at: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries =
        fs::read_dir(at)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut hasher = DefaultHasher::new();
    // Packaged, this crate has no such neighbour; then the versions of both packages stand for it (`store/key.rs`).
    for root in ["src", "../isa/src"].map(Path::new).into_iter().filter(|root| root.is_dir()) {
        println!("cargo::rerun-if-changed={}", root.display());
        let mut found = Vec::new();
        files(root, &mut found)?;
        for path in found {
            path.hash(&mut hasher);
            fs::read(&path)?.hash(&mut hasher);
        }
    }
    let compiler = env::var_os("RUSTC").ok_or("cargo sets RUSTC")?;
    Command::new(compiler).arg("-vV").output()?.stdout.hash(&mut hasher);
    for name in ["CARGO_ENCODED_RUSTFLAGS", "TARGET"] {
        env::var_os(name).hash(&mut hasher);
    }
    println!("cargo::rustc-env=SOFTGPU_GENERATOR={:016x}", hasher.finish());
    Ok(())
}
