// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a CRIU that works and runs it: dump, restore, and the reason when it fails.
//!
//! The floor is 4.2: older ones cannot dump on current kernels (3.17: vdso) or no process with a TCP socket (4.1).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use thiserror::Error;

/// Oldest CRIU that is used, (major, minor).
pub const FLOOR: (u32, u32) = (4, 2);

/// Why CRIU could not be used, or what it said when it failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CriuError {
    /// No candidate is usable.
    #[error(
        "No CRIU {}.{} or newer found; tried: {}. Run `cargo xtask setup`, or name one in STASIS_CRIU",
        FLOOR.0, FLOOR.1, if tried.is_empty() { "PATH, /usr/sbin, .stasis/criu/bin above the program".to_owned() } else { tried.join("; ") }
    )]
    NotFound {
        /// Each path with the reason it was passed over.
        tried: Vec<String>,
    },
    /// The program could not be started.
    #[error("Cannot start {}", program.display())]
    Start {
        /// Which program.
        program: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// CRIU ran and failed.
    #[error("criu {verb} failed ({status}): {reason}; the whole log is {}", log.display())]
    Failed {
        /// `dump` or `restore`.
        verb: &'static str,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The last error in its log.
        reason: String,
        /// The log.
        log: PathBuf,
    },
}

/// A CRIU known to be new enough.
#[derive(Clone, Debug)]
pub struct Criu {
    program: PathBuf,
    version: String,
}

impl Criu {
    /// Looks in STASIS_CRIU, on PATH, then in a `.stasis/criu/bin` beside the executable's ancestors.
    ///
    /// # Errors
    /// [`CriuError::NotFound`] with every path tried and why it was passed over.
    pub fn find() -> Result<Self, CriuError> {
        let mut tried = Vec::new();
        for program in candidates() {
            match probe(&program) {
                Ok(version) => return Ok(Self { program, version }),
                Err(reason) => tried.push(format!("{} ({reason})", program.display())),
            }
        }
        Err(CriuError::NotFound { tried })
    }

    /// The version as CRIU prints it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Dumps the tree of `pid` into `images`; `commit` is run by CRIU when the images are complete and the tasks are
    /// still frozen, and a failure of it lets them run on.
    ///
    /// # Errors
    /// [`CriuError::Start`], [`CriuError::Failed`]; the process runs on then.
    pub fn dump(&self, pid: i32, images: &Path, options: &DumpOptions<'_>) -> Result<(), CriuError> {
        let mut command = Command::new(&self.program);
        command.arg("dump").arg("--tree").arg(pid.to_string()).arg("--images-dir").arg(images);
        command.args(["--log-file", "dump.log", "-v2"]).arg("--action-script").arg(options.commit);
        if options.leave_running {
            command.arg("--leave-running");
        }
        if options.shell_job {
            command.arg("--shell-job");
        }
        command.args(options.extra);
        self.run("dump", command, &images.join("dump.log"))
    }

    /// Restores the tree in `images`, detached.
    ///
    /// # Errors
    /// [`CriuError::Start`], [`CriuError::Failed`].
    pub fn restore(&self, images: &Path, shell_job: bool, extra: &[String]) -> Result<(), CriuError> {
        let mut command = Command::new(&self.program);
        command.args(["restore", "--restore-detached", "--images-dir"]).arg(images);
        command.args(["--log-file", "restore.log", "-v2"]);
        if shell_job {
            command.arg("--shell-job");
        }
        command.args(extra);
        self.run("restore", command, &images.join("restore.log"))
    }

    fn run(&self, verb: &'static str, mut command: Command, log: &Path) -> Result<(), CriuError> {
        command.env("CRIU_LIBS_DIR", empty_libdir(log));
        let output =
            command.output().map_err(|source| CriuError::Start { program: self.program.clone(), source })?;
        if output.status.success() {
            return Ok(());
        }
        let text =
            fs::read_to_string(log).unwrap_or_else(|_| String::from_utf8_lossy(&output.stderr).into_owned());
        Err(CriuError::Failed { verb, status: output.status, reason: last_error(&text), log: log.into() })
    }
}

/// How to dump.
#[derive(Clone, Copy, Debug)]
pub struct DumpOptions<'a> {
    /// The action script CRIU calls.
    pub commit: &'a Path,
    /// Let the tasks run on afterwards.
    pub leave_running: bool,
    /// The process belongs to a terminal's session.
    pub shell_job: bool,
    /// More arguments, as they are.
    pub extra: &'a [String],
}

/// Plugins installed for other devices are not ours to run; an empty directory keeps them out.
fn empty_libdir(log: &Path) -> PathBuf {
    let directory = log.with_file_name("no-plugins");
    // A directory that cannot be made makes CRIU fail with its name, which says enough.
    let _ = fs::create_dir(&directory);
    directory
}

fn candidates() -> Vec<PathBuf> {
    if let Some(named) = env::var_os("STASIS_CRIU") {
        return vec![named.into()];
    }
    let on_path =
        env::var_os("PATH").map(|p| env::split_paths(&p).map(|d| d.join("criu")).collect::<Vec<_>>());
    let mut all = on_path.unwrap_or_default();
    all.push("/usr/sbin/criu".into());
    if let Ok(own) = env::current_exe() {
        all.extend(own.ancestors().map(|a| a.join(".stasis/criu/bin/criu")));
    }
    if let Ok(here) = env::current_dir() {
        all.push(here.join(".stasis/criu/bin/criu"));
    }
    all.retain(|p| p.exists());
    all.dedup();
    all
}

fn probe(program: &Path) -> Result<String, String> {
    let output = Command::new(program).arg("--version").output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text
        .lines()
        .find_map(|l| l.strip_prefix("Version:"))
        .map(|v| v.trim().to_owned())
        .ok_or_else(|| format!("its --version says {:?}", text.trim()))?;
    match parse_version(&version) {
        Some(found) if found >= FLOOR => Ok(version),
        _ => Err(format!("version {version} is older than {}.{}", FLOOR.0, FLOOR.1)),
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(|p| p.trim().parse().ok());
    Some((parts.next()??, parts.next().flatten().unwrap_or(0)))
}

/// CRIU reports the first error it met; the telling one is the last before it gives up.
fn last_error(log: &str) -> String {
    log.lines()
        .rfind(|l| l.contains("Error (") && !l.contains("FAILED"))
        .map(|l| l.split_once("): ").map_or(l, |(_, said)| said).trim().to_owned())
        .or_else(|| log.lines().next_back().map(|l| l.trim().to_owned()))
        .unwrap_or_else(|| "it said nothing".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(parse_version("4.2.1"), Some((4, 2)));
        assert_eq!(parse_version("4.10"), Some((4, 10)));
        assert!(parse_version("3.17.1").unwrap() < FLOOR);
        assert!(parse_version("4.10").unwrap() > FLOOR);
        assert_eq!(parse_version("new"), None);
    }

    #[test]
    fn last_error_skips_the_verdict() {
        let log = "(00.1) Error (criu/a.c:1): first\n(00.2) Error (criu/sk.c:12): sk: the cause\n\
                   (00.3) Error (criu/cr-dump.c:99): Dumping FAILED.\n";
        assert_eq!(last_error(log), "sk: the cause");
    }

    #[test]
    fn old_criu_is_passed_over_with_its_version() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("criu");
        fs::write(&program, "#!/bin/sh\necho 'Version: 3.17.1'\n").unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(probe(&program).unwrap_err(), "version 3.17.1 is older than 4.2");
    }
}
