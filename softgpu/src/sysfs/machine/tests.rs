// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines from topology files: what is filled in, what is refused, and the links that come of it.

use kfd::topology::Topology;
use proptest::prelude::*;

use super::*;
use crate::sysfs::SysfsTree;

const HOST: Host = Host { cores: 8, ram_bytes: 32 << 30, max_mhz: 5000 };

/// Two sockets. GPUs 0 and 1 are a hive on the first; 2 and 3 on the second, 3 with a small BAR, and 2 does not get
/// through to 0.
const FOUR: &str = r#"
    [[numa]]
    memory = "64GiB"
    cores = 16
    distance = [10, 32]

    [[numa]]
    memory = "128GiB"
    cores = 24
    distance = [32, 10]

    [[gpu]]
    chip = "gfx90a"
    hive = 7

    [[gpu]]
    chip = "gfx90a"
    hive = 7

    [[gpu]]
    chip = "gfx1100"
    numa_node = 1
    pci = "0001:c3:00.0"
    unique_id = "0xfeedfacecafebeef"
    render_minor = 200
    pcie_bandwidth = [312, 16000]

    [[gpu]]
    chip = "gfx1201"
    numa_node = 1
    vram_bytes = "16GiB"
    bar = "small"

    [[link]]
    kind = "xgmi"
    gpus = [1, 0]
    hops = 2
    bandwidth = [50000, 100000]

    [[unreachable]]
    from = 2
    to = 0
"#;

fn tree(text: &str) -> (Machine, SysfsTree) {
    let machine = Machine::of_file(text).unwrap();
    let tree = SysfsTree::with_host(&machine, &HOST);
    (machine, tree)
}

/// `(kind, to, weight, flags)` of a node's links.
fn links(links: &[kfd::topology::Link]) -> Vec<(u32, u32, u32, u32)> {
    links.iter().map(|link| (link.kind, link.node_to, link.weight, link.flags)).collect()
}

#[test]
fn two_sockets_four_gpus_have_the_kernels_links() {
    let (_, tree) = tree(FOUR);
    let topology = Topology::read(&tree).unwrap();
    assert_eq!(topology.nodes.len(), 6);
    let found: Vec<_> =
        topology.nodes.iter().map(|node| (links(&node.io_links), links(&node.p2p_links))).collect();
    let wanted = [
        // CPU 0: the other socket, its two GPUs; across the sockets only what has a large BAR.
        (vec![(1, 1, 32, 1), (2, 2, 20, 3), (2, 3, 20, 3)], vec![(2, 4, 52, 3)]),
        // CPU 1: no link to the GPU with the small BAR.
        (vec![(1, 0, 32, 1), (2, 4, 20, 3)], vec![(2, 2, 52, 3), (2, 3, 52, 3)]),
        // GPU 0: the hive by XGMI, not by PCIe; the small BAR is reached by nobody.
        (vec![(2, 0, 20, 1), (11, 3, 30, 1)], vec![(2, 1, 52, 1), (2, 4, 72, 3)]),
        (vec![(2, 0, 20, 1), (11, 2, 30, 1)], vec![(2, 1, 52, 1), (2, 4, 72, 3)]),
        // GPU 2 reaches GPU 1, not GPU 0, which reaches it.
        (vec![(2, 1, 20, 1)], vec![(2, 0, 52, 1), (2, 3, 72, 3)]),
        // GPU 3 reaches the others though they do not reach it.
        (vec![(2, 1, 20, 1)], vec![(2, 0, 52, 1), (2, 2, 72, 3), (2, 3, 72, 3), (2, 4, 40, 3)]),
    ];
    assert_eq!(found, wanted);
}

#[test]
fn one_link_of_each_kind_word_by_word() {
    let (_, tree) = tree(FOUR);
    let read = |path: &str| tree.read_file(&format!("nodes/{path}/properties")).unwrap();
    let text = |kind, from, to, weight, bandwidth: (u32, u32), engines, flags| {
        format!(
            "type {kind}\nversion_major 0\nversion_minor 0\nnode_from {from}\nnode_to {to}\nweight {weight}\n\
             min_latency 0\nmax_latency 0\nmin_bandwidth {}\nmax_bandwidth {}\nrecommended_transfer_size 0\n\
             recommended_sdma_engine_id_mask {engines}\nflags {flags}\n",
            bandwidth.0, bandwidth.1
        )
    };
    // CPU and CPU, GPU and its CPU, XGMI peers, a CPU behind another, PCIe peers on one socket and on two.
    assert_eq!(read("0/io_links/0"), text(1, 0, 1, 32, (0, 0), 0, 1));
    assert_eq!(read("4/io_links/0"), text(2, 4, 1, 20, (312, 16_000), 3, 1));
    assert_eq!(read("1/io_links/1"), text(2, 1, 4, 20, (312, 16_000), 3, 3));
    assert_eq!(read("3/io_links/1"), text(11, 3, 2, 30, (50_000, 100_000), 0b11100, 1));
    assert_eq!(read("2/io_links/1"), text(11, 2, 3, 30, (50_000, 100_000), 0b11100, 1));
    assert_eq!(read("2/p2p_links/0"), text(2, 2, 1, 52, (0, 0), 3, 1));
    assert_eq!(read("5/p2p_links/3"), text(2, 5, 4, 40, (312, 16_000), 3, 3));
    assert_eq!(read("5/p2p_links/1"), text(2, 5, 2, 72, (0, 0), 3, 3));
}

#[test]
fn nodes_have_what_the_file_says() {
    let (machine, tree) = tree(FOUR);
    let topology = Topology::read(&tree).unwrap();
    let cpus: Vec<_> = topology.nodes[..2]
        .iter()
        .map(|node| {
            (
                node.properties.cpu_cores_count,
                node.properties.cpu_core_id_base,
                node.mem_banks[0].size_in_bytes,
            )
        })
        .collect();
    assert_eq!(cpus, [(16, 0, 64 << 30), (24, 16, 128 << 30)]);
    assert_eq!(machine.host(&HOST), Host { cores: 40, ram_bytes: 192 << 30, max_mhz: 5000 });
    let gpus: Vec<_> = topology.gpus().collect();
    let banks: Vec<_> =
        gpus.iter().map(|node| (node.mem_banks[0].heap_type, node.mem_banks[0].size_in_bytes)).collect();
    assert_eq!(banks, [(1, 68_702_699_520), (1, 68_702_699_520), (1, 25_753_026_560), (2, 16 << 30)]);
    let third = &gpus[2].properties;
    assert_eq!((third.location_id, third.domain, third.drm_render_minor), (0xc300, 1, 200));
    assert_eq!(third.unique_id, 0xfeed_face_cafe_beef);
    assert_eq!(gpus.iter().map(|node| node.properties.hive_id).collect::<Vec<_>>(), [7, 7, 0, 0]);
    assert_eq!(
        gpus.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(),
        ["aldebaran", "aldebaran", "ip discovery", "ip discovery"]
    );
    assert_eq!(machine.gpus()[3].visible_vram_bytes(), 256 << 20);
}

#[test]
fn reach_is_by_direction_and_registers_go_over_pcie_only() {
    let (machine, _) = tree(FOUR);
    assert_eq!(matrix(&machine, GpuModel::reaches_vram), ["xxx.", "xxx.", ".xx.", "xxxx"]);
    assert_eq!(matrix(&machine, GpuModel::reaches_registers), ["xxx.", "xxx.", ".xx.", "xxxx"]);
    let (machine, _) = tree(&format!("pcie_p2p = false\n{FOUR}"));
    assert_eq!(matrix(&machine, GpuModel::reaches_vram), ["xx..", "xx..", "..x.", "...x"]);
    assert_eq!(matrix(&machine, GpuModel::reaches_registers), ["x...", ".x..", "..x.", "...x"]);
}

/// Rows are GPUs, columns whose memory they reach.
fn matrix(machine: &Machine, reaches: impl Fn(&GpuModel, usize) -> bool) -> Vec<String> {
    let gpus = machine.gpus();
    let row =
        |gpu: &GpuModel| (0..gpus.len()).map(|owner| if reaches(gpu, owner) { 'x' } else { '.' }).collect();
    gpus.iter().map(row).collect()
}

#[test]
fn without_pcie_p2p_only_paths_to_cpus_are_left_in_p2p_links() {
    let (_, tree) = tree(&format!("pcie_p2p = false\n{FOUR}"));
    let topology = Topology::read(&tree).unwrap();
    for node in topology.gpus() {
        assert!(node.p2p_links.iter().all(|link| link.node_to < 2));
        assert_eq!(node.p2p_links.len(), 1);
    }
}

#[test]
fn example_of_the_document_is_a_machine() {
    let document = include_str!("../../../../docs/topology.md");
    let example = document.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let machine = Machine::of_file(example).unwrap();
    assert_eq!(matrix(&machine, GpuModel::reaches_vram), ["xxx.", "xxx.", ".xx.", "xxxx"]);
}

#[test]
fn file_that_says_nothing_is_the_list() {
    let file = "[[gpu]]\nchip = \"gfx1100\"\n[[gpu]]\nchip = \"gfx1100\"\n";
    let (machine, tree) = tree(file);
    let list = Machine::of_list("gfx1100*2").unwrap();
    assert_eq!(format!("{:?}", machine.gpus()), format!("{:?}", list.gpus()));
    assert_eq!(format!("{tree:?}"), format!("{:?}", SysfsTree::with_host(&list, &HOST)));
}

#[test]
fn gpu_ids_follow_place_and_memory() {
    let id = |more: &str| {
        let machine = Machine::of_file(&format!("[[gpu]]\nchip = \"gfx1100\"\n{more}\n")).unwrap();
        machine.gpus()[0].gpu_id()
    };
    let list = Machine::of_list("gfx1100").unwrap().gpus()[0].gpu_id();
    assert_eq!(id(""), list);
    assert_eq!(id("unique_id = 5\nrender_minor = 140"), list);
    for other in ["pci = \"0000:04:00.0\"", "pci = \"0001:03:00.0\"", "vram_bytes = \"16GiB\""] {
        assert_ne!(id(other), list, "{other}");
    }
}

#[test]
fn bar_that_shows_everything_is_large() {
    let gpu = |bar: &str| {
        let text = format!("[[gpu]]\nchip = \"gfx1100\"\nvram_bytes = \"1GiB\"\nbar = {bar}\n");
        let gpu = Machine::of_file(&text).unwrap().into_gpus().remove(0);
        (gpu.visible_vram_bytes(), gpu.large_bar())
    };
    assert_eq!(gpu("\"large\""), (1 << 30, true));
    assert_eq!(gpu("\"1GiB\""), (1 << 30, true));
    assert_eq!(gpu("\"512MiB\""), (512 << 20, false));
    assert_eq!(gpu("\"small\""), (256 << 20, false));
}

#[test]
fn refusals_name_table_position_key_and_value() {
    let refusal = |text: &str| match Machine::of_file(text).unwrap_err() {
        SpecError::Machine(error) => error.to_string(),
        other => panic!("{other}"),
    };
    let one = "[[gpu]]\nchip = \"gfx1100\"\n";
    let two = format!("{one}{one}");
    let hive = "[[gpu]]\nchip = \"gfx90a\"\nhive = 1\n".repeat(2);
    let link = "[[link]]\nkind = \"xgmi\"\ngpus = [0, 1]\n";
    let numa = "[[numa]]\ncores = 4\nmemory = \"8GiB\"\n";
    for (text, said) in [
        (format!("{one}numa_node = 1"), "[[gpu]] 0: numa_node is 1, expected one of the 1 NUMA nodes"),
        (format!("{two}render_minor = 128"), "[[gpu]] 1: render_minor is 128, which [[gpu]] 0 has already"),
        (format!("{one}cwsr_size = 268435457"), "[[gpu]] 0: cwsr_size is 268435457, expected 0 to 268435456"),
        (format!("{one}num_xcc = 0"), "[[gpu]] 0: num_xcc is 0, expected 1 to 8"),
        (format!("{one}num_xcc = 9"), "[[gpu]] 0: num_xcc is 9, expected 1 to 8"),
        (format!("{one}render_minor = 5"), "[[gpu]] 0: render_minor is 5, expected 128 to 255"),
        (format!("{two}pci = \"03:00.0\""), "[[gpu]] 1: pci is 0000:03:00.0, which [[gpu]] 0 has already"),
        (format!("{one}unique_id = 9\n{one}unique_id = 9"), "[[gpu]] 1: unique_id is 0x0000000000000009"),
        (format!("{one}vram_bytes = 0"), "[[gpu]] 0: vram_bytes is 0, expected 67108864 to"),
        (
            format!("{one}vram_bytes = 67108865"),
            "[[gpu]] 0: vram_bytes is 67108865, expected a multiple of 4096",
        ),
        (format!("{one}bar = \"25GiB\""), "[[gpu]] 0: bar is 26843545600, expected 4096 to 25753026560"),
        (format!("{one}bar_read_mbytes = 0"), "[[gpu]] 0: bar_read_mbytes is 0, expected 1 to 100000"),
        (format!("{one}hive = 0"), "[[gpu]] 0: hive is 0, expected a number from 1"),
        (format!("{one}pcie_bandwidth = [2, 1]"), "[[gpu]] 0: pcie_bandwidth is [2, 1], expected the lesser"),
        (format!("{two}{link}"), "[[link]] 0: GPUs 0 and 1 are not in one hive"),
        (format!("{hive}{link}{link}"), "[[link]] 1: GPUs 0 and 1 are in an earlier entry"),
        (format!("{hive}{link}hops = 0"), "[[link]] 0: hops is 0, expected 1 to 8"),
        (format!("{hive}{link}bandwidth = [2, 1]"), "[[link]] 0: bandwidth is [2, 1], expected the lesser"),
        (format!("{one}{link}"), "[[link]] 0: gpus is 1, expected one of the 1 GPUs"),
        (
            format!("{one}[[unreachable]]\nfrom = 0\nto = 0"),
            "[[unreachable]] 0: to is 0, expected another GPU",
        ),
        (format!("{one}[[unreachable]]\nfrom = 3\nto = 0"), "[[unreachable]] 0: from is 3, expected one of"),
        (format!("{one}{numa}distance = [10, 20]"), "[[numa]] 0: distance is [10, 20], expected 1 numbers"),
        (format!("{one}{numa}distance = [11]"), "[[numa]] 0: distance is 11, expected 10 to 10"),
        (format!("{one}{}", numa.repeat(17)), "[[numa]] 16: position is 16, expected one of the 16 nodes"),
        (format!("{one}[[numa]]\ncores = 0\nmemory = \"8GiB\""), "[[numa]] 0: cores is 0, expected 1 to"),
    ] {
        let found = refusal(&text);
        assert!(found.starts_with(said), "{text}\nwanted {said}\nfound {found}");
    }
}

#[test]
fn kernel_prints_and_demands_the_save_area_that_the_file_gives_it() {
    let (machine, tree) = tree("[[gpu]]\nchip = \"gfx1100\"\nctl_stack_size = 45056\ncwsr_size = 46055424");
    let topology = Topology::read(&tree).unwrap();
    let shape = topology.gpus().next().unwrap().properties.shape();
    assert_eq!((shape.ctl_stack_size, shape.cwsr_size), (Some(45_056), Some(46_055_424)));
    // What it demands is what a client makes of what it prints.
    assert_eq!(Ok(*machine.gpus()[0].geometry()), CwsrGeometry::for_node(&shape));
}

#[test]
fn number_of_xccs_multiplies_what_one_has_and_a_part_of_a_chip_has_its_share() {
    let properties = |text: &str| {
        let (machine, tree) = tree(text);
        let node = Topology::read(&tree).unwrap().gpus().next().unwrap().clone();
        assert_eq!(Ok(*machine.gpus()[0].geometry()), CwsrGeometry::for_node(&node.properties.shape()));
        (machine, node)
    };
    let (machine, node) = properties("[[gpu]]\nchip = \"gfx942\"\nnum_xcc = 2");
    let found = &node.properties;
    // A quarter of an MI300X (QPX): of 304 compute units, 32 engines, 16 copy engines, 192 GiB.
    assert_eq!(
        (found.num_xcc, found.simd_count, found.array_count, found.simd_arrays_per_engine),
        (2, 304, 8, 1)
    );
    assert_eq!((found.num_sdma_engines, found.num_sdma_xgmi_engines, found.num_cp_queues), (2, 2, 24));
    assert_eq!((found.cwsr_size, found.ctl_stack_size), (Some(23_203_840), Some(0x3000)));
    assert_eq!(machine.gpus()[0].vram_bytes(), 206_141_652_992 / 4);
    assert_eq!(machine.gpus()[0].geometry().total_bytes, 46_505_984);
    // Another GPU to KFD, with the caches of its own compute units.
    let list = Machine::of_list("gfx942").unwrap();
    assert_ne!(machine.gpus()[0].gpu_id(), list.gpus()[0].gpu_id());
    let (_, whole) = properties("[[gpu]]\nchip = \"gfx942\"");
    assert!(node.caches.len() < whole.caches.len() / 3, "{} {}", node.caches.len(), whole.caches.len());
    // One XCC alone (CPX), and more than a chip has, which shares its memory.
    let (one, node) = properties("[[gpu]]\nchip = \"gfx942\"\nnum_xcc = 1");
    assert_eq!((node.properties.simd_count, node.properties.num_sdma_xgmi_engines), (152, 0));
    assert_eq!(one.gpus()[0].vram_bytes(), 25_767_706_624);
    let (two, node) = properties("[[gpu]]\nchip = \"gfx1100\"\nnum_xcc = 2");
    assert_eq!((node.properties.simd_count, node.properties.array_count), (384, 24));
    assert_eq!((two.gpus()[0].vram_bytes(), node.properties.num_sdma_xgmi_engines), (25_753_026_560, 0));
}

#[test]
fn keys_that_are_none_are_refused_by_name() {
    for (text, said) in [
        ("pcie_p2p = true\npeer = 1\n[[gpu]]\nchip = \"gfx1100\"", "unknown field `peer`"),
        ("[[gpu]]\nchip = \"gfx1100\"\nvram = 1", "unknown field `vram`"),
        ("[[gpu]]\nvram_bytes = 1", "missing field `chip`"),
        ("[[gpu]]\nchip = \"gfx1100\"\nbar = \"huge\"", "\"small\""),
        ("[[gpu]]\nchip = \"gfx1100\"\n[[link]]\nkind = \"pcie\"\ngpus = [0, 1]", "unknown variant `pcie`"),
        ("[[gpu]", "TOML parse error"),
    ] {
        let SpecError::Toml(error) = Machine::of_file(text).unwrap_err() else { panic!("{text}") };
        assert!(error.to_string().contains(said), "{error}");
    }
    assert!(matches!(Machine::of_file(""), Err(SpecError::Empty)));
    let unknown = Machine::of_file("[[gpu]]\nchip = \"gfx9000\"");
    assert!(matches!(unknown, Err(SpecError::Unknown { name }) if name == "gfx9000"));
    let crowd = "[[gpu]]\nchip = \"gfx1100\"\n".repeat(17);
    assert!(matches!(Machine::of_file(&crowd), Err(SpecError::TooMany { wanted: 17 })));
}

/// Files of the right words, mostly possible.
fn file() -> impl Strategy<Value = String> {
    let gpu = (0..6usize, 0..3u64, 0..4usize, any::<bool>()).prop_map(|(chip, hive, numa, large)| {
        let chip = ["gfx1100", "gfx1101", "gfx1102", "gfx1201", "gfx90a", "gfx942"][chip];
        let hive = if hive == 0 { String::new() } else { format!("hive = {hive}\n") };
        let bar = if large { "large" } else { "small" };
        format!("[[gpu]]\nchip = \"{chip}\"\nbar = \"{bar}\"\nnuma_node = {numa}\n{hive}")
    });
    let pair =
        (0..6usize, 0..6usize).prop_map(|(from, to)| format!("[[unreachable]]\nfrom = {from}\nto = {to}\n"));
    let parts = (
        any::<bool>(),
        0..5usize,
        proptest::collection::vec(gpu, 0..6),
        proptest::collection::vec(pair, 0..4),
    );
    parts.prop_map(|(p2p, nodes, gpus, pairs)| {
        let numa = "[[numa]]\ncores = 4\nmemory = \"8GiB\"\n".repeat(nodes);
        format!("pcie_p2p = {p2p}\n{numa}{}{}", gpus.concat(), pairs.concat())
    })
}

proptest! {
    #[test]
    fn counts_equal_entries_and_links_lead_where_they_say(text in file()) {
        let Ok(machine) = Machine::of_file(&text) else { return Ok(()) };
        let tree = SysfsTree::with_host(&machine, &HOST);
        let topology = Topology::read(&tree).unwrap();
        prop_assert_eq!(topology.nodes.len(), machine.cpu_count() + machine.gpus().len());
        for (at, node) in topology.nodes.iter().enumerate() {
            let counts = &node.properties;
            prop_assert_eq!(counts.mem_banks_count as usize, node.mem_banks.len());
            prop_assert_eq!(counts.caches_count as usize, node.caches.len());
            prop_assert_eq!(counts.io_links_count as usize, node.io_links.len());
            prop_assert_eq!(counts.p2p_links_count as usize, node.p2p_links.len());
            for link in node.io_links.iter().chain(&node.p2p_links) {
                prop_assert_eq!(link.node_from as usize, at);
                prop_assert!((link.node_to as usize) < topology.nodes.len() && link.node_to != link.node_from);
            }
        }
        // Links between GPUs are there exactly where one maps the other's memory.
        for gpu in machine.gpus() {
            let node = &topology.nodes[machine.node_of(gpu)];
            for owner in machine.gpus().iter().filter(|owner| owner.index() != gpu.index()) {
                let to = machine.node_of(owner);
                let count = |links: &[kfd::topology::Link]| {
                    links.iter().filter(|link| link.node_to as usize == to).count()
                };
                let found = count(&node.io_links) + count(&node.p2p_links);
                prop_assert_eq!(found, usize::from(gpu.reaches_vram(owner.index())));
            }
        }
    }

    #[test]
    fn of_file_never_panics(text in ".{0,200}") {
        let _ = Machine::of_file(&text);
    }

    #[test]
    fn of_file_with_wild_numbers_never_panics(
        gpus in proptest::collection::vec((any::<i64>(), any::<i64>(), any::<i64>()), 1..4),
        pair in (any::<i64>(), any::<i64>()),
        node in (any::<i64>(), any::<i64>(), any::<i64>()),
    ) {
        let mut text = format!("[[numa]]\ncores = {}\nmemory = {}\ndistance = [{}]\n", node.0, node.1, node.2);
        for (bytes, minor, hive) in gpus {
            text += &format!("[[gpu]]\nchip = \"gfx942\"\nvram_bytes = {bytes}\nrender_minor = {minor}\nhive = {hive}\n");
        }
        text += &format!("[[link]]\nkind = \"xgmi\"\ngpus = [{}, {}]\n", pair.0, pair.1);
        let _ = Machine::of_file(&text);
    }
}
