// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis` as users call it from a shell, with files as its arguments.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::gpu::{compute_object, faults_object, open};
use crate::program;
use crate::worker::refused;

/// A directory with the tests' kernels, in which `stasis` is called.
#[derive(Debug)]
pub struct Shell {
    directory: TempDir,
    /// The name of the first agent's target.
    pub target: String,
}

impl Default for Shell {
    fn default() -> Self {
        Self::new()
    }
}

impl Shell {
    /// A new one.
    ///
    /// # Panics
    /// When no directory can be made.
    #[must_use]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let target = open().agent(0).unwrap().name().to_owned();
        fs::write(directory.path().join("compute.co"), compute_object(&target)).unwrap();
        fs::write(directory.path().join("faults.co"), faults_object(&target)).unwrap();
        Self { directory, target }
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `stasis` with these words, in the directory.
    #[must_use]
    pub fn command(&self, line: &str) -> Command {
        let device = std::env::var("STASIS_DEVICE").unwrap_or_else(|_| "soft:gfx1100".to_owned());
        let mut command = Command::new(program("stasis"));
        command.args(line.split_whitespace()).current_dir(self.directory.path()).env("STASIS_DEVICE", device);
        command
    }

    /// Its outcome.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// What `stasis dispatch` prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn dispatch(&self, line: &str) -> String {
        let output = self.run(&format!("dispatch {line}"));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Why `stasis dispatch` fails.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn refused(&self, line: &str) -> String {
        refused(&self.run(&format!("dispatch {line}")))
    }
}

/// Writes a version 1.0 `.npy` file of one dimension, as NumPy does.
///
/// # Panics
/// When it cannot be written.
pub fn write_npy(path: &Path, descr: &str, bytes: &[u8], length: usize) {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({length},), }}");
    let padded = format!("{header:<117}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((padded.len() as u16).to_le_bytes());
    file.extend(padded.as_bytes());
    file.extend(bytes);
    fs::write(path, file).unwrap();
}

/// The header's text and the data of a `.npy` file.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn read_npy(path: &Path) -> (String, Vec<u8>) {
    let file = fs::read(path).unwrap();
    assert_eq!(file[..6], *b"\x93NUMPY");
    let (length, start) = match file[6] {
        1 => (usize::from(u16::from_le_bytes([file[8], file[9]])), 10),
        _ => (u32::from_le_bytes([file[8], file[9], file[10], file[11]]) as usize, 12),
    };
    let header = String::from_utf8(file[start..start + length].to_vec()).unwrap();
    (header, file[start + length..].to_vec())
}

/// The bytes of floats.
#[must_use]
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
