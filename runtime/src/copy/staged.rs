// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between two agents that do not reach each other's memory: through system memory, in chunks, two of which are
//! under way at a time.
//!
//! ```text
//! source's agent       in 0 │ in 1 │ wait out 0, in 2 │ wait out 1, in 3 │ …     VRAM → slot n mod 2
//! destination's agent       │ wait in 0, out 0 │ wait in 1, out 1 │ …            slot n mod 2 → VRAM
//! ```
//!
//! All packets of a copy are submitted before it returns, each waiting for signals that packets submitted before it
//! complete. So nobody on the host has to move it on: a checkpoint finds packets in queues as it does for every other
//! copy, drains or preempts them, and needs to know nothing of stages. A thread that submitted chunk by chunk would stop
//! at a closed gate, and a queue that waits for the copy's signal could then never be drained.
//!
//! INVARIANT: staged copies are submitted one after another as wholes, so that in every queue the packets of an earlier
//! one come first: two copies in opposite directions never wait for each other. Stage and signals live until the copy is
//! done, whoever has dropped its handle.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use queues::words::size;

use super::chunks::{SLOTS, chunk_bytes};
use super::engines;
use super::engines::{Engine, Piece};
use super::span::Span;
use super::transfer::Transfer;
use crate::context::Layer;
use crate::context::agent::copy_path::{CopyEngine, CopyPath};
use crate::context::error::CopyError;
use crate::context::queue::fault::QueueFault;
use crate::context::registry::state::AgentIndex;
use crate::copy::choice::Link;
use crate::pool::Buffer;
use crate::runtime::Runtime;
use crate::signal::Signal;

/// A staged copy under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    /// Who fills the stage, and who empties it.
    engines: [Engine; 2],
    _stage: Buffer,
    /// In and out of each chunk.
    signals: Vec<[Signal; 2]>,
    /// Why it never will be done.
    failed: OnceLock<Arc<QueueFault>>,
}

impl UnderWay {
    /// Why it will never be done, if a queue on its way has failed. Then nothing waits for that queue any longer: the
    /// other agent's goes on, with whatever is in the stage.
    pub fn fault(&self) -> Option<&Arc<QueueFault>> {
        if self.failed.get().is_none() {
            let fault = self.signals.iter().flatten().find_map(|signal| signal.live().fault())?;
            if let Some([_, last]) = self.signals.last() {
                // Before the chunks are released, so that who waits for it does not take their end for the copy's.
                last.live().break_with(&fault);
            }
            let _ = self.failed.set(fault);
            self.release();
        }
        self.failed.get()
    }

    /// Whether no packet of it is left. When one queue has failed, the other one goes on, and still waits for signals of
    /// the copy and completes others.
    fn is_done(&self) -> bool {
        let is_past = |(signal, engine): (&Signal, &Engine)| signal.live().load() <= 0 || engine.has_failed();
        self.signals.last().is_none_or(|last| last.iter().zip(&self.engines).all(is_past))
    }

    /// Completes what no packet will complete, for the packets that wait for it. What a queue still completes is left to
    /// it: a signal that was decremented once too often is no longer 0.
    fn release(&self) {
        let last = self.signals.last().map(|[_, out]| out.key());
        let is_stuck = |signal: &&Signal| {
            let live = signal.live();
            let broken = live.fault().is_some() && Some(signal.key()) != last;
            broken || (live.is_settled() && live.load() > 0)
        };
        for signal in self.signals.iter().flatten().filter(is_stuck) {
            if let Err(error) = signal.store(0) {
                tracing::warn!(target: "copies", %error, "a failed staged copy holds a queue");
            }
        }
    }
}

/// The staged copies of a runtime.
#[derive(Debug, Default)]
pub(super) struct Staging(Mutex<Vec<Arc<UnderWay>>>);

impl Layer for Staging {
    fn new(_: usize) -> Self {
        Staging::default()
    }
}

#[cfg(test)]
impl Staging {
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// A transfer's hold on its staged copy.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    staging: Arc<Staging>,
    pub under_way: Arc<UnderWay>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Whoever submits the next one sweeps as well: nothing is lost when the lock is taken just now.
        if self.under_way.is_done()
            && let Some(mut staging) = self.staging.0.try_lock()
        {
            staging.retain(|other| !Arc::ptr_eq(other, &self.under_way));
        }
    }
}

/// One side of a staged copy.
struct Leg<'a> {
    engine: Engine,
    buffer: &'a Buffer,
    /// Where its bytes begin.
    va: u64,
}

/// Copies between two agents through system memory. Returns at once.
pub(super) fn copy(
    runtime: &Runtime,
    asked: CopyEngine,
    (to_agent, to): (AgentIndex, Span<'_>),
    (from_agent, from): (AgentIndex, Span<'_>),
    after: &[&Signal],
) -> Result<Transfer, CopyError> {
    let context = runtime.context();
    let (bytes, chunk) = (to.bytes, chunk_bytes(to.bytes));
    let chunks = bytes.div_ceil(chunk).max(1);
    let into = Leg {
        engine: engines::engine(context, asked, from_agent, Link::ToHost, chunk)?,
        buffer: from.buffer,
        va: from.va()?,
    };
    let out_of = Leg {
        engine: engines::engine(context, asked, to_agent, Link::FromHost, chunk)?,
        buffer: to.buffer,
        va: to.va()?,
    };
    engines::map_for_copy(context, from_agent, &[from.buffer])?;
    engines::map_for_copy(context, to_agent, &[to.buffer])?;
    runtime.check_reach(from_agent, from, false)?;
    runtime.check_reach(to_agent, to, true)?;
    let stage = runtime.gtt().alloc(chunk * chunks.min(SLOTS));
    let stage = stage.map_err(|error| CopyError::Stage(Box::new(error)))?;
    let signal = || Signal::new(runtime, 1).map_err(|error| CopyError::Signal(Box::new(error)));
    let signals = (0..chunks).map(|_| Ok([signal()?, signal()?])).collect::<Result<Vec<_>, CopyError>>()?;
    let Some([_, last]) = signals.last() else { return Err(CopyError::Length { to: bytes, from: bytes }) };
    let transfer_signal = last.clone();
    let engines = [into.engine.clone(), out_of.engine.clone()];
    let under_way = Arc::new(UnderWay { engines, _stage: stage.clone(), signals, failed: OnceLock::new() });

    let staged = context.layer::<Staging>();
    let mut staging = staged.0.lock();
    staging.retain(|other| !other.is_done());
    staging.push(Arc::clone(&under_way));
    for (n, (slot, [filled, emptied])) in (0..chunks).zip((0..SLOTS).cycle().zip(&under_way.signals)) {
        let (at, slot) = (n * chunk, stage.va() + slot * chunk);
        let part = chunk.min(bytes - at.min(bytes));
        // The slot's last chunk must be out of it. The first chunks wait for what the caller waits for, all others
        // thereby.
        let free = n.checked_sub(SLOTS).and_then(|before| under_way.signals.get(size(before)));
        let free = free.map(|[_, emptied]| [emptied]);
        let wait = free.as_ref().map_or(after, |free| free.as_slice());
        let piece = Piece { to: slot, from: into.va + at, bytes: part };
        let submitted = into.engine.copy(piece, wait, &[into.buffer, &stage], filled).and_then(|()| {
            let piece = Piece { to: out_of.va + at, from: slot, bytes: part };
            out_of.engine.copy(piece, &[filled], &[out_of.buffer, &stage], emptied)
        });
        if let Err(error) = submitted {
            // What is in the queues already must not wait for what never comes.
            under_way.release();
            return Err(error);
        }
    }
    drop(staging);
    let hold = Hold { staging: staged, under_way };
    Ok(Transfer {
        signal: transfer_signal,
        engine: out_of.engine.kind(),
        path: CopyPath::Staged,
        staged: Some(hold),
    })
}
