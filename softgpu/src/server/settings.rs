// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `SOFTGPU_*` variables and their valid values.
//!
//! INVARIANT: the broker checks all variables before it serves, so that an invalid value is reported to the client that
//! started it. Code that reads a variable later may assume that its value is valid.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use kfd::transport::soft::SETTINGS;
use thiserror::Error;

use crate::driver::KernelModel;
use crate::misbehaviour::{self, Misbehaviour};

/// Whether the chips' errata are modelled.
const ERRATA: &str = "SOFTGPU_ERRATA";
/// Whether the kernel was built with HSA_AMD_SVM, so that its SVM ioctl works.
const SVM: &str = "SOFTGPU_SVM";
/// Whether clients are told which memory GPUs have written, which no hardware tells.
const WRITES: &str = "SOFTGPU_WRITES";

/// A variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name} is {value:?}; it can be {accepted}")]
pub struct SettingError {
    /// The variable.
    pub name: &'static str,
    /// What it is set to.
    pub value: OsString,
    /// What it may be.
    pub accepted: &'static str,
}

/// The valid values of one variable.
struct Setting {
    name: &'static str,
    accepted: &'static str,
    means: fn(&str) -> bool,
}

const KNOWN: [Setting; 11] = [
    Setting {
        name: "SOFTGPU_ENGINE",
        accepted: "interp, jit, quick or auto (the default)",
        means: |value| matches!(value, "interp" | "jit" | "quick" | "auto"),
    },
    Setting {
        name: "SOFTGPU_CPU",
        accepted: "baseline, avx2 or avx512; without it the CPU's best is used",
        means: |value| matches!(value, "baseline" | "avx2" | "avx512"),
    },
    Setting {
        name: "SOFTGPU_CACHE",
        accepted: "off, or the name of a directory from the root on; without it ~/.cache/stasis is used",
        means: |value| {
            let path = Path::new(value);
            value == "off" || path.is_absolute() && path.file_name().is_some()
        },
    },
    Setting {
        name: "SOFTGPU_KERNEL",
        accepted: "6.12, 7.3 (the default) or fixed",
        means: |value| value.parse::<KernelModel>().is_ok(),
    },
    Setting {
        name: ERRATA,
        accepted: "on (the default) or off",
        means: |value| matches!(value, "on" | "off"),
    },
    Setting { name: SVM, accepted: "on, or off (the default)", means: |value| matches!(value, "on" | "off") },
    Setting {
        name: WRITES,
        accepted: "on, or off (the default)",
        means: |value| matches!(value, "on" | "off"),
    },
    Setting {
        name: "SOFTGPU_STATS",
        accepted: "the name of a file, from the root on: softgpud has no other directory",
        means: |value| Path::new(value).is_absolute(),
    },
    Setting {
        name: "SOFTGPU_TRACE",
        accepted: "FILE:INSTRUCTIONS with a file's name from the root on and a number above 0",
        means: |value| {
            value.rsplit_once(':').is_some_and(|(file, count)| {
                Path::new(file).is_absolute() && count.parse::<u64>().is_ok_and(|count| count > 0)
            })
        },
    },
    Setting {
        name: "SOFTGPU_JIT_DUMP",
        accepted: "the name of a directory that exists, from the root on",
        means: |value| Path::new(value).is_absolute() && Path::new(value).is_dir(),
    },
    Setting {
        name: misbehaviour::VARIABLE,
        accepted: "the name of a probe of `stasis doctor` that is to fail (docs/hardware.md)",
        means: |value| Misbehaviour::named(value).is_some(),
    },
];

/// Checks all variables of the environment.
///
/// # Errors
/// [`SettingError`] for the first invalid one. An empty variable counts as unset.
pub(super) fn check() -> Result<(), SettingError> {
    KNOWN.iter().try_for_each(|setting| match std::env::var_os(setting.name) {
        Some(value) => judge(setting, &value),
        None => Ok(()),
    })
}

/// Whether the chips' errata are modelled. They are off only for tests that have to get past one: by default a runtime that misses
/// an erratum fails.
pub(super) fn errata() -> bool {
    std::env::var_os(ERRATA).is_none_or(|value| value != "off")
}

/// Whether the kernel's SVM ioctl works.
pub(super) fn svm() -> bool {
    std::env::var_os(SVM).is_some_and(|value| value == "on")
}

/// Whether clients are told which memory GPUs have written.
pub(super) fn writes() -> bool {
    std::env::var_os(WRITES).is_some_and(|value| value == "on")
}

fn judge(setting: &Setting, value: &OsStr) -> Result<(), SettingError> {
    let Setting { name, accepted, means } = *setting;
    if value.is_empty() || value.to_str().is_some_and(means) {
        return Ok(());
    }
    Err(SettingError { name, value: value.to_owned(), accepted })
}

/// Clients warn of names that are not in this list.
const _: () = assert!(KNOWN.len() == SETTINGS.len());

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, value: &str) -> Result<(), String> {
        let setting = KNOWN.iter().find(|setting| setting.name == name).expect("a setting");
        judge(setting, OsStr::new(value)).map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_those_that_clients_know() {
        assert_eq!(KNOWN.map(|setting| setting.name), SETTINGS);
    }

    #[test]
    fn values_that_mean_something_are_taken() {
        for (name, value) in [
            ("SOFTGPU_ENGINE", "jit"),
            ("SOFTGPU_ENGINE", ""),
            ("SOFTGPU_CPU", "avx2"),
            ("SOFTGPU_CACHE", "off"),
            ("SOFTGPU_CACHE", "/tmp/not-there-yet"),
            ("SOFTGPU_KERNEL", "7.3"),
            ("SOFTGPU_ERRATA", "off"),
            ("SOFTGPU_SVM", "on"),
            ("SOFTGPU_SVM", "off"),
            ("SOFTGPU_WRITES", "on"),
            ("SOFTGPU_STATS", "/tmp/stats"),
            ("SOFTGPU_TRACE", "/tmp/a:b:12"),
            ("SOFTGPU_JIT_DUMP", "/"),
            ("SOFTGPU_MISBEHAVE", "sdma"),
        ] {
            assert_eq!(told(name, value), Ok(()), "{name}={value}");
        }
    }

    #[test]
    fn values_that_mean_nothing_are_refused_with_what_would() {
        for (name, value, accepted) in [
            ("SOFTGPU_ENGINE", "JIT", "interp, jit, quick or auto"),
            ("SOFTGPU_CPU", "avx", "baseline, avx2 or avx512"),
            ("SOFTGPU_CACHE", "on", "off, or the name of a directory"),
            ("SOFTGPU_CACHE", "/", "off, or the name of a directory"),
            ("SOFTGPU_KERNEL", "5.4", "6.12, 7.3 (the default) or fixed"),
            ("SOFTGPU_ERRATA", "no", "on (the default) or off"),
            ("SOFTGPU_SVM", "1", "on, or off (the default)"),
            ("SOFTGPU_WRITES", "yes", "on, or off (the default)"),
            ("SOFTGPU_STATS", "stats", "from the root on"),
            ("SOFTGPU_TRACE", "/tmp/a:0", "FILE:INSTRUCTIONS"),
            ("SOFTGPU_TRACE", "/tmp/a", "FILE:INSTRUCTIONS"),
            ("SOFTGPU_JIT_DUMP", "/nowhere/at/all", "directory that exists"),
            ("SOFTGPU_MISBEHAVE", "all", "the name of a probe"),
        ] {
            let error = told(name, value).unwrap_err();
            assert!(error.starts_with(&format!("{name} is {value:?}; it can be ")), "{error}");
            assert!(error.contains(accepted), "{error}");
        }
    }
}
