// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules: which properties of a GPU are compared, how, and which switch turns each comparison off.
//!
//! INVARIANT: every comparison that admission makes is a row here, and every row is in `docs/admission.md`
//! (a test compares the two). What CRIU's amdgpu plugin compares (`device_properties_match`), we compare as it does.

use std::collections::BTreeMap;
use std::fmt;

use kfd::topology::{HEAP_TYPE_FB_PUBLIC, Node};

use super::checks::Switch;

/// How a property is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Must be the same.
    Equal,
    /// May be more, or better, here.
    AtLeast,
    /// What was in one place must be in one place.
    Together,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "equal",
            Self::AtLeast => "at least",
            Self::Together => "together",
        })
    }
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What is compared, by its sysfs name where it has one.
    pub property: &'static str,
    /// How.
    pub relation: Relation,
    /// What turns it off.
    pub switch: Option<Switch>,
    /// Whether [`super::Admission::allow_staged`] turns it off.
    pub staged: bool,
}

const fn equal(property: &'static str) -> Rule {
    Rule { property, relation: Relation::Equal, switch: None, staged: false }
}

const fn at_least(property: &'static str) -> Rule {
    Rule { property, relation: Relation::AtLeast, switch: None, staged: false }
}

const fn unless(rule: Rule, switch: Switch) -> Rule {
    Rule { switch: Some(switch), ..rule }
}

/// A rule about paths that copies through the host's memory can stand in for.
const fn unless_staged(rule: Rule) -> Rule {
    Rule { staged: true, ..rule }
}

/// Major number of the driver's interface.
pub(super) const KFD_MAJOR: Rule = equal("kfd_ioctl_major");
/// Minor number of the driver's interface: it only grows by additions.
pub(super) const KFD_MINOR: Rule = at_least("kfd_ioctl_minor");
/// GPUs, against the agents that the process uses.
pub(super) const GPUS: Rule = at_least("gpus");
/// KFD's id, where the driver still has the process's state for that very GPU.
pub(super) const GPU_ID: Rule = equal("gpu_id");
/// The link to the CPU: XGMI may replace PCIe.
pub(super) const CPU_LINK: Rule = at_least("cpu_link");
/// A direct or peer link from one agent to another: XGMI may replace PCIe, and there may be more of them.
pub(super) const AGENT_LINK: Rule = unless_staged(at_least("agent_link"));
/// The path by which an agent maps a buffer in another's memory. Kernels use it, which no copy stands in for.
pub(super) const PEER_MAPPING: Rule = at_least("peer_mapping");
/// The CPU node beside a GPU.
pub(super) const NUMA_NODE: Rule =
    unless(Rule { relation: Relation::Together, ..equal("numa_node") }, Switch::Numa);

/// The rules that are not about a single GPU's own properties.
const OTHERS: [Rule; 8] = [KFD_MAJOR, KFD_MINOR, GPUS, GPU_ID, CPU_LINK, AGENT_LINK, PEER_MAPPING, NUMA_NODE];

/// A GPU's property and where it is read.
type Row = (Rule, fn(&Node) -> Option<u64>);

macro_rules! properties {
    ($($rule:expr => $field:ident,)*) => {
        [$(($rule, |node: &Node| Some(u64::from(node.properties.$field))),)*]
    };
}

/// Of a GPU's `properties` file.
const PROPERTIES: [Row; 24] = properties! {
    equal("gfx_target_version") => gfx_target_version,
    equal("simd_count") => simd_count,
    equal("mem_banks_count") => mem_banks_count,
    unless_staged(equal("io_links_count")) => io_links_count,
    equal("max_waves_per_simd") => max_waves_per_simd,
    equal("lds_size_in_kb") => lds_size_in_kb,
    equal("wave_front_size") => wave_front_size,
    equal("array_count") => array_count,
    equal("simd_arrays_per_engine") => simd_arrays_per_engine,
    equal("cu_per_simd_array") => cu_per_simd_array,
    equal("simd_per_cu") => simd_per_cu,
    equal("max_slots_scratch_cu") => max_slots_scratch_cu,
    equal("vendor_id") => vendor_id,
    equal("device_id") => device_id,
    equal("num_sdma_engines") => num_sdma_engines,
    equal("num_sdma_xgmi_engines") => num_sdma_xgmi_engines,
    equal("num_sdma_queues_per_engine") => num_sdma_queues_per_engine,
    equal("num_cp_queues") => num_cp_queues,
    equal("num_xcc") => num_xcc,
    unless(equal("capability"), Switch::Capability) => capability,
    unless(at_least("num_gws"), Switch::NumGws) => num_gws,
    unless(at_least("caches_count"), Switch::CachesCount) => caches_count,
    unless(at_least("fw_version"), Switch::FwVersion) => fw_version,
    unless(at_least("sdma_fw_version"), Switch::SdmaFwVersion) => sdma_fw_version,
};

/// Of a GPU otherwise.
const MORE: [Row; 4] = [
    // Save areas are made to measure and their bytes come back as they were. Older kernels do not print the sizes.
    (equal("cwsr_size"), |node| known(node.properties.cwsr_size)),
    (equal("ctl_stack_size"), |node| known(node.properties.ctl_stack_size)),
    (equal("vram_public"), |node| {
        Some(u64::from(node.mem_banks.iter().any(|bank| bank.heap_type == HEAP_TYPE_FB_PUBLIC)))
    }),
    (unless(at_least("vram_bytes"), Switch::VramSize), |node| Some(node.vram_bytes())),
];

/// Zero is what a kernel prints that computed nothing.
fn known(bytes: Option<u32>) -> Option<u64> {
    bytes.filter(|bytes| *bytes != 0).map(u64::from)
}

fn rows() -> impl Iterator<Item = &'static Row> {
    PROPERTIES.iter().chain(&MORE)
}

/// Every rule.
pub fn rules() -> impl Iterator<Item = Rule> {
    rows().map(|(rule, _)| *rule).chain(OTHERS)
}

/// The rules that compare one number of a GPU with one number of another.
pub(super) fn numbers() -> impl Iterator<Item = Rule> {
    rows().map(|(rule, _)| *rule).chain([KFD_MAJOR, KFD_MINOR])
}

/// What is remembered of a GPU, by the properties' names.
pub(super) fn read(node: &Node) -> BTreeMap<String, u64> {
    rows().filter_map(|(rule, value)| Some((rule.property.to_owned(), value(node)?))).collect()
}

impl Rule {
    /// Whether one number may take another's place.
    pub(super) fn holds(&self, had: u64, here: u64) -> bool {
        match self.relation {
            Relation::AtLeast => here >= had,
            Relation::Equal | Relation::Together => here == had,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const DOCUMENT: &str = include_str!("../../../../docs/admission.md");

    /// The rows of the document's first table: property, rule, switch.
    fn documented() -> Vec<[String; 3]> {
        let cells = |line: &str| -> Option<[String; 3]> {
            let mut cells = line.strip_prefix("| `")?.split('|').map(|cell| cell.trim().replace('`', ""));
            Some([cells.next()?, cells.next()?, cells.next()?])
        };
        DOCUMENT.lines().filter_map(cells).collect()
    }

    #[test]
    fn document_and_code_have_the_same_rules() {
        let switch = |rule: &Rule| match rule.staged {
            true => "--allow-staged".to_owned(),
            false => rule.switch.map_or("none", Switch::variable).to_owned(),
        };
        let coded: BTreeSet<_> = rules()
            .map(|rule| [rule.property.to_owned(), rule.relation.to_string(), switch(&rule)])
            .collect();
        let rows = documented();
        let written: BTreeSet<_> = rows.iter().cloned().collect();
        assert_eq!(written, coded);
        assert_eq!((rows.len(), rules().count()), (coded.len(), coded.len()), "a row is there twice");
    }

    #[test]
    fn no_rule_is_turned_off_in_two_ways() {
        assert!(rules().all(|rule| !(rule.staged && rule.switch.is_some())));
    }

    #[test]
    fn every_switch_has_a_rule() {
        for switch in Switch::ALL {
            assert_eq!(rules().filter(|rule| rule.switch == Some(switch)).count(), 1, "{switch}");
        }
    }
}
