// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device's topology as text that a test may change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;

use kfd::topology::SysfsSource;
use parking_lot::Mutex;
use softgpu::sysfs::{Machine, SysfsTree};

/// The files of the machines that were asked for, by their GPUs.
static MACHINES: Mutex<BTreeMap<u32, BTreeMap<String, String>>> = parking_lot::const_mutex(BTreeMap::new());

/// Serial number of a node's GPU.
fn unique_id(node: u32) -> u64 {
    0xa1b2_0000_0000_0000 + u64::from(node)
}

/// The topology file of a machine with some 7900 XTX.
pub(super) fn machine(gpus: u32) -> String {
    (1..=gpus).fold(String::new(), |mut text, node| {
        writeln!(text, "[[gpu]]\nchip = \"gfx1100\"\nunique_id = \"{:#x}\"", unique_id(node)).unwrap();
        text
    })
}

/// Files by path; a list of a node is a directory even when nothing lies in it. A link's directory is named after the
/// node that it leads to.
#[derive(Debug)]
pub(crate) struct TestSysfs(Mutex<BTreeMap<String, String>>);

impl TestSysfs {
    /// The topology of the machine with `gpus` GPUs: node 0 is the CPU, node n + 1 the n-th GPU.
    pub fn new(gpus: u32) -> Self {
        let mut machines = MACHINES.lock();
        let files = machines.entry(gpus).or_insert_with(|| {
            let tree = SysfsTree::new(&Machine::of_file(&machine(gpus)).unwrap());
            let mut files = BTreeMap::new();
            collect(&tree, "", &mut files);
            files
        });
        Self(Mutex::new(files.clone()))
    }

    /// KFD's id of a node's GPU.
    pub fn gpu_id(&self, node: u32) -> u32 {
        self.0.lock()[&format!("nodes/{node}/gpu_id")].trim().parse().unwrap()
    }

    /// A CPU node.
    pub fn add_cpu(&self, node: u32) {
        self.set(&format!("nodes/{node}/gpu_id"), "0\n");
        self.set(&format!("nodes/{node}/name"), "\n");
        self.set(&format!("nodes/{node}/properties"), "cpu_cores_count 2\nsimd_count 0\n");
    }

    /// One more GPU, which the driver does not have, as node `node`: like the first one, with links from and to every
    /// GPU before.
    pub fn add_gpu(&self, node: u32) {
        let like = self.files().into_iter().filter_map(|(path, text)| {
            Some((format!("nodes/{node}/{}", path.strip_prefix("nodes/1/")?), text))
        });
        like.filter(|(path, _)| !path.contains("/p2p_links/"))
            .for_each(|(path, text)| self.set(&path, &text));
        self.set(&format!("nodes/{node}/gpu_id"), "7\n");
        let own = format!("nodes/{node}/properties");
        self.change(&own, "unique_id", unique_id(node));
        self.change(&own, "drm_render_minor", u64::from(127 + node));
        self.link(node, "io_links", 0, 2);
        for other in 1..node {
            self.link(node, "p2p_links", other, 2);
            self.link(other, "p2p_links", node, 2);
        }
    }

    /// Makes, or changes, the link of a kind from one node to another.
    pub fn link(&self, from: u32, list: &str, to: u32, kind: u32) {
        let text = format!("type {kind}\nnode_from {from}\nnode_to {to}\nweight 20\nflags 1\n");
        self.set(&format!("nodes/{from}/{list}/{to}/properties"), &text);
    }

    /// Writes a file.
    pub fn set(&self, path: &str, text: &str) {
        self.0.lock().insert(path.to_owned(), text.to_owned());
    }

    /// Changes one line of a file.
    ///
    /// # Panics
    /// When there is no such line.
    pub fn change(&self, path: &str, key: &str, value: u64) {
        let mut files = self.0.lock();
        let text = files.get_mut(path).unwrap();
        let old = text.lines().find(|line| line.split(' ').next() == Some(key)).unwrap();
        *text = text.replace(&format!("{old}\n"), &format!("{key} {value}\n"));
    }

    /// Removes everything below a directory.
    pub fn remove(&self, directory: &str) {
        self.0.lock().retain(|path, _| !path.starts_with(&format!("{directory}/")));
    }

    /// All files, to be put back.
    pub fn files(&self) -> BTreeMap<String, String> {
        self.0.lock().clone()
    }

    /// Makes the files these.
    pub fn put_back(&self, files: BTreeMap<String, String>) {
        *self.0.lock() = files;
    }
}

/// Takes over the files below a directory, but for lists of caches: they are most of a topology, and nothing here looks at
/// them.
fn collect(tree: &SysfsTree, directory: &str, files: &mut BTreeMap<String, String>) {
    for name in tree.list_directory(directory).unwrap() {
        let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        match tree.read_file(&path) {
            Ok(text) => drop(files.insert(named_after_its_end(&path, &text).unwrap_or(path), text)),
            Err(_) if path.ends_with("/caches") => {}
            Err(_) => collect(tree, &path, files),
        }
    }
}

/// For the file of a link: its path with the number of the node that the link leads to.
fn named_after_its_end(path: &str, text: &str) -> Option<String> {
    let (list, _) = path.strip_suffix("/properties")?.rsplit_once('/')?;
    let to = text.lines().find_map(|line| line.strip_prefix("node_to "))?;
    Some(format!("{list}/{to}/properties"))
}

impl SysfsSource for TestSysfs {
    fn read(&self, path: &str) -> io::Result<String> {
        self.0.lock().get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let files = self.0.lock();
        let below =
            files.keys().filter_map(|file| file.strip_prefix(path)?.strip_prefix('/')?.split('/').next());
        let names: BTreeSet<String> = below.map(str::to_owned).collect();
        Ok(names.into_iter().collect())
    }
}
