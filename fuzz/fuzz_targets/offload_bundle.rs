// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes are an offload bundle or refused; an entry has the length that its header says, and an agent's is parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queues::target::Target;
use stasis::code_object::{AgentFeatures, Bundle, CodeObject};

fuzz_target!(|bytes: &[u8]| {
    let Ok(bundle) = Bundle::open(bytes) else { return };
    // Every entry of a compressed bundle costs a decompression of all.
    for entry in bundle.entries().iter().take(4) {
        if let Ok(code) = bundle.code(entry) {
            assert_eq!(code.len() as u64, entry.bytes());
        }
    }
    for target in ["gfx1100", "gfx90a"].into_iter().filter_map(Target::by_name) {
        if let Ok(entry) = bundle.select(target, AgentFeatures { xnack: false, sramecc: true })
            && let Ok(code) = bundle.code(entry)
        {
            let _ = CodeObject::parse(&code);
        }
    }
});
