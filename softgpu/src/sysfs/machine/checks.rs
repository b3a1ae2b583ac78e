// SPDX-License-Identifier: MIT OR Apache-2.0
//! What no machine can be.
//!
//! INVARIANT: a refusal names the table, its position from 0, the key, what was found and what would do.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use super::super::description::Description;
use super::super::machine_error::MachineError;
use super::super::model::GpuModel;
use super::super::values::DISTANCES;

/// NUMA nodes a machine may have, and processors and memory of one.
const NUMA_NODES: usize = 16;
const CORES: RangeInclusive<u32> = 1..=4096;
const RAM_BYTES: RangeInclusive<u64> = 1 << 30..=1 << 44;
/// What a card may have; a MI300X has 192 GiB.
const VRAM_BYTES: RangeInclusive<u64> = 64 << 20..=1 << 40;
/// What a kernel may want of one XCC's part of a save area; real ones want whole pages below 100 MiB.
const SAVE_BYTES: RangeInclusive<u32> = 0..=1 << 28;
/// XCCs of a node; a bit each in a `PRED_EXEC` packet.
const XCCS: RangeInclusive<u32> = 1..=8;
/// Minors of render nodes.
const RENDER_MINORS: RangeInclusive<u32> = 128..=255;
/// What the CPU may read through a BAR in a second; real ones allow some tens of MB.
const BAR_READ_MBYTES: RangeInclusive<u32> = 1..=100_000;
const HOPS: RangeInclusive<u32> = 1..=8;
/// What ACPI can say: 255 is "not reachable".
const REMOTE: RangeInclusive<u32> = 11..=254;
const PAGE: u64 = 4096;

/// One entry of a table.
#[derive(Clone, Copy)]
struct Entry {
    table: &'static str,
    index: usize,
}

impl Entry {
    fn refuse(self, key: &'static str, found: impl Display, wanted: impl Display) -> MachineError {
        let Self { table, index } = self;
        MachineError::Value { table, index, key, found: found.to_string(), wanted: wanted.to_string() }
    }

    fn within<T: PartialOrd + Display>(
        self,
        key: &'static str,
        found: T,
        range: &RangeInclusive<T>,
    ) -> Result<(), MachineError> {
        if range.contains(&found) {
            return Ok(());
        }
        Err(self.refuse(key, found, format_args!("{} to {}", range.start(), range.end())))
    }

    /// An index into something that has `count`.
    fn below(self, key: &'static str, found: usize, count: usize, what: &str) -> Result<(), MachineError> {
        if found < count {
            return Ok(());
        }
        Err(self.refuse(key, found, format_args!("one of the {count} {what}, counted from 0")))
    }
}

/// Checks every number by itself and every index.
pub(super) fn numbers(description: &Description) -> Result<(), MachineError> {
    numa(description)?;
    for (index, gpu) in description.gpu.iter().enumerate() {
        let entry = Entry { table: "gpu", index };
        if let Some(bytes) = gpu.vram_bytes {
            entry.within("vram_bytes", bytes.0, &VRAM_BYTES)?;
            if !bytes.0.is_multiple_of(PAGE) {
                return Err(entry.refuse("vram_bytes", bytes.0, format_args!("a multiple of {PAGE}")));
            }
        }
        if let Some(mbytes) = gpu.bar_read_mbytes {
            entry.within("bar_read_mbytes", mbytes, &BAR_READ_MBYTES)?;
        }
        let nodes = description.numa.len().max(1);
        entry.below("numa_node", gpu.numa_node.unwrap_or(0), nodes, "NUMA nodes")?;
        entry.within("render_minor", gpu.render_minor.unwrap_or(*RENDER_MINORS.start()), &RENDER_MINORS)?;
        if gpu.hive.is_some_and(|hive| hive.0 == 0) {
            return Err(entry.refuse("hive", 0, "a number from 1; leave it out for a GPU without XGMI"));
        }
        entry.within("num_xcc", gpu.num_xcc.unwrap_or(1), &XCCS)?;
        for (key, bytes) in [("cwsr_size", gpu.cwsr_size), ("ctl_stack_size", gpu.ctl_stack_size)] {
            entry.within(key, bytes.unwrap_or(0), &SAVE_BYTES)?;
        }
        if let Some(pcie) = gpu.pcie_bandwidth.filter(|pcie| pcie.min > pcie.max) {
            let found = format_args!("[{}, {}]", pcie.min, pcie.max).to_string();
            return Err(entry.refuse("pcie_bandwidth", found, "the lesser one first"));
        }
    }
    pairs(description)
}

fn numa(description: &Description) -> Result<(), MachineError> {
    let nodes = description.numa.len();
    for (index, node) in description.numa.iter().enumerate() {
        let entry = Entry { table: "numa", index };
        entry.below("position", index, NUMA_NODES, "nodes that a machine can have")?;
        entry.within("cores", node.cores, &CORES)?;
        entry.within("memory", node.memory.0, &RAM_BYTES)?;
        let Some(row) = &node.distance else { continue };
        if row.len() != nodes {
            return Err(entry.refuse("distance", format_args!("{row:?}"), format_args!("{nodes} numbers")));
        }
        for (to, &distance) in row.iter().enumerate() {
            let range = if to == index { DISTANCES.0..=DISTANCES.0 } else { REMOTE };
            entry.within("distance", distance, &range)?;
        }
    }
    Ok(())
}

fn pairs(description: &Description) -> Result<(), MachineError> {
    let gpus = description.gpu.len();
    let mut linked: Vec<[usize; 2]> = Vec::new();
    for (index, link) in description.link.iter().enumerate() {
        let entry = Entry { table: "link", index };
        let [a, b] = link.gpus;
        entry.below("gpus", a.max(b), gpus, "GPUs")?;
        if a == b {
            return Err(entry.refuse("gpus", format_args!("[{a}, {b}]"), "two GPUs"));
        }
        entry.within("hops", link.hops.unwrap_or(1), &HOPS)?;
        if let Some(xgmi) = link.bandwidth.filter(|xgmi| xgmi.min > xgmi.max) {
            let found = format_args!("[{}, {}]", xgmi.min, xgmi.max).to_string();
            return Err(entry.refuse("bandwidth", found, "the lesser one first"));
        }
        let pair = [a.min(b), a.max(b)];
        if linked.contains(&pair) {
            return Err(MachineError::Again { table: "link", index, a, b });
        }
        linked.push(pair);
    }
    for (index, pair) in description.unreachable.iter().enumerate() {
        let entry = Entry { table: "unreachable", index };
        entry.below("from", pair.from, gpus, "GPUs")?;
        entry.below("to", pair.to, gpus, "GPUs")?;
        if pair.from == pair.to {
            return Err(entry.refuse("to", pair.to, "another GPU than from"));
        }
        if description.unreachable[..index].contains(pair) {
            return Err(MachineError::Again { table: "unreachable", index, a: pair.from, b: pair.to });
        }
    }
    Ok(())
}

/// Checks what depends on the chips' own numbers, and that no two GPUs have one identity.
pub(super) fn gpus(gpus: &[GpuModel]) -> Result<(), MachineError> {
    for gpu in gpus {
        let entry = Entry { table: "gpu", index: gpu.index };
        entry.within("bar", gpu.visible_bytes, &(PAGE..=gpu.vram_bytes))?;
    }
    distinct(gpus, "pci", |gpu| Some(gpu.slot.to_string()))?;
    distinct(gpus, "render_minor", |gpu| Some(gpu.render_minor.to_string()))?;
    // Boards without a serial number all say 0.
    distinct(gpus, "unique_id", |gpu| (gpu.unique_id != 0).then(|| format!("{:#018x}", gpu.unique_id)))
}

fn distinct(
    gpus: &[GpuModel],
    key: &'static str,
    value: impl Fn(&GpuModel) -> Option<String>,
) -> Result<(), MachineError> {
    let mut seen = BTreeMap::new();
    for gpu in gpus {
        let Some(found) = value(gpu) else { continue };
        if let Some(&first) = seen.get(&found) {
            return Err(MachineError::Twice { first, second: gpu.index, key, found });
        }
        seen.insert(found, gpu.index);
    }
    Ok(())
}
