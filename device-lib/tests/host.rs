// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels' arithmetic, compiled for the CPU and run over every small size and alignment.

use std::process::Command;

#[test]
fn kernels_on_the_cpu_equal_the_obvious_loops() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("host");
    let clang = std::env::var_os("STASIS_CLANG").unwrap_or_else(|| "clang-19".into());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host.c");
    let flags = ["-O1", "-std=c17", "-fsanitize=undefined", "-fsanitize-trap=undefined", "-Wall", "-Werror"];
    let compiled = Command::new(clang).args(flags).arg(source).arg("-o").arg(&program).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = Command::new(&program).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said == "ok\n", "{said} ({})", run.status);
}
