// SPDX-License-Identifier: MIT OR Apache-2.0
//! The example of the README and of the crate's documentation: both are the program `examples/axpy`, which runs and finds
//! what it expects.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use stasis_tests::gpu::{isolate, skip_on_kernel_driver};
use stasis_tests::program;

/// How the README has the kernel compiled, but for the source's name.
const COMPILE: &str =
    "clang-19 --target=amdgcn-amd-amdhsa -mcpu=gfx1100 -O3 -nogpulib -ffreestanding -o axpy.co";
const SOURCE: &str = "examples/custom_dispatcher/axpy.c";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text_of(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The program without what every file begins with.
fn example() -> String {
    let file = text_of("examples/axpy/main.rs");
    file[file.find("use stasis").unwrap()..].to_owned()
}

/// The program with a kernel compiled of `source`.
fn run(source: &Path) -> Output {
    isolate();
    let directory = tempfile::tempdir().unwrap();
    let mut words = COMPILE.split(' ').skip(1).collect::<Vec<_>>();
    words.push(source.to_str().unwrap());
    let compiled = Command::new(device_cc::clang()).args(words).current_dir(&directory).status().unwrap();
    assert!(compiled.success());
    let mut command = Command::new(program("axpy"));
    command.current_dir(&directory).env("STASIS_DEVICE", "soft:gfx1100").output().unwrap()
}

#[test]
fn readme_and_documentation_have_the_example() {
    let (example, readme) = (example(), text_of("README.md"));
    assert!(readme.contains(&format!("```rust,no_run\n{example}```\n")), "README.md has not:\n{example}");
    assert!(readme.contains(COMPILE) && readme.contains(SOURCE), "README.md has not: {COMPILE} {SOURCE}");
    let line = |line: &str| format!("//! {line}").trim_end().to_owned() + "\n";
    let documented: String = example.lines().map(line).collect();
    let library = text_of("runtime/src/lib.rs");
    assert!(
        library.contains(&format!("//! ```no_run\n{documented}//! ```\n")),
        "lib.rs has not:\n{documented}"
    );
}

#[test]
fn example_computes_what_it_expects() {
    if skip_on_kernel_driver("its kernel is compiled for the software device's gfx1100") {
        return;
    }
    let output = run(&root().join(SOURCE).canonicalize().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // With another kernel it finds something else: the assertion is one.
    let other = tempfile::NamedTempFile::with_suffix(".c").unwrap();
    fs::write(&other, text_of(SOURCE).replace("+= a * x[at]", "+= x[at]")).unwrap();
    let output = run(other.path());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("assertion"), "{error}");
}
