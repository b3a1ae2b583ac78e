// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one table of what is taken from the vendor's library.
#![allow(unsafe_code)]

use crate::raw;
use libloading::Library;
use std::ffi::c_char;
use std::ffi::c_void;

type AgentCallback = unsafe extern "C" fn(raw::hsa_agent_t, *mut c_void) -> raw::hsa_status_t;
type IsaCallback = unsafe extern "C" fn(raw::hsa_isa_t, *mut c_void) -> raw::hsa_status_t;

macro_rules! symbols {
    (
        required { $($(#[$required_doc:meta])* $required:ident: $required_type:ty;)* }
        optional { $($(#[$optional_doc:meta])* $optional:ident: $optional_type:ty;)* }
    ) => {
        /// Functions of the vendor's library. Those in an `Option` are missing in some releases.
        #[derive(Debug, Clone, Copy)]
        #[non_exhaustive]
        pub struct Symbols {
            $($(#[$required_doc])* pub $required: $required_type,)*
            $($(#[$optional_doc])* pub $optional: Option<$optional_type>,)*
        }

        // The header decides what a function is; a table that says otherwise does not compile.
        $(const _: $required_type = raw::$required;)*
        $(const _: $optional_type = raw::$optional;)*

        impl Symbols {
            /// Names without which a library is of no use.
            pub const REQUIRED: &'static [&'static str] = &[$(stringify!($required)),*];
            /// Names that may be missing.
            pub const OPTIONAL: &'static [&'static str] = &[$(stringify!($optional)),*];

            /// Looks all of them up; the error lists every required one that is missing.
            pub(crate) fn resolve(library: &Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the type is the header's, see above; the library stays loaded for good.
                    let $required = unsafe { lookup::<$required_type>(library, stringify!($required)) };
                    if $required.is_none() {
                        missing.push(stringify!($required));
                    }
                )*
                match ($($required,)*) {
                    ($(Some($required),)*) => Ok(Self {
                        $($required,)*
                        // SAFETY: the type is the header's, see above; the library stays loaded for good.
                        $($optional: unsafe { lookup::<$optional_type>(library, stringify!($optional)) },)*
                    }),
                    _ => Err(missing),
                }
            }
        }
    };
}

symbols! {
    required {
        /// Starts the runtime; counted.
        hsa_init: unsafe extern "C" fn() -> raw::hsa_status_t;
        /// Ends what one `hsa_init` started.
        hsa_shut_down: unsafe extern "C" fn() -> raw::hsa_status_t;
        /// The text for a status.
        hsa_status_string: unsafe extern "C" fn(raw::hsa_status_t, *mut *const c_char) -> raw::hsa_status_t;
        /// Calls back for every agent.
        hsa_iterate_agents: unsafe extern "C" fn(Option<AgentCallback>, *mut c_void) -> raw::hsa_status_t;
        /// An attribute of an agent.
        hsa_agent_get_info:
            unsafe extern "C" fn(raw::hsa_agent_t, raw::hsa_agent_info_t, *mut c_void) -> raw::hsa_status_t;
    }
    optional {
        /// Calls back for every instruction set of an agent.
        hsa_agent_iterate_isas:
            unsafe extern "C" fn(raw::hsa_agent_t, Option<IsaCallback>, *mut c_void) -> raw::hsa_status_t;
        /// An attribute of an instruction set.
        hsa_isa_get_info_alt:
            unsafe extern "C" fn(raw::hsa_isa_t, raw::hsa_isa_info_t, *mut c_void) -> raw::hsa_status_t;
        /// An attribute of the runtime.
        hsa_system_get_info:
            unsafe extern "C" fn(raw::hsa_system_info_t, *mut c_void) -> raw::hsa_status_t;
    }
}

/// # Safety
/// `T` is the function pointer type of the symbol, and the library is never unloaded.
unsafe fn lookup<T: Copy>(library: &Library, name: &str) -> Option<T> {
    // SAFETY: the caller vouches for the type.
    unsafe { library.get::<T>(name) }.ok().map(|symbol| *symbol)
}
