// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making and destroying many buffer objects: by several threads, since each waits for answers most of the time.

use std::sync::atomic::{AtomicUsize, Ordering};

use kfd::transport::CallLimit;
use parking_lot::Mutex;

use crate::context::error::DeviceError;
use crate::context::registry::Bo;
use crate::context::registry::state::BoKind;
use crate::image::memory_is_ample;

/// Fewer objects are not worth a thread.
const MANY: usize = 64;
/// Threads: the driver, like the software device, does one process's work one by one for the most part.
const THREADS: usize = 2;

/// Does `act` for every object, for memory of the driver's own in any order. It does nothing for an object for which it was done.
///
/// # Errors
/// The first of `act`; for some of the others it was done then.
pub(super) fn for_each<'b>(
    objects: impl Iterator<Item = &'b mut Bo>,
    act: impl Fn(&mut Bo) -> Result<(), DeviceError> + Sync,
) -> Result<(), DeviceError> {
    let is_plain = |bo: &&mut Bo| matches!(bo.state.kind, BoKind::Vram | BoKind::Gtt);
    // Lent pages may be in common.
    let (mut objects, others): (Vec<_>, Vec<_>) = objects.partition(is_plain);
    if objects.len() >= MANY && memory_is_ample() {
        // What fails here, for want of a descriptor for a second connection perhaps, is tried again below.
        at_once(&mut objects, &act);
    }
    objects.into_iter().chain(others).try_for_each(act)
}

fn at_once(objects: &mut [&mut Bo], act: &(impl Fn(&mut Bo) -> Result<(), DeviceError> + Sync)) {
    let (next, limit) = (AtomicUsize::new(0), CallLimit::current());
    let objects: Vec<_> = objects.iter_mut().map(Mutex::new).collect();
    let work = || {
        while let Some(object) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = act(&mut object.lock()) {
                tracing::debug!(target: "checkpoint", %error, "one thread does the rest");
                next.store(objects.len(), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let helper = || limit.clone().hold(work);
        for _ in 1..THREADS {
            // Where no thread can be had this one does all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, helper);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::memory::request::Request;
    use crate::context::registry::state::{AgentIndex, BoRole};

    #[test]
    fn every_object_is_done_once_and_the_rest_of_a_failure_is_tried_again() {
        let state = Request::queue_memory(BoRole::User, 4096, AgentIndex(0)).into_state();
        for (count, fails_at) in [(3, 9), (MANY - 1, 5), (MANY, 1000), (500, 1000), (500, 77), (500, 0)] {
            let mut bos: Vec<Bo> = (0..count).map(|_| Bo::new(state.clone())).collect();
            let (calls, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let act = |bo: &mut Bo| {
                if bo.is_awaited {
                    return Ok(());
                }
                if calls.fetch_add(1, Ordering::Relaxed) == fails_at {
                    return Err(DeviceError::Absent { what: "the device" });
                }
                made.fetch_add(1, Ordering::Relaxed);
                bo.is_awaited = true;
                Ok(())
            };
            let done = for_each(bos.iter_mut(), act);
            let is_one_by_one = count < MANY;
            assert_eq!(done.is_err(), is_one_by_one && fails_at < count, "{count} {fails_at}");
            if done.is_ok() {
                assert!(bos.iter().all(|bo| bo.is_awaited));
                assert_eq!(made.into_inner(), count);
            }
        }
    }
}
