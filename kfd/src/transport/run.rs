// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `stasis run` tells the processes of a run, by their environment.

/// The environment variable with the run's directory: what is below `/sys`, `/dev` and `/proc` on the machine with the
/// GPUs, as `softgpud tree` writes it.
pub const DIRECTORY_VARIABLE: &str = "STASIS_RUN_DIRECTORY";

/// The environment variable with the abstract socket of the run's softgpud, without the leading zero byte.
pub const SOCKET_VARIABLE: &str = "STASIS_RUN_SOCKET";

/// The environment variable with the devices that this softgpud serves, as [`super::wire::Request::Hello`] names them.
pub const DEVICES_VARIABLE: &str = "STASIS_RUN_DEVICES";
