// SPDX-License-Identifier: MIT OR Apache-2.0
//! What CRIU will be flags, as far as it decides what CRIU refuses.

/// CRIU's own limit for deleted files it carries along, bytes (`--ghost-limit`).
const GHOST_LIMIT: u64 = 1 << 20;

/// The options of `criu dump` that lift a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpFlags {
    /// Established TCP connections are kept.
    pub tcp_established: bool,
    /// Established TCP connections are closed.
    pub tcp_close: bool,
    /// TCP connections nobody has accepted yet are left out.
    pub skip_in_flight: bool,
    /// Locks are kept.
    pub file_locks: bool,
    /// The process may belong to another session.
    pub shell_job: bool,
    /// Datagram sockets may have peers outside.
    pub ext_unix_sk: bool,
    /// Names may be given to files that have lost theirs.
    pub link_remap: bool,
    /// Without root.
    pub unprivileged: bool,
    /// Most bytes of a deleted file.
    pub ghost_limit: u64,
}

impl Default for DumpFlags {
    fn default() -> Self {
        Self {
            tcp_established: false,
            tcp_close: false,
            skip_in_flight: false,
            file_locks: false,
            shell_job: false,
            ext_unix_sk: false,
            link_remap: false,
            unprivileged: false,
            ghost_limit: GHOST_LIMIT,
        }
    }
}

impl DumpFlags {
    /// What these arguments of `criu dump` say; the rest of them is CRIU's to judge.
    pub fn from_args(args: &[String]) -> Self {
        let mut flags = Self::default();
        let mut words = args.iter();
        while let Some(word) = words.next() {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(n, v)| (n, Some(v)));
            match name {
                "--tcp-established" => flags.tcp_established = true,
                "--tcp-close" => flags.tcp_close = true,
                "--skip-in-flight" => flags.skip_in_flight = true,
                "--file-locks" | "-l" => flags.file_locks = true,
                "--shell-job" | "-j" => flags.shell_job = true,
                "--ext-unix-sk" | "-x" => flags.ext_unix_sk = true,
                "--link-remap" => flags.link_remap = true,
                "--unprivileged" => flags.unprivileged = true,
                "--ghost-limit" => {
                    let size = value.or_else(|| words.next().map(String::as_str)).and_then(parse_size);
                    flags.ghost_limit = size.unwrap_or(GHOST_LIMIT);
                }
                _ => {}
            }
        }
        flags
    }
}

/// A number with K, M or G behind it, as CRIU reads sizes.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].chars().next() {
        None => 0,
        Some('K' | 'k') => 10,
        Some('M' | 'm') => 20,
        Some('G' | 'g') => 30,
        Some(_) => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(args: &[&str]) -> DumpFlags {
        DumpFlags::from_args(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_read_and_others_passed_over() {
        assert_eq!(flags(&["-v4", "--display-stats"]), DumpFlags::default());
        let all = flags(&["--tcp-close", "--file-locks", "-j", "--ext-unix-sk", "--unprivileged"]);
        assert!(all.tcp_close && all.file_locks && all.shell_job && all.ext_unix_sk && all.unprivileged);
        assert!(!all.tcp_established && !all.link_remap);
    }

    #[test]
    fn ghost_limit_takes_both_spellings_and_units() {
        assert_eq!(flags(&["--ghost-limit", "64M", "--file-locks"]).ghost_limit, 64 << 20);
        assert!(flags(&["--ghost-limit", "64M", "--file-locks"]).file_locks);
        assert_eq!(flags(&["--ghost-limit=2G"]).ghost_limit, 2 << 30);
        assert_eq!(flags(&["--ghost-limit=4096"]).ghost_limit, 4096);
        assert_eq!(flags(&["--ghost-limit=nonsense"]).ghost_limit, GHOST_LIMIT);
        assert_eq!(flags(&[]).ghost_limit, 1 << 20);
    }
}
