// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tasks that CRIU holds, as `/proc` shows them.

use std::fs;

use crate::process::proc_directory;

/// The processes this one traces: in a hook after the freeze, the tree that is dumped.
pub(crate) fn traced() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| is_traced(*pid)).collect()
}

/// Whether this process traces another one.
pub(crate) fn is_traced(pid: i32) -> bool {
    let status = fs::read_to_string(proc_directory(pid).join("status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim().parse() == Ok(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_traces_nobody_has_no_tree() {
        assert!(traced().is_empty());
    }
}
