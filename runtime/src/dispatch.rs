// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dispatches: a kernel, a grid, arguments, checked and written into a queue.
//!
//! INVARIANT: everything is checked before a slot is reserved, so a submission that fails leaves the queue as it was.
//! Once the checks are through there is no lock, no syscall and no allocation (arguments above 4 KiB excepted).
//!
//! Order: a dispatch acquires and releases at system scope and, unless `.barrier(false)`, starts after all packets
//! before it have completed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::bytes_of;
use half::f16;
use queues::aql::{FenceScope, Header, KernelDispatch, Packet, PacketKind};
use stasis_protocol::gate::Pass;

use crate::code_object::Geometry;
use crate::context::Context;
use crate::context::error::SubmitError;
use crate::context::queue::scratch::max_lane_bytes;
use crate::context::signal::make::submitted;
use crate::copy::Span;
use crate::executable::Kernel;
use crate::pool::{Buffer, TypedBuffer};
use crate::queue::Queue;
use crate::signal::Signal;

#[cfg(test)]
mod tests;

/// LDS that one work-group can have, bytes.
const LDS_LIMIT: u32 = 64 << 10;
/// TIMEOUT: how long a submission sleeps before it looks for the first time again whether a full queue has room.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
/// TIMEOUT: the longest such sleep; each is twice the one before.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// One argument of a kernel; its size must be the parameter's.
///
/// A buffer that is given whole or as a span counts as used by the queue until the dispatch has completed: it is not freed
/// before. What [`Arg::Address`] points at does not.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A buffer's address.
    Buffer(&'a Buffer),
    /// The address of a part of a buffer ([`Buffer::span`]). The part must lie in the buffer; the kernel is not kept from
    /// going beyond it.
    Span(Span<'a>),
    /// A GPU address. The caller keeps what is there alive.
    Address(u64),
    /// An 8-bit value.
    U8(u8),
    /// An 8-bit signed value.
    I8(i8),
    /// A 16-bit value.
    U16(u16),
    /// A 16-bit signed value.
    I16(i16),
    /// A 32-bit value.
    U32(u32),
    /// A 32-bit signed value.
    I32(i32),
    /// A 64-bit value.
    U64(u64),
    /// A 64-bit signed value.
    I64(i64),
    /// A 16-bit float.
    F16(f16),
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A struct's bytes.
    Bytes(&'a [u8]),
}

impl AsRef<[u8]> for Arg<'_> {
    /// Its bytes as the kernel reads them. The host is little-endian, as the agents are.
    fn as_ref(&self) -> &[u8] {
        match self {
            Arg::Buffer(buffer) => bytes_of(&buffer.0.va),
            Arg::Span(span) => bytes_of(&span.address),
            Arg::U8(value) => bytes_of(value),
            Arg::I8(value) => bytes_of(value),
            Arg::U16(value) => bytes_of(value),
            Arg::I16(value) => bytes_of(value),
            Arg::F16(value) => bytes_of(value),
            Arg::U32(value) => bytes_of(value),
            Arg::I32(value) => bytes_of(value),
            Arg::Address(value) | Arg::U64(value) => bytes_of(value),
            Arg::I64(value) => bytes_of(value),
            Arg::F32(value) => bytes_of(value),
            Arg::F64(value) => bytes_of(value),
            Arg::Bytes(bytes) => bytes,
        }
    }
}

impl<'a> From<&'a Buffer> for Arg<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Arg::Buffer(buffer)
    }
}

impl<'a, T> From<&'a TypedBuffer<T>> for Arg<'a> {
    fn from(buffer: &'a TypedBuffer<T>) -> Self {
        Arg::Buffer(buffer.buffer())
    }
}

impl<'a> From<Span<'a>> for Arg<'a> {
    fn from(span: Span<'a>) -> Self {
        Arg::Span(span)
    }
}

impl<'a> Arg<'a> {
    /// The buffer that the dispatch uses through it.
    #[inline]
    fn buffer(&self) -> Option<&'a Buffer> {
        match *self {
            Arg::Buffer(buffer) => Some(buffer),
            Arg::Span(span) => Some(span.buffer),
            _ => None,
        }
    }

    /// Checks that the buffer it names can be given to a packet of this context. `index` is its place, for the error.
    fn check(&self, context: &Arc<Context>, index: usize) -> Result<(), SubmitError> {
        let Some(buffer) = self.buffer() else { return Ok(()) };
        let key = buffer.key();
        if !buffer.is_of(context) {
            return Err(SubmitError::ForeignBuffer { index, key });
        }
        if !buffer.is_alive() {
            return Err(SubmitError::FreedBuffer { index, key });
        }
        match *self {
            Arg::Span(Span { offset, bytes, .. })
                if offset.checked_add(bytes).is_none_or(|end| end > buffer.len()) =>
            {
                Err(SubmitError::SpanRange { index, key, offset, bytes, len: buffer.len() })
            }
            _ => Ok(()),
        }
    }
}

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
    grid: Option<[u32; 3]>,
    block: [u16; 3],
    dynamic_lds: u32,
    arguments: Arguments<'a>,
    barrier: bool,
    completion: Option<&'a Signal>,
}

impl Queue {
    /// Starts a dispatch of `kernel`: give it a grid, a block and arguments, then submit it.
    pub fn dispatch<'a>(&'a self, kernel: &'a Kernel) -> Dispatch<'a> {
        Dispatch {
            queue: self,
            kernel,
            grid: None,
            block: [1; 3],
            dynamic_lds: 0,
            arguments: Arguments::Checked(&[]),
            barrier: true,
            completion: None,
        }
    }
}

impl<'a> Dispatch<'a> {
    /// Work-items of the whole grid in x, y and z. The last work-group of a dimension may be partial.
    pub fn grid(mut self, work_items: [u32; 3]) -> Self {
        self.grid = Some(work_items);
        self
    }

    /// Work-items of a work-group in x, y and z.
    pub fn block(mut self, work_items: [u16; 3]) -> Self {
        self.block = work_items;
        self
    }

    /// LDS beyond what the kernel has compiled in, bytes.
    pub fn dynamic_lds(mut self, bytes: u32) -> Self {
        self.dynamic_lds = bytes;
        self
    }

    /// Its arguments, which are checked against the kernel's metadata.
    pub fn args(mut self, arguments: &'a [Arg<'a>]) -> Self {
        self.arguments = Arguments::Checked(arguments);
        self
    }

    /// Its argument block as bytes: the whole of it, or the part before the hidden arguments. What it points at is
    /// not checked.
    pub fn raw_kernarg(mut self, block: &'a [u8]) -> Self {
        self.arguments = Arguments::Raw(block);
        self
    }

    /// Whether it waits for all packets before it (the default), or may overlap them.
    pub fn barrier(mut self, wait: bool) -> Self {
        self.barrier = wait;
        self
    }

    /// The signal that its completion decrements.
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
        handle.check_alive()?;
        let geometry = self.geometry()?;
        self.check(&geometry)?;
        // The block is put together here and copied into the queue's slot: shared memory is never borrowed.
        match self.kernel.layout.bytes() {
            0..=512 => self.write(&pass, &geometry, &mut [0; 512]),
            513..=4096 => self.write(&pass, &geometry, &mut [0; 4096]),
            bytes => self.write(&pass, &geometry, &mut vec![0; bytes]),
        }
    }

    /// As [`Dispatch::submit`], but waits up to `timeout` while the queue is full. A process may be checkpointed and
    /// restored meanwhile, and that time counts.
    ///
    /// # Errors
    /// [`SubmitError::Timeout`] with the time waited instead of [`SubmitError::WouldBlock`]; otherwise as for
    /// [`Dispatch::submit`], at once. Nothing was submitted then.
    pub fn submit_timeout(self, timeout: Duration) -> Result<u64, SubmitError> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let packets = match self.clone().submit() {
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

    /// Reserves a slot and fills it. `block` is scratch space for the arguments.
    fn write(&self, pass: &Pass<'_>, geometry: &Geometry, block: &mut [u8]) -> Result<u64, SubmitError> {
        let handle = &*self.queue.0;
        match self.arguments {
            Arguments::Checked(arguments) => self.kernel.layout.fill(arguments, geometry, block)?,
            Arguments::Raw(raw) => self.kernel.layout.fill_raw(raw, geometry, block)?,
        }
        let mut slot = handle.live.reserve(pass, 1)?;
        let Some(kernargs) = slot.kernargs() else {
            let (kernel, bytes) = (self.kernel.name().to_owned(), self.kernel.layout.bytes() as u64);
            return Err(SubmitError::KernargSlot { kernel, bytes, slot: 0 });
        };
        kernargs.write(0, &block[..self.kernel.layout.bytes()]);
        self.note_uses();
        let header = Header {
            barrier: self.barrier,
            acquire: FenceScope::System,
            release: FenceScope::System,
            ..Header::new(PacketKind::KernelDispatch)
        };
        let packet = KernelDispatch {
            header,
            dimensions: geometry.dimensions,
            workgroup: geometry.workgroup,
            grid: geometry.grid,
            private_segment_bytes: self.private_bytes(),
            group_segment_bytes: self.kernel.kernel.metadata.group_bytes + self.dynamic_lds,
            kernel_object: self.kernel.object_va,
            kernarg_address: kernargs.va(),
            completion_signal: self.completion.map_or(0, Signal::handle),
        };
        if let Some(signal) = self.completion {
            signal.live().promise();
        }
        let index = slot.publish(Packet::KernelDispatch(packet).encode());
        drop(slot);
        submitted(&handle.context, pass, &handle.live, self.completion.map(Signal::live));
        Ok(index)
    }

    fn geometry(&self) -> Result<Geometry, SubmitError> {
        let Some(grid) = self.grid else {
            return Err(SubmitError::NoGrid { kernel: self.kernel.name().to_owned() });
        };
        let handle = &*self.queue.0;
        Ok(Geometry {
            dynamic_lds_bytes: self.dynamic_lds,
            queue: handle.page_va,
            private_base_hi: handle.private_base_hi,
            shared_base_hi: handle.shared_base_hi,
            ..Geometry::new(grid, self.block)
        })
    }

    /// Scratch bytes a lane needs; a dynamic stack takes all the queue was made with.
    fn private_bytes(&self) -> u32 {
        let metadata = &self.kernel.kernel.metadata;
        match metadata.uses_dynamic_stack {
            true => metadata.private_bytes.max(self.queue.0.live.scratch_lane_bytes),
            false => metadata.private_bytes,
        }
    }

    fn check(&self, geometry: &Geometry) -> Result<(), SubmitError> {
        let handle = &*self.queue.0;
        let name = || self.kernel.name().to_owned();
        let loaded = self.kernel.executable().agent();
        if !loaded.is_of(&handle.context) || loaded.index() != handle.agent.index() {
            let place = |agent: &crate::agent::Agent| format!("{} ({})", agent.name(), agent.uuid());
            return Err(SubmitError::OtherAgent {
                kernel: name(),
                loaded: place(loaded),
                queue: place(&handle.agent),
            });
        }
        let lds = handle.agent.target().max_group_segment_bytes.min(LDS_LIMIT);
        self.kernel.kernel.check_launch(geometry, lds)?;
        let (wanted, lanes) = (self.private_bytes(), self.kernel.kernel.metadata.wavefront_size);
        let format = handle.agent.target().scratch;
        let max = format.map_or(0, |format| max_lane_bytes(&format, lanes));
        if wanted > max {
            return Err(SubmitError::Scratch { kernel: name(), wanted, max });
        }
        let (bytes, slot) = (self.kernel.layout.bytes() as u64, handle.live.memory().kernarg_slot);
        if bytes > slot {
            return Err(SubmitError::KernargSlot { kernel: name(), bytes, slot });
        }
        if let Arguments::Checked(arguments) = self.arguments {
            for (index, argument) in arguments.iter().enumerate() {
                argument.check(&handle.context, index)?;
            }
        }
        Ok(())
    }

    fn note_uses(&self) {
        let queue = self.queue.key();
        self.kernel.executable().note_use(queue);
        if let Arguments::Checked(arguments) = self.arguments {
            for buffer in arguments.iter().filter_map(Arg::buffer) {
                buffer.note_use(queue);
            }
        }
    }
}
