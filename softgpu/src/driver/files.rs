// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files of one client process: `/dev/kfd` and the render nodes.
//!
//! A token names an open file: a sealed memfd whose inode identifies the file, however often its descriptor is
//! duplicated or sent. INVARIANT: the driver keeps one descriptor of every token, so that no other file can get the
//! inode while the client process lives.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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

/// All files the process ever opened, but for those that it is known to have closed.
#[derive(Debug, Default)]
pub(super) struct Files {
    by_token: BTreeMap<Identity, (OpenFile, OwnedFd)>,
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
        let token = memfd::create(TOKEN_NAME, 0)?;
        let for_client = memfd::duplicate(&token)?;
        self.opened += 1;
        let file = OpenFile { id: self.opened, node };
        self.by_token.insert(memfd::identity(token.as_fd())?, (file, token));
        Ok((file, for_client))
    }

    /// All open files with their tokens, by number; and how many there ever were.
    pub(super) fn all(&self) -> (Vec<(OpenFile, &OwnedFd)>, u64) {
        let mut files: Vec<_> = self.by_token.values().map(|(file, token)| (*file, token)).collect();
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
        self.by_token.insert(identity, (OpenFile { id, node }, token));
        Ok(true)
    }

    /// Sets how many there ever were.
    pub(super) fn set_opened(&mut self, opened: u64) {
        self.opened = opened;
    }

    /// The open file with this number.
    pub(super) fn get(&self, id: u64) -> Option<OpenFile> {
        self.by_token.values().map(|(file, _)| *file).find(|file| file.id == id)
    }

    /// Forgets a file of `/dev/kfd` that was closed.
    pub(super) fn forget(&mut self, id: u64) {
        self.by_token.retain(|_, (file, _)| file.id != id || file.node != Node::Kfd);
    }

    /// The open file that a descriptor refers to.
    pub(super) fn find(&self, fd: BorrowedFd<'_>) -> Option<OpenFile> {
        let identity = memfd::identity(fd).ok()?;
        self.by_token.get(&identity).map(|(file, _)| *file)
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
    fn find_recognises_duplicates_and_nothing_else() {
        let (mut files, gpus) = (Files::default(), GpuModel::parse_spec("gfx1100").unwrap());
        let (file, token) = files.open("/dev/dri/renderD128", &gpus).unwrap();
        let twin = memfd::duplicate(&token).unwrap();
        drop(token);
        assert_eq!(files.find(twin.as_fd()), Some(file));
        assert_eq!(files.find(memfd::create("other", 0).unwrap().as_fd()), None);
    }
}
