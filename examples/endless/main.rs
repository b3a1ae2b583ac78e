// SPDX-License-Identifier: MIT OR Apache-2.0
//! A persistent kernel: one dispatch that counts until the host stops it.
//!
//! The kernel never ends by itself, so a drain cannot succeed. `stasis checkpoint --preempt` stops its waves between
//! two instructions; after the restore the waves go on with the same registers. The program has no code for that; it
//! only checks that no count ever falls.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use stasis::{Arg, Buffer, Executable, Queue, QueueOptions, Runtime, Signal};
use stasis_examples::{code_for, log_to_stderr};

include!(concat!(env!("OUT_DIR"), "/endless.rs"));

/// Work-items of a work-group, as the kernel assumes.
const GROUP: u16 = 64;

/// Counts on the GPU until a file appears.
#[derive(Debug, Parser)]
struct Args {
    /// Count until this file exists.
    #[arg(long)]
    until: PathBuf,
    /// Work-groups of 64 work-items.
    #[arg(long, default_value_t = 4)]
    groups: u32,
    /// How often to print the counts.
    #[arg(long, default_value_t = 50, value_name = "MS")]
    every_ms: u64,
}

fn read(buffer: &Buffer, items: u32) -> Result<Vec<u32>> {
    let mut words = vec![0u32; items as usize];
    buffer.read(0, bytemuck::cast_slice_mut(&mut words))?;
    Ok(words)
}

/// Prints the counts at intervals; fails if one of them falls.
fn watch(args: &Args, counts: &Buffer, items: u32) -> Result<Vec<u32>> {
    let mut last = vec![0; items as usize];
    while !args.until.exists() {
        let now = read(counts, items)?;
        if let Some(item) = (0..last.len()).find(|&item| now[item] < last[item]) {
            anyhow::bail!("item {item} counted {} and is back at {}", last[item], now[item]);
        }
        println!("count {}", now.iter().map(|&count| u64::from(count)).sum::<u64>());
        last = now;
        std::thread::sleep(Duration::from_millis(args.every_ms));
    }
    Ok(last)
}

fn main() -> Result<()> {
    log_to_stderr();
    let args = Args::parse();
    ensure!(args.groups > 0, "a grid has at least one work-group");
    let items = args.groups.checked_mul(u32::from(GROUP)).context("too many work-groups")?;
    let runtime = Runtime::open_default()?;
    let agent = runtime.agent(0).context("There is no agent")?;
    let code = code_for(&agent, "endless", OBJECTS)?;
    let kernel = Executable::load(&agent, code)?.kernel("endless")?;
    let queue = Queue::create(&agent, QueueOptions::default())?;
    let bytes = u64::from(items) * 4;
    let zeroed = |bytes: u64| -> Result<Buffer> {
        let buffer = runtime.gtt().alloc(bytes)?;
        buffer.write(0, &vec![0; bytes as usize])?;
        Ok(buffer)
    };
    let (counts, kept, broken, stop) = (zeroed(bytes)?, zeroed(bytes)?, zeroed(bytes)?, zeroed(4)?);
    let done = Signal::new(&runtime, 1)?;
    queue
        .dispatch(&kernel)
        .grid([items, 1, 1])
        .block([GROUP, 1, 1])
        .args(&[Arg::Buffer(&counts), Arg::Buffer(&kept), Arg::Buffer(&broken), Arg::Buffer(&stop)])
        .completion(&done)
        .submit()?;
    println!("agent {} {}: {items} work-items count", agent.uuid(), agent.name());

    let started = Instant::now();
    let last = watch(&args, &counts, items)?;
    stop.write(0, &1u32.to_le_bytes())?;
    done.wait_done(Some(Duration::from_secs(60)))?;
    let (counts, kept, broken) = (read(&counts, items)?, read(&kept, items)?, read(&broken, items)?);
    ensure!(counts == kept, "registers and memory ended apart: {kept:?} and {counts:?}");
    ensure!(broken.iter().all(|&wrong| wrong == 0), "memory was not what the registers knew: {broken:?}");
    ensure!(counts.iter().zip(&last).all(|(end, seen)| end >= seen), "a count fell at the end");
    println!("count {}", counts.iter().map(|&count| u64::from(count)).sum::<u64>());
    println!("done");
    eprintln!("every register agrees with memory after {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}
