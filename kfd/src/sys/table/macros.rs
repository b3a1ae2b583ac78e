// SPDX-License-Identifier: MIT OR Apache-2.0
//! The macros that read the ioctl table.
//!
//! A row is `NUMBER KEY CONSTANT "NAME": DIRECTION STRUCT, KIND PART...;`. KIND is `plain` if the driver follows no
//! pointer of the struct, else `points`. A PART is one of:
//!
//! ```text
//! (reads POINTER: [ELEMENT; COUNT])            the driver reads an array whose length is in the u32 field COUNT
//! (writes POINTER: [ELEMENT; COUNT])           the driver also writes it
//!   ... [ELEMENT; u64 COUNT]                   the length is in a u64 field
//!   ... [ELEMENT; const N]                     the length is fixed
//!   ... [u32; bits COUNT, at most N]           COUNT counts bits, of which the driver looks at N
//!   ... [bytes; COUNT * SIZE]                  the elements' size is in the u32 field SIZE
//! (takes FIELD)                                the driver takes the descriptor in FIELD
//! (takes FIELD in POINTER: [ELEMENT; COUNT])   the same in each element of an array
//! (makes FIELD, close on exec by FLAGS)        the driver puts a new descriptor into FIELD
//! (makes FIELD, inheritable)                   the same, without O_CLOEXEC
//! (makes FIELD in POINTER: [ELEMENT; COUNT], inheritable)
//! (when FIELD is VALUE => PART...)             only for one operation
//! (when FIELD is VALUE, UNION as STRUCT => PART...)   the same; the parts' fields are those of STRUCT, in UNION
//! ```

/// The bytes of the field that `_` projects to.
pub(super) const fn field_bytes<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// The offset of a field that has this many bytes.
macro_rules! field {
    ($args:ty, $field:ident, $bytes:literal) => {{
        const { assert!($crate::sys::table::macros::field_bytes(|args: &$args| &args.$field) == $bytes) };
        std::mem::offset_of!($args, $field)
    }};
}

/// How long an array is, from a struct that begins at offset `$base`.
macro_rules! length {
    ($base:expr, $args:ty, [bytes; $count:ident * $element:ident]) => {
        Length::Product {
            count: $base + field!($args, $count, 4),
            element: $base + field!($args, $element, 4),
        }
    };
    ($base:expr, $args:ty, [u32; bits $count:ident, at most $most:expr]) => {
        Length::Bits { count: $base + field!($args, $count, 4), most: $most }
    };
    ($base:expr, $args:ty, [$element:ty; const $n:literal]) => {
        Length::Fixed($n * size_of::<$element>())
    };
    ($base:expr, $args:ty, [$element:ty; u64 $count:ident]) => {
        Length::Count64 { count: $base + field!($args, $count, 8), element: size_of::<$element>() }
    };
    ($base:expr, $args:ty, [$element:ty; $count:ident]) => {
        Length::Count32 { count: $base + field!($args, $count, 4), element: size_of::<$element>() }
    };
}

/// An array, named by a struct that begins at offset `$base`.
macro_rules! array {
    ($base:expr, $args:ty, $writable:literal, $pointer:ident, $length:tt) => {
        Array {
            pointer: $base + field!($args, $pointer, 8),
            length: length!($base, $args, $length),
            writable: $writable,
        }
    };
}

/// Where a descriptor's number stands.
macro_rules! place {
    ($base:expr, $args:ty, $field:ident) => {
        // An argument has fewer than 2^14 bytes.
        Place::Argument(queues::words::halves(queues::words::count($base + field!($args, $field, 4)))[0])
    };
    ($base:expr, $args:ty, $field:ident in $pointer:ident [$element:ty; $count:ident]) => {
        Place::Element {
            array: array!($base, $args, true, $pointer, [$element; $count]),
            element: size_of::<$element>(),
            at: field!($element, $field, 4),
        }
    };
}

/// A part of a row, from a struct that begins at offset `$base`.
macro_rules! part {
    ($base:expr, $args:ty, (reads $pointer:ident: $length:tt)) => {
        Part::Array(array!($base, $args, false, $pointer, $length))
    };
    ($base:expr, $args:ty, (writes $pointer:ident: $length:tt)) => {
        Part::Array(array!($base, $args, true, $pointer, $length))
    };
    ($base:expr, $args:ty, (takes $field:ident)) => {
        Part::Descriptor(place!($base, $args, $field))
    };
    ($base:expr, $args:ty, (takes $field:ident in $pointer:ident: [$element:ty; $count:ident])) => {
        Part::Descriptor(place!($base, $args, $field in $pointer [$element; $count]))
    };
    ($base:expr, $args:ty, (makes $field:ident, close on exec by $flags:ident)) => {
        Part::NewDescriptor(
            place!($base, $args, $field),
            CloseOnExec::Flags($base + field!($args, $flags, 4)),
        )
    };
    ($base:expr, $args:ty, (makes $field:ident, inheritable)) => {
        Part::NewDescriptor(place!($base, $args, $field), CloseOnExec::Never)
    };
    ($base:expr, $args:ty, (makes $field:ident in $pointer:ident: [$element:ty; $count:ident], inheritable)) => {
        Part::NewDescriptor(
            place!($base, $args, $field in $pointer [$element; $count]),
            CloseOnExec::Never,
        )
    };
    ($base:expr, $args:ty, (when $selector:ident is $value:expr => $(($($part:tt)+))+)) => {
        Part::Operation {
            selector: $base + field!($args, $selector, 4),
            value: $value,
            parts: &[ $( part!($base, $args, ($($part)+)), )+ ],
        }
    };
    ($base:expr, $args:ty, (when $selector:ident is $value:expr, $union:ident as $inner:ty => $(($($part:tt)+))+)) => {
        Part::Operation {
            selector: $base + field!($args, $selector, 4),
            value: $value,
            parts: &[ $( part!($base + std::mem::offset_of!($args, $union), $inner, ($($part)+)), )+ ],
        }
    };
}

/// Implements `PlainArgs` for a plain row.
macro_rules! kind {
    (plain $key:ident) => {
        const _: () = assert!(!Row::names_memory(<$key as Command>::ROW.parts));
        // SAFETY: the row says that the driver follows no pointer of the struct: each of its fields is a plain value,
        // a descriptor, or an address that the driver keeps (`kfd_ioctl.h`, `drm.h`, `amdgpu_drm.h`). The assertion
        // above finds a row that lists memory nevertheless.
        unsafe impl PlainArgs for $key {}
    };
    (points $key:ident) => {
        const _: () = assert!(Row::names_memory(<$key as Command>::ROW.parts));
    };
}

/// Reads a table: its constants, its enum of keys, and a module with a type for each key.
macro_rules! ioctls {
    (
        $(#[$meta:meta])* enum $keys:ident, types in $module:ident, type byte $base:expr;
        $(
            $(#[$doc:meta])*
            $nr:literal $key:ident $constant:ident $name:literal:
                $direction:expr, $args:ty, $kind:ident $( ( $($part:tt)+ ) )*;
        )*
    ) => {
        $( $(#[$doc])* pub const $constant: u32 = ioc($direction, $base, $nr, size_of::<$args>()); )*

        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $keys {
            $( $(#[$doc])* $key = $nr, )*
        }

        impl $keys {
            /// Every ioctl, in the order of their numbers.
            pub const ALL: &'static [Self] = &[ $( Self::$key, )* ];

            /// The ioctl with this number, if there is one.
            pub const fn from_number(nr: u32) -> Option<Self> {
                match nr {
                    $( $nr => Some(Self::$key), )*
                    _ => None,
                }
            }

            /// Its number.
            pub const fn number(self) -> u32 {
                self as u32
            }

            /// Its row.
            pub const fn row(self) -> &'static Row {
                match self {
                    $( Self::$key => <$module::$key as Command>::ROW, )*
                }
            }
        }

        /// The ioctls as types.
        pub mod $module {
            use super::*;

            $(
                $(#[$doc])*
                #[derive(Clone, Copy, Debug)]
                pub struct $key;

                // SAFETY: the constant is made with the size of `$args`. The row's parts were written from the kernel's
                // own handler of this ioctl (`kfd_chardev.c`, `kfd_debug.c`, `drm_ioctl.c`, `drm_prime.c`, amdgpu's
                // `amdgpu_gem.c`): they are all fields that it passes to copy_from_user, copy_to_user or fget.
                unsafe impl Command for $key {
                    type Args = $args;
                    const ROW: &'static Row = &Row {
                        name: $name,
                        command: $constant,
                        parts: &[ $( part!(0, $args, ($($part)+)), )* ],
                    };
                }

                kind!($kind $key);
            )*
        }
    };
}
