// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private prefixes of Debian's packages: of testing's CRIU, for systems whose own is too old, and of others.
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

/// The stamp of a prefix of packages, which is written last.
const STAMP: &str = "stasis-stamp";
/// What nobody reads of packages.
const LEFT_OUT: [&str; 2] = ["usr/share", "etc"];

/// The prefix `private`/`name` of packages, which are below `root` in it, made if it is not there; no script of theirs is run.
/// `finish` adds what they are started by, also to one that is there: it may have been made by an older version of this program.
///
/// # Errors
/// The packages could not be downloaded or unpacked, or what `finish` says.
pub fn unpacked(
    private: &Path,
    name: &str,
    suite: &'static apt::Suite,
    packages: &[&str],
    what: &str,
    finish: impl Fn(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let prefix = private.join(name);
    let stamp = format!("{packages:?}\n");
    if is_complete(&prefix, &stamp) {
        finish(&prefix)?;
        return Ok(prefix);
    }
    announce(format_args!(
        "installing {what} from Debian {} ({} packages) into {}; nothing of it is started",
        suite.name,
        packages.len(),
        prefix.display()
    ));
    let download = private.join(format!("{name}.download"));
    let names: Vec<String> = packages.iter().map(|name| (*name).to_owned()).collect();
    let files = apt::fetch(&download, suite, |_| Ok(names.clone())).with_context(|| {
        format!("Could not download {what}; run again when Debian's mirror can be reached")
    })?;
    let scratch = private.join(format!("{name}.new"));
    process::remove(&scratch)?;
    apt::unpack(&files, &scratch.join("root"))?;
    LEFT_OUT.iter().try_for_each(|directory| process::remove(&scratch.join("root").join(directory)))?;
    finish(&scratch)?;
    complete(&scratch, &prefix, &stamp)?;
    // The directory only helps a later run after a failure; if it stays it does no harm.
    let _ = fs::remove_dir_all(&download);
    Ok(prefix)
}

/// Whether a prefix is complete, of what this stamp says.
pub fn is_complete(prefix: &Path, stamp: &str) -> bool {
    fs::read_to_string(prefix.join(STAMP)).is_ok_and(|found| found == stamp)
}

/// Gives a prefix that was made in `scratch` its stamp and its place.
///
/// # Errors
/// It cannot be written or moved; the one before is then as it was, or gone.
pub fn complete(scratch: &Path, prefix: &Path, stamp: &str) -> Result<()> {
    let path = scratch.join(STAMP);
    fs::write(&path, stamp).with_context(|| format!("Could not write {}", path.display()))?;
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
