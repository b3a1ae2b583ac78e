// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that the program would have called without this library.
//!
//! INVARIANT: an address that was found stays: libraries that are searched after a preloaded one are not unloaded before
//! it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use nix::libc;

/// The version under which glibc for x86-64 has had `dlsym` since its beginning.
const DLSYM_VERSION: &CStr = c"GLIBC_2.2.5";

static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// `dlsym` as the dynamic linker's own library has it: this library's own `dlsym` is found by its plain name.
pub(crate) extern "C" fn dlsym_address() -> *mut c_void {
    // ORDERING: Relaxed, since whoever finds it finds the same address.
    let known = DLSYM.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: both names end with a zero byte.
    let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), DLSYM_VERSION.as_ptr()) };
    DLSYM.store(found, Ordering::Relaxed);
    found
}

/// Looks up a name as `dlsym(handle, name)` called from here.
pub(crate) fn dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let address = dlsym_address();
    if address.is_null() {
        return address;
    }
    // SAFETY: the address is that of glibc's dlsym, which has this signature.
    let dlsym: unsafe extern "C" fn(*mut c_void, *const libc::c_char) -> *mut c_void =
        unsafe { std::mem::transmute(address) };
    // SAFETY: a handle is checked by the dynamic linker; the name ends with a zero byte.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// One function of the C library.
#[derive(Debug)]
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// The function of this name, which is looked up when it is first needed.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null if no library behind this one has it.
    pub(crate) fn address(&self) -> *mut c_void {
        // ORDERING: Relaxed, since whoever finds it finds the same address.
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = dlsym(libc::RTLD_NEXT, self.name);
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_c_library_are_found_and_others_are_null() {
        static OPEN: Next = Next::new(c"open64");
        static NONE: Next = Next::new(c"stasis_has_no_such_function");
        assert!(!OPEN.address().is_null() && OPEN.address() == OPEN.address());
        assert!(NONE.address().is_null());
        assert!(!dlsym_address().is_null());
    }
}
