// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers whose contents are still to come, while the process runs: they come when something looks at them, and else by themselves.
//!
//! A restore that is asked to ([`crate::checkpoint::Admission::lazy`]) makes such buffers without their contents, and maps them
//! to no agent. Every call that looks at a buffer, or lets an agent do so, first asks here for what it needs: [`Arriving::here`] for
//! bytes that the process itself reads or writes, [`Arriving::whole`] for a buffer that is given away, [`Arriving::reached`] for what a
//! kernel may reach from its arguments, [`Arriving::all`] where that is not known.
//!
//! INVARIANT: a buffer is mapped to its agents when it is whole. A call that forgot to ask has an agent fault, and never look at
//! memory that is not filled.

mod reach;

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use queues::words::size;
use stasis_protocol::arrivals::{Arrivals, BringError, Fill, Piece, Want};
use stasis_protocol::gate::Pass;
use stasis_protocol::{Limit, Stopped};

use self::reach::{Reach, addresses};
use super::host_writes::Written;
use super::mapped;
use crate::context::Context;
use crate::context::error::{DeviceError, explain};
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, BoRole};
use crate::linux::pages::HugePages;

/// Bytes of a piece of a buffer.
pub const PIECE_BYTES: u64 = 2 << 20;

/// Where contents come from.
pub trait Source: std::fmt::Debug + Send + Sync {
    /// Gets a piece of the buffer at the address `piece.object` and gives out its bytes, up to the last that is not zero, if they are
    /// those that were saved.
    ///
    /// # Errors
    /// Why they are not to be had; nothing was given out then.
    fn read(&self, piece: Piece, give: &mut dyn FnMut(&[u8])) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Ends the process, which cannot go on without its contents.
    fn give_up(&self, error: &(dyn Error + 'static)) -> !;
}

/// A buffer whose contents are to come.
#[derive(Clone, Debug)]
pub struct Awaited {
    /// The buffer.
    pub key: BoKey,
    /// Its address.
    pub va: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes of each piece that are to come; 0 for one of zeros.
    pub pieces: Vec<u64>,
}

/// A context's buffers whose contents are to come.
#[derive(Debug, Default)]
pub struct Arriving {
    arrivals: Arrivals,
    reach: Mutex<Reach>,
    origin: Mutex<Option<Origin>>,
    /// A kernel was submitted since the restore.
    has_run: AtomicBool,
    /// For what comes.
    huge: HugePages,
}

/// Whose contents come, and from where.
#[derive(Clone, Debug)]
struct Origin {
    /// Until the last byte is here.
    source: Option<Arc<dyn Source>>,
    /// By address: the key, and the length in bytes.
    buffers: Arc<BTreeMap<u64, (BoKey, u64)>>,
}

/// The filling of buffers by a thread whose call has passed the gate.
struct Filling<'c> {
    context: &'c Context,
    pass: &'c Pass<'c>,
    origin: Origin,
}

/// Why a buffer is not whole.
enum Missing {
    /// A piece is not to be had, or is not what was saved.
    Contents(Box<dyn Error + Send + Sync>),
    /// The driver does not map it to its agents.
    Mapping(DeviceError),
}

/// Why what was asked for is not here.
#[derive(Debug, thiserror::Error)]
pub enum ArrivalError {
    /// The driver does not map a buffer to its agents; the next call that wants it tries again.
    #[error("A buffer whose contents have come cannot be mapped to its agents")]
    Mapping(#[from] DeviceError),
    /// The time is over.
    #[error("Contents are still to come: {0}")]
    Stopped(#[from] Stopped),
}

impl Fill for Filling<'_> {
    type Error = Missing;

    fn read(&self, piece: Piece, give: &mut dyn FnMut(&[u8])) -> Result<(), Missing> {
        match &self.origin.source {
            Some(source) => source.read(piece, give).map_err(Missing::Contents),
            None => Ok(()),
        }
    }

    fn place(&self, piece: Piece, bytes: &[u8]) {
        let Some((_, length)) = self.origin.buffers.get(&piece.object) else { return };
        let offset = piece.index as u64 * PIECE_BYTES;
        assert!(
            offset + bytes.len() as u64 <= *length,
            "INVARIANT: pieces were found to be in their buffers"
        );
        let Some(view) = mapped::view(piece.object + offset, bytes.len() as u64) else { return };
        view.populate(&self.context.arriving.huge);
        view.write(0, bytes);
        self.context.host_writes.note(Written::ANY);
        let window = self.context.arriving.reach.lock().window();
        let mut found: Vec<u64> = addresses(bytes, window).collect();
        if !found.is_empty() {
            found.dedup();
            self.context.arriving.reach.lock().note(piece.object, 0, found);
        }
    }

    fn whole(&self, object: u64) -> Result<(), Missing> {
        let Some((key, _)) = self.origin.buffers.get(&object) else { return Ok(()) };
        let mut registry = self.context.registry.lock();
        match (registry.bos.get_mut(*key), self.context.device(self.pass)) {
            (Some(bo), Some(device)) => device.map_awaited(bo).map_err(Missing::Mapping),
            _ => Ok(()),
        }
    }
}

/// What came of something that no limit ends.
fn unlimited(brought: Result<(), ArrivalError>) -> Result<(), DeviceError> {
    match brought {
        Err(ArrivalError::Mapping(error)) => Err(error),
        Ok(()) | Err(ArrivalError::Stopped(_)) => Ok(()),
    }
}

impl Arriving {
    /// Whether contents are to come. One load.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.arrivals.is_active()
    }

    /// Bytes that are to come.
    pub fn left_bytes(&self) -> u64 {
        self.arrivals.left_bytes()
    }

    /// Has the contents of buffers come from a source. No call is inside the gate. What other buffers `hold`, which are filled, is
    /// theirs to say: addresses that it gives with the buffer's key.
    pub fn begin(
        &self,
        registry: &Registry,
        source: Arc<dyn Source>,
        awaited: Vec<Awaited>,
        hold: impl FnOnce(&mut dyn FnMut(BoKey, &[u8])),
    ) {
        self.clear();
        let mut reach = self.reach.lock();
        reach.begin(registry.arena.window());
        for (_, bo) in registry.bos.iter() {
            let state = &bo.state;
            match state.role {
                BoRole::Image => reach.add_root(state.va, state.bytes),
                BoRole::User if bo.is_awaited => reach.add(state.va, state.bytes),
                // Others have it, or it was filled without a look at it.
                BoRole::User => reach.add_opaque(state.va, state.bytes),
                _ => {}
            }
        }
        let window = reach.window();
        hold(&mut |key, bytes| {
            if let Some(bo) = registry.bos.get(key) {
                reach.note(bo.state.va, bo.state.bytes, addresses(bytes, window.clone()));
            }
        });
        drop(reach);
        let buffers =
            Arc::new(awaited.iter().map(|buffer| (buffer.va, (buffer.key, buffer.bytes))).collect());
        *self.origin.lock() = Some(Origin { source: Some(source), buffers });
        self.has_run.store(false, Ordering::Relaxed);
        self.arrivals.announce(awaited.into_iter().map(|buffer| (buffer.va, buffer.pieces)));
        self.look();
    }

    /// Nothing is to come any more. No call is inside the gate.
    pub fn clear(&self) {
        self.arrivals.clear();
        self.look();
    }

    /// Lets go of the source when all bytes are here, and of the rest when all buffers are whole.
    fn look(&self) {
        if self.arrivals.left_bytes() == 0
            && let Some(origin) = &mut *self.origin.lock()
        {
            origin.source = None;
        }
        if !self.is_active() {
            *self.origin.lock() = None;
            *self.reach.lock() = Reach::default();
        }
    }

    fn filling<'c>(&self, context: &'c Context, pass: &'c Pass<'_>) -> Option<Filling<'c>> {
        let origin = self.origin.lock().clone()?;
        Some(Filling { context, pass, origin })
    }

    /// Has `bring` bring something, and ends the process if that is not to be had.
    fn bring<'c>(
        &self,
        context: &'c Context,
        pass: &'c Pass<'_>,
        bring: impl FnOnce(&Filling<'c>) -> Result<(), BringError<Missing>>,
    ) -> Result<(), ArrivalError> {
        let Some(filling) = self.filling(context, pass) else { return Ok(()) };
        let brought = bring(&filling);
        self.look();
        match brought {
            Ok(()) => Ok(()),
            Err(BringError::Stopped(stopped)) => Err(stopped.into()),
            Err(BringError::Fill(Missing::Mapping(error))) => Err(error.into()),
            Err(BringError::Fill(Missing::Contents(error))) => match &filling.origin.source {
                Some(source) => source.give_up(&*error),
                None => Ok(()),
            },
        }
    }

    /// Brings pieces, however long it takes.
    #[cold]
    fn wait_for(&self, context: &Context, pass: &Pass<'_>, wants: &[Want]) -> Result<(), DeviceError> {
        let brought =
            self.bring(context, pass, |filling| self.arrivals.bring(wants, filling, &Limit::none()));
        unlimited(brought)
    }

    /// Brings the pieces of the buffer at `va` in which these bytes are, which the process is to read or write.
    ///
    /// # Errors
    /// [`DeviceError`]: with the last piece the buffer should have been mapped to its agents.
    #[cold]
    pub fn here(
        &self,
        context: &Context,
        pass: &Pass<'_>,
        va: u64,
        bytes: Range<u64>,
    ) -> Result<(), DeviceError> {
        let pieces = size(bytes.start / PIECE_BYTES)..size(bytes.end.div_ceil(PIECE_BYTES));
        self.wait_for(context, pass, &[Want { object: va, pieces: Some(pieces) }])
    }

    /// Brings all of the buffers at these addresses, and maps them to their agents.
    ///
    /// # Errors
    /// [`DeviceError`]: one is not mapped.
    #[inline]
    pub fn whole(&self, context: &Context, pass: &Pass<'_>, buffers: &[u64]) -> Result<(), DeviceError> {
        if !self.is_active() {
            return Ok(());
        }
        let wants: Vec<_> = buffers.iter().map(|&object| Want { object, pieces: None }).collect();
        self.wait_for(context, pass, &wants)
    }

    /// Brings everything.
    ///
    /// # Errors
    /// [`DeviceError`]: a buffer is not mapped to its agents.
    #[inline]
    pub fn all(&self, context: &Context, pass: &Pass<'_>) -> Result<(), DeviceError> {
        if !self.is_active() {
            return Ok(());
        }
        unlimited(self.all_within(context, pass, &Limit::none()))
    }

    /// Brings everything.
    ///
    /// # Errors
    /// [`ArrivalError`].
    #[cold]
    pub fn all_within(&self, context: &Context, pass: &Pass<'_>, limit: &Limit) -> Result<(), ArrivalError> {
        self.bring(context, pass, |filling| self.arrivals.bring_all(filling, limit))
    }

    /// Brings what a kernel may reach that has these blocks of arguments, which begin at multiples of eight bytes.
    ///
    /// # Errors
    /// As for [`Arriving::whole`].
    #[cold]
    pub fn reached<'b>(
        &self,
        context: &Context,
        pass: &Pass<'_>,
        blocks: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<(), DeviceError> {
        self.has_run.store(true, Ordering::Relaxed);
        let window = self.reach.lock().window();
        let words: Vec<u64> = blocks.into_iter().flat_map(|block| addresses(block, window.clone())).collect();
        self.bring_named(context, pass, &words)
    }

    fn bring_named(&self, context: &Context, pass: &Pass<'_>, words: &[u64]) -> Result<(), DeviceError> {
        // What has come names more.
        while self.is_active() {
            let found = self.reach.lock().from(words.iter().copied());
            let Some(found) = found else { return self.all(context, pass) };
            let awaited: Vec<u64> = found.into_iter().filter(|va| self.arrivals.is_awaited(*va)).collect();
            if awaited.is_empty() {
                break;
            }
            self.whole(context, pass, &awaited)?;
        }
        Ok(())
    }

    /// Brings one piece; whether there was one that no thread brings already.
    pub fn bring_one(&self, context: &Context, pass: &Pass<'_>) -> bool {
        let mut found = false;
        let brought = self.bring(context, pass, |filling| {
            // A buffer that cannot be mapped is one that others can do without.
            found = self.arrivals.bring_next(filling).or_else(|missing| match missing {
                Missing::Mapping(error) => {
                    let error = explain(&error);
                    tracing::warn!(target: "checkpoint", error, "a buffer is mapped when it is asked for");
                    Ok(true)
                }
                contents => Err(BringError::Fill(contents)),
            })?;
            Ok(())
        });
        found && brought.is_ok()
    }

    /// As if no word named any memory: a kernel that computes addresses.
    #[cfg(test)]
    pub fn pretend_nothing_is_named(&self) {
        *self.reach.lock() = Reach::default();
    }

    /// The process is to store bytes at `offset` of the buffer at `va`, of `len` bytes. What they name comes first: a kernel that was
    /// submitted already may wait for it.
    ///
    /// # Errors
    /// As for [`Arriving::whole`]; then it must not store.
    #[cold]
    pub fn store(
        &self,
        context: &Context,
        pass: &Pass<'_>,
        (va, len): (u64, u64),
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let aligned = bytes.get(size(offset.next_multiple_of(8) - offset)..).unwrap_or_default();
        let named: Vec<u64> = {
            let mut reach = self.reach.lock();
            let named: Vec<u64> = addresses(aligned, reach.window()).collect();
            reach.note(va, len, named.iter().copied());
            named
        };
        if named.is_empty() { Ok(()) } else { self.bring_named(context, pass, &named) }
    }

    /// From now on any address may be stored in the buffer at `va`, through a pointer or by another process. Brings the buffer; and
    /// everything if kernels were submitted, which may wait for such an address.
    ///
    /// # Errors
    /// As for [`Arriving::whole`].
    #[inline]
    pub fn give_out(&self, context: &Context, pass: &Pass<'_>, va: u64, len: u64) -> Result<(), DeviceError> {
        if !self.is_active() {
            return Ok(());
        }
        if self.has_run.load(Ordering::Relaxed) {
            return self.all(context, pass);
        }
        self.whole(context, pass, &[va])?;
        self.reach.lock().add_opaque(va, len);
        Ok(())
    }

    /// An agent moves bytes between buffers at these addresses, of these lengths, which are whole.
    #[cold]
    pub fn meet(&self, buffers: &[(u64, u64)]) {
        let mut reach = self.reach.lock();
        for (one, other) in buffers.iter().flat_map(|one| buffers.iter().map(move |other| (one, other))) {
            reach.link(*one, *other);
        }
    }

    /// Frees a buffer: while `free` runs nothing is placed in it, and if that succeeds never again.
    ///
    /// # Errors
    /// Those of `free`; contents come as before.
    pub fn while_freed<T, E>(&self, va: u64, free: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if !self.is_active() {
            return free();
        }
        let is_awaited = self.arrivals.hold(va);
        let freed = free();
        match (&freed, is_awaited) {
            (Ok(_), true) => self.arrivals.forget(va),
            (Err(_), true) => self.arrivals.release(va),
            (_, false) => {}
        }
        if freed.is_ok() {
            self.reach.lock().forget(va);
            self.look();
        }
        freed
    }
}
