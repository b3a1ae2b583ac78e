// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses that executors leave to their clients.
//!
//! Clients keep their buffers from 16 to 80 TiB, and an executor maps each at the same address. A PIE binary and its
//! heap lie above 85 TiB on x86-64, libraries and stacks just below 128 TiB. Only the kernel's legacy layout (chosen
//! for an unlimited stack) begins at 42 TiB; so executors are started with a limit.
//!
//! INVARIANT: an executor that serves has no mapping of its own in the window.

use std::ops::Range;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use super::error::ServeError;

/// First and one past the last byte of the window.
const WINDOW: Range<u64> = 16 << 40..80 << 40;
/// The stack limit instead of an unlimited one, bytes: the usual default.
const STACK_BYTES: u64 = 8 << 20;

/// Makes sure that children get the kernel's default layout.
///
/// # Errors
/// [`ServeError::System`] when the limit cannot be set.
pub(super) fn limit_stack() -> Result<(), ServeError> {
    let stack = Resource::RLIMIT_STACK;
    let (limit, most) = getrlimit(stack).map_err(ServeError::system("getrlimit(RLIMIT_STACK)"))?;
    if limit != RLIM_INFINITY {
        return Ok(());
    }
    setrlimit(stack, most.min(STACK_BYTES), most).map_err(ServeError::system("setrlimit(RLIMIT_STACK)"))
}

/// Checks that the window is free in this process.
///
/// # Errors
/// [`ServeError::Window`] names what is in it, [`ServeError::Maps`] when the mappings cannot be read.
pub(super) fn check() -> Result<(), ServeError> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(ServeError::Maps)?;
    match maps.lines().find(|line| span(line).is_some_and(|span| overlaps(&span))) {
        None => Ok(()),
        Some(mapping) => Err(ServeError::Window { mapping: mapping.to_owned() }),
    }
}

/// The addresses of a line of `/proc/self/maps`.
fn span(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

fn overlaps(span: &Range<u64>) -> bool {
    span.start < WINDOW.end && WINDOW.start < span.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_reads_maps_lines_and_overlap_is_half_open() {
        let at = |line| span(line).map(|span| overlaps(&span));
        assert_eq!(at("555555554000-555555556000 r--p 00000000 fe:00 1 /bin/x"), Some(false));
        assert_eq!(at("100000000000-100000001000 rw-p 00000000 00:00 0"), Some(true));
        assert_eq!(at("0ffffffff000-100000000000 rw-p 00000000 00:00 0"), Some(false));
        assert_eq!(at("500000000000-500000001000 rw-p 00000000 00:00 0"), Some(false));
        assert_eq!(at("nonsense"), None);
    }
}
