// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libstasis_criu_beside.so`: `stasis checkpoint` preloads it into `criu dump` for a program of `stasis run`. CRIU asks lseek(2) where a
//! memfd has data, and stores nothing where it has none (`next_data_segment` in CRIU's `shmem.c`). Of memory that is
//! stored beside CRIU's images this library answers that it has none, and reports its name.
//!
//! INVARIANT: a memory is left out only after its name has been written to the report, whose reader stores it or lets the dump fail.
#![deny(unsafe_code)]

mod exports;

use std::ffi::c_int;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kfd::linux::{self, SealFlag};
use kfd::transport::beside::{LeftOut, REPORT_VARIABLE, is_stored_beside, name_of_memfd};

const AGAINST_WRITING: SealFlag = SealFlag::F_SEAL_WRITE.union(SealFlag::F_SEAL_FUTURE_WRITE);

/// Whether the file of this descriptor is to be left out; its name is in the report then.
fn is_left_out(fd: c_int) -> bool {
    std::env::var_os(REPORT_VARIABLE).is_some_and(|report| is_reported(fd, Path::new(&report)))
}

fn is_reported(fd: c_int, report: &Path) -> bool {
    let path = format!("/proc/self/fd/{fd}");
    let Ok(link) = fs::read_link(&path) else { return false };
    let Some(name) = link.to_str().and_then(name_of_memfd) else { return false };
    let Ok(memory) = File::open(&path) else { return false };
    let Ok(found) = memory.metadata() else { return false };
    // A restore could not write the contents back into memory that is sealed against writing.
    let can_be_filled = linux::seals(&memory).is_ok_and(|seals| !seals.intersects(AGAINST_WRITING));
    let line = LeftOut { inode: found.ino(), name: name.to_owned() }.to_string() + "\n";
    let tell = || File::options().append(true).open(report)?.write_all(line.as_bytes());
    is_stored_beside(name, found.len()) && can_be_filled && tell().is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use kfd::linux::{SealFlag, memfd};

    use super::*;

    #[test]
    fn memory_is_left_out_only_when_its_name_is_in_the_report() {
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("report");
        let name = "softgpu:gtt:1:0123456789abcdef";
        let large = memfd(name, 1 << 20, SealFlag::empty()).unwrap();
        assert!(!is_reported(large.as_raw_fd(), &report), "there is no file");
        fs::write(&report, "").unwrap();
        let small = memfd("softgpu:gtt:1:1123456789abcdef", 4096, SealFlag::empty()).unwrap();
        let other = memfd("other", 1 << 20, SealFlag::empty()).unwrap();
        let sealed = memfd("softgpu:gtt:1:2123456789abcdef", 1 << 20, SealFlag::F_SEAL_FUTURE_WRITE).unwrap();
        for fd in [small.as_raw_fd(), other.as_raw_fd(), sealed.as_raw_fd(), -1] {
            assert!(!is_reported(fd, &report));
        }
        assert!(is_reported(large.as_raw_fd(), &report));
        let inode = File::from(large.try_clone().unwrap()).metadata().unwrap().ino();
        let text = fs::read_to_string(&report).unwrap();
        assert_eq!(
            text.lines().map(LeftOut::parse).collect::<Vec<_>>(),
            [Some(LeftOut { inode, name: name.into() })]
        );
        assert!(!is_left_out(large.as_raw_fd()), "nobody wants to know");
    }
}
