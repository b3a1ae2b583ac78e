// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any context save area reads as waves, of every chip, or is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|area: &[u8]| {
    let _ = queues::save_area::read_waves(area);
    for target in queues::target::TARGETS {
        let _ = queues::save_area::read_standings(target, area);
    }
});
