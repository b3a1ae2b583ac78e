// SPDX-License-Identifier: MIT OR Apache-2.0
//! Error numbers of the drivers, as numbers and as [`Errno`].
//!
//! INVARIANT: an error never has the number 0. [`Errno`] names the numbers that Linux exports and has one value for all
//! others, whose number is 0. KFD is known to leak one such number, ENOTSUPP, so that the value stands for it here.

use nix::errno::Errno;

/// The kernel's internal ENOTSUPP, which [`crate::sys::ENOTSUPP`] is the number of.
pub const ENOTSUPP: Errno = Errno::UnknownErrno;

/// The error with this number. Another number that Linux does not export is logged, and becomes EIO.
pub fn from_raw(number: i32) -> Errno {
    match Errno::from_raw(number) {
        Errno::UnknownErrno if number == crate::sys::ENOTSUPP => ENOTSUPP,
        Errno::UnknownErrno => {
            tracing::warn!(target: "kfd", number, "an error number that Linux does not export; taken for EIO");
            Errno::EIO
        }
        errno => errno,
    }
}

/// The number of an error.
pub const fn to_raw(errno: Errno) -> i32 {
    match errno {
        ENOTSUPP => crate::sys::ENOTSUPP,
        errno => errno as i32,
    }
}

/// The error of a failed system call, `None` if something else failed.
pub fn of_io(error: &std::io::Error) -> Option<Errno> {
    error.raw_os_error().map(from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_are_never_zero() {
        for number in [1, 22, 110, crate::sys::ENOTSUPP] {
            assert_eq!(to_raw(from_raw(number)), number);
        }
        assert_eq!([0, -5, 517, i32::MAX].map(from_raw), [Errno::EIO; 4]);
    }
}
