// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ioctl dispatcher: the table of commands and the rules all of them share (`kfd_chardev.c:kfd_ioctl`).
//!
//! INVARIANT: a handler sees a zero-extended struct of the kernel's size; what it leaves in there is copied back for
//! commands with an out direction even when it fails, while a refusal before the handler copies nothing.

use bytemuck::Pod;
use kfd::sys::*;
use rustix::io::Errno;

use super::files::{Node, OpenFile};
use super::process::{KfdProcess, may_call};
use super::{Call, FdTable, UserMemory};

type Handler = fn(&KfdProcess, &mut [u8], &Call<'_>) -> Result<u32, Errno>;

/// A row of the kernel's own table; its direction counts, not the one in the user's command.
struct Entry {
    bytes: usize,
    copy_in: bool,
    copy_out: bool,
    checkpoint_restore: bool,
    handler: Handler,
}

/// An entry for a command of the table in `kfd::sys`, whose handler takes the struct `$args`.
macro_rules! entry {
    ($command:ident, $args:ty, $handler:expr) => {{
        const { assert!(ioc_size($command) == size_of::<$args>()) };
        Entry {
            bytes: size_of::<$args>(),
            copy_in: ioc_dir($command) & 1 != 0,
            copy_out: ioc_dir($command) & 2 != 0,
            checkpoint_restore: ioc_nr($command) == ioc_nr(AMDKFD_IOC_CRIU_OP),
            handler: |process, bytes, call| typed::<$args>(bytes, |args| $handler(process, args, call)),
        }
    }};
}

/// Runs a handler on a struct and stores the struct again, whatever the handler answered.
pub(super) fn typed<T: Pod>(
    bytes: &mut [u8],
    handler: impl FnOnce(&mut T) -> Result<(), Errno>,
) -> Result<u32, Errno> {
    let bytes = bytes.get_mut(..size_of::<T>()).ok_or(Errno::FAULT)?;
    let mut args: T = bytemuck::pod_read_unaligned(bytes);
    let result = handler(&mut args);
    bytes.copy_from_slice(bytemuck::bytes_of(&args));
    result.map(|()| 0)
}

/// The command table. `None` is a hole.
#[rustfmt::skip]
fn lookup(nr: u32) -> Option<Entry> {
    type P = KfdProcess;
    Some(match nr {
        0x01 => entry!(AMDKFD_IOC_GET_VERSION, kfd_ioctl_get_version_args, P::get_version),
        0x02 => entry!(AMDKFD_IOC_CREATE_QUEUE, kfd_ioctl_create_queue_args, P::create_queue),
        0x03 => entry!(AMDKFD_IOC_DESTROY_QUEUE, kfd_ioctl_destroy_queue_args, P::destroy_queue),
        0x04 => entry!(AMDKFD_IOC_SET_MEMORY_POLICY, kfd_ioctl_set_memory_policy_args, P::set_memory_policy),
        0x05 => entry!(AMDKFD_IOC_GET_CLOCK_COUNTERS, kfd_ioctl_get_clock_counters_args, P::get_clock_counters),
        0x06 => entry!(AMDKFD_IOC_GET_PROCESS_APERTURES, kfd_ioctl_get_process_apertures_args, P::get_process_apertures),
        0x07 => entry!(AMDKFD_IOC_UPDATE_QUEUE, kfd_ioctl_update_queue_args, P::update_queue),
        0x08 => entry!(AMDKFD_IOC_CREATE_EVENT, kfd_ioctl_create_event_args, P::create_event),
        0x09 => entry!(AMDKFD_IOC_DESTROY_EVENT, kfd_ioctl_destroy_event_args, P::destroy_event),
        0x0a => entry!(AMDKFD_IOC_SET_EVENT, kfd_ioctl_set_event_args, P::set_event),
        0x0b => entry!(AMDKFD_IOC_RESET_EVENT, kfd_ioctl_reset_event_args, P::reset_event),
        0x0c => entry!(AMDKFD_IOC_WAIT_EVENTS, kfd_ioctl_wait_events_args, P::wait_events),
        0x0d => entry!(AMDKFD_IOC_DBG_REGISTER, [u32; 2], P::removed_debug_command),
        0x0e => entry!(AMDKFD_IOC_DBG_UNREGISTER, [u32; 2], P::removed_debug_command),
        0x0f => entry!(AMDKFD_IOC_DBG_ADDRESS_WATCH, [u32; 4], P::removed_debug_command),
        0x10 => entry!(AMDKFD_IOC_DBG_WAVE_CONTROL, [u32; 4], P::removed_debug_command),
        0x11 => entry!(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, kfd_ioctl_set_scratch_backing_va_args, P::set_scratch_backing_va),
        0x12 => entry!(AMDKFD_IOC_GET_TILE_CONFIG, kfd_ioctl_get_tile_config_args, P::get_tile_config),
        0x13 => entry!(AMDKFD_IOC_SET_TRAP_HANDLER, kfd_ioctl_set_trap_handler_args, P::set_trap_handler),
        0x14 => entry!(AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, kfd_ioctl_get_process_apertures_new_args, P::get_process_apertures_new),
        0x15 => entry!(AMDKFD_IOC_ACQUIRE_VM, kfd_ioctl_acquire_vm_args, P::acquire_vm),
        0x16 => entry!(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, kfd_ioctl_alloc_memory_of_gpu_args, P::alloc_memory),
        0x17 => entry!(AMDKFD_IOC_FREE_MEMORY_OF_GPU, kfd_ioctl_free_memory_of_gpu_args, P::free_memory),
        0x18 => entry!(AMDKFD_IOC_MAP_MEMORY_TO_GPU, kfd_ioctl_map_memory_to_gpu_args, P::map_memory),
        0x19 => entry!(AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, kfd_ioctl_unmap_memory_from_gpu_args, P::unmap_memory),
        0x1a => entry!(AMDKFD_IOC_SET_CU_MASK, kfd_ioctl_set_cu_mask_args, P::set_cu_mask),
        0x1b => entry!(AMDKFD_IOC_GET_QUEUE_WAVE_STATE, kfd_ioctl_get_queue_wave_state_args, P::get_queue_wave_state),
        0x1c => entry!(AMDKFD_IOC_GET_DMABUF_INFO, kfd_ioctl_get_dmabuf_info_args, P::get_dmabuf_info),
        0x1d => entry!(AMDKFD_IOC_IMPORT_DMABUF, kfd_ioctl_import_dmabuf_args, P::import_dmabuf),
        0x1e => entry!(AMDKFD_IOC_ALLOC_QUEUE_GWS, kfd_ioctl_alloc_queue_gws_args, P::alloc_queue_gws),
        0x1f => entry!(AMDKFD_IOC_SMI_EVENTS, kfd_ioctl_smi_events_args, P::smi_events),
        0x20 => entry!(AMDKFD_IOC_SVM, kfd_ioctl_svm_args, P::svm),
        0x21 => entry!(AMDKFD_IOC_SET_XNACK_MODE, kfd_ioctl_set_xnack_mode_args, P::set_xnack_mode),
        0x22 => entry!(AMDKFD_IOC_CRIU_OP, kfd_ioctl_criu_args, P::criu_op),
        0x23 => entry!(AMDKFD_IOC_AVAILABLE_MEMORY, kfd_ioctl_get_available_memory_args, P::available_memory),
        0x24 => entry!(AMDKFD_IOC_EXPORT_DMABUF, kfd_ioctl_export_dmabuf_args, P::export_dmabuf),
        0x25 => entry!(AMDKFD_IOC_RUNTIME_ENABLE, kfd_ioctl_runtime_enable_args, P::runtime_enable),
        0x26 => entry!(AMDKFD_IOC_DBG_TRAP, kfd_ioctl_dbg_trap_args, P::dbg_trap),
        0x27 => entry!(AMDKFD_IOC_CREATE_PROCESS, [u8; 0], P::create_process),
        0x28 => entry!(AMDKFD_IOC_PROFILER, kfd_ioctl_profiler_args, P::profiler),
        _ => return None,
    })
}

pub(super) fn ioctl(
    process: &KfdProcess,
    file: &OpenFile,
    cmd: u32,
    arg: &mut [u8],
    memory: &dyn UserMemory,
    fds: &dyn FdTable,
) -> Result<u32, Errno> {
    if let Node::Render { .. } = file.node() {
        return super::drm::ioctl(process, file, cmd, arg, &Call { memory, fds });
    }
    let nr = ioc_nr(cmd);
    if nr == 0 || nr >= process.kernel.command_end() {
        return Err(Errno::NOTTY);
    }
    let entry = lookup(nr).ok_or(Errno::INVAL)?;
    may_call(memory.caller(), entry.checkpoint_restore)?;
    let user_bytes = ioc_size(cmd);
    let mut buffer = vec![0u8; entry.bytes.max(user_bytes)];
    if entry.copy_in {
        buffer[..user_bytes].copy_from_slice(arg.get(..user_bytes).ok_or(Errno::FAULT)?);
    }
    if nr == ioc_nr(AMDKFD_IOC_SVM) {
        validate_svm_size(&buffer, user_bytes)?;
    }
    let result = (entry.handler)(process, &mut buffer, &Call { memory, fds });
    if entry.copy_out {
        // A failing copy-out turns any answer into EFAULT, a successful one's object included.
        arg.get_mut(..user_bytes).ok_or(Errno::FAULT)?.copy_from_slice(&buffer[..user_bytes]);
    }
    result
}

/// The SVM command's size must count its attributes (`kfd_ioctl_svm_validate`).
fn validate_svm_size(buffer: &[u8], user_bytes: usize) -> Result<(), Errno> {
    let fixed = size_of::<kfd_ioctl_svm_args>();
    let args: kfd_ioctl_svm_args = bytemuck::pod_read_unaligned(&buffer[..fixed]);
    let wanted = (args.nattr as usize).checked_mul(8).and_then(|attributes| attributes.checked_add(fixed));
    if wanted.is_some_and(|wanted| user_bytes >= wanted) { Ok(()) } else { Err(Errno::INVAL) }
}
