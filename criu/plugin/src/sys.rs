// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU's alarm clock, and a function that runs at the end of CRIU. `nix` does not wrap dladdr(3), dlopen(3) and atexit(3).
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;

use nix::libc;
use nix::unistd::alarm;

/// Stops CRIU's alarm clock while it lives.
///
/// CRIU limits the freezing of a whole tree to `--timeout` seconds (10) and starts the alarm before the first hook.
/// When the alarm has gone off, even while it was blocked, the dump fails. The writing of contents has limits of its
/// own.
#[derive(Debug)]
pub(crate) struct AlarmStopped {
    /// `None`: there was no alarm (`--timeout 0`).
    seconds_left: Option<u32>,
}

impl AlarmStopped {
    pub fn now() -> Self {
        Self { seconds_left: alarm::cancel() }
    }
}

impl Drop for AlarmStopped {
    fn drop(&mut self) {
        match self.seconds_left {
            Some(seconds) => alarm::set(seconds),
            None => alarm::cancel(),
        };
    }
}

/// Has `last` run when this process exits. The library stays loaded until then: CRIU closes it earlier, and the C
/// library would then run the handler at once.
pub(crate) fn at_exit(last: extern "C" fn()) -> bool {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    let own = (at_exit as fn(extern "C" fn()) -> bool) as *const c_void;
    // SAFETY: dladdr looks an address up and fills the structure if it returns nonzero.
    if unsafe { libc::dladdr(own, found.as_mut_ptr()) } == 0 {
        return false;
    }
    // SAFETY: filled, as above; the name is the loader's own and lives as long as the library.
    let path = unsafe { found.assume_init() }.dli_fname;
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: the call loads nothing and runs no code; it marks a loaded library to stay.
    let pinned = unsafe { libc::dlopen(path, flags) };
    // SAFETY: `last` is a function of this library, which stays.
    !pinned.is_null() && unsafe { libc::atexit(last) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarm_goes_on_where_it_was_stopped() {
        alarm::set(3000);
        {
            let _stopped = AlarmStopped::now();
            assert_eq!(alarm::cancel(), None);
        }
        let left = alarm::cancel();
        assert!(left.is_some_and(|left| (2900..=3000).contains(&left)), "{left:?}");
        drop(AlarmStopped::now());
        assert_eq!(alarm::cancel(), None);
    }
}
