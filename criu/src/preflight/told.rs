// SPDX-License-Identifier: MIT OR Apache-2.0
//! What CRIU will be told, as far as it decides what CRIU refuses.

/// CRIU's own limit for deleted files it carries along, bytes (`--ghost-limit`).
const GHOST_LIMIT: u64 = 1 << 20;

/// The options of `criu dump` that lift a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
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

impl Default for Told {
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

impl Told {
    /// What these arguments of `criu dump` say; the rest of them is CRIU's to judge.
    pub fn from_args(args: &[String]) -> Self {
        let mut told = Self::default();
        let mut words = args.iter();
        while let Some(word) = words.next() {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(n, v)| (n, Some(v)));
            match name {
                "--tcp-established" => told.tcp_established = true,
                "--tcp-close" => told.tcp_close = true,
                "--skip-in-flight" => told.skip_in_flight = true,
                "--file-locks" | "-l" => told.file_locks = true,
                "--shell-job" | "-j" => told.shell_job = true,
                "--ext-unix-sk" | "-x" => told.ext_unix_sk = true,
                "--link-remap" => told.link_remap = true,
                "--unprivileged" => told.unprivileged = true,
                "--ghost-limit" => {
                    let size = value.or_else(|| words.next().map(String::as_str)).and_then(parse_size);
                    told.ghost_limit = size.unwrap_or(GHOST_LIMIT);
                }
                _ => {}
            }
        }
        told
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

    fn told(args: &[&str]) -> Told {
        Told::from_args(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_read_and_others_passed_over() {
        assert_eq!(told(&["-v4", "--display-stats"]), Told::default());
        let all = told(&["--tcp-close", "--file-locks", "-j", "--ext-unix-sk", "--unprivileged"]);
        assert!(all.tcp_close && all.file_locks && all.shell_job && all.ext_unix_sk && all.unprivileged);
        assert!(!all.tcp_established && !all.link_remap);
    }

    #[test]
    fn ghost_limit_takes_both_spellings_and_units() {
        assert_eq!(told(&["--ghost-limit", "64M", "--file-locks"]).ghost_limit, 64 << 20);
        assert!(told(&["--ghost-limit", "64M", "--file-locks"]).file_locks);
        assert_eq!(told(&["--ghost-limit=2G"]).ghost_limit, 2 << 30);
        assert_eq!(told(&["--ghost-limit=4096"]).ghost_limit, 4096);
        assert_eq!(told(&["--ghost-limit=nonsense"]).ghost_limit, GHOST_LIMIT);
        assert_eq!(told(&[]).ghost_limit, 1 << 20);
    }
}
