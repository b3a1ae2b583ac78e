// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the dynamic linker will preload a library into a program.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Set-user-id and set-group-id (inode(7)).
const SET_ID: u32 = 0o6000;
/// Bytes of the header of an ELF file of 64 bits, and of one of its program headers (elf(5)).
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// `e_ident`: the magic number, 64 bits, little endian.
const ELF_64: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const EM_X86_64: u16 = 62;
const PT_INTERP: u32 = 3;
/// How the file names of dynamic linkers begin (ld.so(8)).
const LINKER: &[u8] = b"ld-linux";

/// Why a program will not find the device, as far as its file tells; `None` also for scripts, and for what cannot be read.
pub fn obstacle(program: &OsStr) -> Option<&'static str> {
    let path = find(program)?;
    // The dynamic linker, called by its name, preloads libraries into the program that it is given.
    if path.file_name()?.as_encoded_bytes().starts_with(LINKER) {
        return None;
    }
    let file = File::open(path).ok()?;
    if file.metadata().is_ok_and(|found| found.mode() & SET_ID != 0) {
        return Some("runs with rights of its own, so that the dynamic linker preloads nothing into it");
    }
    let mut header = [0; HEADER_BYTES];
    (&file).read_exact(&mut header).ok()?;
    if header[..4] != ELF_64[..4] {
        return None;
    }
    if header[..6] != ELF_64 || u16::from_le_bytes([header[18], header[19]]) != EM_X86_64 {
        return Some("is no program for x86-64");
    }
    let table = u64::from_le_bytes(*header[32..].first_chunk()?);
    let (bytes, count) =
        (u16::from_le_bytes([header[54], header[55]]), u16::from_le_bytes([header[56], header[57]]));
    if usize::from(bytes) != PROGRAM_HEADER_BYTES {
        return None;
    }
    let kind = |index: u16| {
        let mut kind = [0; 4];
        let at = table.checked_add(u64::from(index) * u64::from(bytes))?;
        file.read_exact_at(&mut kind, at).ok()?;
        Some(u32::from_le_bytes(kind))
    };
    let has_linker = (0..count).any(|index| kind(index) == Some(PT_INTERP));
    (!has_linker).then_some("is linked statically, so that no library can be preloaded into it")
}

/// The file that a name means, as `execvp` looks for it.
fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 || path.is_absolute() {
        return Some(path.to_owned());
    }
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search).map(|directory| directory.join(path)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_that_nothing_is_preloaded_into_are_known_by_their_files() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(obstacle(own.as_os_str()), None);
        assert_eq!(obstacle(OsStr::new("sh")), None);
        assert_eq!(obstacle(OsStr::new("/no/such/program")), None);
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let of = |path: &Path| obstacle(path.as_os_str()).unwrap_or("nothing");
        assert_eq!(of(&file("script", b"#!/bin/sh\n")), "nothing");
        assert_eq!(of(&file("short", b"\x7fELF")), "nothing");
        let mut bytes = fs::read(&own).unwrap();
        let set_id = file("set-id", &bytes);
        fs::set_permissions(&set_id, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(of(&set_id).contains("rights"));
        // A program of one header, which is no PT_INTERP.
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        assert!(of(&file("static", &bytes)).contains("statically"));
        assert_eq!(of(&file("ld-linux-x86-64.so.2", &bytes)), "nothing");
        bytes[4] = 1;
        assert!(of(&file("other", &bytes)).contains("x86-64"));
    }
}
