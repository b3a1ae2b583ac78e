// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the program that lists and hashes the files of a checkpoint while the tasks are frozen: the `stasis` command.
//!
//! A process that is frozen cannot do it, and CRIU's script has to call somebody.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::layout::SEALED_LAYOUT;

/// The hidden sub-command that seals a directory.
const VERB: &str = "commit-images";

/// A `stasis` that seals checkpoints of this version's layout.
#[derive(Clone, Debug)]
pub struct Sealer {
    program: PathBuf,
}

impl Sealer {
    /// This program, which is that command.
    ///
    /// # Errors
    /// When its own path is not to be had.
    pub fn this_program() -> std::io::Result<Self> {
        let program = env::current_exe()?;
        // The name of a program that was replaced while it runs leads nowhere; this one leads to it while it runs.
        let by_pid = || PathBuf::from(format!("/proc/{}/exe", std::process::id()));
        Ok(Self { program: if program.exists() { program } else { by_pid() } })
    }

    /// Looks in STASIS_PROGRAM, beside this program and one directory above, then on PATH.
    #[must_use]
    pub fn find() -> Option<Self> {
        let named = env::var_os("STASIS_PROGRAM").map(PathBuf::from);
        let beside = env::current_exe().ok();
        let beside = beside.iter().flat_map(|own| own.ancestors().skip(1).take(2)).map(|d| d.join("stasis"));
        let path = env::var_os("PATH").unwrap_or_default();
        let on_path = env::split_paths(&path).map(|directory| directory.join("stasis"));
        let mut candidates: Vec<PathBuf> = match named {
            Some(named) => vec![named],
            None => beside.chain(on_path).collect(),
        };
        candidates.dedup();
        candidates.into_iter().find(|program| knows_this_layout(program)).map(|program| Self { program })
    }

    #[cfg(test)]
    pub(super) fn at(program: PathBuf) -> Self {
        Self { program }
    }

    /// As words for a shell, up to the directory.
    pub(super) fn command(&self) -> String {
        format!("{} {VERB}", quoted(&self.program))
    }
}

/// Whether a program says that it seals directories of this layout.
fn knows_this_layout(program: &Path) -> bool {
    if !program.is_file() {
        return false;
    }
    let mut command = Command::new(program);
    command.args([VERB, "--layout"]).stdin(Stdio::null()).stderr(Stdio::null());
    let said = command.output().ok().filter(|output| output.status.success());
    said.is_some_and(|output| String::from_utf8_lossy(&output.stdout).trim() == SEALED_LAYOUT.to_string())
}

/// A path as one word for a shell.
pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn program_of_another_layout_or_of_another_kind_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let program = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        assert!(knows_this_layout(&program("good", &format!("[ \"$1\" = {VERB} ] && echo {SEALED_LAYOUT}"))));
        assert!(!knows_this_layout(&program("older", "echo 'error: unrecognized subcommand' >&2; exit 2")));
        assert!(!knows_this_layout(&program("newer", "echo 99")));
        assert!(
            !knows_this_layout(directory.path()) && !knows_this_layout(&directory.path().join("missing"))
        );
    }

    #[test]
    fn paths_are_one_word_whatever_is_in_them() {
        assert_eq!(quoted(Path::new("/it's here")), r"'/it'\''s here'");
    }
}
