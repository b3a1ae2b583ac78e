// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files of one client process: `/dev/kfd` and the render nodes.
//!
//! A token names an open file: a sealed memfd whose inode identifies the file, however often its descriptor is
//! duplicated or sent. The client's descriptors are the only ones that can write it, by which the driver learns that all of
//! them are closed ([`linux::has_writer`]). INVARIANT: the driver keeps one descriptor of every file that it knows, so that no
//! other file can get the inode.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kfd::linux;
use kfd::sys::{DrmIoctl, KfdIoctl, ioc_nr};
use kfd::transport::wire::TOKEN_NAME;
use nix::errno::Errno;

use super::memfd::{self, Identity};
use crate::sysfs::GpuModel;

/// What a path under `/dev` opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Kfd,
    Render { gpu: usize },
}

/// One open file description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    id: u64,
    node: Node,
}

impl OpenFile {
    /// Number of the file, unique within its process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What the headers call a command of this file; its number if they do not know it.
    pub(crate) fn command_name(&self, cmd: u32) -> Cow<'static, str> {
        let row = match self.node {
            Node::Kfd => KfdIoctl::from_number(ioc_nr(cmd)).map(KfdIoctl::row),
            Node::Render { .. } => DrmIoctl::from_number(ioc_nr(cmd)).map(DrmIoctl::row),
        };
        row.map_or_else(|| format!("{cmd:#x}").into(), |row| row.name.into())
    }

    pub(super) fn node(&self) -> Node {
        self.node
    }
}

/// A file and its token.
#[derive(Debug)]
struct Entry {
    file: OpenFile,
    /// Read-only.
    token: OwnedFd,
    /// Whether it is open only as long as a client's descriptor counts as one that can write. Who restores a process may have made one
    /// that does not count, and a mapping keeps a file open without any.
    closes_with_client: bool,
}

/// The files that the process has open, but that those of [`Files::insert`] are never found closed.
#[derive(Debug, Default)]
pub(super) struct Files {
    by_token: BTreeMap<Identity, Entry>,
    /// How many there ever were.
    opened: u64,
}

impl Files {
    /// Opens a path on a machine with these GPUs; the token goes to the client.
    ///
    /// # Errors
    /// `ENOENT` for any other path.
    pub(super) fn open(&mut self, path: &str, gpus: &[GpuModel]) -> Result<(OpenFile, OwnedFd), Errno> {
        let node = parse(path, gpus).ok_or(Errno::ENOENT)?;
        let made = memfd::create(TOKEN_NAME, 0)?;
        // The descriptor that it was made with does not count as one that can write.
        let for_client = memfd::reopen_writable(made.as_fd())?;
        let token = memfd::reopen_read_only(made.as_fd())?;
        let identity = memfd::identity(token.as_fd())?;
        self.opened += 1;
        let file = OpenFile { id: self.opened, node };
        self.by_token.insert(identity, Entry { file, token, closes_with_client: true });
        Ok((file, for_client))
    }

    /// Forgets files of which the client has no descriptor any more, nor anybody that it gave one to, and says which; but for files that
    /// the driver itself has.
    pub(super) fn forget_closed(&mut self, is_kept: impl Fn(&OpenFile) -> bool) -> Vec<OpenFile> {
        let mut closed = Vec::new();
        self.by_token.retain(|_, entry| {
            let is_open =
                !entry.closes_with_client || is_kept(&entry.file) || linux::has_writer(entry.token.as_fd());
            if !is_open {
                closed.push(entry.file);
            }
            is_open
        });
        closed
    }

    /// Never finds this file closed, which the process has mapped.
    pub(super) fn keep(&mut self, id: u64) {
        self.by_token
            .values_mut()
            .filter(|entry| entry.file.id == id)
            .for_each(|entry| entry.closes_with_client = false);
    }

    /// All open files with their tokens, by number; and how many there ever were.
    pub(super) fn all(&self) -> (Vec<(OpenFile, &OwnedFd)>, u64) {
        let mut files: Vec<_> = self.by_token.values().map(|entry| (entry.file, &entry.token)).collect();
        files.sort_unstable_by_key(|(file, _)| file.id);
        (files, self.opened)
    }

    /// Adds a file under its old number; fails if it has the token or the number of another.
    ///
    /// # Errors
    /// The errno of `fstat`.
    pub(super) fn insert(&mut self, id: u64, node: Node, token: OwnedFd) -> Result<bool, Errno> {
        let identity = memfd::identity(token.as_fd())?;
        if self.get(id).is_some() || self.by_token.contains_key(&identity) {
            return Ok(false);
        }
        self.by_token
            .insert(identity, Entry { file: OpenFile { id, node }, token, closes_with_client: false });
        Ok(true)
    }

    /// Sets how many there ever were.
    pub(super) fn set_opened(&mut self, opened: u64) {
        self.opened = opened;
    }

    /// The open file with this number.
    pub(super) fn get(&self, id: u64) -> Option<OpenFile> {
        self.by_token.values().map(|entry| entry.file).find(|file| file.id == id)
    }

    /// The open file that a descriptor refers to.
    pub(super) fn find(&self, fd: BorrowedFd<'_>) -> Option<OpenFile> {
        let identity = memfd::identity(fd).ok()?;
        self.by_token.get(&identity).map(|entry| entry.file)
    }
}

/// The node behind a path; `None` when there is none.
pub(super) fn parse(path: &str, gpus: &[GpuModel]) -> Option<Node> {
    if path == "/dev/kfd" {
        return Some(Node::Kfd);
    }
    let minor: u32 = path.strip_prefix("/dev/dri/renderD")?.parse().ok()?;
    let gpu = gpus.iter().position(|gpu| gpu.render_minor() == minor)?;
    Some(Node::Render { gpu })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::Machine;

    #[test]
    fn open_knows_kfd_and_the_render_nodes_that_exist() {
        let (mut files, gpus) = (Files::default(), GpuModel::parse_spec("gfx1100*2").unwrap());
        let (kfd, token) = files.open("/dev/kfd", &gpus).unwrap();
        assert_eq!(kfd.node(), Node::Kfd);
        assert_eq!(files.find(token.as_fd()), Some(kfd));
        assert_eq!(files.open("/dev/dri/renderD129", &gpus).unwrap().0.node(), Node::Render { gpu: 1 });
        for path in ["/dev/dri/renderD130", "/dev/dri/renderD127", "/dev/dri/renderDx", "/dev/null", ""] {
            assert_eq!(files.open(path, &gpus).unwrap_err(), Errno::ENOENT, "{path}");
        }
    }

    #[test]
    fn open_goes_by_the_gpus_own_minors() {
        let text = "[[gpu]]\nchip = \"gfx1100\"\nrender_minor = 200\n[[gpu]]\nchip = \"gfx1100\"\nrender_minor = 128\n";
        let (mut files, gpus) = (Files::default(), Machine::of_file(text).unwrap().into_gpus());
        assert_eq!(files.open("/dev/dri/renderD200", &gpus).unwrap().0.node(), Node::Render { gpu: 0 });
        assert_eq!(files.open("/dev/dri/renderD128", &gpus).unwrap().0.node(), Node::Render { gpu: 1 });
        assert_eq!(files.open("/dev/dri/renderD129", &gpus).unwrap_err(), Errno::ENOENT);
    }

    #[test]
    fn a_file_is_closed_when_its_last_descriptor_is() {
        let (mut files, gpus) = (Files::default(), GpuModel::parse_spec("gfx1100").unwrap());
        let (kfd, token) = files.open("/dev/kfd", &gpus).unwrap();
        let (render, of_render) = files.open("/dev/dri/renderD128", &gpus).unwrap();
        let (acquired, _) = files.open("/dev/dri/renderD128", &gpus).unwrap();
        let is_kept = |file: &OpenFile| *file == acquired;
        let (restored, other) = (7, memfd::create("other", 0).unwrap());
        assert!(files.insert(restored, Node::Kfd, memfd::duplicate(&other).unwrap()).unwrap());
        drop(other);
        let twin = memfd::duplicate(&token).unwrap();
        drop(token);
        assert_eq!(files.forget_closed(is_kept), []);
        assert_eq!(files.find(twin.as_fd()), Some(kfd));
        drop(twin);
        assert_eq!(files.forget_closed(is_kept), [kfd]);
        assert_eq!((files.get(kfd.id()), files.get(render.id())), (None, Some(render)));
        drop(of_render);
        assert_eq!(files.forget_closed(is_kept), [render]);
        let (mapped, _) = files.open("/dev/kfd", &gpus).unwrap();
        files.keep(mapped.id());
        assert_eq!(files.forget_closed(is_kept), []);
        assert_eq!(files.all().0.len(), 3);
    }

    #[test]
    fn find_recognises_duplicates_and_nothing_else() {
        let (mut files, gpus) = (Files::default(), GpuModel::parse_spec("gfx1100").unwrap());
        let (file, token) = files.open("/dev/dri/renderD128", &gpus).unwrap();
        let twin = memfd::duplicate(&token).unwrap();
        drop(token);
        assert_eq!(files.find(twin.as_fd()), Some(file));
        assert_eq!(files.find(memfd::create("other", 0).unwrap().as_fd()), None);
    }
}
