// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis dispatch`: runs one kernel of a code object from the shell, shows its code, or lists what kernels there are.
//!
//! ```text
//! args      the command line, checked against the code object     observe      engines, traces, counts
//! argument  its words: --arg, --save, --arg-bytes                 report       what is printed of a run
//! element   element types                                         stats        the device's counts
//! array     files of elements                                     disassemble  a kernel's code
//! run       buffers, runs, times                                  kernels      the list of kernels
//! ```

mod args;
mod argument;
mod array;
mod disassemble;
mod element;
mod kernels;
mod observe;
mod report;
mod run;
mod stats;
mod times;
mod watchdog;

use anyhow::{Context, Result};
use stasis::code_object::CodeObject;
use stasis::regular::{self, Links};
use stasis::{Executable, Kernel, Runtime};

pub use self::args::DispatchArgs;
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
    let bytes = regular::read(&args.file, MAX_CODE_OBJECT, Links::Follow)?;
    let object = CodeObject::parse(&bytes).with_context(|| format!("Cannot load {}", args.file.display()))?;
    if !args.runs() && !args.disassemble {
        return list(&args, &object);
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
    let session = args.observe.session(args.repeats())?;
    // Dropped after all that holds the device.
    let watchdog = Watchdog::start(args.limit(), "opening it")?;
    let runtime = Runtime::open_default()?;
    watchdog.step("loading the kernel");
    if let Some(session) = &session {
        session.check(&runtime)?;
    }
    let kernel = load(&args, &bytes, &kernel.name, &runtime)?;
    let run = run::run(&args, &runtime, &kernel, (grid, block), &watchdog);
    watchdog.step("closing it");
    if let Some(session) = session {
        // What there is to see of a dispatch that failed is what one looks for.
        fill(&args, &mut report, session, kernel.object_va())?;
    }
    report.set_run(&run, kernel.executable().agent());
    // As in `run`: the end of the process is the end of all it has of the device.
    std::mem::forget((kernel, runtime));
    output::show(report.text(args.json)?);
    run.map(drop)
}

/// Prints the file's kernels, or the one that is named.
fn list(args: &DispatchArgs, object: &CodeObject) -> Result<()> {
    let only = args.kernel.as_ref().map(|name| object.kernel(name)).transpose()?;
    let kernels = Kernels::new(&args.file, object, only);
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

fn load(args: &DispatchArgs, bytes: &[u8], name: &str, runtime: &Runtime) -> Result<Kernel> {
    let agent = runtime
        .agent(args.agent)
        .with_context(|| format!("There is no agent {}; there are {}", args.agent, runtime.agents().len()))?;
    let executable =
        Executable::load(&agent, bytes).with_context(|| format!("Cannot load {}", args.file.display()))?;
    Ok(executable.kernel(name)?)
}
