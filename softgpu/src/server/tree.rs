// SPDX-License-Identifier: MIT OR Apache-2.0
//! `softgpud tree`: the files of a machine, for programs that look for a GPU in `/sys`, `/dev` and `/proc`.
//!
//! INVARIANT: devices are named as for [`super::serve`] and refused with the same errors, so that the files and the device
//! that a program then opens are of one machine.

use std::path::{Path, PathBuf};

use super::devices::Devices;
use super::error::ServeError;
use super::settings;
use crate::driver::KernelModel;
use crate::sysfs::SystemOptions;

/// The options of `softgpud tree`.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// The targets, as [`super::ServeOptions::devices`].
    pub devices: String,
    /// An existing, empty directory.
    pub directory: PathBuf,
}

/// Writes the files of a machine into a directory, below `sys`, `dev` and `proc`.
///
/// # Errors
/// [`ServeError`] as [`super::serve`] refuses the devices or a setting, [`ServeError::Tree`] if the directory is not there
/// or not empty, or cannot be written.
pub fn write_tree(options: &TreeOptions) -> Result<(), ServeError> {
    settings::check().map_err(ServeError::Setting)?;
    write(&Devices::parse(&options.devices)?, &options.directory)
}

/// Writes the files of this machine.
///
/// # Errors
/// As [`write_tree`].
pub(super) fn write(devices: &Devices, directory: &Path) -> Result<(), ServeError> {
    let kernel = KernelModel::from_env().map_err(ServeError::Kernel)?;
    // A kernel without modules has no list of them.
    let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    let system = SystemOptions { driver_version: &kernel.driver_version(), modules: &modules };
    devices.system(&system).write(directory).map_err(ServeError::Tree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::WriteTreeError;

    fn tree(devices: &str, directory: &std::path::Path) -> Result<(), ServeError> {
        write_tree(&TreeOptions { devices: devices.to_owned(), directory: directory.to_owned() })
    }

    #[test]
    fn wrong_devices_are_refused_as_by_serve_and_nothing_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let refused = tree("gfx1100,potato", directory.path()).unwrap_err().to_string();
        assert_eq!(refused, Devices::parse("gfx1100,potato").unwrap_err().to_string());
        let missing = directory.path().join("none.toml");
        let error = tree(missing.to_str().unwrap(), directory.path()).unwrap_err();
        assert!(matches!(error, ServeError::Topology { .. }), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn topology_file_and_list_give_trees_with_the_drivers_version() {
        let (file, directory) =
            (tempfile::NamedTempFile::with_suffix(".toml").unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(file.path(), "[[gpu]]\nchip = \"gfx1100\"\nrender_minor = 200\n").unwrap();
        tree(file.path().to_str().unwrap(), directory.path()).unwrap();
        assert!(directory.path().join("dev/dri/renderD200").exists());
        let version = std::fs::read_to_string(directory.path().join("sys/module/amdgpu/version")).unwrap();
        assert_eq!(version.trim(), KernelModel::from_env().unwrap().driver_version());
        let again = tree("gfx1100", directory.path()).unwrap_err();
        assert!(matches!(again, ServeError::Tree(WriteTreeError::NotEmpty { .. })), "{again}");
    }
}
