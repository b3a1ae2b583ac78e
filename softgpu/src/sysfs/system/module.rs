// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver as a loaded module: `/sys/module/amdgpu`, `/proc/modules`, and where PCI lists it.
//!
//! rocminfo 6 reads `initstate` and `version`; rocminfo 5 runs `lsmod`, which reads `/proc/modules` and `holders`.

use super::SystemOptions;
use super::entries::Entries;
use crate::sysfs::machine::Machine;

pub(super) const MODULE: &str = "sys/module/amdgpu";
pub(super) const DRIVER: &str = "sys/bus/pci/drivers/amdgpu";

/// Size of the module in memory. Inferred: that of a distribution's kernel; it is only printed.
const BYTES: u32 = 15_650_816;

/// Parameters at their defaults (`amdgpu_drv.c`), those of KFD and of memory.
const PARAMETERS: [(&str, &str); 22] = [
    ("cwsr_enable", "1"),
    ("debug_evictions", "N"),
    ("debug_largebar", "0"),
    ("discovery", "-1"),
    ("dpm", "-1"),
    ("gpu_recovery", "-1"),
    ("gttsize", "-1"),
    ("halt_if_hws_hang", "0"),
    ("hws_gws_support", "N"),
    ("hws_max_conc_proc", "-1"),
    ("max_num_of_queues_per_device", "4096"),
    ("mtype_local", "0"),
    ("no_system_mem_limit", "N"),
    ("noretry", "-1"),
    ("queue_preemption_timeout_ms", "9000"),
    ("ras_enable", "-1"),
    ("sched_policy", "0"),
    ("send_sigterm", "0"),
    ("use_xgmi_p2p", "1"),
    ("vm_fragment_size", "-1"),
    ("vm_size", "-1"),
    ("vramlimit", "0"),
];

pub(super) fn add(entries: &mut Entries, machine: &Machine, options: &SystemOptions<'_>) {
    let users = 0;
    entries.file(format!("{MODULE}/initstate"), "live\n");
    entries.file(format!("{MODULE}/version"), format!("{}\n", options.driver_version));
    entries.file(format!("{MODULE}/refcnt"), format!("{users}\n"));
    entries.file(format!("{MODULE}/coresize"), format!("{BYTES}\n"));
    entries.directory(format!("{MODULE}/holders"));
    for (name, value) in PARAMETERS {
        entries.file(format!("{MODULE}/parameters/{name}"), format!("{value}\n"));
    }
    let peers = if machine.pcie_p2p() { "Y\n" } else { "N\n" };
    entries.file(format!("{MODULE}/parameters/pcie_p2p"), peers);
    entries.link(format!("{MODULE}/drivers/pci:amdgpu"), DRIVER);
    entries.link(format!("{DRIVER}/module"), MODULE);
    let line = format!("amdgpu {BYTES} {users} - Live 0x0000000000000000\n");
    let others = options.modules.lines().filter(|other| !other.starts_with("amdgpu "));
    let others: String = others.flat_map(|other| [other, "\n"]).collect();
    entries.file("proc/modules", line + &others);
}
