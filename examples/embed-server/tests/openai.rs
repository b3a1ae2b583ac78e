// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stock `openai` Python client against the server.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use self::common::{DIMENSIONS, LONGEST, MODEL, Server, Setup};

/// The Python that `cargo xtask setup` gave the `openai` package.
fn python() -> PathBuf {
    let prefix = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.stasis/python/bin/python");
    let python = std::env::var_os("STASIS_PYTHON").map_or(prefix, PathBuf::from);
    assert!(python.is_file(), "no Python at {}: run `cargo xtask setup`", python.display());
    python
}

fn run(python: &Path, server: &Server, part: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py");
    let base = server.url("/v1");
    let output = Command::new(python)
        .arg(script)
        .args([part, &base, MODEL, &DIMENSIONS.to_string(), &LONGEST.to_string()])
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(text(&output.stdout), format!("{part}: ok\n"));
}

#[test]
fn openai_client_embeds_and_understands_errors() {
    let python = python();
    let server = Server::start(Setup::default());

    run(&python, &server, "usual");
}

#[test]
fn openai_client_is_told_of_a_full_queue() {
    let python = python();
    let server = Server::start(Setup::default());
    server.control.hold();
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| server.embed(&json!("hello")));
        server.control.await_begun(1);
        let waiting = scope.spawn(|| server.embed(&json!(vec!["hello"; 16])));
        server.until("the queue to be full", || server.batcher.metrics().queued() == 16);

        run(&python, &server, "full");

        server.control.release();
        assert_eq!(busy.join().unwrap().status, 200);
        assert_eq!(waiting.join().unwrap().status, 200);
    });
}
