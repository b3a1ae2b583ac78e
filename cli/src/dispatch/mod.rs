// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis dispatch`: runs one kernel of a code object from the shell, shows its code, or lists what kernels there are.
//!
//! ```text
//! args      the command line, checked against the code object     observe      engines, traces, counts
//! argument  its words: --arg, --save, --arg-bytes                 report       what is printed of a run
//! element   element types                                         stats        the device's counts
//! array     files of elements                                     disassemble  a kernel's code
//! run       buffers, runs, times                                  kernels      the list of kernels
//! code      the file's code object, or a bundle's entry
//! ```

mod args;
mod argument;
mod array;
mod code;
mod disassemble;
mod element;
mod kernels;
mod observe;
mod report;
mod run;
mod stats;
mod times;
mod watchdog;

use std::io::Write;

use anyhow::{Context, Result};
use stasis::code_object::{Bundle, CodeObject};
use stasis::regular::{self, Links};
use stasis::{Agent, Executable, Printed, Runtime};

pub use self::args::DispatchArgs;
use self::code::Chosen;
use self::disassemble::Listing;
use self::kernels::Kernels;
use self::observe::{Session, counts_for_another};
use self::report::Report;
use self::watchdog::Watchdog;
use crate::output;

/// The most bytes of a code object; the largest libraries have a tenth.
const MAX_CODE_OBJECT: u64 = 4 << 30;

/// Runs the kernel, shows its code, both, or lists what there is.
pub fn run(mut args: DispatchArgs) -> Result<()> {
    if counts_for_another() {
        args.become_counter();
    }
    args.check_saves()?;
    let file = regular::read(&args.file, MAX_CODE_OBJECT, Links::Follow)?;
    let cannot_load = || format!("Cannot load {}", args.file.display());
    // Which entry of a bundle is meant the agent decides; otherwise what can be said without a device is said first.
    let mut device = None;
    let (code, chosen) = if args.runs() && Bundle::is_bundle(&file) {
        let device = device.insert(Device::open(&args)?);
        (device.agent.code_of(&file).with_context(cannot_load)?, None)
    } else {
        code::to_look_at(&file, args.disassemble).with_context(cannot_load)?
    };
    let object = CodeObject::parse(&code).with_context(cannot_load)?;
    if !args.runs() && !args.disassemble {
        return list(&args, &object, chosen);
    }
    let kernel = args.kernel(&object)?;
    let mut report = Report::new(&kernel.name);
    if args.disassemble {
        report.disassembly = Some(Listing::new(&object, &kernel.name)?);
    }
    if !args.runs() {
        output::show(report.text(args.json)?);
        return Ok(());
    }
    args.check_services(&kernel.metadata)?;
    let (grid, block) = args.geometry(&kernel.metadata)?;
    let Device { watchdog, session, agent, runtime } = match device {
        Some(device) => device,
        None => Device::open(&args)?,
    };
    watchdog.step("loading the kernel");
    let kernel = Executable::load(&agent, &code).with_context(cannot_load)?.kernel(&kernel.name)?;
    // With --json nothing else goes to standard output.
    if args.json {
        runtime.keep_prints(true);
    }
    let run = run::run(&args, &runtime, &kernel, (grid, block), &watchdog);
    if args.json {
        for Printed { text, .. } in runtime.take_prints() {
            std::io::stderr().write_all(&text)?;
        }
    }
    watchdog.step("closing it");
    if let Some(session) = session {
        // What there is to see of a dispatch that failed is what one looks for.
        fill(&args, &mut report, session, kernel.object_va())?;
    }
    report.set_run(&run, kernel.executable().agent());
    // As in `run`: the end of the process is the end of all it has of the device.
    std::mem::forget((kernel, agent, runtime));
    output::show(report.text(args.json)?);
    run.map(drop)
}

/// The open device, and what watches it.
struct Device {
    runtime: Runtime,
    agent: Agent,
    session: Option<Session>,
    /// Dropped after all that holds the device.
    watchdog: Watchdog,
}

impl Device {
    fn open(args: &DispatchArgs) -> Result<Self> {
        let session = args.observe.session(args.repeats())?;
        let watchdog = Watchdog::start(args.limit(), "opening it")?;
        let runtime = Runtime::open_default()?;
        watchdog.step("looking at it");
        if let Some(session) = &session {
            session.check(&runtime)?;
        }
        let agent = runtime.agent(args.agent);
        let agent = agent.with_context(|| {
            format!("There is no agent {}; there are {}", args.agent, runtime.agents().len())
        })?;
        Ok(Self { runtime, agent, session, watchdog })
    }
}

/// Prints the file's kernels, or the one that is named.
fn list(args: &DispatchArgs, object: &CodeObject, chosen: Option<Chosen>) -> Result<()> {
    let only = args.kernel.as_ref().map(|name| object.kernel(name)).transpose()?;
    let kernels = Kernels::new(&args.file, object, only, chosen);
    output::show(match args.json {
        true => serde_json::to_string_pretty(&kernels)? + "\n",
        false => kernels.to_string(),
    });
    Ok(())
}

/// The session ends here: what is printed afterwards may be the end of the process.
fn fill(args: &DispatchArgs, report: &mut Report, session: Session, object: u64) -> Result<()> {
    args.observe.fill(report, &session, object)
}
