// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who else holds memory: looked up in `/proc`, where a DMABuf's inode shows behind descriptors and mappings.
//!
//! What does not show is a buffer object that another process made of a DMABuf, closed and mapped for no CPU: the driver
//! tells nobody. Buffers of this runtime are mapped wherever the CPU can see their memory. Processes that this user may
//! not look into are passed over.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fmt, fs, io};

use super::descriptors::is_dmabuf;
use crate::context::registry::state::DmabufId;

/// A process outside the session that holds memory of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outsider {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// `fd 7` or `mapping 7f00-7f01`.
    pub place: String,
    /// Which memory.
    pub dmabuf: DmabufId,
}

impl fmt::Display for Outsider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}) holds memory {} by {}", self.pid, self.name, self.dmabuf, self.place)
    }
}

/// The first place of each process, but for those of `members`, where one of `memory` shows. The software device itself
/// is the driver and no holder.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn outsiders(memory: &[DmabufId], members: &[i32]) -> io::Result<Vec<Outsider>> {
    let wanted: BTreeMap<u64, DmabufId> = memory.iter().map(|id| (id.inode, *id)).collect();
    let own = std::process::id().cast_signed();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if pid == own || members.contains(&pid) || is_driver(&entry.path()) {
            continue;
        }
        let held = by_descriptor(&entry.path(), &wanted).or_else(|| by_mapping(&entry.path(), &wanted));
        if let Some((place, dmabuf)) = held {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().to_owned();
            found.push(Outsider { pid, name, place, dmabuf });
        }
    }
    Ok(found)
}

fn is_driver(process: &Path) -> bool {
    let program = fs::read_link(process.join("exe")).unwrap_or_default();
    // Behind one that was built anew since it was started, the system writes that.
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.trim_end_matches(" (deleted)") == "softgpud"
}

fn by_descriptor(process: &Path, wanted: &BTreeMap<u64, DmabufId>) -> Option<(String, DmabufId)> {
    fs::read_dir(process.join("fd")).ok()?.flatten().find_map(|entry| {
        let name = fs::read_link(entry.path()).ok()?;
        if !name.to_str().is_some_and(is_dmabuf) {
            return None;
        }
        let file = fs::metadata(entry.path()).ok()?;
        let id = wanted.get(&file.ino()).filter(|id| id.device == file.dev())?;
        Some((format!("fd {}", entry.file_name().to_string_lossy()), *id))
    })
}

fn by_mapping(process: &Path, wanted: &BTreeMap<u64, DmabufId>) -> Option<(String, DmabufId)> {
    let maps = fs::read_to_string(process.join("maps")).ok()?;
    maps.lines().find_map(|line| {
        // range access offset device inode name
        let mut fields = line.split_ascii_whitespace();
        let (range, inode, name) = (fields.next()?, fields.nth(3)?, fields.next()?);
        let id = wanted.get(&inode.parse().ok()?).filter(|_| is_dmabuf(name))?;
        Some((format!("mapping {range}"), *id))
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::context::device::identify;

    #[test]
    fn holder_is_named_unless_it_is_a_member() {
        let memory = memfd_create("softgpu:gtt:1", MFdFlags::MFD_CLOEXEC).unwrap();
        let id = identify(&memory).unwrap();
        assert_eq!(outsiders(&[id], &[]).unwrap(), []);
        let copy = nix::unistd::dup(&memory).unwrap();
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::from(copy))
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let found = outsiders(&[id], &[]).unwrap();
        let members = outsiders(&[id], &[pid]).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(found.iter().map(|o| (o.pid, o.place.as_str())).collect::<Vec<_>>(), [(pid, "fd 2")]);
        assert_eq!(members, []);
        let other = DmabufId { inode: id.inode, device: id.device + 1 };
        assert_eq!(outsiders(&[other], &[]).unwrap(), []);
    }
}
