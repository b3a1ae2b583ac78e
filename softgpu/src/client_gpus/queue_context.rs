// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of an AQL, PM4 or SDMA queue: it is run, saved into a descriptor, and restored from one.
//!
//! INVARIANT: `load` of what `store` wrote, with the same waves, is the same state; any other
//! input of `load` is refused, or runs as a queue that can harm only its own client.

use nix::errno::Errno;
use queues::aql::ExceptionCode;
use queues::save_area::WaveRecord;

use super::core::{Core, Exit};
use super::gpu::Gpu;
use super::mqd::{Reader, Writer};
use super::xccs::{DispatchWaves, SplitWaves};
use super::{aql, pm4, sdma};
use crate::hardware::{HwQueue, HwQueueKind, Mqd};

/// Why a saved queue is halted, with the waves that are in its save area.
#[derive(Debug)]
pub(super) struct Halt {
    /// The queue's exception.
    pub(super) code: ExceptionCode,
    /// The waves it left, which are of one dispatch.
    pub(super) waves: Vec<WaveRecord>,
    /// Their XCC.
    pub(super) xcc: usize,
}

/// The state of a queue between two packets, or in the middle of one.
#[derive(Debug)]
pub(super) enum QueueContext {
    /// HSA packets.
    Aql(aql::AqlContext),
    /// PM4 packets.
    Pm4(pm4::Pm4Context),
    /// System DMA packets.
    Sdma(sdma::SdmaContext),
}

impl QueueContext {
    /// A queue that has never run.
    pub(super) fn new(kind: HwQueueKind) -> Self {
        match kind {
            HwQueueKind::Aql => Self::Aql(aql::AqlContext::default()),
            HwQueueKind::Compute => Self::Pm4(pm4::Pm4Context::default()),
            HwQueueKind::Sdma => Self::Sdma(sdma::SdmaContext::default()),
        }
    }

    /// The state that a descriptor holds, with the waves that the save area of each XCC holds.
    ///
    /// # Errors
    /// `EINVAL` when the descriptor is of another kind of queue, or contradicts itself or the waves.
    pub(super) fn load(
        gpu: &Gpu,
        config: &HwQueue,
        mqd: &Mqd,
        areas: Vec<Vec<WaveRecord>>,
    ) -> Result<(Self, Option<Halt>), Errno> {
        let xcc = areas.iter().position(|waves| !waves.is_empty()).unwrap_or(0);
        let waves = match areas.len() {
            0 | 1 => areas.into_iter().flatten().collect(),
            _ => {
                let mut second = Reader::new(mqd, config.kind)?;
                second.next_xcc();
                SplitWaves::load(&mut second, areas)?.into_dispatches()
            }
        };
        let mut reader = Reader::new(mqd, config.kind)?;
        let code = match reader.take() {
            0 => None,
            code => Some(ExceptionCode::from_code(code).ok_or(Errno::EINVAL)?),
        };
        // The waves of a halted queue are kept for debuggers; they do not run again.
        let (waves, halted) = match code {
            Some(code) => (Vec::new(), Some(Halt { code, waves, xcc })),
            None => (waves, None),
        };
        let context = match config.kind {
            HwQueueKind::Aql => Self::Aql(aql::AqlContext::load(&mut reader, gpu, config, waves)?),
            HwQueueKind::Compute => Self::Pm4(pm4::Pm4Context::load(&mut reader, gpu, config, waves)?),
            HwQueueKind::Sdma => Self::Sdma(sdma::SdmaContext::load(&mut reader)?),
        };
        Ok((context, halted))
    }

    /// Writes the state; `halted` with the exception that halted the queue. Of `waves` it writes only whose they are.
    pub(super) fn store(&self, writer: &mut Writer, halted: Option<ExceptionCode>, waves: &SplitWaves<'_>) {
        // CAST: the discriminant is the code.
        writer.put(halted.map_or(0, |code| code as u32));
        match self {
            Self::Aql(context) => context.store(writer),
            Self::Pm4(context) => context.store(writer),
            Self::Sdma(context) => context.store(writer),
        }
        if waves.of_xcc.len() > 1 {
            writer.next_xcc();
            waves.store(writer);
            if let Self::Aql(context) = self {
                context.store_further_xccs(writer);
            }
        }
    }

    /// Executes packets until the driver or an exception stops it.
    pub(super) fn run(&mut self, core: &Core) -> Exit {
        match self {
            Self::Aql(context) => context.run(core),
            Self::Pm4(context) => context.run(core),
            Self::Sdma(context) => context.run(core),
        }
    }

    /// The waves of the interrupted dispatches.
    pub(super) fn waves(&self) -> Vec<DispatchWaves<'_>> {
        match self {
            Self::Aql(context) => context.waves(),
            Self::Pm4(context) => vec![context.waves()],
            Self::Sdma(_) => Vec::new(),
        }
    }

    /// Whether a dispatch has begun and not ended, with waves or without.
    pub(super) fn is_unfinished(&self) -> bool {
        match self {
            Self::Aql(context) => context.is_unfinished(),
            Self::Pm4(context) => context.is_unfinished(),
            Self::Sdma(_) => false,
        }
    }

    /// `COMPUTE_PGM_RSRC1` of each dispatch that has running waves.
    pub(super) fn preempted_rsrc1(&self) -> Vec<u32> {
        match self {
            Self::Aql(context) => context.preempted_rsrc1(),
            Self::Pm4(context) => context.preempted_rsrc1().into_iter().collect(),
            Self::Sdma(_) => Vec::new(),
        }
    }
}
