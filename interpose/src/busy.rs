// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this thread is inside the library: then its calls are the library's own, and go to the C library.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calls of this thread are the library's own.
pub(crate) fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Does `work` with this thread's calls as the library's own.
pub(crate) fn inside<T>(work: impl FnOnce() -> T) -> T {
    let _entered = Entered::new();
    work()
}

/// Counts out also when `work` panics.
struct Entered;

impl Entered {
    fn new() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_holds_for_the_work_and_for_work_within_it() {
        assert!(!is_inside());
        inside(|| {
            inside(|| assert!(is_inside()));
            assert!(is_inside());
        });
        assert!(!is_inside());
        assert!(std::panic::catch_unwind(|| inside(|| panic!("in the work"))).is_err());
        assert!(!is_inside());
    }
}
