// SPDX-License-Identifier: MIT OR Apache-2.0
//! For tests of queues: what a drained checkpoint and a restore in the same process do to them, without an image.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use stasis_protocol::Limit;

use super::{drain, rebuild};
use crate::context::Context;
use crate::context::handover::{put_device, take_device};

/// Drains every queue, takes it off the hardware and makes it again.
///
/// # Panics
/// When a step fails.
pub(crate) fn requeue(context: &Arc<Context>) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut closed = context.gate.close(deadline, &AtomicBool::new(false)).unwrap();
    let queues = drain::queues(&context.registry.lock());
    drain::drain(context, &queues, &closed, &Limit::within(Duration::from_secs(20))).unwrap();
    let device = take_device(context, &mut closed, deadline).unwrap();
    {
        let mut registry = context.registry.lock();
        for (_, queue) in registry.queues.iter_mut() {
            let live = Arc::clone(queue.live.as_ref().unwrap());
            queue.state = live.with_indices(&queue.state);
            live.detach(&mut closed);
            device.destroy_queue(queue).unwrap();
        }
        rebuild::queues(&mut registry, &device, &mut closed).unwrap();
    }
    put_device(context, &mut closed, Arc::new(device)).unwrap();
    closed.open();
}
