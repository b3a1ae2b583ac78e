// SPDX-License-Identifier: MIT OR Apache-2.0
//! Labelled buffers of one process, adopted by another that was started afresh, without CRIU.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use stasis_tests::program;

/// Runs the program on a device; each call has a software device of its own.
fn run(device: &str, words: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(program("adopter"));
    command.args(&words[..1]).arg(directory).args(&words[1..]).env("STASIS_DEVICE", device);
    let instance = format!("adopt-{}-{}", std::process::id(), device.replace([':', '*', ','], "-"));
    command.env("STASIS_SOFTGPU_INSTANCE", instance).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The addresses that a run has printed.
fn addresses(said: &str) -> Vec<&str> {
    said.split_whitespace().skip(1).collect()
}

#[test]
fn fresh_process_has_the_buffers_at_their_addresses_with_their_contents() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let saved = said(&run("soft:gfx1100*2", &["save"], &image));
    assert_eq!(fs::read_dir(&image).unwrap().count(), 1, "an image and nothing else");
    let adopted = said(&run("soft:gfx1100*2", &["adopt"], &image));
    assert_eq!(addresses(&saved), addresses(&adopted));
    assert_eq!(addresses(&saved).len(), 5);
}

#[test]
fn other_agents_adopt_them_by_a_map() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let saved = said(&run("soft:gfx1100*2", &["save"], &image));
    // Fewer, more, and of another kind.
    let error = refused(&run("soft:gfx1100", &["adopt"], &image));
    assert!(error.contains("agent 1, which is to be agent 1 here: there are 1"), "{error}");
    for (device, map) in [
        ("soft:gfx1100", &["1=0"][..]),
        ("soft:gfx1102*4", &["0=3", "1=2"]),
        ("soft:gfx1100*2", &["0=1", "1=0"]),
    ] {
        let words = [&["adopt"], map].concat();
        assert_eq!(addresses(&said(&run(device, &words, &image))), addresses(&saved), "{device} {map:?}");
    }
}

#[test]
fn image_that_is_damaged_or_none_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let device = "soft:gfx1100*2";
    assert!(refused(&run(device, &["adopt"], &image)).contains("cannot be adopted"));
    said(&run(device, &["save"], &image));
    // An earlier image is replaced.
    said(&run(device, &["save"], &image));
    let file = image.join("runtime-0.img");
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&file, &damaged).unwrap();
    assert!(refused(&run(device, &["adopt"], &image)).contains("cannot be adopted"));
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert!(refused(&run(device, &["adopt"], &image)).contains("cannot be adopted"));
    fs::write(&file, &whole).unwrap();
    said(&run(device, &["adopt"], &image));
}
