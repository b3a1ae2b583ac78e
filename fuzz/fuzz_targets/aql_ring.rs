// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes are a ring of packets: whatever the indices say, what lies between them decodes or is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queues::aql::{PACKET_BYTES, Packet, RawPacket};
use queues::ring::Ring;

fuzz_target!(|input: (u64, u16, &[u8])| {
    // Write indices near the read index, some of them too far ahead.
    let (read, distance, bytes) = input;
    let write = read.wrapping_add(u64::from(distance));
    let slots = bytes.as_chunks::<PACKET_BYTES>().0;
    // The largest ring that the bytes fill.
    let Some(log2) = (slots.len() as u64).checked_ilog2() else { return };
    let ring = Ring::new(1 << log2).expect("a power of two");
    let Some(used) = ring.used(write, read) else {
        assert_eq!(ring.free(write, read), 0);
        return;
    };
    assert_eq!(used + ring.free(write, read), ring.packets());
    let rebase = ring.rebase(read);
    for ahead in 0..used {
        let index = read.wrapping_add(ahead);
        assert_eq!(ring.slot(rebase.hardware(index)), ring.slot(index));
        let offset = usize::try_from(ring.byte_offset(index)).expect("inside the ring");
        let words = slots[offset / PACKET_BYTES].as_chunks::<4>().0;
        let raw: RawPacket = std::array::from_fn(|n| u32::from_le_bytes(words[n]));
        match Packet::decode(&raw) {
            Ok(packet) => {
                assert_eq!(packet.encode(), raw);
                let _ = packet.to_string();
                if let Err(error) = packet.validate() {
                    let _ = (error.to_string(), error.exception_code());
                }
            }
            Err(error) => {
                let _ = (error.to_string(), error.exception_code());
            }
        }
    }
});
