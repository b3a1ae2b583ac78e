// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which function answers which KFD ioctl, and the rules that all of them share (`amdkfd/kfd_chardev.c`: `kfd_ioctl`).
//!
//! INVARIANT: a handler gets a zero-extended struct of the kernel's size. For commands with an out direction the struct
//! is copied back even when the handler fails. A call that is refused before the handler copies nothing back.

use kfd::sys::*;
use nix::errno::Errno;

use super::files::{Node, OpenFile};
use super::process::KfdProcess;
use super::typed::typed;
use super::{Call, Caller, FdTable, UserMemory};

type Handler = fn(&KfdProcess, &mut [u8], &Call<'_>) -> Result<u32, Errno>;

/// Names the handler of each ioctl. The ioctl table says which struct each takes; an ioctl of the table that is missing
/// here does not compile. One handler takes its struct with what follows it.
macro_rules! handlers {
    ($ioctl:expr; $with_tail:ident with its tail => $tail_handler:expr, $( $key:ident => $handler:expr, )*) => {
        match $ioctl {
            KfdIoctl::$with_tail => $tail_handler,
            $(
                KfdIoctl::$key => |process, bytes, call| {
                    typed::<kfd_ioctl::$key>(bytes, |args| $handler(process, args, call))
                },
            )*
        }
    };
}

/// The handler of an ioctl.
fn handler(ioctl: KfdIoctl) -> Handler {
    type P = KfdProcess;
    handlers! { ioctl;
        Svm with its tail => P::svm_ioctl,
        GetVersion => P::get_version,
        CreateQueue => P::create_queue,
        DestroyQueue => P::destroy_queue,
        SetMemoryPolicy => P::set_memory_policy,
        GetClockCounters => P::get_clock_counters,
        GetProcessApertures => P::get_process_apertures,
        UpdateQueue => P::update_queue,
        CreateEvent => P::create_event,
        DestroyEvent => P::destroy_event,
        SetEvent => P::set_event,
        ResetEvent => P::reset_event,
        WaitEvents => P::wait_events,
        DbgRegister => P::removed_debug_command,
        DbgUnregister => P::removed_debug_command,
        DbgAddressWatch => P::removed_debug_command,
        DbgWaveControl => P::removed_debug_command,
        SetScratchBackingVa => P::set_scratch_backing_va,
        GetTileConfig => P::get_tile_config,
        SetTrapHandler => P::set_trap_handler,
        GetProcessAperturesNew => P::get_process_apertures_new,
        AcquireVm => P::acquire_vm,
        AllocMemoryOfGpu => P::alloc_memory,
        FreeMemoryOfGpu => P::free_memory,
        MapMemoryToGpu => P::map_memory,
        UnmapMemoryFromGpu => P::unmap_memory,
        SetCuMask => P::set_cu_mask,
        GetQueueWaveState => P::get_queue_wave_state,
        GetDmabufInfo => P::get_dmabuf_info,
        ImportDmabuf => P::import_dmabuf,
        AllocQueueGws => P::alloc_queue_gws,
        SmiEvents => P::smi_events,
        SetXnackMode => P::set_xnack_mode,
        CriuOp => P::criu_op,
        AvailableMemory => P::available_memory,
        ExportDmabuf => P::export_dmabuf,
        RuntimeEnable => P::runtime_enable,
        DbgTrap => P::dbg_trap,
        CreateProcess => P::create_process,
        Profiler => P::profiler,
    }
}

/// Whether the kernel's table marks the ioctl with `KFD_IOC_FLAG_CHECKPOINT_RESTORE`.
fn needs_checkpoint_restore(ioctl: KfdIoctl) -> bool {
    ioctl == KfdIoctl::CriuOp
}

/// Answers an ioctl on any open file. The kernel's number, size and direction count, not those in the user's command.
///
/// # Errors
/// `ENOTTY` for a number beyond the kernel's table, `EINVAL` for a hole in it, `EBADF` and `EACCES` for a caller that
/// may not issue the ioctl, `EFAULT` when the argument is shorter than it says, else the handler's own.
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
        return Err(Errno::ENOTTY);
    }
    let ioctl = KfdIoctl::from_number(nr).ok_or(Errno::EINVAL)?;
    may_call(memory.caller(), needs_checkpoint_restore(ioctl))?;
    let row = ioctl.row();
    let user_bytes = ioc_size(cmd);
    let mut buffer = vec![0u8; row.argument_bytes().max(user_bytes)];
    if ioc_dir(row.command) & 1 != 0 {
        buffer[..user_bytes].copy_from_slice(arg.get(..user_bytes).ok_or(Errno::EFAULT)?);
    }
    if ioctl == KfdIoctl::Svm {
        validate_svm_size(&buffer, user_bytes)?;
    }
    let result = handler(ioctl)(process, &mut buffer, &Call { memory, fds });
    if ioc_dir(row.command) & 2 != 0 {
        // If the copy to the user fails, the answer is EFAULT, even if the handler succeeded and made an object.
        arg.get_mut(..user_bytes).ok_or(Errno::EFAULT)?.copy_from_slice(&buffer[..user_bytes]);
    }
    result
}

/// The SVM command's size must count its attributes (`kfd_ioctl_svm_validate`).
fn validate_svm_size(buffer: &[u8], user_bytes: usize) -> Result<(), Errno> {
    let fixed = size_of::<kfd_ioctl_svm_args>();
    let args: kfd_ioctl_svm_args = bytemuck::pod_read_unaligned(&buffer[..fixed]);
    let wanted = (args.nattr as usize).checked_mul(8).and_then(|attributes| attributes.checked_add(fixed));
    if wanted.is_some_and(|wanted| user_bytes >= wanted) { Ok(()) } else { Err(Errno::EINVAL) }
}

impl KfdProcess {
    /// Answers an ioctl. `arg` has as many bytes as `cmd` encodes. It is written as the kernel writes the user's
    /// struct: for commands with an out direction also on failure.
    ///
    /// # Errors
    /// The errno that the kernel answers.
    pub fn ioctl(
        &self,
        file: &OpenFile,
        cmd: u32,
        arg: &mut [u8],
        memory: &dyn UserMemory,
        fds: &dyn FdTable,
    ) -> Result<u32, Errno> {
        let result = ioctl(self, file, cmd, arg, memory, fds);
        if let Err(errno) = result {
            let name = kfd::sys::command_name(cmd);
            tracing::debug!(target: "driver", ioctl = name, errno = kfd::errno::to_raw(errno), "ioctl refused");
        }
        result
    }
}

/// Whether the caller may issue the ioctl, in the kernel's order of checks.
fn may_call(caller: Caller, checkpoint_restore: bool) -> Result<(), Errno> {
    // The kernel lets a ptracer issue CRIU_OP on a descriptor of the traced process, if it has the capability.
    match (caller.same_process, checkpoint_restore, caller.checkpoint_restore) {
        (false, false, _) | (false, true, false) => Err(Errno::EBADF),
        (true, true, false) => Err(Errno::EACCES),
        (true, ..) | (false, true, true) => Ok(()),
    }
}
