// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of another driver: files that udmabuf would accept.

use nix::fcntl::{OFlag, SealFlag};

use super::super::sharing::{export, import, info};
use super::*;
use crate::driver::memfd;

fn foreign(bytes: u64, seals: SealFlag) -> OwnedFd {
    kfd::linux::memfd("camera", bytes, seals).unwrap()
}

#[test]
fn foreign_memory_is_system_memory_of_whoever_imports_it() {
    let client = Client::fresh_pair(crate::driver::KernelModel::default());
    let files = [client.acquire(0), client.acquire(1)];
    let fd = foreign(3 * PAGE, SealFlag::F_SEAL_SHRINK);
    let imported = import(&client, 1, VA, &fd).unwrap();
    let flags = client.process.state.lock().bo(1, 0).unwrap().flags;
    assert_ne!(flags & KFD_IOC_ALLOC_MEM_FLAGS_GTT, 0);
    assert_eq!(flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM, 0);
    client.map(imported, 1).unwrap();
    client.map(imported, 0).unwrap();
    assert_eq!(info(&client, &fd).unwrap_err(), Errno::EINVAL, "not amdgpu's");
    let exported = export(&client, imported).unwrap();
    assert_eq!(memfd::identity(exported.as_fd()), memfd::identity(fd.as_fd()));
    for file in &files {
        let handle = prime_import(&client, file, &fd).unwrap();
        let mut args = va_args(AMDGPU_VA_OP_MAP, handle, 8, 1, 2);
        drm(&client, file, DRM_IOCTL_AMDGPU_GEM_VA, &mut args).unwrap();
    }
    let entry = client.hardware.page(1, VA + 8 * PAGE).unwrap();
    assert_eq!((entry.memory, entry.offset), (memfd::identity(fd.as_fd()).unwrap(), 2 * PAGE));
}

#[test]
fn what_udmabuf_would_refuse_is_refused() {
    let client = Client::ready();
    let (file, _token) = client.render(0);
    let good = foreign(PAGE, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW);
    let refused = [
        ("no seal", foreign(PAGE, SealFlag::empty())),
        ("may shrink", foreign(PAGE, SealFlag::F_SEAL_GROW)),
        ("sealed against writing", foreign(PAGE, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE)),
        ("sealed for later", foreign(PAGE, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_FUTURE_WRITE)),
        ("part of a page", foreign(PAGE + 8, SealFlag::F_SEAL_SHRINK)),
        ("empty", foreign(0, SealFlag::F_SEAL_SHRINK)),
        ("cannot write", memfd::reopen_read_only(good.as_fd()).unwrap()),
        (
            "path only",
            nix::fcntl::open("/tmp", OFlag::O_PATH | OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty())
                .unwrap(),
        ),
        ("pages of a USERPTR object", memfd::create("stasis-userptr", PAGE).unwrap()),
        ("the device's own", memfd::create("softgpu-doorbells", PAGE).unwrap()),
        ("an event page", memfd::create("softgpu:events", PAGE).unwrap()),
    ];
    for (what, fd) in &refused {
        assert_eq!(import(&client, 0, VA, fd), Err(Errno::EINVAL), "{what}");
        assert_eq!(prime_import(&client, &file, fd), Err(Errno::EINVAL), "{what}");
    }
    import(&client, 0, VA, &good).unwrap();
}
