// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU's functions for plugins, found by name in the running program: its log, the images' directory, the mode of
//! freezing.
//!
//! INVARIANT: no function of CRIU is linked; the plugin works without a function that the host lacks. (`criu-plugin.h`
//! declares only `criu_get_image_dir`; `print_on_level` and, since 4.1, `set_compel_interrupt_only_mode` are exported
//! but internal, as are the functions of the inventory.)
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;

use nix::libc;

/// The level of a message, by CRIU's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    Error = 1,
    Warning = 2,
    Info = 3,
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: dlsym only reads the name, which is NUL-terminated, and takes no part of what it finds.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Writes a line to CRIU's log, if the host is CRIU.
pub(crate) fn log(level: Level, text: &str) {
    // In the form of CRIU's own messages: users and `stasis` look for the last line with `Error (`.
    let prefix = match level {
        Level::Error => "Error (stasis): ",
        Level::Warning => "Warn  (stasis): ",
        Level::Info => "stasis: ",
    };
    let line = format!("{prefix}{}\n", text.replace('\0', "?"));
    let (Some(found), Ok(line)) = (symbol(c"print_on_level"), CString::new(line)) else { return };
    // SAFETY: criu declares it `void print_on_level(unsigned int loglevel, const char *format, ...)` (criu-log.h); a
    // variadic function is called through a variadic type.
    let print = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_uint, *const c_char, ...)>(found)
    };
    // SAFETY: the format takes one string, and both live until it returns.
    unsafe { print(level as c_uint, c"%s".as_ptr(), line.as_ptr()) };
}

/// The directory of the images, if the host has one open. It stays open as long as hooks are called.
pub(crate) fn image_directory() -> Option<BorrowedFd<'static>> {
    let found = symbol(c"criu_get_image_dir")?;
    // SAFETY: criu declares it `int criu_get_image_dir(void)` (criu-plugin.h).
    let get = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(found) };
    // SAFETY: it takes nothing and looks a number up.
    let fd = unsafe { get() };
    // SAFETY: a service descriptor of criu's, which it closes after the last exit hook; every use is within a hook.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Has `--freeze-cgroup` seize task by task instead of freezing the group first: frozen tasks do not answer. Returns
/// whether the host can do so.
pub(crate) fn freeze_by_interrupts_only() -> bool {
    let Some(found) = symbol(c"set_compel_interrupt_only_mode") else { return false };
    // SAFETY: criu declares it `void set_compel_interrupt_only_mode(void)` (seize.h).
    let set = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(found) };
    // SAFETY: it sets a flag.
    unsafe { set() };
    true
}

/// This plugin's name for CRIU.
pub(crate) const NAME: &CStr = c"stasis";

/// Has CRIU note in its inventory that these images are not to be restored without this plugin. Returns whether it does.
pub(crate) fn require_plugin() -> bool {
    let Some(found) = symbol(c"add_inventory_plugin") else { return false };
    // SAFETY: criu declares it `int add_inventory_plugin(const char *name)` (image.h).
    let add =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_int>(found) };
    // SAFETY: it copies the name.
    unsafe { add(NAME.as_ptr()) == 0 }
}

/// Tells CRIU that this plugin is there, and returns whether the images are not to be restored without it.
pub(crate) fn attend_requirement() -> bool {
    let Some(found) = symbol(c"check_and_remove_inventory_plugin") else { return false };
    type Remove = unsafe extern "C" fn(*const c_char, usize) -> bool;
    // SAFETY: criu declares it `bool check_and_remove_inventory_plugin(const char *name, size_t n)` (image.h).
    let remove = unsafe { std::mem::transmute::<*mut c_void, Remove>(found) };
    // SAFETY: it compares `n` bytes of the name with those of its list.
    let is_listed = || unsafe { remove(NAME.as_ptr(), NAME.count_bytes()) };
    // Of images without a list it says yes as often as it is asked, of others once.
    is_listed() && !is_listed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_host_nothing_is_there_and_nothing_is_said() {
        log(Level::Error, "nobody hears \0 this");
        assert!(image_directory().is_none());
        assert!(!freeze_by_interrupts_only());
        assert!(!require_plugin());
        assert!(!attend_requirement());
    }
}
