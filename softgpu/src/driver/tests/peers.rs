// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which GPU can map which GPU's memory: by hive, by PCIe and its direction, by the size of the BAR.

use std::os::fd::AsFd;

use kfd::sys::*;
use nix::errno::Errno;

use super::harness::*;
use crate::driver::memfd;

const VA: u64 = 0x1000_0000;
const DOORBELL: u32 = KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
const MMIO: u32 = KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
const HIDDEN: u32 = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;

/// A hive of two of which the second has a small BAR, and two more that see each other in one direction: 2 maps what
/// is on 3, 3 does not map what is on 2.
const MACHINE: &str = r#"
    [[gpu]]
    chip = "gfx90a"
    hive = 1
    [[gpu]]
    chip = "gfx90a"
    hive = 1
    bar = "small"
    [[gpu]]
    chip = "gfx1100"
    [[gpu]]
    chip = "gfx1100"
    [[unreachable]]
    from = 3
    to = 2
"#;

/// Each row is a GPU that maps; each column is the GPU whose memory it maps.
fn matrix(client: &Client, flags: u32, bytes: u64) -> Vec<String> {
    let gpus = client.gpus.len();
    let row = |gpu: usize| {
        let outcome = |owner: usize| {
            let handle = client.alloc(owner, VA, bytes, flags).unwrap();
            let mapped = client.map(handle, gpu);
            if mapped.is_ok() {
                client.unmap(handle, gpu).unwrap();
            } else {
                assert_eq!(mapped, Err(Errno::EINVAL));
            }
            client.free(handle).unwrap();
            if mapped.is_ok() { 'x' } else { '.' }
        };
        (0..gpus).map(outcome).collect()
    };
    (0..gpus).map(row).collect()
}

#[test]
fn vram_is_mapped_in_the_hive_and_where_pcie_goes() {
    let client = Client::on_machine(MACHINE);
    assert_eq!(matrix(&client, HIDDEN, 4096), ["xxxx", "xxxx", "x.xx", "x..x"]);
    // Doorbells and registers are reached over PCIe, even in a hive.
    let over_pcie = ["x.xx", "xxxx", "x.xx", "x..x"];
    assert_eq!(matrix(&client, DOORBELL, 8192), over_pcie);
    assert_eq!(matrix(&client, MMIO, 4096), over_pcie);
    assert_eq!(matrix(&client, GTT, 4096), ["xxxx"; 4]);
}

#[test]
fn kernel_without_p2p_leaves_the_hive_and_system_memory() {
    let client = Client::on_machine(&format!("pcie_p2p = false\n{MACHINE}"));
    assert_eq!(matrix(&client, HIDDEN, 4096), ["xx..", "xx..", "..x.", "...x"]);
    assert_eq!(matrix(&client, DOORBELL, 8192), ["x...", ".x..", "..x.", "...x"]);
    assert_eq!(matrix(&client, GTT, 4096), ["xxxx"; 4]);
}

#[test]
fn list_of_gpus_is_mapped_up_to_the_one_without_a_path() {
    let client = Client::on_machine(MACHINE);
    let handle = client.alloc(2, VA, 4096, HIDDEN).unwrap();
    let ids: Vec<u32> = [2, 0, 3, 1].map(|gpu| client.id(gpu)).to_vec();
    assert_eq!(client.map_list(handle, &ids, 0), (Err(Errno::EINVAL), 2));
    // GPUs that are done stay done, and the call continues from `n_success`.
    assert_eq!(client.map_list(handle, &ids, 2), (Err(Errno::EINVAL), 2));
    assert_eq!(client.map_list(handle, &ids, 3), (Ok(0), 4));
    assert_eq!(client.unmap_list(handle, &ids[..3], 0), (Err(Errno::EINVAL), 2));
    client.unmap(handle, 1).unwrap();
    client.free(handle).unwrap();
}

#[test]
fn vram_behind_a_small_bar_is_not_for_the_cpu() {
    let all = Client::on_machine(MACHINE);
    assert_eq!(all.alloc(1, VA, 4096, VRAM), Err(Errno::EINVAL));
    let client = Client::beside(all.gpus.clone(), all.ledger.clone());
    let render = client.acquire(1);
    for (flags, within_reach) in [(HIDDEN, 0), (GTT, 4096)] {
        let mut args = client.alloc_args(1, VA, 4096, flags);
        client.call(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args).unwrap();
        let mapped = client.process.mmap(&render, 4096, args.mmap_offset).unwrap();
        assert_eq!(memfd::sealed_bytes(mapped.fd.as_fd()), Some(within_reach));
    }
}

#[test]
fn every_chip_takes_memory_and_queues() {
    let client = Client::new("gfx1100,gfx1101,gfx1102,gfx1201,gfx90a,gfx942");
    for gpu in 0..client.gpus.len() {
        client.acquire(gpu);
        // This test covers the driver only: the hardware decides which queues it can run.
        let mut parts = client.queue_parts(gpu, VA + ((gpu as u64) << 32));
        let queue = client.create(&mut parts.args).unwrap();
        client.destroy(queue).unwrap();
    }
}
