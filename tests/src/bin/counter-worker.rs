// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes on the GPU and checks every value on the CPU, until it is asked to stop. The tests freeze and thaw this
//! program.
//!
//! The program has no code for checkpoints. If a value is wrong it ends with `Error` and without `done`.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use stasis::{
    Agent, Arg, Buffer, ClockReading, CommandList, Condition, Executable, Kernel, Queue, QueueOptions,
    Runtime, Signal, WaitMode,
};
use stasis_tests::gpu::{Numbers, compute_object};

const CELLS: u32 = 4096;
const BALLAST_BYTES: usize = 3 << 20;
/// Steps of a round that are submitted as a list.
const RECORDED: usize = 2;
/// The salt's position among the kernel's arguments.
const SALT: usize = 3;

/// Nanoseconds by which two clocks that are read together may differ on a busy machine. GPUs' counters are hours apart.
const UNSURE: u128 = 10_000_000_000;
/// The most signals with times that are kept, beside the last one.
const MOST_ENDED: usize = 16;

/// The command line's settings.
#[derive(Debug, Default)]
struct Args {
    until: PathBuf,
    threads: u64,
    /// Connects to this socket and holds the connection: CRIU cannot dump one end of it.
    connect: Option<PathBuf>,
    /// Holds an io_uring: CRIU cannot dump that either.
    io_uring: bool,
    echo: bool,
    /// Has a buffer in its agent's memory that the second agent maps.
    peer: bool,
}

fn args() -> Result<Args> {
    let mut args = Args { threads: 1, ..Args::default() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--until" => args.until = value()?.into(),
            "--threads" => args.threads = value()?.parse()?,
            "--connect" => args.connect = Some(value()?.into()),
            "--io-uring" => args.io_uring = true,
            "--echo" => args.echo = true,
            "--peer" => args.peer = true,
            _ => bail!("{word} is not understood"),
        }
    }
    Ok(args)
}

/// Memory that is not written after it was filled.
struct Ballast {
    buffer: Buffer,
    expected: Vec<u8>,
}

impl Ballast {
    fn new(buffer: Buffer, seed: u64) -> Result<Self> {
        // A seed of 0 gives zeros: an image leaves those out.
        let byte = |number: u32| if seed == 0 { 0 } else { (number >> 11) as u8 };
        let expected: Vec<u8> = Numbers(seed).take(buffer.len() as usize).map(byte).collect();
        buffer.upload(0, &expected)?;
        Ok(Self { buffer, expected })
    }

    fn check(&self) -> Result<()> {
        let mut found = vec![0; self.expected.len()];
        self.buffer.download(0, &mut found)?;
        let wrong = found.iter().zip(&self.expected).position(|(found, expected)| found != expected);
        ensure!(wrong.is_none(), "{:?} has changed at byte {wrong:?}", self.buffer);
        Ok(())
    }
}

/// One thread's cells, with their values as the CPU computes them.
struct Lane<'a> {
    runtime: &'a Runtime,
    queue: Queue,
    kernel: Kernel,
    cells: Buffer,
    address: Buffer,
    done: Signal,
    /// Two steps, recorded once: what is submitted after a restore was recorded before the checkpoint.
    list: CommandList,
    expected: Vec<u32>,
    salt: u32,
}

impl<'a> Lane<'a> {
    fn new(runtime: &'a Runtime, kernel: &Kernel, salt: u32) -> Result<Self> {
        let agent = runtime.agent(0).context("no agent")?;
        let queue = Queue::create(&agent, QueueOptions { packets: 64, ..QueueOptions::default() })?;
        let mut lane = Self {
            runtime,
            list: CommandList::new(&queue),
            queue,
            kernel: kernel.clone(),
            cells: agent.vram().alloc(u64::from(CELLS) * 4)?,
            address: runtime.gtt().alloc(8)?,
            done: Signal::new(runtime, 0)?,
            expected: vec![0; CELLS as usize],
            salt,
        };
        lane.cells.upload(0, &vec![0; CELLS as usize * 4])?;
        let mut list = CommandList::new(&lane.queue);
        for _ in 0..RECORDED {
            let dispatch = lane.queue.dispatch(&lane.kernel).grid([CELLS, 1, 1]).block([256, 1, 1]);
            list.dispatch(dispatch.args(&lane.arguments()).completion(&lane.done))?;
        }
        lane.list = list;
        Ok(lane)
    }

    fn arguments(&self) -> [Arg<'_>; 4] {
        [Arg::Buffer(&self.cells), Arg::Buffer(&self.address), Arg::U32(CELLS), Arg::U32(self.salt)]
    }

    /// Three steps on the GPU and on the CPU, and checks of all that must not change.
    fn round(&mut self) -> Result<()> {
        const STEPS: u32 = RECORDED as u32 + 1;
        self.salt = self.salt.wrapping_add(1);
        let before = self.queue.write_index()?;
        self.done.store(STEPS.into())?;
        for packet in 0..RECORDED {
            self.list.set_arg(packet, SALT, Arg::U32(self.salt))?;
        }
        self.list.submit()?;
        let dispatch = self.queue.dispatch(&self.kernel).grid([CELLS, 1, 1]).block([256, 1, 1]);
        dispatch.args(&self.arguments()).completion(&self.done).submit()?;
        for _ in 0..STEPS {
            for (cell, i) in self.expected.iter_mut().zip(0..) {
                *cell = cell.wrapping_mul(1_664_525).wrapping_add(1_013_904_223).wrapping_add(i ^ self.salt);
            }
        }
        // Made and dropped across freezes: slots and events must stay consistent.
        let other = Signal::new(self.runtime, 1)?;
        self.queue.barrier(&[&self.done], Some(&other))?;
        other.wait(Condition::Equal(0), Some(Duration::from_secs(120)), WaitMode::Blocked)?;
        self.done.wait(Condition::Equal(0), Some(Duration::from_secs(120)), WaitMode::Blocked)?;
        let after = self.queue.write_index()?;
        ensure!(after > before && after - before < 100, "the write index went from {before} to {after}");
        let mut bytes = vec![0; CELLS as usize * 4];
        self.cells.download(0, &mut bytes)?;
        let found: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        ensure!(found == self.expected, "the cells are not those of the CPU");
        let mut address = [0; 8];
        self.address.download(0, &mut address)?;
        ensure!(u64::from_le_bytes(address) == self.cells.va(), "the GPU sees the cells elsewhere");
        Ok(())
    }
}

/// The agent's clock, which goes on whatever happens to the process.
struct Times {
    agent: Agent,
    last: ClockReading,
    /// Signals that no packet completes any more, with their times.
    ended: Vec<(Signal, (u64, u64))>,
}

impl Times {
    fn new(agent: &Agent) -> Result<Self> {
        Ok(Self { last: agent.clocks()?, agent: agent.clone(), ended: Vec::new() })
    }

    /// Runs a packet of which the time is kept, and checks all times.
    fn round(&mut self, runtime: &Runtime, queue: &Queue) -> Result<()> {
        let before = self.agent.clocks()?;
        let (ticks, time) =
            (before.gpu.wrapping_sub(self.last.gpu), before.system.wrapping_sub(self.last.system));
        let counted = u128::from(ticks) * 1_000_000_000 / u128::from(self.agent.clock_frequency()?);
        ensure!(
            ticks >> 63 == 0 && counted.abs_diff(time.into()) < UNSURE,
            "the agent's clock counted {counted} ns in {time}, from {:?} to {before:?}",
            self.last,
        );
        let done = Signal::new(runtime, 1)?;
        queue.barrier(&[], Some(&done))?;
        done.wait_done(Some(Duration::from_secs(120)))?;
        let (times, after) = (done.timestamps(&self.agent)?, self.agent.clocks()?);
        let in_order = [before.gpu, times.0, times.1, after.gpu];
        ensure!(in_order.is_sorted(), "before, at start and end of a packet, and after: {in_order:?}");
        for (signal, (start, end)) in &self.ended {
            let now = signal.timestamps(&self.agent)?;
            ensure!(now == (*start, *end), "a packet ran from {start} to {end}, now it is {now:?}");
        }
        self.ended.truncate(MOST_ENDED);
        self.ended.push((done, times));
        self.last = after;
        Ok(())
    }
}

fn hold_io_uring() -> Result<()> {
    let mut parameters = [0u8; 120];
    // SAFETY: the structure io_uring_setup takes has 120 bytes, all zero for no options; the descriptor is kept.
    let fd = unsafe { nix::libc::syscall(nix::libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    ensure!(fd >= 0, "io_uring_setup: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Serves any number of TCP clients: sends every line back.
fn echo() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("port {}", listener.local_addr()?.port());
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let Ok(mut to) = client.try_clone() else { return };
                for line in BufReader::new(client).lines().map_while(Result::ok) {
                    if to.write_all(format!("{line}\n").as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(())
}

fn work(args: &Args) -> Result<()> {
    if args.echo {
        echo()?;
    }
    let _connection = args.connect.as_ref().map(UnixStream::connect).transpose()?;
    if args.io_uring {
        hold_io_uring()?;
    }
    let runtime = Runtime::open_default()?;
    let agent = runtime.agent(0).context("no agent")?;
    let kernel = Executable::load(&agent, compute_object(agent.name()))?.kernel("step")?;
    let ballast = [
        Ballast::new(agent.vram().alloc(BALLAST_BYTES as u64)?, 1)?,
        Ballast::new(runtime.gtt().alloc(BALLAST_BYTES as u64)?, 2)?,
        Ballast::new(agent.vram().alloc(5)?, 3)?,
        Ballast::new(agent.vram().alloc(BALLAST_BYTES as u64)?, 0)?,
    ];
    let peers = runtime.agents().into_iter().skip(1).map(|peer| Ballast::new(peer.vram().alloc(5)?, 4));
    let peers = peers.collect::<Result<Vec<_>>>()?;
    if args.peer {
        ballast[0].buffer.allow(&runtime.agent(1).context("no second agent")?)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (1..args.threads)
            .map(|salt| {
                let (stop, runtime, kernel) = (Arc::clone(&stop), &runtime, &kernel);
                scope.spawn(move || -> Result<()> {
                    let mut lane = Lane::new(runtime, kernel, salt as u32)?;
                    while !stop.load(Ordering::Relaxed) {
                        lane.round()?;
                    }
                    Ok(())
                })
            })
            .collect();
        let worked = (|| -> Result<()> {
            let mut lane = Lane::new(&runtime, &kernel, 0)?;
            let mut times = Times::new(&agent)?;
            for round in 1u64.. {
                lane.round()?;
                times.round(&runtime, &lane.queue)?;
                println!("round {round}");
                std::io::stdout().flush()?;
                if round % 64 == 0 {
                    ballast.iter().try_for_each(Ballast::check)?;
                }
                if args.until.exists() || lanes.iter().any(|lane| lane.is_finished()) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        for lane in lanes {
            lane.join().unwrap_or_else(|_| bail!("a thread panicked"))?;
        }
        worked
    })?;
    ballast.iter().chain(&peers).try_for_each(Ballast::check)?;
    println!("done");
    Ok(())
}

fn main() -> Result<()> {
    work(&args()?)
}
