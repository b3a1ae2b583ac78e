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
mod loadable;
mod program;
mod summary;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use kfd::transport::DeviceSpec;

use self::device::Device;
use self::summary::{Total, refusals};
use crate::output;

/// Arguments of `stasis run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The GPUs: soft, soft:gfx1100*4, soft:gfx1100,gfx1201 or soft:FILE.toml. Without it STASIS_DEVICE, else one gfx1100
    #[arg(long, value_name = "SPEC")]
    device: Option<DeviceSpec>,
    /// Say on standard error, when the program has ended, what it had the device do
    #[arg(long)]
    verbose: bool,
    /// Write a line of JSON for each ioctl and dispatch to a file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
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
    let trace = args.trace.as_deref().map(device::empty_file).transpose()?;
    let mut device = Device::start(&spec, trace)?;
    let begun = Instant::now();
    let status = program::run(&args.command, &device);
    let checkpoint = device.checkpoint();
    let clients = device.end();
    if let Some(directory) = checkpoint {
        // Not into a file: the program may have the same one, which must be as it was when the program is restored.
        if std::io::stderr().is_terminal() {
            output::complain(format_args!("stasis run: the program is checkpointed in {directory}\n"));
        }
        return status.map(ExitCode::from);
    }
    for refusal in refusals(&clients) {
        output::complain(format_args!("stasis run: {refusal}; use --device soft:gfx1100\n"));
    }
    if args.verbose {
        output::complain(format_args!("stasis run: {}\n", Total::of(&clients, begun.elapsed())));
    }
    status.map(ExitCode::from)
}
