// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any properties text parses or is refused by line; what parses sizes a save area or says why not.
#![no_main]

use kfd::topology::NodeProperties;
use libfuzzer_sys::fuzz_target;
use queues::cwsr::CwsrGeometry;

fuzz_target!(|text: &str| {
    if let Ok(properties) = NodeProperties::parse("properties", text) {
        let _ = CwsrGeometry::for_node(&properties.shape());
    }
});
