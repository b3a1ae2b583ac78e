// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dispatches: a kernel, a grid, arguments, checked and written into a queue.
//!
//! INVARIANT: everything is checked before a slot is reserved, so a submission that fails leaves the queue as it was.
//! Once the checks are through there is no lock, no syscall and no allocation (arguments above 4 KiB excepted).
//!
//! Order: a dispatch acquires and releases at system scope and, unless `.barrier(false)`, starts after all packets
//! before it have completed.

mod arg;
pub(crate) mod batch;
pub(crate) mod list;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use queues::aql::{FenceScope, Header, KernelDispatch, PacketKind, RawPacket};
use stasis_protocol::gate::Pass;

pub use self::arg::Arg;
use self::arg::{are_words, try_put_words};
use crate::code_object::{ExplicitArgument, Geometry, axes};
use crate::context::error::SubmitError;
use crate::context::hostcall::Hostcall;
use crate::context::memory::mapped::Mapped;
use crate::context::queue::host_calls;
use crate::context::queue::live::aql::Reservation;
use crate::context::signal::make::submitted;
use crate::copy::Span;
use crate::executable::Kernel;
use crate::queue::Queue;
use crate::signal::Signal;

/// Bytes of the smallest kernel-argument slot; every slot is a multiple of it.
const SMALL_BLOCK: usize = 64;
/// TIMEOUT: how long a submission sleeps before it looks for the first time again whether a full queue has room.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
/// TIMEOUT: the longest such sleep; each is twice the one before.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
enum Arguments<'a> {
    Checked(&'a [Arg<'a>]),
    Raw(&'a [u8]),
}

/// A dispatch being put together; see [`Queue::dispatch`].
#[derive(Clone, Debug)]
#[must_use = "a dispatch does nothing until it is submitted"]
pub struct Dispatch<'a> {
    queue: &'a Queue,
    kernel: &'a Kernel,
    /// Zeros until it is given.
    grid: [u32; 3],
    has_grid: bool,
    /// Its axes; 0 for an empty one. What follows from the shape is found with it, where it is often known to the compiler.
    grid_axes: u8,
    block: [u16; 3],
    block_axes: u8,
    /// Work-items of a work-group.
    items: u64,
    dynamic_lds: u32,
    arguments: Arguments<'a>,
    barrier: bool,
    completion: Option<&'a Signal>,
}

impl Queue {
    /// Starts a dispatch of `kernel`: give it a grid, a block and arguments, then submit it.
    #[inline]
    pub fn dispatch<'a>(&'a self, kernel: &'a Kernel) -> Dispatch<'a> {
        Dispatch {
            queue: self,
            kernel,
            grid: [0; 3],
            has_grid: false,
            grid_axes: 0,
            block: [1; 3],
            block_axes: 1,
            items: 1,
            dynamic_lds: 0,
            arguments: Arguments::Checked(&[]),
            barrier: true,
            completion: None,
        }
    }
}

impl<'a> Dispatch<'a> {
    /// Work-items of the whole grid in x, y and z. The last work-group of a dimension may be partial.
    #[inline]
    pub fn grid(mut self, work_items: [u32; 3]) -> Self {
        self.grid = work_items;
        self.has_grid = true;
        self.grid_axes = if work_items.contains(&0) { 0 } else { axes(&work_items) };
        self
    }

    /// Work-items of a work-group in x, y and z.
    #[inline]
    pub fn block(mut self, work_items: [u16; 3]) -> Self {
        self.block = work_items;
        self.block_axes = axes(&work_items);
        self.items = work_items.iter().map(|&size| u64::from(size)).product();
        self
    }

    /// LDS beyond what the kernel has compiled in, bytes.
    #[inline]
    pub fn dynamic_lds(mut self, bytes: u32) -> Self {
        self.dynamic_lds = bytes;
        self
    }

    /// Its arguments, which are checked against the kernel's metadata.
    #[inline]
    pub fn args(mut self, arguments: &'a [Arg<'a>]) -> Self {
        self.arguments = Arguments::Checked(arguments);
        self
    }

    /// Its argument block as bytes: the whole of it, or the part before the hidden arguments. What it points at is
    /// not checked.
    #[inline]
    pub fn raw_kernarg(mut self, block: &'a [u8]) -> Self {
        self.arguments = Arguments::Raw(block);
        self
    }

    /// Whether it waits for all packets before it (the default), or may overlap them.
    #[inline]
    pub fn barrier(mut self, wait: bool) -> Self {
        self.barrier = wait;
        self
    }

    /// The signal that its completion decrements.
    #[inline]
    pub fn completion(mut self, signal: &'a Signal) -> Self {
        self.completion = Some(signal);
        self
    }

    /// Checks it and writes it into the queue. Returns the packet's index.
    ///
    /// # Errors
    /// [`SubmitError::WouldBlock`] when the queue is full, [`SubmitError::Queue`] when it stopped, otherwise what is
    /// wrong with the dispatch. Nothing was submitted then.
    pub fn submit(self) -> Result<u64, SubmitError> {
        let handle = &*self.queue.0;
        let pass = handle.context.gate.enter()?;
        if handle.context.arriving.is_active() {
            // Before anything is looked at that another thread may end meanwhile.
            self.await_contents(&pass)?;
        }
        handle.check_alive()?;
        self.check_launch()?;
        let mut block = [0; SMALL_BLOCK];
        let is_filled = self.try_fill(&mut block);
        if !is_filled {
            self.check_arguments(&pass)?;
        }
        let index = {
            let mut slot = handle.live.reserve(&pass, 1)?;
            self.note_uses();
            if let Some(signal) = self.completion {
                signal.live().promise();
            }
            self.publish(&mut slot, is_filled.then_some(&block))
        };
        submitted(&handle.context, &pass, &handle.live, self.completion.map(Signal::live));
        Ok(index)
    }

    /// As [`Dispatch::submit`], but waits up to `timeout` while the queue is full. A process may be checkpointed and
    /// restored meanwhile, and that time counts.
    ///
    /// # Errors
    /// [`SubmitError::Timeout`] with the time waited instead of [`SubmitError::WouldBlock`]; otherwise as for
    /// [`Dispatch::submit`], at once. Nothing was submitted then.
    pub fn submit_timeout(self, timeout: Duration) -> Result<u64, SubmitError> {
        retry(timeout, || self.clone().submit())
    }

    /// Writes it into the next slot of a reservation, with its arguments if they are in a block already. It was checked, its
    /// uses noted and its completion promised.
    #[inline(always)]
    fn publish(&self, slots: &mut Reservation<'_>, block: Option<&[u8; SMALL_BLOCK]>) -> u64 {
        let kernargs = slots.kernargs();
        if let Some(kernargs) = kernargs {
            match block {
                // The whole of the smallest slot: a copy of known length needs no call.
                Some(_) if self.kernel.layout.bytes() == 0 => {}
                Some(block) => kernargs.write(0, block),
                None => self.write_block(kernargs),
            }
        }
        slots.publish(self.packet(kernargs.map_or(0, Mapped::va)))
    }

    /// Fills in a small block of zeros if the arguments are words, all explicit and right; otherwise `false`, and
    /// [`Dispatch::check_arguments`] says whether anything is wrong. The common case, in one pass.
    #[inline(always)]
    fn try_fill(&self, block: &mut [u8; SMALL_BLOCK]) -> bool {
        match self.small_arguments() {
            Some((_, [])) => true,
            Some((places, arguments)) => try_put_words(&self.queue.0.context, places, arguments, block),
            None => false,
        }
    }

    /// Its arguments with their places, if there are as many as the kernel takes, and only they are in a block that is small.
    #[inline(always)]
    fn small_arguments(&self) -> Option<(&[ExplicitArgument], &'a [Arg<'a>])> {
        let (places, bytes) = (self.kernel.layout.all_explicit()?, self.kernel.layout.bytes());
        match self.arguments {
            Arguments::Checked(arguments) if places.len() == arguments.len() && bytes <= SMALL_BLOCK => {
                Some((places, arguments))
            }
            _ => None,
        }
    }

    /// Writes its argument block into a slot. The block is put together here and copied: shared memory is never borrowed.
    #[inline(never)]
    fn write_block(&self, slot: Mapped) {
        let write = |block: &mut [u8]| {
            self.fill_block(block);
            slot.write(0, block);
        };
        match self.kernel.layout.bytes() {
            bytes @ 0..=512 => write(&mut [0; 512][..bytes]),
            bytes @ 513..=4096 => write(&mut [0; 4096][..bytes]),
            bytes => write(&mut vec![0; bytes]),
        }
    }

    /// Fills in a block of zeros. The arguments were checked.
    #[inline]
    fn fill_block(&self, block: &mut [u8]) {
        let geometry = &self.geometry();
        match self.arguments {
            Arguments::Checked(arguments) => self.kernel.layout.fill_checked(arguments, geometry, block),
            Arguments::Raw(raw) => self.kernel.layout.fill_raw_checked(raw, geometry, block),
        }
    }

    /// Its packet with its arguments at this address.
    #[inline(always)]
    fn packet(&self, kernarg_address: u64) -> RawPacket {
        let header = Header {
            barrier: self.barrier,
            acquire: FenceScope::System,
            release: FenceScope::System,
            ..Header::new(PacketKind::KernelDispatch)
        };
        let packet = KernelDispatch {
            header,
            dimensions: self.grid_axes.max(self.block_axes),
            workgroup: self.block,
            grid: self.grid,
            private_segment_bytes: self.private_bytes(),
            group_segment_bytes: self.kernel.kernel.metadata.group_bytes + self.dynamic_lds,
            kernel_object: self.kernel.object_va,
            kernarg_address,
            completion_signal: self.completion.map_or(0, Signal::handle),
        };
        packet.encode()
    }

    /// What hidden arguments can tell.
    #[inline]
    fn geometry(&self) -> Geometry {
        let handle = &*self.queue.0;
        Geometry {
            dynamic_lds_bytes: self.dynamic_lds,
            queue: handle.page_va,
            private_base_hi: handle.private_base_hi,
            shared_base_hi: handle.shared_base_hi,
            hostcall: handle.live.hostcall().map_or(0, Hostcall::va),
            ..Geometry::new(self.grid, self.block)
        }
    }

    /// Scratch bytes a lane needs; a dynamic stack takes all the queue was made with.
    #[inline]
    fn private_bytes(&self) -> u32 {
        let metadata = &self.kernel.kernel.metadata;
        match metadata.uses_dynamic_stack {
            true => metadata.private_bytes.max(self.queue.0.live.scratch_lane_bytes),
            false => metadata.private_bytes,
        }
    }

    /// Everything that can be wrong with it apart from the queue.
    #[inline]
    fn check(&self, pass: &Pass<'_>) -> Result<(), SubmitError> {
        self.check_launch()?;
        match self.small_arguments() {
            Some((_, [])) => Ok(()),
            Some((places, arguments)) if are_words(&self.queue.0.context, places, arguments) => Ok(()),
            _ => self.check_arguments(pass),
        }
    }

    /// Everything that can be wrong with it apart from the queue and its arguments.
    #[inline]
    fn check_launch(&self) -> Result<(), SubmitError> {
        let handle = &*self.queue.0;
        let (loaded, limits) = (self.kernel.executable().agent(), &self.kernel.limits);
        let fits = loaded.is_of(&handle.context)
            && loaded.index() == handle.agent.index()
            && limits.is_plain
            && self.grid_axes != 0
            && (1..=limits.items).contains(&self.items)
            && self.dynamic_lds <= limits.dynamic_lds
            && self.kernel.layout.bytes() as u64 <= handle.live.memory().kernarg_slot;
        if fits { Ok(()) } else { self.check_closely() }
    }

    /// What is wrong with a dispatch that is not plainly right, if anything is.
    #[cold]
    fn check_closely(&self) -> Result<(), SubmitError> {
        let handle = &*self.queue.0;
        let kernel = || self.kernel.name().to_owned();
        if !self.has_grid {
            return Err(SubmitError::NoGrid { kernel: kernel() });
        }
        let loaded = self.kernel.executable().agent();
        if !loaded.is_of(&handle.context) || loaded.index() != handle.agent.index() {
            let place = |agent: &crate::agent::Agent| format!("{} ({})", agent.name(), agent.uuid());
            let (loaded, queue) = (place(loaded), place(&handle.agent));
            return Err(SubmitError::OtherAgent { kernel: kernel(), loaded, queue });
        }
        let limits = &self.kernel.limits;
        self.kernel.kernel.check_launch(&self.geometry(), limits.lds)?;
        let (wanted, max) = (self.private_bytes(), limits.scratch);
        if wanted > max {
            return Err(SubmitError::Scratch { kernel: kernel(), wanted, max });
        }
        let (bytes, slot) = (self.kernel.layout.bytes() as u64, handle.live.memory().kernarg_slot);
        if bytes > slot {
            return Err(SubmitError::KernargSlot { kernel: kernel(), bytes, slot });
        }
        Ok(())
    }

    /// Everything that can be wrong with its arguments; the queue has what a kernel needs to call the host then.
    fn check_arguments(&self, pass: &Pass<'_>) -> Result<(), SubmitError> {
        let handle = &*self.queue.0;
        let (context, layout) = (&handle.context, &self.kernel.layout);
        match self.arguments {
            Arguments::Checked(arguments) => {
                for (index, argument) in arguments.iter().enumerate() {
                    argument.check(context, index)?;
                }
                layout.check(arguments)?;
            }
            Arguments::Raw(raw) => layout.check_raw(raw)?,
        }
        if layout.calls_host() && handle.live.hostcall().is_none() {
            let provided = host_calls::provide(context, pass, &handle.agent.info, handle.key, &handle.live);
            provided
                .map_err(|source| SubmitError::HostCalls { kernel: self.kernel.name().to_owned(), source })?;
        }
        Ok(())
    }

    /// Has the contents of the buffers be here that the kernel may reach, if they are still to come.
    #[cold]
    fn await_contents(&self, pass: &Pass<'_>) -> Result<(), SubmitError> {
        let handle = &*self.queue.0;
        if handle.is_internal {
            return Ok(());
        }
        let (context, arriving) = (&handle.context, &handle.context.arriving);
        let reached = match self.arguments {
            Arguments::Checked(arguments) => {
                arriving.reached(context, pass, arguments.iter().map(AsRef::as_ref))
            }
            Arguments::Raw(block) => arriving.reached(context, pass, [block]),
        };
        reached.map_err(SubmitError::Contents)
    }

    #[inline]
    fn note_uses(&self) {
        let queue = self.queue.key();
        self.kernel.executable().note_use(queue);
        if let Arguments::Checked(arguments) = self.arguments {
            for argument in arguments {
                match argument {
                    Arg::Buffer(buffer) | Arg::Span(Span { buffer, .. }) => buffer.note_use(queue),
                    _ => {}
                }
            }
        }
    }
}

/// Submits again and again for up to `timeout` while the queue is full.
fn retry<T>(timeout: Duration, submit: impl Fn() -> Result<T, SubmitError>) -> Result<T, SubmitError> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let packets = match submit() {
            Err(SubmitError::WouldBlock { packets, .. }) => packets,
            result => return result,
        };
        let waited = start.elapsed();
        if waited >= timeout {
            return Err(SubmitError::Timeout { packets, waited });
        }
        // The thread sleeps outside the gate, so that it holds up no checkpoint.
        std::thread::sleep(pause.min(timeout - waited));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
