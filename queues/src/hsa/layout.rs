// SPDX-License-Identifier: MIT OR Apache-2.0
//! The check that a structure has the layout of the C header that it is taken from.
//!
//! INVARIANT: a structure that differs does not compile.

/// Asserts a structure's size and the offsets of its fields at compile time.
macro_rules! assert_layout {
    ($type:ty, $size:literal, align $align:literal, { $($offset:literal $field:ident,)* }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            assert!(align_of::<$type>() == $align);
            $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
        };
    };
}
pub(super) use assert_layout;
