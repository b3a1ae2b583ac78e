// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any datagram is a message of the protocol or refused.
#![no_main]

use kfd::transport::wire::{Reply, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = kfd::transport::wire::decode::<Request>(bytes);
    let _ = kfd::transport::wire::decode::<Reply>(bytes);
});
