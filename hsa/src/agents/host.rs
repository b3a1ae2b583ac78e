// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Linux says of the host's processors.

use std::fs;
use std::sync::OnceLock;

/// The processor's name, of `/proc/cpuinfo`.
pub fn name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or("CPU").to_owned()
}

/// Level and KiB of the first processor's data caches, read once.
pub fn caches() -> &'static [(u8, u32)] {
    static CACHES: OnceLock<Vec<(u8, u32)>> = OnceLock::new();
    CACHES.get_or_init(read_caches)
}

fn read_caches() -> Vec<(u8, u32)> {
    let read = |index: u32, file: &str| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}")).ok()
    };
    let cache = |index| {
        let (level, size) = (read(index, "level")?, read(index, "size")?);
        let is_data = read(index, "type")?.trim() != "Instruction";
        let kib = size.trim().strip_suffix('K')?.parse().ok()?;
        Some((level.trim().parse().ok()?, kib, is_data))
    };
    let all = (0..8).map_while(cache);
    all.filter(|(.., is_data)| *is_data).map(|(level, kib, _)| (level, kib)).collect()
}
