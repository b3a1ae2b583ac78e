// SPDX-License-Identifier: MIT OR Apache-2.0
//! The boundary to CRIU: the descriptor it looks for, and hooks that catch whatever goes wrong behind them.
//!
//! INVARIANT: no panic leaves a hook, and success is answered with `-ENOTSUP`: CRIU asks plugins in the order in which
//! it found them until one gives another answer, and the rest want to be asked, too.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::panic::catch_unwind;

use stasis::explain;

use crate::host::{Level, log};
use crate::sys::at_exit;
use crate::{dump, guard, restore};

/// `CRIU_PLUGIN_VERSION`: 0.2.0, the same since 2014.
const VERSION: c_uint = 0x200;
/// CRIU refuses a plugin with more hooks than it knows: 4.0 to 4.1 know 12, 4.2 one more.
const HOOKS: usize = 12;

const STAGE_DUMP: c_int = 0;
const STAGE_RESTORE: c_int = 2;

/// "Not mine, ask the next plugin", which CRIU takes for success where nobody needs to answer.
const ASK_OTHERS: c_int = -libc::ENOTSUP;

type PidHook = extern "C" fn(c_int) -> c_int;

/// The hooks up to the twelfth, in CRIU's order (criu-plugin.h); those that are not ours are empty.
#[repr(C)]
struct Hooks {
    dump_unix_sk: Option<extern "C" fn()>,
    restore_unix_sk: Option<extern "C" fn()>,
    dump_ext_file: Option<extern "C" fn(c_int, c_int) -> c_int>,
    restore_ext_file: Option<extern "C" fn()>,
    dump_ext_mount: Option<extern "C" fn()>,
    restore_ext_mount: Option<extern "C" fn()>,
    dump_ext_link: Option<extern "C" fn()>,
    handle_device_vma: Option<extern "C" fn(c_int, *const c_void) -> c_int>,
    update_vma_map: Option<extern "C" fn()>,
    resume_devices_late: Option<PidHook>,
    pause_devices: Option<PidHook>,
    checkpoint_devices: Option<PidHook>,
}

/// `cr_plugin_desc_t` with twelve hooks.
#[repr(C)]
pub struct PluginDescriptor {
    name: *const c_char,
    init: extern "C" fn(c_int) -> c_int,
    exit: extern "C" fn(c_int, c_int),
    version: c_uint,
    max_hooks: c_uint,
    hooks: Hooks,
}

const _: () = {
    assert!(size_of::<Hooks>() == HOOKS * size_of::<*const c_void>());
    assert!(std::mem::offset_of!(PluginDescriptor, hooks) == 32);
};

impl fmt::Debug for PluginDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginDescriptor").field("max_hooks", &self.max_hooks).finish_non_exhaustive()
    }
}

// SAFETY: the one instance is never written; its name points to a constant.
unsafe impl Sync for PluginDescriptor {}

/// What CRIU looks for in every file of its plugin directory that ends in `.so`.
// SAFETY: no other symbol of this name is linked into the library; CRIU defines none.
#[unsafe(no_mangle)]
pub static CR_PLUGIN_DESC: PluginDescriptor = PluginDescriptor {
    name: c"stasis".as_ptr(),
    init,
    exit,
    version: VERSION,
    // CAST: 12.
    max_hooks: HOOKS as c_uint,
    hooks: Hooks {
        dump_unix_sk: None,
        restore_unix_sk: None,
        dump_ext_file: Some(dump_ext_file),
        restore_ext_file: None,
        dump_ext_mount: None,
        restore_ext_mount: None,
        dump_ext_link: None,
        handle_device_vma: Some(handle_device_vma),
        update_vma_map: None,
        resume_devices_late: Some(resume_devices_late),
        pause_devices: Some(pause_devices),
        checkpoint_devices: Some(checkpoint_devices),
    },
};

/// Runs a hook: what it fails with is logged with all causes, and told CRIU as a failure.
fn run<E: std::error::Error>(
    hook: &str,
    body: impl FnOnce() -> Result<(), E> + std::panic::UnwindSafe,
) -> c_int {
    match catch_unwind(body) {
        Ok(Ok(())) => ASK_OTHERS,
        Ok(Err(error)) => {
            log(Level::Error, &explain(&error));
            -libc::EBUSY
        }
        Err(_) => {
            log(Level::Error, &format!("{hook} panicked: please report this"));
            -libc::EINVAL
        }
    }
}

extern "C" fn init(stage: c_int) -> c_int {
    let prepared = match stage {
        STAGE_DUMP => run("init", || {
            dump::prepare();
            Ok::<_, Infallible>(())
        }),
        STAGE_RESTORE => run("init", restore::prepare),
        _ => ASK_OTHERS,
    };
    // Here success is 0, and anything else ends criu.
    if prepared == ASK_OTHERS { 0 } else { prepared }
}

extern "C" fn exit(stage: c_int, result: c_int) {
    if stage == STAGE_DUMP {
        let _ = catch_unwind(|| {
            if dump::end(result) {
                // Without it they run on as well, only not before criu's caller does.
                at_exit(last);
            }
        });
    }
}

/// criu ends: the tasks were killed or let go.
extern "C" fn last() {
    let _ = catch_unwind(dump::see_off);
}

extern "C" fn pause_devices(pid: c_int) -> c_int {
    run("PAUSE_DEVICES", || dump::pause(pid))
}

extern "C" fn checkpoint_devices(pid: c_int) -> c_int {
    run("CHECKPOINT_DEVICES", || dump::verify(pid))
}

extern "C" fn dump_ext_file(fd: c_int, _id: c_int) -> c_int {
    run("DUMP_EXT_FILE", || guard::refuse_device(fd))
}

extern "C" fn handle_device_vma(fd: c_int, _stat: *const c_void) -> c_int {
    run("HANDLE_DEVICE_VMA", || guard::refuse_device(fd))
}

extern "C" fn resume_devices_late(pid: c_int) -> c_int {
    run("RESUME_DEVICES_LATE", || restore::resume(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("It failed")]
    struct Failed;

    #[test]
    fn hook_answers_for_others_fails_or_catches() {
        assert_eq!(run("A", || Ok::<_, Failed>(())), -libc::ENOTSUP);
        assert_eq!(run("A", || Err(Failed)), -libc::EBUSY);
        assert_eq!(run::<Failed>("A", || panic!("on purpose")), -libc::EINVAL);
    }

    #[test]
    fn foreign_process_is_nobodys_business() {
        // This process has no runtime open.
        assert_eq!(init(STAGE_DUMP), 0);
        let own = std::process::id().cast_signed();
        for hook in [pause_devices, checkpoint_devices, resume_devices_late] {
            assert_eq!(hook(own), -libc::ENOTSUP);
            // Nor has one that is gone.
            assert_eq!(hook(i32::MAX), -libc::ENOTSUP);
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        exit(STAGE_DUMP, 0);
        assert_eq!(dump_ext_file(std::os::fd::AsRawFd::as_raw_fd(&null), 1), -libc::ENOTSUP);
    }
}
