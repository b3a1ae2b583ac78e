// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs other programs: an error always has the command, how it ended, and its last lines.

use super::announce;
use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

const ATTEMPTS: u32 = 3;

/// Looks a program up on PATH and in the directories of system tools that a user's PATH may lack.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

/// Whether this process may install system packages.
pub fn is_root() -> bool {
    // The effective uid is the second number of the `Uid:` line.
    std::fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        Some(line.split_whitespace().nth(1)? == "0")
    }) == Some(true)
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// The command could not start or ended with a failure: its text and the tail of what it said.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = describe(command);
    let output = command.output().with_context(|| format!("Could not start `{shown}`"))?;
    if !output.status.success() {
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("`{shown}` failed ({}):\n{}", output.status, tail(&said, 12));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command to its end with its output shown, on standard error: standard output is for what was asked for
/// (`bench --json`).
///
/// # Errors
/// The command could not start or ended with a failure.
pub fn shown(command: &mut Command) -> Result<()> {
    let text = describe(command);
    let status =
        command.stdout(std::io::stderr()).status().with_context(|| format!("Could not start `{text}`"))?;
    if !status.success() {
        bail!("`{text}` failed ({status})");
    }
    Ok(())
}

/// Runs what needs the network up to three times.
///
/// # Errors
/// What the last attempt said.
pub fn retried<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for number in 1..ATTEMPTS {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(why) => announce(format_args!("attempt {number} of {ATTEMPTS} failed: {why:#}")),
        }
    }
    attempt()
}

/// Removes a directory and all below it, if it is there.
///
/// # Errors
/// What the system said, with its path.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("Could not remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// The command as a user would type it, without apt's `-o=` settings.
fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args().map(|argument| argument.to_string_lossy()) {
        if !argument.starts_with("-o=") {
            text.push(' ');
            text.push_str(&argument);
        }
    }
    text
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_failing_command_names_it_and_what_it_said() {
        let error = output(Command::new("sh").args(["-c", "echo lost >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("sh -c") && text.contains("lost") && text.contains('3'), "{text}");
    }

    #[test]
    fn shown_output_goes_to_standard_error() {
        const CHILD: &str = "STASIS_TEST_SHOWN";
        if std::env::var_os(CHILD).is_some() {
            return shown(Command::new("echo").arg("from the command")).unwrap();
        }
        let own = std::env::current_exe().unwrap();
        let name = "setup::process::tests::shown_output_goes_to_standard_error";
        let said = Command::new(own).args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert!(!String::from_utf8_lossy(&said.stdout).contains("from the command"));
        assert!(String::from_utf8_lossy(&said.stderr).contains("from the command"));
    }

    #[test]
    fn retried_gives_up_after_three_attempts_with_the_last_reason() {
        let mut attempts = 0;
        let mut fail = || {
            attempts += 1;
            bail!("attempt {attempts}")
        };
        assert_eq!(retried::<()>(&mut fail).unwrap_err().to_string(), "attempt 3");
        assert_eq!(retried(|| Ok(7)).unwrap(), 7);
    }

    #[test]
    fn find_shell_is_on_the_path() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-as-this").is_none());
    }
}
