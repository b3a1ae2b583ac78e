// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of KFD's device files, under `stasis run`: has memory mapped that the device has no longer, and waits for a file. Prints
//! `PASS kept` if the memory has its bytes then.
#![allow(unsafe_code)]

use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::thread::sleep;
use std::time::Duration;

use kfd::ioctl::AllocMemory;
use kfd::transport::Transport;
use kfd::transport::kernel::KernelTransport;
use kfd::{Kfd, ProtFlags, Render, Topology, sys};
use nix::sys::mman::{MapFlags, mmap_anonymous};

const BYTES: NonZero<usize> = NonZero::new(4 << 20).expect("more than none");
/// How far from each other the bytes are that are written: most pages stay holes.
const STEP: usize = 3 * 4096;

fn number(at: usize) -> u64 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn words(memory: NonNull<u8>) -> impl Iterator<Item = (usize, *mut u64)> {
    let at = move |at: usize| memory.as_ptr().wrapping_add(at).cast::<u64>();
    (0..BYTES.get()).step_by(STEP).map(move |offset| (offset, at(offset)))
}

fn main() -> ExitCode {
    let stop = std::env::args().nth(1).expect("the file that ends it");
    let driver = KernelTransport::new();
    let topology = Topology::read(driver.sysfs()).expect("a topology");
    let node = topology.gpus().next().expect("a GPU");
    let gpu = node.gpu_id;
    let kfd = Kfd::open(&driver).expect("the device opens");
    let render = Render::open(&driver, node.properties.drm_render_minor).expect("the render node opens");
    kfd.acquire_vm(gpu, render.file().as_fd()).expect("a VM");
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: the kernel chooses an address where nothing is.
    let memory =
        unsafe { mmap_anonymous(None, BYTES, ProtFlags::PROT_NONE, flags) }.expect("addresses").cast();
    let flags = sys::KFD_IOC_ALLOC_MEM_FLAGS_GTT | sys::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
    let what = AllocMemory {
        gpu,
        va: memory.addr().get() as u64,
        bytes: BYTES.get() as u64,
        flags,
        user_address: 0,
    };
    let allocated = kfd.alloc_memory(&what).expect("memory");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the addresses are this program's, reserved above, and nothing else uses them.
    let mapped =
        unsafe { render.file().mmap_fixed(memory.as_ptr(), BYTES.get(), access, allocated.mmap_offset) };
    mapped.expect("a mapping");
    for (at, word) in words(memory) {
        // SAFETY: the word is in the mapping, aligned, and used by this thread alone.
        unsafe { word.write_volatile(number(at)) };
    }
    kfd.free_memory(allocated.handle).expect("the memory is freed");
    println!("kept");
    while !Path::new(&stop).exists() {
        sleep(Duration::from_millis(5));
    }
    // SAFETY: as above.
    let is_right = words(memory).all(|(at, word)| unsafe { word.read_volatile() } == number(at));
    println!("{} kept", if is_right { "PASS" } else { "FAIL" });
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
