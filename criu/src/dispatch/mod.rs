// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis dispatch`: runs one kernel of a code object from the shell, or shows its code.

mod argument;
mod array;
mod disassemble;
mod observe;
mod report;
mod stats;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use stasis::code_object::CodeObject;
use stasis::{Arg, Buffer, Executable, Kernel, Queue, QueueOptions, Runtime, Signal};

use self::argument::{Argument, Extent3, RawKernarg, RawPart, Save};
use self::array::Array;
use self::disassemble::Listing;
use self::observe::ObserveArgs;
use self::report::Report;

/// Arguments of `stasis dispatch`.
#[derive(Debug, Args)]
pub struct DispatchArgs {
    /// The code object (ELF).
    file: PathBuf,
    /// The kernel's name.
    #[arg(long)]
    kernel: String,
    /// Work-items: X,Y,Z.
    #[arg(long, required_unless_present = "disassemble", requires = "block")]
    grid: Option<Extent3>,
    /// Work-items of a workgroup: X,Y,Z.
    #[arg(long, requires = "grid")]
    block: Option<Extent3>,
    /// Dynamic LDS in bytes.
    #[arg(long, default_value_t = 0)]
    lds: u32,
    /// A kernel argument, in order; see the long help.
    ///
    /// `in:F.npy`, `inout:F.npy`, `out:f32[1024]`, `u32:7`, `i64:-1`, `f32:1.5`; files other than .npy are raw bytes.
    #[arg(long = "arg", allow_hyphen_values = true)]
    arguments: Vec<Argument>,
    /// The whole kernarg block as hex digits; {K} is the address of the K-th --arg's buffer.
    #[arg(long, value_name = "HEX")]
    arg_bytes: Option<RawKernarg>,
    /// Write the buffer of argument K afterwards: K=F.npy.
    #[arg(long)]
    save: Vec<Save>,
    /// Which agent.
    #[arg(long, default_value_t = 0)]
    agent: usize,
    /// How long the kernel may take.
    #[arg(long, default_value_t = 60_000, value_name = "MS")]
    timeout_ms: u64,
    /// Print the kernel's machine code (gfx11); without --grid nothing is run and no device is needed.
    #[arg(long)]
    disassemble: bool,
    #[command(flatten)]
    observe: ObserveArgs,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
}

/// An argument with what was made for it.
enum Prepared {
    Buffer { buffer: Buffer, array: Array },
    Scalar(Vec<u8>),
}

impl Prepared {
    fn new(argument: &Argument, runtime: &Runtime, agent: usize) -> Result<Self> {
        let array = match argument {
            Argument::Scalar(bytes) => return Ok(Self::Scalar(bytes.clone())),
            Argument::Input(path) | Argument::InOut(path) => Array::read(path)?,
            Argument::Output(element, count) => Array {
                bytes: vec![0; count * element.bytes()],
                element: Some(*element),
                shape: vec![*count as u64],
            },
        };
        ensure!(!array.bytes.is_empty(), "A buffer argument has no bytes");
        let agent = runtime.agent(agent).context("There is no such agent")?;
        let buffer = agent.vram().alloc(array.bytes.len() as u64)?;
        buffer.upload(0, &array.bytes)?;
        Ok(Self::Buffer { buffer, array })
    }

    fn as_argument(&self) -> Arg<'_> {
        match self {
            Self::Buffer { buffer, .. } => Arg::Buffer(buffer),
            Self::Scalar(bytes) => Arg::Bytes(bytes),
        }
    }
}

fn raw_block(raw: &RawKernarg, prepared: &[Prepared]) -> Result<Vec<u8>> {
    let mut block = Vec::new();
    for part in &raw.0 {
        match part {
            RawPart::Bytes(bytes) => block.extend_from_slice(bytes),
            RawPart::Address(index) => match prepared.get(*index) {
                Some(Prepared::Buffer { buffer, .. }) => block.extend_from_slice(&buffer.va().to_le_bytes()),
                _ => bail!("{{{index}}} in --arg-bytes names no buffer among the --arg"),
            },
        }
    }
    Ok(block)
}

fn workgroup(block: Extent3) -> Result<[u16; 3]> {
    let narrow =
        |items: u32| u16::try_from(items).with_context(|| format!("A workgroup of {items} is too large"));
    Ok([narrow(block.0[0])?, narrow(block.0[1])?, narrow(block.0[2])?])
}

fn load(args: &DispatchArgs, bytes: &[u8], runtime: &Runtime) -> Result<Kernel> {
    let agent = runtime
        .agent(args.agent)
        .with_context(|| format!("There is no agent {}; there are {}", args.agent, runtime.agents().len()))?;
    let executable =
        Executable::load(&agent, bytes).with_context(|| format!("Cannot load {}", args.file.display()))?;
    Ok(executable.kernel(&args.kernel)?)
}

/// Runs the kernel, shows its code, or both.
pub fn run(args: &DispatchArgs) -> Result<()> {
    for save in &args.save {
        let known = matches!(args.arguments.get(save.argument), Some(a) if !matches!(a, Argument::Scalar(_)));
        ensure!(known, "--save {} names no buffer among the --arg", save.argument);
    }
    let session = args.observe.session()?;
    let bytes = std::fs::read(&args.file).with_context(|| format!("Cannot read {}", args.file.display()))?;
    let mut report = Report::new(&args.kernel);
    if args.disassemble {
        let object =
            CodeObject::parse(&bytes).with_context(|| format!("Cannot load {}", args.file.display()))?;
        report.disassembly = Some(Listing::new(&object, &args.kernel)?);
    }
    let (Some(grid), Some(block)) = (args.grid, args.block) else { return report.print(args.json) };
    let runtime = Runtime::open_default()?;
    if let Some(session) = &session {
        session.check(&runtime)?;
    }
    let kernel = load(args, &bytes, &runtime)?;
    let run = dispatch(args, &runtime, &kernel, grid, block);
    if let Some(session) = &session {
        // What there is to see of a dispatch that failed is what one looks for.
        args.observe.fill(&mut report, session, kernel.object_va())?;
    }
    let agent = kernel.executable().agent();
    report.set_run(&run, agent);
    report.print(args.json)?;
    run.map(drop)
}

/// Runs the kernel and saves what is to be saved; how long it took.
fn dispatch(
    args: &DispatchArgs,
    runtime: &Runtime,
    kernel: &Kernel,
    grid: Extent3,
    block: Extent3,
) -> Result<Duration> {
    let prepared =
        args.arguments.iter().map(|a| Prepared::new(a, runtime, args.agent)).collect::<Result<Vec<_>>>()?;
    let scratch_lane_bytes = kernel.metadata().private_bytes;
    let agent = kernel.executable().agent();
    let queue = Queue::create(agent, QueueOptions { scratch_lane_bytes, ..QueueOptions::default() })?;
    let done = Signal::new(runtime, 1)?;
    let arguments: Vec<_> = prepared.iter().map(Prepared::as_argument).collect();
    let raw = args.arg_bytes.as_ref().map(|raw| raw_block(raw, &prepared)).transpose()?;
    let mut dispatch =
        queue.dispatch(kernel).grid(grid.0).block(workgroup(block)?).dynamic_lds(args.lds).completion(&done);
    dispatch = match &raw {
        Some(raw) => dispatch.raw_kernarg(raw),
        None => dispatch.args(&arguments),
    };
    let started = Instant::now();
    dispatch.submit()?;
    done.wait_done(Some(Duration::from_millis(args.timeout_ms)))?;
    let elapsed = started.elapsed();
    for save in &args.save {
        if let Prepared::Buffer { buffer, array } = &prepared[save.argument] {
            let mut bytes = vec![0; array.bytes.len()];
            buffer.download(0, &mut bytes)?;
            Array { bytes, ..array.clone() }.write(&save.path)?;
        }
    }
    Ok(elapsed)
}
