// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary and the render node of a GPU, and the ways to them: `/sys/class/drm`, `/sys/dev/char`, `/dev/dri`.
//!
//! libdrm goes from a descriptor's device number through `dev/char` to the PCI device; it takes two GPUs for one if that
//! way is missing (`xf86drm.c:drmGetDevice2`, `drmGetMinorNameForFD`).

use super::entries::Entries;
use crate::sysfs::model::GpuModel;

/// `DRM_MAJOR`.
const MAJOR: u32 = 226;

/// Adds the nodes to the PCI device `device`.
pub(super) fn add(entries: &mut Entries, device: &str, gpu: &GpuModel) {
    let nodes = [("card", "card", gpu.card_minor()), ("renderD", "render", gpu.render_minor())];
    for (prefix, kind, minor) in nodes {
        let name = format!("{prefix}{minor}");
        let node = format!("{device}/drm/{name}");
        entries.file(format!("{node}/dev"), format!("{MAJOR}:{minor}\n"));
        entries.file(
            format!("{node}/uevent"),
            format!("MAJOR={MAJOR}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor\n"),
        );
        entries.link(format!("{node}/device"), device);
        entries.link(format!("{node}/subsystem"), "sys/class/drm");
        entries.link(format!("sys/class/drm/{name}"), &node);
        entries.link(format!("sys/dev/char/{MAJOR}:{minor}"), &node);
        entries.device(format!("dev/dri/{name}"));
        entries.link(format!("dev/dri/by-path/pci-{}-{kind}", gpu.slot), &format!("dev/dri/{name}"));
    }
}
