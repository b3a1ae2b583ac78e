// SPDX-License-Identifier: MIT OR Apache-2.0
//! What memory of a device tasks have, by the names of memfds: in their mappings and among their open files.
//!
//! INVARIANT: the tasks are stopped, so that what is found stays.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use kfd::transport::beside::name_of_memfd;
use kfd::transport::gate::GATE_NAME;

use crate::error::{ForeignError, system};
use crate::mapping::Mapping;

/// A link of `/proc` for each memfd that tasks have, by name.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<String, PathBuf>);

impl Held {
    /// The memory that these tasks have.
    ///
    /// # Errors
    /// When the mappings of one cannot be read.
    pub fn by(pids: &[i32]) -> Result<Self, ForeignError> {
        let mut held = Self::default();
        for pid in pids {
            held.add(*pid).map_err(system(format!("see what memory process {pid} has")))?;
        }
        Ok(held)
    }

    fn add(&mut self, pid: i32) -> std::io::Result<()> {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let maps = fs::read(directory.join("maps"))?;
        for line in String::from_utf8_lossy(&maps).lines() {
            let Some((name, link)) = mapped(pid, line) else { continue };
            self.0.entry(name).or_insert(link);
        }
        for entry in fs::read_dir(directory.join("fd"))? {
            let link = entry?.path();
            let Ok(target) = fs::read_link(&link) else { continue };
            if let Some(name) = target.to_str().and_then(name_of_memfd) {
                // A file that was opened for reading alone could not be written by the device.
                self.0.entry(name.to_owned()).or_insert(link);
            }
        }
        Ok(())
    }

    /// Whether a task has the memory of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The names of their memory that begin so.
    pub fn beginning<'a>(&'a self, beginning: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.keys().map(String::as_str).filter(move |name| name.starts_with(beginning))
    }

    /// Opens the memory of this name for reading and writing; `None` if no task has it.
    ///
    /// # Errors
    /// When it cannot be opened: that needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
    pub fn open(&self, name: &str) -> Result<Option<OwnedFd>, ForeignError> {
        let Some(link) = self.0.get(name) else { return Ok(None) };
        let opened = File::options().read(true).write(true).open(link);
        let shown = link.display();
        let opened = opened.map_err(system(format!(
            "open {shown}, memory of the device; it needs CAP_CHECKPOINT_RESTORE"
        )))?;
        Ok(Some(opened.into()))
    }
}

/// The name of a gate that one of these processes has: it has a device, or had one whose executor has ended.
///
/// # Errors
/// When the mappings of one cannot be read.
pub fn gate_of(pids: &[i32]) -> Result<Option<String>, ForeignError> {
    let gate_prefix = format!("{GATE_NAME}:");
    let held = Held::by(pids)?;
    let gate = held.beginning(&gate_prefix).next().map(str::to_owned);
    Ok(gate)
}

/// Name and link of a shared mapping of a memfd, of a line of `/proc/PID/maps`.
fn mapped(pid: i32, line: &str) -> Option<(String, PathBuf)> {
    let mapping = Mapping::parse(line).filter(|mapping| mapping.shared)?;
    Some((name_of_memfd(&mapping.name)?.to_owned(), mapping.link(pid)?))
}

/// How far the monotonic clock of a process is ahead of this machine's, nanoseconds (time_namespaces(7)); 0 where it is not known.
pub fn clock_offset(pid: i32) -> i64 {
    let text = fs::read_to_string(format!("/proc/{pid}/timens_offsets")).unwrap_or_default();
    let mut words =
        text.lines().filter_map(|line| line.strip_prefix("monotonic")).flat_map(str::split_whitespace);
    let mut number = || words.next()?.parse::<i64>().ok();
    let (seconds, nanoseconds) = (number().unwrap_or(0), number().unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::fcntl::SealFlag;

    use super::*;

    #[test]
    fn shared_mappings_of_memfds_are_found_by_name() {
        let line = "7f0000000000-7f0000004000 rw-s 00001000 00:01 77   /memfd:softgpu:vram:1:ab (deleted)";
        let found = |range: &str, name: &str| {
            Some((name.to_owned(), PathBuf::from(format!("/proc/7/map_files/{range}"))))
        };
        assert_eq!(mapped(7, line), found("7f0000000000-7f0000004000", "softgpu:vram:1:ab"));
        assert_eq!(mapped(7, &line.replace("rw-s", "rw-p")), None);
        assert_eq!(mapped(7, "00400000-00452000 r-xs 00000000 08:02 173521 /usr/bin/x"), None);
        assert_eq!(mapped(7, &line.replace("/memfd:", "/tmp/memfd:")), None);
        let low = "00010000-00020000 rw-s 00000000 00:01 7 /memfd:a b (deleted)";
        assert_eq!(mapped(7, low), found("10000-20000", "a b"));
    }

    #[test]
    fn open_memfd_of_this_process_is_found_and_opened() {
        let name = format!("test-held-{}", std::process::id());
        let memory = kfd::linux::memfd(&name, 4096, SealFlag::empty()).unwrap();
        let held = Held::by(&[std::process::id().cast_signed()]).unwrap();
        assert!(held.has(&name));
        assert_eq!(held.beginning(&name[..name.len() - 1]).collect::<Vec<_>>(), [name.as_str()]);
        let opened = held.open(&name).unwrap().unwrap();
        let inode = |fd: i32| nix::sys::stat::stat(format!("/proc/self/fd/{fd}").as_str()).unwrap().st_ino;
        assert_eq!(inode(opened.as_raw_fd()), inode(memory.as_raw_fd()));
        assert!(held.open("no such memory").unwrap().is_none());
        assert!(Held::by(&[i32::MAX]).is_err());
    }
}
