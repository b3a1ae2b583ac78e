// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events, the event page, and which wait waits for which event (`amdkfd/kfd_events.c`): data only, without locks and
//! ioctls.
//!
//! INVARIANT: an event of a signalable type has a slot in the page for its whole life, which is set to all ones when
//! the event is created. A waiter is in the list of each of its events until the wait ends or the event is destroyed.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use kfd::sys::*;
use nix::errno::Errno;

use super::shared::SharedWords;

/// Slots of the page that old user code expects when the driver makes it (`KFD_SIGNAL_EVENT_LIMIT` are allocated).
const DRIVER_PAGE_SLOTS: u32 = 256;

/// The event page: a u64 slot for each signalable event.
#[derive(Debug)]
pub(super) struct EventPage {
    words: SharedWords,
    /// Ids below this may be given out.
    pub(super) usable: u32,
    /// The page's memory when the driver made it, for `mmap`.
    pub(super) own: Option<OwnedFd>,
}

impl EventPage {
    /// A page in the client's memory; the slots that the driver scans are reset.
    pub(super) fn of_client(words: SharedWords) -> Self {
        let usable = u32::try_from(words.words().len()).unwrap_or(u32::MAX);
        Self::reset(Self { words, usable, own: None })
    }

    /// A page that the driver makes for a client that gave none.
    pub(super) fn of_driver(words: SharedWords, fd: OwnedFd) -> Self {
        Self::reset(Self { words, usable: DRIVER_PAGE_SLOTS, own: Some(fd) })
    }

    /// A page of a restored process, whose slots stay as they are: the driver's own if `own` is its memory.
    pub(super) fn kept(words: SharedWords, usable: u32, own: Option<OwnedFd>) -> Self {
        Self { words, usable, own }
    }

    fn reset(self) -> Self {
        for id in 0..KFD_SIGNAL_EVENT_LIMIT {
            self.acknowledge(id);
        }
        self
    }

    /// Whether the slot was written since it was last acknowledged.
    fn is_written(&self, id: u32) -> bool {
        // ORDERING: Acquire pairs with the hardware's mailbox store, which comes before its interrupt.
        self.words
            .words()
            .get(id as usize)
            .is_some_and(|slot| slot.load(Ordering::Acquire) != UNSIGNALED_EVENT_SLOT)
    }

    fn acknowledge(&self, id: u32) {
        if let Some(slot) = self.words.words().get(id as usize) {
            slot.store(UNSIGNALED_EVENT_SLOT, Ordering::Release);
        }
    }
}

/// One event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) event_type: u32,
    pub(super) auto_reset: bool,
    pub(super) signaled: bool,
    /// Counts signals; never 0 or, after the first, 1.
    pub(super) age: u64,
    pub(super) memory_exception: kfd_hsa_memory_exception_data,
    pub(super) hw_exception: kfd_hsa_hw_exception_data,
    /// Waits for the event: number of the wait and position of the event in it.
    waiters: Vec<(u64, usize)>,
}

impl Event {
    /// An event of this type that nobody waits for.
    pub(super) fn new(event_type: u32, auto_reset: bool, signaled: bool, age: u64) -> Self {
        Self {
            event_type,
            auto_reset,
            signaled,
            age,
            memory_exception: kfd_hsa_memory_exception_data::default(),
            hw_exception: kfd_hsa_hw_exception_data::default(),
            waiters: Vec::new(),
        }
    }
}

/// One entry of a wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    /// `None` once the event was destroyed.
    pub(super) event: Option<u32>,
    pub(super) activated: bool,
    pub(super) compares_age: bool,
}

/// Everything about events.
#[derive(Debug, Default)]
pub(super) struct EventState {
    pub(super) page: Option<EventPage>,
    events: BTreeMap<u32, Event>,
    waits: HashMap<u64, Vec<Waiter>>,
    next_wait: u64,
    pub(super) cancelled: bool,
    /// Whether waits, running and future, are to be begun anew later.
    pub(super) restarts: bool,
}

/// Types with a slot in the page, which the GPU can signal.
pub(super) fn has_slot(event_type: u32) -> bool {
    matches!(event_type, KFD_IOC_EVENT_SIGNAL | KFD_IOC_EVENT_DEBUG_EVENT)
}

impl EventState {
    /// Makes an event and answers its id.
    ///
    /// # Errors
    /// `ENOSPC` when all ids of its kind are taken.
    pub(super) fn create(&mut self, event_type: u32, auto_reset: bool) -> Result<u32, Errno> {
        let id = if has_slot(event_type) {
            let usable = self.page.as_ref().ok_or(Errno::ENOMEM)?.usable;
            // Id 0 is never given out.
            self.lowest_free(1, usable.min(KFD_FIRST_NONSIGNAL_EVENT_ID))?
        } else {
            self.lowest_free(KFD_FIRST_NONSIGNAL_EVENT_ID, i32::MAX.unsigned_abs())?
        };
        if let Some(page) = self.page.as_ref().filter(|_| has_slot(event_type)) {
            page.acknowledge(id);
        }
        self.events.insert(id, Event::new(event_type, auto_reset, false, 1));
        Ok(id)
    }

    fn lowest_free(&self, first: u32, end: u32) -> Result<u32, Errno> {
        let mut free = first;
        for taken in self.events.range(first..end).map(|(id, _)| *id) {
            if taken != free {
                break;
            }
            free += 1;
        }
        if free < end { Ok(free) } else { Err(Errno::ENOSPC) }
    }

    /// Restores an event from a checkpoint, with its payload and whether it is signalled. Its age begins at 0 and its
    /// slot is cleared (`kfd_criu_restore_event`).
    ///
    /// # Errors
    /// `EINVAL` for a type that is not restored or a number no event has, `ENOMEM` without a page, `ENOSPC` when the
    /// number is taken.
    pub(super) fn restore(&mut self, saved: &kfd_criu_event_priv_data) -> Result<(), Errno> {
        let id = saved.event_id;
        let payload = kfd_event_data { payload: saved.payload, ..Default::default() };
        let mut event = Event::new(saved.event_type, saved.auto_reset != 0, saved.signaled != 0, 0);
        let last = match saved.event_type {
            slotted if has_slot(slotted) => {
                if self.page.is_none() {
                    return Err(Errno::ENOMEM);
                }
                KFD_SIGNAL_EVENT_LIMIT - 1
            }
            KFD_IOC_EVENT_MEMORY => {
                event.memory_exception = payload.memory_exception_data();
                i32::MAX.unsigned_abs()
            }
            KFD_IOC_EVENT_HW_EXCEPTION => {
                event.hw_exception = payload.hw_exception_data();
                i32::MAX.unsigned_abs()
            }
            _ => return Err(Errno::EINVAL),
        };
        if id > last {
            return Err(Errno::EINVAL);
        }
        if self.events.contains_key(&id) {
            return Err(Errno::ENOSPC);
        }
        if let Some(page) = self.page.as_ref().filter(|_| has_slot(saved.event_type)) {
            page.acknowledge(id);
        }
        self.events.insert(id, event);
        Ok(())
    }

    /// All events as a checkpoint stores them, by number. The first one carries the handle of the event page.
    pub(super) fn checkpoint(&self, page: Option<u64>) -> Vec<kfd_criu_event_priv_data> {
        let save = |(id, event): (&u32, &Event)| {
            let mut data = kfd_event_data::default();
            match event.event_type {
                KFD_IOC_EVENT_MEMORY => data.set_memory_exception_data(event.memory_exception),
                KFD_IOC_EVENT_HW_EXCEPTION => data.set_hw_exception_data(event.hw_exception),
                _ => {}
            }
            kfd_criu_event_priv_data {
                object_type: KFD_CRIU_OBJECT_TYPE_EVENT,
                event_id: *id,
                auto_reset: u32::from(event.auto_reset),
                event_type: event.event_type,
                signaled: u32::from(event.signaled),
                payload: data.payload,
                ..Default::default()
            }
        };
        let mut events: Vec<_> = self.events.iter().map(save).collect();
        if let Some(first) = events.first_mut() {
            first.user_handle = page.unwrap_or(0);
        }
        events
    }

    /// Adds an event under its old number; its slot stays as it is. Fails if the number is taken, or is none of its type, or
    /// there is no page for it.
    #[must_use]
    pub(super) fn insert_at(&mut self, id: u32, event: Event) -> bool {
        let end = match (has_slot(event.event_type), &self.page) {
            (true, None) => 0,
            (true, Some(_)) => KFD_SIGNAL_EVENT_LIMIT,
            (false, _) => i32::MAX.unsigned_abs(),
        };
        let free = id < end && !self.events.contains_key(&id);
        if free {
            self.events.insert(id, event);
        }
        free
    }

    /// All events, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Event)> {
        self.events.iter().map(|(id, event)| (*id, event))
    }

    /// How many events there are.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    pub(super) fn get(&self, id: u32) -> Option<&Event> {
        self.events.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Event> {
        self.events.get_mut(&id)
    }

    /// Ids of all events of a type.
    pub(super) fn of_type(&self, event_type: u32) -> Vec<u32> {
        self.events.iter().filter(|(_, event)| event.event_type == event_type).map(|(id, _)| *id).collect()
    }

    /// Destroys an event; its waiters will see that it is gone.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(super) fn destroy(&mut self, id: u32) -> Result<(), Errno> {
        self.events.remove(&id).ok_or(Errno::EINVAL)?;
        for waiter in self.waits.values_mut().flatten().filter(|waiter| waiter.event == Some(id)) {
            waiter.event = None;
        }
        Ok(())
    }

    /// Signals an event: its age grows by one and every waiter is activated. If an auto-reset event activated a waiter,
    /// it is unsignalled at once.
    pub(super) fn set(&mut self, id: u32) {
        let Some(event) = self.events.get_mut(&id) else { return };
        event.signaled = !event.auto_reset || event.waiters.is_empty();
        event.age = event.age.checked_add(1).unwrap_or(2);
        for (wait, at) in &event.waiters {
            if let Some(waiter) = self.waits.get_mut(wait).and_then(|waiters| waiters.get_mut(*at)) {
                waiter.activated = true;
            }
        }
    }

    /// Handles an interrupt that names `id` (`kfd_signal_event_interrupt`). The event is signalled if its slot was
    /// written. Otherwise, or if there is no such event, every event whose slot was written is signalled.
    pub(super) fn interrupt(&mut self, id: u32) {
        let Some(page) = &self.page else { return };
        let named = id < KFD_SIGNAL_EVENT_LIMIT && page.is_written(id) && self.events.contains_key(&id);
        let ids = if named { vec![id] } else { self.written() };
        for id in ids {
            self.set_from_interrupt(id);
        }
    }

    /// Events whose slot was written. The kernel walks its list when there are few events and the page when there are
    /// many. Both give the same answer, since a slot without an event is ignored.
    fn written(&self) -> Vec<u32> {
        let Some(page) = &self.page else { return Vec::new() };
        let ids = self.events.range(1..KFD_SIGNAL_EVENT_LIMIT).map(|(id, _)| *id);
        ids.filter(|id| page.is_written(*id)).collect()
    }

    fn set_from_interrupt(&mut self, id: u32) {
        if !self.events.get(&id).is_some_and(|event| has_slot(event.event_type)) {
            return;
        }
        if let Some(page) = &self.page {
            page.acknowledge(id);
        }
        self.set(id);
    }

    /// Enters a wait without entries.
    pub(super) fn begin_wait(&mut self) -> u64 {
        self.next_wait += 1;
        self.waits.insert(self.next_wait, Vec::new());
        self.next_wait
    }

    /// Adds an entry to a wait, consuming an auto-reset event that is signalled (`init_event_waiter`).
    ///
    /// # Errors
    /// `EINVAL` for an unknown event.
    pub(super) fn add_waiter(&mut self, wait: u64, id: u32, last_age: u64) -> Result<(), Errno> {
        let event = self.events.get_mut(&id).ok_or(Errno::EINVAL)?;
        let waiters = self.waits.get_mut(&wait).ok_or(Errno::EINVAL)?;
        let compares_age = event.event_type == KFD_IOC_EVENT_SIGNAL && last_age != 0;
        let activated = event.signaled || (compares_age && event.age != last_age);
        event.signaled = event.signaled && !event.auto_reset;
        if !activated {
            event.waiters.push((wait, waiters.len()));
        }
        waiters.push(Waiter { event: Some(id), activated, compares_age });
        Ok(())
    }

    /// The entries of a wait.
    pub(super) fn waiters(&self, wait: u64) -> &[Waiter] {
        self.waits.get(&wait).map_or(&[], Vec::as_slice)
    }

    /// Removes the wait from every event. `undo` signals again the events that an interrupted wait had consumed.
    pub(super) fn end_wait(&mut self, wait: u64, undo: bool) {
        let waiters = self.waits.remove(&wait).unwrap_or_default();
        for waiter in &waiters {
            if let Some(event) = waiter.event.and_then(|id| self.events.get_mut(&id)) {
                event.waiters.retain(|(other, _)| *other != wait);
            }
        }
        if undo {
            let consumed = waiters.iter().filter(|waiter| waiter.activated).filter_map(|waiter| waiter.event);
            for id in consumed.collect::<Vec<_>>() {
                if self.events.get(&id).is_some_and(|event| event.auto_reset) {
                    self.set(id);
                }
            }
        }
    }

    /// Waits in progress.
    pub(super) fn waiters_now(&self) -> usize {
        self.waits.len()
    }
}
