// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the render node says of itself: VERSION, GET_CAP, AMDGPU_INFO.

use kfd::sys::*;
use nix::errno::Errno;
use queues::words::size;

use super::super::Call;
use super::super::files::OpenFile;
use super::super::process::KfdProcess;

/// amdgpu's major version has been 3 since 2015, and libdrm accepts no other.
const MAJOR: i32 = 3;

impl KfdProcess {
    /// VERSION: copies each string up to the length of the user's buffer, and answers its full length.
    pub(super) fn drm_version(
        &self,
        _file: &OpenFile,
        args: &mut drm_version,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        args.version_major = MAJOR;
        args.version_minor = self.kernel.drm_minor();
        args.version_patchlevel = 0;
        copy_field(call, args.name, &mut args.name_len, "amdgpu")?;
        copy_field(call, args.date, &mut args.date_len, "0")?;
        copy_field(call, args.desc, &mut args.desc_len, "AMD GPU")
    }

    /// GET_CAP: answers the one capability that a node without display has; others are unknown.
    pub(super) fn drm_capability(
        &self,
        _file: &OpenFile,
        args: &mut drm_get_cap,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        args.value = 0;
        if args.capability != DRM_CAP_PRIME {
            return Err(Errno::EINVAL);
        }
        args.value = DRM_PRIME_CAP_IMPORT | DRM_PRIME_CAP_EXPORT;
        Ok(())
    }

    /// AMDGPU_INFO: answers only whether the GPU works. The topology describes the GPU, and its registers are not
    /// modelled: libdrm_amdgpu finds no device here.
    pub(super) fn amdgpu_info(
        &self,
        _file: &OpenFile,
        args: &mut drm_amdgpu_info,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        if args.return_size == 0 || args.return_pointer == 0 || args.query != AMDGPU_INFO_ACCEL_WORKING {
            return Err(Errno::EINVAL);
        }
        let answer = 1u32.to_le_bytes();
        let wanted = answer.len().min(args.return_size as usize);
        call.memory.write(args.return_pointer, &answer[..wanted]).map_err(|_| Errno::EFAULT)
    }
}

fn copy_field(call: &Call<'_>, address: u64, length: &mut u64, value: &str) -> Result<(), Errno> {
    // CAST: the strings have fewer than ten letters.
    let whole = value.len() as u64;
    let wanted = whole.min(std::mem::replace(length, whole));
    if wanted == 0 || address == 0 {
        return Ok(());
    }
    call.memory.write(address, &value.as_bytes()[..size(wanted)]).map_err(|_| Errno::EFAULT)
}
