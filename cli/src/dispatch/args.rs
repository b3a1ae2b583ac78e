// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `stasis dispatch`, as far as they make sense without a device.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use stasis::code_object::{CodeObject, Kernel, KernelMetadata};

use super::argument::{Argument, Extent3, RawKernarg, RawPart, Save};
use super::observe::ObserveArgs;

/// Arguments of `stasis dispatch`.
#[derive(Debug, Args)]
pub struct DispatchArgs {
    /// The code object (ELF), or an offload bundle of several, compressed or not: the agent's entry is run. Without --grid
    /// and --groups it is the first entry for an AMD GPU, with --disassemble the first for gfx11.
    pub file: PathBuf,
    /// The kernel's name. It can be left out where the file has one; without --grid and --groups the kernels and their
    /// arguments are listed.
    #[arg(long)]
    pub kernel: Option<String>,
    /// Work-items: X,Y,Z.
    #[arg(long, group = "extent", conflicts_with = "groups")]
    grid: Option<Extent3>,
    /// Workgroups: X,Y,Z, as Triton, HIP and tinygrad count; the grid is as many times the block.
    #[arg(long, group = "extent")]
    groups: Option<Extent3>,
    /// Work-items of a workgroup: X,Y,Z. It can be left out where the kernel was compiled for one size.
    #[arg(long, requires = "extent")]
    block: Option<Extent3>,
    /// Dynamic LDS in bytes.
    #[arg(long, default_value_t = 0)]
    pub lds: u32,
    /// A kernel argument, in order; see the long help.
    ///
    /// `in:F.npy`, `inout:F.npy`, `out:f32[1024]`, `u32:7`, `i64:-1`, `f16:1.5`, `bool:true`; the types are bool, u8, i8,
    /// u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64. A buffer gets the file's bytes as they are: nothing is converted.
    /// Files other than .npy are raw bytes. NumPy has no bf16: such a buffer is saved as its bits in uint16
    /// (`.view(ml_dtypes.bfloat16)` has them back), and read from uint16 or from the V2 that NumPy writes for ml_dtypes.
    #[arg(long = "arg", allow_hyphen_values = true, requires = "extent")]
    pub arguments: Vec<Argument>,
    /// The whole kernarg block as hex digits; {K} is the address of the K-th --arg's buffer.
    #[arg(long, value_name = "HEX", requires = "extent")]
    pub arg_bytes: Option<RawKernarg>,
    /// Write the buffer of argument K afterwards: K=F.npy.
    #[arg(long, requires = "extent")]
    pub save: Vec<Save>,
    /// Which agent.
    #[arg(long, default_value_t = 0)]
    pub agent: usize,
    /// How long the kernel may take, each time, and the device for each step before and after it.
    #[arg(long, default_value_t = 60_000, value_name = "MS")]
    pub timeout_ms: u64,
    /// Run it N times, one after the other, and print the shortest, the median and the longest time. Each run finds in the
    /// buffers what the one before has left there.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "extent", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub repeat: u32,
    /// Run it N times before that, without counting them.
    #[arg(long, default_value_t = 0, value_name = "N", requires = "extent", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub warm_up: u32,
    /// Launch a kernel that may want something of the host that is not offered (OpenCL's printf, malloc): it finds 0 for
    /// the address, and faults if it goes there.
    #[arg(long, requires = "extent")]
    without_services: bool,
    /// Print the kernel's machine code (gfx11); without --grid and --groups nothing is run and no device is needed.
    #[arg(long)]
    pub disassemble: bool,
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    pub json: bool,
}

/// What the kernel calls the host for; there is nobody to answer.
const SERVICES: [(&str, &str); 2] =
    [("hidden_printf_buffer", "OpenCL's printf"), ("hidden_heap_v1", "malloc and free")];

impl DispatchArgs {
    /// [`Self::timeout_ms`].
    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Whether the kernel runs more than once.
    pub fn repeats(&self) -> bool {
        self.repeat > 1 || self.warm_up > 0
    }

    /// Leaves what a process does that only counts and traces for another: one run, watched, its counts as JSON.
    pub fn become_counter(&mut self) {
        (self.repeat, self.warm_up, self.json, self.disassemble) = (1, 0, true, false);
        self.save.clear();
        self.observe.engine = None;
    }

    /// Whether anything is to be run.
    pub fn runs(&self) -> bool {
        self.grid.is_some() || self.groups.is_some()
    }

    /// The kernel that is meant: by its name, or the only one.
    pub fn kernel<'o>(&self, object: &'o CodeObject) -> Result<&'o Kernel> {
        if let Some(name) = &self.kernel {
            return Ok(object.kernel(name)?);
        }
        match object.kernels() {
            [only] => Ok(only),
            all => {
                let names: Vec<_> = all.iter().map(|kernel| kernel.name.as_str()).collect();
                anyhow::bail!(
                    "{} has {} kernels: name one by --kernel: {}",
                    self.file.display(),
                    all.len(),
                    names.join(", ")
                )
            }
        }
    }

    /// Work-items of the grid and of a workgroup.
    pub fn geometry(&self, kernel: &KernelMetadata) -> Result<([u32; 3], [u16; 3])> {
        let block = self.block.or(kernel.required_workgroup.map(Extent3)).with_context(|| {
            format!("--block is missing: {} runs in workgroups of any size that fits", kernel.name)
        })?;
        let grid = match (self.grid, self.groups) {
            (Some(grid), _) => grid,
            (None, Some(groups)) => groups.times(block).map_err(anyhow::Error::msg)?,
            (None, None) => anyhow::bail!("--grid or --groups is missing"),
        };
        let narrow =
            |items: u32| u16::try_from(items).with_context(|| format!("A workgroup of {items} is too large"));
        Ok((grid.0, [narrow(block.0[0])?, narrow(block.0[1])?, narrow(block.0[2])?]))
    }

    /// Refuses what `--save` cannot name.
    pub fn check_saves(&self) -> Result<()> {
        for save in &self.save {
            let known = self.arguments.get(save.argument).is_some_and(Argument::is_buffer);
            ensure!(known, "--save {} names no buffer among the --arg", save.argument);
        }
        Ok(())
    }

    /// Refuses a kernel that may want a service, unless told otherwise or given the whole block by hand.
    pub fn check_services(&self, kernel: &KernelMetadata) -> Result<()> {
        let by_hand = self.arg_bytes.as_ref().is_some_and(|raw| raw.bytes() == kernel.kernarg_bytes as usize);
        if self.without_services || by_hand {
            return Ok(());
        }
        let missing = kernel.services().filter_map(|name| SERVICES.iter().find(|(known, _)| *known == name));
        let missing: Vec<_> = missing.map(|(name, use_)| format!("{name} ({use_})")).collect();
        ensure!(
            missing.is_empty(),
            "{} may want what this runtime does not offer: {}; with --without-services it is launched all the same and \
             finds 0 for the address",
            kernel.name,
            missing.join(", ")
        );
        Ok(())
    }
}

impl RawKernarg {
    /// Length of the block.
    fn bytes(&self) -> usize {
        let length = |part: &RawPart| match part {
            RawPart::Bytes(bytes) => bytes.len(),
            RawPart::Address(_) => size_of::<u64>(),
        };
        self.0.iter().map(length).sum()
    }
}
