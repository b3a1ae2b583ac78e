// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings: which memory CRIU dumps, which it refuses, and what is not in its images.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;

use super::descriptors::ghost;
use super::finding::{Finding, Severity};
use super::scene::Scene;
use stasis_criu_foreign::Mapping;

use super::tree::{DELETED, Process, mapped_file, same_namespace};

/// Memory whose "file" was never one: a name that ends as a deleted file's does means nothing there.
const NAMELESS: [&str; 5] = ["/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage", "/[aio]"];

/// Judges all mappings of the tree; `ghosts` are the files that were judged as descriptors.
pub fn judge(scene: &Scene<'_>, found: &mut Vec<Finding>) {
    let mut ghosts: HashSet<_> =
        scene.tree.iter().flat_map(|p| p.descriptors().iter().map(|fd| fd.file.id)).collect();
    for process in scene.tree {
        // Many mappings of one thing are one finding.
        let mut named = HashSet::new();
        for mapping in process.mappings() {
            if process.gives_up(&mapping.name) {
                continue;
            }
            if let Some(finding) = one(process, mapping)
                && named.insert(mapping.name.as_str())
            {
                found.push(finding);
            }
            let is_ghost =
                mapping.name.ends_with(DELETED) && !NAMELESS.iter().any(|n| mapping.name.starts_with(n));
            if is_ghost
                && !mapping.name.starts_with("/secretmem")
                && ghosts.insert(mapping.id)
                && let Some(file) = mapped_file(mapping, process.pid)
                // Where device numbers of mappings and files differ the descriptor may be the same file after all.
                && (file.id == mapping.id || ghosts.insert(file.id))
            {
                found.extend(ghost(scene, process.pid, mapping.place(), &mapping.name, &file));
            }
        }
    }
}

fn one(process: &Process, mapping: &Mapping) -> Option<Finding> {
    let name = mapping.name.as_str();
    let finding = |severity| Finding::new(severity, process.pid, mapping.place(), name);
    if name.starts_with("/SYSV") {
        // In an IPC namespace of its own CRIU dumps it with the namespace.
        return same_namespace("self", &process.pid.to_string(), "ipc").then(|| {
            finding(Severity::Refused)
                .why("System V shared memory of the host's IPC namespace cannot be dumped")
                .remedy("run the program in an IPC namespace of its own (unshare --ipc), or use a memfd")
        });
    }
    if name.starts_with("/secretmem") {
        let why = "CRIU cannot dump memory of memfd_secret";
        return Some(finding(Severity::Refused).why(why).remedy("unmap it before the checkpoint"));
    }
    if name.starts_with("anon_inode:") || name.starts_with("/dmabuf") {
        let why = "CRIU cannot dump memory that belongs to a driver";
        return Some(finding(Severity::Refused).why(why).remedy("unmap it before the checkpoint"));
    }
    if name.starts_with("/dev/shm/") && mapping.shared && mapping.writable && !name.ends_with(DELETED) {
        return Some(
            finding(Severity::Warning)
                .why("shared memory with a name: its contents are not in the images, the restore maps what is there then")
                .remedy("keep the file as it is, or use a memfd"),
        );
    }
    (name.starts_with("/dev/") && is_device(name)).then(|| {
        let why = "CRIU cannot dump memory of a device";
        finding(Severity::Refused).why(why).remedy("unmap it before the checkpoint")
    })
}

/// Whether a path under /dev is a device CRIU does not map: all but /dev/zero.
fn is_device(name: &str) -> bool {
    let path = name.strip_suffix(DELETED).unwrap_or(name);
    let kind = fs::metadata(path).map(|found| found.file_type());
    path != "/dev/zero" && kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device())
}
