// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the render node says of itself: VERSION and GET_CAP.

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
