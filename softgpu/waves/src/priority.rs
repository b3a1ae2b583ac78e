// SPDX-License-Identifier: MIT OR Apache-2.0
//! How soon a thread gets a core beside the workers, which never sleep while there are waves.
//!
//! INVARIANT: needs no privilege. A failure leaves the thread as it is: it runs later or earlier than it could.
#![allow(unsafe_code)]

use nix::libc;

/// Nanoseconds: longer than the usual slice, which is at most 2.8 ms (`sysctl_sched_base_slice`), and no longer than needed for that:
/// busy workers of several processes take turns of so long.
const LONG: u64 = 5_000_000;

/// Has the calling thread run only where no other one wants to. A higher nice value would not be enough: a thread that wakes up
/// waits for the time slice of such a one.
pub(crate) fn give_way() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the call reads `parameters`.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
}

/// Has the calling thread, which seldom sleeps, leave its core at once to any other one that wakes up, by asking for long slices
/// (Linux 6.12 and later; earlier ones ignore it). With the usual ones, a thread that is to stop the waves, or to hear that
/// they have ended, waits until the slice is over. The thread's share of the cores stays what it is.
pub(crate) fn take_long_slices() {
    // SAFETY: the call has no memory of ours.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes = libc::sched_attr {
        // CAST: 48 bytes.
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: LONG,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: 0 is the calling thread, and the call reads as many bytes of `attributes` as its first field says.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy, nice value and slice of the calling thread.
    fn own() -> (i32, i32, u64) {
        // SAFETY: a struct of integers.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let bytes = size_of::<libc::sched_attr>();
        // SAFETY: 0 is the calling thread, and the call writes at most as many bytes as it is told.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, bytes, 0) };
        assert_eq!(result, 0);
        (attributes.sched_policy as i32, attributes.sched_nice, attributes.sched_runtime)
    }

    fn has_slices() -> bool {
        let name = nix::sys::utsname::uname().expect("the kernel's name");
        let release = name.release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 12)
    }

    #[test]
    fn threads_give_way_or_take_long_slices() {
        let (policy, nice, _) = own();
        let idle = std::thread::spawn(|| {
            give_way();
            own().0
        });
        assert_eq!(idle.join().unwrap(), libc::SCHED_IDLE);
        let long = std::thread::spawn(|| {
            take_long_slices();
            own()
        });
        let found = long.join().unwrap();
        assert_eq!((found.0, found.1), (policy, nice));
        assert_eq!(found.2 == LONG, has_slices(), "a slice of {} ns", found.2);
    }
}
