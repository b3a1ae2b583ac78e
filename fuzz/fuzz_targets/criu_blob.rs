// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes are a private blob of CRIU_OP or refused, by the reader and by the driver's RESTORE.
#![no_main]

mod client;

use client::{Client, Fds, Memory};
use kfd::sys::*;
use libfuzzer_sys::fuzz_target;
use softgpu::driver::FdPlace;

const DEVICES: u64 = 0x1_0000;
const BOS: u64 = 0x2_0000;
const PRIVATE: u64 = 0x10_0000;
/// Bytes of a buffer's bucket.
const BUCKET: usize = 48;

fuzz_target!(|bytes: &[u8]| {
    let [num_bos, num_objects, rest @ ..] = bytes else { return };
    let num_bos = u32::from(num_bos % 4 + 1);
    let buckets = (num_bos as usize * BUCKET).min(rest.len());
    let (bos, rest) = rest.split_at(buckets);
    let _ = kfd::blob::Blob::parse(rest, 1, num_bos);
    // Version 1 without retries, and one device: nothing behind a wrong version is looked at.
    let blob = [&1u64.to_le_bytes(), &[0; 8], rest].concat();
    let _ = kfd::blob::Blob::parse(&blob, 1, num_bos);

    let client = Client::new();
    // The ids must be right for anything to happen; the rest of a bucket is the input's.
    let id = client.gpu_id.to_le_bytes();
    let mut bos = bos.to_vec();
    bos.resize(num_bos as usize * BUCKET, 0);
    for bucket in bos.chunks_exact_mut(BUCKET) {
        bucket[32..36].copy_from_slice(&id);
    }
    let devices = [&id[..], &id, &[0; 8]].concat();
    let memory = Memory::default().and(DEVICES, devices).and(BOS, bos).and(PRIVATE, blob.clone());
    let fds = Fds::default().and(FdPlace::Memory(DEVICES + 8), client.render());
    let mut arg = [0; 56];
    let mut put = |at: usize, bytes: &[u8]| arg[at..at + bytes.len()].copy_from_slice(bytes);
    for (at, value) in [DEVICES, BOS, PRIVATE, blob.len() as u64].into_iter().enumerate() {
        put(8 * at, &value.to_le_bytes());
    }
    for (at, value) in
        [1, num_bos, u32::from(num_objects % 8), 0, KFD_CRIU_OP_RESTORE].into_iter().enumerate()
    {
        put(32 + 4 * at, &value.to_le_bytes());
    }
    let _ = client.ioctl(AMDKFD_IOC_CRIU_OP, &mut arg, &memory, &fds);
    let mut resume = [0; 56];
    resume[44..48].copy_from_slice(&1u32.to_le_bytes());
    resume[48..52].copy_from_slice(&KFD_CRIU_OP_RESUME.to_le_bytes());
    let _ = client.ioctl(AMDKFD_IOC_CRIU_OP, &mut resume, &Memory::default(), &Fds::default());
});
