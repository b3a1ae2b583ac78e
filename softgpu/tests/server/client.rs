// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of softgpud as small as one can be: buffers at fixed addresses, one queue, one event.
//!
//! INVARIANT: everything lives until the process ends, as in a process that never cleans up.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kfd::ioctl::{AllocMemory, CreateEvent, CreateQueue, QueueKind};
use kfd::sys::*;
use kfd::transport::soft::SoftTransport;
use kfd::{
    Doorbell, File, GpuId, Kfd, MemoryHandle, ProtFlags, QueueId, Render, Topology, Transport, VaAccess,
    VaRange,
};
use queues::aql::{FenceScope, Header, KernelDispatch, PACKET_BYTES, Packet, PacketKind};
use queues::cwsr::{CwsrGeometry, NodeShape};
use queues::hsa::KernelDescriptor;

pub const RING_PACKETS: usize = 64;
const GTT: u32 = KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
const CODE: u32 = GTT | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;
const VRAM: u32 =
    KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;

/// A buffer mapped to the GPU and to us at the same address.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub va: u64,
    pub handle: MemoryHandle,
    bytes: usize,
}

impl Buffer {
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: in bounds of a mapping that stays for the life of the process, aligned, accessed atomically only.
        unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(self.va as usize + offset)) }
    }

    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        // SAFETY: in bounds of a mapping that stays for the life of the process, aligned, accessed atomically only.
        unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(self.va as usize + offset)) }
    }

    fn fill(&self, offset: usize, bytes: &[u8]) {
        for (at, word) in bytes.chunks_exact(4).enumerate() {
            self.u32(offset + 4 * at).store(u32::from_le_bytes(word.try_into().unwrap()), Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub struct Client {
    pub transport: SoftTransport,
    pub kfd: Kfd,
    pub gpu: GpuId,
    pub render: Arc<dyn File>,
    topology: Topology,
    next_va: u64,
}

impl Client {
    /// Connects (within ten seconds) and acquires the first GPU.
    pub fn connect(socket: &str) -> Self {
        let client = Self::idle(socket);
        client.kfd.acquire_vm(client.gpu, client.render.as_fd()).unwrap();
        client
    }

    /// What the save area's size follows from.
    pub fn shape(&self) -> NodeShape {
        self.topology.gpu(self.gpu).unwrap().properties.shape()
    }

    /// Connects and acquires nothing.
    pub fn idle(socket: &str) -> Self {
        // Tests that run as threads of one process must not map over each other.
        static WINDOW: AtomicU64 = AtomicU64::new(20 << 40);
        let next_va = WINDOW.fetch_add(1 << 40, Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(10);
        let transport = loop {
            match SoftTransport::connect_socket(socket, &["gfx1100".to_owned()]) {
                Ok(transport) => break transport,
                Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let kfd = Kfd::open(&transport).unwrap();
        let topology = Topology::read(transport.sysfs()).unwrap();
        let gpu = topology.gpus().next().unwrap().gpu_id;
        let render = transport.open(Path::new("/dev/dri/renderD128")).unwrap();
        Self { transport, kfd, gpu, render, topology, next_va }
    }

    pub fn buffer(&mut self, bytes: usize, flags: u32) -> Buffer {
        let bytes = bytes.next_multiple_of(4096);
        let va = self.next_va;
        self.next_va += bytes as u64 + 4096;
        let what = AllocMemory { gpu: self.gpu, va, bytes: bytes as u64, flags, user_address: 0 };
        let allocation = self.kfd.alloc_memory(&what).unwrap();
        self.kfd.map_memory(allocation.handle, &[self.gpu]).unwrap();
        let at = std::ptr::with_exposed_provenance_mut(va as usize);
        // SAFETY: the TiB that begins at its first address is this client's alone.
        unsafe {
            self.render.mmap_fixed(
                at,
                bytes,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                allocation.mmap_offset,
            )
        }
        .unwrap();
        Buffer { va, handle: allocation.handle, bytes }
    }

    pub fn data(&mut self, bytes: usize) -> Buffer {
        self.buffer(bytes, GTT)
    }

    pub fn queue(&mut self) -> Queue {
        let geometry = CwsrGeometry::for_node(&self.shape()).unwrap();
        let ring = self.buffer(RING_PACKETS * PACKET_BYTES, CODE);
        for slot in 0..RING_PACKETS {
            ring.u32(slot * PACKET_BYTES).store(PacketKind::Invalid as u32, Ordering::Relaxed);
        }
        let (pointers, eop) = (self.data(4096), self.buffer(4096, VRAM));
        let save = self.data(usize::try_from(geometry.total_bytes).unwrap());
        let created = self
            .kfd
            .create_queue(&CreateQueue {
                gpu: self.gpu,
                kind: QueueKind::ComputeAql,
                ring: ring.va,
                ring_bytes: (RING_PACKETS * PACKET_BYTES) as u32,
                write_pointer: pointers.va + 56,
                read_pointer: pointers.va + 128,
                eop: eop.va,
                eop_bytes: 4096,
                save_area: save.va,
                save_bytes: geometry.save_bytes,
                control_stack_bytes: geometry.control_stack_bytes,
                percentage: 100,
                priority: 7,
            })
            .unwrap();
        let at = std::ptr::with_exposed_provenance_mut(self.next_va as usize);
        self.next_va += 2 * DOORBELL_SLICE_BYTES as u64;
        // SAFETY: the TiB that begins at its first address is this client's alone; the mapping stays for the life of the process.
        let slice =
            unsafe { self.kfd.file().map_doorbells(at, DOORBELL_SLICE_BYTES, created.doorbell_cookie()) }
                .unwrap();
        Queue { id: created.id, ring, pointers, doorbell: slice.doorbell(created.doorbell_byte()) }
    }

    /// A GTT buffer that KFD maps nowhere.
    pub fn unmapped(&mut self, bytes: usize) -> MemoryHandle {
        let what = AllocMemory { gpu: self.gpu, va: 0, bytes: bytes as u64, flags: GTT, user_address: 0 };
        self.kfd.alloc_memory(&what).unwrap().handle
    }

    /// Maps part of a DMABuf for the GPU with `render`, and for us at the same address.
    pub fn part(&mut self, render: &Render, dmabuf: BorrowedFd<'_>, offset: u64, bytes: usize) -> Buffer {
        let va = self.next_va;
        self.next_va += bytes as u64 + 4096;
        let handle = render.import(dmabuf).unwrap();
        let range = VaRange { va, bytes: bytes as u64, handle, offset };
        render.map(&range, VaAccess::READ_WRITE).unwrap();
        let at = std::ptr::with_exposed_provenance_mut(va as usize);
        // SAFETY: the caller's address lies in the TiB that is this client's alone.
        unsafe { kfd::map_dmabuf(dmabuf, at, bytes, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, offset) }
            .unwrap();
        Buffer { va, handle: MemoryHandle::default(), bytes }
    }

    /// A kernel of this machine code, with the kernarg address in s[0:1].
    pub fn kernel(&mut self, code: &[u8]) -> Buffer {
        let buffer = self.buffer(256 + code.len() + 256, CODE);
        let descriptor = KernelDescriptor {
            kernel_code_entry_byte_offset: 256,
            compute_pgm_rsrc1: 3 | 0xf0 << 12,
            compute_pgm_rsrc2: 2 << 1 | 1 << 7,
            kernel_code_properties: 1 << 3 | 1 << 10,
            ..KernelDescriptor::default()
        };
        buffer.fill(0, &descriptor.to_bytes());
        buffer.fill(256, code);
        buffer
    }

    /// A signal of value 1 whose completion raises an event.
    pub fn interrupt_signal(&mut self) -> (Buffer, kfd_event_data) {
        let page = self.data(32768);
        let event = CreateEvent { page: Some(page.handle), auto_reset: true, ..CreateEvent::default() };
        let created = self.kfd.create_event(&event).unwrap();
        let signal = self.data(64);
        signal.u64(0).store(1, Ordering::Relaxed);
        signal.u64(8).store(1, Ordering::Relaxed);
        signal.u64(16).store(page.va + 8 * u64::from(created.slot), Ordering::Relaxed);
        signal.u32(24).store(created.id.0, Ordering::Relaxed);
        (signal, kfd_event_data { event_id: created.id.0, ..kfd_event_data::default() })
    }
}

#[derive(Debug)]
pub struct Queue {
    pub id: QueueId,
    pub pointers: Buffer,
    ring: Buffer,
    doorbell: Doorbell,
}

impl Queue {
    pub fn submit(&self, packet: &Packet) {
        let raw = packet.encode();
        let index = self.pointers.u64(56).fetch_add(1, Ordering::SeqCst);
        let slot = usize::try_from(index).unwrap() % RING_PACKETS * PACKET_BYTES;
        for (word, value) in raw.iter().enumerate().skip(1) {
            self.ring.u32(slot + 4 * word).store(*value, Ordering::Relaxed);
        }
        self.ring.u32(slot).store(raw[0], Ordering::Release);
        self.doorbell.ring(index);
    }

    /// One work-group of 32.
    pub fn dispatch(&self, kernel: &Buffer, kernarg: u64, completion: &Buffer) {
        let scope = FenceScope::System;
        self.submit(&Packet::KernelDispatch(KernelDispatch {
            header: Header {
                kind: PacketKind::KernelDispatch,
                barrier: true,
                acquire: scope,
                release: scope,
            },
            dimensions: 1,
            workgroup: [32, 1, 1],
            grid: [32, 1, 1],
            private_segment_bytes: 0,
            group_segment_bytes: 0,
            kernel_object: kernel.va,
            kernarg_address: kernarg,
            completion_signal: completion.va,
        }));
    }
}
