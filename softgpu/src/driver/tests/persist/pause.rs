// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a pause does to queues and waits, and how it is undone.

use std::sync::atomic::Ordering;

use kfd::sys::*;
use nix::errno::Errno;

use super::super::faults::eventually;
use super::super::queues::{BASE, update};
use super::*;
use crate::hardware::{Interrupts, VmFault};
use crate::persist::{PauseError, PausePhase};

/// WAIT_EVENTS for one event; answers the result and the argument afterwards.
fn wait(client: &Client, event: u32, timeout: u32) -> (Result<u32, Errno>, kfd_ioctl_wait_events_args) {
    let memory = Memory::with(ARRAY, bytemuck::bytes_of(&kfd_event_data::new(event, 0)));
    let mut args =
        kfd_ioctl_wait_events_args { events_ptr: ARRAY, num_events: 1, timeout, ..Default::default() };
    let result = client.call_with(AMDKFD_IOC_WAIT_EVENTS, &mut args, &memory, &Fds::default());
    (result, args)
}

fn is_waiting(client: &Client, waits: usize) -> bool {
    client.process.events.lock().waiters_now() == waits
}

#[test]
fn queues_are_off_until_the_process_goes_on() {
    let client = Client::pair();
    let ids = [0, 1].map(|gpu| client.create(&mut client.queue_parts(gpu, BASE).args).unwrap());
    client.hardware.take();
    client.process.pause(soon()).unwrap();
    assert_eq!(
        client.hardware.take(),
        [Step::Stop { gpu: 0, id: ids[0] }, Step::Stop { gpu: 1, id: ids[1] }]
    );
    assert!(matches!(client.process.pause(soon()), Err(PauseError::Paused)));
    // Neither one that becomes active nor a new one runs.
    update(&client, ids[0], BASE + 0x1_0000, 0x4000, 50).unwrap();
    client.create(&mut client.queue_parts(0, BASE + 0x1_0000_0000).args).unwrap();
    assert_eq!(client.hardware.running.lock().len(), 0);
    client.process.resume().unwrap();
    assert_eq!(client.hardware.running.lock().len(), 3);
    assert_eq!(client.process.resume(), Err(Errno::EINVAL));
}

#[test]
fn waits_are_to_be_issued_again_with_the_time_that_is_left() {
    let client = Client::ready();
    let event = client.create_event(KFD_IOC_EVENT_SIGNAL, false, client.event_page()).unwrap();
    std::thread::scope(|scope| {
        let endless = scope.spawn(|| wait(&client, event, u32::MAX));
        let finite = scope.spawn(|| wait(&client, event, 60_000));
        eventually(|| is_waiting(&client, 2));
        std::thread::sleep(Duration::from_millis(20));
        client.process.pause(soon()).unwrap();
        let (endless, finite) = (endless.join().unwrap(), finite.join().unwrap());
        assert_eq!((endless.0, endless.1.timeout), (Err(Errno::ERESTART), u32::MAX));
        assert_eq!(finite.0, Err(Errno::ERESTART));
        assert!((50_000..=59_980).contains(&finite.1.timeout), "{}", finite.1.timeout);
        assert_eq!(finite.1.num_events, 1);
        // One that begins now does not begin, even if its event is signalled.
        client.set(event).unwrap();
        for timeout in [0, 7, u32::MAX] {
            let (result, args) = wait(&client, event, timeout);
            assert_eq!((result, args.timeout), (Err(Errno::ERESTART), timeout));
        }
        client.process.resume().unwrap();
        assert_eq!(wait(&client, event, u32::MAX).0, Ok(0));
    });
}

#[test]
fn events_that_an_ended_wait_had_consumed_are_signalled_again() {
    let client = Client::ready();
    let auto = client.create_event(KFD_IOC_EVENT_SIGNAL, true, client.event_page()).unwrap();
    let other = client.create_event(KFD_IOC_EVENT_SIGNAL, false, 0).unwrap();
    client.set(auto).unwrap();
    std::thread::scope(|scope| {
        let both = scope.spawn(|| client.wait(&[(auto, 0), (other, 0)], true, u32::MAX).result);
        eventually(|| is_waiting(&client, 1));
        client.process.pause(soon()).unwrap();
        assert_eq!(both.join().unwrap(), Err(Errno::ERESTART));
        client.process.resume().unwrap();
        client.wait(&[(auto, 0)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    });
}

#[test]
fn work_of_interrupts_is_done_when_the_pause_has_begun() {
    for _ in 0..50 {
        let client = Client::ready();
        let event = client.create_event(KFD_IOC_EVENT_MEMORY, false, client.event_page()).unwrap();
        client.create(&mut client.queue_parts(0, BASE).args).unwrap();
        client.process.memory_fault(0, VmFault { address: 0x1000, permission_faults: VmFault::VALID });
        client.process.pause(soon()).unwrap();
        assert!(client.process.events.lock().get(event).unwrap().signaled);
        client.process.resume().unwrap();
        assert_eq!(client.hardware.running.lock().len(), 0, "the fault is a reason of its own");
    }
}

#[test]
fn streams_of_events_are_refused_while_the_client_has_them() {
    let client = Client::ready();
    let fds = Fds::default();
    let mut args = kfd_ioctl_smi_events_args { gpuid: client.id(0), ..Default::default() };
    client.call_with(AMDKFD_IOC_SMI_EVENTS, &mut args, &Memory::default(), &fds).unwrap();
    let stream = fds.taken_out();
    match client.process.pause(soon()) {
        Err(PauseError::EventStream { gpu_id }) => assert_eq!(gpu_id, client.id(0)),
        other => panic!("{other:?}"),
    }
    drop(stream);
    client.process.pause(soon()).unwrap();
    let open = |args: &mut kfd_ioctl_smi_events_args| {
        client.call_with(AMDKFD_IOC_SMI_EVENTS, args, &Memory::default(), &Fds::default())
    };
    assert_eq!(open(&mut args), Err(Errno::ERESTART), "later");
    client.process.resume().unwrap();
    assert_eq!(open(&mut args), Ok(0));
}

#[test]
fn a_pause_does_not_wait_for_interrupts_beyond_its_deadline() {
    let client = Client::ready();
    client.create(&mut client.queue_parts(0, BASE).args).unwrap();
    std::thread::scope(|scope| {
        // The work of the interrupt cannot signal.
        let events = client.process.events.lock();
        client.process.memory_fault(0, VmFault { address: 0x1000, permission_faults: VmFault::VALID });
        let pause = scope.spawn(|| client.process.pause(Instant::now() + Duration::from_millis(50)));
        std::thread::sleep(Duration::from_millis(200));
        drop(events);
        match pause.join().unwrap() {
            Err(PauseError::Deadline { phase: PausePhase::Interrupts }) => {}
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(client.process.resume(), Err(Errno::EINVAL), "it is not paused");
    client.process.pause(soon()).unwrap();
}

#[test]
fn a_pause_that_fails_is_undone() {
    let client = Client::pair();
    let event = client.create_event(KFD_IOC_EVENT_SIGNAL, false, client.event_page()).unwrap();
    let ids = [0, 1].map(|gpu| client.create(&mut client.queue_parts(gpu, BASE).args).unwrap());
    let failed = |wanted: PausePhase| match client.process.pause(Instant::now()) {
        Err(PauseError::Deadline { phase }) => assert_eq!(phase, wanted),
        other => panic!("{other:?}"),
    };
    failed(PausePhase::Queues);
    assert_eq!(client.hardware.running.lock().len(), 2);
    let state = client.process.state.lock();
    failed(PausePhase::Call);
    drop(state);
    client.set(event).unwrap();
    assert_eq!(wait(&client, event, u32::MAX).0, Ok(0), "waits wait");

    client.hardware.hang.store(true, Ordering::Relaxed);
    assert!(matches!(client.process.pause(soon()), Err(PauseError::Hang(Errno::ETIME))));
    client.hardware.hang.store(false, Ordering::Relaxed);
    for id in ids {
        client.destroy(id).unwrap();
    }
    client.create(&mut client.queue_parts(0, BASE + 0x1_0000_0000).args).unwrap();
    assert_eq!(client.hardware.running.lock().len(), 1, "new queues run");
}
