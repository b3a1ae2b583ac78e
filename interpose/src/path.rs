// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which paths concern the driver, and where their files are in the run's directory.
//!
//! INVARIANT: nothing here allocates: a signal handler may open a file.

use std::ffi::CStr;

/// Bytes of the longest path, its zero byte included.
pub(crate) const PATH_BYTES: usize = 4096;

/// Paths that are the run's, whether or not there is such a file; with all below them.
const CLAIMED: [&[u8]; 6] = [
    b"/dev/dri",
    b"/sys/devices/virtual/kfd",
    b"/sys/class/kfd",
    b"/sys/class/drm",
    b"/sys/module/amdgpu",
    b"/proc/modules",
];

/// As [`CLAIMED`], by their beginning: the numbers of DRM's devices.
const CLAIMED_BEGINNING: &[u8] = b"/sys/dev/char/226:";

/// A path with its zero byte.
#[derive(Debug)]
pub(crate) struct PathBuffer {
    bytes: [u8; PATH_BYTES],
    length: usize,
}

impl PathBuffer {
    const fn new() -> Self {
        Self { bytes: [0; PATH_BYTES], length: 0 }
    }

    /// Appends; false if there is no room for it and a zero byte.
    fn push(&mut self, more: &[u8]) -> bool {
        let end = self.length + more.len();
        if end >= PATH_BYTES {
            return false;
        }
        self.bytes[self.length..end].copy_from_slice(more);
        self.length = end;
        true
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The path as the C library wants it.
    pub(crate) fn as_c_str(&self) -> &CStr {
        // A path has no zero byte inside, and the buffer one behind it.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

/// What a path means.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// The driver's device file.
    Kfd,
    /// A render node with this path.
    Render(PathBuffer),
    /// A file of the run's directory, whether or not it exists; this is the part below the directory.
    Claimed(PathBuffer),
    /// A file of the run's directory if there is one.
    Shared(PathBuffer),
}

/// What `path` means; `None` for a path that has nothing to do with the driver.
pub(crate) fn meaning(path: &[u8]) -> Option<Meaning> {
    let plain = plain(path)?;
    let bytes = plain.bytes();
    if bytes == b"/dev/kfd" {
        return Some(Meaning::Kfd);
    }
    if bytes.strip_prefix(b"/dev/dri/renderD").is_some_and(is_number) {
        return Some(Meaning::Render(plain));
    }
    let below = |claimed: &&[u8]| {
        bytes.strip_prefix(*claimed).is_some_and(|rest| rest.first().is_none_or(|first| *first == b'/'))
    };
    if CLAIMED.iter().any(below) || bytes.starts_with(CLAIMED_BEGINNING) {
        return Some(Meaning::Claimed(plain));
    }
    bytes.starts_with(b"/sys/").then_some(Meaning::Shared(plain))
}

/// The path of a device file that `name` would name in the directory `/dev/dri` or `/dev`.
pub(crate) fn is_device_name(name: &[u8]) -> bool {
    let name = name.strip_prefix(b"./").unwrap_or(name);
    let name = name.strip_prefix(b"dri/").unwrap_or(name);
    name == b"kfd" || name.strip_prefix(b"renderD").is_some_and(is_number)
}

/// `directory` and `name` as one path, if it is short enough.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Option<PathBuffer> {
    let mut joined = PathBuffer::new();
    (joined.push(directory) && joined.push(name)).then_some(joined)
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

/// Whether a path may mean something. Cheap, since every path of the program comes here.
pub(crate) fn may_concern(path: &[u8]) -> bool {
    let Some(slashes) = path.iter().position(|byte| *byte != b'/') else { return false };
    let rest = &path[slashes..];
    slashes > 0
        && (rest.starts_with(b"dev/")
            || rest.starts_with(b"sys/")
            || rest.starts_with(b"proc/modules")
            || rest.starts_with(b"./"))
}

/// The path without repeated slashes, `.` and `..`, as its text says: the directories in question are no symbolic links.
fn plain(path: &[u8]) -> Option<PathBuffer> {
    let mut plain = PathBuffer::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let parent = plain.bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                plain.length = parent;
            }
            part => {
                if !(plain.push(b"/") && plain.push(part)) {
                    return None;
                }
            }
        }
    }
    plain.bytes[plain.length..].fill(0);
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str) -> String {
        let shown = |path: &PathBuffer| path.as_c_str().to_str().unwrap().to_owned();
        let meant = Some(path.as_bytes()).filter(|path| may_concern(path)).and_then(meaning);
        match meant {
            None => "-".to_owned(),
            Some(Meaning::Kfd) => "kfd".to_owned(),
            Some(Meaning::Render(path)) => format!("render {}", shown(&path)),
            Some(Meaning::Claimed(path)) => format!("claimed {}", shown(&path)),
            Some(Meaning::Shared(path)) => format!("shared {}", shown(&path)),
        }
    }

    #[test]
    fn device_files_are_known_however_they_are_written() {
        for path in ["/dev/kfd", "//dev//kfd", "/dev/./kfd", "/dev/dri/../kfd", "/./dev/kfd"] {
            assert_eq!(text(path), "kfd", "{path}");
        }
        assert_eq!(text("/dev/dri/renderD128"), "render /dev/dri/renderD128");
        assert_eq!(text("/dev//dri/./renderD7"), "render /dev/dri/renderD7");
        for path in ["/dev/kfd2", "/dev/kfd/x", "dev/kfd", "kfd", "", "/", "/dev", "/home/dev/kfd"] {
            assert_eq!(text(path), "-", "{path}");
        }
    }

    #[test]
    fn claimed_paths_are_whole_names() {
        assert_eq!(text("/dev/dri"), "claimed /dev/dri");
        assert_eq!(text("/dev/dri/"), "claimed /dev/dri");
        assert_eq!(text("/dev/dri/card0"), "claimed /dev/dri/card0");
        assert_eq!(text("/dev/dri/renderD"), "claimed /dev/dri/renderD");
        assert_eq!(text("/dev/drill"), "-");
        assert_eq!(text("/sys/class/../class/drm/card0"), "claimed /sys/class/drm/card0");
        assert_eq!(text("/sys/dev/char/226:128/device"), "claimed /sys/dev/char/226:128/device");
        assert_eq!(text("/sys/dev/char/22:1"), "shared /sys/dev/char/22:1");
        assert_eq!(text("/sys/bus/pci/devices/0000:03:00.0"), "shared /sys/bus/pci/devices/0000:03:00.0");
        assert_eq!(text("/proc/modules"), "claimed /proc/modules");
        assert_eq!(text("/proc/modules2"), "-");
        assert_eq!(text("/sys/../../sys/module/amdgpu/initstate"), "claimed /sys/module/amdgpu/initstate");
    }

    #[test]
    fn paths_that_are_too_long_belong_to_the_c_library() {
        let long = format!("/sys/{}", "a".repeat(PATH_BYTES));
        assert_eq!(text(&long), "-");
        assert!(join(b"/tmp", long.as_bytes()).is_none());
        assert_eq!(join(b"/run", b"/sys/x").unwrap().as_c_str(), c"/run/sys/x");
    }

    #[test]
    fn names_in_a_directory_of_devices() {
        for (name, wanted) in [
            ("kfd", true),
            ("./renderD128", true),
            ("dri/renderD1", true),
            ("renderDx", false),
            ("kfd2", false),
        ] {
            assert_eq!(is_device_name(name.as_bytes()), wanted, "{name}");
        }
    }
}
