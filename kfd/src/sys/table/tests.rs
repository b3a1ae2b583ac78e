// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table against the kernel's headers and against its own structs.

use super::*;
use crate::sys::*;

/// Numbers and names of all ioctls, compiled from the headers of Linux 7.3 (`kfd_ioctl.h`, `drm.h`, `amdgpu_drm.h`).
const HEADERS: &[(u32, &str)] = &[
    (0x8008_4b01, "GET_VERSION"),
    (0xc060_4b02, "CREATE_QUEUE"),
    (0xc008_4b03, "DESTROY_QUEUE"),
    (0x4020_4b04, "SET_MEMORY_POLICY"),
    (0xc028_4b05, "GET_CLOCK_COUNTERS"),
    (0x8190_4b06, "GET_PROCESS_APERTURES"),
    (0x4018_4b07, "UPDATE_QUEUE"),
    (0xc020_4b08, "CREATE_EVENT"),
    (0x4008_4b09, "DESTROY_EVENT"),
    (0x4008_4b0a, "SET_EVENT"),
    (0x4008_4b0b, "RESET_EVENT"),
    (0xc018_4b0c, "WAIT_EVENTS"),
    (0x4008_4b0d, "DBG_REGISTER"),
    (0x4008_4b0e, "DBG_UNREGISTER"),
    (0x4010_4b0f, "DBG_ADDRESS_WATCH"),
    (0x4010_4b10, "DBG_WAVE_CONTROL"),
    (0xc010_4b11, "SET_SCRATCH_BACKING_VA"),
    (0xc028_4b12, "GET_TILE_CONFIG"),
    (0x4018_4b13, "SET_TRAP_HANDLER"),
    (0xc010_4b14, "GET_PROCESS_APERTURES_NEW"),
    (0x4008_4b15, "ACQUIRE_VM"),
    (0xc028_4b16, "ALLOC_MEMORY_OF_GPU"),
    (0x4008_4b17, "FREE_MEMORY_OF_GPU"),
    (0xc018_4b18, "MAP_MEMORY_TO_GPU"),
    (0xc018_4b19, "UNMAP_MEMORY_FROM_GPU"),
    (0x4010_4b1a, "SET_CU_MASK"),
    (0xc018_4b1b, "GET_QUEUE_WAVE_STATE"),
    (0xc020_4b1c, "GET_DMABUF_INFO"),
    (0xc018_4b1d, "IMPORT_DMABUF"),
    (0xc010_4b1e, "ALLOC_QUEUE_GWS"),
    (0xc008_4b1f, "SMI_EVENTS"),
    (0xc018_4b20, "SVM"),
    (0xc004_4b21, "SET_XNACK_MODE"),
    (0xc038_4b22, "CRIU_OP"),
    (0xc010_4b23, "AVAILABLE_MEMORY"),
    (0xc010_4b24, "EXPORT_DMABUF"),
    (0xc010_4b25, "RUNTIME_ENABLE"),
    (0xc020_4b26, "DBG_TRAP"),
    (0x0000_4b27, "CREATE_PROCESS"),
    (0xc010_4b28, "PROFILER"),
    (0xc040_6400, "DRM_VERSION"),
    (0x4008_6409, "DRM_GEM_CLOSE"),
    (0xc010_640c, "DRM_GET_CAP"),
    (0xc00c_642d, "DRM_PRIME_HANDLE_TO_FD"),
    (0xc00c_642e, "DRM_PRIME_FD_TO_HANDLE"),
    (0xc008_6441, "AMDGPU_GEM_MMAP"),
    (0xc010_6442, "AMDGPU_CTX"),
    (0x4020_6445, "AMDGPU_INFO"),
    (0xc120_6446, "AMDGPU_GEM_METADATA"),
    (0x4040_6448, "AMDGPU_GEM_VA"),
    (0xc018_6450, "AMDGPU_GEM_OP"),
    (0xc010_6459, "AMDGPU_GEM_LIST_HANDLES"),
];

/// Every part of a row, also those of its operations.
fn all_parts(row: &Row) -> Vec<&'static Part> {
    let flat = row.parts.iter().flat_map(|part| match part {
        Part::Operation { parts, .. } => std::iter::once(part).chain(parts.iter()).collect(),
        part => vec![part],
    });
    flat.collect()
}

/// Offset and size of the fields that say where an array is and how long.
fn fields_of(array: &Array) -> Vec<(usize, usize)> {
    let length = match array.length {
        Length::Count32 { count, .. } | Length::Bits { count, .. } => vec![(count, 4)],
        Length::Count64 { count, .. } => vec![(count, 8)],
        Length::Product { count, element } => vec![(count, 4), (element, 4)],
        Length::Fixed(_) => vec![],
    };
    std::iter::once((array.pointer, 8)).chain(length).collect()
}

fn fields_of_place(place: &Place) -> Vec<(usize, usize)> {
    match place {
        Place::Argument(at) => vec![(usize::from(*at), 4)],
        Place::Element { array, element, at } => {
            assert!(at + 4 <= *element, "the descriptor lies in the element");
            fields_of(array)
        }
    }
}

fn fields_of_part(part: &Part) -> Vec<(usize, usize)> {
    match part {
        Part::Array(array) => fields_of(array),
        Part::Descriptor(place) | Part::NewDescriptor(place, CloseOnExec::Never) => fields_of_place(place),
        Part::NewDescriptor(place, CloseOnExec::Flags(flags)) => {
            fields_of_place(place).into_iter().chain([(*flags, 4)]).collect()
        }
        Part::Operation { selector, .. } => vec![(*selector, 4)],
    }
}

#[test]
fn numbers_and_names_equal_those_of_the_headers() {
    let rows: Vec<_> = Ioctl::all().map(|ioctl| (ioctl.row().command, ioctl.row().name)).collect();
    assert_eq!(rows, HEADERS);
}

#[test]
fn keys_number_and_row_belong_together() {
    for ioctl in Ioctl::all() {
        let row = ioctl.row();
        assert_eq!(Ioctl::of(row.command), Some(ioctl));
        assert_eq!(Ioctl::named(row.name), Some(ioctl));
        assert_eq!(command_name(row.command), row.name);
    }
    for ioctl in KfdIoctl::ALL {
        assert_eq!(ioc_nr(ioctl.row().command), ioctl.number());
    }
    for ioctl in DrmIoctl::ALL {
        assert_eq!(ioc_nr(ioctl.row().command), ioctl.number());
    }
    assert_eq!(KfdIoctl::ALL.len() + 1, AMDKFD_COMMAND_END as usize, "KFD's numbers have no hole");
}

#[test]
fn numbers_of_no_row_have_no_key() {
    for cmd in [0x4b00, 0x4b29, 0x4bff, 0x6401, 0x64ff, 0xc060_4c02] {
        assert_eq!(Ioctl::of(cmd), None, "{cmd:#x}");
        assert_eq!(command_name(cmd), "unknown ioctl");
    }
    assert_eq!(Ioctl::named("unknown ioctl"), None);
}

#[test]
fn every_field_lies_in_its_struct() {
    for row in Ioctl::all().map(Ioctl::row) {
        for part in all_parts(row) {
            for (offset, bytes) in fields_of_part(part) {
                assert!(offset + bytes <= row.argument_bytes(), "{}: {part:?}", row.name);
                assert_eq!(offset % bytes, 0, "{}: {part:?}", row.name);
            }
        }
    }
}

#[test]
fn fields_of_one_part_do_not_overlap() {
    for row in Ioctl::all().map(Ioctl::row) {
        for part in all_parts(row) {
            let mut fields = fields_of_part(part);
            fields.sort_unstable();
            assert!(
                fields.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0),
                "{}: {part:?}",
                row.name
            );
        }
    }
}

#[test]
fn arrays_of_one_argument_share_no_field() {
    let arrays_of = |parts: &[Part]| {
        let arrays =
            parts.iter().filter_map(|part| if let Part::Array(array) = part { Some(*array) } else { None });
        arrays.flat_map(|array| fields_of(&array)).collect::<Vec<_>>()
    };
    for row in Ioctl::all().map(Ioctl::row) {
        let of_operations = row.parts.iter().filter_map(|part| match part {
            Part::Operation { parts, .. } => Some(*parts),
            _ => None,
        });
        for parts in of_operations.chain([row.parts]) {
            let mut fields = [arrays_of(row.parts), arrays_of(parts)].concat();
            fields.sort_unstable();
            fields.dedup();
            let all =
                arrays_of(parts).len() + if parts == row.parts { 0 } else { arrays_of(row.parts).len() };
            assert_eq!(fields.len(), all, "{}", row.name);
            assert!(fields.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{}", row.name);
        }
    }
}

#[test]
fn elements_have_the_sizes_of_the_headers() {
    let element = |ioctl: Ioctl, index: usize| match all_parts(ioctl.row())[index] {
        Part::Array(Array { length, .. }) => match length {
            Length::Count32 { element, .. } | Length::Count64 { element, .. } => *element,
            Length::Fixed(bytes) => *bytes,
            Length::Bits { most, .. } => *most as usize / 8,
            Length::Product { .. } => 0,
        },
        part => panic!("{part:?} is no array"),
    };
    let (kfd, drm) = (Ioctl::Kfd, Ioctl::Drm);
    assert_eq!(element(kfd(KfdIoctl::WaitEvents), 0), 48);
    assert_eq!(element(kfd(KfdIoctl::GetTileConfig), 1), 4);
    assert_eq!(element(kfd(KfdIoctl::GetProcessAperturesNew), 0), 56);
    assert_eq!(element(kfd(KfdIoctl::MapMemoryToGpu), 0), 4);
    assert_eq!(element(kfd(KfdIoctl::SetCuMask), 0), 128);
    assert_eq!(element(kfd(KfdIoctl::GetQueueWaveState), 0), 16);
    assert_eq!([0, 1, 2].map(|index| element(kfd(KfdIoctl::CriuOp), index)), [16, 48, 1]);
    assert_eq!(element(drm(DrmIoctl::GemOp), 1), 32);
    assert_eq!(element(drm(DrmIoctl::GemListHandles), 0), 40);
}

#[test]
fn an_array_of_a_short_argument_is_empty() {
    for row in Ioctl::all().map(Ioctl::row) {
        for bytes in 0..row.argument_bytes() {
            let arg = vec![0xff; bytes];
            for part in row.parts_of(&arg) {
                let Part::Array(array) = part else { continue };
                let missing = fields_of(array).into_iter().skip(1).any(|(at, size)| at + size > bytes);
                assert!(!missing || array.bytes(&arg) == 0, "{} with {bytes} bytes", row.name);
            }
        }
    }
}

#[test]
fn svm_command_counts_attributes_in_its_size() {
    assert_eq!(svm_command(0), AMDKFD_IOC_SVM);
    assert_eq!(ioc_size(svm_command(5)), 24 + 40);
    assert_eq!(command_name(svm_command(5)), "SVM");
}

#[test]
fn command_name_ignores_the_callers_size() {
    assert_eq!(command_name(0xc058_4b02), "CREATE_QUEUE");
    assert_eq!(command_name(0xc058_4bff), "unknown ioctl");
}
