// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dispatcher's rules, VERSION and GET_CAP.

use super::*;
use crate::driver::KernelModel;

#[test]
fn dispatcher_tells_unknown_foreign_and_forbidden_commands_apart() {
    let space = Space::new();
    let answer = |cmd| drm(&space.client, &space.file, cmd, &mut [0u8; 64]);
    let sized = |cmd: u32| cmd & !(0x3fff << 16) | 64 << 16;
    assert_eq!(answer(sized(AMDKFD_IOC_GET_VERSION)), Err(Errno::ENOTTY));
    for nr in [0x03, 0x40, 0x44, 0x60, 0xbf, 0xff] {
        assert_eq!(answer(sized(0xc000_6400 | nr)), Err(Errno::EINVAL), "{nr:#x}");
    }
    // GEM_FLINK, SET_MASTER, AMDGPU_SCHED, MODE_GETRESOURCES.
    for nr in [0x0a, 0x1e, 0x55, 0xa0] {
        assert_eq!(answer(sized(0xc000_6400 | nr)), Err(Errno::EACCES), "{nr:#x}");
    }
}

/// What a render node makes of a number, from Linux's `drm_ioctls` and `amdgpu_ioctls_kms`: `s` served here, `.` a command
/// that this device refuses like a number that is none, `p` one of the primary node. A row is 16 numbers.
const NUMBERS: [&str; 16] = [
    "spp..ppp.sppsp..",
    "pppp..........pp",
    ".............ss.",
    "..........ppp...",
    ".ss..ss.s.......",
    "s....p...s......",
    "................",
    "................",
    "................",
    "................",
    "pppppppppppppppp",
    "ppppppppppppppp.",
    "......pppp....p.",
    "p...............",
    "................",
    "................",
];

#[test]
fn every_number_of_a_render_node_is_served_refused_or_the_primary_nodes() {
    for (row, numbers) in NUMBERS.iter().enumerate() {
        for (column, kind) in numbers.chars().enumerate() {
            let nr = (16 * row + column) as u32;
            let space = Space::new();
            // An argument full of ones: whatever is served finds something wrong with it that is not its number.
            let answer = drm(&space.client, &space.file, 0xc000_6400 | 64 << 16 | nr, &mut [0xffu8; 64]);
            let known = DrmIoctl::from_number(nr).is_some();
            match kind {
                's' => assert!(known && answer != Err(Errno::EACCES), "{nr:#x}: {answer:?}"),
                'p' => assert_eq!(answer, Err(Errno::EACCES), "{nr:#x}"),
                _ => assert!(!known && answer == Err(Errno::EINVAL), "{nr:#x}: {answer:?}"),
            }
        }
    }
}

#[test]
fn argument_is_copied_in_the_directions_that_both_sides_name() {
    let space = Space::new();
    let mut args = drm_get_cap { capability: DRM_CAP_PRIME, value: 9 };
    // Without the in direction the capability reads as 0, which is no capability; without the out direction nothing is
    // copied back.
    assert_eq!(drm(&space.client, &space.file, 0x8010_640c, &mut args), Err(Errno::EINVAL));
    assert_eq!(args, drm_get_cap::default(), "copied back although it failed");
    let mut args = drm_get_cap { capability: DRM_CAP_PRIME, value: 9 };
    drm(&space.client, &space.file, 0x4010_640c, &mut args).unwrap();
    assert_eq!(args.value, 9);
    drm(&space.client, &space.file, DRM_IOCTL_GET_CAP, &mut args).unwrap();
    assert_eq!(args.value, 3);
    args.capability = 0x77;
    assert_eq!(drm(&space.client, &space.file, DRM_IOCTL_GET_CAP, &mut args), Err(Errno::EINVAL));
    let mut short = [0u8; 4];
    let cmd = DRM_IOCTL_GEM_CLOSE;
    let file = &space.file;
    let (memory, fds) = (Memory::default(), Fds::default());
    assert_eq!(space.client.process.ioctl(file, cmd, &mut short, &memory, &fds), Err(Errno::EFAULT));
}

#[test]
fn version_is_asked_for_lengths_first_and_strings_second() {
    for (kernel, minor) in [(KernelModel::V6_12, 59), (KernelModel::V7_3, 64), (KernelModel::Fixed, 64)] {
        let client = Client::fresh_pair(kernel);
        let (file, _token) = client.render(1);
        let mut args = drm_version::default();
        drm(&client, &file, DRM_IOCTL_VERSION, &mut args).unwrap();
        assert_eq!((args.version_major, args.version_minor, args.version_patchlevel), (3, minor, 0));
        assert_eq!((args.name_len, args.date_len, args.desc_len), (6, 1, 7));
        (args.name, args.desc, args.desc_len) = (ARRAY, ARRAY + 0x100, 3);
        let memory = Memory::with(ARRAY, &[b'.'; 8]).and(ARRAY + 0x100, &[b'.'; 8]);
        drm_with(&client, &file, DRM_IOCTL_VERSION, &mut args, &memory, &Fds::default()).unwrap();
        assert_eq!(
            (memory.bytes(ARRAY), memory.bytes(ARRAY + 0x100)),
            (b"amdgpu..".into(), b"AMD.....".into())
        );
        assert_eq!(args.desc_len, 7, "the true length comes back");
        args.name = 8;
        assert_eq!(drm(&client, &file, DRM_IOCTL_VERSION, &mut args), Err(Errno::EFAULT));
    }
}
