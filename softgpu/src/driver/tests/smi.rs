// SPDX-License-Identifier: MIT OR Apache-2.0
//! SMI_EVENTS: who gets which line.

use std::os::fd::OwnedFd;

use kfd::sys::*;
use nix::errno::Errno;
use nix::unistd::{read, write};

use super::harness::*;
use crate::driver::FdPlace;
use crate::driver::smi::Notice;
use crate::hardware::{Interrupts, VmFault};

fn open(client: &Client, gpu: usize) -> OwnedFd {
    let mut args = kfd_ioctl_smi_events_args { gpuid: client.id(gpu), anon_fd: 0 };
    let fds = Fds::default();
    client.call_with(AMDKFD_IOC_SMI_EVENTS, &mut args, &Memory::default(), &fds).unwrap();
    let mut out = fds.taken_out();
    assert_eq!((out.len(), out[0].0), (1, FdPlace::Field(4)));
    out.remove(0).1
}

fn want(stream: &OwnedFd, events: &[u32]) {
    let mask: u64 = events.iter().fold(0, |mask, event| mask | 1 << (event - 1));
    assert_eq!(write(stream, &mask.to_le_bytes()), Ok(8));
}

fn lines(stream: &OwnedFd) -> Result<String, Errno> {
    let mut bytes = [0; 1024];
    read(stream, &mut bytes).map(|count| String::from_utf8_lossy(&bytes[..count]).into_owned())
}

fn fault(client: &Client, gpu: usize) {
    client.process.memory_fault(gpu, VmFault { address: 0x1000, permission_faults: VmFault::VALID });
}

#[test]
fn stream_has_what_was_asked_for_on_its_gpu() {
    let client = Client::pair();
    let (stream, other, silent) = (open(&client, 0), open(&client, 1), open(&client, 0));
    assert_eq!(lines(&stream), Err(Errno::EAGAIN));
    fault(&client, 0);
    want(&stream, &[KFD_SMI_EVENT_VMFAULT]);
    want(&other, &[KFD_SMI_EVENT_VMFAULT]);
    assert_eq!(lines(&stream), Err(Errno::EAGAIN), "what was before the mask");
    fault(&client, 0);
    assert_eq!(lines(&stream), Ok(format!("1 {PID:x}:\n")));
    assert_eq!([lines(&stream), lines(&other), lines(&silent)], [const { Err(Errno::EAGAIN) }; 3]);
    want(&stream, &[KFD_SMI_EVENT_GPU_PRE_RESET]);
    fault(&client, 0);
    assert_eq!(lines(&stream), Err(Errno::EAGAIN), "the last mask counts");
}

#[test]
fn reset_has_a_beginning_an_end_and_a_number() {
    let client = Client::ready();
    let stream = open(&client, 0);
    want(&stream, &[KFD_SMI_EVENT_GPU_PRE_RESET, KFD_SMI_EVENT_GPU_POST_RESET]);
    client.process.lose_queues(0);
    client.process.lose_queues(0);
    assert_eq!(lines(&stream).unwrap(), "3 1 HWS hang\n4 1 \n3 2 HWS hang\n4 2 \n");
}

#[test]
fn stream_whose_client_is_gone_or_asleep_does_not_matter() {
    let client = Client::ready();
    let asleep = open(&client, 0);
    want(&asleep, &[KFD_SMI_EVENT_VMFAULT]);
    let gone = open(&client, 0);
    want(&gone, &[KFD_SMI_EVENT_VMFAULT]);
    drop(gone);
    // More than a socket holds.
    (0..20_000).for_each(|_| client.process.streams.tell(0, Notice::Fault { pid: 1 }));
    assert!(lines(&asleep).unwrap().starts_with("1 1:\n"));
    let mut unknown = kfd_ioctl_smi_events_args { gpuid: 0, anon_fd: 0 };
    assert_eq!(client.call(AMDKFD_IOC_SMI_EVENTS, &mut unknown), Err(Errno::EINVAL));
}
