// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CRIU that can dump on current kernels: version 4.2 or newer that passes `criu check`.
//!
//! Order: `STASIS_CRIU`, the system's own, the private prefix of an earlier run, a new private prefix.

use super::announce;
use super::private;
use super::process;
use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use std::fmt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// CRIU older than this cannot dump a process with a TCP socket on kernel 6.16 and newer.
const FLOOR: Version = Version { major: 4, minor: 2, patch: 0 };

/// A CRIU release number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch > 0 { write!(f, ".{}", self.patch) } else { Ok(()) }
    }
}

/// A CRIU that works here.
#[derive(Debug, Clone)]
pub struct Criu {
    /// The program to run.
    pub path: PathBuf,
    /// Its release.
    pub version: Version,
    /// Where it came from: `STASIS_CRIU`, `system` or `private prefix`.
    pub origin: &'static str,
}

/// Finds a CRIU that works, or installs one under `private`/criu.
///
/// # Errors
/// What is wrong with the one that `STASIS_CRIU` names, or why a private one could not be installed.
pub fn find_or_install(private: &Path) -> Result<Criu> {
    if let Some(path) = std::env::var_os("STASIS_CRIU") {
        return verify(Path::new(&path), "STASIS_CRIU")
            .context("STASIS_CRIU names a CRIU that does not work here; unset it or name another");
    }
    if let Some(path) = process::find("criu") {
        match verify(&path, "system") {
            Ok(criu) => return Ok(criu),
            Err(why) => announce(format_args!("the system's CRIU is not used: {why:#}")),
        }
    }
    let prefix = private.join("criu");
    let program = prefix.join("bin/criu");
    if program.is_file() {
        match verify(&program, "private prefix") {
            Ok(criu) => return Ok(criu),
            // A broken prefix is rebuilt; a download does not help where CRIU does not support the kernel.
            Err(why) if version(&program).is_ok_and(|found| found >= FLOOR) => {
                return Err(why).context("The CRIU in the private prefix runs but does not work here");
            }
            Err(why) => announce(format_args!("the private CRIU is rebuilt: {why:#}")),
        }
    }
    private::install_criu(private, &prefix)?;
    verify(&program, "private prefix").context("The CRIU that was just unpacked does not work here")
}

/// The CRIU that works here, if one is there: nothing is installed.
pub fn find(private: &Path) -> Option<Criu> {
    let named = std::env::var_os("STASIS_CRIU").map(PathBuf::from);
    let candidates = [named, process::find("criu"), Some(private.join("criu/bin/criu"))];
    candidates.into_iter().flatten().find_map(|path| verify(&path, "found").ok())
}

/// Asks a CRIU for its version, then whether this kernel has what it needs.
fn verify(path: &Path, origin: &'static str) -> Result<Criu> {
    let version = version(path)?;
    if version < FLOOR {
        bail!("{} is CRIU {version}, at least {FLOOR} is needed", path.display());
    }
    let mut check = Command::new(path);
    check.arg("check");
    if !process::is_root() {
        check.arg("--unprivileged");
    }
    process::output(&mut check).with_context(|| {
        format!("`criu check` fails; CRIU needs root, or CAP_CHECKPOINT_RESTORE on {}", path.display())
    })?;
    Ok(Criu { path: path.to_path_buf(), version, origin })
}

fn version(path: &Path) -> Result<Version> {
    let text = process::output(Command::new(path).arg("--version"))?;
    parse_version(&text).with_context(|| format!("{} does not tell its version but {text:?}", path.display()))
}

fn parse_version(text: &str) -> Option<Version> {
    let number = text.lines().find_map(|line| line.strip_prefix("Version:"))?.trim();
    let mut parts = number.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    Some(Version {
        major: parts.next()??,
        minor: parts.next().flatten().unwrap_or(0),
        patch: parts.next().flatten().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_version_reads_what_criu_prints() {
        let parse = |text| parse_version(text).map(|version| version.to_string());
        assert_eq!(parse("Version: 4.2.1\n").as_deref(), Some("4.2.1"));
        assert_eq!(parse("Version: 4.2\nGitID: v4.2-3-gabc\n").as_deref(), Some("4.2"));
        assert_eq!(parse("Version: 5.0-rc1\n").as_deref(), Some("5.0"));
        assert_eq!(parse("criu: command not found"), None);
    }

    #[test]
    fn floor_separates_debian_13_from_what_works() {
        assert!(parse_version("Version: 4.1.1").is_some_and(|version| version < FLOOR));
        assert!(parse_version("Version: 4.2").is_some_and(|version| version >= FLOOR));
    }

    #[test]
    fn verify_missing_program_is_an_error_naming_it() {
        let error = verify(Path::new("/nonexistent/criu"), "STASIS_CRIU").unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/criu"), "{error:#}");
    }
}
