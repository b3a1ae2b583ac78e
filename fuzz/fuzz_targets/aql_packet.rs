// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any 64 bytes decode to a packet or an error; a packet that decodes encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queues::aql::{Packet, RawPacket};

fuzz_target!(|bytes: [u8; 64]| {
    let words = bytes.as_chunks::<4>().0;
    let raw: RawPacket = std::array::from_fn(|n| u32::from_le_bytes(words[n]));
    if let Ok(packet) = Packet::decode(&raw) {
        assert_eq!(packet.encode(), raw);
        let _ = packet.to_string();
    }
});
