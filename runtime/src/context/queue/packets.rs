// SPDX-License-Identifier: MIT OR Apache-2.0
//! The few packets the runtime itself writes into queues of words, and packets as text.
//!
//! INVARIANT: what is encoded here has values that every packet set can hold, so nothing of it fails; a target whose
//! packets are not known has no queues of that kind (`create`).

use queues::aql::RawPacket;
use queues::pm4::{Packet, ReleaseMem, Width};
use queues::sdma::{self, Compare, Gcr, Generation, PollRegMem, SdmaError};
use queues::target::Target;
use queues::{aql, pm4};

use crate::context::registry::state::QueueKind;

/// This many dwords that do nothing, in the language of a queue of words.
pub(crate) fn noops(kind: QueueKind, dwords: usize) -> Vec<u32> {
    let mut words = Vec::with_capacity(dwords);
    match kind {
        QueueKind::Aql => {}
        QueueKind::Pm4 => pm4::push_nops(&mut words, dwords),
        QueueKind::Sdma { .. } => sdma::push_nops(&mut words, dwords),
    }
    words
}

/// The packets that, once everything before them has completed and is visible to the host, bring the signal value at
/// `value_va` from 1 to 0, and, with a mailbox and an event, wake whoever sleeps on it.
pub(crate) fn completion(
    kind: QueueKind,
    target: &Target,
    value_va: u64,
    mailbox: Option<(u64, u32)>,
) -> Vec<u32> {
    let mut words = Vec::new();
    let encoded = match kind {
        QueueKind::Aql => Ok(()),
        QueueKind::Pm4 => release(&mut words, target, value_va, mailbox).map_err(|error| error.to_string()),
        QueueKind::Sdma { .. } => {
            fence(&mut words, target, value_va, mailbox).map_err(|error| error.to_string())
        }
    };
    if let Err(error) = encoded {
        tracing::error!(target: "queues", error, "INVARIANT: the runtime's own packets can be encoded");
    }
    words
}

/// What goes before a copy engine's transfer: the signals waited for, by the addresses of their values, and what others wrote made
/// visible. Never nothing: every target has a packet for that.
///
/// # Errors
/// [`SdmaError`] for an address that no packet can have.
pub fn transfer_prologue(
    target: &Target,
    generation: Generation,
    values: &[u64],
) -> Result<Vec<u32>, SdmaError> {
    let mut words = Vec::new();
    for value in values {
        // A poll sees 32 bits. The high half first: once it is 0 and the low half is too, the value has been 0.
        for half in [4, 0] {
            let poll = PollRegMem::memory(value + half, Compare::Equal, 0);
            sdma::Packet::PollRegMem(poll).encode(generation, &mut words)?;
        }
    }
    if target.sdma_hdp_flush {
        sdma::Packet::HdpFlush.encode(generation, &mut words)?;
    }
    if generation.has_gcr() {
        sdma::Packet::Gcr(Gcr::invalidate()).encode(generation, &mut words)?;
    }
    Ok(words)
}

/// Cache actions of a `RELEASE_MEM` before gfx10, at the place of `ReleaseMem::caches`: write L2 back, invalidate the
/// vector caches and L2 (`EOP_TC_WB_ACTION_EN`, `EOP_TCL1_ACTION_EN`, `EOP_TC_ACTION_EN` of `soc15d.h`).
const RELEASE_CACHES_GFX9: u16 = 1 << 3 | 1 << 4 | 1 << 5;

fn release(
    words: &mut Vec<u32>,
    target: &Target,
    value_va: u64,
    mailbox: Option<(u64, u32)>,
) -> Result<(), pm4::Pm4Error> {
    let signal = match pm4::signal(value_va, 0, Width::Bits64) {
        Packet::ReleaseMem(release) if !target.gcr => {
            Packet::ReleaseMem(ReleaseMem { caches: RELEASE_CACHES_GFX9, ..release })
        }
        packet => packet,
    };
    signal.encode(words)?;
    mailbox.map_or(Ok(()), |(mailbox, event_id)| pm4::interrupt(mailbox, event_id).encode(words))
}

fn fence(
    words: &mut Vec<u32>,
    target: &Target,
    value_va: u64,
    mailbox: Option<(u64, u32)>,
) -> Result<(), SdmaError> {
    let Some(generation) = Generation::of(target) else { return Ok(()) };
    if generation.has_gcr() {
        sdma::Packet::Gcr(Gcr::write_back()).encode(generation, words)?;
    }
    // The low half of the value: the high half of 1 is 0 already.
    let fence = sdma::Fence { address: value_va, value: 0, mtype: generation.uncached_mtype() };
    sdma::Packet::Fence(fence).encode(generation, words)?;
    if let Some((mailbox, event_id)) = mailbox {
        for packet in sdma::interrupt(generation, mailbox, event_id) {
            packet.encode(generation, words)?;
        }
    }
    Ok(())
}

fn hex(words: &[u32]) -> String {
    words.iter().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(" ")
}

/// The first packet of these words, or the words themselves if it cannot be read.
pub(crate) fn print(kind: QueueKind, target: &Target, words: &[u32]) -> String {
    let printed = match kind {
        QueueKind::Aql => None,
        QueueKind::Pm4 => pm4::decode(words).ok().map(|(packet, _)| packet.to_string()),
        QueueKind::Sdma { .. } => Generation::of(target)
            .and_then(|generation| sdma::decode(words, generation).ok())
            .map(|(packet, _)| packet.to_string()),
    };
    printed.unwrap_or_else(|| hex(words))
}

/// An AQL packet as text.
pub(crate) fn print_aql(raw: &RawPacket) -> String {
    aql::Packet::decode(raw).map_or_else(|_| hex(raw), |packet| packet.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_prologue_flushes_the_host_data_path_where_the_target_can() {
        for (name, wanted) in [
            ("gfx900", &["hdp_flush"][..]),
            ("gfx1010", &["gcr"]),
            ("gfx1012", &["gcr"]),
            ("gfx1030", &["hdp_flush", "gcr"]),
            ("gfx1100", &["hdp_flush", "gcr"]),
        ] {
            let target = Target::by_name(name).unwrap();
            let generation = Generation::of(target).unwrap();
            let words = transfer_prologue(target, generation, &[0x1000]).unwrap();
            let texts: Vec<_> =
                sdma::packets(&words, generation).map(|(_, packet)| packet.unwrap().to_string()).collect();
            assert!(texts[..2].iter().all(|text| text.starts_with("poll memory")), "{texts:?}");
            assert!(!transfer_prologue(target, generation, &[]).unwrap().is_empty());
            let names: Vec<_> = texts[2..].iter().filter_map(|text| text.split(' ').next()).collect();
            assert_eq!(names, wanted, "{name}");
        }
    }
}
