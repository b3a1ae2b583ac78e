// SPDX-License-Identifier: MIT OR Apache-2.0
//! The vendor's HSA runtime as others see it: its types, generated from its headers, and a loader for its library.
//!
//! The generated file is kept (`src/bindings.rs`), so that a build needs neither headers nor libclang; a test generates it
//! anew and compares.
//!
//! Nothing links against the vendor's library: a program that uses this crate starts without it and learns what is
//! missing from one error. INVARIANT: every function of the library is called through [`Symbols`], whose types the
//! compiler has compared with the headers' declarations.
//!
//! ```no_run
//! let runtime = hsa_sys::VendorRuntime::open(&hsa_sys::SearchOptions::from_env(None))?;
//! for agent in runtime.agents()? {
//!     println!("{} {} {:?}", agent.name, agent.product, agent.isas);
//! }
//! # Ok::<(), hsa_sys::VendorError>(())
//! ```
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(unsafe_code)]
#![deny(missing_docs)]

mod loader;
mod status;
mod symbols;
mod vendor;

pub use loader::Attempt;
pub use loader::LoadError;
pub use loader::Loader;
pub use loader::Reason;
pub use loader::SearchOptions;
pub use status::Status;
pub use symbols::Symbols;
pub use vendor::DeviceType;
pub use vendor::VendorAgent;
pub use vendor::VendorError;
pub use vendor::VendorRuntime;

#[allow(non_camel_case_types, unsafe_code, reason = "names of the vendor's headers")]
pub mod newer;

/// The declarations of `hsa.h`, its extensions and the `amd_hsa_*.h` layouts, under their C names.
#[allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    unsafe_code,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::ptr_as_ptr,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]
pub mod raw {
    include!("bindings.rs");
}
