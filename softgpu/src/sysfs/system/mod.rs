// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs read of the machine below `/sys`, `/dev` and `/proc`, the topology included, as a tree in memory.
//!
//! Which program reads what: libhsakmt the topology; libdrm `dev/char`, the PCI device's ids and `/dev/dri`; tinygrad
//! `ip_discovery`; rocminfo the module; `rocm_smi_lib` `class/drm`, `class/hwmon` and the sizes of memory.
//!
//! INVARIANT: every symbolic link is relative and leads to an entry of the tree, so the tree works below any directory.

mod drm;
mod entries;
mod ip_discovery;
mod module;
mod pci;
#[cfg(test)]
mod tests;
mod write;

use std::path::Path;

pub use write::WriteTreeError;

use self::entries::Entries;
use super::host::Host;
use super::machine::Machine;
use super::tree::SysfsTree;

/// KFD's device number. Its major is a dynamic one (`register_chrdev` of `kfd_chardev.c`); this is the first that Linux
/// gives out when those from 234 to 254 are taken.
const KFD_DEVICE: &str = "511:0";
const KFD_DIRECTORY: &str = "sys/devices/virtual/kfd/kfd";

/// All entries, by path without leading slash.
#[derive(Clone, Debug)]
pub struct SystemTree {
    entries: Entries,
}

/// What the tree says beyond the machine.
#[derive(Clone, Debug)]
pub struct SystemOptions<'a> {
    /// The version of amdgpu.
    pub driver_version: &'a str,
    /// `/proc/modules` of this host; empty if it has none.
    pub modules: &'a str,
}

impl SystemTree {
    /// The files of a machine, for whose CPUs this host stands in where it does not describe them.
    pub fn new(machine: &Machine, options: &SystemOptions<'_>) -> Self {
        Self::with_host(machine, &Host::read(), options)
    }

    /// The files of a machine on a described host.
    pub fn with_host(machine: &Machine, host: &Host, options: &SystemOptions<'_>) -> Self {
        let mut entries = Entries::default();
        add_kfd(&mut entries, &SysfsTree::with_host(machine, host));
        module::add(&mut entries, machine, options);
        entries.file("sys/class/drm/version", "drm 1.1.0 20060810\n");
        for gpu in machine.gpus() {
            let device = pci::add(&mut entries, machine, gpu, host);
            ip_discovery::add(&mut entries, &device, gpu);
            drm::add(&mut entries, &device, gpu);
        }
        Self { entries }
    }

    /// Writes the tree into an existing, empty directory. After an error a part of it may be there.
    ///
    /// # Errors
    /// [`WriteTreeError`].
    pub fn write(&self, directory: &Path) -> Result<(), WriteTreeError> {
        write::write(&self.entries, directory)
    }
}

fn add_kfd(entries: &mut Entries, topology: &SysfsTree) {
    for list in topology.lists() {
        entries.directory(format!("{KFD_DIRECTORY}/topology/{list}"));
    }
    for (path, text) in topology.files() {
        entries.file(format!("{KFD_DIRECTORY}/topology/{path}"), text);
    }
    let (major, minor) = KFD_DEVICE.split_once(':').unwrap_or((KFD_DEVICE, "0"));
    entries.file(format!("{KFD_DIRECTORY}/dev"), format!("{KFD_DEVICE}\n"));
    entries.file(format!("{KFD_DIRECTORY}/uevent"), format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=kfd\n"));
    entries.link(format!("{KFD_DIRECTORY}/subsystem"), "sys/class/kfd");
    entries.link("sys/class/kfd/kfd", KFD_DIRECTORY);
    entries.link(format!("sys/dev/char/{KFD_DEVICE}"), KFD_DIRECTORY);
    entries.device("dev/kfd");
}
