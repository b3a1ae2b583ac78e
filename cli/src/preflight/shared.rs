// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared with processes outside the tree: CRIU dumps it as a private copy and says nothing.
//!
//! INVARIANT: other processes are looked at only if the tree has such memory at all, and only so many of them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use super::device_memory::{is_device_memory, is_driver};
use super::finding::{Finding, Severity};
use super::scene::Scene;
use super::tree::{DELETED, File, FileId, Process, field, mapped_file};

/// Most descriptors and mappings of strangers that are looked at: about a second on a slow machine.
const MOST: usize = 400_000;

/// Where the tree has a piece of memory that has no name in the file system.
pub(super) struct Place {
    pub(super) pid: i32,
    pub(super) place: String,
    pub(super) name: String,
    /// What stat says of it, where a descriptor or a mapping leads to it.
    pub(super) file: Option<File>,
}

/// Anonymous memory with an inode, and files whose names are gone.
fn is_nameless(name: &str) -> bool {
    name.starts_with("/memfd:") || name.starts_with("/dev/zero (") || name.ends_with(DELETED)
}

/// What one finds out about strangers by looking for pieces of memory among theirs.
pub(super) struct Shared {
    /// Which piece is shared, with whom.
    pub(super) with: HashMap<FileId, i32>,
    /// Whether there were too many to look at all.
    pub(super) is_cut: bool,
    /// Processes that may not be looked at.
    pub(super) hidden: usize,
}

/// Looks for pieces of memory among what all processes but `inside` have.
pub(super) fn search(pieces: &HashMap<FileId, Place>, inside: impl Fn(i32) -> bool) -> Shared {
    let mut search = Search { pieces, shared: HashMap::new(), looked: 0, hidden: 0 };
    let strangers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let strangers = strangers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for stranger in strangers.filter(|pid| !inside(*pid)) {
        if search.looked > MOST {
            break;
        }
        search.look(stranger);
    }
    Shared { with: search.shared, is_cut: search.looked > MOST, hidden: search.hidden }
}

/// The pieces of memory of a tree whose names are `wanted`.
pub(super) fn pieces(tree: &[Process], wanted: impl Fn(&str) -> bool) -> HashMap<FileId, Place> {
    let mut pieces = HashMap::new();
    for process in tree {
        let fds = process.descriptors().iter().filter(|fd| is_nameless(&fd.link));
        for fd in fds.filter(|fd| wanted(&fd.link) && !process.gives_up(&fd.link)) {
            pieces.entry(fd.file.id).or_insert_with(|| Place {
                pid: process.pid,
                place: fd.place(),
                name: fd.link.clone(),
                file: Some(fd.file),
            });
        }
        let maps = process.mappings().iter().filter(|m| m.shared && is_nameless(&m.name));
        let is_dumped = |m: &&stasis_criu_foreign::Mapping| wanted(&m.name) && !process.gives_up(&m.name);
        for mapping in maps.filter(is_dumped).filter(|m| !m.name.starts_with("/SYSV")) {
            pieces.entry(mapping.id).or_insert_with(|| Place {
                pid: process.pid,
                place: mapping.place(),
                name: mapping.name.clone(),
                file: mapped_file(mapping, process.pid),
            });
        }
    }
    pieces
}

/// Bytes of the tree's shared memory that CRIU dumps, each piece once.
pub fn bytes(tree: &[Process]) -> u64 {
    pieces(tree, is_of_host).values().filter_map(|piece| piece.file).map(|file| file.allocated).sum()
}

/// The same with memory that a device lends.
pub fn all_bytes(tree: &[Process]) -> u64 {
    pieces(tree, |_| true).values().filter_map(|piece| piece.file).map(|file| file.allocated).sum()
}

/// How many pieces there are.
pub fn count(tree: &[Process]) -> usize {
    pieces(tree, |_| true).len()
}

/// Whether memory of this name is none that a device lends.
fn is_of_host(name: &str) -> bool {
    !is_device_memory(name)
}

/// Looks for strangers that share memory with the tree.
pub fn judge(scene: &Scene<'_>, found: &mut Vec<Finding>) {
    let pieces = pieces(scene.tree, is_of_host);
    if pieces.is_empty() {
        return;
    }
    let inside: HashSet<i32> = scene.tree.iter().map(|process| process.pid).collect();
    // The software device has what was imported from others, and gets it again from the runtime.
    let shared = search(&pieces, |pid| inside.contains(&pid) || is_driver(pid));
    let root = scene.root().pid;
    for (id, stranger) in &shared.with {
        let Some(piece) = pieces.get(id) else { continue };
        found.push(
            Finding::new(Severity::Refused, piece.pid, piece.place.as_str(), piece.name.as_str())
                .why(format!(
                    "it is shared with process {stranger} ({}), which is not in the tree: the restored process would \
                     have a copy of its own, without a word from CRIU",
                    name(*stranger)
                ))
                .remedy("end the sharing, or checkpoint a common parent of both"),
        );
    }
    let note = |what: String, why: &str| Finding::new(Severity::Note, root, "process", what).why(why);
    if shared.is_cut {
        found.push(note(
            format!("memory in {} pieces without names", pieces.len()),
            "there are too many processes here to see whether others share it",
        ));
    }
    if shared.hidden > 0 {
        found.push(note(
            format!("memory in {} pieces without names", pieces.len()),
            "whether other users' processes share it cannot be seen without root",
        ));
    }
}

pub(super) fn name(pid: i32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, "Name").unwrap_or("gone").to_owned()
}

struct Search<'p> {
    pieces: &'p HashMap<FileId, Place>,
    /// Which piece is shared, with whom.
    shared: HashMap<FileId, i32>,
    looked: usize,
    /// Processes that may not be looked at.
    hidden: usize,
}

impl Search<'_> {
    fn look(&mut self, stranger: i32) {
        let root = format!("/proc/{stranger}");
        match fs::read_dir(Path::new(&root).join("fd")) {
            Ok(entries) => {
                for entry in entries.flatten() {
                    self.looked += 1;
                    let path = entry.path();
                    let link = fs::read_link(&path).unwrap_or_default();
                    let link = link.to_string_lossy();
                    if (is_nameless(&link) || is_device_memory(&link))
                        && let Ok(file) = fs::metadata(&path)
                    {
                        self.note(super::tree::File::from(&file).id, stranger);
                    }
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => self.hidden += 1,
            Err(_) => {}
        }
        let maps = fs::read_to_string(format!("{root}/maps")).unwrap_or_default();
        for line in maps.lines() {
            self.looked += 1;
            if (line.ends_with(DELETED) || line.contains(" /dmabuf"))
                && let Some(mapping) = stasis_criu_foreign::Mapping::parse(line)
                && mapping.shared
            {
                self.note(mapping.id, stranger);
            }
        }
    }

    fn note(&mut self, id: FileId, stranger: i32) {
        if self.pieces.contains_key(&id) {
            self.shared.entry(id).or_insert(stranger);
        }
    }
}
