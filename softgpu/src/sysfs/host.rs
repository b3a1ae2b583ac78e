// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the machine under the device really has: processors, memory, clock.
//!
//! INVARIANT: read once; a file that cannot be read or parsed counts as the smallest sensible value, never an error.

use std::fs;

/// The host, as KFD's CPU node describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Logical processors online.
    pub cores: u32,
    /// Memory in bytes (`MemTotal`).
    pub ram_bytes: u64,
    /// Highest clock in MHz; 0 when the machine has no cpufreq driver, as `cpufreq_quick_get_max` says.
    pub max_mhz: u32,
}

/// The part of system memory KFD leaves alone (`AMDGPU_RESERVE_MEM_LIMIT`), bytes.
const RESERVED: u64 = 3 << 29;

impl Host {
    /// Looks at the machine.
    pub fn read() -> Self {
        let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
        let cores = online.as_deref().and_then(count_list).unwrap_or_else(|| {
            let seen = std::thread::available_parallelism().map_or(1, usize::from);
            u32::try_from(seen).unwrap_or(u32::MAX)
        });
        let ram_bytes = kfd::meminfo::bytes("MemTotal").unwrap_or(1 << 30);
        let khz = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").ok();
        let max_mhz = khz.and_then(|khz| khz.trim().parse::<u32>().ok()).map_or(0, |khz| khz / 1000);
        Self { cores, ram_bytes, max_mhz }
    }

    /// Bytes KFD lets all processes together pin in system memory (`amdgpu_amdkfd_gpuvm_init_mem_limits`).
    pub fn system_memory_limit(&self) -> u64 {
        let limit = self.ram_bytes - (self.ram_bytes >> 6);
        if limit < 2 * RESERVED { limit / 2 } else { limit - RESERVED }
    }

    /// Bytes TTM manages: half of memory, its default.
    pub fn ttm_limit(&self) -> u64 {
        self.ram_bytes / 2
    }
}

/// Counts a list like `0-3,8`.
fn count_list(list: &str) -> Option<u32> {
    list.trim().split(',').try_fold(0u32, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_list_reads_ranges() {
        assert_eq!(count_list("0-3,8\n"), Some(5));
        assert_eq!(count_list("0"), Some(1));
        assert_eq!(count_list("3-0"), None);
        assert_eq!(count_list(""), None);
    }

    #[test]
    fn read_finds_a_machine() {
        let host = Host::read();
        assert!(host.cores >= 1 && host.ram_bytes > 1 << 27);
        assert!(host.system_memory_limit() < host.ram_bytes);
    }
}
