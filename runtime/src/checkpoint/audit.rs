// SPDX-License-Identifier: MIT OR Apache-2.0
//! The audit before a freeze: names every descriptor and mapping that would make CRIU refuse or silently split.
//!
//! Facts: `/dev/kfd` and render nodes cannot be dumped without a driver's help; io_uring and userfaultfd cannot be
//! dumped at all; a mapping of the device's memory would be copied as if it were private.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use crate::share::{InFlight, in_flight, is_dmabuf};

/// Something in this process that belongs to the device or that CRIU cannot take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// `fd 7` or `mapping 7f00-7f01`.
    pub place: String,
    /// What it is, as /proc names it.
    pub what: String,
    /// Why it is in the way.
    pub reason: &'static str,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {} ({})", self.place, self.what, self.reason)
    }
}

const DEVICE: &str = "a device file of the GPU";
const DEVICE_MEMORY: &str = "memory of the GPU";

fn judge(name: &str) -> Option<&'static str> {
    if name.starts_with("/dev/kfd")
        || name.starts_with("/dev/dri/")
        || name.starts_with("/memfd:softgpu-file")
    {
        Some(DEVICE)
    } else if name.starts_with("/memfd:softgpu") || is_dmabuf(name) || name.starts_with("anon_inode:dmabuf") {
        Some(DEVICE_MEMORY)
    } else if name.contains("[io_uring]") {
        Some("CRIU cannot dump io_uring")
    } else if name.contains("[userfaultfd]") {
        Some("CRIU cannot dump userfaultfd")
    } else {
        None
    }
}

/// Whether a descriptor or mapping of this name belongs to the device, and so goes when a checkpoint closes it.
#[must_use]
pub fn is_of_device(name: &str) -> bool {
    matches!(judge(name), Some(DEVICE | DEVICE_MEMORY))
}

/// Lists what must not be there when the process is frozen.
///
/// # Errors
/// When `/proc/self` cannot be read.
pub fn audit() -> io::Result<Vec<Culprit>> {
    let mut culprits = audit_process(Path::new("/proc/self"))?;
    let sent = |waiting: InFlight| Culprit {
        place: format!("the queue of socket fd {}", waiting.socket),
        what: format!("DMABuf {}", waiting.dmabuf),
        reason: DEVICE_MEMORY,
    };
    culprits.extend(in_flight()?.into_iter().map(sent));
    Ok(culprits)
}

/// The same of any process, by its directory in `/proc`.
///
/// # Errors
/// When that cannot be read.
pub fn audit_process(process: &Path) -> io::Result<Vec<Culprit>> {
    let mut culprits = Vec::new();
    for entry in fs::read_dir(process.join("fd"))? {
        let entry = entry?;
        // The descriptor of this very listing is gone by the time it is looked up.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let what = target.to_string_lossy().into_owned();
        if let Some(reason) = judge(&what) {
            let place = format!("fd {}", entry.file_name().to_string_lossy());
            culprits.push(Culprit { place, what, reason });
        }
    }
    for line in fs::read_to_string(process.join("maps"))?.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(what)) = (fields.next(), fields.nth(4)) else { continue };
        if let Some(reason) = judge(what) {
            culprits.push(Culprit { place: format!("mapping {range}"), what: what.to_owned(), reason });
        }
    }
    Ok(culprits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_names_device_memory_and_its_mapping() {
        let fd = kfd::linux::memfd("softgpu:vram", 4096, kfd::linux::SealFlag::empty()).unwrap();
        let memory = memmap2::MmapOptions::new().len(4096).map_raw_read_only(&fd).unwrap();
        let found = audit().unwrap();
        drop(memory);
        assert!(found.iter().any(|c| c.place.starts_with("fd ") && c.reason == DEVICE_MEMORY), "{found:?}");
        assert!(
            found.iter().any(|c| c.place.starts_with("mapping ") && c.reason == DEVICE_MEMORY),
            "{found:?}"
        );
    }
}
