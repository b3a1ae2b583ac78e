// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of several XCCs through a checkpoint, under each kernel.

use std::sync::Arc;

use super::super::queues::{BASE, update};
use super::super::several_xccs::TWO_XCCS;
use super::*;
use crate::hardware::SavedWaves;
use crate::sysfs::GpuModel;

const STACK: u32 = 0x3000;

fn client(kernel: KernelModel) -> Client {
    let gpus: Arc<[GpuModel]> = crate::sysfs::Machine::of_file(TWO_XCCS).unwrap().into_gpus().into();
    let ledger = ledger_of(&gpus);
    Client::under(kernel, gpus, ledger)
}

/// An AQL queue with waves and a copy queue, paused.
fn paused(kernel: KernelModel) -> (Client, Taken) {
    let client = client(kernel);
    client.acquire(0);
    let mut queue = client.queue_parts(0, BASE).args;
    client.create(&mut queue).unwrap();
    queue.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
    client.create(&mut queue).unwrap();
    *client.hardware.saved.lock() = Some(SavedWaves {
        control_stack_offset: 12_000,
        control_stack_bytes: 288,
        wave_state_offset: 50_000,
        wave_state_bytes: 37_712,
    });
    let taken = take(&client);
    (client, taken)
}

#[test]
fn descriptors_and_control_stacks_of_all_xccs_are_taken_and_made() {
    for kernel in [KernelModel::V7_3, KernelModel::Fixed] {
        let (original, taken) = paused(kernel);
        let blob = taken.parse();
        let sizes: Vec<_> =
            blob.queues.iter().map(|queue| (queue.mqd.len(), queue.control_stack.len())).collect();
        // The copy queue has one descriptor and room for two.
        assert_eq!(sizes, [(4096, 2 * STACK as usize), (1024, 0)], "{kernel}");
        assert!(blob.queues[1].mqd[512..].iter().all(|&byte| byte == 0));
        let heir = client(kernel);
        restore(&heir, &taken).unwrap();
        resume(&heir).unwrap();
        let running = heir.hardware.running.lock();
        let waves = [0, 1].map(|xcc| running[&(0, 0)].waves_of(xcc));
        assert_eq!(waves.map(|waves| waves.control_stack_offset), [12_000, 11_992], "{kernel}");
        assert_eq!(waves.map(|waves| waves.wave_state_offset), [50_000; 2], "{kernel}");
        assert_eq!(running[&(0, 1)].xccs(), 1);
        drop(running);
        drop(original);
    }
}

#[test]
fn one_descriptor_or_too_many_control_stacks_are_refused() {
    let (_original, taken) = paused(KernelModel::V7_3);
    // Behind one process and one device, the buffers, and the entry's other fields.
    let entry = 8 + 8 + 272 * taken.bos.len();
    let refused = |field: usize, value: u32| {
        let mut blob = taken.blob.clone();
        blob[entry + field..entry + field + 4].copy_from_slice(&value.to_le_bytes());
        let bad = Taken {
            blob,
            devices: taken.devices.clone(),
            bos: taken.bos.clone(),
            memory: HashMap::new(),
            ..taken
        };
        restore(&client(KernelModel::V7_3), &bad).map(drop)
    };
    assert_eq!(refused(112, 2048), Err(Errno::EINVAL));
    assert_eq!(refused(108, 2 * STACK + 4), Err(Errno::EINVAL));
    assert_eq!(refused(112, 4096), Ok(()), "as it was");
}

#[test]
fn linux_6_12_takes_the_first_xcc_alone_and_makes_none() {
    let (original, taken) = paused(KernelModel::V6_12);
    let queue = &taken.parse().queues[0];
    assert_eq!((queue.mqd.len(), queue.control_stack.len()), (2048, STACK as usize));
    assert_eq!(restore(&client(KernelModel::V6_12), &taken).map(drop), Err(Errno::EINVAL));
    // The original goes on with the descriptors of both.
    unpause(&original).unwrap();
    assert_eq!(original.hardware.running.lock()[&(0, 0)].xccs(), 2);
    update(&original, 0, BASE + 0x1_0000, 0x4000, 0).unwrap();
    let state = original.process.state.lock();
    assert_eq!(state.queues.get(0).unwrap().mqd.waves_of(1).control_stack_offset, 11_992);
}
