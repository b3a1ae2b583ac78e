// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: the page, ids, ages, auto reset, interrupts, waiting.

use std::sync::Arc;
use std::thread;

use super::harness::*;
use kfd::sys::*;
use nix::errno::Errno;

use crate::driver::memfd;
use crate::hardware::{Interrupts, VmFault};

const SIGNAL: u32 = KFD_IOC_EVENT_SIGNAL;
const COMPLETE: u32 = KFD_IOC_WAIT_RESULT_COMPLETE;
const TIMEOUT: u32 = KFD_IOC_WAIT_RESULT_TIMEOUT;
const FAIL: u32 = KFD_IOC_WAIT_RESULT_FAIL;

/// A client with an event page and one manual-reset signal event.
pub fn with_event() -> (Client, u32) {
    let client = Client::ready();
    let page = client.event_page();
    let event = client.create_event(SIGNAL, false, page).unwrap();
    (client, event)
}

/// Writes a slot as the hardware does before it interrupts.
fn write_slot(client: &Client, id: u32, value: u64) {
    let state = client.process.state.lock();
    let page = memfd::duplicate(&state.bo(0, 0).unwrap().backing.fd).unwrap();
    nix::sys::uio::pwrite(&page, &value.to_le_bytes(), i64::from(id) * 8).unwrap();
}

pub fn read_slot(client: &Client, id: u32) -> u64 {
    let state = client.process.state.lock();
    let mut bytes = [0; 8];
    nix::sys::uio::pread(&state.bo(0, 0).unwrap().backing.fd, &mut bytes, i64::from(id) * 8).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn event_page_refusals() {
    let client = Client::new("gfx1100*2");
    client.acquire(0);
    let small = client.alloc(0, 0, 28672, GTT).unwrap();
    let vram = client.alloc(0, 0, 32768, VRAM).unwrap();
    for page in [small, vram, vram + 1, 5, u64::from(client.id(0) ^ 1) << 32] {
        assert_eq!(client.create_event(SIGNAL, false, page), Err(Errno::EINVAL), "{page:#x}");
    }
    assert_eq!(client.create_event(SIGNAL, false, u64::from(client.id(1)) << 32), Err(Errno::ENODEV));
}

#[test]
fn create_answers_by_type() {
    let (client, _) = with_event();
    let mut args = kfd_ioctl_create_event_args { event_type: SIGNAL, ..Default::default() };
    client.call(AMDKFD_IOC_CREATE_EVENT, &mut args).unwrap();
    assert_eq!((args.event_id, args.event_trigger_data, args.event_slot_index), (2, 2, 2));
    assert_eq!(args.event_page_offset, 2 << 62);
    let mut args = kfd_ioctl_create_event_args { event_type: KFD_IOC_EVENT_MEMORY, ..Default::default() };
    client.call(AMDKFD_IOC_CREATE_EVENT, &mut args).unwrap();
    assert_eq!((args.event_id, args.event_page_offset), (0x4000_0000, 0));
    // The driver accepts unknown types. A debug event has a slot.
    assert_eq!(client.create_event(77, false, 0), Ok(0x4000_0001));
    assert_eq!(client.create_event(KFD_IOC_EVENT_DEBUG_EVENT, false, 0), Ok(3));
    client.destroy_event(2).unwrap();
    assert_eq!(client.create_event(SIGNAL, false, 0), Ok(2));
}

#[test]
fn slots_run_out() {
    let (client, _) = with_event();
    for id in 2..4096 {
        assert_eq!(client.create_event(SIGNAL, false, 0), Ok(id));
    }
    assert_eq!(client.create_event(SIGNAL, false, 0), Err(Errno::ENOSPC));
    assert!(client.create_event(KFD_IOC_EVENT_MEMORY, false, 0).is_ok());
}

#[test]
fn without_page_the_driver_makes_one_that_can_be_mapped() {
    let client = Client::new("gfx1100");
    assert_eq!(client.process.mmap(&client.kfd, 32768, 2 << 62).unwrap_err(), Errno::EINVAL);
    assert_eq!(client.create_event(SIGNAL, false, 0), Ok(1));
    assert!(client.process.mmap(&client.kfd, 32768, 2 << 62).is_ok());
    assert_eq!(client.process.mmap(&client.kfd, 65536, 2 << 62).unwrap_err(), Errno::EINVAL);
    client.acquire(0);
    assert_eq!(client.create_event(SIGNAL, false, client.event_page()), Err(Errno::EINVAL));
}

#[test]
fn wait_refusals() {
    let (client, event) = with_event();
    client.wait(&[], false, 0).is(Ok(0), COMPLETE);
    client.wait(&[], true, 0).is(Ok(0), COMPLETE);
    client.wait(&[(event, 0), (999, 0)], false, 0).is(Err(Errno::EINVAL), FAIL);
    client.wait(&vec![(event, 0); 4097], false, 0).is(Err(Errno::ENOMEM), FAIL);
    client.wait(&vec![(event, 0); 4096], false, 0).is(Ok(0), TIMEOUT);
    let mut args = kfd_ioctl_wait_events_args { events_ptr: 8, num_events: 1, ..Default::default() };
    assert_eq!(client.call(AMDKFD_IOC_WAIT_EVENTS, &mut args), Err(Errno::EFAULT));
    assert_eq!(args.wait_result, FAIL);
    (args.events_ptr, args.num_events) = (u64::MAX - 50, 2);
    assert_eq!(client.call(AMDKFD_IOC_WAIT_EVENTS, &mut args), Err(Errno::EFAULT));
}

#[test]
fn age_is_only_compared_for_signal_events() {
    let (client, _) = with_event();
    let memory = client.create_event(KFD_IOC_EVENT_MEMORY, false, 0).unwrap();
    client.wait(&[(memory, 5)], false, 0).is(Ok(0), TIMEOUT);
}

#[test]
fn auto_reset_event_satisfies_one_wait() {
    let (client, _) = with_event();
    let event = client.create_event(SIGNAL, true, 0).unwrap();
    client.set(event).unwrap();
    client.wait(&[(event, 0)], false, 0).is(Ok(0), COMPLETE);
    client.wait(&[(event, 0)], false, 0).is(Ok(0), TIMEOUT);
    // The event is twice in the array: only the first entry is satisfied.
    client.set(event).unwrap();
    client.wait(&[(event, 0), (event, 0)], true, 0).is(Ok(0), TIMEOUT);
    // The event is consumed even though a later entry is invalid.
    client.set(event).unwrap();
    client.wait(&[(event, 0), (999, 0)], false, 0).is(Err(Errno::EINVAL), FAIL);
    client.wait(&[(event, 0)], false, 0).is(Ok(0), TIMEOUT);
}

#[test]
fn wait_for_all_needs_all() {
    let (client, first) = with_event();
    let second = client.create_event(SIGNAL, false, 0).unwrap();
    client.set(first).unwrap();
    client.wait(&[(first, 0), (second, 0)], true, 0).is(Ok(0), TIMEOUT);
    client.wait(&[(second, 0), (first, 0)], false, 0).is(Ok(0), COMPLETE);
    client.set(second).unwrap();
    client.wait(&[(first, 0), (second, 0)], true, 0).is(Ok(0), COMPLETE);
}

/// Runs `wait` on another thread, and `act` once the wait is in the lists of its events.
fn while_waiting(
    client: &Arc<Client>,
    events: Vec<(u32, u64)>,
    all: bool,
    act: impl FnOnce(&Client),
) -> Waited {
    let waiter = {
        let client = Arc::clone(client);
        thread::spawn(move || client.wait(&events, all, u32::MAX))
    };
    while client.process.events.lock().waiters_now() == 0 {
        thread::yield_now();
    }
    act(client);
    waiter.join().unwrap()
}

#[test]
fn set_wakes_a_sleeping_wait_and_other_ioctls_run_meanwhile() {
    let (client, event) = with_event();
    let client = Arc::new(client);
    let waited = while_waiting(&client, vec![(event, 1)], false, |client| {
        client.buffer(0, 0x900_0000, 4096, GTT);
        client.create_event(KFD_IOC_EVENT_MEMORY, false, 0).unwrap();
        client.set(event).unwrap();
    });
    waited.is(Ok(0), COMPLETE);
    assert_eq!(waited.data[0].last_event_age(), 2);
}

#[test]
fn auto_reset_event_wakes_all_sleepers_and_stays_unsignaled() {
    let (client, _) = with_event();
    let event = client.create_event(SIGNAL, true, 0).unwrap();
    let client = Arc::new(client);
    while_waiting(&client, vec![(event, 0)], false, |client| {
        client.set(event).unwrap();
    })
    .is(Ok(0), COMPLETE);
    client.wait(&[(event, 0)], false, 0).is(Ok(0), TIMEOUT);
}

#[test]
fn destroying_a_waited_event_fails_the_wait_with_eio() {
    let (client, event) = with_event();
    let client = Arc::new(client);
    let waited = while_waiting(&client, vec![(event, 0)], false, |client| {
        client.destroy_event(event).unwrap();
    });
    waited.is(Err(Errno::EIO), FAIL);
    assert_eq!(client.create_event(SIGNAL, false, 0), Ok(event), "the id is free at once");
}

#[test]
fn cancelled_wait_answers_eintr_and_undoes_what_it_consumed() {
    let (client, never) = with_event();
    let consumed = client.create_event(SIGNAL, true, 0).unwrap();
    client.set(consumed).unwrap();
    let client = Arc::new(client);
    let waited = while_waiting(&client, vec![(consumed, 0), (never, 0)], true, |client| {
        client.process.canceller().cancel();
    });
    waited.is(Err(Errno::EINTR), FAIL);
    client.wait(&[(consumed, 0)], false, 0).is(Ok(0), COMPLETE);
    client.wait(&[(never, 0)], false, u32::MAX).is(Err(Errno::EINTR), FAIL);
}

#[test]
fn interrupt_needs_a_written_slot_and_acknowledges_it() {
    let (client, event) = with_event();
    client.process.end_of_pipe(event);
    client.wait(&[(event, 0)], false, 0).is(Ok(0), TIMEOUT);
    write_slot(&client, event, u64::from(event));
    client.process.end_of_pipe(event);
    assert_eq!(read_slot(&client, event), u64::MAX);
    client.wait(&[(event, 1)], false, 0).is(Ok(0), COMPLETE);
}

#[test]
fn two_completions_before_the_acknowledgement_are_one_signal() {
    let (client, event) = with_event();
    write_slot(&client, event, u64::from(event));
    write_slot(&client, event, u64::from(event));
    client.process.end_of_pipe(event);
    client.process.end_of_pipe(event);
    assert_eq!(client.wait(&[(event, 99)], false, 0).data[0].last_event_age(), 2);
}

#[test]
fn interrupt_that_finds_nothing_scans_the_page() {
    let (client, first) = with_event();
    let second = client.create_event(SIGNAL, false, 0).unwrap();
    write_slot(&client, second, 1);
    for stray in [first, 3000, 5000, u32::MAX] {
        client.process.end_of_pipe(stray);
        client.wait(&[(second, 0)], false, 0).is(Ok(0), COMPLETE);
        client.wait(&[(first, 0)], false, 0).is(Ok(0), TIMEOUT);
        client.reset(second).unwrap();
        write_slot(&client, second, 1);
    }
    // Context id 0 means that no event was asked for.
    client.process.end_of_pipe(0);
    client.wait(&[(second, 0)], false, 0).is(Ok(0), TIMEOUT);
}

#[test]
fn new_event_finds_its_slot_unsignaled() {
    let (client, event) = with_event();
    client.destroy_event(event).unwrap();
    write_slot(&client, event, 1);
    assert_eq!(client.create_event(SIGNAL, false, 0), Ok(event));
    assert_eq!(read_slot(&client, event), u64::MAX);
}

#[test]
fn memory_fault_signals_memory_events_with_the_page() {
    let (client, _) = with_event();
    let event = client.create_event(KFD_IOC_EVENT_MEMORY, true, 0).unwrap();
    // Permission faults of the interrupt, and what KFD makes of them: not present, read only.
    for (permission_faults, expected) in [
        (VmFault::WRITE, (0, 1)),
        (VmFault::VALID | VmFault::WRITE, (1, 1)),
        (VmFault::VALID | VmFault::READ, (1, 0)),
        (VmFault::VALID | VmFault::EXECUTE, (1, 0)),
        (VmFault::EXECUTE, (0, 0)),
    ] {
        client.process.memory_fault(0, VmFault { address: 0x1234_5678, permission_faults });
        let waited = client.wait(&[(event, 0)], false, 5000);
        waited.is(Ok(0), COMPLETE);
        let data = waited.data[0].memory_exception_data();
        assert_eq!((data.va, data.gpu_id, data.ErrorType), (0x1234_5000, client.id(0), 0));
        assert_eq!((data.failure.NotPresent, data.failure.ReadOnly), expected, "{permission_faults}");
        assert_eq!((data.failure.NoExecute, data.failure.imprecise), (0, 0));
    }
}

#[test]
fn waits_leave_nothing_behind() {
    let (client, event) = with_event();
    for _ in 0..100 {
        client.wait(&[(event, 0)], false, 0);
        client.wait(&[(event, 0), (999, 0)], false, 0);
    }
    assert_eq!(client.process.events.lock().waiters_now(), 0);
}
