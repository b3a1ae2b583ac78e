// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process, told from a later one with the same pid by when it was started, and how it ended.

use std::fmt;
use std::{fs, io};

use nix::errno::Errno;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

/// A process as it was seen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// When it was started, clock ticks since boot.
    pub started: u64,
}

/// How a process ended, as far as it can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// By itself, with this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// Its parent has reaped it, or the system does not say.
    Unknown,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::Unknown => f.write_str("how is not known"),
        }
    }
}

/// What is read of a process: fields 3, 22 and 52 of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat<'a> {
    state: &'a str,
    started: u64,
    /// As wait(2) gives it; 0 where the kernel does not tell.
    exit_code: i32,
}

impl<'a> Stat<'a> {
    fn parse(stat: &'a str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, started) = (fields.next()?, fields.nth(18)?.parse().ok()?);
        Some(Self {
            state,
            started,
            exit_code: fields.nth(29).and_then(|field| field.parse().ok()).unwrap_or(0),
        })
    }

    fn is_over(&self) -> bool {
        matches!(self.state, "Z" | "X")
    }
}

/// Whether a file of `/proc/PID` cannot be read because there is no such process, at the open or at the read.
fn is_no_process(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

impl Process {
    /// `None` if it is not to be seen from here: in another pid namespace, or behind `hidepid`.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, started: Stat::parse(&stat)?.started })
    }

    /// Whether it still runs; one that has ended and is not yet reaped does not.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.end().is_none()
    }

    /// How it ended, if it has; one that is not yet reaped has, unless threads of it outlive the first.
    #[must_use]
    pub fn end(&self) -> Option<Ended> {
        let text = match fs::read_to_string(format!("/proc/{}/stat", self.pid)) {
            Ok(text) => text,
            Err(error) if is_no_process(&error) => return Some(Ended::Unknown),
            // Out of descriptors or memory: that says nothing of the process.
            Err(_) => return None,
        };
        match Stat::parse(&text) {
            Some(stat) if stat.started != self.started => Some(Ended::Unknown),
            Some(stat) if stat.is_over() => (!self.has_living_thread()).then(|| self.how(stat.exit_code)),
            _ => None,
        }
    }

    fn has_living_thread(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let lives = |text: String| Stat::parse(&text).is_some_and(|stat| !stat.is_over());
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok()).any(lives)
    }

    fn how(&self, exit_code: i32) -> Ended {
        match (exit_code & 0x7f, exit_code >> 8) {
            // The kernel tells others' codes as 0 to whom it does not concern.
            (0, 0) if !self.is_open_to_us() => Ended::Unknown,
            (0, code) => Ended::Exited(code),
            (signal, _) => Ended::Killed(signal),
        }
    }

    fn is_open_to_us(&self) -> bool {
        let own = geteuid();
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        own.is_root()
            || (!users.is_empty()
                && users.split_ascii_whitespace().all(|user| user.parse() == Ok(own.as_raw())))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn stat_with_a_hostile_name_is_read() {
        let fields = (4..22).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let later = (23..52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let stat = format!("7 (a) Z 1 (b) S {fields} 4711 {later} 9");
        assert_eq!(Stat::parse(&stat), Some(Stat { state: "S", started: 4711, exit_code: 9 }));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
    }

    #[test]
    fn own_start_is_known_and_a_foreign_pid_is_not_alive() {
        let own = Process::of(std::process::id().cast_signed()).unwrap();
        assert!(own.is_alive());
        assert!(!Process { started: 1, ..own }.is_alive());
        assert!(!Process { pid: i32::MAX, started: 1 }.is_alive());
    }

    #[test]
    fn end_is_told_before_anybody_reaps() {
        for (script, how) in
            [("exit 0", Ended::Exited(0)), ("exit 3", Ended::Exited(3)), ("kill -9 $$", Ended::Killed(9))]
        {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let process = Process::of(child.id().cast_signed()).unwrap();
            while process.is_alive() {
                std::thread::yield_now();
            }
            assert_eq!(process.end(), Some(how), "{script}");
            child.wait().unwrap();
            assert_eq!(process.end(), Some(Ended::Unknown));
        }
    }

    #[test]
    fn threads_that_live_are_seen() {
        let own = Process::of(std::process::id().cast_signed()).unwrap();
        assert!(own.has_living_thread());
        assert!(!Process { pid: i32::MAX, started: 1 }.has_living_thread());
    }
}
