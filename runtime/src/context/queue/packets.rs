// SPDX-License-Identifier: MIT OR Apache-2.0
//! The few packets the runtime itself writes into queues of words, and packets as text.
//!
//! INVARIANT: what is encoded here has values that every packet set can hold, so nothing of it fails; a target whose
//! packets are not known has no queues of that kind (`create`).

use queues::aql::RawPacket;
use queues::pm4::{Packet, ReleaseMem, Width};
use queues::sdma::{self, Gcr, Generation};
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
) -> Result<(), sdma::SdmaError> {
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
