// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of a node with two XCCs: a quarter of an MI300X.

use super::harness::*;
use super::queues::{BASE, update, wave_state};
use kfd::sys::*;
use nix::errno::Errno;

use crate::hardware::{SavedWaves, mqd_field};

pub const TWO_XCCS: &str = "[[gpu]]\nchip = \"gfx942\"\nnum_xcc = 2\n";
/// Of one XCC (`kfd_queue.c`): save area, control stack, and the debugger's memory, which nothing exports.
const SAVE: u32 = 23_203_840;
const STACK: u32 = 0x3000;
const DEBUG: u64 = 0xbe00;

/// An AQL queue's buffers, as libhsakmt makes them: without an end-of-pipe buffer.
fn parts(client: &Client) -> QueueParts {
    let mut parts = client.queue_parts(0, BASE);
    (parts.args.eop_buffer_address, parts.args.eop_buffer_size) = (0, 0);
    parts
}

#[test]
fn save_area_holds_all_xccs_and_is_described_for_one() {
    let client = Client::on_machine(TWO_XCCS);
    let mut queue = parts(&client).args;
    assert_eq!((queue.ctx_save_restore_size, queue.ctl_stack_size), (SAVE, STACK));
    // Exactly twice the parts of one XCC, in whole pages; a page less or more is another mapping.
    let all = (2 * (u64::from(SAVE) + DEBUG)).next_multiple_of(4096);
    assert_eq!(client.gpus[0].geometry().total_bytes, all);
    let of_one = (u64::from(SAVE) + DEBUG).next_multiple_of(4096);
    let sizes = [of_one, all - 4096, all + 4096, 2 * of_one, all];
    for (va, bytes) in (1..).map(|n| BASE + n * 0x1_0000_0000).zip(sizes) {
        client.buffer(0, va, bytes, VRAM);
        let outcome =
            client.create(&mut kfd_ioctl_create_queue_args { ctx_save_restore_address: va, ..queue });
        assert_eq!(outcome.map(drop), if bytes == all { Ok(()) } else { Err(Errno::EINVAL) }, "{bytes}");
    }
    // What an XCC has may be more than the kernel's formula, if all have it; its control stack may not.
    let more = u64::from(SAVE) + 4096;
    let va = BASE + 0x10_0000_0000;
    client.buffer(0, va, (2 * (more + DEBUG)).next_multiple_of(4096), VRAM);
    queue.ctx_save_restore_address = va;
    let with = |save, stack| {
        let sizes =
            kfd_ioctl_create_queue_args { ctx_save_restore_size: save, ctl_stack_size: stack, ..queue };
        client.create(&mut { sizes }).map(drop)
    };
    assert_eq!(with(SAVE, STACK), Err(Errno::EINVAL));
    assert_eq!(with(SAVE + 4096, 2 * STACK), Err(Errno::EINVAL));
    assert_eq!(with(SAVE + 4096, STACK), Ok(()));
    // One end-of-pipe buffer serves all XCCs of a PM4 queue: its size is not multiplied.
    let mut pm4 = client.queue_parts(0, BASE + 0x20_0000_0000).args;
    pm4.queue_type = KFD_IOC_QUEUE_TYPE_COMPUTE;
    pm4.eop_buffer_size = 8192;
    assert_eq!(client.create(&mut pm4.clone()), Err(Errno::EINVAL));
    pm4.eop_buffer_size = 4096;
    client.create(&mut pm4).unwrap();
}

#[test]
fn write_pointer_may_lie_in_vram_where_no_firmware_schedules() {
    let client = Client::on_machine(TWO_XCCS);
    let mut queue = parts(&client).args;
    client.buffer(0, BASE + 0x3_0000, 4096, VRAM);
    queue.write_pointer_address = BASE + 0x3_0000;
    client.create(&mut queue).unwrap();
}

#[test]
fn compute_queues_have_a_descriptor_for_each_xcc_and_copy_queues_one() {
    let client = Client::on_machine(TWO_XCCS);
    let mut queue = parts(&client).args;
    let aql = client.create(&mut queue).unwrap();
    queue.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
    let sdma = client.create(&mut queue).unwrap();
    let running = client.hardware.running.lock();
    assert_eq!((running[&(0, aql)].xccs(), running[&(0, sdma)].xccs()), (2, 1));
    for xcc in 0..2 {
        let words = [
            mqd_field::CONTROL_STACK_OFFSET,
            mqd_field::CONTROL_STACK_SIZE,
            mqd_field::WAVE_STATE_OFFSET,
            mqd_field::SAVE_AREA_SIZE,
        ];
        let words = words.map(|word| running[&(0, aql)].word_of(xcc, word));
        assert_eq!(words, [STACK, STACK, STACK, SAVE], "as init_mqd leaves it");
    }
}

#[test]
fn wave_state_is_the_first_xccs_and_each_header_lies_at_its_stride() {
    let client = Client::on_machine(TWO_XCCS);
    let mut queue = parts(&client);
    let id = client.create(&mut queue.args).unwrap();
    *client.hardware.saved.lock() = Some(SavedWaves {
        control_stack_offset: 12_000,
        control_stack_bytes: 288,
        wave_state_offset: 50_000,
        wave_state_bytes: 37_712,
    });
    update(&client, id, BASE + 0x1_0000, 0x4000, 0).unwrap();
    let (answer, args) = wave_state(&client, id, BASE + 0x10_0000);
    assert_eq!((answer, args.ctl_stack_used_size, args.save_area_used_size), (Ok(0), 288, 37_712));
    let acquired = client.process.state.lock().pdds[0].render.unwrap();
    let offset = client.process.state.lock().bo(0, 3).unwrap().mmap_offset;
    let memory = client.process.mmap(&acquired, 4096, offset).unwrap();
    let header = |at: u32| {
        let mut header = [0u32; 4];
        let bytes: &mut [u8] = bytemuck::bytes_of_mut(&mut header);
        nix::sys::uio::pread(&memory.fd, bytes, i64::from(at)).unwrap();
        header
    };
    assert_eq!(header(0), [12_000, 288, 50_000, 37_712]);
    // The fake hardware saves eight bytes of control stack more on each further XCC.
    assert_eq!(header(SAVE), [11_992, 296, 50_000, 37_712]);
    assert_eq!(header(2 * SAVE), [0; 4], "there is no third one");
}

#[test]
fn compute_units_of_a_mask_go_round_the_xccs() {
    let client = Client::on_machine(TWO_XCCS);
    let id = client.create(&mut parts(&client).args).unwrap();
    // A single unit may be left out: they do not come in pairs.
    let memory = Memory::with(ARRAY, &0b0000_0111_u32.to_le_bytes());
    let mut args = kfd_ioctl_set_cu_mask_args { queue_id: id, num_cu_mask: 32, cu_mask_ptr: ARRAY };
    client.call_with(AMDKFD_IOC_SET_CU_MASK, &mut args, &memory, &Fds::default()).unwrap();
    let masks = || {
        let state = client.process.state.lock();
        let mqd = &state.queues.get(id).unwrap().mqd;
        [0, 1].map(|xcc| [23, 24, 26].map(|word| mqd.word_of(xcc, word)))
    };
    assert_eq!(masks(), [[1, 1, 0], [1, 0, 0]]);
    // A queue that was on the hardware still has them.
    update(&client, id, BASE + 0x1_0000, 0x4000, 0).unwrap();
    assert_eq!(masks(), [[1, 1, 0], [1, 0, 0]]);
}
