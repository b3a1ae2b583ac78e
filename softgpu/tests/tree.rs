// SPDX-License-Identifier: MIT OR Apache-2.0
//! `softgpud tree` as a process: what it leaves, how it ends.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn softgpud(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_softgpud"))
        .args(arguments)
        .env_remove("SOFTGPU_KERNEL")
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap()
}

fn tree(devices: &str, directory: &Path) -> Output {
    softgpud(&["tree", "--devices", devices, directory.to_str().unwrap()])
}

/// What an error says behind its first line, which names the verb.
fn causes(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.split_once("\n\n").unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

#[test]
fn tree_has_both_gpus_and_says_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let output = tree("gfx1100*2", directory.path());
    assert!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
    for minor in [128, 129] {
        let device = directory.path().join(format!("sys/class/drm/renderD{minor}/device/device"));
        assert_eq!(std::fs::read_to_string(device).unwrap(), "0x744c\n");
    }
    let again = tree("gfx1100", directory.path());
    assert_eq!(again.status.code(), Some(1));
    assert!(causes(&again).contains("is not empty"), "{again:?}");
}

#[test]
fn wrong_devices_end_it_as_they_end_serve() {
    let directory = tempfile::tempdir().unwrap();
    let name = format!("stasis-test-tree-{}", std::process::id());
    for devices in ["gfx1100,potato", "/nowhere/machine.toml"] {
        let (refused, wanted) =
            (tree(devices, directory.path()), softgpud(&["serve", "--devices", devices, "--socket", &name]));
        assert_eq!((refused.status.code(), causes(&refused)), (wanted.status.code(), causes(&wanted)));
        assert_eq!(refused.status.code(), Some(1));
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
