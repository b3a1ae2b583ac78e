// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random sequences of calls of the HSA runtime's ABI come back, whatever their arguments.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use stasis_tests::hsa::own_device;

/// Sequences of a run, each in a process of its own: what ends one ends no other.
const SEQUENCES: u64 = 24;
/// Set in the process of a sequence: its number.
const NUMBER: &str = "STASIS_TEST_CALLS";

/// The bytes of a sequence.
fn bytes(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(16 << 10).collect()
}

#[test]
fn sequences_of_calls_come_back() {
    if let Ok(number) = std::env::var(NUMBER) {
        stasis_hsa::calls::play(&bytes(number.parse().unwrap()));
        return;
    }
    for number in 0..SEQUENCES {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "hsa_calls::sequences_of_calls_come_back"]).env(NUMBER, number.to_string());
        // A kernel with shared virtual memory for half of them.
        command
            .envs(own_device("soft:gfx1100"))
            .env("SOFTGPU_SVM", if number % 2 == 0 { "on" } else { "off" });
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "sequence {number}: {}\n{said}", output.status);
        assert!(!said.contains("panicked"), "sequence {number}: {said}");
    }
}
