// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files, links and directories by path.
//!
//! INVARIANT: paths have no leading slash and no `.` or `..`; the directories above an entry need no entry of their own.

use std::collections::BTreeMap;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A file that can be read.
    File(Vec<u8>),
    /// A place for a device file: there is something to list, and whoever opens it is answered by somebody else.
    Device,
    /// A symbolic link with this text.
    Link(String),
    /// A directory that may be empty.
    Directory,
}

/// All entries, ordered so that a directory comes before what is in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries(BTreeMap<String, Entry>);

impl Entries {
    pub fn file(&mut self, path: impl Into<String>, contents: impl Into<Vec<u8>>) {
        self.0.insert(path.into(), Entry::File(contents.into()));
    }

    pub fn device(&mut self, path: impl Into<String>) {
        self.0.insert(path.into(), Entry::Device);
    }

    pub fn directory(&mut self, path: impl Into<String>) {
        self.0.insert(path.into(), Entry::Directory);
    }

    /// A link at `path` to the entry or directory `to` of the tree.
    pub fn link(&mut self, path: impl Into<String>, to: &str) {
        let path = path.into();
        let text = relative(&path, to);
        self.0.insert(path, Entry::Link(text));
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }
}

/// How a link at `path` names `to`: up to the directory that both are in, and down.
fn relative(path: &str, to: &str) -> String {
    let mut from: Vec<&str> = path.split('/').collect();
    from.pop();
    let to: Vec<&str> = to.split('/').collect();
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..", from.len() - common);
    let text = up.chain(to[common..].iter().copied()).collect::<Vec<_>>().join("/");
    if text.is_empty() { ".".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::relative;

    #[test]
    fn links_lead_up_to_the_common_directory_and_down() {
        assert_eq!(
            relative("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd"),
            "../../devices/virtual/kfd/kfd"
        );
        assert_eq!(relative("a/b/c/device", "a/b"), "..");
        assert_eq!(relative("a/GC", "a/11"), "11");
        assert_eq!(relative("a/self", "a"), ".");
    }
}
