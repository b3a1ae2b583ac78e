// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlsym`: a program that looks up a function of the C library gets this library's, as a program that was linked to it
//! does. Python's ctypes looks up.

use std::ffi::{CStr, c_void};

use nix::libc::c_char;

use super::wrap::Export;
use super::{control, map, names, open, status};
use crate::{busy, next, run};

/// Every function that this library defines in place of the C library's.
const EXPORTS: [&[Export]; 5] =
    [open::EXPORTS, names::EXPORTS, status::EXPORTS, control::EXPORTS, map::EXPORTS];

/// Like the dynamic linker's function. `RTLD_NEXT` depends on who calls: such a call goes on to that function with the
/// caller's return address.
///
/// # Safety
/// As for that function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "endbr64",
        "cmp rdi, -1", // RTLD_NEXT
        "jne {wrapped}",
        "push rdi",
        "push rsi",
        "sub rsp, 8", // calls want 16-byte alignment
        "call {address}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        wrapped = sym wrapped,
        address = sym next::dlsym_address,
    )
}

unsafe extern "C" fn wrapped(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the program's promise: the name ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    let found = next::dlsym(handle, name);
    if found.is_null() || busy::is_inside() || run::current().is_none() {
        return found;
    }
    let export = EXPORTS.into_iter().flatten().find(|export| export.name == name);
    match export.filter(|export| export.next.address() == found) {
        Some(export) => (export.own)(),
        None => found,
    }
}
