// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wrappers of the event ioctls.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::call::{Issue, Slice, failed, once_with};
use super::error::IoctlError;
use super::file::Kfd;
use crate::ids::{EventId, MemoryHandle};
use crate::sys::{self, kfd_ioctl};

/// `timeout` that never ends.
const FOREVER: u32 = u32::MAX;

/// What raises an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EventKind {
    /// The GPU, through the event page, or SET_EVENT.
    #[default]
    Signal,
    /// A GPU reset or hardware error.
    HwException,
    /// The GPU, for the debugger.
    Debug,
    /// A memory fault.
    Memory,
}

impl EventKind {
    fn encode(self) -> u32 {
        match self {
            Self::Signal => sys::KFD_IOC_EVENT_SIGNAL,
            Self::HwException => sys::KFD_IOC_EVENT_HW_EXCEPTION,
            Self::Debug => sys::KFD_IOC_EVENT_DEBUG_EVENT,
            Self::Memory => sys::KFD_IOC_EVENT_MEMORY,
        }
    }
}

/// What event to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CreateEvent {
    /// What raises it.
    pub kind: EventKind,
    /// Whether a wait consumes it.
    pub auto_reset: bool,
    /// The event page, with the first event of a process only: a GTT object of 32768 bytes.
    pub page: Option<MemoryHandle>,
}

/// What event was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedEvent {
    /// Its number, for a signal's `event_id`.
    pub id: EventId,
    /// Its u64 index in the event page, for a signal's mailbox.
    pub slot: u32,
    /// What the GPU sends.
    pub trigger: u32,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// Any, or all, of the events came.
    Complete,
    /// Time ran out.
    Timeout,
}

impl Kfd {
    /// CREATE_EVENT.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn create_event(&self, event: &CreateEvent) -> Result<CreatedEvent, IoctlError> {
        let mut args = sys::kfd_ioctl_create_event_args {
            event_page_offset: event.page.map_or(0, |handle| handle.0),
            event_type: event.kind.encode(),
            auto_reset: u32::from(event.auto_reset),
            ..Default::default()
        };
        self.call_plain::<kfd_ioctl::CreateEvent>(&mut args)?;
        Ok(CreatedEvent {
            id: EventId(args.event_id),
            slot: args.event_slot_index,
            trigger: args.event_trigger_data,
        })
    }

    /// DESTROY_EVENT; a wait for the event fails with EIO.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn destroy_event(&self, id: EventId) -> Result<(), IoctlError> {
        let mut args = sys::kfd_ioctl_destroy_event_args { event_id: id.0, pad: 0 };
        self.call_plain::<kfd_ioctl::DestroyEvent>(&mut args).map(drop)
    }

    /// SET_EVENT of a signal event.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn set_event(&self, id: EventId) -> Result<(), IoctlError> {
        let mut args = sys::kfd_ioctl_set_event_args { event_id: id.0, pad: 0 };
        self.call_plain::<kfd_ioctl::SetEvent>(&mut args).map(drop)
    }

    /// RESET_EVENT of a signal event.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn reset_event(&self, id: EventId) -> Result<(), IoctlError> {
        let mut args = sys::kfd_ioctl_reset_event_args { event_id: id.0, pad: 0 };
        self.call_plain::<kfd_ioctl::ResetEvent>(&mut args).map(drop)
    }

    /// WAIT_EVENTS for any or all of `events`. `None` waits without limit, zero polls. The driver writes ages and
    /// exception data into `events`. Signals of the process do not lengthen the wait.
    ///
    /// # Errors
    /// [`IoctlError`]; EIO if one of the events was destroyed meanwhile.
    pub fn wait_events(
        &self,
        events: &mut [sys::kfd_event_data],
        all: bool,
        timeout: Option<Duration>,
    ) -> Result<WaitOutcome, IoctlError> {
        type Command = kfd_ioctl::WaitEvents;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut args = sys::kfd_ioctl_wait_events_args {
            wait_for_all: u32::from(all),
            timeout: deadline.and(timeout).map_or(FOREVER, milliseconds),
            ..Default::default()
        };
        let mut array = [Slice::Write(bytemuck::cast_slice_mut(events))];
        loop {
            match once_with::<Command>(self.target(), &mut args, &mut array) {
                Err(Errno::EINTR) => {
                    // TIMEOUT: the driver leaves the remaining time in `args`. The caller's deadline also limits a
                    // driver that leaves it unchanged.
                    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                    args.timeout = args.timeout.min(left.map_or(FOREVER, milliseconds));
                }
                Err(errno) => return Err(failed::<Command>(self.target(), errno)),
                Ok(_) => break,
            }
        }
        match args.wait_result {
            sys::KFD_IOC_WAIT_RESULT_COMPLETE => Ok(WaitOutcome::Complete),
            sys::KFD_IOC_WAIT_RESULT_TIMEOUT => Ok(WaitOutcome::Timeout),
            _ => Err(failed::<Command>(self.target(), Errno::EIO)),
        }
    }
}

/// Milliseconds, rounded up so that a short wait is not a poll, and limited to less than the value that means no limit.
fn milliseconds(time: Duration) -> u32 {
    let rounded = time.as_nanos().div_ceil(1_000_000);
    u32::try_from(rounded).unwrap_or(FOREVER).min(FOREVER - 1)
}
