// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this program itself may do, and the CRIU it would call.

use std::fs;
use std::path::PathBuf;

use kfd::linux::has_attribute;
use nix::sys::resource::{Resource, getrlimit};

use super::finding::{Finding, Severity};
use super::scene::Scene;
use super::shared;
use super::tree::{Process, field};

/// CAP_DAC_READ_SEARCH.
pub const CAP_DAC_READ_SEARCH: u32 = 2;
/// CAP_SETPCAP.
pub const CAP_SETPCAP: u32 = 8;
/// CAP_NET_ADMIN.
pub const CAP_NET_ADMIN: u32 = 12;
/// CAP_SYS_PTRACE.
pub const CAP_SYS_PTRACE: u32 = 19;
/// CAP_SYS_ADMIN.
pub const CAP_SYS_ADMIN: u32 = 21;
/// CAP_CHECKPOINT_RESTORE.
pub const CAP_CHECKPOINT_RESTORE: u32 = 40;

/// This program's rights.
#[derive(Clone, Debug)]
pub struct Own {
    /// Effective user.
    pub uid: u32,
    /// Effective capabilities.
    pub capabilities: u64,
    /// `/proc/sys/kernel/yama/ptrace_scope`; 0 where there is none.
    pub ptrace_scope: u32,
    /// The CRIU that would be called, or why there is none.
    pub criu: Result<PathBuf, String>,
}

impl Own {
    /// As it is now.
    pub fn here(criu: Result<PathBuf, String>) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = field(&status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        Self {
            uid: nix::unistd::geteuid().as_raw(),
            capabilities: mask.unwrap_or(0),
            ptrace_scope: scope.trim().parse().unwrap_or(0),
            criu,
        }
    }

    /// Whether CRIU would have this capability: from us, or from its own file.
    pub fn has(&self, capability: u32) -> bool {
        self.capabilities & 1 << capability != 0 || self.criu_has_own()
    }

    /// Whether the program carries capabilities itself; which ones is its owner's business.
    fn criu_has_own(&self) -> bool {
        self.criu.as_ref().is_ok_and(|path| matches!(has_attribute(path, "security.capability"), Ok(true)))
    }
}

/// All capabilities this kernel knows.
pub fn full_bounding_set() -> u64 {
    let last = fs::read_to_string("/proc/sys/kernel/cap_last_cap").unwrap_or_default();
    let last = last.trim().parse::<u32>().unwrap_or(CAP_CHECKPOINT_RESTORE).min(62);
    (1 << (last + 1)) - 1
}

/// Judges what we and CRIU may do.
pub fn judge(scene: &Scene<'_>, found: &mut Vec<Finding>) {
    let root = scene.root();
    let refused = |place: &str, what: &str| Finding::new(Severity::Refused, root.pid, place, what);
    let own = scene.own;
    if let Err(why) = &own.criu {
        found.push(refused("criu", "not there").why(why.as_str()));
    }
    if !scene.flags.unprivileged {
        if own.uid != 0 {
            found.push(
                refused("stasis", "run by an ordinary user")
                    .why("without --unprivileged CRIU wants to be root")
                    .remedy("--unprivileged, or run as root"),
            );
        }
    } else {
        if !own.has(CAP_CHECKPOINT_RESTORE) && !own.has(CAP_SYS_ADMIN) {
            found.push(
                refused("stasis", "without CAP_CHECKPOINT_RESTORE")
                    .why("an unprivileged CRIU needs it, or CAP_SYS_ADMIN")
                    .remedy("setpriv --ambient-caps +checkpoint_restore, or setcap cap_checkpoint_restore+eip criu"),
            );
        }
        found.extend(scene.tree.iter().filter_map(|process| other_user(own, process)));
    }
    let may_trace = own.has(CAP_SYS_PTRACE) && own.ptrace_scope < 3;
    if own.ptrace_scope > 0 && !may_trace {
        found.push(
            refused("stasis", "not allowed to trace")
                .why(format!("kernel.yama.ptrace_scope is {}", own.ptrace_scope))
                .remedy(if own.ptrace_scope == 3 { "boot with another scope" } else { "add CAP_SYS_PTRACE" }),
        );
    }
    found.extend(many_pieces(scene));
}

fn other_user(own: &Own, process: &Process) -> Option<Finding> {
    let uid: u32 = process.field("Uid")?.split_ascii_whitespace().next()?.parse().ok()?;
    (uid != own.uid && !own.has(CAP_SYS_PTRACE)).then(|| {
        Finding::new(Severity::Refused, process.pid, "process", format!("of user {uid}"))
            .why(format!("stasis runs for user {} and may not trace it", own.uid))
            .remedy("run as that user")
    })
}

/// A restore keeps two descriptors for each piece of shared memory (measured: 10,000 memfds fail at a limit of 20,000).
fn many_pieces(scene: &Scene<'_>) -> Option<Finding> {
    let pieces = shared::count(scene.tree) as u64;
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    (2 * pieces >= limit).then(|| {
        Finding::new(Severity::Warning, scene.root().pid, "process", format!("with {pieces} memfds"))
            .why(format!("a restore needs two descriptors for each; the limit here is {limit}"))
            .remedy("raise RLIMIT_NOFILE for the restore")
    })
}
