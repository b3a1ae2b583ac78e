// SPDX-License-Identifier: MIT OR Apache-2.0
//! The macro that writes an ABI struct together with its size and offset assertions.

/// Declares a `repr(C)` plain-data struct; each field is preceded by the offset it must have.
macro_rules! abi_struct {
    (
        $(#[$meta:meta])*
        $name:ident: $size:literal {
            $( $(#[$field_meta:meta])* $offset:literal => $field:ident: $ty:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )*
        }

        impl Default for $name {
            /// All zero, as the driver clears what it was not given.
            fn default() -> Self {
                bytemuck::Zeroable::zeroed()
            }
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            $( assert!(std::mem::offset_of!($name, $field) == $offset); )*
        };
    };
}
