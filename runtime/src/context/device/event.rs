// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: made, raised, and slept on.
//!
//! INVARIANT: an entry's `live.id` is the driver's id for as long as `created` holds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kfd::ioctl::CreateEvent;
use kfd::ioctl::EventKind as KfdEventKind;
use kfd::ioctl::WaitOutcome;
use kfd::sys::kfd_event_data;
use kfd::{EventId, MemoryHandle};

use crate::context::device::{Device, ioctl};
use crate::context::error::DeviceError;
use crate::context::registry::state::EventKind;
use crate::context::registry::{Bo, Event};

/// The ids the event thread sleeps on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEvents {
    /// Memory faults.
    pub memory: u32,
    /// GPU resets.
    pub hw_exception: u32,
    /// Queue exceptions.
    pub queue_exception: u32,
    /// Let go.
    pub wake: u32,
}

impl Device {
    /// Makes the event of an entry. `page` is the event page with the first event of a process, and only then.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn create_event(&self, event: &mut Event, page: Option<&Bo>) -> Result<(), DeviceError> {
        let handle = match page {
            Some(bo) => {
                let kernel = bo.kernel.ok_or(DeviceError::Absent { what: "the event page" })?;
                Some(MemoryHandle(kernel.handle))
            }
            None => None,
        };
        let kind = match event.state.kind {
            EventKind::Signal => KfdEventKind::Signal,
            EventKind::Memory => KfdEventKind::Memory,
            EventKind::HwException => KfdEventKind::HwException,
        };
        let what = CreateEvent { kind, auto_reset: event.state.auto_reset, page: handle };
        let created = self.kfd.create_event(&what).map_err(ioctl("an event"))?;
        event.id = created.id.0;
        event.live.id.store(created.id.0, Ordering::Relaxed);
        // `kfd_events.c`: a new event's age is 1.
        event.live.age.store(1, Ordering::Release);
        event.created = true;
        Ok(())
    }

    /// Destroys the event of an entry, whose state stays.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn destroy_event(&self, event: &mut Event) -> Result<(), DeviceError> {
        if event.created {
            let id = EventId(event.live.id.load(Ordering::Relaxed));
            self.kfd.destroy_event(id).map_err(ioctl("the end of an event"))?;
            event.created = false;
        }
        Ok(())
    }

    /// Raises a signal event from the host.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn set_event(&self, id: u32) -> Result<(), DeviceError> {
        self.kfd.set_event(EventId(id)).map_err(ioctl("a wake-up"))
    }

    /// Lowers a manual-reset signal event.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn reset_event(&self, id: u32) -> Result<(), DeviceError> {
        self.kfd.reset_event(EventId(id)).map_err(ioctl("the end of a wake-up"))
    }

    /// Sleeps until one of `events`, ids with ages, is older or newer than its age, or `wake` is set, or `limit` is over. The
    /// ages of those that were raised are then their present ones.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn sleep_on(&self, events: &mut [(u32, u64)], wake: u32, limit: Duration) -> Result<(), DeviceError> {
        let mut data: Vec<_> = events.iter().map(|&(id, age)| kfd_event_data::new(id, age)).collect();
        data.push(kfd_event_data::new(wake, 0));
        let outcome = self.kfd.wait_events(&mut data, false, Some(limit)).map_err(ioctl("a wait"))?;
        if outcome == WaitOutcome::Complete {
            for (event, data) in events.iter_mut().zip(&data) {
                event.1 = data.last_event_age();
            }
        }
        Ok(())
    }

    /// Sleeps until one of `events` is raised, or `limit` is over. The payloads are in the array it returns: memory,
    /// hardware exception, queue exception with its age, wake.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn sleep_on_exceptions(
        &self,
        events: DeviceEvents,
        age: u64,
        limit: Option<Duration>,
    ) -> Result<[kfd_event_data; 4], DeviceError> {
        let mut data = [
            kfd_event_data::new(events.memory, 0),
            kfd_event_data::new(events.hw_exception, 0),
            kfd_event_data::new(events.queue_exception, age),
            kfd_event_data::new(events.wake, 0),
        ];
        self.kfd.wait_events(&mut data, false, limit).map_err(ioctl("the wait for exceptions"))?;
        Ok(data)
    }
}
