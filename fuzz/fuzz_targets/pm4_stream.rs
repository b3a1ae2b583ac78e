// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any words decode as a stream until its end or an error; packets encode to the same words and print.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queues::pm4::decode;

/// Bit 1 of a header, the compute pipeline's, is accepted without being kept.
const SHADER_TYPE: u32 = 1 << 1;

fuzz_target!(|bytes: &[u8]| {
    let stream: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let mut rest = stream.as_slice();
    while let Ok((packet, dwords)) = decode(rest) {
        let mut again = Vec::new();
        packet.encode(&mut again).expect("a packet that decodes encodes");
        assert_eq!(again.len(), dwords);
        assert_eq!(again[0], rest[0] & !SHADER_TYPE);
        assert_eq!(again[1..], rest[1..dwords]);
        let _ = packet.to_string();
        rest = &rest[dwords..];
    }
});
