// SPDX-License-Identifier: MIT OR Apache-2.0
//! What CRIU is told of a process beyond its pid, when it dumps it and again when it restores it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What CRIU is told of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CriuOptions {
    /// The process belongs to a terminal's session (`--shell-job`).
    pub shell_job: bool,
    /// Keep its established TCP connections (`--tcp-established`). Needs CAP_NET_ADMIN.
    pub tcp_established: bool,
    /// Reset its established TCP connections (`--tcp-close`).
    pub tcp_close: bool,
    /// How packets are kept from a frozen process's connections.
    pub network_lock: Option<NetworkLock>,
    /// It holds file locks (`--file-locks`).
    pub file_locks: bool,
    /// CRIU runs as an ordinary user with CAP_CHECKPOINT_RESTORE (`--unprivileged`).
    pub unprivileged: bool,
}

/// What CRIU uses to keep packets from the connections of a frozen process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(i32)]
pub enum NetworkLock {
    /// The `iptables` program.
    Iptables = 1,
    /// libnftables, which needs no program.
    Nftables = 2,
    /// Nothing: peers may see a reset.
    Skip = 3,
}

impl fmt::Display for NetworkLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Skip => "skip",
        })
    }
}

/// Whether a process has a controlling terminal (`tty_nr` of proc(5)), and is to be dumped as a shell's job.
#[must_use]
pub fn has_terminal(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_ascii_whitespace().nth(4).is_some_and(|tty| tty != "0")
}

impl CriuOptions {
    /// How packets are locked out: as told, else by nftables where connections are kept (CRIU's own default needs a
    /// program that many systems no longer have).
    #[must_use]
    pub fn lock(&self) -> Option<NetworkLock> {
        self.network_lock.or(self.tcp_established.then_some(NetworkLock::Nftables))
    }

    /// As arguments of `criu dump`.
    #[must_use]
    pub fn dump_arguments(&self) -> Vec<String> {
        let mut arguments = self.restore_arguments();
        if let Some(lock) = self.lock() {
            arguments.extend(["--network-lock".to_owned(), lock.to_string()]);
        }
        arguments
    }

    /// As arguments of `criu restore`.
    #[must_use]
    pub fn restore_arguments(&self) -> Vec<String> {
        let flags = [
            (self.shell_job, "--shell-job"),
            (self.tcp_established, "--tcp-established"),
            (self.tcp_close, "--tcp-close"),
            (self.file_locks, "--file-locks"),
            (self.unprivileged, "--unprivileged"),
        ];
        flags.iter().filter(|(set, _)| *set).map(|(_, flag)| (*flag).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_connections_are_locked_by_nftables_unless_told_otherwise() {
        let kept = CriuOptions { tcp_established: true, ..CriuOptions::default() };
        assert_eq!(kept.dump_arguments(), ["--tcp-established", "--network-lock", "nftables"]);
        assert_eq!(kept.restore_arguments(), ["--tcp-established"]);
        let skipped = CriuOptions { network_lock: Some(NetworkLock::Skip), ..kept };
        assert_eq!(skipped.dump_arguments()[2], "skip");
        assert!(CriuOptions::default().dump_arguments().is_empty());
    }
}
