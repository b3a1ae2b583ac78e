// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths and the matrix over topologies that a test makes up.

use proptest::prelude::*;

use kfd::topology::Topology;

use super::*;
use crate::context::error::AllocError;
use crate::testing::{TestSysfs, TestTransport, runtime_on};

const XGMI_KIND: u32 = 11;
const PCIE_KIND: u32 = 2;

fn topology(sysfs: &TestSysfs) -> Topology {
    Topology::read(sysfs).unwrap()
}

#[test]
fn path_is_the_link_in_its_direction() {
    let sysfs = TestSysfs::new(2);
    sysfs.remove("nodes/2/p2p_links/1");
    let topology = topology(&sysfs);
    let [_, first, second] = &topology.nodes[..] else { panic!("three nodes") };
    let there = path(first, second);
    assert_eq!((there.kind, there.weight), (PathKind::Pcie, 40));
    assert_eq!((path(second, first), why_not(second, first)), (Path::NONE, Unreachable::OneWay));
    assert_eq!(path(first, first), Path::SAME);
}

#[test]
fn xgmi_is_preferred_and_counts_hops() {
    let sysfs = TestSysfs::new(2);
    sysfs.link(1, "io_links", 2, XGMI_KIND);
    sysfs.change("nodes/1/io_links/2/properties", "weight", 30);
    let topology = topology(&sysfs);
    assert_eq!(path(&topology.nodes[1], &topology.nodes[2]).kind, PathKind::Xgmi { hops: 2 });
    assert_eq!(path(&topology.nodes[2], &topology.nodes[1]).kind, PathKind::Pcie);
}

#[test]
fn link_without_peer_dma_is_none_between_agents() {
    let sysfs = TestSysfs::new(2);
    sysfs.change("nodes/1/p2p_links/2/properties", "flags", 0x11);
    let topology = topology(&sysfs);
    assert_eq!(path(&topology.nodes[1], &topology.nodes[2]), Path::NONE);
}

#[test]
fn grant_without_a_path_is_refused_by_name_before_the_driver_is_asked() {
    let transport = TestTransport::new(3);
    transport.sysfs.remove("nodes/2/p2p_links/1");
    transport.sysfs.remove("nodes/3/p2p_links/2");
    transport.sysfs.remove("nodes/2/p2p_links/3");
    transport.sysfs.remove("nodes/1/p2p_links/3");
    transport.sysfs.change("nodes/3/mem_banks/0/properties", "heap_type", 2);
    let (runtime, kernel) = runtime_on(transport);
    let agents = runtime.agents();
    let buffers: Vec<_> = agents.iter().map(|agent| agent.vram().alloc(4096).unwrap()).collect();
    let asked = kernel.calls();
    let refused = |of: usize, by: usize| match buffers[of].allow(&agents[by]).unwrap_err() {
        AllocError::NoPath(error) => error,
        other => panic!("{other}"),
    };
    let one_way = refused(0, 1);
    assert_eq!(one_way.why, Unreachable::OneWay);
    assert!(
        one_way.accessor.contains(agents[1].uuid()) && one_way.owner.contains(agents[0].uuid()),
        "{one_way}"
    );
    assert_eq!(refused(1, 2).why, Unreachable::Unlinked);
    assert_eq!(refused(2, 0).why, Unreachable::SmallBar);
    assert_eq!(kernel.calls(), asked, "the driver was asked");
    // The other way round there is a link, and system memory needs none.
    buffers[1].allow(&agents[0]).unwrap();
    buffers[0].allow(&agents[2]).unwrap();
    runtime.gtt().alloc(4096).unwrap().allow(&agents[1]).unwrap();
}

#[test]
fn matrix_has_agents_then_hosts_and_is_a_table() {
    let transport = TestTransport::new(2);
    transport.sysfs.remove("nodes/2/p2p_links/1");
    let (runtime, _kernel) = runtime_on(transport);
    let matrix = runtime.links();
    assert_eq!(matrix.places().len(), 3);
    assert_eq!(matrix.places()[2], Place::Host { node: 0 });
    assert_eq!((matrix.path(0, 1).kind, matrix.path(1, 0).kind), (PathKind::Pcie, PathKind::None));
    assert_eq!((matrix.path(1, 2).kind, matrix.path(2, 1).kind), (PathKind::Pcie, PathKind::Pcie));
    assert_eq!(matrix.path(0, 3), Path::NONE);
    assert_eq!(matrix.pairs().count(), 6);
    let wanted = "           0 gfx1100  1 gfx1100  host 0\n\
                  0 gfx1100  same       PCIe 40    PCIe 20\n\
                  1 gfx1100  -          same       PCIe 20\n\
                  host 0     PCIe 20    PCIe 20    same\n";
    assert_eq!(matrix.to_string(), wanted);
}

proptest! {
    /// Whatever links there are: a path is there exactly where a link in that direction is.
    #[test]
    fn paths_are_the_links_and_no_others(links in prop::collection::btree_set((1u32..5, 1u32..5, any::<bool>()), 0..12)) {
        let sysfs = TestSysfs::new(4);
        (1..5).for_each(|node| sysfs.remove(&format!("nodes/{node}/p2p_links")));
        for &(from, to, xgmi) in links.iter().filter(|(from, to, _)| from != to) {
            let (list, kind) = if xgmi { ("io_links", XGMI_KIND) } else { ("p2p_links", PCIE_KIND) };
            sysfs.link(from, list, to, kind);
        }
        let topology = topology(&sysfs);
        for from in 1..5u32 {
            for to in 1..5u32 {
                let found = path(&topology.nodes[from as usize], &topology.nodes[to as usize]);
                let (xgmi, pcie) = (links.contains(&(from, to, true)), links.contains(&(from, to, false)));
                let wanted = match (from == to, xgmi, pcie) {
                    (true, _, _) => PathKind::Same,
                    (_, true, _) => PathKind::Xgmi { hops: 1 },
                    (_, _, true) => PathKind::Pcie,
                    _ => PathKind::None,
                };
                prop_assert_eq!(found.kind, wanted);
            }
        }
    }
}
