// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of a process that is restored. The slots of the page stay as they are.

use std::os::fd::AsFd;

use kfd::sys::*;

use super::{Restore, damaged};
use crate::driver::event_state::{Event, EventPage};
use crate::driver::memfd;
use crate::driver::persist::state::{EventPageState, EventState};
use crate::driver::process::State;
use crate::driver::shared::SharedWords;
use crate::persist::{Part, PersistError};

impl Restore<'_> {
    pub(super) fn events(&self, state: &mut State) -> Result<(), PersistError> {
        let page = self.saved.event_page.map(|page| self.event_page(state, page)).transpose()?;
        let mut events = self.process.events.lock();
        events.page = page;
        events.restarts = true;
        for saved in &self.saved.events {
            if !events.insert_at(saved.id, event(saved)) {
                return Err(damaged(Part::Event, saved.id));
            }
        }
        Ok(())
    }

    fn event_page(&self, state: &mut State, saved: EventPageState) -> Result<EventPage, PersistError> {
        match saved {
            EventPageState::Client { handle } => {
                let words = self.process.map_event_page(state, handle);
                let words = words.map_err(|_| damaged(Part::EventPage, handle))?;
                state.event_page = Some(handle);
                let usable = u32::try_from(words.words().len()).unwrap_or(u32::MAX);
                Ok(EventPage::kept(words, usable, None))
            }
            EventPageState::Driver { memory, usable } => {
                let found = self.memory(memory)?;
                // CAST: a page's bytes.
                let fits = found.bytes == EVENT_PAGE_BYTES as u64 && usable <= KFD_SIGNAL_EVENT_LIMIT;
                if !fits {
                    return Err(damaged(Part::EventPage, memory));
                }
                let words = SharedWords::map(found.fd.as_fd(), EVENT_PAGE_BYTES / 8)?;
                Ok(EventPage::kept(words, usable, Some(memfd::duplicate(found.fd.as_fd())?)))
            }
        }
    }
}

fn event(saved: &EventState) -> Event {
    let ([present, read_only, no_execute, imprecise], va, gpu_id, error_type) = saved.memory;
    let [reset_type, reset_cause, memory_lost, gpu] = saved.hardware;
    let failure = kfd_memory_exception_failure {
        NotPresent: present,
        ReadOnly: read_only,
        NoExecute: no_execute,
        imprecise,
    };
    let mut event = Event::new(saved.event_type, saved.auto_reset, saved.signaled, saved.age);
    event.memory_exception = kfd_hsa_memory_exception_data { failure, va, gpu_id, ErrorType: error_type };
    event.hw_exception = kfd_hsa_hw_exception_data { reset_type, reset_cause, memory_lost, gpu_id: gpu };
    event
}
