// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and fills by an agent's copy engines.
//!
//! ```text
//! poll dependencies | hdp flush | gcr invalidate || copies or fills || gcr write back | fence | fence mailbox | trap
//! ```
//!
//! INVARIANT: the packets of one transfer are in the ring in this order. Others may come between, which does no harm: a
//! fence is behind the copies it tells of in any case.

use std::time::Duration;

use queues::sdma::{self, Generation};

use super::arrive;
use super::engines::Piece;
use crate::agent::Agent;
use crate::context::error::{CopyError, RawError, SubmitError};
use crate::context::queue::packets;
use crate::pool::Buffer;
use crate::raw::{RawKind, RawOptions, RawQueue};
use crate::signal::Signal;

/// Bytes of the ring: a few hundred transfers.
const RING_BYTES: u32 = 128 << 10;
/// Packets that are submitted together: few enough for any place of the ring.
const TOGETHER: usize = 256;
/// Dwords of a linear copy and of a fill.
const COPY_DWORDS: usize = 7;
const FILL_DWORDS: usize = 5;

/// A queue of an agent's copy engines for the runtime's transfers.
pub(super) fn queue(agent: &Agent) -> Result<RawQueue, CopyError> {
    let options =
        RawOptions { kind: RawKind::Sdma { engine: None }, ring_bytes: RING_BYTES, ..RawOptions::default() };
    Ok(RawQueue::internal(agent, options)?)
}

pub(super) fn copy(
    queue: &RawQueue,
    piece: Piece,
    after: &[&Signal],
    buffers: &[&Buffer],
    done: &Signal,
) -> Result<(), CopyError> {
    let mut words = Vec::new();
    sdma::copy(&mut words, generation(queue)?, piece.to, piece.from, piece.bytes)?;
    submit(queue, words.chunks(COPY_DWORDS * TOGETHER), after, buffers, done)
}

pub(super) fn fill(
    queue: &RawQueue,
    (to, bytes): (u64, u64),
    dword: u32,
    after: &[&Signal],
    buffer: &Buffer,
    done: &Signal,
) -> Result<(), CopyError> {
    let mut words = Vec::new();
    sdma::fill(&mut words, generation(queue)?, to, dword, bytes)?;
    submit(queue, words.chunks(FILL_DWORDS * TOGETHER), after, &[buffer], done)
}

fn generation(queue: &RawQueue) -> Result<Generation, CopyError> {
    let agent = queue.agent();
    Generation::of(agent.target()).ok_or_else(|| CopyError::NoEngine { agent: agent.name().to_owned() })
}

fn submit<'w>(
    queue: &RawQueue,
    work: impl Iterator<Item = &'w [u32]>,
    after: &[&Signal],
    buffers: &[&Buffer],
    done: &Signal,
) -> Result<(), CopyError> {
    let kind = queue.kind().into();
    let mailbox = done.mailbox()?;
    let epilogue = packets::completion(kind, queue.agent().target(), done.value_va(), mailbox);
    for buffer in buffers {
        queue.uses(buffer).map_err(refused)?;
    }
    let (target, generation) = (queue.agent().target(), generation(queue)?);
    let values: Vec<u64> = after.iter().map(|signal| signal.value_va()).collect();
    for some in values.chunks(TOGETHER) {
        with_room(queue, &packets::transfer_prologue(target, generation, some)?, &[])?;
    }
    if values.is_empty() {
        with_room(queue, &packets::transfer_prologue(target, generation, &[])?, &[])?;
    }
    for words in work {
        with_room(queue, words, buffers)?;
    }
    queue.completes(done);
    with_room(queue, &epilogue, &[])
}

/// Submits what moves bytes between buffers; tries again as long as the ring is full.
fn with_room(queue: &RawQueue, words: &[u32], buffers: &[&Buffer]) -> Result<(), CopyError> {
    let agent = queue.agent();
    loop {
        let pass = agent.context.gate.enter()?;
        arrive(&agent.context, &pass, agent.info.index(), (buffers, &[]))?;
        let submitted = queue.submit(words);
        drop(pass);
        match submitted {
            Ok(_) => return Ok(()),
            // TIMEOUT: room comes with the next transfer that ends, or the queue fails.
            Err(RawError::Full { .. }) => std::thread::sleep(Duration::from_micros(50)),
            Err(error) => return Err(refused(error)),
        }
    }
}

/// The error of a transfer whose packets were refused; those that shaders' packets have too are told as theirs are.
fn refused(error: RawError) -> CopyError {
    match error {
        RawError::Queue(fault) => CopyError::Submit(Box::new(SubmitError::Queue(fault))),
        RawError::AgentLost(lost) => CopyError::AgentLost(lost),
        RawError::Stale { queue } => CopyError::Submit(Box::new(SubmitError::Stale { queue })),
        RawError::Freed { key } => CopyError::Freed { key },
        RawError::Lost(lost) => CopyError::Lost(lost),
        other => CopyError::Ring(Box::new(other)),
    }
}
