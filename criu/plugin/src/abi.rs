// SPDX-License-Identifier: MIT OR Apache-2.0
//! The boundary to CRIU: the plugin descriptor that CRIU looks for, and hooks that catch all errors and panics.
//!
//! INVARIANT: no panic leaves a hook, and a hook that succeeds answers `-ENOTSUP`. CRIU asks its plugins in the order
//! in which it found them and stops at the first other answer; the other plugins must be asked too.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::panic::catch_unwind;

use nix::libc;
use stasis::explain;

use crate::host::{self, Level, log};
use crate::sys::at_exit;
use crate::{dump, guard, restore};

/// `CRIU_PLUGIN_VERSION`: 0.2.0, unchanged since 2014.
const VERSION: c_uint = 0x200;
/// CRIU refuses a plugin with more hooks than it knows: 4.0 to 4.1 know 12, 4.2 one more.
const HOOKS: usize = 12;
#[expect(clippy::cast_possible_truncation, reason = "a hook costs memory: there are few")]
const MAX_HOOKS: c_uint = HOOKS as c_uint;

const STAGE_DUMP: c_int = 0;
const STAGE_RESTORE: c_int = 2;

/// The answer that has CRIU ask the next plugin. Where no plugin has to act, CRIU takes it for success.
const ASK_OTHERS: c_int = -libc::ENOTSUP;

type PidHook = extern "C" fn(c_int) -> c_int;

/// The first twelve hooks, in CRIU's order (criu-plugin.h); those that this plugin does not have are empty.
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
    name: host::NAME.as_ptr(),
    init,
    exit,
    version: VERSION,
    max_hooks: MAX_HOOKS,
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

/// Runs a hook. An error is logged with all its causes, and CRIU gets a failure.
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
    // From this hook 0 is success, and any other answer ends CRIU.
    if prepared == ASK_OTHERS { 0 } else { prepared }
}

extern "C" fn exit(stage: c_int, result: c_int) {
    if stage == STAGE_DUMP {
        let _ = catch_unwind(|| {
            if dump::end(result) {
                // Without this handler the processes resume too, but perhaps only after CRIU's caller goes on.
                at_exit(last);
            }
        });
    }
}

/// CRIU ends: it has killed the tasks or has let them run on.
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
            // A process that has ended has no runtime either.
            assert_eq!(hook(i32::MAX), -libc::ENOTSUP);
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        exit(STAGE_DUMP, 0);
        assert_eq!(dump_ext_file(std::os::fd::AsRawFd::as_raw_fd(&null), 1), -libc::ENOTSUP);
    }
}
