// SPDX-License-Identifier: MIT OR Apache-2.0
//! What neither `std` nor `rustix` has as we need it: the alarm clock, a last word at the end.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Stops CRIU's alarm clock while it lives.
///
/// CRIU gives the freezing of a whole tree `--timeout` seconds (10) and starts to count before the first hook; once
/// the alarm has gone off, even unheard, the dump fails. Our writing has limits of its own.
#[derive(Debug)]
pub(crate) struct AlarmStopped {
    seconds_left: u32,
}

impl AlarmStopped {
    pub fn now() -> Self {
        // SAFETY: alarm(2) only sets a timer of the process.
        Self { seconds_left: unsafe { libc::alarm(0) } }
    }
}

impl Drop for AlarmStopped {
    fn drop(&mut self) {
        // 0 is no alarm at all: `--timeout 0`.
        // SAFETY: alarm(2) only sets a timer of the process.
        unsafe { libc::alarm(self.seconds_left) };
    }
}

/// Has `last` run when this process ends by itself. The library stays loaded until then: CRIU closes it earlier, and
/// the C library would take that for the end.
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
    // SAFETY: nothing is loaded and no code runs: what is there is marked to stay.
    let pinned = unsafe { libc::dlopen(path, flags) };
    // SAFETY: `last` is a function of this library, which stays.
    !pinned.is_null() && unsafe { libc::atexit(last) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarm_goes_on_where_it_was_stopped() {
        // SAFETY: alarm(2) only sets a timer; it is taken back before it can go off.
        let set = |seconds| unsafe { libc::alarm(seconds) };
        set(3000);
        {
            let _stopped = AlarmStopped::now();
            assert_eq!(set(0), 0);
        }
        let left = set(0);
        assert!((2900..=3000).contains(&left), "{left}");
        drop(AlarmStopped::now());
        assert_eq!(set(0), 0);
    }
}
