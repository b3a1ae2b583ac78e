// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private prefix with containerd as Debian packages it, for tests that run one of their own.

use super::apt;
use super::private;
use anyhow::Result;
use std::path::Path;
use std::path::PathBuf;

/// containerd 1.6.
const SUITE: apt::Suite = apt::Suite::named("bookworm");

/// The prefix, made at `private`/containerd if it is not there; its programs are in `root/usr/bin`.
///
/// # Errors
/// The package could not be downloaded or unpacked.
pub fn find_or_install(private: &Path) -> Result<PathBuf> {
    private::unpacked(
        private,
        "containerd",
        &SUITE,
        &["containerd"],
        "containerd (26 MB, 115 MB unpacked)",
        |_| Ok(()),
    )
}
