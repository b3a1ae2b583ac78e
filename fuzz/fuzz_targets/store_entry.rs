// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes are the entry of a checkpoint in a store, or say where objects are, or are refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| stasis_store::read_any_entry(bytes));
