// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a packet written by hand costs the thread that submits it, in each of the three languages; the peer is a dispatch
//! through the runtime's own queue in the same run.
//!
//! As for `submit`, the processor is held at a wait while the clock runs and the ring has room for all that is submitted
//! at a time: ring waits, consumption and the ends of kernels are not in the figures. A submission is one call: the words
//! into the ring, the write pointer, the doorbell. Time is CPU time of the thread, in the median batch: what other
//! processes take meanwhile is not in it, system calls are. What the packets were to do is looked at when the processor was let go.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::time::ClockId;
use queues::aql::{Barrier, FenceScope, Header, KernelDispatch, Packet, PacketKind};
use queues::hsa::UserSgprs;
use queues::pm4::{self, CachePolicy, Destination, WriteData};
use queues::sdma::{self, Fence, Generation, PollRegMem};
use stasis::raw::{RawKind, RawOptions, RawQueue};
use stasis::{Buffer, Kernel, Signal};

use crate::figure::{Report, median};
use crate::gpu::Gpu;
use crate::submit::line::Line;

const BATCH: u32 = 1000;
/// So that a case comes to 10^5 submissions.
const BATCHES: u32 = 100;
/// Packets of the runtime's queue: room for a batch and its barriers.
const PACKETS: u32 = 1024;
/// Room for a batch of the longest submission.
const RING_BYTES: u32 = 2 << 20;
/// Packets of a submission that has many.
const MANY: usize = 64;
/// Bytes of a copy.
const COPY: u64 = 64;
/// TIMEOUT: for what a queue of small packets has left.
const DRAIN: Option<Duration> = Some(Duration::from_secs(30));
const METRIC: &str = "ns_per_submit";
/// What the packets store.
const MARK: u32 = 0x600d_da7a;

/// A queue whose packets are written here, and what holds its processor.
struct Raw {
    queue: RawQueue,
    gate: Signal,
    hold: Vec<u32>,
}

impl Raw {
    fn open(gpu: &Gpu, kind: RawKind, memory: &Buffer) -> Result<Self> {
        let queue = RawQueue::create(
            &gpu.agent,
            RawOptions { kind, ring_bytes: RING_BYTES, ..RawOptions::default() },
        )?;
        queue.uses(memory)?;
        let gate = Signal::new(&gpu.runtime, 0)?;
        let mut hold = Vec::new();
        match kind {
            RawKind::Aql => {
                let barrier = Barrier::and([gate.handle(), 0, 0, 0, 0]);
                hold.extend(Packet::from(barrier).encode());
            }
            // The values are small: the low half tells.
            RawKind::Pm4 => {
                pm4::wait_memory(gate.value_va(), pm4::Compare::Equal, 0, u32::MAX).encode(&mut hold)?;
            }
            RawKind::Sdma { .. } => {
                let poll = PollRegMem::memory(gate.value_va(), sdma::Compare::Equal, 0);
                sdma::Packet::PollRegMem(poll).encode(generation(gpu)?, &mut hold)?;
            }
        }
        Ok(Self { queue, gate, hold })
    }

    /// Nanoseconds of a submission. `submit` gets the queue and makes one.
    fn time(&self, mut submit: impl FnMut(&RawQueue) -> Result<()>) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..BATCHES {
            self.gate.store(1)?;
            self.queue.submit(&self.hold)?;
            let started = cpu_ns();
            for _ in 0..BATCH {
                submit(&self.queue)?;
            }
            times.push((cpu_ns() - started) / f64::from(BATCH));
            self.gate.store(0)?;
            self.queue.wait_idle(DRAIN)?;
        }
        Ok(median(&times))
    }

    /// The same words every time.
    fn time_words(&self, words: &[u32]) -> Result<f64> {
        self.time(|queue| Ok(queue.submit(words).map(drop)?))
    }
}

fn cpu_ns() -> f64 {
    let time = ClockId::CLOCK_THREAD_CPUTIME_ID.now().expect("a clock that every Linux has");
    time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64
}

fn generation(gpu: &Gpu) -> Result<Generation> {
    Generation::of(gpu.agent.target()).context("The packets of this agent's copy engines are not known")
}

fn time_line(line: &Line) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..BATCHES {
        line.hold()?;
        let started = cpu_ns();
        line.submit_empty(BATCH)?;
        times.push((cpu_ns() - started) / f64::from(BATCH));
        line.release()?;
    }
    Ok(median(&times))
}

fn stored(memory: &Buffer, what: &str) -> Result<()> {
    let mut word = [0; 4];
    memory.read(0, &mut word)?;
    ensure!(u32::from_le_bytes(word) == MARK, "{what} did not store what it was to store: {word:02x?}");
    Ok(memory.write(0, &[0; 4])?)
}

/// A kernel launch as AQL: the packet the runtime writes for the same launch, less its completion.
fn aql_launch(kernel: &Kernel) -> [u32; 16] {
    let descriptor = kernel.descriptor();
    Packet::KernelDispatch(KernelDispatch {
        header: Header {
            barrier: true,
            acquire: FenceScope::System,
            release: FenceScope::System,
            ..Header::new(PacketKind::KernelDispatch)
        },
        dimensions: 1,
        workgroup: [32, 1, 1],
        grid: [32, 1, 1],
        private_segment_bytes: 0,
        group_segment_bytes: descriptor.group_segment_fixed_size,
        kernel_object: kernel.object_va(),
        kernarg_address: 0,
        completion_signal: 0,
    })
    .encode()
}

/// A kernel launch as PM4: every register a dispatch reads, the dispatch, and the wait for its end.
fn pm4_launch(gpu: &Gpu, kernel: &Kernel, words: &mut Vec<u32>) -> Result<()> {
    let descriptor = kernel.descriptor();
    let properties = &gpu.agent.node().properties;
    let used = UserSgprs::new(&descriptor, gpu.agent.target()).used as usize;
    // The kernel takes no arguments and looks at none of its registers.
    let zeros = [0; 16];
    pm4::Dispatch {
        target: gpu.agent.target(),
        simd_arrays: properties.array_count / properties.num_xcc.max(1),
        entry: kernel.entry_va(),
        descriptor: &descriptor,
        group_segment_bytes: descriptor.group_segment_fixed_size,
        scratch: None,
        user_data: zeros.get(..used).context("The kernel has more user SGPRs than there are")?,
        workgroup: [32, 1, 1],
        groups: [1; 3],
        wave32: descriptor.wave32(),
    }
    .encode(words)?;
    pm4::cs_partial_flush().encode(words)?;
    Ok(())
}

fn aql(report: &Report, gpu: &Gpu, memory: &Buffer, peer: (&str, f64)) -> Result<()> {
    let raw = Raw::open(gpu, RawKind::Aql, memory)?;
    let kernel = gpu.kernel("empty")?;
    raw.queue.uses_kernel(&kernel);
    let ns = raw.time_words(&aql_launch(&kernel))?;
    report.versus("aql, kernel launch, 16 dwords", METRIC, ns, "ns", peer);
    Ok(())
}

fn pm4(report: &Report, gpu: &Gpu, memory: &Buffer, peer: (&str, f64)) -> Result<()> {
    let raw = Raw::open(gpu, RawKind::Pm4, memory)?;
    let kernel = gpu.kernel("empty")?;
    raw.queue.uses_kernel(&kernel);
    let mut words = Vec::new();
    pm4::push_nops(&mut words, 16);
    report.versus("pm4, NOP of 16 dwords", METRIC, raw.time_words(&words)?, "ns", peer);
    let write = WriteData {
        destination: Destination::Memory { address: memory.va() },
        increment: true,
        confirm: true,
        cache_policy: CachePolicy::Lru,
        data: &[MARK],
    };
    words.clear();
    pm4::Packet::WriteData(write).encode(&mut words)?;
    let case = format!("pm4, WRITE_DATA, {} dwords", words.len());
    report.versus(&case, METRIC, raw.time_words(&words)?, "ns", peer);
    stored(memory, &case)?;
    let many = words.repeat(MANY);
    let ns = raw.time_words(&many)? / MANY as f64;
    report.versus(&format!("pm4, {MANY} WRITE_DATA at a time"), "ns_per_packet", ns, "ns", peer);
    stored(memory, &case)?;
    words.clear();
    pm4_launch(gpu, &kernel, &mut words)?;
    let case = format!("pm4, kernel launch, {} dwords", words.len());
    report.versus(&case, METRIC, raw.time_words(&words)?, "ns", peer);
    let ns = raw.time(|queue| {
        words.clear();
        pm4_launch(gpu, &kernel, &mut words)?;
        queue.submit(&words)?;
        Ok(())
    })?;
    report.versus(&format!("{case}, encoded every time"), METRIC, ns, "ns", peer);
    Ok(())
}

fn sdma(report: &Report, gpu: &Gpu, memory: &Buffer, peer: (&str, f64)) -> Result<()> {
    let generation = generation(gpu)?;
    let raw = Raw::open(gpu, RawKind::Sdma { engine: None }, memory)?;
    let mut words = Vec::new();
    let fence = Fence { address: memory.va(), value: MARK, mtype: generation.uncached_mtype() };
    sdma::Packet::Fence(fence).encode(generation, &mut words)?;
    let case = format!("sdma, FENCE, {} dwords", words.len());
    report.versus(&case, METRIC, raw.time_words(&words)?, "ns", peer);
    stored(memory, &case)?;
    words.clear();
    memory.write(2048, &MARK.to_le_bytes())?;
    sdma::copy(&mut words, generation, memory.va(), memory.va() + 2048, COPY)?;
    let case = format!("sdma, COPY of {COPY} B, {} dwords", words.len());
    report.versus(&case, METRIC, raw.time_words(&words)?, "ns", peer);
    stored(memory, &case)?;
    let ns = raw.time(|queue| {
        words.clear();
        sdma::copy(&mut words, generation, memory.va(), memory.va() + 2048, COPY)?;
        queue.submit(&words)?;
        Ok(())
    })?;
    report.versus(&format!("{case}, encoded every time"), METRIC, ns, "ns", peer);
    Ok(())
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let line = Line::open(PACKETS)?;
    let gpu = line.gpu();
    let memory = gpu.runtime.gtt().alloc(4096)?;
    memory.write(0, &[0; 4096])?;
    let dispatch = time_line(&line)?;
    report.plain("aql, empty kernel through stasis::Queue", METRIC, dispatch, "ns");
    let peer = ("aql_dispatch", dispatch);
    report.note(&format!(
        "{} submissions a case, {BATCH} at a time to a processor at a wait: no ring wait is in the figures",
        BATCH * BATCHES
    ));
    aql(report, gpu, &memory, peer)?;
    pm4(report, gpu, &memory, peer)?;
    if has_copy_engines(gpu) {
        sdma(report, gpu, &memory, peer)?;
    } else {
        report.note("the agent has no copy engines: no figures for them");
    }
    Ok(())
}

fn has_copy_engines(gpu: &Gpu) -> bool {
    let properties = &gpu.agent.node().properties;
    properties.num_sdma_engines + properties.num_sdma_xgmi_engines > 0 && generation(gpu).is_ok()
}
