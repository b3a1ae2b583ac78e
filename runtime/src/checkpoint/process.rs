// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process, told from a later one with the same pid by when it was started.

use std::fs;

use serde::{Deserialize, Serialize};

/// A process as it was seen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its pid.
    pub pid: i32,
    /// When it was started, clock ticks since boot.
    pub started: u64,
}

/// State and start time (clock ticks since boot) of a process: fields 3 and 22 of `/proc/PID/stat`.
fn state_and_start(stat: &str) -> Option<(&str, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?, fields.nth(18)?.parse().ok()?))
}

impl Process {
    /// `None` if it is not to be seen from here: in another pid namespace, or behind `hidepid`.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, started: state_and_start(&stat)?.1 })
    }

    /// Whether it still runs; one that has ended and is not yet reaped does not.
    pub fn is_alive(&self) -> bool {
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", self.pid)) else { return false };
        state_and_start(&stat)
            .is_some_and(|(state, started)| started == self.started && !matches!(state, "Z" | "X"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_hostile_name_is_read() {
        let fields = (4..22).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let stat = format!("7 (a) Z 1 (b) S {fields} 4711 23 24");
        assert_eq!(state_and_start(&stat), Some(("S", 4711)));
        assert_eq!(state_and_start("7 (a) S 1"), None);
    }

    #[test]
    fn own_start_is_known_and_a_foreign_pid_is_not_alive() {
        let own = Process::of(std::process::id().cast_signed()).unwrap();
        assert!(own.is_alive());
        assert!(!Process { started: 1, ..own }.is_alive());
        assert!(!Process { pid: i32::MAX, started: 1 }.is_alive());
    }
}
