// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must travel with an ioctl to the software device: the memory and the descriptors that its argument names, as
//! the ioctl table ([`crate::sys::table`]) says, and what it does with the process's own pages.
//!
//! INVARIANT: like the drivers, this module goes by the command's number alone, whatever size the command gives, and
//! reads a field that a shorter struct lacks as zero. It never fails: the device judges what is wrong with an argument.

use crate::sys::table::{Part, Place, Row};
use crate::sys::{self, DrmIoctl, KfdIoctl};
use crate::transport::wire::{FdPlace, MAX_FDS, MAX_INLINE_BYTES, MAX_SHARED_BYTES, Segment};

/// Which driver answers a file's ioctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    /// `/dev/kfd`.
    Kfd,
    /// A render node.
    Drm,
}

impl Driver {
    /// The row of a command, by its number.
    fn row(self, cmd: u32) -> Option<&'static Row> {
        let nr = sys::ioc_nr(cmd);
        match self {
            Self::Kfd => KfdIoctl::from_number(nr).map(KfdIoctl::row),
            Self::Drm => DrmIoctl::from_number(nr).map(DrmIoctl::row),
        }
    }
}

/// Memory that an embedded pointer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    /// Where.
    pub address: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Whether the driver writes it.
    pub writable: bool,
}

/// What travels beside an argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Memory.
    pub pointers: Vec<Pointer>,
    /// Descriptor fields the driver reads.
    pub fds: Vec<FdPlace>,
    /// Whether descriptors that the driver makes are inheritable, as the ioctl or the caller's flags say.
    pub inheritable: bool,
    /// What the ioctl does with the process's address space.
    pub memory: Option<Memory>,
}

/// What an ioctl does with the process's address space, as far as pages may have to be lent or taken back for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// Makes a buffer, or a mapping of one.
    Buffer,
    /// Makes a USERPTR object of these pages.
    Object {
        /// The first byte.
        address: u64,
        /// How many bytes.
        bytes: u64,
        /// Whether GPUs will write them.
        writable: bool,
    },
    /// Frees an object.
    Freed {
        /// Its handle.
        handle: u64,
    },
    /// Sets or asks for attributes of shared virtual memory.
    Range {
        /// The first byte.
        address: u64,
        /// How many bytes.
        bytes: u64,
        /// Access that GPUs get (true) or lose, by their ids and in this order.
        access: Vec<(u32, bool)>,
    },
}

impl Memory {
    /// What this ioctl does.
    fn of(driver: Driver, cmd: u32, arg: &[u8]) -> Option<Self> {
        let nr = sys::ioc_nr(cmd);
        if driver == Driver::Drm {
            return (DrmIoctl::from_number(nr) == Some(DrmIoctl::GemVa)).then_some(Self::Buffer);
        }
        match KfdIoctl::from_number(nr)? {
            KfdIoctl::AllocMemoryOfGpu => {
                let args: sys::kfd_ioctl_alloc_memory_of_gpu_args = from_prefix(arg);
                if args.flags & sys::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR == 0 {
                    return Some(Self::Buffer);
                }
                let writable = args.flags & sys::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE != 0;
                Some(Self::Object { address: args.mmap_offset, bytes: args.size, writable })
            }
            KfdIoctl::FreeMemoryOfGpu => {
                let args: sys::kfd_ioctl_free_memory_of_gpu_args = from_prefix(arg);
                Some(Self::Freed { handle: args.handle })
            }
            KfdIoctl::Svm => {
                let args: sys::kfd_ioctl_svm_args = from_prefix(arg);
                let is_set = args.op == sys::KFD_IOCTL_SVM_OP_SET_ATTR;
                let attributes = arg.get(size_of_val(&args)..).unwrap_or_default();
                let attributes = attributes.chunks_exact(size_of::<sys::kfd_ioctl_svm_attribute>());
                let access = attributes.take(if is_set { args.nattr as usize } else { 0 });
                let access = access.map(bytemuck::pod_read_unaligned).filter_map(access_of).collect();
                Some(Self::Range { address: args.start_addr, bytes: args.size, access })
            }
            _ => None,
        }
    }
}

/// The GPU whose access an attribute sets, and whether it has any then.
fn access_of(attribute: sys::kfd_ioctl_svm_attribute) -> Option<(u32, bool)> {
    match attribute.type_ {
        sys::KFD_IOCTL_SVM_ATTR_ACCESS | sys::KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE => {
            Some((attribute.value, true))
        }
        sys::KFD_IOCTL_SVM_ATTR_NO_ACCESS => Some((attribute.value, false)),
        _ => None,
    }
}

/// The struct at the start of `bytes`, zero-extended as the drivers do.
pub(super) fn from_prefix<T: bytemuck::Pod>(bytes: &[u8]) -> T {
    let mut value = T::zeroed();
    let length = bytes.len().min(size_of::<T>());
    bytemuck::bytes_of_mut(&mut value)[..length].copy_from_slice(&bytes[..length]);
    value
}

/// What travels beside `arg`.
pub(super) fn plan(driver: Driver, cmd: u32, arg: &[u8]) -> Plan {
    let mut plan = Plan { memory: Memory::of(driver, cmd, arg), ..Plan::default() };
    let Some(row) = driver.row(cmd) else { return plan };
    for part in row.parts_of(arg) {
        match part {
            Part::Array(array) => {
                let (address, bytes) = (array.address(arg), array.bytes(arg));
                if bytes > 0 {
                    plan.pointers.push(Pointer { address, bytes, writable: array.writable });
                }
            }
            Part::Descriptor(place) => plan.fds.extend(places(place, arg)),
            Part::NewDescriptor(_, close_on_exec) => plan.inheritable = !close_on_exec.holds(arg),
            // `parts_of` resolves operations.
            Part::Operation { .. } => {}
        }
    }
    plan
}

/// The descriptor fields that `place` means for this argument.
fn places(place: &Place, arg: &[u8]) -> Vec<FdPlace> {
    match place {
        Place::Argument(at) if usize::from(*at) + 4 <= arg.len() => vec![FdPlace::Field(*at)],
        Place::Argument(_) => Vec::new(),
        Place::Element { array, element, at } => {
            let count = array.bytes(arg) / *element as u64;
            // No driver accepts more descriptors than fit a message.
            (0..count.min(MAX_FDS as u64 / 2))
                .filter_map(|index| (index * *element as u64 + *at as u64).checked_add(array.address(arg)))
                .map(FdPlace::Memory)
                .collect()
        }
    }
}

/// The contents of those `pointers` that together fit a message, and the pointers whose memory must be sent beside it.
/// Memory that `read` cannot read is left out.
pub(super) fn segments(
    pointers: &[Pointer],
    read: impl Fn(u64, &mut [u8]) -> bool,
) -> (Vec<Segment>, Vec<Pointer>) {
    let mut room = MAX_INLINE_BYTES;
    let mut segments = Vec::with_capacity(pointers.len());
    let mut large = Vec::new();
    for pointer in pointers {
        let Some(length) = usize::try_from(pointer.bytes).ok().filter(|length| *length <= room) else {
            large.push(*pointer);
            continue;
        };
        let mut bytes = vec![0; length];
        if read(pointer.address, &mut bytes) {
            room -= length;
            segments.push(Segment { address: pointer.address, bytes, writable: pointer.writable });
        }
    }
    // Memory beyond the limit is left out, as memory that cannot be read is.
    large.retain(|pointer| pointer.bytes <= MAX_SHARED_BYTES);
    (segments, large)
}

/// Whether the device may write `bytes` at `address`: they lie inside memory that was offered for writing.
pub(super) fn may_write(pointers: &[Pointer], address: u64, bytes: u64) -> bool {
    let end = |address: u64, bytes: u64| address.checked_add(bytes);
    let wanted = end(address, bytes);
    pointers.iter().any(|pointer| {
        let offered = end(pointer.address, pointer.bytes);
        pointer.writable
            && pointer.address <= address
            && matches!((wanted, offered), (Some(wanted), Some(offered)) if wanted <= offered)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pointer(address: u64, bytes: u64, writable: bool) -> Pointer {
        Pointer { address, bytes, writable }
    }

    fn kfd_plan<T: bytemuck::Pod>(cmd: u32, args: &T) -> Plan {
        plan(Driver::Kfd, cmd, bytemuck::bytes_of(args))
    }

    #[test]
    fn plan_finds_arrays_of_events_and_gpus() {
        let args =
            sys::kfd_ioctl_wait_events_args { events_ptr: 0x1000, num_events: 3, ..Default::default() };
        assert_eq!(kfd_plan(sys::AMDKFD_IOC_WAIT_EVENTS, &args).pointers, [pointer(0x1000, 144, true)]);
        let args = sys::kfd_ioctl_map_memory_to_gpu_args {
            device_ids_array_ptr: 0x2000,
            n_devices: 2,
            ..Default::default()
        };
        assert_eq!(kfd_plan(sys::AMDKFD_IOC_MAP_MEMORY_TO_GPU, &args).pointers, [pointer(0x2000, 8, false)]);
        assert_eq!(kfd_plan(sys::AMDKFD_IOC_WAIT_EVENTS, &[0_u64; 3]), Plan::default());
    }

    #[test]
    fn plan_finds_descriptors_and_close_on_exec() {
        let args =
            sys::kfd_ioctl_get_dmabuf_info_args { metadata_ptr: 8, metadata_size: 4, ..Default::default() };
        let found = kfd_plan(sys::AMDKFD_IOC_GET_DMABUF_INFO, &args);
        assert_eq!((found.fds, found.pointers), (vec![FdPlace::Field(28)], vec![pointer(8, 4, true)]));
        let mut args = sys::kfd_ioctl_export_dmabuf_args::default();
        assert!(kfd_plan(sys::AMDKFD_IOC_EXPORT_DMABUF, &args).inheritable);
        args.flags = nix::libc::O_CLOEXEC.cast_unsigned();
        assert!(!kfd_plan(sys::AMDKFD_IOC_EXPORT_DMABUF, &args).inheritable);
    }

    #[test]
    fn plan_tells_the_drivers_apart() {
        let args = sys::drm_prime_handle::default();
        let bytes = bytemuck::bytes_of(&args);
        assert_eq!(plan(Driver::Drm, sys::DRM_IOCTL_PRIME_FD_TO_HANDLE, bytes).fds, [FdPlace::Field(8)]);
        assert_eq!(plan(Driver::Kfd, sys::DRM_IOCTL_PRIME_FD_TO_HANDLE, bytes), Plan::default());
    }

    #[test]
    fn plan_of_the_render_nodes_commands() {
        let drm = |cmd, bytes: &[u8]| plan(Driver::Drm, cmd, bytes);
        let version = sys::drm_version { name_len: 64, name: 0x1000, date: 0x2000, ..Default::default() };
        let found = drm(sys::DRM_IOCTL_VERSION, bytemuck::bytes_of(&version));
        assert_eq!((found.pointers, found.fds), (vec![pointer(0x1000, 64, true)], vec![]));
        let mut prime = sys::drm_prime_handle { handle: 1, flags: 0, fd: -1 };
        let export = drm(sys::DRM_IOCTL_PRIME_HANDLE_TO_FD, bytemuck::bytes_of(&prime));
        assert_eq!((export.fds, export.inheritable), (vec![], true));
        prime.flags = nix::libc::O_CLOEXEC.cast_unsigned();
        assert!(!drm(sys::DRM_IOCTL_PRIME_HANDLE_TO_FD, bytemuck::bytes_of(&prime)).inheritable);
        let va = sys::drm_amdgpu_gem_va {
            num_syncobj_handles: 2,
            input_fence_syncobj_handles: 0x3000,
            ..Default::default()
        };
        let bytes = bytemuck::bytes_of(&va);
        assert_eq!(drm(sys::DRM_IOCTL_AMDGPU_GEM_VA, bytes).pointers, [pointer(0x3000, 8, false)]);
        let short = drm(sys::DRM_IOCTL_AMDGPU_GEM_VA, &bytes[..40]);
        assert_eq!(short, Plan { memory: Some(Memory::Buffer), ..Plan::default() });
        assert_eq!(drm(sys::DRM_IOCTL_AMDGPU_GEM_MMAP, &[1; 8]), Plan::default());
        assert_eq!(drm(sys::DRM_IOCTL_GEM_CLOSE, &[1; 8]), Plan::default());
    }

    #[test]
    fn plan_of_restore_names_the_descriptors_in_the_device_buckets() {
        let mut args = sys::kfd_ioctl_criu_args {
            devices: 0x1000,
            bos: 0x2000,
            priv_data: 0x3000,
            priv_data_size: 5,
            num_devices: 2,
            num_bos: 3,
            op: sys::KFD_CRIU_OP_CHECKPOINT,
            ..Default::default()
        };
        let checkpoint = kfd_plan(sys::AMDKFD_IOC_CRIU_OP, &args);
        let arrays = [pointer(0x1000, 32, true), pointer(0x2000, 144, true), pointer(0x3000, 5, true)];
        assert_eq!((&checkpoint.pointers[..], &checkpoint.fds[..]), (&arrays[..], &[][..]));
        args.op = sys::KFD_CRIU_OP_RESTORE;
        let places = [FdPlace::Memory(0x1008), FdPlace::Memory(0x1018)];
        assert_eq!(kfd_plan(sys::AMDKFD_IOC_CRIU_OP, &args).fds, places);
        args.devices = u64::MAX - 20;
        assert_eq!(kfd_plan(sys::AMDKFD_IOC_CRIU_OP, &args).fds.len(), 1);
    }

    #[test]
    fn plan_of_shared_virtual_memory_has_the_access_in_its_order() {
        let args =
            sys::kfd_ioctl_svm_args { start_addr: 0x5000, size: 0x2000, nattr: 3, ..Default::default() };
        let attribute = |type_, value| sys::kfd_ioctl_svm_attribute { type_, value };
        let attributes = [
            attribute(sys::KFD_IOCTL_SVM_ATTR_ACCESS, 7),
            attribute(sys::KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, 9),
            attribute(sys::KFD_IOCTL_SVM_ATTR_NO_ACCESS, 7),
            attribute(sys::KFD_IOCTL_SVM_ATTR_ACCESS, 8),
        ];
        let arg = [bytemuck::bytes_of(&args), bytemuck::cast_slice(&attributes)].concat();
        let found = plan(Driver::Kfd, sys::svm_command(4), &arg).memory;
        let access = vec![(7, true), (7, false)];
        assert_eq!(
            found,
            Some(Memory::Range { address: 0x5000, bytes: 0x2000, access }),
            "three of the four"
        );
        let asks = sys::kfd_ioctl_svm_args { op: sys::KFD_IOCTL_SVM_OP_GET_ATTR, ..args };
        let arg = [bytemuck::bytes_of(&asks), bytemuck::cast_slice(&attributes)].concat();
        let found = plan(Driver::Kfd, sys::svm_command(4), &arg).memory;
        assert_eq!(found, Some(Memory::Range { address: 0x5000, bytes: 0x2000, access: vec![] }));
    }

    #[test]
    fn segments_leave_out_what_cannot_be_read_and_share_what_is_large() {
        let pointers =
            [pointer(1, 8, true), pointer(2, 8, true), pointer(3, u64::MAX, true), pointer(4, 2 << 20, true)];
        let (inline, shared) = segments(&pointers, |address, _| address != 2);
        assert_eq!(inline, [Segment { address: 1, bytes: vec![0; 8], writable: true }]);
        assert_eq!(shared, [pointers[3]]);
    }

    #[test]
    fn segments_fit_a_message_together() {
        let pointers = [pointer(1, 300 << 10, true), pointer(2, 30 << 10, true), pointer(3, 20 << 10, true)];
        let (inline, shared) = segments(&pointers, |_, _| true);
        assert_eq!(inline.iter().map(|segment| segment.address).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(shared, [pointers[1]]);
    }

    #[test]
    fn may_write_only_inside_offered_memory() {
        let pointers = [pointer(0x100, 16, true), pointer(0x200, 16, false)];
        assert!(may_write(&pointers, 0x104, 12));
        assert!(!may_write(&pointers, 0x104, 13));
        assert!(!may_write(&pointers, 0x200, 1));
        assert!(!may_write(&pointers, u64::MAX, 2));
    }

    proptest! {
        #[test]
        fn plan_takes_any_payload(cmd: u32, arg in proptest::collection::vec(any::<u8>(), 0..80), kfd: bool) {
            let driver = if kfd { Driver::Kfd } else { Driver::Drm };
            let found = plan(driver, cmd, &arg);
            prop_assert!(found.fds.len() <= MAX_FDS / 2);
            let fits = |place: &FdPlace| match place {
                FdPlace::Field(offset) => usize::from(*offset) + 4 <= arg.len(),
                FdPlace::Memory(_) => true,
            };
            prop_assert!(found.fds.iter().all(fits));
            prop_assert!(segments(&found.pointers, |_, _| false).0.is_empty());
        }
    }
}
