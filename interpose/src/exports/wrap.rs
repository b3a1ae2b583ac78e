// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a function of the C library is defined here.

use std::ffi::{CStr, c_void};

use nix::errno::Errno;
use nix::libc::{c_int, ssize_t};

use crate::next::Next;

/// A function that this library defines, for [`super::lookup`].
#[derive(Debug)]
pub(super) struct Export {
    pub(super) name: &'static CStr,
    /// The function behind it.
    pub(super) next: &'static Next,
    /// Address of this library's function.
    pub(super) own: fn() -> *mut c_void,
}

/// A function's name as the dynamic linker wants it.
pub(super) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// What a function answers that is missing in the C library.
pub(super) trait Missing {
    fn missing() -> Self;
}

impl Missing for c_int {
    fn missing() -> Self {
        Errno::ENOSYS.set();
        -1
    }
}

impl Missing for ssize_t {
    fn missing() -> Self {
        Errno::ENOSYS.set();
        -1
    }
}

impl<T> Missing for *mut T {
    fn missing() -> Self {
        Errno::ENOSYS.set();
        std::ptr::null_mut()
    }
}

/// Defines functions of the C library and lists them as `EXPORTS`. In the body of each, `$next` is the function that the
/// program would have called without this library, with the same arguments; the arguments behind a semicolon are
/// variadic in C.
macro_rules! exports {
    ($( fn $name:ident($($arg:ident: $type:ty),* $(; $last:ident: $last_type:ty)?) -> $result:ty = |$next:ident| $body:expr; )*) => {
        $(
            mod $name {
                /// The function behind this library's.
                pub(super) static NEXT: $crate::next::Next =
                    $crate::next::Next::new($crate::exports::wrap::c_name(concat!(stringify!($name), "\0")));
            }

            /// Like the C library's function of this name.
            ///
            /// # Safety
            /// As for that function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $type,)* $($last: $last_type)?) -> $result {
                let $next = |$($arg: $type,)* $($last: $last_type)?| -> $result {
                    let address = $name::NEXT.address();
                    if address.is_null() {
                        return <$result as $crate::exports::wrap::Missing>::missing();
                    }
                    // SAFETY: the C library's function of this name has this signature.
                    let function = unsafe {
                        ::std::mem::transmute::<
                            *mut ::std::ffi::c_void,
                            exports!(@pointer ($($type,)*) $($last_type)?; $result),
                        >(address)
                    };
                    // SAFETY: the caller's promise is that of this function.
                    unsafe { function($($arg,)* $($last)?) }
                };
                // SAFETY: what the C library's function demands of its caller is what the body needs.
                #[allow(unused_unsafe, reason = "some bodies need no promise")]
                unsafe {
                    $body
                }
            }
        )*

        pub(super) const EXPORTS: &[$crate::exports::wrap::Export] = &[$(
            $crate::exports::wrap::Export {
                name: $crate::exports::wrap::c_name(concat!(stringify!($name), "\0")),
                next: &$name::NEXT,
                own: || $name as *mut ::std::ffi::c_void,
            },
        )*];
    };
    (@pointer ($($type:ty,)*) $last:ty; $result:ty) => { unsafe extern "C" fn($($type,)* ...) -> $result };
    (@pointer ($($type:ty,)*) ; $result:ty) => { unsafe extern "C" fn($($type,)*) -> $result };
}

pub(super) use exports;
