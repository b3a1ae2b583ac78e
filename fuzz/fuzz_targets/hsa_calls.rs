// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any sequence of calls of the HSA runtime's ABI comes back, whatever its handles, sizes and packets.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| stasis_hsa::calls::play(bytes));
