// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and fills by the agent's compute units: kernels of the device library on a queue of their own.
//!
//! INVARIANT: a launch in flight counts as a use of its buffers by that queue, so none of them is freed under it.

use std::time::Duration;

use super::arrive;
use super::chunks::MAX_CHUNKS;
use crate::agent::Agent;
use crate::context::error::{CopyError, SubmitError};
use crate::executable::{Executable, Kernel};
use crate::pool::Buffer;
use crate::queue::{Handle, Queue, QueueOptions};
use crate::signal::Signal;
use queues::words::words;

/// Packets of the queue: a staged copy, of two packets a chunk, and as many again.
const PACKETS: u32 = 4 * words(MAX_CHUNKS)[0];

/// An agent's queue for copies and the kernels that do them.
#[derive(Debug)]
pub(super) struct Shader {
    queue: Queue,
    pub fill: Kernel,
    pub copy: Kernel,
}

impl Shader {
    pub(super) fn new(agent: &Agent) -> Result<Self, CopyError> {
        let object = device_lib::object_for(agent.name()).map_err(CopyError::NoKernels)?;
        let executable = Executable::load(agent, object)?;
        let pass = agent.context.gate.enter()?;
        let options = QueueOptions { packets: PACKETS, kernarg_slot_bytes: 64, ..QueueOptions::default() };
        let queue = options.recipe(&agent.info, true).and_then(|recipe| Handle::create(agent, &pass, recipe));
        Ok(Shader {
            queue: Queue(queue?),
            fill: executable.kernel(device_lib::FILL)?,
            copy: executable.kernel(device_lib::COPY)?,
        })
    }

    /// Whether it must be made again.
    pub(super) fn has_failed(&self) -> bool {
        self.queue.fault().is_some()
    }

    /// Submits one launch after `after`, which completes `done`: one that moves bytes between buffers, or fills the first of them with a
    /// pattern.
    pub(super) fn submit(
        &self,
        kernel: &Kernel,
        launch: &device_lib::Launch<Vec<u8>>,
        after: &[&Signal],
        (buffers, pattern): (&[&Buffer], &[u8]),
        done: &Signal,
    ) -> Result<(), CopyError> {
        for buffer in buffers {
            buffer.note_use(self.queue.key());
        }
        for five in after.chunks(5) {
            self.with_room(|| Ok(self.queue.barrier(five, None)?))?;
        }
        let (context, mover) = (&self.queue.0.context, self.queue.0.agent.info.index());
        self.with_room(|| {
            let pass = context.gate.enter()?;
            arrive(context, &pass, mover, (buffers, pattern))?;
            let submitted = self
                .queue
                .dispatch(kernel)
                .grid(launch.grid)
                .block(launch.workgroup)
                .raw_kernarg(&launch.arguments)
                // Transfers overlap unless they were told to wait.
                .barrier(!after.is_empty())
                .completion(done)
                .submit();
            Ok(submitted?)
        })
    }

    /// Tries again as long as the queue is full.
    fn with_room(&self, submit: impl Fn() -> Result<u64, CopyError>) -> Result<(), CopyError> {
        loop {
            match submit() {
                Ok(_) => return Ok(()),
                // TIMEOUT: room comes with the next transfer that ends, or the queue fails.
                Err(CopyError::Submit(error)) if matches!(*error, SubmitError::WouldBlock { .. }) => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Err(error) => return Err(error),
            }
        }
    }
}
