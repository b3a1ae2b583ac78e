// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds softgpud and starts it outside this process' tree.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::poll::{PollFd, PollFlags};
use nix::sched::{CloneFlags, setns};
use nix::unistd::{
    AccessFlags, ForkResult, Gid, Uid, access, fork, pipe2, setgid, setgroups, setsid, setuid,
};

use super::address::Address;
use crate::{forks, linux};

/// The environment variable that names the softgpud to start.
pub const SOFTGPUD_VARIABLE: &str = "STASIS_SOFTGPUD";

/// The environment variables that softgpud reads. softgpud checks their values; the process that starts softgpud warns
/// of similar names that are not in this list.
pub const SETTINGS: [&str; 11] = [
    "SOFTGPU_ENGINE",
    "SOFTGPU_CPU",
    "SOFTGPU_CACHE",
    "SOFTGPU_KERNEL",
    "SOFTGPU_ERRATA",
    "SOFTGPU_SVM",
    "SOFTGPU_WRITES",
    "SOFTGPU_STATS",
    "SOFTGPU_TRACE",
    "SOFTGPU_JIT_DUMP",
    "SOFTGPU_MISBEHAVE",
];

/// Whether a missing softgpud may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// It is found and started.
    Softgpud,
    /// Another process starts it.
    Never,
}

/// Why softgpud could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is none.
    #[error(
        "No softgpud found; build it (cargo build -p stasis-softgpu) or set {SOFTGPUD_VARIABLE}. Tried: {}",
        list(tried)
    )]
    NotFound {
        /// Every path that was tried.
        tried: Vec<PathBuf>,
    },
    /// It could not be executed.
    #[error("Cannot execute {}", path.display())]
    Execute {
        /// The program.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A softgpud that was started and may not listen yet.
#[derive(Debug)]
pub(super) struct Starting {
    /// A pipe whose other end is softgpud's standard output. softgpud closes it when it listens, or by exiting.
    silent: Option<OwnedFd>,
}

impl Starting {
    /// Whether softgpud listens or has given up, as far as is known.
    pub fn is_over(&self) -> bool {
        self.silent.is_none()
    }

    /// Returns when softgpud listens or has given up, at the latest after `limit`.
    pub fn wait(&mut self, limit: Duration) {
        let Some(silent) = &self.silent else { return std::thread::sleep(limit) };
        if let Ok(1..) = linux::poll(&mut [PollFd::new(silent.as_fd(), PollFlags::POLLIN)], Some(limit)) {
            // softgpud writes nothing to the pipe, so that any event is its end. Later calls wait for a softgpud that
            // another process started.
            self.silent = None;
        }
    }
}

/// The softgpud that would be started: the one that [`SOFTGPUD_VARIABLE`] names, else one beside this program, above it,
/// or on the search path.
///
/// # Errors
/// [`StartError::NotFound`] names every path that was tried.
pub fn find() -> Result<PathBuf, StartError> {
    let tried = candidates(
        std::env::var_os(SOFTGPUD_VARIABLE).as_deref(),
        std::env::current_exe().ok().as_deref(),
        std::env::var_os("PATH").as_deref(),
    );
    let runnable = |path: &&PathBuf| path.is_file() && access(path.as_path(), AccessFlags::X_OK).is_ok();
    tried.iter().find(runnable).cloned().ok_or(StartError::NotFound { tried })
}

/// Starts softgpud for `address` and returns when it has been executed.
pub(super) fn start(address: &Address) -> Result<Starting, StartError> {
    for name in unknown_settings(std::env::vars_os().map(|(name, _)| name)) {
        let known = SETTINGS.join(", ");
        tracing::warn!(target: "kfd::settings", "{name} means nothing to softgpud, which knows {known}");
    }
    let program = find()?;
    Launch::new(&program, &["serve", "--devices", &address.devices, "--socket", &address.name]).execute()
}

/// A softgpud to start, detached from this process.
#[derive(Debug)]
pub struct Launch<'a> {
    program: &'a Path,
    arguments: &'a [&'a str],
    /// User and group that it runs as; `None`: as this process.
    pub user: Option<(u32, u32)>,
    /// A pidfd of the process whose mount, network, IPC, UTS and pid namespaces it enters; the program is found there.
    pub namespaces_of: Option<BorrowedFd<'a>>,
    /// The capabilities that it can have at most, as a mask (`CapBnd` of /proc/PID/status), if those of this process are too many: nothing that it
    /// executes can have others then (PR_SET_NO_NEW_PRIVS).
    pub capabilities: Option<u64>,
    /// Its environment; `None`: that of this process.
    pub environment: Option<Vec<(OsString, OsString)>>,
}

impl<'a> Launch<'a> {
    /// This program with these arguments.
    #[must_use]
    pub fn new(program: &'a Path, arguments: &'a [&'a str]) -> Self {
        Self { program, arguments, user: None, namespaces_of: None, capabilities: None, environment: None }
    }

    /// Starts it; returns when it listens or has given up, at the latest after `limit`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(&self, limit: Duration) -> Result<(), StartError> {
        let mut starting = self.execute()?;
        let begun = Instant::now();
        while !starting.is_over() && begun.elapsed() < limit {
            starting.wait(limit.saturating_sub(begun.elapsed()));
        }
        Ok(())
    }

    fn execute(&self) -> Result<Starting, StartError> {
        let Self { program, arguments, user, capabilities, .. } = *self;
        tracing::debug!(target: "kfd", path = %program.display(), ?arguments, "starting softgpud");
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(environment) = &self.environment {
            command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        }
        // If there is no descriptor left for a pipe, the client polls whether somebody listens.
        let pipe = pipe2(OFlag::O_CLOEXEC).ok();
        let (silent, output) =
            pipe.map_or((None, Stdio::null()), |(ours, theirs)| (Some(ours), theirs.into()));
        command.current_dir("/").stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        let execute_error = |source| StartError::Execute { path: program.to_owned(), source };
        let namespaces_of = self.namespaces_of.map(|fd| fd.try_clone_to_owned()).transpose();
        let namespaces_of = namespaces_of.map_err(execute_error)?;
        let prepare = move || {
            if let Some(process) = &namespaces_of {
                setns(process, NAMESPACES)?;
            }
            if let Some(capabilities) = capabilities {
                limit_capabilities(capabilities)?;
            }
            if let Some((user, group)) = user {
                become_user(user, group)?;
            }
            detach()
        };
        // SAFETY: the closure runs between fork and exec, where only async-signal-safe functions may be called: it calls
        // setns, prctl, setgroups, setgid, setuid, setsid, close_range, fork and _exit, and allocates nothing.
        unsafe { command.pre_exec(prepare) };
        // The spawned process is the intermediate one, which exits at once. spawn returns when its child has executed
        // softgpud.
        let mut intermediate = forks::own(|| command.spawn()).map_err(execute_error)?;
        match intermediate.wait() {
            // ECHILD: another thread reaped it, or the process ignores SIGCHLD.
            Err(error) if error.raw_os_error() != Some(libc::ECHILD) => Err(execute_error(error)),
            _ => Ok(Starting { silent }),
        }
    }
}

/// The namespaces that make a container; its time namespace is not one of them, since its clocks are known otherwise.
const NAMESPACES: CloneFlags = CloneFlags::CLONE_NEWNS
    .union(CloneFlags::CLONE_NEWNET)
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWUTS)
    .union(CloneFlags::CLONE_NEWPID);

/// Gives up all capabilities that are not in the mask, for good. Runs between fork and exec.
fn limit_capabilities(mask: u64) -> io::Result<()> {
    for capability in (0..u64::BITS).filter(|capability| mask & (1 << capability) == 0) {
        // SAFETY: takes no memory.
        match Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }) {
            // One that this kernel does not know.
            Err(Errno::EINVAL) | Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // SAFETY: takes no memory.
    let cleared = unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    Errno::result(cleared)?;
    Ok(nix::sys::prctl::set_no_new_privs()?)
}

/// Gives up root's rights for those of a user. Runs between fork and exec.
fn become_user(user: u32, group: u32) -> io::Result<()> {
    setgroups(&[])?;
    setgid(Gid::from_raw(group))?;
    Ok(setuid(Uid::from_raw(user))?)
}

/// Runs between fork and exec: begins a new session, and forks again so that init adopts softgpud.
fn detach() -> io::Result<()> {
    setsid()?;
    // softgpud must not keep descriptors that the application left inheritable. A kernel without the call refuses it,
    // and softgpud keeps the descriptors.
    let _ = linux::close_range_on_exec(3);
    // SAFETY: the process has one thread, since it was forked itself. The child returns to the code that executes
    // softgpud and calls only async-signal-safe functions before.
    match unsafe { fork() }? {
        ForkResult::Child => Ok(()),
        // The intermediate process must not run destructors or exit handlers of the application.
        ForkResult::Parent { .. } => linux::exit_now(0),
    }
}

/// Names with the prefix of settings that are no settings.
fn unknown_settings(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let text = names.map(|name| name.to_string_lossy().into_owned());
    text.filter(|name| name.starts_with("SOFTGPU_") && !SETTINGS.contains(&name.as_str())).collect()
}

/// Where softgpud may be: exactly where the user says, else beside the executable, above it (`target/debug`
/// for a test in `deps`), and on the search path.
fn candidates(explicit: Option<&OsStr>, executable: Option<&Path>, search: Option<&OsStr>) -> Vec<PathBuf> {
    if let Some(explicit) = explicit.filter(|path| !path.is_empty()) {
        return vec![explicit.into()];
    }
    let directories = executable.into_iter().flat_map(|path| path.ancestors().skip(1).take(2));
    let search = search.map(std::env::split_paths).into_iter().flatten();
    let search = search.filter(|directory| !directory.as_os_str().is_empty());
    directories.map(Path::to_path_buf).chain(search).map(|directory| directory.join("softgpud")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_of_an_explicit_path_are_that_path() {
        let found = candidates(Some(OsStr::new("/opt/softgpud")), Some(Path::new("/a/b/c")), None);
        assert_eq!(found, [Path::new("/opt/softgpud")]);
    }

    #[test]
    fn candidates_are_beside_above_and_on_the_path() {
        let search = OsStr::new("/usr/bin::/bin");
        let found = candidates(None, Some(Path::new("/t/debug/deps/test")), Some(search));
        let wanted = ["/t/debug/deps/softgpud", "/t/debug/softgpud", "/usr/bin/softgpud", "/bin/softgpud"]
            .map(Path::new);
        assert_eq!(found, wanted);
    }

    #[test]
    fn settings_that_are_none_are_found_by_name() {
        let names = ["SOFTGPU_ENGINE", "SOFTGPU_ENGIN", "STASIS_DEVICE", "SOFTGPU_"].map(OsString::from);
        assert_eq!(unknown_settings(names.into_iter()), ["SOFTGPU_ENGIN", "SOFTGPU_"]);
    }

    #[test]
    fn program_has_no_capability_that_is_not_allowed() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let told = tempfile::NamedTempFile::new().unwrap();
        let script = format!("grep -E 'Cap|NoNewPrivs' /proc/self/status > {}", told.path().display());
        // CAP_CHOWN and CAP_KILL.
        let (program, mask) = (Path::new("/bin/sh"), 0b10_0001);
        let arguments = ["-c", &script];
        let mut launch = Launch::new(program, &arguments);
        launch.capabilities = Some(mask);
        launch.start(Duration::from_secs(60)).unwrap();
        let text = std::fs::read_to_string(told.path()).unwrap();
        let value = |name: &str| {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{text}"));
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        for name in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(value(name) & !mask, 0, "{text}");
        }
        assert_eq!(value("NoNewPrivs:"), 1, "{text}");
    }

    #[test]
    fn not_found_names_every_path() {
        let tried = vec![PathBuf::from("/a/softgpud"), PathBuf::from("/b/softgpud")];
        let text = StartError::NotFound { tried }.to_string();
        assert!(text.ends_with("Tried: /a/softgpud, /b/softgpud"), "{text}");
    }

    #[test]
    fn execute_detaches_and_reports_a_program_that_cannot_run() {
        let address = Address::new("gfx1100", None);
        let arguments = ["serve", "--devices", &address.devices, "--socket", &address.name];
        let missing = Launch::new(Path::new("/nonexistent/softgpud"), &arguments).execute();
        assert!(
            matches!(missing, Err(StartError::Execute { source, .. }) if source.kind() == io::ErrorKind::NotFound)
        );

        // A stand-in that records its arguments, parent and session.
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("softgpud");
        let record = directory.path().join("record");
        let partial = directory.path().join("partial");
        let script = format!(
            "#!/bin/sh\necho \"$@\" $$ $(cut -d' ' -f6 /proc/$$/stat) > {0}\nmv {0} {1}\n",
            partial.display(),
            record.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut starting = Launch::new(&program, &arguments).execute().unwrap();
        let begun = std::time::Instant::now();
        starting.wait(Duration::from_secs(60));
        assert!(begun.elapsed().as_secs() < 50 && record.exists(), "its end was waited for, and no longer");
        let text = std::fs::read_to_string(&record).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[..5], ["serve", "--devices", "gfx1100", "--socket", &address.name]);
        // Read, not asked of getsid: in a container whose first process did not start a session, the session is 0.
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let own = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap();
        assert_ne!(words[6], own, "its own session");
        assert_ne!(words[5], words[6], "not the session's leader");
    }
}
