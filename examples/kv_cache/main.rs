// SPDX-License-Identifier: MIT OR Apache-2.0
//! A KV-cache that grows in place: addresses for the whole cache are reserved once, and memory is mapped at its end as
//! tokens come.
//!
//! Kernels append rows and read the cache from its beginning at one address that never changes; no byte is ever copied
//! to make it larger. In the middle the process checkpoints itself in place and takes its device back with all pages.
//! It can also be frozen from outside (`stasis checkpoint`; `--until` makes it run long enough) and goes on after the
//! restore.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use stasis::checkpoint::Mode;
use stasis::{Access, Agent, Arg, Buffer, Executable, Kernel, Queue, QueueOptions, Range, Runtime, Signal};
use stasis_examples::{code_for, log_to_stderr};

include!(concat!(env!("OUT_DIR"), "/kv_cache.rs"));

/// Words of a row, and work-items of a work-group, as the kernels assume.
const WORDS: u16 = 256;
/// Bytes of a row.
const ROW: u64 = WORDS as u64 * 4;
/// TIMEOUT: for a step, on a busy machine.
const STEP: Duration = Duration::from_secs(60);

/// Appends tokens to a cache that grows by mapping memory at its end.
#[derive(Debug, Parser)]
struct Args {
    /// Tokens altogether.
    #[arg(long, default_value_t = 4096)]
    tokens: u32,
    /// Tokens appended at once.
    #[arg(long, default_value_t = 96)]
    batch: u32,
    /// Bytes of addresses to reserve for the cache.
    #[arg(long, default_value_t = 1 << 30)]
    reserve: u64,
    /// Bytes mapped at once, a multiple of 4096.
    #[arg(long, default_value_t = 256 << 10)]
    page: u64,
    /// Where the checkpoint in the middle goes; a directory below the system's for temporary files without it.
    #[arg(long)]
    images: Option<PathBuf>,
    /// Append a batch every 10 ms until this file exists, and make no checkpoint in the middle.
    #[arg(long)]
    until: Option<PathBuf>,
}

/// The reserved addresses and how many of them have memory.
struct Cache {
    range: Range,
    agent: Agent,
    page: u64,
    mapped: u64,
    tokens: u32,
}

impl Cache {
    /// Maps memory until `tokens` tokens fit. The handles of the memory are dropped: it lives as long as it is mapped.
    fn grow(&mut self, tokens: u32) -> Result<()> {
        while self.mapped < u64::from(tokens) * ROW {
            let page = self.agent.vram().physical(self.page)?;
            self.range.map(self.mapped, &page, 0, page.len())?;
            self.range.set_access(self.mapped, page.len(), &[(&self.agent, Access::ReadWrite)])?;
            self.mapped += page.len();
        }
        Ok(())
    }
}

/// What runs the kernels.
struct Work {
    queue: Queue,
    append: Kernel,
    attend: Kernel,
    wrong: Buffer,
    runtime: Runtime,
}

impl Work {
    fn run(&self, kernel: &Kernel, rows: u32, args: &[Arg<'_>]) -> Result<()> {
        let done = Signal::new(&self.runtime, 1)?;
        let grid = [rows * u32::from(WORDS), 1, 1];
        self.queue.dispatch(kernel).grid(grid).block([WORDS, 1, 1]).args(args).completion(&done).submit()?;
        Ok(done.wait_done(Some(STEP))?)
    }

    fn append(&self, cache: &mut Cache, tokens: u32) -> Result<()> {
        let first = cache.tokens;
        let all = first.checked_add(tokens).context("too many tokens")?;
        cache.grow(all)?;
        self.run(&self.append, tokens, &[Arg::Buffer(cache.range.buffer()), Arg::U32(first)])?;
        cache.tokens = all;
        Ok(())
    }

    /// Reads all rows on the GPU, and the last on the host.
    fn verify(&self, cache: &Cache) -> Result<()> {
        self.wrong.write(0, &[0; 4])?;
        let args = [Arg::Buffer(cache.range.buffer()), Arg::Buffer(&self.wrong)];
        self.run(&self.attend, cache.tokens, &args)?;
        let mut wrong = 0u32;
        self.wrong.read(0, bytemuck::bytes_of_mut(&mut wrong))?;
        ensure!(wrong == 0, "{wrong} words of {} tokens are not what was appended", cache.tokens);
        let mut row = [0u32; WORDS as usize];
        let last = cache.tokens - 1;
        cache.range.read(u64::from(last) * ROW, bytemuck::cast_slice_mut(&mut row))?;
        let entry = |word: u32| last.wrapping_mul(2_654_435_761) ^ (word * 40_503 + 1);
        ensure!(row.iter().zip(0..).all(|(found, word)| *found == entry(word)), "the host reads other words");
        Ok(())
    }
}

/// Closes the device, with all its state saved, and takes it back.
fn there_and_back(runtime: &Runtime, images: &Path) -> Result<u64> {
    runtime.lock(Mode::Drain, STEP)?;
    let report = runtime.checkpoint(images)?;
    runtime.restore(None)?;
    runtime.unlock()?;
    Ok(report.content_bytes)
}

fn main() -> Result<()> {
    log_to_stderr();
    let args = Args::parse();
    ensure!(args.tokens > 1 && args.batch > 0, "there are at least two tokens, and one in a batch");
    let runtime = Runtime::open_default()?;
    let agent = runtime.agent(0).context("There is no agent")?;
    let code = code_for(&agent, "kv_cache", OBJECTS)?;
    let code = Executable::load(&agent, code)?;
    let work = Work {
        queue: Queue::create(&agent, QueueOptions::default())?,
        append: code.kernel("append")?,
        attend: code.kernel("attend")?,
        wrong: runtime.gtt().alloc(4)?,
        runtime: runtime.clone(),
    };
    let range = runtime.reserve(args.reserve, 0)?;
    let mut cache = Cache { range, agent, page: args.page, mapped: 0, tokens: 0 };
    println!("reserved {:#x}+{:#x}, nothing of it has memory", cache.range.va(), cache.range.len());
    match &args.until {
        Some(file) => fill_until(&work, &mut cache, args.batch, file)?,
        None => fill(&work, &mut cache, &args)?,
    }
    let pages = cache.mapped / cache.page;
    println!(
        "OK: {} tokens verified in {pages} pages of {} bytes, mapped as they came",
        cache.tokens, cache.page
    );
    Ok(())
}

fn fill(work: &Work, cache: &mut Cache, args: &Args) -> Result<()> {
    let own = std::env::temp_dir().join(format!("kv_cache-{}", std::process::id()));
    let images = args.images.as_ref().unwrap_or(&own);
    let mut is_checkpointed = false;
    while cache.tokens < args.tokens {
        work.append(cache, args.batch.min(args.tokens - cache.tokens))?;
        if !is_checkpointed && cache.tokens >= args.tokens / 2 {
            std::fs::create_dir_all(images)?;
            let bytes = there_and_back(&work.runtime, images);
            if args.images.is_none() {
                std::fs::remove_dir_all(images)?;
            }
            println!("checkpointed and restored with {} tokens ({} bytes)", cache.tokens, bytes?);
            work.verify(cache)?;
            is_checkpointed = true;
        }
    }
    work.verify(cache)
}

fn fill_until(work: &Work, cache: &mut Cache, batch: u32, file: &Path) -> Result<()> {
    loop {
        work.append(cache, batch)?;
        work.verify(cache)?;
        println!("round {}", cache.tokens);
        if file.exists() {
            println!("done");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
