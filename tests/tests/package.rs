// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python package as a user has it: the built wheel in a Python that has nothing else of ours. Its tests are pytest's, in
//! `python/tests`; each file of them is one test here.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use stasis_tests::clients::with_clients;
use stasis_tests::criu;

/// The Python into which `cargo xtask test` has installed the wheel.
fn python() -> PathBuf {
    let private = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.stasis/package-python/bin/python");
    let path = std::env::var_os("STASIS_PACKAGE_PYTHON").map_or(private, PathBuf::from);
    assert!(path.is_file(), "no {}: run `cargo xtask test`", path.display());
    path
}

fn passes(file: &str) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests");
    let cache = tempfile::tempdir().unwrap();
    let mut pytest = Command::new(python());
    // Isolated, so that neither this directory nor the user's has the package.
    pytest.args([
        "-I",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "faulthandler_timeout=600",
        "--rootdir",
    ]);
    pytest.arg(&tests).arg(tests.join(file)).arg("--basetemp").arg(cache.path().join("tests"));
    pytest.env("STASIS_CRIU", criu()).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(cache.path());
    for variable in ["PYTEST_ADDOPTS", "PYTHONPATH", "STASIS_PROGRAM", "STASIS_SOFTGPUD"] {
        pytest.env_remove(variable);
    }
    let output = pytest.output().unwrap();
    let [said, failed] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{file}: {}\n{said}\n{failed}", output.status);
}

#[test]
fn buffers_keep_their_contents_and_views_their_memory() {
    passes("test_buffer.py");
}

#[test]
fn buffers_are_saved_and_adopted_by_a_fresh_process() {
    passes("test_adopt.py");
}

#[test]
fn ranks_save_and_go_on_together() {
    passes("test_ranks.py");
}

#[test]
fn jobs_of_mpi_go_on_from_sets_or_are_carried_as_they_are() {
    passes("test_mpi.py");
}

#[test]
fn processes_share_buffers_by_their_names() {
    passes("test_named.py");
}

#[test]
fn actors_of_ray_adopt_what_others_have_learnt() {
    with_clients(|| passes("test_ray.py"));
}

#[test]
fn kernels_take_arguments_and_report_faults() {
    passes("test_kernel.py");
}

#[test]
fn kernels_of_triton_run_are_tuned_and_print() {
    passes("test_triton.py");
}

#[test]
fn sessions_of_pytest_have_devices_and_warm_copies() {
    passes("test_pytest_plugin.py");
}

#[test]
fn tinygrad_trains_through_our_queues_and_over_checkpoints() {
    with_clients(|| passes("test_tinygrad.py"));
}

#[test]
fn tutorials_of_triton_agree_with_numpy() {
    passes("test_tutorials.py");
}

#[test]
fn processes_fork_end_and_run_the_packages_programs() {
    passes("test_process.py");
}

#[test]
fn interpreter_is_checkpointed_by_itself_and_from_outside() {
    passes("test_checkpoint.py");
}
