// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workers that CRIU dumps and restores.
//!
//! INVARIANT: a test calls [`Sharers::adopt`] first, so that the test process can reap the workers: a zombie would keep
//! the pid that a restored process needs.

use std::path::Path;
use std::process::Output;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::Sharers;
use crate::criu;
use crate::worker::{stasis, wait_until};

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is UTF-8")
}

impl Sharers {
    /// Has workers that lose their parent become children of the test.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn adopt(&self) {
        set_child_subreaper(true).expect("a subreaper");
    }

    /// `stasis checkpoint` of the tree whose root is `name`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn checkpoint(&self, name: &str, directory: &Path, more: &[&str]) -> Output {
        self.checkpoint_by(&criu(), name, directory, more)
    }

    /// The same with another CRIU.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn checkpoint_by(&self, criu: &Path, name: &str, directory: &Path, more: &[&str]) -> Output {
        let pid = self.pid(name).to_string();
        stasis(&[&["checkpoint", "--json", &pid, text(directory)], more].concat(), criu)
    }

    /// `stasis restore`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn restore(&self, directory: &Path) -> Output {
        stasis(&["restore", "--json", text(directory)], &criu())
    }

    /// Waits until all dumped workers have ended and were reaped.
    ///
    /// # Panics
    /// When one is not.
    pub fn bury(&self) {
        for (name, pid) in &self.pids {
            wait_until(&format!("the end of the frozen {name}"), || {
                let _ = waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG));
                !Path::new(&format!("/proc/{pid}")).exists()
            });
        }
    }
}
