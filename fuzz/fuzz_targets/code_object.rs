// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes parse to a code object or an error; one that parses can be laid out or says why not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stasis::code_object::CodeObject;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(object) = CodeObject::parse(bytes) {
        // A large image is legal, but not what is looked for here.
        if object.plan().image_bytes() < 1 << 24 {
            let _ = object.plan().relocate(0x1000_0000_0000);
        }
    }
});
