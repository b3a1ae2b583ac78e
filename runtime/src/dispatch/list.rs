// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded packets that are submitted again and again, with arguments replaced in between.
//!
//! A list keeps its packets and argument blocks in the process's own memory, checked once. A submission copies each into the
//! slot that its packet gets; what depends on the slot (where the arguments lie, the barrier bit of a fence) is put in there.
//! So an argument may be replaced while an earlier submission is in flight, and a list has nothing that a checkpoint must save.
//!
//! INVARIANT: all or none, as for a batch. A list keeps handles on its queue and on all kernels, buffers and signals that its
//! packets name, so none of them ends before the list; a buffer that was freed by name is found at the next submission.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use queues::aql::RawPacket;
use queues::words::{count, words};

use super::{Arg, Arguments, Dispatch, SMALL_BLOCK, retry};
use crate::code_object::put;
use crate::context::error::SubmitError;
use crate::context::signal::make::submitted;
use crate::executable::Kernel;
use crate::pool::Buffer;
use crate::queue::{Queue, barrier_packet};
use crate::signal::Signal;

/// The two words of a dispatch packet that hold the address of its arguments.
const KERNARG_WORDS: usize = 10;

/// One packet of a list.
#[derive(Clone, Debug)]
struct Recorded {
    /// The packet without the address of its arguments.
    packet: RawPacket,
    /// Where its argument block lies in the list's.
    block: usize,
    /// Bytes of it: a multiple of [`SMALL_BLOCK`]; 0 without arguments.
    bytes: usize,
    /// Where its arguments begin among the list's, and how many they are.
    arguments: (usize, usize),
    kernel: Option<Kernel>,
}

/// An argument of a recorded dispatch.
#[derive(Clone, Debug)]
struct Argument {
    /// Where it lies in the packet's block.
    offset: usize,
    /// Its size.
    bytes: usize,
    /// The buffer that the dispatch uses through it.
    buffer: Option<Buffer>,
    /// The packet's position, for errors.
    packet: u32,
    /// Its position among the packet's arguments.
    index: u32,
}

/// Packets recorded for one queue, which can be submitted many times.
///
/// Record dispatches and barriers once, then submit the list as often as needed; [`CommandList::set_arg`] replaces an
/// argument for the submissions to come, while those before keep theirs. The list keeps its queue and everything that its
/// packets use. Clones are independent lists with the same packets.
///
/// A list stays right across a checkpoint and restore of the process: buffers, kernels and signals keep their addresses.
///
/// ```no_run
/// # use stasis::*;
/// # fn example(queue: &Queue, axpy: &Kernel, x: &Buffer, y: &Buffer, done: &Signal) -> Result<(), SubmitError> {
/// let arguments = [Arg::Buffer(x), Arg::Buffer(y), Arg::F32(0.5), Arg::U32(32)];
/// let mut list = CommandList::new(queue);
/// let step = list.dispatch(queue.dispatch(axpy).grid([32, 1, 1]).block([32, 1, 1]).args(&arguments))?;
/// list.barrier(&[], Some(done))?;
/// for factor in [0.5, 0.25, 0.125] {
///     list.set_arg(step, 2, Arg::F32(factor))?;
///     list.submit()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CommandList {
    queue: Queue,
    packets: Vec<Recorded>,
    blocks: Vec<u8>,
    arguments: Vec<Argument>,
    /// Signals with the number of packets in succession that complete them.
    completions: Vec<(Signal, i64)>,
    /// What barriers wait for.
    after: Vec<Signal>,
}

impl CommandList {
    /// An empty list of packets for `queue`.
    pub fn new(queue: &Queue) -> Self {
        CommandList {
            queue: queue.clone(),
            packets: Vec::new(),
            blocks: Vec::new(),
            arguments: Vec::new(),
            completions: Vec::new(),
            after: Vec::new(),
        }
    }

    /// The queue that it is for.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// How many packets it has.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether it has no packets.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Records a dispatch of its queue behind the packets before. Returns the packet's position in the list. Buffers count as
    /// used by the queue only when the list is submitted.
    ///
    /// # Errors
    /// What is wrong with the dispatch, as for [`Dispatch::submit`]; [`SubmitError::OtherQueue`]. The list is then as before.
    pub fn dispatch(&mut self, dispatch: Dispatch<'_>) -> Result<usize, SubmitError> {
        dispatch.check_for(&self.queue, &self.queue.0.context.gate.enter()?)?;
        let kernel = dispatch.kernel;
        let (block, bytes) = (self.blocks.len(), kernel.layout.bytes().next_multiple_of(SMALL_BLOCK));
        self.blocks.resize(block + bytes, 0);
        if let Some(block) = self.blocks.get_mut(block..) {
            dispatch.fill_block(block);
        }
        let first = self.arguments.len();
        if let Arguments::Checked(arguments) = dispatch.arguments {
            let packet = count(self.packets.len());
            let places = kernel.layout.explicit().iter().zip(arguments).zip(0..);
            self.arguments.extend(places.map(|((place, argument), index)| Argument {
                offset: place.offset,
                bytes: place.bytes,
                buffer: argument.buffer().cloned(),
                packet,
                index,
            }));
        }
        let recorded = Recorded {
            packet: dispatch.packet(0),
            block,
            bytes,
            arguments: (first, self.arguments.len() - first),
            kernel: Some(kernel.clone()),
        };
        Ok(self.push(recorded, dispatch.completion))
    }

    /// Records a barrier as [`Queue::barrier`] submits it. Returns the packet's position in the list.
    ///
    /// # Errors
    /// [`SubmitError::Dependencies`]; the list is then as before.
    pub fn barrier(&mut self, after: &[&Signal], completion: Option<&Signal>) -> Result<usize, SubmitError> {
        let packet = barrier_packet(after, completion)?;
        self.after.extend(after.iter().map(|&signal| signal.clone()));
        let (block, arguments) = (self.blocks.len(), (self.arguments.len(), 0));
        Ok(self.push(Recorded { packet, block, bytes: 0, arguments, kernel: None }, completion))
    }

    fn push(&mut self, recorded: Recorded, completion: Option<&Signal>) -> usize {
        match (completion, self.completions.last_mut()) {
            (Some(signal), Some((last, packets))) if last.handle() == signal.handle() => *packets += 1,
            (Some(signal), _) => self.completions.push((signal.clone(), 1)),
            (None, _) => {}
        }
        self.packets.push(recorded);
        self.packets.len() - 1
    }

    /// Replaces argument `index` of the packet at position `packet`, both from 0, for the submissions to come. It must have
    /// the parameter's size.
    ///
    /// # Errors
    /// [`SubmitError::NoArgument`]; [`SubmitError::Arguments`], [`SubmitError::FreedBuffer`], [`SubmitError::ForeignBuffer`]
    /// or [`SubmitError::SpanRange`] as for a dispatch. The list is then as before.
    pub fn set_arg(&mut self, packet: usize, index: usize, argument: Arg<'_>) -> Result<(), SubmitError> {
        let Some(recorded) = self.packets.get(packet) else {
            return Err(SubmitError::NoArgument { packet, index, arguments: 0 });
        };
        let (first, arguments) = recorded.arguments;
        let place =
            self.arguments.get_mut(first..).and_then(|rest| rest.get_mut(..arguments)?.get_mut(index));
        let (Some(place), Some(kernel)) = (place, &recorded.kernel) else {
            return Err(SubmitError::NoArgument { packet, index, arguments });
        };
        argument.check(&self.queue.0.context, index)?;
        let value = argument.as_ref();
        if value.len() != place.bytes {
            return Err(kernel.layout.refuse_size(index, value.len()).into());
        }
        put(&mut self.blocks, recorded.block + place.offset, value);
        // Most arguments that are replaced are values, or the same buffer.
        match (argument.buffer(), &place.buffer) {
            (None, None) => {}
            (Some(new), Some(old)) if new.key() == old.key() => {}
            (new, _) => place.buffer = new.cloned(),
        }
        Ok(())
    }

    /// Submits all its packets, each behind the one before, with one doorbell for all. Returns their indices. A completion
    /// signal is decremented once by each packet that has it, at every submission.
    ///
    /// All or none are submitted: a checkpoint of the process comes before the first or after the last of them, and packets
    /// that other threads submit do not come between them.
    ///
    /// # Errors
    /// [`SubmitError::WouldBlock`] if there is no room for all, [`SubmitError::TooLong`] if there never will be,
    /// [`SubmitError::Queue`] if the queue stopped, [`SubmitError::Stale`] if it was destroyed, [`SubmitError::Packet`] with
    /// the position of a packet whose buffer was freed, [`SubmitError::Lost`]. Nothing was submitted then.
    pub fn submit(&self) -> Result<Range<u64>, SubmitError> {
        let handle = &*self.queue.0;
        let pass = handle.context.gate.enter()?;
        if handle.context.arriving.is_active() {
            let reached = handle.context.arriving.reached(&handle.context, &pass, [&*self.blocks]);
            reached.map_err(SubmitError::Contents)?;
        }
        handle.check_alive()?;
        let wanted = handle.check_room(self.packets.len())?;
        self.check_buffers()?;
        let mut slots = handle.live.reserve(&pass, wanted)?;
        let first = slots.first();
        self.note_uses();
        for (signal, packets) in &self.completions {
            signal.live().promise_many(*packets);
        }
        for recorded in &self.packets {
            let mut packet = recorded.packet;
            let block = self.blocks.get(recorded.block..).and_then(|rest| rest.get(..recorded.bytes));
            if let (Some(slot), Some(_), Some(block)) = (slots.kernargs(), &recorded.kernel, block) {
                // A copy of known length needs no call.
                match block.as_array::<SMALL_BLOCK>() {
                    Some(block) => slot.write(0, block),
                    None => slot.write(0, block),
                }
                [packet[KERNARG_WORDS], packet[KERNARG_WORDS + 1]] = words(slot.va());
            }
            slots.publish(packet);
        }
        drop(slots);
        submitted(
            &handle.context,
            &pass,
            &handle.live,
            self.completions.iter().map(|(signal, _)| signal.live()),
        );
        Ok(first..first.wrapping_add(wanted))
    }

    /// As [`CommandList::submit`], but waits up to `timeout` until there is room for all. A process may be checkpointed and
    /// restored meanwhile, and that time counts.
    ///
    /// # Errors
    /// [`SubmitError::Timeout`] with the time waited instead of [`SubmitError::WouldBlock`]; otherwise as for
    /// [`CommandList::submit`], at once. Nothing was submitted then.
    pub fn submit_timeout(&self, timeout: Duration) -> Result<Range<u64>, SubmitError> {
        retry(timeout, || self.submit())
    }

    /// Whether all its buffers are alive.
    fn check_buffers(&self) -> Result<(), SubmitError> {
        for argument in &self.arguments {
            if let Some(buffer) = argument.buffer.as_ref().filter(|buffer| !buffer.is_alive()) {
                let source = SubmitError::FreedBuffer { index: argument.index as usize, key: buffer.key() };
                return Err(source.of_packet(argument.packet as usize));
            }
        }
        Ok(())
    }

    fn note_uses(&self) {
        let queue = self.queue.key();
        for buffer in self.arguments.iter().filter_map(|argument| argument.buffer.as_ref()) {
            buffer.note_use(queue);
        }
        for kernel in self.packets.iter().filter_map(|recorded| recorded.kernel.as_ref()) {
            kernel.executable().note_use(queue);
        }
    }
}
