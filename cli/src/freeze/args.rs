// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `stasis checkpoint` and `stasis restore` are told.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use stasis::checkpoint::{Admission, Lazy, OnStranded, Place};
use stasis::criu::{CriuOptions, NetworkLock, Trust, has_terminal};

use super::outcome::directory_bytes;
use crate::transfer::{self, DestinationArgs, Obtained, SourceArgs};

/// Arguments of `stasis checkpoint`.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// The process to freeze, with all its descendants.
    pub(crate) pid: i32,
    /// Directory for the images: must be empty or not exist. With --store, the checkpoint's name there.
    pub(crate) directory: PathBuf,
    /// Freeze these process trees with it, as one session: the memory they share stays shared. Each gets a directory of
    /// its own in DIRECTORY, named after its root.
    #[arg(long, visible_alias = "with", value_name = "PID", value_delimiter = ',')]
    pub(crate) session: Vec<i32>,
    /// Let the process run on afterwards.
    #[arg(long)]
    pub(crate) leave_running: bool,
    /// Stop kernels in the middle instead of waiting for their end.
    #[arg(long)]
    pub(crate) preempt: bool,
    /// How long the queues may take to stop.
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    pub(crate) deadline_ms: u64,
    /// How long writing the buffers may take; ten minutes unless given.
    #[arg(long, value_name = "MS")]
    pub(crate) write_deadline_ms: Option<u64>,
    /// How long CRIU may take; then it is ended and the process runs on. Ten minutes unless given, and a second more for
    /// every 10 MiB of memory of the processes.
    #[arg(long, value_name = "MS", conflicts_with = "no_dump")]
    pub(crate) criu_deadline_ms: Option<u64>,
    /// How long the process waits for CRIU before it runs on by itself.
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    pub(crate) lease_ms: u64,
    /// What a process does that cannot have its device back because its render files are gone: wait with its gate shut,
    /// or exit with status 75 if its checkpoint is complete, so that `stasis restore` can take its place.
    #[arg(long, default_value = "wait", value_name = "wait|exit", value_parser = on_stranded)]
    pub(crate) on_stranded: OnStranded,
    /// How long it waits before it exits.
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    pub(crate) stranded_ms: u64,
    /// Put the buffers into the process's own memory, so that CRIU's images alone are the whole checkpoint (slower).
    #[arg(long)]
    pub(crate) self_contained: bool,
    /// An earlier checkpoint, on the same file system: what it has of the buffers is not written again. The new one does not need it
    /// afterwards.
    #[arg(long, value_name = "DIR", conflicts_with = "self_contained")]
    pub(crate) parent: Option<PathBuf>,
    /// Copy the buffers while the process runs, and again what has changed meanwhile, up to ROUNDS times (3 unless given); then the
    /// process is stopped for what has changed since, and to look through the rest.
    #[arg(
        long,
        value_name = "ROUNDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "3",
        value_parser = clap::value_parser!(u32).range(1..=100),
        conflicts_with = "self_contained"
    )]
    pub(crate) pre_copy: Option<u32>,
    #[command(flatten)]
    pub(crate) destination: DestinationArgs,
    /// Stop once the device is closed, and leave the dump to a `criu` of your own within the lease.
    #[arg(long, conflicts_with_all = ["leave_running", "self_contained"])]
    pub(crate) no_dump: bool,
    #[command(flatten)]
    pub(crate) criu: CriuArgs,
    /// Show how long the process stood still for what.
    #[arg(long, conflicts_with = "json")]
    pub(crate) timings: bool,
    /// More arguments for `criu dump` (repeat as needed).
    #[arg(long = "criu-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) criu_args: Vec<String>,
    /// Do not look first for what CRIU or the runtime would refuse (`stasis preflight`).
    #[arg(long)]
    pub(crate) no_preflight: bool,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What CRIU is to be told of the process.
#[derive(Clone, Debug, Args)]
pub struct CriuArgs {
    /// Keep established TCP connections; their peers notice a pause.
    #[arg(long, conflicts_with = "tcp_close")]
    pub(crate) tcp_established: bool,
    /// Reset established TCP connections; listening sockets stay.
    #[arg(long)]
    pub(crate) tcp_close: bool,
    /// How packets are kept from the connections meanwhile: nftables (the default), iptables or skip.
    #[arg(long, value_name = "METHOD", value_parser = network_lock)]
    pub(crate) network_lock: Option<NetworkLock>,
    /// Keep file locks.
    #[arg(long)]
    pub(crate) file_locks: bool,
    /// As an ordinary user, with CAP_CHECKPOINT_RESTORE (and CAP_SETPCAP, if the process cannot have every capability).
    #[arg(long)]
    pub(crate) unprivileged: bool,
}

/// What CRIU has to move at least in a second, bytes, before a deadline that nobody gave ends it.
const RATE: u64 = 10 << 20;

/// A limit as it was given, else a base and the time that so many bytes take.
fn limit(given: Option<u64>, base: Duration, bytes: u64) -> Duration {
    given.map_or_else(|| base + Duration::from_secs(bytes / RATE), Duration::from_millis)
}

impl CheckpointArgs {
    /// The roots of all trees.
    pub(crate) fn roots(&self) -> Vec<i32> {
        std::iter::once(self.pid).chain(self.session.iter().copied()).collect()
    }

    /// How long CRIU may take for the trees of `roots`.
    pub(crate) fn criu_deadline(&self, roots: &[i32]) -> Duration {
        let pids = roots.iter().flat_map(|root| stasis_criu_foreign::members(*root));
        limit(self.criu_deadline_ms, Duration::from_secs(600), pids.map(resident).sum())
    }
}

/// Resident memory of a process, bytes (statm of proc(5)).
fn resident(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = text.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    pages.saturating_mul(page.map_or(4096, i64::cast_unsigned))
}

impl RestoreArgs {
    /// How long CRIU and the process may take to come back from images in these directories.
    pub(crate) fn deadline<'d>(&self, directories: impl Iterator<Item = &'d Path>) -> Duration {
        limit(self.deadline_ms, Duration::from_secs(120), directories.map(directory_bytes).sum())
    }
}

/// The value that has this name.
fn named<T: Copy>(name: &str, values: &[(&str, T)]) -> Result<T, String> {
    let found = values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let names = || values.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("it is none of {}", names()))
}

fn on_stranded(name: &str) -> Result<OnStranded, String> {
    named(name, &[("wait", OnStranded::Wait), ("exit", OnStranded::Exit)])
}

fn lazy(name: &str) -> Result<Lazy, String> {
    named(name, &[("background", Lazy::Background), ("asked", Lazy::Asked)])
}

fn network_lock(name: &str) -> Result<NetworkLock, String> {
    use NetworkLock::{Iptables, Nftables, Skip};
    named(name, &[("nftables", Nftables), ("iptables", Iptables), ("skip", Skip)])
}

impl CriuArgs {
    /// As arguments of another `stasis checkpoint`.
    pub fn arguments(&self) -> Vec<String> {
        let flags = [
            (self.tcp_established, "--tcp-established"),
            (self.tcp_close, "--tcp-close"),
            (self.file_locks, "--file-locks"),
            (self.unprivileged, "--unprivileged"),
        ];
        let mut arguments: Vec<String> =
            flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned()).collect();
        arguments.extend(self.network_lock.map(|method| format!("--network-lock={method}")));
        arguments
    }

    pub(crate) fn options(&self, pid: i32) -> CriuOptions {
        CriuOptions {
            shell_job: has_terminal(pid),
            tcp_established: self.tcp_established,
            tcp_close: self.tcp_close,
            network_lock: self.network_lock,
            file_locks: self.file_locks,
            unprivileged: self.unprivileged,
        }
    }
}

/// Arguments of `stasis restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Directory made by `stasis checkpoint`; that of a session brings back all of it. With --store, the checkpoint's name there;
    /// with --from, where it goes first.
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// What was fetched or received.
    #[arg(skip)]
    pub(crate) obtained: Option<Obtained>,
    /// In pid and network namespaces of its own, beside a process that has its pid. The command stays as their init,
    /// and ends with the process and its exit status.
    #[arg(long)]
    pub(crate) beside: bool,
    /// How long CRIU may take, and the process to bring its device back, together; a CRIU that is late is ended, with
    /// all it has restored. Two minutes unless given, and a second more for every 10 MiB of images.
    #[arg(long, value_name = "MS")]
    pub(crate) deadline_ms: Option<u64>,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// Do not compare the files with their hashes first: damage shows when the process runs, if at all.
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Take files of any user, and files that others can write: only for a checkpoint that you trust otherwise.
    #[arg(long)]
    pub(crate) trust_owner: bool,
    /// More arguments for `criu restore` (repeat as needed).
    #[arg(long = "criu-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) criu_args: Vec<String>,
    /// Take a copy that another restore of this checkpoint has made, and that runs, for restored: of a session's trees some
    /// may be back already.
    #[arg(long, hide = true)]
    pub(crate) join: bool,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    pub(crate) json: bool,
}

/// On what terms a process takes its device back; the KFD_*_CHECK switches of the environment are among them.
#[derive(Debug, Args)]
pub struct TermsArgs {
    /// Put an agent of the process on this GPU here (repeat as needed): each by index, or uuid as `stasis agents` prints.
    #[arg(long = "map", value_name = "OLD=NEW")]
    pub(crate) map: Vec<Place>,
    /// Bear that a path from one GPU to another is missing here: copies go through the host's memory instead.
    #[arg(long)]
    pub(crate) allow_staged: bool,
    /// Let the process run before its buffers are filled: they are read when it looks at them, each part checked before, and
    /// the rest in the background, or with `asked` never.
    #[arg(
        long,
        value_name = "background|asked",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "background",
        value_parser = lazy
    )]
    pub(crate) lazy: Option<Lazy>,
    /// The device that a restored copy takes, as STASIS_DEVICE names it; without, that of STASIS_DEVICE in the environment,
    /// else the one it had.
    #[arg(long, value_name = "SPEC")]
    pub(crate) device: Option<String>,
}

impl RestoreArgs {
    /// Fetches or receives the checkpoint, if that is where it comes from.
    pub(crate) fn obtain(&mut self) -> Result<()> {
        self.obtained = transfer::obtain(&self.source, &self.directory, self.trust(), self.json)?;
        Ok(())
    }

    /// Hands the result of the restore on, after which what was fetched for it is not needed.
    pub(crate) fn finish<T>(&self, restored: Result<T>) -> Result<T> {
        match &self.obtained {
            Some(obtained) => obtained.finish(restored),
            None => restored,
        }
    }

    /// The checkpoint's directory.
    pub(crate) fn place(&self) -> &Path {
        self.obtained.as_ref().map_or(&self.directory, |obtained| &obtained.directory)
    }

    pub(crate) fn trust(&self) -> Trust {
        if self.trust_owner { Trust::Anyone } else { Trust::of_caller() }
    }
}

impl TermsArgs {
    /// With the switches of this program's environment, and the device that it names.
    pub fn admission(&self) -> Result<Admission> {
        let (places, allow_staged, lazy) =
            (self.map.clone(), self.allow_staged, self.lazy.unwrap_or_default());
        let terms = Admission { places, allow_staged, lazy, ..Admission::from_env()? };
        Ok(terms.on_device(self.device.as_deref())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_that_nobody_gave_grows_with_what_is_to_be_moved() {
        let base = Duration::from_secs(120);
        assert_eq!(limit(Some(5), base, u64::MAX), Duration::from_millis(5));
        assert_eq!(limit(None, base, 0), base);
        assert_eq!(limit(None, base, 25 << 20), base + Duration::from_secs(2));
    }

    #[test]
    fn what_criu_is_told_can_be_handed_on() {
        use clap::Parser;

        #[derive(Debug, Parser)]
        struct Line {
            #[command(flatten)]
            criu: CriuArgs,
        }
        let given = ["--tcp-established", "--file-locks", "--unprivileged", "--network-lock=iptables"];
        let parse = |words: &[&str]| Line::parse_from([&["stasis"], words].concat()).criu;
        assert_eq!(parse(&given).arguments(), given);
        assert_eq!(parse(&["--tcp-close"]).arguments(), ["--tcp-close"]);
    }

    #[test]
    fn own_memory_is_seen() {
        assert!(resident(std::process::id().cast_signed()) > 1 << 20);
        assert_eq!(resident(i32::MAX), 0);
    }
}
