// SPDX-License-Identifier: MIT OR Apache-2.0
//! A custom dispatcher: this program writes every packet itself, in three packet formats, over the same buffers.
//!
//! The packets of a copy engine copy two vectors into the agent's memory, PM4 packets run `y += 2x`, an AQL packet runs
//! `y += 3x`, and the copy engine copies the result back. The runtime provides memory, code, signals and rings, but no
//! packets.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use queues::aql::{FenceScope, Header, KernelDispatch, Packet, PacketKind};
use queues::hsa::{KernelDescriptor, UserSgprs};
use queues::pm4;
use queues::sdma::{self, Generation};
use stasis::code_object::Geometry;
use stasis::raw::{RawKind, RawOptions, RawQueue};
use stasis::{Agent, Arg, Buffer, Executable, Kernel, Runtime, Signal};
use stasis_examples::{code_for, log_to_stderr};

include!(concat!(env!("OUT_DIR"), "/axpy.rs"));

/// Work-items of a work-group, as the kernel is written for.
const GROUP: u16 = 256;
/// The factors of the PM4 and the AQL dispatch. They are small whole numbers, so every sum is exact, with fused
/// multiply-add or without.
const FACTORS: [f32; 2] = [2.0, 3.0];
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// Runs a kernel through hand-written PM4 and AQL packets and moves its data through hand-written SDMA packets.
#[derive(Debug, Parser)]
struct Args {
    /// Elements of the vectors.
    #[arg(long, default_value_t = 100_000)]
    elements: u32,
}

/// The state that all three dispatchers share.
struct Shared {
    runtime: Runtime,
    agent: Agent,
    kernel: Kernel,
    x: Buffer,
    y: Buffer,
    elements: u32,
}

impl Shared {
    fn queue(&self, kind: RawKind) -> Result<RawQueue> {
        let options = RawOptions { kind, ring_bytes: 16 << 10, ..RawOptions::default() };
        let queue = RawQueue::create(&self.agent, options)
            .with_context(|| format!("Cannot make a queue of kind {kind:?} on {}", self.agent.name()))?;
        queue.uses(&self.x)?;
        queue.uses(&self.y)?;
        Ok(queue)
    }

    /// A signal that a packet of `queue` will set from 1 to 0.
    fn done(&self, queue: &RawQueue) -> Result<Signal> {
        let done = Signal::new(&self.runtime, 1)?;
        queue.completes(&done);
        Ok(done)
    }

    fn groups(&self) -> u32 {
        self.elements.div_ceil(u32::from(GROUP))
    }

    /// A block with the kernel's arguments.
    fn arguments(&self, queue: &RawQueue, factor: f32) -> Result<Buffer> {
        let layout = self.kernel.arguments();
        let geometry = Geometry::new([self.groups() * u32::from(GROUP), 1, 1], [GROUP, 1, 1]);
        let arguments =
            [Arg::Buffer(&self.x), Arg::Buffer(&self.y), Arg::F32(factor), Arg::U32(self.elements)];
        let mut block = vec![0; layout.bytes()];
        layout.fill(&arguments, &geometry, &mut block)?;
        let buffer = self.runtime.kernarg().alloc(block.len() as u64)?;
        buffer.write(0, &block)?;
        queue.uses(&buffer)?;
        queue.uses_kernel(&self.kernel);
        Ok(buffer)
    }
}

/// Copies buffers with a copy engine: the copies, then the signal, then the interrupt that wakes a thread that waits
/// for the signal.
fn copy(shared: &Shared, queue: &RawQueue, pairs: &[(&Buffer, &Buffer)]) -> Result<()> {
    let generation = Generation::of(shared.agent.target())
        .with_context(|| format!("The packets of {}'s copy engines are not known", shared.agent.name()))?;
    let done = shared.done(queue)?;
    let mut words = Vec::new();
    sdma::Packet::HdpFlush.encode(generation, &mut words)?;
    for (to, from) in pairs {
        queue.uses(to)?;
        queue.uses(from)?;
        sdma::copy(&mut words, generation, to.va(), from.va(), from.len())?;
    }
    sdma::signal_decrement(done.value_va()).encode(generation, &mut words)?;
    if let Some((mailbox, event)) = done.mailbox()? {
        for packet in sdma::interrupt(generation, mailbox, event) {
            packet.encode(generation, &mut words)?;
        }
    }
    let end = queue.submit(&words)?;
    done.wait_done(PATIENCE)?;
    println!("sdma: {} copies in {} dwords, position {end}", pairs.len(), words.len());
    Ok(())
}

/// The first SGPRs of the kernel's waves: this kernel needs only the address of its arguments.
fn user_data(descriptor: &KernelDescriptor, shared: &Shared, arguments: &Buffer) -> Result<Vec<u32>> {
    let sgprs = UserSgprs::new(descriptor, shared.agent.target());
    let at = sgprs.kernarg_segment_ptr.context("The kernel takes no arguments")? as usize;
    ensure!(
        sgprs.used == 2,
        "The kernel wants more in its SGPRs than the address of its arguments: {sgprs:?}"
    );
    let mut words = vec![0; 2];
    let va = arguments.va();
    // The halves of an address.
    words[at..at + 2].copy_from_slice(&[va as u32, (va >> 32) as u32]);
    Ok(words)
}

/// Runs the kernel through a PM4 stream.
fn through_pm4(shared: &Shared) -> Result<()> {
    let queue = shared.queue(RawKind::Pm4)?;
    let (arguments, done) = (shared.arguments(&queue, FACTORS[0])?, shared.done(&queue)?);
    let descriptor = shared.kernel.descriptor();
    let properties = &shared.agent.node().properties;
    let mut words = Vec::new();
    // The kernel must see what the host wrote and the code that was loaded; `submit` flushes the host's data path.
    pm4::memory_barrier().encode(&mut words)?;
    pm4::Dispatch {
        target: shared.agent.target(),
        simd_arrays: properties.array_count / properties.num_xcc.max(1),
        entry: shared.kernel.entry_va(),
        descriptor: &descriptor,
        group_segment_bytes: descriptor.group_segment_fixed_size,
        scratch: None,
        user_data: &user_data(&descriptor, shared, &arguments)?,
        workgroup: [GROUP, 1, 1],
        groups: [shared.groups(), 1, 1],
        wave32: descriptor.wave32(),
    }
    .encode(&mut words)?;
    pm4::cs_partial_flush().encode(&mut words)?;
    // The caches are written back, then comes the signal, then the interrupt.
    pm4::signal(done.value_va(), 0, pm4::Width::Bits64).encode(&mut words)?;
    if let Some((mailbox, event)) = done.mailbox()? {
        pm4::interrupt(mailbox, event).encode(&mut words)?;
    }
    let end = queue.submit(&words)?;
    done.wait_done(PATIENCE).context("The PM4 dispatch did not complete")?;
    println!("pm4:  y += {} x in {} dwords, position {end}:", FACTORS[0], words.len());
    let mut rest = words.as_slice();
    while let Ok((packet, dwords)) = pm4::decode(rest) {
        println!("        {packet}");
        rest = &rest[dwords..];
    }
    Ok(())
}

/// Runs the kernel through an AQL packet.
fn through_aql(shared: &Shared) -> Result<()> {
    let queue = shared.queue(RawKind::Aql)?;
    let (arguments, done) = (shared.arguments(&queue, FACTORS[1])?, shared.done(&queue)?);
    let descriptor = shared.kernel.descriptor();
    let packet = Packet::KernelDispatch(KernelDispatch {
        header: Header {
            acquire: FenceScope::System,
            release: FenceScope::System,
            ..Header::new(PacketKind::KernelDispatch)
        },
        dimensions: 1,
        workgroup: [GROUP, 1, 1],
        grid: [shared.groups() * u32::from(GROUP), 1, 1],
        private_segment_bytes: 0,
        group_segment_bytes: descriptor.group_segment_fixed_size,
        kernel_object: shared.kernel.object_va(),
        kernarg_address: arguments.va(),
        completion_signal: done.handle(),
    });
    let end = queue.submit(&packet.encode())?;
    done.wait_done(PATIENCE).context("The AQL dispatch did not complete")?;
    println!("aql:  y += {} x, position {end}:\n        {packet}", FACTORS[1]);
    Ok(())
}

/// Whole numbers, so that the result is exact.
fn element(n: u32, salt: u32) -> f32 {
    (n.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 22) as f32
}

fn main() -> Result<()> {
    log_to_stderr();
    let args = Args::parse();
    ensure!((1..=1 << 28).contains(&args.elements), "there are 1 to 2^28 elements, found {}", args.elements);
    let runtime = Runtime::open_default()?;
    let agent = runtime.agent(0).context("There is no agent")?;
    let object = code_for(&agent, "custom_dispatcher", OBJECTS)?;
    println!("agent {} {}", agent.uuid(), agent.name());
    let bytes = u64::from(args.elements) * 4;
    let shared = Shared {
        kernel: Executable::load(&agent, object)?.kernel("axpy")?,
        x: agent.vram().alloc(bytes)?,
        y: agent.vram().alloc(bytes)?,
        elements: args.elements,
        runtime,
        agent,
    };
    let host = [0, 1, 2].map(|_| shared.runtime.gtt().alloc(bytes));
    let [host_x, host_y, back] = host;
    let (host_x, host_y, back) = (host_x?, host_y?, back?);
    let x: Vec<f32> = (0..args.elements).map(|n| element(n, 1)).collect();
    let y: Vec<f32> = (0..args.elements).map(|n| element(n, 2)).collect();
    host_x.write(0, bytemuck::cast_slice(&x))?;
    host_y.write(0, bytemuck::cast_slice(&y))?;

    let copies = shared.queue(RawKind::Sdma { engine: None })?;
    copy(&shared, &copies, &[(&shared.x, &host_x), (&shared.y, &host_y)])?;
    through_pm4(&shared)?;
    through_aql(&shared)?;
    copy(&shared, &copies, &[(&back, &shared.y)])?;

    let mut found = vec![0f32; y.len()];
    back.read(0, bytemuck::cast_slice_mut(&mut found))?;
    for (n, ((&x, &y), &found)) in x.iter().zip(&y).zip(&found).enumerate() {
        let wanted = y + (FACTORS[0] + FACTORS[1]) * x;
        ensure!(found == wanted, "element {n} is {found}, not {y} + 5 * {x} = {wanted}");
    }
    println!("all {} elements are right", args.elements);
    Ok(())
}
