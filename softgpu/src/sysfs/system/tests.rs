// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tree on disk: it is whole, agrees with the topology, and leads nowhere else.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use kfd::topology::Topology;
use tempfile::TempDir;

use super::*;

const HOST: Host = Host { cores: 8, ram_bytes: 32 << 30, max_mhz: 5000 };
const OPTIONS: SystemOptions<'_> =
    SystemOptions { driver_version: "3.64.0", modules: "fuse 212992 3 - Live 0x0\namdgpu 1 0 - Live 0x0\n" };

/// Two sockets; the second GPU is two XCCs of an MI300X in another domain, the third has a small BAR.
const MACHINE: &str = r#"
    pcie_p2p = false

    [[numa]]
    memory = "64GiB"
    cores = 16

    [[numa]]
    memory = "64GiB"
    cores = 1

    [[gpu]]
    chip = "gfx1100"

    [[gpu]]
    chip = "gfx942"
    num_xcc = 2
    numa_node = 1
    pci = "0001:c3:1f.1"
    unique_id = "0xfeedfacecafebeef"
    render_minor = 200

    [[gpu]]
    chip = "gfx1201"
    bar = "small"
    pcie_bandwidth = [312, 16000]
"#;

fn written(machine: &Machine) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    SystemTree::with_host(machine, &HOST, &OPTIONS).write(directory.path()).unwrap();
    directory
}

/// The directory, with all its files read by one name.
struct Files(TempDir);

impl Files {
    fn of(machine: &Machine) -> Self {
        Self(written(machine))
    }

    fn read(&self, path: &str) -> String {
        let whole = self.0.path().join(path);
        fs::read_to_string(&whole).unwrap_or_else(|error| panic!("{path}: {error}")).trim_end().to_owned()
    }

    fn number(&self, path: &str) -> u64 {
        let text = self.read(path);
        text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16)).unwrap()
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries =
            fs::read_dir(self.0.path().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Where a path leads, below the directory; panics if it leads elsewhere or nowhere.
    fn resolved(&self, path: &str) -> String {
        let root = self.0.path().canonicalize().unwrap();
        let end = root.join(path).canonicalize().unwrap_or_else(|error| panic!("{path}: {error}"));
        end.strip_prefix(&root)
            .unwrap_or_else(|_| panic!("{path} leads to {end:?}"))
            .to_str()
            .unwrap()
            .to_owned()
    }
}

/// Every link below a directory, by path.
fn links(directory: &Path) -> BTreeMap<PathBuf, PathBuf> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_symlink() {
            found.insert(path.clone(), fs::read_link(&path).unwrap());
        } else if kind.is_dir() {
            found.extend(links(&path));
        }
    }
    found
}

#[test]
fn topology_has_every_file_with_equal_text_and_its_empty_lists() {
    let machine = Machine::of_file(MACHINE).unwrap();
    let (files, topology) = (Files::of(&machine), SysfsTree::with_host(&machine, &HOST));
    let on_disk = |path: &str| files.0.path().join(KFD_DIRECTORY).join("topology").join(path);
    for (path, text) in topology.files() {
        assert_eq!(fs::read_to_string(on_disk(path)).unwrap(), text, "{path}");
    }
    for list in topology.lists() {
        let names = fs::read_dir(on_disk(list)).unwrap().count();
        assert_eq!(names, topology.list_directory(list).unwrap().len(), "{list}");
        assert!(list != "nodes/0/mem_banks" || names == 1, "the first CPU has one bank of memory");
    }
    assert_eq!(topology.lists().count(), 4 * 5);
    for directory in ["", "nodes", "nodes/0", "nodes/2"] {
        let names = files.names(&format!("{KFD_DIRECTORY}/topology/{directory}"));
        assert_eq!(names, topology.list_directory(directory).unwrap(), "{directory}");
    }
}

#[test]
fn links_are_relative_and_lead_to_something_inside() {
    let files = Files::of(&Machine::of_file(MACHINE).unwrap());
    let links = links(files.0.path());
    assert!(links.len() > 40, "{links:?}");
    for (path, text) in links {
        assert!(text.is_relative(), "{path:?} -> {text:?}");
        let path = path.strip_prefix(files.0.path()).unwrap().to_str().unwrap().to_owned();
        files.resolved(&path);
    }
}

#[test]
fn gpus_are_found_from_their_render_nodes_with_the_topologys_ids() {
    let machine = Machine::of_file(MACHINE).unwrap();
    let files = Files::of(&machine);
    let topology = Topology::read(&SysfsTree::with_host(&machine, &HOST)).unwrap();
    let mut slots = Vec::new();
    for (gpu, node) in machine.gpus().iter().zip(topology.gpus()) {
        let (properties, minor) = (&node.properties, gpu.render_minor());
        let device = files.resolved(&format!("sys/class/drm/renderD{minor}/device"));
        let card = minor - 128;
        for way in [
            format!("sys/dev/char/226:{minor}/device"),
            format!("sys/dev/char/226:{card}/device"),
            format!("sys/class/drm/card{card}/device"),
            format!("sys/class/hwmon/hwmon{}/device", gpu.index()),
        ] {
            assert_eq!(files.resolved(&way), device);
        }
        let id = properties.location_id;
        let slot = format!("{:04x}:{:02x}:{:02x}.{}", properties.domain, id >> 8, id >> 3 & 31, id & 7);
        assert_eq!(device, format!("sys/devices/pci{}/{slot}", &slot[..7]));
        assert_eq!(files.resolved(&format!("sys/bus/pci/devices/{slot}")), device);
        assert_eq!(files.resolved(&format!("sys/bus/pci/drivers/amdgpu/{slot}")), device);
        assert_eq!(files.resolved(&format!("{device}/driver")), "sys/bus/pci/drivers/amdgpu");
        assert_eq!(files.resolved(&format!("{device}/subsystem")), "sys/bus/pci");
        assert_eq!(files.number(&format!("{device}/vendor")), u64::from(properties.vendor_id));
        assert_eq!(files.number(&format!("{device}/device")), u64::from(properties.device_id));
        assert_eq!(files.read(&format!("{device}/unique_id")), format!("{:016x}", gpu.unique_id()));
        assert_eq!(files.number(&format!("{device}/mem_info_vram_total")), node.vram_bytes());
        assert_eq!(files.number(&format!("{device}/mem_info_vis_vram_total")), gpu.visible_vram_bytes());
        let uevent = files.read(&format!("{device}/uevent"));
        assert!(uevent.contains(&format!("PCI_SLOT_NAME={slot}\n")), "{uevent}");
        assert!(uevent.contains(&format!("PCI_ID=1002:{:04X}\n", properties.device_id)), "{uevent}");
        let config = fs::read(files.0.path().join(&device).join("config")).unwrap();
        assert_eq!(config.len(), 256);
        assert_eq!(config[..2], 0x1002u16.to_le_bytes());
        assert_eq!(u32::from(u16::from_le_bytes([config[2], config[3]])), properties.device_id);
        assert_eq!(u64::from(config[8]), files.number(&format!("{device}/revision")));
        // Render node and card.
        assert_eq!(files.read(&format!("{device}/drm/renderD{minor}/dev")), format!("226:{minor}"));
        assert_eq!(
            files.read(&format!("sys/dev/char/226:{minor}/uevent")),
            format!("MAJOR=226\nMINOR={minor}\nDEVNAME=dri/renderD{minor}\nDEVTYPE=drm_minor")
        );
        assert_eq!(
            files.resolved(&format!("dev/dri/by-path/pci-{slot}-render")),
            format!("dev/dri/renderD{minor}")
        );
        assert_eq!(
            files.resolved(&format!("dev/dri/by-path/pci-{slot}-card")),
            format!("dev/dri/card{card}")
        );
        slots.push(slot);
    }
    assert_eq!(slots, ["0000:03:00.0", "0001:c3:1f.1", "0000:09:00.0"]);
    assert_eq!(
        files.names("dev/dri"),
        ["by-path", "card0", "card2", "card72", "renderD128", "renderD130", "renderD200"]
    );
    assert_eq!(files.names("dev"), ["dri", "kfd"]);
}

#[test]
fn uevent_of_a_pci_device_word_by_word() {
    let files = Files::of(&Machine::of_list("gfx1100").unwrap());
    let device = "sys/class/drm/card0/device";
    assert_eq!(
        files.read(&format!("{device}/uevent")),
        "DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:744C\nPCI_SUBSYS_ID=1002:0E3B\nPCI_SLOT_NAME=0000:03:00.0\n\
         MODALIAS=pci:v00001002d0000744Csv00001002sd00000E3Bbc03sc00i00"
    );
    let read = |name: &str| files.read(&format!("{device}/{name}"));
    assert_eq!(
        [read("subsystem_vendor"), read("subsystem_device"), read("class"), read("revision")],
        ["0x1002", "0x0e3b", "0x030000", "0xc8"]
    );
    assert_eq!(
        [read("max_link_speed"), read("current_link_width"), read("local_cpulist"), read("numa_node")],
        ["16.0 GT/s PCIe", "16", "0-7", "0"]
    );
    let resource = fs::read_to_string(files.0.path().join(device).join("resource")).unwrap();
    assert_eq!(resource.lines().count(), 13);
    // 24 GiB of VRAM are behind a BAR of 32 GiB.
    assert!(resource.starts_with("0x0000010000000000 0x00000107ffffffff 0x000000000014220c\n"), "{resource}");
}

#[test]
fn places_are_those_of_the_topology_file() {
    let files = Files::of(&Machine::of_file(MACHINE).unwrap());
    let read = |minor: u32, name: &str| files.read(&format!("sys/class/drm/renderD{minor}/device/{name}"));
    assert_eq!(
        [read(128, "local_cpulist"), read(200, "local_cpulist"), read(200, "numa_node")],
        ["0-15", "16", "1"]
    );
    assert_eq!(
        [read(130, "max_link_speed"), read(130, "mem_info_vis_vram_total")],
        ["8.0 GT/s PCIe", "268435456"]
    );
    assert_eq!(files.read("sys/module/amdgpu/parameters/pcie_p2p"), "N");
    let other = Files::of(&Machine::of_list("gfx1100").unwrap());
    assert_eq!(other.read("sys/module/amdgpu/parameters/pcie_p2p"), "Y");
}

#[test]
fn blocks_have_their_versions_and_names() {
    let files = Files::of(&Machine::of_file(MACHINE).unwrap());
    let version = |minor: u32, block: &str| {
        let part = |part| {
            files.read(&format!("sys/class/drm/renderD{minor}/device/ip_discovery/die/0/{block}/{part}"))
        };
        ["major", "minor", "revision"].map(part).join(".")
    };
    assert_eq!(["11/0", "42/0", "108/0"].map(|block| version(128, block)), ["11.0.0", "6.0.0", "4.3.0"]);
    assert_eq!(["GC/0", "SDMA0/0", "NBIF/0"].map(|block| version(128, block)), ["11.0.0", "6.0.0", "4.3.0"]);
    // Two XCCs, with their part of the chip's sixteen copy engines.
    assert_eq!(["GC/1", "SDMA0/3"].map(|block| version(200, block)), ["9.4.3", "4.4.2"]);
    let die = "sys/class/drm/renderD200/device/ip_discovery/die/0";
    assert_eq!(files.names(die), ["108", "11", "42", "GC", "NBIF", "SDMA0", "num_ips"]);
    assert_eq!((files.names(&format!("{die}/11")).len(), files.number(&format!("{die}/num_ips"))), (2, 7));
}

#[test]
fn module_is_loaded_and_listed_once() {
    let files = Files::of(&Machine::of_list("gfx1100").unwrap());
    assert_eq!(files.read("sys/module/amdgpu/initstate"), "live");
    assert_eq!(files.read("sys/module/amdgpu/version"), "3.64.0");
    let modules = files.read("proc/modules");
    let names: Vec<_> = modules.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["amdgpu", "fuse"]);
    assert_eq!(files.read("sys/class/kfd/kfd/dev"), "511:0");
    assert_eq!(files.resolved("sys/class/kfd/kfd"), "sys/devices/virtual/kfd/kfd");
}

#[test]
fn directory_that_is_missing_or_not_empty_is_refused_and_left_alone() {
    let tree = SystemTree::with_host(&Machine::of_list("gfx1100").unwrap(), &HOST, &OPTIONS);
    let directory = tempfile::tempdir().unwrap();
    let missing = tree.write(&directory.path().join("missing")).unwrap_err().to_string();
    assert!(missing.contains("missing, which must be an existing, empty directory"), "{missing}");
    fs::write(directory.path().join("mine"), "").unwrap();
    let error = tree.write(directory.path()).unwrap_err().to_string();
    assert!(error.ends_with("is not empty, \"mine\" is in it; name an empty directory"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
