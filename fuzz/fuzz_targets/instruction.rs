// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any words decode to an instruction no longer than they are, or to an error; an instruction prints.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|words: [u32; 3]| {
    if let Ok(instruction) = softgpu_isa::decode(&words) {
        assert!(matches!(instruction.size, 4 | 8 | 12));
        let _ = instruction.to_string();
    }
});
