// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restores that let the process run before its contents are there: which buffers come later, where their contents come from, and the
//! threads that bring what no call asks for.
//!
//! INVARIANT: nothing is placed in a buffer whose hash does not fit; a process of which such a piece is missing ends, with the image's
//! name, and the image is as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::ErrorKind;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kfd::forks::Uninherited;
use kfd::linux::exit_now;
use parking_lot::Mutex;
use queues::words::size;
use stasis_protocol::Limit;
use stasis_protocol::arrivals::Piece;
use stasis_protocol::gate::Pass;

use super::error::{CheckpointError, device};
use super::last_line;
use crate::context::Context;
use crate::context::error::explain;
use crate::context::memory::arriving::{ArrivalError, Awaited, PIECE_BYTES, Source};
use crate::context::program::Program;
use crate::context::registry::state::{BoKey, BoKind, BoRole, BoState};
use crate::context::registry::{Executable, Registry};
use crate::image::{CHUNK_BYTES, ChunkBuffer, Image, ImageError};

const _: () = assert!(PIECE_BYTES == CHUNK_BYTES);

/// With which status a process ends that cannot have its contents: `EX_IOERR` of sysexits.h.
const STATUS: i32 = 74;

/// How often, and how far apart, memory is asked for again that is not to be had: a limit leaves the process little.
const RETRIES: u32 = 250;
const PAUSE: Duration = Duration::from_millis(20);

/// Why contents cannot come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotLazy {
    #[error("the program has pointers to device memory that this runtime knows nothing of")]
    Pointers,
    #[error("its queues were stopped in the middle of kernels, which go on where they were")]
    Preempted,
    #[error("packets wait in a queue, which may begin at any moment")]
    Waiting,
    #[error("agents use shared virtual memory (SVM), in which any pointer may be")]
    Svm,
    #[error("a code object has addresses that were given to it from outside")]
    Symbols,
    #[error("physical memory is mapped into ranges, which all kernels may reach")]
    Ranges,
}

/// Whether the contents of such an object may come later: the process sees it, and no other has it.
fn may_wait(state: &BoState) -> bool {
    state.role == BoRole::User
        && matches!(state.kind, BoKind::Vram | BoKind::Gtt)
        && state.sharing.is_none()
        && state.cpu_mapped
}

/// Whether addresses of other memory may be in its code, where no look at its words finds them.
fn has_foreign_addresses(loaded: &Executable) -> bool {
    let has = |program: &Arc<Program>| program.object().plan().undefined().next().is_some();
    loaded.program.as_ref().is_none_or(has)
}

/// The buffers whose contents may come later.
pub(super) fn choose(context: &Context, registry: &Registry) -> Result<BTreeSet<BoKey>, NotLazy> {
    let mut states = registry.bos.iter().map(|(_, bo)| &bo.state);
    let refusals = [
        (context.guard.is_enabled(), NotLazy::Pointers),
        (registry.queues.iter().any(|(_, queue)| queue.keeps_packets()), NotLazy::Waiting),
        (registry.svm.iter().next().is_some(), NotLazy::Svm),
        (registry.executables.iter().any(|(_, loaded)| has_foreign_addresses(loaded)), NotLazy::Symbols),
        (states.any(|state| state.role == BoRole::Physical), NotLazy::Ranges),
    ];
    match refusals.into_iter().find(|(is_so, _)| *is_so) {
        Some((_, why)) => Err(why),
        None => Ok(registry
            .bos
            .iter()
            .filter(|(_, bo)| bo.file.is_none() && bo.kernel.is_none() && may_wait(&bo.state))
            .map(|(key, _)| key)
            .collect()),
    }
}

/// An image from which contents come.
#[derive(Debug)]
pub(super) struct LazyImage {
    /// Children that are forked do not keep the files. First, so that it goes before the descriptors do.
    _uninherited: Vec<Uninherited>,
    image: Arc<Image>,
    /// The extents of the buffers at these addresses.
    extents: BTreeMap<u64, u32>,
    buffers: Mutex<Vec<ChunkBuffer>>,
}

impl LazyImage {
    fn read_extent(&self, extent: u32, offset: u64, give: &mut dyn FnMut(&[u8])) -> Result<(), ImageError> {
        let Some(chunk) = self.image.chunk_at(extent, offset) else {
            give(&[]);
            return Ok(());
        };
        let mut buffer = self.buffers.lock().pop().unwrap_or_default();
        let mut left = RETRIES;
        let read = loop {
            match self.image.read_chunk(chunk, &mut buffer, |bytes| give(bytes)) {
                Err(ImageError::Io { source, .. }) if source.kind() == ErrorKind::OutOfMemory && left > 0 => {
                    left -= 1;
                    std::thread::sleep(PAUSE);
                }
                read => break read,
            }
        };
        self.buffers.lock().push(buffer);
        read
    }
}

impl Source for LazyImage {
    fn read(&self, piece: Piece, give: &mut dyn FnMut(&[u8])) -> Result<(), Box<dyn Error + Send + Sync>> {
        match self.extents.get(&piece.object) {
            Some(extent) => self.read_extent(*extent, piece.index as u64 * PIECE_BYTES, give)?,
            None => give(&[]),
        }
        Ok(())
    }

    fn give_up(&self, error: &(dyn Error + 'static)) -> ! {
        let pid = std::process::id();
        let error = explain(error);
        tracing::error!(target: "checkpoint", status = STATUS, error, "a process cannot have its contents");
        last_line::say(
            std::io::stderr(),
            &format!(
                "stasis: process {pid} ends with status {STATUS}: contents that it was restored without cannot be had: {error}; \
                 the checkpoint is as it was\n"
            ),
        );
        // Its threads wait for what will not come, in exit's handlers, too.
        exit_now(STATUS)
    }
}

/// Has the contents of some buffers come from an image from now on, whose extents have these names.
pub(super) fn begin(
    context: &Arc<Context>,
    keys: &BTreeSet<BoKey>,
    image: &Arc<Image>,
    names: &[String],
) -> Result<(), ImageError> {
    let registry = context.registry.lock();
    let numbers: BTreeMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
    let extent_of = |key: BoKey| numbers.get(key.to_string().as_str()).copied();
    let mut source = LazyImage {
        _uninherited: image.files().map(Uninherited::new).collect(),
        image: Arc::clone(image),
        extents: BTreeMap::new(),
        buffers: Mutex::default(),
    };
    let (mut awaited, mut lengths) = (Vec::new(), BTreeMap::new());
    for &key in keys {
        let Some(bo) = registry.bos.get(key) else { continue };
        let (va, bytes) = (bo.state.va, bo.state.bytes);
        // Every buffer has an extent, or the image is another's.
        let missing = || ImageError::Extents { expected: keys.len(), found: names.len() };
        let extent = extent_of(key).ok_or_else(missing)?;
        source.extents.insert(va, extent);
        lengths.insert(extent as usize, bytes);
        let piece =
            |n| image.chunk_at(extent, n * PIECE_BYTES).map_or(0, |chunk| image.chunks()[chunk].length);
        awaited.push(Awaited {
            key,
            va,
            bytes,
            pieces: (0..bytes.div_ceil(PIECE_BYTES)).map(piece).collect(),
        });
    }
    image.check(names.len(), |extent| lengths.get(&extent).copied())?;
    // What programs have in their variables is filled already.
    let mut variables = Vec::new();
    for (key, bo) in registry.bos.iter().filter(|(_, bo)| bo.state.role == BoRole::Image) {
        let Some(extent) = extent_of(key) else { continue };
        for offset in (0..bo.state.bytes).step_by(size(PIECE_BYTES)) {
            source.read_extent(extent, offset, &mut |bytes| variables.push((key, bytes.to_vec())))?;
        }
    }
    context.arriving.begin(&registry, Arc::new(source), awaited, |hold| {
        variables.iter().for_each(|(key, bytes)| hold(*key, bytes));
    });
    Ok(())
}

/// Brings what a restore has left for later, for a verb that needs all of it.
pub(super) fn bring_rest(
    context: &Context,
    pass: &Pass<'_>,
    verb: &'static str,
    limit: &Limit,
) -> Result<(), CheckpointError> {
    context.arriving.all_within(context, pass, limit).map_err(|error| match error {
        ArrivalError::Mapping(error) => device("to map a buffer whose contents have come")(error),
        ArrivalError::Stopped(stopped) => CheckpointError::Stopped { verb, stopped },
    })
}

/// Starts the threads that bring what no call asks for, half as many as there are cores. A thread that asks brings it itself.
pub(super) fn start_threads(context: &Arc<Context>) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for _ in 0..cores.div_ceil(2) {
        let context = Arc::downgrade(context);
        let thread = std::thread::Builder::new().name("stasis-arrivals".to_owned());
        if let Err(error) = thread.spawn(move || bring(&context)) {
            tracing::warn!(target: "checkpoint", %error, "contents come when they are asked for");
        }
    }
}

/// Brings piece after piece, each inside the gate.
fn bring(context: &Weak<Context>) {
    while let Some(context) = context.upgrade() {
        let Ok(pass) = context.gate.enter() else { return };
        if !context.arriving.is_active() || !context.arriving.bring_one(&context, &pass) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
