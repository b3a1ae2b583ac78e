// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hardware blocks of a GPU with their versions: `ip_discovery` (`amdgpu_discovery.c:amdgpu_discovery_sysfs_ips`).
//!
//! INVARIANT: a block is there only if the device models it: compute, copy engines, the bus interface. No block has a
//! base address, because no register can be reached through the PCI device.

use super::entries::Entries;
use crate::sysfs::model::GpuModel;

/// Numbers of blocks (`soc15_hw_ip.h`).
const GC_HWID: u32 = 11;
const NBIF_HWID: u32 = 108;
/// The copy engines of chips that number each of them.
const SDMA_HWIDS: [u32; 4] = [42, 43, 68, 69];

/// Major, minor, revision.
type Version = (u32, u32, u32);

/// The blocks of a chip, beside those whose versions AMDGPU_INFO tells, too.
#[derive(Debug)]
struct Blocks {
    chip: &'static str,
    nbif: Version,
    /// Whether all copy engines are instances of one block; else each is a block of its own.
    sdma_instances: bool,
}

/// NBIF, which `amdgpu_discovery.c` calls NBIO too. It knows 4.3.0 and 4.3.1 of gfx11's cards, the latter since it knows gfx1102's
/// compute engine ("add nbio 4.3 support for NBIO 4.3.1", one of the patches for GC 11.0.2), 6.3.1 of gfx12's (`nbif_v6_3_1.c`),
/// and 7.9.0 of gfx942 (`nbio_v7_9.c`); Aldebaran's it has in a table of its own. gfx1101's is inferred from gfx1100's.
/// Aldebaran's driver may show no `ip_discovery` at all; programs that look there find it here.
const BLOCKS: [Blocks; 6] = [
    blocks("gfx1100", (4, 3, 0)),
    blocks("gfx1101", (4, 3, 0)),
    blocks("gfx1102", (4, 3, 1)),
    blocks("gfx1201", (6, 3, 1)),
    blocks("gfx90a", (7, 4, 4)),
    Blocks { sdma_instances: true, ..blocks("gfx942", (7, 9, 0)) },
];

const fn blocks(chip: &'static str, nbif: Version) -> Blocks {
    Blocks { chip, nbif, sdma_instances: false }
}

/// A block: number, name, version, instances.
type Block = (u32, String, Version, u32);

fn of(gpu: &GpuModel) -> Vec<Block> {
    let Some(blocks) = BLOCKS.iter().find(|blocks| blocks.chip == gpu.name()) else { return Vec::new() };
    let (gc, sdma) = (gpu.compute_engine().hardware, gpu.copy_engine().hardware);
    let mut all = vec![(GC_HWID, "GC".to_owned(), gc, gpu.shape().num_xcc)];
    let engines = gpu.sdma_engines() + gpu.sdma_xgmi_engines();
    if blocks.sdma_instances {
        all.push((SDMA_HWIDS[0], "SDMA0".to_owned(), sdma, engines));
    } else {
        let own = (0..engines).zip(SDMA_HWIDS);
        all.extend(own.map(|(at, id)| (id, format!("SDMA{at}"), sdma, 1)));
    }
    all.push((NBIF_HWID, "NBIF".to_owned(), blocks.nbif, 1));
    all
}

/// Adds the directory to the PCI device `device`.
pub(super) fn add(entries: &mut Entries, device: &str, gpu: &GpuModel) {
    let die = format!("{device}/ip_discovery/die/0");
    let blocks = of(gpu);
    let count: u32 = blocks.iter().map(|(.., instances)| instances).sum();
    entries.file(format!("{die}/num_ips"), format!("{count}\n"));
    for (id, name, (major, minor, revision), instances) in blocks {
        entries.link(format!("{die}/{name}"), &format!("{die}/{id}"));
        for instance in 0..instances {
            let at = format!("{die}/{id}/{instance}");
            for (attribute, value) in [
                ("hw_id", id.to_string()),
                ("num_instance", instance.to_string()),
                ("major", major.to_string()),
                ("minor", minor.to_string()),
                ("revision", revision.to_string()),
                ("harvest", "0x0".to_owned()),
                ("num_base_addresses", "0".to_owned()),
            ] {
                entries.file(format!("{at}/{attribute}"), format!("{value}\n"));
            }
            entries.file(format!("{at}/base_addr"), "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use queues::target::Target;

    #[test]
    fn every_chip_has_blocks_of_its_generation() {
        for blocks in &BLOCKS {
            let target = Target::by_name(blocks.chip).unwrap();
            let found = of(&GpuModel::parse_spec(blocks.chip).unwrap()[0]);
            assert_eq!(found[0].2.0, target.gfx_version / 10_000, "{}", blocks.chip);
        }
    }

    #[test]
    fn known_chips_are_those_of_the_table() {
        for chip in crate::sysfs::chips::known().split(", ") {
            assert!(BLOCKS.iter().any(|blocks| blocks.chip == chip), "{chip}");
        }
    }

    #[test]
    fn copy_engines_are_blocks_or_instances() {
        let of_chip = |chip: &str| of(&GpuModel::parse_spec(chip).unwrap()[0]);
        let ids = |chip: &str| of_chip(chip).iter().map(|block| (block.0, block.3)).collect::<Vec<_>>();
        assert_eq!(ids("gfx1100"), [(11, 1), (42, 1), (43, 1), (108, 1)]);
        assert_eq!(ids("gfx942"), [(11, 8), (42, 16), (108, 1)]);
    }
}
