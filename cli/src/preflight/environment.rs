// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environment that a process was executed with.

use std::fs;

/// The variables, as `/proc/PID/environ` has them.
#[derive(Debug)]
pub struct Environment(Vec<u8>);

impl Environment {
    /// That of a process; `None` if it cannot be read.
    pub fn of(pid: i32) -> Option<Self> {
        fs::read(format!("/proc/{pid}/environ")).ok().map(Self)
    }

    /// The value of a variable.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.0.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

/// A `sleep` with these variables of a run, and without others of a run, that has been executed.
#[cfg(test)]
pub fn sleep_with(variables: &[(&str, &str)]) -> std::process::Child {
    use std::process::{Command, Stdio};

    let mut command = Command::new("sleep");
    command.arg("1000").stdin(Stdio::null()).env_remove(kfd::transport::run::SOCKET_VARIABLE);
    let child = command.envs(variables.iter().copied()).spawn().unwrap();
    // Until it executes, a child has the environment of its parent; for a moment of that it has none.
    let read = |file: &str| fs::read(format!("/proc/{}/{file}", child.id())).unwrap();
    while read("comm") != b"sleep\n" || read("environ").is_empty() {
        std::thread::yield_now();
    }
    child
}
