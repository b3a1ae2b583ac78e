// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process with a chosen environment, for tests.

use std::fs;
use std::process::{Child, Command, Stdio};

/// A `sleep` with these variables of a run, and without others of a run, that has been executed.
pub fn sleep_with(variables: &[(&str, &str)]) -> Child {
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
