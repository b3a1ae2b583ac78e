// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private prefix with Debian testing's CRIU, for systems whose own is too old.
//!
//! INVARIANT: the prefix appears by one rename, so that it exists completely or not at all.

use super::announce;
use super::apt;
use super::process;
use anyhow::Context;
use anyhow::Result;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

/// The Debian release that carries a CRIU of at least 4.2.
const SUITE: apt::Suite = apt::Suite::named("forky");

/// CRIU runs with its own C library; `$0` is resolved so that a symlink to this script works too. Without one it starts no other
/// program: each costs a restore some milliseconds.
const WRAPPER: &str = r#"#!/bin/sh
self=$0
[ ! -L "$self" ] || self=$(readlink -f "$self")
root=${self%/*}/../root
lib="$root/usr/lib/x86_64-linux-gnu"
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$root/usr/sbin/criu" "$@"
"#;

/// Downloads CRIU and its dependencies and unpacks them to `prefix`.
///
/// # Errors
/// The machine is no Debian on x86-64, has no Debian source, or the download failed repeatedly.
pub fn install_criu(private: &Path, prefix: &Path) -> Result<()> {
    announce(format_args!(
        "installing CRIU from Debian {} (about 26 packages, 30 MB) into {}; the system's stays as it is",
        SUITE.name,
        prefix.display()
    ));
    let download = private.join("criu.download");
    let packages = apt::fetch(&download, &SUITE, |apt| apt.dependencies("criu"))
        .context("Could not download CRIU; install CRIU 4.2 or newer yourself, or set STASIS_CRIU")?;
    unpack(&packages, &private.join("criu.new"), prefix, ("criu", WRAPPER))?;
    // The directory only helps a later run after a failure; if it stays it does no harm.
    let _ = fs::remove_dir_all(&download);
    Ok(())
}

/// Makes a prefix of packages, which are below `root` in it, and of the program of this name and text, in `bin`.
///
/// # Errors
/// A package cannot be unpacked, or the prefix not be written; the one before is then as it was, or gone.
pub fn unpack(
    packages: &[PathBuf],
    scratch: &Path,
    prefix: &Path,
    (program, text): (&str, &str),
) -> Result<()> {
    process::remove(scratch)?;
    apt::unpack(packages, &scratch.join("root"))?;
    write_program(&scratch.join("bin").join(program), text)?;
    process::remove(prefix)?;
    fs::rename(scratch, prefix).with_context(|| format!("Could not move the prefix to {}", prefix.display()))
}

/// Writes a script that can be run, in a directory that is made if need be.
///
/// # Errors
/// It could not be written.
pub fn write_program(path: &Path, text: &str) -> Result<()> {
    // One that may be running is left alone.
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, text))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("Could not write {}", path.display()))
}
