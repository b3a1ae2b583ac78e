// SPDX-License-Identifier: MIT OR Apache-2.0
//! Abstract sockets belong to a network namespace: whoever connects to one has to be in it.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns};
use thiserror::Error;

use crate::process::proc_directory;

/// Why nothing was done in a namespace.
#[derive(Debug, Error)]
pub(crate) enum NetworkError {
    #[error("Cannot enter the network namespace of process {pid} to speak with its agent or its softgpud")]
    Enter {
        pid: i32,
        #[source]
        source: io::Error,
    },
    #[error("Cannot return from the network namespace of process {pid}: criu must not go on")]
    Return {
        pid: i32,
        #[source]
        source: io::Error,
    },
}

/// Whether a process is in another network namespace than this one.
fn is_elsewhere(pid: i32) -> io::Result<bool> {
    let theirs = std::fs::read_link(proc_directory(pid).join("ns/net"))?;
    Ok(std::fs::read_link("/proc/thread-self/ns/net").is_ok_and(|own| own != theirs))
}

/// Does something in the network namespace of a process. CRIU has one thread, and changes namespaces itself.
pub(crate) fn within<T>(pid: i32, act: impl FnOnce() -> T) -> Result<T, NetworkError> {
    let enter = |source: io::Error| NetworkError::Enter { pid, source };
    if !is_elsewhere(pid).map_err(enter)? {
        return Ok(act());
    }
    let own = File::open("/proc/thread-self/ns/net").map_err(enter)?;
    let theirs = File::open(proc_directory(pid).join("ns/net")).map_err(enter)?;
    setns(theirs, CloneFlags::CLONE_NEWNET).map_err(|error| enter(error.into()))?;
    let done = act();
    setns(own, CloneFlags::CLONE_NEWNET)
        .map_err(|error| NetworkError::Return { pid, source: error.into() })?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_of_this_namespace_needs_no_change() {
        let own = std::process::id().cast_signed();
        assert_eq!(within(own, || 7).unwrap(), 7);
        assert!(matches!(within(i32::MAX, || 7), Err(NetworkError::Enter { .. })));
    }
}
