// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis dispatch`: runs one kernel of a code object from the shell.

mod argument;
mod array;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use stasis::{Arg, Buffer, Executable, Kernel, Queue, QueueOptions, Runtime, Signal};

use self::argument::{Argument, Extent3, RawKernarg, RawPart, Save};
use self::array::Array;

/// Arguments of `stasis dispatch`.
#[derive(Debug, Args)]
pub struct DispatchArgs {
    /// The code object (ELF).
    file: PathBuf,
    /// The kernel's name.
    #[arg(long)]
    kernel: String,
    /// Work-items: X,Y,Z.
    #[arg(long)]
    grid: Extent3,
    /// Work-items of a workgroup: X,Y,Z.
    #[arg(long)]
    block: Extent3,
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

fn load(args: &DispatchArgs, runtime: &Runtime) -> Result<Kernel> {
    let bytes = std::fs::read(&args.file).with_context(|| format!("Cannot read {}", args.file.display()))?;
    let agent = runtime
        .agent(args.agent)
        .with_context(|| format!("There is no agent {}; there are {}", args.agent, runtime.agents().len()))?;
    let executable =
        Executable::load(&agent, &bytes).with_context(|| format!("Cannot load {}", args.file.display()))?;
    Ok(executable.kernel(&args.kernel)?)
}

/// Runs the kernel.
pub fn run(args: &DispatchArgs) -> Result<()> {
    for save in &args.save {
        let known = matches!(args.arguments.get(save.argument), Some(a) if !matches!(a, Argument::Scalar(_)));
        ensure!(known, "--save {} names no buffer among the --arg", save.argument);
    }
    let runtime = Runtime::open_default()?;
    let kernel = load(args, &runtime)?;
    let agent = kernel.executable().agent().clone();
    let prepared =
        args.arguments.iter().map(|a| Prepared::new(a, &runtime, args.agent)).collect::<Result<Vec<_>>>()?;
    let scratch_lane_bytes = kernel.metadata().private_bytes;
    let queue = Queue::create(&agent, QueueOptions { scratch_lane_bytes, ..QueueOptions::default() })?;
    let done = Signal::new(&runtime, 1)?;
    let arguments: Vec<_> = prepared.iter().map(Prepared::as_argument).collect();
    let block = args.arg_bytes.as_ref().map(|raw| raw_block(raw, &prepared)).transpose()?;
    let mut dispatch = queue
        .dispatch(&kernel)
        .grid(args.grid.0)
        .block(workgroup(args.block)?)
        .dynamic_lds(args.lds)
        .completion(&done);
    dispatch = match &block {
        Some(block) => dispatch.raw_kernarg(block),
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
    println!("{}: {:.3} ms on {} {}", args.kernel, elapsed.as_secs_f64() * 1e3, agent.uuid(), agent.name());
    Ok(())
}
