// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ioctls about a GPU or the process as a whole: version, clocks, apertures, address space, policies, runtime.
//!
//! INVARIANT: these ioctls store or return values. None of them changes how queues run.

use queues::words::count;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kfd::sys::*;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use super::mmap::acquired_file;
use super::process::{KfdProcess, MemoryPolicy};
use super::{Call, FdPlace};
use crate::misbehaviour::Misbehaviour;

/// Windows of gfx9 and later (`kfd_flat_memory.c`): each 4 GiB, above all user addresses.
const LDS_BASE: u64 = 0x0001_0000_0000_0000;
const SCRATCH_BASE: u64 = 0x0002_0000_0000_0000;
const WINDOW: u64 = 0xffff_ffff;
/// First and last address a buffer may have.
pub(super) const GPUVM_BASE: u64 = 0x1_0000;
const GPUVM_LIMIT: u64 = 0x7fff_ffff_ffff;
/// Entries of the tile tables, all zero since gfx9.
const TILE_CONFIGS: u32 = 32;
const MACRO_TILE_CONFIGS: u32 = 16;
/// What PROFILER says of itself.
const PROFILER_VERSION: u32 = 1;
/// Nanoseconds per second.
const NS: u64 = 1_000_000_000;

impl KfdProcess {
    pub(super) fn get_version(
        &self,
        args: &mut kfd_ioctl_get_version_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        (args.major_version, args.minor_version) = self.kernel.interface_version();
        if Misbehaviour::Interface.is_on() {
            args.major_version += 1;
        }
        Ok(())
    }

    pub(super) fn get_clock_counters(
        &self,
        args: &mut kfd_ioctl_get_clock_counters_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        // An unknown GPU is no error: only its counter stays 0.
        args.gpu_clock_counter = self.gpu_by_id(args.gpu_id).map_or(0, |gpu| self.hardware.clock(gpu));
        let ahead = self.clock_offset.load(Ordering::Relaxed);
        args.cpu_clock_counter = nanoseconds(ClockId::CLOCK_MONOTONIC_RAW).saturating_add_signed(ahead);
        args.system_clock_counter = nanoseconds(ClockId::CLOCK_BOOTTIME).saturating_add_signed(ahead);
        args.system_clock_freq = NS;
        Ok(())
    }

    pub(super) fn get_process_apertures(
        &self,
        args: &mut kfd_ioctl_get_process_apertures_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        args.num_of_nodes = 0;
        for (slot, gpu) in args.process_apertures.iter_mut().zip(self.gpus.iter()) {
            *slot = apertures(gpu.gpu_id());
            args.num_of_nodes += 1;
        }
        Ok(())
    }

    pub(super) fn get_process_apertures_new(
        &self,
        args: &mut kfd_ioctl_get_process_apertures_new_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let gpus = count(self.gpus.len());
        if args.num_of_nodes == 0 {
            args.num_of_nodes = gpus;
            return Ok(());
        }
        // Topology devices: the GPUs and the CPUs, a node each. Clients give the number of the topology's directories.
        let cpus = self.gpus.first().map_or(1, |gpu| count(gpu.cpu_nodes()));
        if args.num_of_nodes > gpus + cpus {
            return Err(Errno::EINVAL);
        }
        let wanted = args.num_of_nodes.min(gpus);
        let entries: Vec<_> =
            self.gpus.iter().take(wanted as usize).map(|gpu| apertures(gpu.gpu_id())).collect();
        args.num_of_nodes = wanted;
        call.memory.write(args.kfd_process_device_apertures_ptr, bytemuck::cast_slice(&entries))
    }

    pub(super) fn acquire_vm(
        &self,
        args: &mut kfd_ioctl_acquire_vm_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        const DRM_FD: u16 = KfdIoctl::AcquireVm.row().descriptor_field();
        let fd = call.fds.take_in(FdPlace::Field(DRM_FD)).ok_or(Errno::EINVAL)?;
        let gpu = self.gpu_by_id(args.gpu_id)?;
        let mut state = self.state.lock();
        let file = acquired_file(&state, &fd);
        if let Some(acquired) = state.pdds[gpu].render {
            let is_same = file.is_some_and(|(file, _)| file == acquired) && !Misbehaviour::Checkpoint.is_on();
            return if is_same { Ok(()) } else { Err(Errno::EBUSY) };
        }
        match file {
            Some((file, of_gpu)) if of_gpu == gpu => {
                state.pdds[gpu].render = Some(file);
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn set_memory_policy(
        &self,
        args: &mut kfd_ioctl_set_memory_policy_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let known =
            |policy| matches!(policy, KFD_IOC_CACHE_POLICY_COHERENT | KFD_IOC_CACHE_POLICY_NONCOHERENT);
        if !known(args.default_policy) || !known(args.alternate_policy) {
            return Err(Errno::EINVAL);
        }
        let gpu = self.gpu_by_id(args.gpu_id)?;
        let mut state = self.state.lock();
        state.bound(gpu).map_err(|_| Errno::ESRCH)?.settings.memory_policy = MemoryPolicy {
            default: args.default_policy,
            alternate: args.alternate_policy,
            alternate_base: args.alternate_aperture_base,
            alternate_bytes: args.alternate_aperture_size,
        };
        Ok(())
    }

    pub(super) fn set_trap_handler(
        &self,
        args: &mut kfd_ioctl_set_trap_handler_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let gpu = self.gpu_by_id(args.gpu_id)?;
        let mut state = self.state.lock();
        let pdd = state.bound(gpu).map_err(|_| Errno::ESRCH)?;
        pdd.settings.trap_handler = (args.tba_addr, args.tma_addr);
        self.hardware.set_trap_handler(gpu, args.tba_addr, args.tma_addr);
        Ok(())
    }

    pub(super) fn set_scratch_backing_va(
        &self,
        args: &mut kfd_ioctl_set_scratch_backing_va_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let gpu = self.gpu_by_id(args.gpu_id)?;
        self.state.lock().bound(gpu)?.settings.scratch_va = args.va_addr;
        Ok(())
    }

    pub(super) fn get_tile_config(
        &self,
        args: &mut kfd_ioctl_get_tile_config_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let gpu = self.gpu_by_id(args.gpu_id)?;
        args.gb_addr_config = self.gpus[gpu].gb_addr_config();
        args.num_banks = 0;
        args.num_ranks = 0;
        args.num_tile_configs = args.num_tile_configs.min(TILE_CONFIGS);
        if call.memory.write(args.tile_config_ptr, &vec![0; 4 * args.num_tile_configs as usize]).is_err() {
            args.num_tile_configs = 0;
            return Err(Errno::EFAULT);
        }
        args.num_macro_tile_configs = args.num_macro_tile_configs.min(MACRO_TILE_CONFIGS);
        let zeros = vec![0; 4 * args.num_macro_tile_configs as usize];
        if call.memory.write(args.macro_tile_config_ptr, &zeros).is_err() {
            args.num_macro_tile_configs = 0;
            return Err(Errno::EFAULT);
        }
        Ok(())
    }

    pub(super) fn set_xnack_mode(
        &self,
        args: &mut kfd_ioctl_set_xnack_mode_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        // gfx11 cannot retry faults: the only mode is off.
        if args.xnack_enabled < 0 {
            args.xnack_enabled = 0;
        } else if !self.state.lock().queues.is_empty() {
            return Err(Errno::EBUSY);
        } else if args.xnack_enabled != 0 {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    pub(super) fn runtime_enable(
        &self,
        args: &mut kfd_ioctl_runtime_enable_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if args.mode_mask & KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK == 0 {
            state.runtime = super::process::Runtime::default();
            return Ok(());
        }
        if state.runtime.enabled {
            return Err(Errno::EBUSY);
        }
        if state.pdds.iter().any(|pdd| pdd.queue_count > 0) {
            return Err(Errno::EEXIST);
        }
        state.runtime.enabled = true;
        state.runtime.r_debug = args.r_debug;
        state.runtime.ttmp_setup = args.mode_mask & KFD_RUNTIME_ENABLE_MODE_TTMP_SAVE_MASK != 0;
        Ok(())
    }

    /// The debugger interface before KFD 1.13, which KFD refuses since.
    pub(super) fn removed_debug_command<T>(&self, _args: &mut T, _call: &Call<'_>) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// The debugger interface is not modelled; the answer is that of a kernel without a hardware scheduler.
    pub(super) fn dbg_trap(
        &self,
        _args: &mut kfd_ioctl_dbg_trap_args,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Secondary contexts are not modelled; the answer is the one for a file that already is a secondary context.
    pub(super) fn create_process(&self, _args: &mut [u8; 0], _call: &Call<'_>) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// The profiler's version. Its locks need `perfmon_capable`, which no client has here.
    pub(super) fn profiler(&self, args: &mut kfd_ioctl_profiler_args, _call: &Call<'_>) -> Result<(), Errno> {
        match args.op {
            KFD_IOC_PROFILER_PMC => Err(Errno::EPERM),
            KFD_IOC_PROFILER_VERSION => {
                args.args[0] = PROFILER_VERSION;
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

fn apertures(gpu_id: u32) -> kfd_process_device_apertures {
    kfd_process_device_apertures {
        lds_base: LDS_BASE,
        lds_limit: LDS_BASE | WINDOW,
        scratch_base: SCRATCH_BASE,
        scratch_limit: SCRATCH_BASE | WINDOW,
        gpuvm_base: GPUVM_BASE,
        gpuvm_limit: if Misbehaviour::Apertures.is_on() { GPUVM_BASE } else { GPUVM_LIMIT },
        gpu_id,
        pad: 0,
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    // The kernel has these clocks, which count from boot, so that no part is negative.
    let time = clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
    time.as_secs().saturating_mul(NS).saturating_add(time.subsec_nanos().into())
}
