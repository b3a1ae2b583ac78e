// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of an archive.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::above_new;
use super::contents::{Contents, Member, each};

/// Unpacks an archive into a directory that is not there; it has its name when all of it is on the disk.
///
/// # Errors
/// As for [`each`]; something is missing, or the directory is there.
pub(super) fn unpack(archive: &Path, directory: &Path) -> Result<Contents> {
    let above = above_new(directory)?;
    let own = tempfile::Builder::new().prefix(".stasis-archive-").tempdir_in(above);
    let own = own.with_context(|| format!("Cannot make a directory in {}", above.display()))?;
    let mut contents = Contents::default();
    each(archive, |member| write(own.path(), member, &mut contents))?;
    contents.check()?;
    let opened = File::open(own.path())?;
    nix::unistd::syncfs(&opened)?;
    // One that is empty would be replaced.
    above_new(directory)?;
    fs::rename(own.path(), directory).with_context(|| format!("Cannot make {}", directory.display()))?;
    // It has another name.
    let _ = own.keep();
    Ok(contents)
}

fn write(directory: &Path, member: Member<'_>, contents: &mut Contents) -> Result<()> {
    let path = directory.join(&member.name);
    let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
    let named = || format!("Cannot write {}", path.display());
    if member.is_directory {
        return make(&path).with_context(named);
    }
    make(path.parent().unwrap_or(directory)).with_context(named)?;
    // No member is written twice, and none through another one.
    let mut file =
        File::options().write(true).create_new(true).mode(0o600).open(&path).with_context(named)?;
    let bytes = member.bytes;
    let mut kept = Kept { from: &mut *member.contents, to: &mut file };
    let mut copy = Member { name: member.name.clone(), bytes, is_directory: false, contents: &mut kept };
    contents.note(&mut copy)?;
    // The rest, of which the contents note nothing.
    io::copy(&mut kept, &mut io::sink()).with_context(named)?;
    let written = file.metadata().with_context(named)?.len();
    ensure!(written == bytes, "{} of the archive has {written} of {bytes} bytes", member.name);
    Ok(())
}

/// Writes what is read.
struct Kept<'k> {
    from: &'k mut dyn Read,
    to: &'k mut File,
}

impl Read for Kept<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        io::Write::write_all(self.to, &into[..read])?;
        Ok(read)
    }
}
