// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any dwords are a stream of SDMA packets up to an error; packets that decode encode to the same dwords.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queues::sdma::{Generation, packets};

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, bytes) = input;
    let generation = Generation::ALL[usize::from(choice) % Generation::ALL.len()];
    let stream: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|dword| u32::from_le_bytes(*dword)).collect();
    let mut again = Vec::new();
    for (start, packet) in packets(&stream, generation) {
        assert_eq!(start, again.len());
        match packet {
            Ok(packet) => {
                packet.encode(generation, &mut again).expect("a packet that decodes");
                assert_eq!(again.len(), start + packet.dwords());
                let _ = packet.to_string();
            }
            Err(error) => {
                let _ = error.to_string();
                assert_eq!(again, stream[..start]);
                return;
            }
        }
    }
    assert_eq!(again, stream);
});
