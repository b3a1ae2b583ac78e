// SPDX-License-Identifier: MIT OR Apache-2.0
//! For every rule the ways to break it and the ways not to, as changes of the topology's files.

use softgpu::driver::KernelModel;

use super::super::rules::{Relation, Rule, rules};
use crate::testing::{TestSysfs, TestTransport};

/// What is to come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    Admitted,
    Refused,
}

type Change = Box<dyn Fn(&TestTransport)>;

/// A change of the machine between checkpoint and restore.
pub(super) struct Perturbation {
    pub property: &'static str,
    /// Before the process opens the device, if anything.
    pub before: Option<Change>,
    /// Afterwards.
    pub after: Change,
    /// Values, as a message shows them.
    pub had: String,
    pub here: String,
    pub expect: Expect,
}

/// The two neighbours of a number, and what the relation says of them.
fn neighbours(rule: Rule, had: u64, change: impl Fn(u64) -> Change) -> Vec<Perturbation> {
    let case = |here: u64| Perturbation {
        property: rule.property,
        before: None,
        after: change(here),
        had: had.to_string(),
        here: here.to_string(),
        expect: match rule.relation {
            Relation::AtLeast if here > had => Expect::Admitted,
            _ => Expect::Refused,
        },
    };
    vec![case(had + 1), case(had - 1)]
}

fn words(
    rule: Rule,
    [had, here]: [&str; 2],
    expect: Expect,
    before: impl Fn(&TestTransport) + 'static,
    after: impl Fn(&TestTransport) + 'static,
) -> Perturbation {
    let (before, after): (Change, Change) = (Box::new(before), Box::new(after));
    Perturbation {
        property: rule.property,
        before: Some(before),
        after,
        had: had.into(),
        here: here.into(),
        expect,
    }
}

/// The minor number of the device's interface.
fn minor() -> u32 {
    KernelModel::default().interface_version().1
}

const OWN: &str = "nodes/2/properties";
const BANK: &str = "nodes/2/mem_banks/0/properties";

/// The number a property has on the second GPU.
fn number_of(property: &str) -> u64 {
    let text = TestSysfs::new(2).files()[OWN].clone();
    let line = text.lines().find_map(|line| line.strip_prefix(property)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{property} is not in the topology")).parse().unwrap()
}

/// Of a number that is 0 on the chip: 1 at the checkpoint.
fn from_one(rule: Rule) -> Vec<Perturbation> {
    let property = rule.property;
    let cases = neighbours(rule, 1, |value| Box::new(move |t| t.sysfs.change(OWN, property, value)));
    let from_one = |case| {
        let before: Change = Box::new(move |t| t.sysfs.change(OWN, property, 1));
        Perturbation { before: Some(before), ..case }
    };
    cases.into_iter().map(from_one).collect()
}

fn cpu_links(rule: Rule) -> Vec<Perturbation> {
    let link = |kind: u32| move |t: &TestTransport| t.sysfs.link(2, "io_links", 0, kind);
    let none = |t: &TestTransport| t.sysfs.remove("nodes/2/io_links/0");
    vec![
        words(rule, ["PCIe", "XGMI"], Expect::Admitted, link(2), link(11)),
        words(rule, ["XGMI", "PCIe"], Expect::Refused, link(11), link(2)),
        words(rule, ["PCIe", "none"], Expect::Refused, link(2), none),
        words(rule, ["none", "PCIe"], Expect::Admitted, none, link(2)),
    ]
}

fn agent_links(rule: Rule) -> Vec<Perturbation> {
    // XGMI is a direct link, PCIe between GPUs a peer link.
    let xgmi = |t: &TestTransport| {
        t.sysfs.remove("nodes/1/p2p_links/2");
        t.sysfs.link(1, "io_links", 2, 11);
    };
    let pcie = |t: &TestTransport| {
        t.sysfs.remove("nodes/1/io_links/2");
        t.sysfs.link(1, "p2p_links", 2, 2);
    };
    let one_way = |t: &TestTransport| t.sysfs.remove("nodes/1/p2p_links/2");
    vec![
        words(rule, ["PCIe", "XGMI"], Expect::Admitted, pcie, xgmi),
        words(rule, ["XGMI", "PCIe"], Expect::Refused, xgmi, pcie),
        words(rule, ["none", "PCIe"], Expect::Admitted, one_way, pcie),
        words(rule, ["PCIe", "none"], Expect::Refused, pcie, one_way),
    ]
}

fn numa_nodes(rule: Rule) -> Vec<Perturbation> {
    let at = |node: u32| {
        move |t: &TestTransport| {
            t.sysfs.add_cpu(7);
            t.sysfs.remove("nodes/2/io_links");
            t.sysfs.link(2, "io_links", node, 2);
        }
    };
    let both_at = |node: u32| {
        move |t: &TestTransport| {
            at(node)(t);
            t.sysfs.remove("nodes/1/io_links");
            t.sysfs.link(1, "io_links", node, 2);
        }
    };
    vec![
        words(rule, ["0", "7"], Expect::Refused, at(0), at(7)),
        words(rule, ["7", "0"], Expect::Admitted, at(7), at(0)),
        words(rule, ["0", "7"], Expect::Admitted, at(0), both_at(7)),
    ]
}

/// All changes that are about one rule. `peer_mapping` is about buffers: `staged.rs` has its.
pub(super) fn perturbations(rule: Rule) -> Vec<Perturbation> {
    let version =
        |major: u32, minor: u32| -> Change { Box::new(move |t| t.kernel.set_version(Some((major, minor)))) };
    match rule.property {
        "kfd_ioctl_major" => neighbours(rule, 1, |major| version(u32::try_from(major).unwrap(), minor())),
        "kfd_ioctl_minor" => {
            neighbours(rule, u64::from(minor()), |minor| version(1, u32::try_from(minor).unwrap()))
        }
        "gpus" => vec![
            words(rule, ["2", "3"], Expect::Admitted, |_| {}, |t| t.sysfs.add_gpu(3)),
            words(
                rule,
                ["2", "1"],
                Expect::Refused,
                |_| {},
                |t| {
                    t.sysfs.remove("nodes/1/p2p_links/2");
                    t.sysfs.remove("nodes/2");
                },
            ),
        ],
        "gpu_id" => {
            let [first, second] = [1, 2].map(|node| TestSysfs::new(2).gpu_id(node).to_string());
            let number = first.clone();
            vec![words(
                rule,
                [&second, &first],
                Expect::Refused,
                |_| {},
                move |t| {
                    // The first GPU is gone and its number another's.
                    t.sysfs.set("nodes/1/gpu_id", "9\n");
                    t.sysfs.set("nodes/2/gpu_id", &format!("{number}\n"));
                },
            )]
        }
        "cpu_link" => cpu_links(rule),
        "agent_link" => agent_links(rule),
        "numa_node" => numa_nodes(rule),
        "vram_bytes" => neighbours(rule, 25_753_026_560, |bytes| {
            Box::new(move |t| t.sysfs.change(BANK, "size_in_bytes", bytes))
        }),
        "vram_public" => {
            let heap = |heap: u64| move |t: &TestTransport| t.sysfs.change(BANK, "heap_type", heap);
            vec![
                words(rule, ["1", "0"], Expect::Refused, heap(1), heap(2)),
                words(rule, ["0", "1"], Expect::Refused, heap(2), heap(1)),
            ]
        }
        property if number_of(property) == 0 => from_one(rule),
        property => {
            assert!(rules().any(|known| known.property == property));
            neighbours(rule, number_of(property), |value| {
                Box::new(move |t| t.sysfs.change(OWN, property, value))
            })
        }
    }
}
