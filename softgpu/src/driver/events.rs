// SPDX-License-Identifier: MIT OR Apache-2.0
//! CREATE, DESTROY, SET and RESET_EVENT.

use std::os::fd::AsFd;

use kfd::sys::*;
use nix::errno::Errno;

use super::bo::Domain;
use super::event_state::{EventPage, EventState, has_slot};
use super::process::{KfdProcess, State, split_handle};
use super::shared::SharedWords;
use super::{Call, memfd};

impl KfdProcess {
    pub(super) fn create_event(
        &self,
        args: &mut kfd_ioctl_create_event_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        // Both locks are held, so that only one thread at a time sets the page and creates an event.
        let mut state = self.state.lock();
        let mut events = self.events.lock();
        if args.event_page_offset != 0 {
            self.set_event_page(&mut state, &mut events, args.event_page_offset)?;
        }
        let slotted = has_slot(args.event_type);
        if slotted && events.page.is_none() {
            events.page = Some(own_page()?);
        }
        args.event_page_offset = 0;
        let id = events.create(args.event_type, args.auto_reset != 0)?;
        if slotted {
            args.event_page_offset = KFD_MMAP_TYPE_EVENTS;
            args.event_slot_index = id;
        }
        args.event_id = id;
        args.event_trigger_data = id;
        Ok(())
    }

    /// Uses a buffer of the client as event page, for the life of the process (`kfd_kmap_event_page`).
    pub(super) fn set_event_page(
        &self,
        state: &mut State,
        events: &mut EventState,
        handle: u64,
    ) -> Result<(), Errno> {
        if events.page.is_some() {
            return Err(Errno::EINVAL);
        }
        events.page = Some(EventPage::of_client(self.map_event_page(state, handle)?));
        state.event_page = Some(handle);
        Ok(())
    }

    /// The words of a buffer that can be the event page.
    ///
    /// # Errors
    /// `EINVAL` when it cannot; `ENODEV`; those of `mmap`.
    pub(super) fn map_event_page(&self, state: &mut State, handle: u64) -> Result<SharedWords, Errno> {
        let (gpu_id, index) = split_handle(handle);
        let gpu = self.gpu_by_id(gpu_id)?;
        state.bound(gpu)?;
        let bo = state.bo(gpu, index).ok_or(Errno::EINVAL)?;
        if bo.backing.bytes < EVENT_PAGE_BYTES as u64 || bo.backing.domain != Domain::Gtt {
            return Err(Errno::EINVAL);
        }
        let words = usize::try_from(bo.backing.bytes / 8).map_err(|_| Errno::ENOMEM)?;
        SharedWords::map(bo.backing.fd.as_fd(), words)
    }

    pub(super) fn destroy_event(
        &self,
        args: &mut kfd_ioctl_destroy_event_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        self.events.change(|events| events.destroy(args.event_id))
    }

    pub(super) fn set_event(
        &self,
        args: &mut kfd_ioctl_set_event_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        self.events.change(|events| {
            signal_event(events, args.event_id)?;
            events.set(args.event_id);
            Ok(())
        })
    }

    pub(super) fn reset_event(
        &self,
        args: &mut kfd_ioctl_reset_event_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let mut events = self.events.lock();
        signal_event(&events, args.event_id)?;
        if let Some(event) = events.get_mut(args.event_id) {
            event.signaled = false;
        }
        Ok(())
    }
}

/// SET and RESET are for events of type SIGNAL only.
fn signal_event(events: &EventState, id: u32) -> Result<(), Errno> {
    match events.get(id) {
        Some(event) if event.event_type == KFD_IOC_EVENT_SIGNAL => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// The page that Linux 6.12 makes when the first event is created without one.
fn own_page() -> Result<EventPage, Errno> {
    let fd = memfd::create("softgpu:events", EVENT_PAGE_BYTES as u64)?;
    let words = SharedWords::map(fd.as_fd(), EVENT_PAGE_BYTES / 8)?;
    Ok(EventPage::of_driver(words, fd))
}
