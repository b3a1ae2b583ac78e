// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any file of generated code is read as code with heads and constants within it, or refused, right hash or not.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|contents: &[u8]| {
    let _ = softgpu_waves::parse_sealed(contents);
});
