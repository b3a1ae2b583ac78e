// SPDX-License-Identifier: MIT OR Apache-2.0
//! PROCESS_INFO, CHECKPOINT's refusals, UNPAUSE and RESUME.

use std::sync::atomic::Ordering;

use super::super::faults::eventually;
use super::super::queues::{BASE, update, wave_state};
use super::*;
use crate::hardware::{Interrupts, VmFault};

fn with_queue(kernel: KernelModel) -> (Client, u32) {
    let client = Client::pair_under(kernel);
    let mut args = client.queue_parts(0, BASE).args;
    let id = client.create(&mut args).unwrap();
    client.hardware.take();
    (client, id)
}

#[test]
fn shared_virtual_memory_is_in_no_checkpoint() {
    let client = Client::with_svm("gfx1100");
    client.acquire(0);
    client.buffer(0, 0x1000_0000, 4096, GTT);
    let unchanged = vec![crate::driver::UserPages::Unchanged { bytes: 4096 }];
    client.svm(KFD_IOCTL_SVM_OP_SET_ATTR, (0x5000_0000, 4096), &mut [], unchanged).unwrap();
    let info = pause(&client).unwrap();
    assert_eq!(checkpoint(&client, &info).err(), Some(Errno::EOPNOTSUPP));
    client.process.svm_unmapped(0x5000_0000, 4096).unwrap();
    checkpoint(&client, &info).unwrap();
}

#[test]
fn process_info_counts_and_stops_every_queue() {
    let (client, id) = with_queue(KernelModel::Fixed);
    let info = pause(&client).unwrap();
    assert_eq!(client.hardware.take(), [Step::Stop { gpu: 0, id }]);
    assert_eq!((info.pid, info.num_devices, info.num_bos, info.num_objects), (PID, 2, 4, 1));
    assert_eq!(info.priv_data_size, 8 + 2 * 8 + 4 * 272 + 120 + 2048);
    // A paused queue is as inactive as a parked one.
    assert_eq!(wave_state(&client, id, BASE + 0x10_0000).0, Ok(0));
    // A queue that becomes active while the process is paused does not start.
    update(&client, id, BASE + 0x1_0000, 0x4000, 50).unwrap();
    assert_eq!(client.hardware.take(), []);
    unpause(&client).unwrap();
    assert!(matches!(client.hardware.take()[..], [Step::Start { gpu: 0, .. }]));
    assert_eq!(unpause(&client), Err(Errno::EINVAL));
}

#[test]
fn process_info_again_changes_nothing_since_7_3() {
    for kernel in [KernelModel::V7_3, KernelModel::Fixed] {
        let (client, _) = with_queue(kernel);
        pause(&client).unwrap();
        pause(&client).unwrap();
        client.hardware.take();
        unpause(&client).unwrap();
        assert!(matches!(client.hardware.take()[..], [Step::Start { .. }]), "{kernel}");
    }
}

#[test]
fn process_info_again_evicts_again_on_6_12() {
    let (client, _) = with_queue(KernelModel::V6_12);
    pause(&client).unwrap();
    pause(&client).unwrap();
    client.hardware.take();
    unpause(&client).unwrap();
    assert_eq!(client.hardware.take(), [], "one eviction is left");
    assert_eq!(unpause(&client), Err(Errno::EINVAL), "and nobody is paused");
}

#[test]
fn eviction_after_a_fault_outlives_the_pause() {
    for kernel in [KernelModel::V6_12, KernelModel::V7_3] {
        let (client, id) = with_queue(kernel);
        let fault = VmFault { address: 0x1000, permission_faults: VmFault::VALID | VmFault::READ };
        client.process.memory_fault(0, fault);
        eventually(|| client.hardware.take() == [Step::Stop { gpu: 0, id }]);
        pause(&client).unwrap();
        unpause(&client).unwrap();
        assert_eq!(client.hardware.take(), [], "{kernel}");
    }
}

#[test]
fn process_info_that_cannot_stop_a_queue_pauses_nothing() {
    let (client, victim) = with_queue(KernelModel::Fixed);
    let mut args = client.queue_parts(1, BASE).args;
    let other = client.create(&mut args).unwrap();
    client.hardware.hang.store(true, Ordering::Relaxed);
    assert_eq!(pause(&client).unwrap_err(), Errno::ETIME);
    client.hardware.hang.store(false, Ordering::Relaxed);
    assert_eq!(unpause(&client), Err(Errno::EINVAL));
    // Both queues were asked to stop, and both are lost.
    for id in [victim, other] {
        assert_eq!(update(&client, id, BASE + 0x1_0000, 0x4000, 100), Err(Errno::EACCES));
        client.destroy(id).unwrap();
    }
    client.create(&mut args).unwrap();
    assert_eq!(client.hardware.running.lock().len(), 1, "new queues run");
}

#[test]
fn checkpoint_refuses_what_process_info_did_not_say() {
    let (client, _) = with_queue(KernelModel::Fixed);
    let info = pause(&client).unwrap();
    unpause(&client).unwrap();
    assert_eq!(checkpoint(&client, &info).err(), Some(Errno::EINVAL), "not paused");
    let info = pause(&client).unwrap();
    type Change = fn(&mut kfd_ioctl_criu_args);
    let changes: [Change; 4] = [
        |args| args.num_devices -= 1,
        |args| args.num_bos += 1,
        |args| args.num_objects += 1,
        |args| args.priv_data_size += 8,
    ];
    for change in changes {
        let mut wrong = info;
        change(&mut wrong);
        assert_eq!(checkpoint(&client, &wrong).err(), Some(Errno::EINVAL), "{wrong:?}");
    }
    client.create_event(KFD_IOC_EVENT_MEMORY, false, 0).unwrap();
    assert_eq!(checkpoint(&client, &info).err(), Some(Errno::EINVAL), "one more event");
    take(&client);
}

#[test]
fn checkpoint_that_cannot_write_gives_nothing_out() {
    let (client, _) = with_queue(KernelModel::Fixed);
    let info = pause(&client).unwrap();
    let call = |devices, bos, priv_data, memory: Memory| {
        let mut args = kfd_ioctl_criu_args { devices, bos, priv_data, op: KFD_CRIU_OP_CHECKPOINT, ..info };
        let fds = Fds::default();
        let outcome = issue(&client, &mut args, &memory, &fds);
        assert_eq!(fds.taken_out().len(), 0);
        outcome
    };
    let all = || {
        let memory = Memory::of(CAPABLE).and(DEVICES, &[0; 32]).and(BOS, &[0; 4 * BO_BUCKET]);
        memory.and(PRIVATE, &vec![0; info.priv_data_size as usize])
    };
    for (devices, bos, private) in [(0, BOS, PRIVATE), (DEVICES, 0, PRIVATE), (DEVICES, BOS, 0)] {
        assert_eq!(call(devices, bos, private, all()), Err(Errno::EINVAL));
    }
    for (devices, bos, private) in
        [(8, BOS, PRIVATE), (DEVICES, BOS + BO_BUCKET as u64, PRIVATE), (DEVICES, BOS, PRIVATE + 1)]
    {
        assert_eq!(call(devices, bos, private, all()), Err(Errno::EFAULT));
    }
    assert_eq!(call(u64::MAX, u64::MAX - 8, u64::MAX, all()), Err(Errno::EFAULT));
}

#[test]
fn unknown_operations_and_processes_are_refused() {
    let client = Client::pair();
    assert_eq!(op(&client, 5, PID).unwrap_err(), Errno::EINVAL);
    assert_eq!(op(&client, KFD_CRIU_OP_RESUME, PID + 1).unwrap_err(), Errno::ESRCH);
    assert_eq!(resume(&client), Err(Errno::EINVAL), "never restored");
    assert_eq!(unpause(&client), Err(Errno::EINVAL));
}
