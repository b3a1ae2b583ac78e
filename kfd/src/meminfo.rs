// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `/proc/meminfo` says of the machine's memory (Documentation/filesystems/proc.rst).

/// A field such as `MemAvailable` in bytes; `None` if the file or the field cannot be read.
#[must_use]
pub fn bytes(field: &str) -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?, field)
}

fn parse(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_in_kibibytes() {
        let total = |text| parse(text, "MemTotal");
        assert_eq!(total("MemTotal:       24000000 kB\nMemFree: 1 kB\n"), Some(24_576_000_000));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(total("MemTotalled: 1 kB\nMemTotal: 2 MB\n"), None);
        assert!(bytes("MemTotal") >= bytes("MemAvailable"));
    }
}
