// SPDX-License-Identifier: MIT OR Apache-2.0
//! The topology directory as files in memory, in KFD's exact text and key order (`kfd_topology.c:node_show`).
//!
//! INVARIANT: every node has its four lists, empty or not, as kobjects are made for them.

use std::io;

use kfd::topology::{MemorySource, SysfsSource};
use nix::errno::Errno;

use super::caches;
use super::host::Host;
use super::links::Links;
use super::machine::{CpuNode, Machine};
use super::model::GpuModel;
use crate::misbehaviour::Misbehaviour;

/// First number KFD gives to a GPU's CUs; each GPU takes as many as it has CUs.
const FIRST_SIMD_ID: u32 = 0x8000_1000;
/// Directories of numbered entries in every node.
const LISTS: [&str; 4] = ["mem_banks", "caches", "io_links", "p2p_links"];
pub(super) const VENDOR_AMD: u32 = 4098;

/// All files of the topology.
#[derive(Clone, Debug)]
pub struct SysfsTree {
    files: MemorySource,
}

impl SysfsTree {
    /// The topology of a machine, for whose CPUs this host stands in where it does not describe them.
    pub fn new(machine: &Machine) -> Self {
        Self::with_host(machine, &Host::read())
    }

    /// The topology of a machine on a described host.
    pub fn with_host(machine: &Machine, host: &Host) -> Self {
        let mut tree = Self { files: MemorySource::default() };
        let (gpus, links) = (machine.gpus(), Links::of(machine));
        // 1 after the CPU nodes, then one more for each GPU added.
        tree.add("generation_id", format!("{}\n", 1 + gpus.len()));
        tree.add("system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0\n".to_owned());
        for (node, cpu) in machine.cpus(host).iter().enumerate() {
            tree.add_cpu(node, cpu, &links, host);
        }
        let mut simd_id_base = FIRST_SIMD_ID;
        for gpu in gpus {
            tree.add_gpu(machine.node_of(gpu), gpu, simd_id_base, &links, host);
            simd_id_base += gpu.cu_count();
        }
        tree
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `ENOENT`, and `EISDIR` for a directory.
    pub fn read_file(&self, path: &str) -> Result<String, Errno> {
        self.files.file(path).map(str::to_owned)
    }

    /// Names in a directory, sorted; the empty path is the root.
    ///
    /// # Errors
    /// `ENOENT`, and `ENOTDIR` for a file.
    pub fn list_directory(&self, path: &str) -> Result<Vec<String>, Errno> {
        self.files.names(path)
    }

    /// Every file's path and text, by path.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.files()
    }

    /// The lists of all nodes, also those that are empty.
    pub(super) fn lists(&self) -> impl Iterator<Item = &str> {
        self.files.directories()
    }

    /// From the one after this number: every file's path and text, then every list's path.
    pub(crate) fn entries_from(&self, skipped: usize) -> impl Iterator<Item = (&str, Option<&str>)> {
        let files = self.files().map(|(path, text)| (path, Some(text)));
        files.chain(self.lists().map(|path| (path, None))).skip(skipped)
    }

    fn add(&mut self, path: impl Into<String>, text: String) {
        self.files.add(path, text);
    }

    fn add_lists(&mut self, node: usize) {
        for list in LISTS {
            self.files.add_directory(format!("nodes/{node}/{list}"));
        }
    }

    fn add_numbered(&mut self, node: usize, kind: &str, files: &[String]) {
        for (at, text) in files.iter().enumerate() {
            self.add(format!("nodes/{node}/{kind}/{at}/properties"), text.clone());
        }
    }

    fn add_cpu(&mut self, node: usize, cpu: &CpuNode, links: &Links, host: &Host) {
        let (io, p2p) = (links.io(node), links.p2p(node));
        // Width and clock of the memory come from DMI tables; a machine without them shows zeros.
        self.add_numbered(node, "mem_banks", &[mem_bank(0, cpu.ram_bytes, 0, 0)]);
        self.add_numbered(node, "io_links", &io);
        self.add_numbered(node, "p2p_links", &p2p);
        self.add_lists(node);
        self.add(format!("nodes/{node}/gpu_id"), "0\n".to_owned());
        self.add(format!("nodes/{node}/name"), "\n".to_owned());
        let mut lines = Lines::default();
        lines.put("cpu_cores_count", cpu.cores).put("simd_count", 0).put("mem_banks_count", 1);
        lines.put("caches_count", 0).put("io_links_count", io.len()).put("p2p_links_count", p2p.len());
        for key in AFTER_COUNTS {
            lines.put(key, if key == "cpu_core_id_base" { cpu.first_core } else { 0 });
        }
        lines.put("max_engine_clk_ccompute", host.max_mhz);
        self.add(format!("nodes/{node}/properties"), lines.0);
    }

    fn add_gpu(&mut self, node: usize, gpu: &GpuModel, simd_id_base: u32, links: &Links, host: &Host) {
        let chip = gpu.chip;
        let caches = caches::properties(chip, gpu.shape(), simd_id_base);
        let (io, p2p) = (links.io(node), links.p2p(node));
        // Heap type 1: one bank, all of it public, for a large BAR; 2 otherwise.
        let heap = if gpu.large_bar() { 1 } else { 2 };
        let bank = mem_bank(heap, gpu.vram_bytes(), chip.vram_width, chip.vram_mhz);
        self.add_numbered(node, "mem_banks", &[bank]);
        self.add_numbered(node, "caches", &caches);
        self.add_numbered(node, "io_links", &io);
        self.add_numbered(node, "p2p_links", &p2p);
        self.add_lists(node);
        self.add(format!("nodes/{node}/gpu_id"), format!("{}\n", gpu.gpu_id()));
        self.add(format!("nodes/{node}/name"), format!("{}\n", chip.asic_name()));
        let mut lines = Lines::default();
        lines.put("cpu_cores_count", 0);
        if Misbehaviour::Topology.is_on() {
            lines.put("simd_count", "many");
        } else {
            lines.put("simd_count", gpu.shape().simd_count);
        }
        lines.put("mem_banks_count", 1);
        lines.put("caches_count", caches.len()).put("io_links_count", io.len());
        lines.put("p2p_links_count", p2p.len());
        lines.put("cpu_core_id_base", 0).put("simd_id_base", simd_id_base);
        gpu_shape(&mut lines, gpu);
        gpu_only(&mut lines, gpu);
        lines.put("max_engine_clk_ccompute", host.max_mhz);
        self.add(format!("nodes/{node}/properties"), lines.0);
    }
}

/// Keys between the counts and the GPU-only part; a CPU node prints 0 for all of them.
const AFTER_COUNTS: [&str; 25] = [
    "cpu_core_id_base",
    "simd_id_base",
    "max_waves_per_simd",
    "lds_size_in_kb",
    "gds_size_in_kb",
    "num_gws",
    "wave_front_size",
    "array_count",
    "simd_arrays_per_engine",
    "cu_per_simd_array",
    "simd_per_cu",
    "max_slots_scratch_cu",
    "gfx_target_version",
    "vendor_id",
    "device_id",
    "location_id",
    "domain",
    "drm_render_minor",
    "hive_id",
    "num_sdma_engines",
    "num_sdma_xgmi_engines",
    "num_sdma_queues_per_engine",
    "num_cp_queues",
    "cwsr_size",
    "ctl_stack_size",
];

fn gpu_shape(lines: &mut Lines, gpu: &GpuModel) {
    let (chip, shape) = (gpu.chip, gpu.shape());
    lines.put("max_waves_per_simd", chip.max_waves_per_simd).put("lds_size_in_kb", shape.lds_size_in_kb);
    lines.put("gds_size_in_kb", 0).put("num_gws", chip.num_gws).put("wave_front_size", chip.wave_front_size);
    lines.put("array_count", shape.array_count).put("simd_arrays_per_engine", shape.simd_arrays_per_engine);
    lines.put("cu_per_simd_array", chip.cu_per_simd_array).put("simd_per_cu", shape.simd_per_cu);
    // A target that no chip has.
    let version = if Misbehaviour::Agent.is_on() { 80_009 } else { shape.gfx_target_version };
    lines.put("max_slots_scratch_cu", 32).put("gfx_target_version", version);
    lines.put("vendor_id", VENDOR_AMD).put("device_id", chip.device_id).put("location_id", gpu.location_id());
    lines.put("domain", gpu.domain()).put("drm_render_minor", gpu.render_minor());
    lines.put("hive_id", gpu.hive_id());
    lines.put("num_sdma_engines", chip.num_sdma_engines);
    lines.put("num_sdma_xgmi_engines", gpu.sdma_xgmi_engines());
    let usable = chip.sdma_queues_per_engine - chip.reserved_sdma_queues_per_engine;
    lines.put("num_sdma_queues_per_engine", usable).put("num_cp_queues", chip.num_cp_queues);
    let more = if Misbehaviour::SaveArea.is_on() { 4096 } else { 0 };
    lines
        .put("cwsr_size", gpu.geometry().save_bytes + more)
        .put("ctl_stack_size", gpu.geometry().control_stack_bytes);
}

fn gpu_only(lines: &mut Lines, gpu: &GpuModel) {
    let chip = gpu.chip;
    lines.put("max_engine_clk_fcompute", chip.max_engine_mhz).put("local_mem_size", 0);
    lines.put("fw_version", chip.fw_version).put("capability", gpu.capability());
    lines.put("debug_prop", chip.debug_prop).put("sdma_fw_version", chip.sdma_fw_version);
    lines.put("unique_id", gpu.unique_id()).put("num_xcc", gpu.shape().num_xcc);
}

fn mem_bank(heap_type: u32, bytes: u64, width: u32, mhz: u32) -> String {
    format!("heap_type {heap_type}\nsize_in_bytes {bytes}\nflags 0\nwidth {width}\nmem_clk_max {mhz}\n")
}

/// `key value` lines.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn put(&mut self, key: &str, value: impl std::fmt::Display) -> &mut Self {
        self.0.push_str(key);
        self.0.push(' ');
        self.0.push_str(&value.to_string());
        self.0.push('\n');
        self
    }
}

impl SysfsSource for SysfsTree {
    fn read(&self, path: &str) -> io::Result<String> {
        self.read_file(path).map_err(io::Error::from)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.list_directory(path).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kfd::topology::Topology;
    use queues::cwsr::CwsrGeometry;

    const HOST: Host = Host { cores: 8, ram_bytes: 32 << 30, max_mhz: 5000 };

    fn tree(spec: &str) -> SysfsTree {
        SysfsTree::with_host(&Machine::of_list(spec).unwrap(), &HOST)
    }

    #[test]
    fn topology_parses_and_agrees_with_the_geometry() {
        let machine = Machine::of_list("gfx1100*3").unwrap();
        let gpus = machine.gpus();
        let tree = SysfsTree::new(&machine);
        let topology = Topology::read(&tree).unwrap();
        assert_eq!(topology.generation, 4);
        assert_eq!(topology.nodes.len(), 4);
        assert!(topology.denied.is_empty());
        for (gpu, node) in gpus.iter().zip(topology.gpus()) {
            assert_eq!(node.gpu_id.0, gpu.gpu_id());
            let shape = node.properties.shape();
            let geometry = CwsrGeometry::for_node(&shape).unwrap();
            assert_eq!(geometry.disagreements(&shape).count(), 0);
            assert_eq!((shape.cwsr_size, shape.ctl_stack_size), (Some(46_047_232), Some(40_960)));
            assert_eq!(geometry.total_bytes, 46_145_536);
            assert_eq!(&geometry, gpu.geometry());
            assert_eq!(node.vram_bytes(), gpu.vram_bytes());
            assert_eq!((node.caches.len(), node.io_links.len(), node.p2p_links.len()), (206, 1, 2));
            assert!(node.properties.unknown.is_empty());
        }
        let cpu = &topology.nodes[0];
        assert_eq!((cpu.io_links.len(), cpu.p2p_links.len(), cpu.mem_banks.len()), (3, 0, 1));
        assert_eq!(cpu.mem_banks[0].size_in_bytes, Host::read().ram_bytes);
    }

    #[test]
    fn gpu_properties_have_the_kernels_keys_in_the_kernels_order() {
        let text = tree("gfx1100").read_file("nodes/1/properties").unwrap();
        let expected = "cpu_cores_count 0\nsimd_count 192\nmem_banks_count 1\ncaches_count 206\nio_links_count 1\n\
            p2p_links_count 0\ncpu_core_id_base 0\nsimd_id_base 2147487744\nmax_waves_per_simd 16\n\
            lds_size_in_kb 64\ngds_size_in_kb 0\nnum_gws 64\nwave_front_size 32\narray_count 12\n\
            simd_arrays_per_engine 2\ncu_per_simd_array 8\nsimd_per_cu 2\nmax_slots_scratch_cu 32\n\
            gfx_target_version 110000\nvendor_id 4098\ndevice_id 29772\nlocation_id 768\ndomain 0\n\
            drm_render_minor 128\nhive_id 0\nnum_sdma_engines 2\nnum_sdma_xgmi_engines 0\n\
            num_sdma_queues_per_engine 6\nnum_cp_queues 8\ncwsr_size 46047232\nctl_stack_size 40960\n\
            max_engine_clk_fcompute 2482\nlocal_mem_size 0\nfw_version 2140\ncapability 537371264\n\
            debug_prop 1495\nsdma_fw_version 20\nunique_id 11673270660693242239\nnum_xcc 1\n\
            max_engine_clk_ccompute 5000\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn capability_says_whether_the_kernel_has_svm() {
        let capability = |machine: Machine| {
            let tree = SysfsTree::with_host(&machine, &HOST);
            let text = tree.read_file("nodes/1/properties").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("capability ")).unwrap();
            line.parse::<u32>().unwrap()
        };
        for chip in ["gfx1100", "gfx90a", "gfx942", "gfx1201"] {
            let machine = || Machine::of_list(chip).unwrap();
            let (without, with) = (capability(machine()), capability(machine().with_svm()));
            assert_eq!((without & 1 << 27, with), (0, without | 1 << 27), "{chip}");
        }
    }

    #[test]
    fn cpu_properties_leave_out_the_gpu_only_keys() {
        let text = tree("gfx1100*2").read_file("nodes/0/properties").unwrap();
        let keys: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(keys.len(), 6 + 25 + 1);
        assert_eq!(keys[6..31], AFTER_COUNTS);
        assert!(text.starts_with(
            "cpu_cores_count 8\nsimd_count 0\nmem_banks_count 1\ncaches_count 0\nio_links_count 2\n"
        ));
        assert!(text.ends_with("ctl_stack_size 0\nmax_engine_clk_ccompute 5000\n"));
    }

    #[test]
    fn links_exist_in_both_directions() {
        let tree = tree("gfx1100*2");
        let link = |path: &str| tree.read_file(path).unwrap();
        let down = link("nodes/0/io_links/1/properties");
        assert!(
            down.contains("node_from 0\nnode_to 2\nweight 20\n") && down.ends_with("mask 3\nflags 3\n"),
            "{down}"
        );
        let up = link("nodes/2/io_links/0/properties");
        assert!(up.contains("node_from 2\nnode_to 0\nweight 20\n") && up.ends_with("flags 1\n"), "{up}");
        let peer = link("nodes/1/p2p_links/0/properties");
        assert!(
            peer.contains("node_from 1\nnode_to 2\nweight 40\n") && peer.ends_with("flags 3\n"),
            "{peer}"
        );
    }

    #[test]
    fn directories_list_their_names_and_missing_ones_do_not_exist() {
        let tree = tree("gfx1100");
        assert_eq!(tree.list_directory("").unwrap(), ["generation_id", "nodes", "system_properties"]);
        assert_eq!(tree.list_directory("nodes").unwrap(), ["0", "1"]);
        assert_eq!(tree.list_directory("nodes/1/p2p_links").unwrap(), Vec::<String>::new());
        assert!(tree.list_directory("nodes/1").unwrap().contains(&"p2p_links".to_owned()));
        assert_eq!(tree.list_directory("nodes/2"), Err(Errno::ENOENT));
        assert_eq!(tree.list_directory("nodes/2/caches"), Err(Errno::ENOENT));
        assert_eq!(tree.list_directory("generation_id"), Err(Errno::ENOTDIR));
        assert_eq!(tree.read_file("nodes"), Err(Errno::EISDIR));
        assert_eq!(tree.read_file("../etc/passwd"), Err(Errno::ENOENT));
    }

    #[test]
    fn caches_cover_every_cu_once_per_kind() {
        let tree = tree("gfx1100");
        let text = tree.read_file("nodes/1/caches/205/properties").unwrap();
        assert!(text.contains("level 3\nsize 98304\n"));
        assert_eq!(text.lines().last().unwrap().matches('1').count(), 96);
        let last_vector = tree.read_file("nodes/1/caches/95/properties").unwrap();
        assert!(last_vector.starts_with("processor_id_low 2147487839\nlevel 1\nsize 32\n"), "{last_vector}");
    }
}
