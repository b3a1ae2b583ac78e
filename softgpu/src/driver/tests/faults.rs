// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of faults and exceptions on queues, and how the client learns of them.

use std::sync::atomic::Ordering;

use super::harness::*;
use super::queues::{BASE, update, wave_state};
use kfd::sys::*;
use nix::errno::Errno;
use queues::aql::ExceptionCode;

use crate::driver::KernelModel;
use crate::hardware::{Interrupts, VmFault};

/// Waits for deferred work, which runs on its own thread.
pub fn eventually(mut done: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("deferred work never happened");
}

#[test]
fn memory_fault_on_a_future_kernel_leaves_the_other_queues_alone() {
    let client = Client::pair_under(KernelModel::Fixed);
    let event = client.create_event(KFD_IOC_EVENT_MEMORY, true, client.event_page()).unwrap();
    let mut args = client.queue_parts(0, BASE).args;
    client.create(&mut args).unwrap();
    client.hardware.take();
    let fault = VmFault { address: 0xdead_beef, permission_faults: VmFault::VALID | VmFault::READ };
    client.process.memory_fault(0, fault);
    client.wait(&[(event, 0)], false, 5000).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    assert_eq!(client.hardware.take(), []);
}

#[test]
fn memory_fault_on_6_12_takes_the_gpus_queues_off_for_good() {
    let client = Client::pair_under(KernelModel::V6_12);
    let mut first = client.queue_parts(0, BASE).args;
    let mut second = client.queue_parts(1, BASE).args;
    let (victim, other) = (client.create(&mut first).unwrap(), client.create(&mut second).unwrap());
    client.hardware.take();
    let fault = VmFault { address: 0xdead_beef, permission_faults: VmFault::VALID | VmFault::READ };
    client.process.memory_fault(0, fault);
    eventually(|| client.hardware.take() == [Step::Stop { gpu: 0, id: victim }]);
    update(&client, victim, BASE + 0x1_0000, 0x4000, 100).unwrap();
    update(&client, other, BASE + 0x1_0000, 0x4000, 0).unwrap();
    assert_eq!(client.hardware.take(), [Step::Stop { gpu: 1, id: other }]);
    client.create(&mut first).unwrap();
    assert_eq!(client.hardware.take(), [], "a new queue of that GPU does not run either");
    assert_eq!(wave_state(&client, victim, BASE + 0x10_0000).0, Ok(0));
}

#[test]
fn memory_fault_on_7_3_takes_queues_off_as_on_6_12() {
    let client = Client::pair_under(KernelModel::V7_3);
    let mut args = client.queue_parts(0, BASE).args;
    let victim = client.create(&mut args).unwrap();
    client.hardware.take();
    let fault = VmFault { address: 0xdead_beef, permission_faults: VmFault::VALID | VmFault::READ };
    client.process.memory_fault(0, fault);
    eventually(|| client.hardware.take() == [Step::Stop { gpu: 0, id: victim }]);
}

#[test]
fn hang_loses_the_queues_of_the_gpu_and_tells_of_the_reset() {
    let client = Client::pair();
    let reset = client.create_event(KFD_IOC_EVENT_HW_EXCEPTION, true, 0).unwrap();
    let memory = client.create_event(KFD_IOC_EVENT_MEMORY, true, 0).unwrap();
    let [mut first, mut second] = [0, 1].map(|gpu| client.queue_parts(gpu, BASE).args);
    let (stuck, beside) = (client.create(&mut first).unwrap(), client.create(&mut first).unwrap());
    let elsewhere = client.create(&mut second).unwrap();
    client.hardware.take();
    client.hardware.hang.store(true, Ordering::Relaxed);
    let ring = BASE + 0x1_0000;
    assert_eq!(update(&client, stuck, ring, 0x4000, 0), Err(Errno::ETIME));
    client.hardware.hang.store(false, Ordering::Relaxed);
    // The hardware reports this during the call that waits for it.
    let guard = client.process.state.lock();
    client.process.hang(0);
    drop(guard);
    let waited = client.wait(&[(reset, 0), (memory, 0)], true, 5000);
    waited.is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    let told = waited.data[0].hw_exception_data();
    assert_eq!((told.reset_type, told.reset_cause, told.memory_lost, told.gpu_id), (0, 0, 1, client.id(0)));
    let told = waited.data[1].memory_exception_data();
    assert_eq!((told.ErrorType, told.gpu_id, told.va), (KFD_MEM_ERR_GPU_HANG, client.id(0), 0));
    assert_eq!(
        client.hardware.take(),
        [Step::Stop { gpu: 0, id: stuck }, Step::Destroy { gpu: 0, id: beside }]
    );
    for id in [stuck, beside] {
        assert_eq!(update(&client, id, ring, 0x4000, 100), Err(Errno::EACCES));
        client.destroy(id).unwrap();
    }
    assert_eq!(client.hardware.take(), [], "they were off already");
    update(&client, elsewhere, ring, 0x4000, 50).unwrap();
    client.create(&mut first).unwrap();
    assert_eq!(client.hardware.running.lock().len(), 2);
}

#[test]
fn exception_reaches_the_runtime_through_the_save_areas_header() {
    let client = Client::ready();
    let mut enable = kfd_ioctl_runtime_enable_args { mode_mask: 1, ..Default::default() };
    client.call(AMDKFD_IOC_RUNTIME_ENABLE, &mut enable).unwrap();
    let event = client.create_event(KFD_IOC_EVENT_SIGNAL, false, client.event_page()).unwrap();
    let mut parts = client.queue_parts(0, BASE);
    let id = client.create(&mut parts.args).unwrap();
    let memory_of = |handle: u64| {
        let state = client.process.state.lock();
        crate::driver::memfd::duplicate(&state.bo(0, handle as u32).unwrap().backing.fd).unwrap()
    };
    let (area, pointers) = (memory_of(parts.cwsr), memory_of(parts.pointers));
    let payload = BASE + 0x100;
    nix::sys::uio::pwrite(&area, &payload.to_le_bytes(), 24).unwrap();
    nix::sys::uio::pwrite(&area, &event.to_le_bytes(), 32).unwrap();
    nix::sys::uio::pwrite(&pointers, &1u64.to_le_bytes(), 0x100).unwrap();
    client.process.queue_exception(0, id, ExceptionCode::PacketDispatchDimInvalid);
    client.wait(&[(event, 0)], false, 5000).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    let mut word = [0; 8];
    nix::sys::uio::pread(&pointers, &mut word, 0x100).unwrap();
    assert_eq!(u64::from_le_bytes(word), 1 | 1 << 15);
}
