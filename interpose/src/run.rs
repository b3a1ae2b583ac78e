// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run that this process belongs to, as its environment says.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

use kfd::transport::run::{DEVICES_VARIABLE, DIRECTORY_VARIABLE, SOCKET_VARIABLE};
use nix::libc::dev_t;
use nix::sys::stat::makedev;

use crate::busy;

/// DRM's major number (`drm_drv.h`).
const DRM_MAJOR: u64 = 226;

/// Where the run's directory says what numbers `/dev/kfd` has.
const KFD_NUMBERS: &str = "sys/devices/virtual/kfd/kfd/dev";

/// A run of `stasis run`.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its directory, with the files of the machine.
    pub(crate) directory: Vec<u8>,
    /// The abstract socket of its device.
    pub(crate) socket: String,
    /// The devices that it asks for there.
    pub(crate) devices: String,
    /// The numbers of `/dev/kfd`.
    kfd: dev_t,
}

impl Run {
    /// The run of these variables; `None` if one of them is missing.
    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let text = |name| variable(name)?.into_string().ok().filter(|text| !text.is_empty());
        let directory = variable(DIRECTORY_VARIABLE).filter(|path| !path.is_empty())?;
        let numbers = std::fs::read_to_string(std::path::Path::new(&directory).join(KFD_NUMBERS));
        let (major, minor) = numbers.ok().as_deref().and_then(parse_numbers).unwrap_or((0, 0));
        Some(Self {
            kfd: makedev(major, minor),
            directory: directory.into_vec(),
            socket: text(SOCKET_VARIABLE)?,
            devices: text(DEVICES_VARIABLE)?,
        })
    }

    /// The device number of `/dev/kfd`, or of a render node.
    pub(crate) fn number(&self, path: &[u8]) -> dev_t {
        let minor = path.strip_prefix(b"/dev/dri/renderD").and_then(|minor| std::str::from_utf8(minor).ok());
        minor.and_then(|minor| minor.parse().ok()).map_or(self.kfd, |minor| makedev(DRM_MAJOR, minor))
    }
}

fn parse_numbers(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The run of this process. Without one, or while this thread is inside the library, its calls are the C library's.
pub(crate) fn current() -> Option<&'static Run> {
    static RUN: OnceLock<Option<Run>> = OnceLock::new();
    if busy::is_inside() {
        return None;
    }
    if let Some(known) = RUN.get() {
        return known.as_ref();
    }
    busy::inside(|| RUN.get_or_init(|| Run::of(|name| std::env::var_os(name))).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_needs_all_of_its_variables() {
        let directory = tempfile::tempdir().unwrap();
        let all = [
            (DIRECTORY_VARIABLE, directory.path().to_str().unwrap().to_owned()),
            (SOCKET_VARIABLE, "name".to_owned()),
            (DEVICES_VARIABLE, "gfx1100".to_owned()),
        ];
        let of = |given: &[(&str, String)]| {
            Run::of(|name| given.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        let run = of(&all).unwrap();
        assert_eq!((run.socket.as_str(), run.devices.as_str()), ("name", "gfx1100"));
        for missing in 0..all.len() {
            let mut some = all.to_vec();
            some.remove(missing);
            assert!(of(&some).is_none(), "{missing}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_tree_and_of_drm() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("sys/devices/virtual/kfd/kfd")).unwrap();
        std::fs::write(directory.path().join(KFD_NUMBERS), "235:0\n").unwrap();
        let run = Run::of(|name| match name {
            DIRECTORY_VARIABLE => Some(directory.path().into()),
            _ => Some("x".into()),
        });
        let run = run.unwrap();
        assert_eq!(run.number(b"/dev/kfd"), makedev(235, 0));
        assert_eq!(run.number(b"/dev/dri/renderD129"), makedev(226, 129));
    }
}
