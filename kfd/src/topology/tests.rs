// SPDX-License-Identifier: MIT OR Apache-2.0
//! Topologies from text: complete, old, changing and hostile.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const GPU: &str = "cpu_cores_count 0\nsimd_count 192\nmem_banks_count 1\ncaches_count 2\nio_links_count 1\n\
    p2p_links_count 0\ncpu_core_id_base 0\nsimd_id_base 2147488032\nmax_waves_per_simd 16\nlds_size_in_kb 64\n\
    gds_size_in_kb 0\nnum_gws 64\nwave_front_size 32\narray_count 12\nsimd_arrays_per_engine 2\n\
    cu_per_simd_array 8\nsimd_per_cu 2\nmax_slots_scratch_cu 32\ngfx_target_version 110000\nvendor_id 4098\n\
    device_id 29772\nlocation_id 34304\ndomain 0\ndrm_render_minor 128\nhive_id 0\nnum_sdma_engines 2\n\
    num_sdma_xgmi_engines 0\nnum_sdma_queues_per_engine 6\nnum_cp_queues 8\ncwsr_size 46047232\n\
    ctl_stack_size 40960\nmax_engine_clk_fcompute 2482\nlocal_mem_size 0\nfw_version 2140\n\
    capability 671588992\ndebug_prop 1495\nsdma_fw_version 20\nunique_id 11673270660693242239\nnum_xcc 1\n\
    future_key some text\nmax_engine_clk_ccompute 5757\n";

/// Files in memory; directories follow from their paths.
#[derive(Clone, Default)]
struct Files(BTreeMap<String, String>);

impl Files {
    fn sample() -> Self {
        let mut files = Self::default();
        files.set("generation_id", "2\n");
        files.set("nodes/0/gpu_id", "0\n");
        files.set("nodes/0/name", "\n");
        files.set("nodes/0/properties", "cpu_cores_count 32\nmem_banks_count 1\ncwsr_size 0\n");
        files.set("nodes/0/mem_banks/0/properties", "heap_type 0\nsize_in_bytes 67430662144\nflags 0\n");
        files.set("nodes/1/gpu_id", "54321\n");
        files.set("nodes/1/name", "ip discovery\n");
        files.set("nodes/1/properties", GPU);
        files.set("nodes/1/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 25753026560\nwidth 384\n");
        files.set("nodes/1/caches/10/properties", "level 3\nsize 98304\ntype 9\nsibling_map 1\n");
        files.set("nodes/1/caches/9/properties", "level 1\nsize 16\ntype 9\nsibling_map 1,0,1,\n");
        files.set("nodes/1/io_links/0/properties", "type 2\nnode_from 1\nnode_to 0\nweight 20\nflags 1\n");
        files
    }

    fn set(&mut self, path: &str, text: &str) {
        self.0.insert(path.to_owned(), text.to_owned());
    }
}

impl SysfsSource for Files {
    fn read(&self, path: &str) -> io::Result<String> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let below =
            self.0.keys().filter_map(|key| key.strip_prefix(path)?.strip_prefix('/')?.split('/').next());
        let names: BTreeSet<String> = below.map(str::to_owned).collect();
        if names.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(names.into_iter().collect()) }
    }
}

#[test]
fn read_parses_every_record_in_numerical_order() {
    let topology = Topology::read(&Files::sample()).unwrap();
    assert_eq!((topology.generation, topology.nodes.len()), (2, 2));
    assert_eq!(topology.nodes[0].properties.cpu_cores_count, 32);
    assert!(!topology.nodes[0].is_gpu() && topology.nodes[0].name.is_empty());
    let gpu = topology.gpu(GpuId(54321)).unwrap();
    assert_eq!((gpu.id, gpu.name.as_str(), gpu.vram_bytes()), (NodeId(1), "ip discovery", 25_753_026_560));
    assert_eq!(
        (gpu.properties.unique_id, gpu.properties.simd_id_base),
        (11_673_270_660_693_242_239, 2_147_488_032)
    );
    assert_eq!(gpu.properties.unknown["future_key"], "some text");
    assert_eq!((gpu.caches[0].sibling_map.as_slice(), gpu.caches[1].level), (&[true, false, true][..], 3));
    assert_eq!((gpu.io_links[0].node_to, gpu.io_links[0].weight, gpu.p2p_links.len()), (0, 20, 0));
    assert!(topology.gpu(GpuId(0)).is_none());
}

#[test]
fn shape_takes_save_area_sizes_only_where_printed() {
    let mut properties = NodeProperties::parse("p", GPU).unwrap();
    let shape = properties.shape();
    assert_eq!((shape.cwsr_size, shape.ctl_stack_size, shape.num_xcc), (Some(46_047_232), Some(40960), 1));
    // The driver compares a queue with its number, also where that is 0: it is no absent number.
    properties.cwsr_size = Some(0);
    properties.num_xcc = 0;
    assert_eq!((properties.shape().cwsr_size, properties.shape().num_xcc), (Some(0), 1));
    let old = NodeProperties::parse("p", "simd_count 4\n").unwrap().shape();
    assert_eq!((old.cwsr_size, old.ctl_stack_size), (None, None));
}

#[test]
fn read_names_file_line_and_key() {
    let read_with = |path: &str, text: &str| {
        let mut files = Files::sample();
        files.set(path, text);
        Topology::read(&files).unwrap_err().to_string()
    };
    let file = "nodes/1/io_links/0/properties";
    assert_eq!(
        read_with(file, "type 2\nweight -20\n"),
        format!("Line 2 of the topology's {file}: weight is \"-20\", expected u32")
    );
    assert_eq!(
        read_with(file, "type 2\n\nweight\n"),
        format!("Line 3 of the topology's {file} is \"weight\", expected a key and a value")
    );
    assert_eq!(
        read_with(file, "type 2\ntype 2\n"),
        format!("Line 2 of the topology's {file} repeats the key type")
    );
    assert!(read_with("nodes/1/gpu_id", "4294967296\n").contains("gpu_id is \"4294967296\""));
    assert!(read_with("nodes/1/caches/9/properties", "sibling_map 1,2\n").contains("list of 0 and 1"));
    assert!(read_with("generation_id", "").contains("generation_id"));
    assert!(read_with(file, &"x 1\n".repeat(1 << 19)).contains("more than"));
}

#[test]
fn missing_file_is_named_and_missing_announced_directory_too() {
    let mut files = Files::sample();
    files.0.remove("nodes/1/name");
    assert!(
        matches!(Topology::read(&files), Err(TopologyError::Read { file, .. }) if file == "nodes/1/name")
    );
    let mut files = Files::sample();
    files.0.remove("nodes/1/io_links/0/properties");
    assert!(
        matches!(Topology::read(&files), Err(TopologyError::Read { file, .. }) if file == "nodes/1/io_links")
    );
}

/// Changes its generation for the first so many reads, with a file missing meanwhile.
struct Changing(Files, Cell<u32>, u32);

impl SysfsSource for Changing {
    fn read(&self, path: &str) -> io::Result<String> {
        if path == "generation_id" {
            self.1.set(self.1.get() + 1);
            return Ok(self.1.get().min(self.2).to_string());
        }
        if path == "nodes/1/name" && self.1.get() < self.2 {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.0.read(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.0.list(path)
    }
}

#[test]
fn read_repeats_until_the_generation_stands_still() {
    let topology = Topology::read(&Changing(Files::sample(), Cell::new(0), 5)).unwrap();
    assert_eq!((topology.generation, topology.nodes.len()), (5, 2));
    let error = Topology::read(&Changing(Files::sample(), Cell::new(0), u32::MAX)).unwrap_err();
    assert!(matches!(error, TopologyError::Unstable { attempts: 16, before: 16, after: 17 }), "{error}");
}

/// One node is denied by the device cgroup.
struct Denying(Files);

impl SysfsSource for Denying {
    fn read(&self, path: &str) -> io::Result<String> {
        if path == "nodes/1/gpu_id" {
            Err(io::Error::from_raw_os_error(nix::libc::EPERM))
        } else {
            self.0.read(path)
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.0.list(path)
    }
}

#[test]
fn denied_node_is_left_out_and_listed() {
    let topology = Topology::read(&Denying(Files::sample())).unwrap();
    assert_eq!((topology.nodes.len(), topology.denied), (1, vec![NodeId(1)]));
}

#[test]
fn dir_source_reads_a_tree_and_stays_inside() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::sample();
    for (path, text) in &files.0 {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let source = DirSource::new(directory.path());
    assert_eq!(Topology::read(&source).unwrap(), Topology::read(&files).unwrap());
    for path in ["../etc/passwd", "/etc/passwd", "nodes/../../x"] {
        assert_eq!(source.read(path).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{path}");
    }
}

proptest! {
    #[test]
    fn hostile_text_never_panics(path in 0_usize..12, text in ".{0,60}|([a-z_]{1,20}[ \t]?[-0-9,.é]{0,24}\r?\n){0,8}") {
        let mut files = Files::sample();
        let path = files.0.keys().nth(path).cloned().unwrap_or_default();
        files.set(&path, &text);
        let _ = Topology::read(&files);
    }

    #[test]
    fn printed_properties_parse_to_the_same_numbers(simd: u32, hive: u64, cwsr: Option<u32>) {
        let mut text = format!("simd_count {simd}\nhive_id {hive}\n");
        if let Some(bytes) = cwsr {
            text += &format!("cwsr_size {bytes}\n");
        }
        let parsed = NodeProperties::parse("p", &text).unwrap();
        prop_assert_eq!((parsed.simd_count, parsed.hive_id, parsed.cwsr_size), (simd, hive, cwsr));
    }
}
