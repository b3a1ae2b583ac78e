// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which kernel's driver is imitated where kernels differ, or where all kernels lack what a process needs.

use std::fmt;
use std::str::FromStr;

use kfd::sys::{AMDKFD_COMMAND_END, KfdIoctl, drm_amdgpu_info_device, drm_amdgpu_info_hw_ip};
use queues::target::{CriuSupport, Target};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The environment variable that chooses the kernel.
pub const VARIABLE: &str = "SOFTGPU_KERNEL";

/// The imitated driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelModel {
    /// Linux 6.12: a memory fault takes all of the process's queues on that GPU off the hardware for good
    /// (`kfd_dqm_evict_pasid`), and every CRIU_OP PROCESS_INFO evicts once more. Of a queue of several XCCs CRIU_OP takes the
    /// first one's descriptor.
    V6_12,
    /// Linux 7.3: as 6.12, but PROCESS_INFO of a paused process evicts nothing more, and CRIU_OP takes and makes the descriptors
    /// of all XCCs.
    #[default]
    V7_3,
    /// A kernel that is not released yet: a fault stops only the queue that caused it, and CRIU_OP can restore the
    /// queues of chips whose scheduler is firmware (MES, gfx11 on).
    Fixed,
}

/// The variable names no kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{VARIABLE} is {0:?}; it can be 6.12, 7.3 (the default) or fixed")]
pub struct KernelModelError(String);

impl FromStr for KernelModel {
    type Err = KernelModelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "6.12" => Ok(Self::V6_12),
            "" | "7.3" => Ok(Self::V7_3),
            "fixed" => Ok(Self::Fixed),
            other => Err(KernelModelError(other.to_owned())),
        }
    }
}

impl fmt::Display for KernelModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V6_12 => "6.12",
            Self::V7_3 => "7.3",
            Self::Fixed => "fixed",
        })
    }
}

impl KernelModel {
    /// Reads `SOFTGPU_KERNEL`.
    ///
    /// # Errors
    /// [`KernelModelError`] when it names no kernel.
    pub fn from_env() -> Result<Self, KernelModelError> {
        std::env::var(VARIABLE).unwrap_or_default().parse()
    }

    /// The interface version that the driver reports: major and minor. Linux 6.12 reports 1.17 and Linux 7.3 reports
    /// 1.23. A kernel that is not released yet reports more; how much more says nothing of what it can do.
    #[must_use]
    pub fn interface_version(self) -> (u32, u32) {
        match self {
            Self::V6_12 => (1, 17),
            Self::V7_3 => (1, 23),
            Self::Fixed => (1, 24),
        }
    }

    /// Minor version of the render node's driver (`KMS_DRIVER_MINOR`); the major one is 3.
    pub(super) fn drm_minor(self) -> i32 {
        match self {
            Self::V6_12 => 59,
            Self::V7_3 | Self::Fixed => 64,
        }
    }

    /// The version that amdgpu says it has, as the render node's VERSION does.
    #[must_use]
    pub fn driver_version(self) -> String {
        format!("3.{}.0", self.drm_minor())
    }

    /// Whether GEM_VA knows sync objects: its argument grew from 40 bytes to 64 after Linux 6.12.
    pub(super) fn synchronizes_gem_va(self) -> bool {
        self != Self::V6_12
    }

    /// Whether GEM_LIST_HANDLES is a command; it is newer than Linux 6.12.
    pub(super) fn lists_handles(self) -> bool {
        self != Self::V6_12
    }

    /// Bytes of DEV_INFO's answer; it grew by the kinds of user queues in Linux 6.16.
    pub(super) fn device_info_bytes(self) -> usize {
        match self {
            Self::V6_12 => 440,
            Self::V7_3 | Self::Fixed => size_of::<drm_amdgpu_info_device>(),
        }
    }

    /// Bytes of HW_IP_INFO's answer; it grew by the number of user queues in Linux 6.16.
    pub(super) fn hw_ip_bytes(self) -> usize {
        match self {
            Self::V6_12 => 32,
            Self::V7_3 | Self::Fixed => size_of::<drm_amdgpu_info_hw_ip>(),
        }
    }

    /// First number that is no command (`AMDKFD_COMMAND_END`); CREATE_PROCESS is newer than Linux 6.12.
    pub(super) fn command_end(self) -> u32 {
        match self {
            Self::V6_12 => KfdIoctl::CreateProcess.number(),
            Self::V7_3 | Self::Fixed => AMDKFD_COMMAND_END,
        }
    }

    /// Whether a memory fault takes all queues of the process on the GPU off the hardware.
    pub(super) fn evicts_on_fault(self) -> bool {
        self != Self::Fixed
    }

    /// Whether PROCESS_INFO evicts the queues of a process again that is already paused.
    pub(super) fn evicts_again(self) -> bool {
        self == Self::V6_12
    }

    /// Whether CHECKPOINT can take a queue of this chip. gfx12 has no `checkpoint_mqd`.
    pub(super) fn dumps_queues(self, target: Option<&Target>) -> bool {
        self == Self::Fixed || target.is_some_and(|target| target.criu != CriuSupport::None)
    }

    /// Whether RESTORE can make a queue of this chip, of so many XCCs. On MES chips the kernel's RESTORE passes no write
    /// pointer buffer: Linux 7.3 answers EINVAL. Linux 6.12 follows a null pointer there; this device answers EINVAL too. The
    /// same answer stands for a queue that Linux 6.12 makes with the first XCC's descriptor alone.
    pub(super) fn restores_queues(self, target: Option<&Target>, xccs: u32) -> bool {
        let of_all_xccs = xccs <= 1 || self.knows_several_xccs();
        self == Self::Fixed || of_all_xccs && target.is_some_and(|target| !target.mes)
    }

    /// Whether CRIU_OP takes and makes the descriptors of all XCCs of a queue ("Fix checkpoint-restore on multi-xcc",
    /// Linux 6.18), with the control stack of an XCC of the node's own, in a part of a GPU too ("use node XCC count for v9 CRIU
    /// control stack restore", 2026). Between these two Linux wrote behind its own buffer there.
    pub(super) fn knows_several_xccs(self) -> bool {
        self != Self::V6_12
    }

    /// Whether a restored queue holds its buffers as a created queue does. Otherwise a client can unmap them while the
    /// queue runs.
    pub(super) fn holds_restored_buffers(self) -> bool {
        self == Self::Fixed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for model in [KernelModel::V6_12, KernelModel::V7_3, KernelModel::Fixed] {
            assert_eq!(model.to_string().parse(), Ok(model));
        }
        assert_eq!("".parse(), Ok(KernelModel::default()));
        assert_eq!(KernelModel::default(), KernelModel::V7_3, "a released kernel");
        assert!("5.4".parse::<KernelModel>().unwrap_err().to_string().contains("5.4"));
    }

    #[test]
    fn criu_support_is_the_chips_until_it_is_fixed() {
        let support = |kernel: KernelModel, name| {
            let target = Target::by_name(name);
            (kernel.dumps_queues(target), kernel.restores_queues(target, 1))
        };
        let several = |kernel: KernelModel| kernel.restores_queues(Target::by_name("gfx942"), 2);
        let kernels = [KernelModel::V6_12, KernelModel::V7_3, KernelModel::Fixed];
        assert_eq!(kernels.map(several), [false, true, true]);
        for kernel in [KernelModel::V6_12, KernelModel::V7_3] {
            assert_eq!(support(kernel, "gfx90a"), (true, true));
            assert_eq!(support(kernel, "gfx1030"), (true, true));
            assert_eq!(support(kernel, "gfx1100"), (true, false));
            assert_eq!(support(kernel, "gfx1201"), (false, false));
        }
        assert_eq!(support(KernelModel::Fixed, "gfx1201"), (true, true));
    }
}
