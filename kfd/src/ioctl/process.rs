// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wrappers of the ioctls about the process as a whole and its agents.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::call::{Issue, Slice};
use super::error::IoctlError;
use super::file::Kfd;
use crate::ids::GpuId;
use crate::sys::{self, kfd_ioctl};

/// The driver interface's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Always 1.
    pub major: u32,
    /// Grows with each addition.
    pub minor: u32,
}

/// Clocks read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockCounters {
    /// GPU ticks.
    pub gpu: u64,
    /// `CLOCK_MONOTONIC_RAW` nanoseconds.
    pub cpu: u64,
    /// `CLOCK_BOOTTIME` nanoseconds.
    pub system: u64,
    /// Ticks of `system` per second.
    pub system_frequency: u64,
}

/// How a GPU caches the default and the alternate aperture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MemoryPolicy {
    /// Whether the default aperture is not coherent.
    pub default_noncoherent: bool,
    /// Whether the alternate aperture is not coherent.
    pub alternate_noncoherent: bool,
    /// First address of the alternate aperture.
    pub alternate_base: u64,
    /// Its bytes.
    pub alternate_bytes: u64,
}

impl Kfd {
    /// GET_VERSION.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn get_version(&self) -> Result<Version, IoctlError> {
        let mut args = sys::kfd_ioctl_get_version_args::default();
        self.call_plain::<kfd_ioctl::GetVersion>(&mut args)?;
        Ok(Version { major: args.major_version, minor: args.minor_version })
    }

    /// GET_PROCESS_APERTURES_NEW, called first for the count. The GPU ids are the hardware's own.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn get_process_apertures_new(&self) -> Result<Vec<sys::kfd_process_device_apertures>, IoctlError> {
        type Command = kfd_ioctl::GetProcessAperturesNew;
        let mut args = sys::kfd_ioctl_get_process_apertures_new_args::default();
        self.call_with::<Command>(&mut args, &mut [])?;
        let mut apertures = vec![sys::kfd_process_device_apertures::default(); args.num_of_nodes as usize];
        if !apertures.is_empty() {
            let array = Slice::Write(bytemuck::cast_slice_mut(&mut apertures));
            self.call_with::<Command>(&mut args, &mut [array])?;
            apertures.truncate(args.num_of_nodes as usize);
        }
        Ok(apertures)
    }

    /// ACQUIRE_VM: makes the render node's VM this process' VM of `gpu`.
    ///
    /// # Errors
    /// [`IoctlError`]; EBUSY if another open file was acquired before.
    pub fn acquire_vm(&self, gpu: GpuId, render_node: BorrowedFd<'_>) -> Result<(), IoctlError> {
        let drm_fd = render_node.as_raw_fd().cast_unsigned();
        let mut args = sys::kfd_ioctl_acquire_vm_args { drm_fd, gpu_id: gpu.0 };
        self.call_plain::<kfd_ioctl::AcquireVm>(&mut args).map(drop)
    }

    /// SET_MEMORY_POLICY.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn set_memory_policy(&self, gpu: GpuId, policy: MemoryPolicy) -> Result<(), IoctlError> {
        let code = |noncoherent| {
            if noncoherent {
                sys::KFD_IOC_CACHE_POLICY_NONCOHERENT
            } else {
                sys::KFD_IOC_CACHE_POLICY_COHERENT
            }
        };
        let mut args = sys::kfd_ioctl_set_memory_policy_args {
            alternate_aperture_base: policy.alternate_base,
            alternate_aperture_size: policy.alternate_bytes,
            gpu_id: gpu.0,
            default_policy: code(policy.default_noncoherent),
            alternate_policy: code(policy.alternate_noncoherent),
            misc_process_flag: 0,
        };
        self.call_plain::<kfd_ioctl::SetMemoryPolicy>(&mut args).map(drop)
    }

    /// SET_TRAP_HANDLER: the GPU addresses of the second-level handler's code and data.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn set_trap_handler(&self, gpu: GpuId, code: u64, data: u64) -> Result<(), IoctlError> {
        let mut args =
            sys::kfd_ioctl_set_trap_handler_args { tba_addr: code, tma_addr: data, gpu_id: gpu.0, pad: 0 };
        self.call_plain::<kfd_ioctl::SetTrapHandler>(&mut args).map(drop)
    }

    /// SET_SCRATCH_BACKING_VA.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn set_scratch_backing_va(&self, gpu: GpuId, va: u64) -> Result<(), IoctlError> {
        let mut args = sys::kfd_ioctl_set_scratch_backing_va_args { va_addr: va, gpu_id: gpu.0, pad: 0 };
        self.call_plain::<kfd_ioctl::SetScratchBackingVa>(&mut args).map(drop)
    }

    /// SET_XNACK_MODE that only asks: whether retry faults are on.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn xnack_mode(&self) -> Result<bool, IoctlError> {
        let mut args = sys::kfd_ioctl_set_xnack_mode_args { xnack_enabled: -1 };
        self.call_plain::<kfd_ioctl::SetXnackMode>(&mut args)?;
        Ok(args.xnack_enabled > 0)
    }

    /// GET_CLOCK_COUNTERS; the GPU's counter is 0 if there is no such GPU.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn get_clock_counters(&self, gpu: GpuId) -> Result<ClockCounters, IoctlError> {
        let mut args = sys::kfd_ioctl_get_clock_counters_args { gpu_id: gpu.0, ..Default::default() };
        self.call_plain::<kfd_ioctl::GetClockCounters>(&mut args)?;
        Ok(ClockCounters {
            gpu: args.gpu_clock_counter,
            cpu: args.cpu_clock_counter,
            system: args.system_clock_counter,
            system_frequency: args.system_clock_freq,
        })
    }

    /// RUNTIME_ENABLE; `r_debug` is the address of the debugger's rendezvous struct or 0.
    ///
    /// # Errors
    /// [`IoctlError`]; EEXIST once there is a queue.
    pub fn runtime_enable(&self, r_debug: u64, save_ttmps: bool) -> Result<(), IoctlError> {
        let ttmps = if save_ttmps { sys::KFD_RUNTIME_ENABLE_MODE_TTMP_SAVE_MASK } else { 0 };
        let mode_mask = sys::KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK | ttmps;
        let mut args = sys::kfd_ioctl_runtime_enable_args { r_debug, mode_mask, capabilities_mask: 0 };
        self.call_plain::<kfd_ioctl::RuntimeEnable>(&mut args).map(drop)
    }

    /// RUNTIME_ENABLE with mode 0: undoes [`Kfd::runtime_enable`].
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn runtime_disable(&self) -> Result<(), IoctlError> {
        let mut args = sys::kfd_ioctl_runtime_enable_args::default();
        self.call_plain::<kfd_ioctl::RuntimeEnable>(&mut args).map(drop)
    }
}
