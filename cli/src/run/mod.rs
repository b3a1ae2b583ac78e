// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis run`: a program that was written for AMD's driver, on the software device.
//!
//! ```text
//!   stasis run ──starts──► softgpud, on a socket and with a directory of this run
//!       └──────starts──► the program, with libstasis_kfd.so preloaded: it asks that softgpud
//! ```
//!
//! INVARIANT: softgpud's standard input is a pipe from this process. When this process ends, however it ends, softgpud
//! removes the directory and ends too, as soon as the last process of the run that has a device is gone.

mod device;
mod program;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use kfd::transport::DeviceSpec;

use self::device::Device;

/// Arguments of `stasis run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The GPUs: soft, soft:gfx1100*4, soft:gfx1100,gfx1201 or soft:FILE.toml. Without it STASIS_DEVICE, else one gfx1100
    #[arg(long, value_name = "SPEC")]
    device: Option<DeviceSpec>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the program; answers its exit status.
///
/// # Errors
/// Why there is no device, or why the program cannot be started.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let spec = args.device.clone().map_or_else(DeviceSpec::from_env, Ok)?;
    let mut device = Device::start(&spec)?;
    let status = program::run(&args.command, &device);
    device.end();
    status.map(ExitCode::from)
}
