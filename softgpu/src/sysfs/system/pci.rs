// SPDX-License-Identifier: MIT OR Apache-2.0
//! The PCI device of a GPU, with what amdgpu adds to it (`pci-sysfs.c`, `amdgpu_vram_mgr.c`, `amdgpu_pm.c`).
//!
//! INVARIANT: the ids are those of the topology's properties, and no two GPUs have memory apertures in common.

use super::entries::Entries;
use super::module::DRIVER;
use crate::sysfs::host::Host;
use crate::sysfs::machine::Machine;
use crate::sysfs::model::GpuModel;
use crate::sysfs::tree::VENDOR_AMD;

/// Bytes of the configuration space that anybody may read.
const CONFIG_BYTES: usize = 256;
/// Where bridges put the apertures of VRAM: one TiB each, the most that a card can have.
const VRAM_BASE: u64 = 1 << 40;
const DOORBELL_BASE: u64 = 0x70_0000_0000;
const DOORBELL_BYTES: u64 = 2 << 20;
const REGISTER_BASE: u64 = 0xe000_0000;
const REGISTER_BYTES: u64 = 1 << 20;
/// `IORESOURCE_*` of a 64-bit prefetchable and of a plain memory BAR.
const WIDE_MEMORY: u64 = 0x14_220c;
const MEMORY: u64 = 0x4_0200;
/// Lines of `resource` for a device that is no bridge: six BARs, the ROM, six of virtual functions.
const RESOURCES: usize = 13;
/// MB/s of a lane, by generation, as `amdgpu_amdkfd_get_pcie_bandwidth_mbytes` has them, and their names.
const SPEEDS: [(u32, &str); 5] = [
    (250, "2.5 GT/s PCIe"),
    (500, "5.0 GT/s PCIe"),
    (1000, "8.0 GT/s PCIe"),
    (2000, "16.0 GT/s PCIe"),
    (4000, "32.0 GT/s PCIe"),
];
const LANES: u32 = 16;

/// A memory aperture: first address, bytes, flags.
#[derive(Clone, Copy, Debug, Default)]
struct Bar {
    start: u64,
    bytes: u64,
    flags: u64,
}

/// Adds the device and the links to it. Returns its directory.
pub(super) fn add(entries: &mut Entries, machine: &Machine, gpu: &GpuModel, host: &Host) -> String {
    let slot = gpu.slot.to_string();
    let root = format!("pci{:04x}:{:02x}", gpu.domain(), gpu.location_id() >> 8);
    let device = format!("sys/devices/{root}/{slot}");
    identity(entries, &device, gpu);
    place(entries, &device, machine, gpu, host);
    memory(entries, &device, machine, gpu, host);
    let monitor = format!("{device}/hwmon/hwmon{}", gpu.index());
    entries.file(format!("{monitor}/name"), "amdgpu\n");
    entries.link(format!("{monitor}/device"), &device);
    entries.link(format!("sys/class/hwmon/hwmon{}", gpu.index()), &monitor);
    entries.link(format!("{device}/subsystem"), "sys/bus/pci");
    entries.link(format!("{device}/driver"), DRIVER);
    entries.link(format!("{DRIVER}/{slot}"), &device);
    entries.link(format!("sys/bus/pci/devices/{slot}"), &device);
    device
}

/// What it is.
fn identity(entries: &mut Entries, device: &str, gpu: &GpuModel) {
    let (chip, slot) = (gpu.chip, gpu.slot);
    let (subvendor, subdevice) = (chip.subsystem & 0xffff, chip.subsystem >> 16);
    let (class, revision) = (chip.pci_class, chip.pci_revision);
    let alias = format!(
        "pci:v{VENDOR_AMD:08X}d{:08X}sv{subvendor:08X}sd{subdevice:08X}bc{:02X}sc{:02X}i{:02X}",
        chip.device_id,
        class >> 16,
        class >> 8 & 0xff,
        class & 0xff
    );
    let uevent = format!(
        "DRIVER=amdgpu\nPCI_CLASS={class:04X}\nPCI_ID={VENDOR_AMD:04X}:{:04X}\n\
         PCI_SUBSYS_ID={subvendor:04X}:{subdevice:04X}\nPCI_SLOT_NAME={slot}\nMODALIAS={alias}\n",
        chip.device_id
    );
    for (name, text) in [
        ("vendor", format!("0x{VENDOR_AMD:04x}\n")),
        ("device", format!("0x{:04x}\n", chip.device_id)),
        ("subsystem_vendor", format!("0x{subvendor:04x}\n")),
        ("subsystem_device", format!("0x{subdevice:04x}\n")),
        ("revision", format!("0x{revision:02x}\n")),
        ("class", format!("0x{class:06x}\n")),
        ("modalias", format!("{alias}\n")),
        ("uevent", uevent),
        ("unique_id", format!("{:016x}\n", gpu.unique_id())),
        // No board has this one.
        ("vbios_version", format!("113-SOFTGPU-{}\n", chip.name)),
        ("enable", "1\n".to_owned()),
        ("power_state", "D0\n".to_owned()),
    ] {
        entries.file(format!("{device}/{name}"), text);
    }
}

/// Where it is and what leads there.
fn place(entries: &mut Entries, device: &str, machine: &Machine, gpu: &GpuModel, host: &Host) {
    let bars = bars(gpu);
    let resource = (0..RESOURCES).map(|at| {
        let Bar { start, bytes, flags } = bars.get(at).copied().unwrap_or_default();
        let end = if bytes == 0 { 0 } else { start + bytes - 1 };
        format!("0x{start:016x} 0x{end:016x} 0x{flags:016x}\n")
    });
    entries.file(format!("{device}/resource"), resource.collect::<String>());
    entries.file(format!("{device}/config"), config(gpu, &bars));
    let cpus = machine.cpus(host);
    // INVARIANT: a GPU's NUMA node is one of the machine's.
    let cores = cpus.get(gpu.numa_node()).map_or((0, 1), |cpu| (cpu.first_core, cpu.cores));
    entries.file(format!("{device}/numa_node"), format!("{}\n", gpu.numa_node()));
    entries.file(format!("{device}/local_cpulist"), cpu_list(cores.0, cores.1));
    let (speed, width) = link(gpu.pcie.max);
    for kind in ["max", "current"] {
        entries.file(format!("{device}/{kind}_link_speed"), format!("{speed}\n"));
        entries.file(format!("{device}/{kind}_link_width"), format!("{width}\n"));
    }
}

/// What memory it has, and that it does nothing.
fn memory(entries: &mut Entries, device: &str, machine: &Machine, gpu: &GpuModel, host: &Host) {
    let gtt = machine.host(host).ttm_limit();
    for (name, value) in [
        ("mem_info_vram_total", gpu.vram_bytes()),
        ("mem_info_vram_used", 0),
        ("mem_info_vis_vram_total", gpu.visible_vram_bytes()),
        ("mem_info_vis_vram_used", 0),
        ("mem_info_gtt_total", gtt),
        ("mem_info_gtt_used", 0),
        ("mem_info_preempt_used", 0),
        ("gpu_busy_percent", 0),
        ("mem_busy_percent", 0),
    ] {
        entries.file(format!("{device}/{name}"), format!("{value}\n"));
    }
}

/// VRAM, doorbells, no I/O ports, registers.
fn bars(gpu: &GpuModel) -> [Bar; 6] {
    // CAST: widening; a machine has at most 16 GPUs.
    let index = gpu.index() as u64;
    let vram = Bar {
        start: VRAM_BASE * (1 + index),
        bytes: gpu.visible_vram_bytes().next_power_of_two(),
        flags: WIDE_MEMORY,
    };
    let doorbells =
        Bar { start: DOORBELL_BASE + DOORBELL_BYTES * index, bytes: DOORBELL_BYTES, flags: WIDE_MEMORY };
    let registers =
        Bar { start: REGISTER_BASE + REGISTER_BYTES * index, bytes: REGISTER_BYTES, flags: MEMORY };
    [vram, Bar::default(), doorbells, Bar::default(), Bar::default(), registers]
}

/// The standard header (PCI 3.0, 6.1), without capabilities.
fn config(gpu: &GpuModel, bars: &[Bar; 6]) -> Vec<u8> {
    let chip = gpu.chip;
    let mut bytes = vec![0; CONFIG_BYTES];
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(0x00, VENDOR_AMD | chip.device_id << 16);
    // Memory space, bus master.
    put(0x04, 0x0006);
    put(0x08, u32::from(chip.pci_revision) | chip.pci_class << 8);
    for (at, bar) in bars.iter().enumerate().filter(|(_, bar)| bar.bytes != 0) {
        let [low, high] = queues::words::words(bar.start);
        let register = 0x10 + 4 * at;
        if bar.flags == WIDE_MEMORY {
            put(register, low | 0xc);
            put(register + 4, high);
        } else {
            put(register, low);
        }
    }
    put(0x2c, chip.subsystem);
    bytes
}

fn cpu_list(first: u32, count: u32) -> String {
    match count {
        1 => format!("{first}\n"),
        _ => format!("{first}-{}\n", first + count.saturating_sub(1)),
    }
}

/// The fastest link of sixteen lanes that is no faster than so many MB/s, or as many lanes of the slowest.
fn link(mbytes: u32) -> (&'static str, u32) {
    let fits = |(lane, _): &&(u32, &str)| lane * LANES <= mbytes;
    match SPEEDS.iter().rev().find(fits) {
        Some((_, name)) => (name, LANES),
        None => (SPEEDS[0].1, 1 << (mbytes / SPEEDS[0].0).max(1).ilog2()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speed_and_width_follow_from_the_bandwidth() {
        assert_eq!(link(32_000), ("16.0 GT/s PCIe", 16));
        assert_eq!(link(16_000), ("8.0 GT/s PCIe", 16));
        assert_eq!(link(1000), ("2.5 GT/s PCIe", 4));
        assert_eq!(link(0), ("2.5 GT/s PCIe", 1));
    }

    #[test]
    fn apertures_of_many_gpus_do_not_overlap() {
        let gpus = GpuModel::parse_spec("gfx942*8,gfx1100*8").unwrap();
        let mut ranges: Vec<_> = gpus.iter().flat_map(bars).filter(|bar| bar.bytes != 0).collect();
        ranges.sort_by_key(|bar| bar.start);
        assert!(ranges.windows(2).all(|two| two[0].start + two[0].bytes <= two[1].start));
        assert!(ranges.iter().all(|bar| bar.start % bar.bytes == 0), "{ranges:x?}");
    }
}
