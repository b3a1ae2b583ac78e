// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that CRIU leaves out of its images, because it is stored beside them (`libstasis_criu_beside.so`).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kfd::transport::beside::{LeftOut, REPORT_VARIABLE};
use stasis::criu::CRIU_DIRECTORY;

use crate::library::{LibraryError, OF_CRIU, PRELOAD_VARIABLE, preloaded};

/// What CRIU is told, and what the library reports.
#[derive(Debug)]
pub struct Report {
    /// A file that is among CRIU's images until it has been read.
    path: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

impl Report {
    /// Finds the library, for a dump into a checkpoint's directory. Without it, or if CRIU is to carry everything, nothing is
    /// left out.
    ///
    /// # Errors
    /// When there can be no report.
    pub fn new(directory: &Path, criu_carries_all: bool) -> Result<Self> {
        let report = directory.join(CRIU_DIRECTORY).join("left-out");
        File::create(&report).with_context(|| format!("Cannot make {}", report.display()))?;
        let library = if criu_carries_all { None } else { OF_CRIU.find().map_err(warn).ok() };
        let environment = library.map_or_else(Vec::new, |library| {
            vec![(PRELOAD_VARIABLE, preloaded(library)), (REPORT_VARIABLE, report.clone().into_os_string())]
        });
        Ok(Self { path: report, environment })
    }

    /// Environment variables for CRIU.
    pub fn environment(&self) -> &[(&'static str, OsString)] {
        &self.environment
    }

    /// The memory that was left out, once, when CRIU's images are complete.
    ///
    /// # Errors
    /// When the report cannot be read.
    pub fn take(&self) -> Result<BTreeSet<LeftOut>> {
        let failed = || format!("Cannot take {}", self.path.display());
        let text = fs::read_to_string(&self.path).with_context(failed)?;
        fs::remove_file(&self.path).with_context(failed)?;
        let parsed = text.lines().map(|line| LeftOut::parse(line).with_context(failed));
        parsed.collect()
    }
}

fn warn(error: LibraryError) {
    tracing::warn!(target: "stasis", %error, "CRIU carries all memory of the device, which takes longer");
}
