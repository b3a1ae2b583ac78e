// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run that a process belongs to.

use kfd::transport::run::{DEVICES_VARIABLE, DIRECTORY_VARIABLE, SOCKET_VARIABLE};
use serde::{Deserialize, Serialize};

use crate::processes::Environment;

/// The run that processes belong to, as their environment says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    /// The abstract socket of its softgpud.
    pub socket: String,
    /// The files of its machine.
    pub directory: String,
    /// Its devices, as softgpud names them.
    pub devices: String,
}

impl Run {
    /// The run of a process.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        Self::from(&Environment::of(pid)?)
    }

    fn from(environment: &Environment) -> Option<Self> {
        let value = |name| String::from_utf8(environment.value(name)?.to_vec()).ok();
        let (socket, directory) = (value(SOCKET_VARIABLE)?, value(DIRECTORY_VARIABLE)?);
        Some(Self { socket, directory, devices: value(DEVICES_VARIABLE)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_read_from_the_environment_of_a_process() {
        let all = [(SOCKET_VARIABLE, "s"), (DIRECTORY_VARIABLE, "/d"), (DEVICES_VARIABLE, "gfx1100")];
        let wanted = Run { socket: "s".into(), directory: "/d".into(), devices: "gfx1100".into() };
        let of = |variables: &[(&str, &str)]| {
            let text: String = variables.iter().map(|(name, value)| format!("{name}={value}\0")).collect();
            Run::from(&Environment::of_text(text.into_bytes()))
        };
        assert_eq!(of(&all), Some(wanted));
        assert_eq!(of(&all[1..]), None);
        assert_eq!(Run::of(i32::MAX), None);
    }
}
