// SPDX-License-Identifier: MIT OR Apache-2.0
//! Refuses to dump a process with an agent that still has its device, and names the device.
//!
//! A process has its device at this time in two cases: another plugin answered `PAUSE_DEVICES` first, or the process
//! took its device back before it was frozen.

use std::fmt;
use std::fs;
use std::sync::Mutex;

use stasis::checkpoint::{Culprit, audit_process};
use thiserror::Error;

use crate::process::{Process, find, proc_directory};
use crate::settings::LEASE;
use crate::tree;

/// A process with an agent is about to be dumped with its device.
#[derive(Debug, Error)]
#[error("Process {pid} still has its device: {}. {why}. It is not dumped and runs on", list(culprits))]
pub(crate) struct Leak {
    pid: i32,
    culprits: Vec<Culprit>,
    why: Why,
}

/// Why the process has its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// This plugin was not asked, or was asked before the process had an agent.
    NotAsked,
    /// The process had closed its device before.
    TakenBack,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => f.write_str(
                "PAUSE_DEVICES did not reach this plugin: another one in the plugin directory answers it with 0 \
                 instead of -ENOTSUP; give criu a directory (-L) without that one",
            ),
            Self::TakenBack => write!(f, "It took its device back before it was frozen: give it more time ({LEASE})"),
        }
    }
}

fn list(culprits: &[Culprit]) -> String {
    const SHOWN: usize = 4;
    let mut text = culprits.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if culprits.len() > SHOWN {
        text.push_str(&format!(" and {} more", culprits.len() - SHOWN));
    }
    text
}

/// Makes sure that a frozen process with an agent has no device.
pub(crate) fn check(process: &Process, was_asked: bool) -> Result<(), Leak> {
    // A process that cannot be looked at cannot be dumped either.
    let culprits = audit_process(&proc_directory(process.pid)).unwrap_or_default();
    if culprits.is_empty() {
        return Ok(());
    }
    let why = if was_asked { Why::TakenBack } else { Why::NotAsked };
    Err(Leak { pid: process.pid, culprits, why })
}

/// The devices that processes with an agent hold, by pid. All processes are frozen when the list is made, so it stays
/// true.
static HELD: Mutex<Option<Vec<(i32, Culprit)>>> = Mutex::new(None);

/// Forgets the list: the next dump of this CRIU is of other processes.
pub(crate) fn forget() {
    *HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
}

fn held() -> Vec<(i32, Culprit)> {
    let ours = tree::traced().into_iter().filter_map(find);
    ours.flat_map(|process| {
        let culprits = audit_process(&proc_directory(process.pid)).unwrap_or_default();
        culprits.into_iter().map(move |culprit| (process.pid, culprit))
    })
    .collect()
}

/// Refuses a file that CRIU does not know, if it is the device of a process with an agent; all other files belong to
/// other plugins.
pub(crate) fn refuse_device(fd: i32) -> Result<(), Leak> {
    let Ok(file) = fs::read_link(format!("/proc/self/fd/{fd}")) else { return Ok(()) };
    let mut known = HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let held = known.get_or_insert_with(held);
    match held.iter().find(|(_, culprit)| file.as_os_str() == culprit.what.as_str()) {
        None => Ok(()),
        Some((pid, culprit)) => Err(Leak { pid: *pid, culprits: vec![culprit.clone()], why: Why::NotAsked }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    #[test]
    fn device_of_ours_is_refused_by_name_and_others_are_not() {
        let device = memfd_create("softgpu:vram", MFdFlags::MFD_CLOEXEC).unwrap();
        let own = std::process::id().cast_signed();
        let process = Process { pid: own, own_pid: own, uid: 0, gid: 0 };
        let leak = check(&process, true).unwrap_err();
        assert_eq!((leak.pid, leak.why), (own, Why::TakenBack));
        let text = leak.to_string();
        assert!(text.contains(&format!("fd {}", device.as_raw_fd())) && text.contains(LEASE), "{text}");
        assert!(check(&process, false).unwrap_err().to_string().contains("PAUSE_DEVICES"));

        let culprits = leak.culprits.into_iter().map(|culprit| (own, culprit)).collect();
        *HELD.lock().unwrap() = Some(culprits);
        let error = refuse_device(device.as_raw_fd()).unwrap_err();
        assert!(error.to_string().contains("memfd:softgpu"), "{error}");
        let foreign = std::fs::File::open("/dev/null").unwrap();
        refuse_device(foreign.as_raw_fd()).unwrap();
        refuse_device(i32::MAX).unwrap();
    }

    #[test]
    fn long_lists_are_cut() {
        let culprit =
            |n: u32| Culprit { place: format!("fd {n}"), what: "/dev/kfd".into(), reason: "a device" };
        let text = list(&(0..6).map(culprit).collect::<Vec<_>>());
        assert!(text.contains("fd 3 is /dev/kfd") && text.ends_with("and 2 more"), "{text}");
    }
}
