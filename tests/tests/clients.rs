// SPDX-License-Identifier: MIT OR Apache-2.0
//! What clients that do not use this runtime ask of the device, through the device's own socket: the calls of
//! libdrm_amdgpu, libhsakmt and tinygrad, in their order.
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use bytemuck::Pod;
use kfd::ioctl::AllocMemory;
use kfd::linux::{SealFlag, memfd, pwrite};
use kfd::sys::*;
use kfd::transport::{File, Transport};
use kfd::{Errno, GpuId, Kfd, Render};
use memmap2::MmapOptions;
use nix::sys::mman::ProtFlags;
use stasis_tests::gpu::{isolate, machine_file, skip_on_kernel_driver};

const SOFT: &str = "it describes a machine";
const VA: u64 = 0x10_0000_0000;
const HIDDEN: u32 = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;

/// A process that knows only files and ioctls.
struct Client {
    _transport: Arc<dyn Transport>,
    kfd: Kfd,
    render: Render,
    gpu: GpuId,
}

impl Client {
    fn on(device: &str) -> Self {
        isolate();
        let transport = kfd::transport::open_default(device.parse().unwrap()).unwrap();
        let kfd = Kfd::open(transport.as_ref()).unwrap();
        let render = Render::open(transport.as_ref(), 128).unwrap();
        let gpu = GpuId(kfd.get_process_apertures_new().unwrap()[0].gpu_id);
        kfd.acquire_vm(gpu, render.file().as_fd()).unwrap();
        Self { _transport: transport, kfd, render, gpu }
    }

    fn info<T: Pod>(&self, query: u32, args: [u32; 4]) -> Result<T, Errno> {
        let mut answer = T::zeroed();
        let mut info = drm_amdgpu_info {
            return_pointer: std::ptr::from_mut(&mut answer).expose_provenance() as u64,
            return_size: size_of::<T>() as u32,
            query,
            args,
        };
        call(self.render.file(), DRM_IOCTL_AMDGPU_INFO, &mut info)?;
        Ok(answer)
    }

    /// A page of VRAM without PUBLIC, mapped for reading and writing; what the kernel says of reading it.
    fn read_hidden(&self) -> Result<[u8; 4], Errno> {
        let wanted = AllocMemory { gpu: self.gpu, va: VA, bytes: 4096, flags: HIDDEN, ..Default::default() };
        let memory = self.kfd.alloc_memory(&wanted).unwrap();
        let place = MmapOptions::new().len(4096).map_anon().unwrap();
        let at = place.as_ptr().cast_mut();
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: nobody uses the place but this function.
        #[allow(unsafe_code)]
        unsafe {
            self.render.file().mmap_fixed(at, 4096, rights, memory.mmap_offset).unwrap();
        }
        // The kernel reads for the process: where the process would get SIGBUS, the call fails.
        let copy = memfd("copy", 4096, SealFlag::empty()).unwrap();
        pwrite(copy.as_fd(), at.expose_provenance(), 4, 0)?;
        let mut bytes = [9; 4];
        nix::sys::uio::pread(&copy, &mut bytes, 0).map(|_| bytes)
    }
}

/// Issues a command.
fn call<T: Pod>(file: &Arc<dyn File>, command: u32, args: &mut T) -> Result<u32, Errno> {
    assert_eq!(ioc_size(command), size_of::<T>());
    // SAFETY: the argument has the command's size, and its pointers name memory that the caller has.
    #[allow(unsafe_code)]
    unsafe {
        file.ioctl(command, std::ptr::from_mut(args).cast())
    }
}

#[test]
fn libdrm_finds_a_device() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let client = Client::on("soft:gfx1100");
    assert_eq!(client.render.version().unwrap().name, "amdgpu");
    assert_eq!(client.info::<u32>(AMDGPU_INFO_ACCEL_WORKING, [0; 4]), Ok(1));
    let device: drm_amdgpu_info_device = client.info(AMDGPU_INFO_DEV_INFO, [0; 4]).unwrap();
    assert_eq!((device.device_id, device.family, device.cu_active_number), (0x744c, 145, 96));
    // As libdrm 2.4.114 asks: with a shorter struct.
    let short: [[u64; 23]; 2] = client.info(AMDGPU_INFO_DEV_INFO, [0; 4]).unwrap();
    assert_eq!(bytemuck::bytes_of(&short), &bytemuck::bytes_of(&device)[..368]);
    assert_eq!(client.info::<u32>(AMDGPU_INFO_READ_MMR_REG, [0x263e, 1, u32::MAX, 0]), Ok(0x545));
    let memory: drm_amdgpu_memory_info = client.info(AMDGPU_INFO_MEMORY, [0; 4]).unwrap();
    assert_eq!(memory.vram.total_heap_size, memory.cpu_accessible_vram.total_heap_size);
}

#[test]
fn memory_without_public_is_mapped_like_any_other() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    assert_eq!(Client::on("soft:gfx1100").read_hidden(), Ok([0; 4]));
}

#[test]
fn memory_behind_a_small_bar_is_mapped_and_cannot_be_touched() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let (_directory, path) = machine_file("[[gpu]]\nchip = \"gfx1100\"\nbar = \"small\"\n");
    let client = Client::on(&format!("soft:{}", path.display()));
    assert_eq!(client.read_hidden(), Err(Errno::EFAULT));
}

#[test]
fn metadata_set_on_the_render_node_are_in_kfds_answer() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let client = Client::on("soft:gfx1100");
    let wanted = AllocMemory { gpu: client.gpu, va: VA, bytes: 4096, flags: HIDDEN, ..Default::default() };
    let memory = client.kfd.alloc_memory(&wanted).unwrap();
    let dmabuf = client.kfd.export_dmabuf(memory.handle).unwrap();
    let handle = client.render.import(dmabuf.as_fd()).unwrap();
    let mut args = drm_amdgpu_gem_metadata {
        handle: handle.0,
        op: AMDGPU_GEM_METADATA_OP_SET_METADATA,
        data_size_bytes: 8,
        ..Default::default()
    };
    args.data[..2].copy_from_slice(&[0x1234, 0x5678]);
    call(client.render.file(), DRM_IOCTL_AMDGPU_GEM_METADATA, &mut args).unwrap();
    let info = client.kfd.get_dmabuf_info(dmabuf.as_fd()).unwrap();
    assert_eq!(info.metadata, bytemuck::cast_slice::<u32, u8>(&[0x1234, 0x5678]));
}

#[test]
fn stream_of_events_is_a_file_that_answers_eagain_when_nothing_happened() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let client = Client::on("soft:gfx1100");
    let mut args = kfd_ioctl_smi_events_args { gpuid: client.gpu.0, anon_fd: 0 };
    call(client.kfd.file(), AMDKFD_IOC_SMI_EVENTS, &mut args).unwrap();
    // SAFETY: the driver made the descriptor, and nobody else knows it.
    #[allow(unsafe_code)]
    let stream = unsafe { OwnedFd::from_raw_fd(args.anon_fd.cast_signed()) };
    assert_eq!(nix::unistd::write(&stream, &1u64.to_le_bytes()), Ok(8));
    assert_eq!(nix::unistd::read(&stream, &mut [0; 64]), Err(Errno::EAGAIN));
}
