// SPDX-License-Identifier: MIT OR Apache-2.0
//! What builds and runs programs for aarch64: a linker and an emulator from Debian, and a Rust compiler.
//!
//! The machine's own compiler is taken if it has the standard library for aarch64 (`rustup target add`). Otherwise Debian's,
//! the one that its browsers are built with, goes into a private prefix; it is newer than this repository asks for.
//!
//! INVARIANT: the prefix appears by one rename, so that it exists completely or not at all.

use super::announce;
use super::apt;
use super::packages;
use super::private;
use super::process;
use anyhow::Context;
use anyhow::Result;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// The target, as Rust names it.
pub const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Where Debian keeps the compiler for its browsers up to date.
const SUITE: apt::Suite = apt::Suite { name: "bookworm-security", other_architecture: Some("arm64") };

/// Its own libraries are not the system's.
const WRAPPER: &str = r#"#!/bin/sh
root=$(dirname "$(dirname "$(readlink -f "$0")")")/root
export LD_LIBRARY_PATH="$root/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$root/usr/bin/rustc" "$@"
"#;

/// Finds a compiler for aarch64, or installs one below `private`; installs linker and emulator where they are missing.
///
/// # Errors
/// Names the packages that are missing and cannot be installed.
pub fn find_or_install(private: &Path) -> Result<PathBuf> {
    packages::install_aarch64()?;
    let own = PathBuf::from(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    if has_library(&own) {
        return Ok(own);
    }
    let prefix = private.join("rustc-aarch64");
    let rustc = prefix.join("bin/rustc");
    if !has_library(&rustc) {
        install(private, &prefix)?;
        process::output(Command::new(&rustc).arg("--version"))
            .context("The compiler from Debian does not run here; `rustup target add` its own instead")?;
    }
    Ok(rustc)
}

/// Whether a compiler has the standard library for aarch64.
fn has_library(rustc: &Path) -> bool {
    process::output(Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]))
        .is_ok_and(|text| Path::new(text.trim()).is_dir())
}

fn install(private: &Path, prefix: &Path) -> Result<()> {
    announce(format_args!(
        "installing Rust for aarch64 from Debian {} (5 packages, 130 MB, 600 MB unpacked) into {}; the machine's stays as it is",
        SUITE.name,
        prefix.display()
    ));
    let (download, scratch) = (private.join("rustc-aarch64.download"), private.join("rustc-aarch64.new"));
    let packages = apt::fetch(&download, &SUITE, |apt| {
        let mut names = apt.dependencies("rustc-web")?;
        // C libraries and compilers are the machine's.
        names.retain(|name| {
            ["rustc-web", "libstd-rust-web", "libllvm"].iter().any(|own| name.starts_with(own))
        });
        names.push("libstd-rust-web-dev:arm64".to_owned());
        Ok(names)
    })
    .context(
        "Could not download Rust for aarch64; `rustup target add aarch64-unknown-linux-gnu` does as well",
    )?;
    private::unpack(&packages, &scratch, prefix, ("rustc", WRAPPER))?;
    // The directory only helps a later run after a failure; if it stays it does no harm.
    let _ = fs::remove_dir_all(&download);
    Ok(())
}
