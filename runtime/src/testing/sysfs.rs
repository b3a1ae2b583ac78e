// SPDX-License-Identifier: MIT OR Apache-2.0
//! The topology of a machine with a CPU and some 7900 XTX, whose files a test may change.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use kfd::topology::SysfsSource;
use parking_lot::Mutex;

/// What KFD prints of a GPU, but for what follows from its number.
const PROPERTIES: &str = "simd_count 192\nmem_banks_count 1\ncaches_count 206\nio_links_count 1\n\
    max_waves_per_simd 16\nlds_size_in_kb 64\nnum_gws 64\nwave_front_size 32\narray_count 12\n\
    simd_arrays_per_engine 2\ncu_per_simd_array 8\nsimd_per_cu 2\nmax_slots_scratch_cu 32\n\
    gfx_target_version 110000\nvendor_id 4098\ndevice_id 29772\nnum_sdma_engines 2\nnum_sdma_xgmi_engines 0\n\
    num_sdma_queues_per_engine 8\nnum_cp_queues 8\ncwsr_size 46047232\nctl_stack_size 40960\nfw_version 2140\n\
    capability 671588992\nsdma_fw_version 20\nnum_xcc 1\n";

/// Files by path; a list of a node is a directory even when nothing lies in it.
#[derive(Debug)]
pub(crate) struct FakeSysfs(Mutex<BTreeMap<String, String>>);

/// KFD's id of the n-th GPU.
pub(super) fn gpu_id(n: u32) -> u32 {
    0x1100 + n
}

impl FakeSysfs {
    pub fn new(gpus: u32) -> Self {
        let this = Self(Mutex::default());
        this.set("generation_id", "2\n");
        this.add_cpu(0);
        for n in 0..gpus {
            this.add_gpu(n);
        }
        this
    }

    /// A CPU node.
    pub fn add_cpu(&self, node: u32) {
        self.set(&format!("nodes/{node}/gpu_id"), "0\n");
        self.set(&format!("nodes/{node}/name"), "\n");
        self.set(&format!("nodes/{node}/properties"), "cpu_cores_count 2\nsimd_count 0\n");
    }

    /// The n-th GPU, as node n + 1, with PCIe to the CPU and from and to every GPU before.
    pub fn add_gpu(&self, n: u32) {
        let node = n + 1;
        self.set(&format!("nodes/{node}/gpu_id"), &format!("{}\n", gpu_id(n)));
        self.set(&format!("nodes/{node}/name"), "ip discovery\n");
        let unique_id = 0xa1b2_0000_0000_0000u64 + u64::from(node);
        let own = format!("{PROPERTIES}drm_render_minor {}\nunique_id {unique_id}\n", 128 + n);
        self.set(&format!("nodes/{node}/properties"), &own);
        let bank = "heap_type 1\nsize_in_bytes 25753026560\nflags 0\nwidth 384\nmem_clk_max 1249\n";
        self.set(&format!("nodes/{node}/mem_banks/0/properties"), bank);
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

impl SysfsSource for FakeSysfs {
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
