// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a CRIU that works.
//!
//! The floor is 4.2: older ones cannot dump on current kernels (3.17: vdso) or no process with a TCP socket (4.1).

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

/// Oldest CRIU that is used, (major, minor).
pub const FLOOR: (u32, u32) = (4, 2);

/// No CRIU is usable.
#[derive(Debug, Error)]
#[error(
    "No CRIU {}.{} or newer found; tried: {}. Run `cargo xtask setup`, or name one in STASIS_CRIU",
    FLOOR.0, FLOOR.1, if tried.is_empty() { "PATH, /usr/sbin, .stasis/criu/bin above the program".to_owned() } else { tried.join("; ") }
)]
pub struct NotFound {
    /// Each path with the reason it was passed over.
    pub tried: Vec<String>,
}

/// A CRIU known to be new enough.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    version: String,
}

impl Program {
    /// Looks in STASIS_CRIU, on PATH, then in a `.stasis/criu/bin` beside the executable's ancestors.
    ///
    /// # Errors
    /// [`NotFound`] with every path tried and why it was passed over.
    pub fn find() -> Result<Self, NotFound> {
        let mut tried = Vec::new();
        for path in candidates() {
            match probe(&path) {
                Ok(version) => return Ok(Self { path, version }),
                Err(reason) => tried.push(format!("{} ({reason})", path.display())),
            }
        }
        Err(NotFound { tried })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version as CRIU prints it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }
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

/// How many lines of unformed text to pass on.
const UNFORMED: usize = 3;

/// CRIU reports the first error it met; the telling one is the last before it gives up and says so, task by task.
#[must_use]
pub fn last_error(log: &str) -> String {
    let is_error =
        |l: &&str| l.contains("Error (") && !l.contains("FAILED") && !l.contains(") failed with -");
    // That a task has ended, or has not a descriptor, is what follows from its own last error.
    let is_cause =
        |l: &&str| is_error(l) && !l.contains(" exited, status=") && !l.contains("): Unable to open fd=");
    let last = log.lines().rfind(is_cause).or_else(|| log.lines().rfind(is_error));
    last.map(|l| explained(l.split_once("): ").map_or(l, |(_, said)| said).trim()))
        .or_else(|| {
            // What it prints before it has a log has no form.
            let lines: Vec<_> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let last = lines.len().saturating_sub(UNFORMED);
            (!lines.is_empty()).then(|| lines[last..].join(" "))
        })
        .unwrap_or_else(|| "it said nothing".to_owned())
}

/// What CRIU says, with what to do where that is known.
fn explained(said: &str) -> String {
    let remedy = match said {
        _ if said.contains("Can't bind inet socket") => {
            ": a port of the process is in use here, or was until a minute ago (TIME_WAIT): restore later, or in another network namespace"
        }
        _ => "",
    };
    format!("{said}{remedy}")
}

#[cfg(test)]
mod tests {
    use std::fs;

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
                   (00.3) Error (criu/cr-dump.c:98): Dump files (pid: 7) failed with -1\n\
                   (00.4) Error (criu/cr-dump.c:99): Dumping FAILED.\n";
        assert_eq!(last_error(log), "sk: the cause");
        let log = "(00.1) pie: 7: Error (criu/pie/restorer.c:9): no memory\n\
                   (00.2) Error (criu/cr-restore.c:12): 7 exited, status=1\n\
                   (00.3) Error (criu/cr-restore.c:13): Restoring FAILED.\n";
        assert_eq!(last_error(log), "no memory");
        assert_eq!(last_error(log.split_once('\n').unwrap().1), "7 exited, status=1");
        let log = "(00.1) 7: Error (criu/sk-inet.c:1): inet: Can't bind inet socket (id 5): Address already in use\n\
                   (00.2) 7: Error (criu/files.c:12): Unable to open fd=15 id=0x5\n\
                   (00.3) 1: Error (criu/cr-restore.c:12): 7 exited, status=1\n";
        let said = last_error(log);
        assert!(said.starts_with("inet: Can't bind") && said.contains("TIME_WAIT"), "{said}");
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
