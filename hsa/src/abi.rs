// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every exported function is made of: its declaration, compared with the header's; its arguments; its status.
//!
//! INVARIANT: a function is exported by [`export!`] only, so it has the header's signature, and no panic leaves it. Pointers of the
//! caller become [`Out`], [`Answer`] or a slice, which are never null, before anything else is done with them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

pub use hsa_sys::Status;

/// The headers' declarations.
pub mod declared {
    pub use hsa_sys::newer::*;
    pub use hsa_sys::raw::*;
}

use declared::*;

/// What an exported function does, before it is a number.
pub type Outcome<T = ()> = Result<T, Status>;

pub const INVALID_ARGUMENT: Status = Status(HSA_STATUS_ERROR_INVALID_ARGUMENT);
pub const INVALID_AGENT: Status = Status(HSA_STATUS_ERROR_INVALID_AGENT);
pub const INVALID_SIGNAL: Status = Status(HSA_STATUS_ERROR_INVALID_SIGNAL);
pub const INVALID_QUEUE: Status = Status(HSA_STATUS_ERROR_INVALID_QUEUE);
pub const INVALID_ALLOCATION: Status = Status(HSA_STATUS_ERROR_INVALID_ALLOCATION);
pub const INVALID_POOL: Status = Status(HSA_STATUS_ERROR_INVALID_MEMORY_POOL);
pub const OUT_OF_RESOURCES: Status = Status(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
pub const NOT_INITIALIZED: Status = Status(HSA_STATUS_ERROR_NOT_INITIALIZED);
pub const NOT_SUPPORTED: Status = Status(HSA_STATUS_ERROR_NOT_SUPPORTED);
pub const ERROR: Status = Status(HSA_STATUS_ERROR);

/// Runs the body of an exported function.
pub fn call(body: impl FnOnce() -> Outcome) -> hsa_status_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => HSA_STATUS_SUCCESS,
        Ok(Err(status)) => status.0,
        // The panic's message is on stderr.
        Err(_) => HSA_STATUS_ERROR,
    }
}

/// The same for a function without a status; a panic gives the type's zero.
pub fn value<T: Default>(body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_default()
}

/// Exports functions under the names and with the signatures that the headers declare. The body of one without a return type is an
/// [`Outcome`], which becomes its status.
macro_rules! export {
    () => {};
    (
        $(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
        $($rest:tt)*
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the header says: pointers are null or valid for what the function does with them.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> hsa_sys::raw::hsa_status_t {
            $crate::abi::call(move || $body)
        }
        const _: [unsafe extern "C" fn($($type),*) -> hsa_sys::raw::hsa_status_t; 2] =
            [$crate::abi::declared::$name, $name];
        $crate::abi::export! { $($rest)* }
    };
    (
        $(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $returned:ty $body:block
        $($rest:tt)*
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the header says: pointers are null or valid for what the function does with them.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $returned {
            $crate::abi::value(move || $body)
        }
        const _: [unsafe extern "C" fn($($type),*) -> $returned; 2] = [$crate::abi::declared::$name, $name];
        $crate::abi::export! { $($rest)* }
    };
}
pub(crate) use export;

/// A pointer of the program's, which is given back to its functions only.
#[derive(Clone, Copy, Debug)]
pub struct Data(pub *mut c_void);

// SAFETY: nothing is done with it but giving it back.
unsafe impl Send for Data {}
// SAFETY: as above.
unsafe impl Sync for Data {}

/// The order of a compare-exchange that changes nothing, for the order of one that does.
pub fn unchanged(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::Release => Ordering::Relaxed,
        Ordering::AcqRel | Ordering::Acquire => Ordering::Acquire,
        _ => Ordering::SeqCst,
    }
}

/// Where a function puts what it made.
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Errors
    /// [`INVALID_ARGUMENT`] for null.
    ///
    /// # Safety
    /// The pointer is null or valid for a store of a `T` while this is used.
    pub unsafe fn new(pointer: *mut T) -> Outcome<Self> {
        NonNull::new(pointer).map(Self).ok_or(INVALID_ARGUMENT)
    }

    /// Stores.
    pub fn put(self, value: T) {
        // SAFETY: by the contract of `new`.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// Where a function puts an attribute, whose type the attribute's name decides.
#[derive(Clone, Copy, Debug)]
pub struct Answer(NonNull<u8>);

impl Answer {
    /// # Errors
    /// [`INVALID_ARGUMENT`] for null.
    ///
    /// # Safety
    /// The pointer is null or valid for a store of the attribute's type while this is used.
    pub unsafe fn new(pointer: *mut c_void) -> Outcome<Self> {
        NonNull::new(pointer.cast()).map(Self).ok_or(INVALID_ARGUMENT)
    }

    /// Stores a value of the attribute's type.
    pub fn put<T: Copy>(self, value: T) -> Outcome {
        // SAFETY: by the contract of `new`; the header's type for the attribute is `T`.
        unsafe { self.0.cast::<T>().write_unaligned(value) };
        Ok(())
    }

    /// Stores bytes.
    pub fn bytes(self, bytes: &[u8]) -> Outcome {
        // SAFETY: by the contract of `new`; the header's type for the attribute has this length.
        unsafe { self.0.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Stores text in an array of `N` characters, cut and ended with a zero.
    pub fn text<const N: usize>(self, text: &str) -> Outcome {
        let mut array = [0; N];
        for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
            *to = from;
        }
        self.bytes(&array)
    }
}

/// An array of the caller's. `size_of::<T>()` times `count` fits the address space by the contract.
///
/// # Errors
/// [`INVALID_ARGUMENT`] for null with a count, and for what is not aligned or longer than the address space.
///
/// # Safety
/// The pointer is null or names `count` values that nobody changes while the slice is used.
pub unsafe fn slice<'a, T>(pointer: *const T, count: usize) -> Outcome<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if pointer.is_null() || !pointer.is_aligned() || !fits {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: neither null nor unaligned nor too long; the rest by contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A string of the caller's.
///
/// # Errors
/// [`INVALID_ARGUMENT`] for null and for what is not UTF-8.
///
/// # Safety
/// The pointer is null or names a string that nobody changes while it is used.
pub unsafe fn string<'a>(pointer: *const c_char) -> Outcome<&'a str> {
    if pointer.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null; the rest by contract.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// Calls back for each of `items`, until one answers something else than success, which is then the answer.
pub fn each<T>(items: impl IntoIterator<Item = T>, mut callback: impl FnMut(T) -> hsa_status_t) -> Outcome {
    for item in items {
        match callback(item) {
            HSA_STATUS_SUCCESS => {}
            other => return Err(Status(other)),
        }
    }
    Ok(())
}
