// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state machine of one runtime: which verb is allowed when, and the way back from every failure.
//!
//! INVARIANT: `state` changes only under the `phase` lock and agrees with it; reading it never blocks. The closed gate
//! lives in `phase`, so that it opens when the phase says so and never by accident.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant, SystemTime};

use kfd::transport::render_node_path;
use kfd::{Topology, Transport};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::admit::AgentIdentity;
use super::incarnation::Incarnation;
use super::keeper::Keeper;
use super::preempt::Captured;
use super::protocol::{CheckpointReport, RestoreReport};
use super::{CheckpointError, IMAGE_FILE, Mode, State, audit, evacuate, preempt, rebuild, system};
use crate::device::{Device, RenderFiles};
use crate::error::OpenError;
use crate::gate::Closed;
use crate::image::{Image, ImageWriter};
use crate::pool::window;
use crate::registry::state::RegistryState;
use crate::runtime::{Inner, TakeError};

/// How long threads asleep in the driver may take to come out.
const RECLAIM: Duration = Duration::from_secs(5);

/// The metadata of an image.
#[derive(Debug, Serialize, Deserialize)]
pub struct Metadata {
    /// Ties the image to the memory of the process that wrote it.
    pub image_id: String,
    /// When it was written, milliseconds since 1970.
    pub written_unix_ms: u64,
    /// The process.
    pub pid: i32,
    /// Who answered it: `kfd`, `soft:gfx1100`.
    pub transport: String,
    /// Its agents, in its order.
    pub agents: Vec<AgentIdentity>,
    /// Whether queues were stopped in the middle of their kernels; then the extents hold their waves too.
    #[serde(default)]
    pub preempted: bool,
    /// Keys of the buffers whose bytes are the image's extents, in order, as the registry prints them.
    pub extents: Vec<String>,
    /// Everything registered.
    pub registry: RegistryState,
}

/// What is kept in memory while the device is gone.
#[derive(Debug)]
struct Parked {
    image: PathBuf,
    image_id: String,
    incarnation: Incarnation,
    keeper: Option<Keeper>,
    transport: Arc<dyn Transport>,
    agents: Vec<AgentIdentity>,
    /// With preempted queues: they are still in the driver, and this is for a copy that has to make them.
    captured: Option<Captured>,
}

#[derive(Debug)]
enum Phase {
    Running,
    Locked(Closed, Mode),
    Checkpointed(Closed, Box<Parked>),
}

/// The checkpoint side of a runtime.
#[derive(Debug)]
pub(crate) struct Session {
    state: AtomicU8,
    phase: Mutex<Phase>,
    cancelled: AtomicBool,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            state: AtomicU8::new(State::Running as u8),
            phase: Mutex::new(Phase::Running),
            cancelled: AtomicBool::new(false),
        }
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn wrong(verb: &'static str, phase: &Phase, wanted: State) -> CheckpointError {
    CheckpointError::State { verb, state: phase.state(), wanted }
}

impl Phase {
    fn state(&self) -> State {
        match self {
            Self::Running => State::Running,
            Self::Locked(..) => State::Locked,
            Self::Checkpointed(..) => State::Checkpointed,
        }
    }
}

impl Session {
    /// Where the runtime is. Never blocks.
    pub fn state(&self) -> State {
        State::from_raw(self.state.load(Ordering::Acquire))
    }

    fn enter(&self, phase: &mut Phase, next: Phase) {
        self.state.store(next.state() as u8, Ordering::Release);
        *phase = next;
    }

    /// RUNNING → LOCKED: closes the gate and stops the queues.
    pub fn lock(&self, inner: &Arc<Inner>, mode: Mode, limit: Duration) -> Result<Duration, CheckpointError> {
        let mut phase = self.phase.lock();
        let Phase::Running = *phase else { return Err(wrong("lock", &phase, State::Running)) };
        let started = Instant::now();
        let deadline = started + limit;
        // A failure drops the gate's token, which opens it.
        let closed = inner.gate.close(deadline, &self.cancelled)?;
        match mode {
            Mode::Drain => {
                let queues = evacuate::queues(&inner.registry.lock());
                if let Err(late) = evacuate::drain(&queues, &closed, started, deadline) {
                    return Err(late.explain(&inner.registry.lock()));
                }
            }
            Mode::Preempt => preempt::park(inner, &closed)?,
        }
        self.enter(&mut phase, Phase::Locked(closed, mode));
        Ok(started.elapsed())
    }

    /// LOCKED → RUNNING.
    pub fn unlock(&self, inner: &Arc<Inner>) -> Result<(), CheckpointError> {
        let mut phase = self.phase.lock();
        match std::mem::replace(&mut *phase, Phase::Running) {
            Phase::Locked(closed, mode) => {
                if mode == Mode::Preempt
                    && let Err(error) = go_on(inner, &closed)
                {
                    self.enter(&mut phase, Phase::Locked(closed, mode));
                    return Err(error);
                }
                self.state.store(State::Running as u8, Ordering::Release);
                closed.open();
                Ok(())
            }
            other => {
                *phase = other;
                Err(wrong("unlock", &phase, State::Locked))
            }
        }
    }

    /// LOCKED → CHECKPOINTED: writes the image into `directory`, takes everything down, closes the device, audits.
    pub fn checkpoint(
        &self,
        inner: &Arc<Inner>,
        directory: &Path,
    ) -> Result<CheckpointReport, CheckpointError> {
        let mut phase = self.phase.lock();
        let (mut closed, mode) = match std::mem::replace(&mut *phase, Phase::Running) {
            Phase::Locked(closed, mode) => (closed, mode),
            other => {
                *phase = other;
                return Err(wrong("checkpoint", &phase, State::Locked));
            }
        };
        let mut report = CheckpointReport::default();
        match take_down(inner, &mut closed, mode, directory, &mut report) {
            Ok(parked) => {
                self.enter(&mut phase, Phase::Checkpointed(closed, Box::new(parked)));
                Ok(report)
            }
            Err(Down::Untouched(error)) => {
                self.enter(&mut phase, Phase::Locked(closed, mode));
                Err(*error)
            }
            Err(Down::Parked(error, mut parked)) => match bring_back(inner, &mut closed, &mut parked, None) {
                Ok(_) => {
                    self.enter(&mut phase, Phase::Locked(closed, mode));
                    Err(*error)
                }
                Err(undo) => {
                    self.enter(&mut phase, Phase::Checkpointed(closed, parked));
                    Err(CheckpointError::Stuck { failure: error, undo: Box::new(undo) })
                }
            },
        }
    }

    /// CHECKPOINTED → LOCKED: opens the device, admits its agents, makes everything again and fills it.
    pub fn restore(
        &self,
        inner: &Arc<Inner>,
        directory: Option<&Path>,
    ) -> Result<RestoreReport, CheckpointError> {
        let mut phase = self.phase.lock();
        let (mut closed, mut parked) = match std::mem::replace(&mut *phase, Phase::Running) {
            Phase::Checkpointed(closed, parked) => (closed, parked),
            other => {
                *phase = other;
                return Err(wrong("restore", &phase, State::Checkpointed));
            }
        };
        let mode = if parked.captured.is_some() { Mode::Preempt } else { Mode::Drain };
        let restored =
            check_window(inner).and_then(|()| bring_back(inner, &mut closed, &mut parked, directory));
        match restored {
            Ok(report) => {
                self.enter(&mut phase, Phase::Locked(closed, mode));
                Ok(report)
            }
            Err(error) => {
                self.enter(&mut phase, Phase::Checkpointed(closed, parked));
                Err(error)
            }
        }
    }
}

/// How far a failed way down had come.
enum Down {
    /// The device is as it was.
    Untouched(Box<CheckpointError>),
    /// Something is gone; everything can be made again from this.
    Parked(Box<CheckpointError>, Box<Parked>),
}

impl Down {
    fn untouched(error: CheckpointError) -> Self {
        Self::Untouched(Box::new(error))
    }

    fn parked(error: CheckpointError, parked: Box<Parked>) -> Self {
        Self::Parked(Box::new(error), parked)
    }
}

fn taken(error: TakeError) -> CheckpointError {
    match error {
        TakeError::Device(source) => CheckpointError::Device { what: "to let go of the device", source },
        TakeError::Thread(source) => CheckpointError::System { act: "start the event thread", source },
        TakeError::Busy { .. } | TakeError::Gone => CheckpointError::Busy { waited: RECLAIM },
    }
}

/// Puts preempted queues back on the hardware.
fn go_on(inner: &Inner, closed: &Closed) -> Result<(), CheckpointError> {
    let pass = closed.pass();
    let Some(on) = inner.device(&pass) else { return Ok(()) };
    preempt::go_on(&mut inner.registry.lock(), on)
}

/// The driver's state of this process, if its queues were preempted.
fn capture(inner: &Inner, closed: &Closed, mode: Mode) -> Result<Option<Captured>, CheckpointError> {
    let pass = closed.pass();
    match (mode, inner.device(&pass)) {
        (Mode::Preempt, Some(on)) => preempt::capture(&inner.registry.lock(), on).map(Some),
        _ => Ok(None),
    }
}

/// Takes everything out of the driver, or with preempted queues only this process's hold on it, and closes the device;
/// whether all went is told beside what is left of it.
fn part_with(
    inner: &Inner,
    device: Device,
    closed: &mut Closed,
    preempted: bool,
) -> (Result<(), CheckpointError>, RenderFiles, Arc<dyn Transport>) {
    if preempted {
        let gone = preempt::let_go(&mut inner.registry.lock(), &device, closed);
        let (renders, transport) = device.leave();
        return (gone, renders, transport);
    }
    let gone = evacuate::evacuate(&mut inner.registry.lock(), &device, closed);
    let (renders, transport, disabled) = device.close();
    if let Err(source) = disabled {
        tracing::warn!(target: "checkpoint", error = %source, "exception reporting was not ended");
    }
    (gone, renders, transport)
}

fn take_down(
    inner: &Arc<Inner>,
    closed: &mut Closed,
    mode: Mode,
    directory: &Path,
    report: &mut CheckpointReport,
) -> Result<Parked, Down> {
    let started = Instant::now();
    let path = directory.join(IMAGE_FILE);
    let agents: Vec<_> = inner.agents.iter().map(|a| AgentIdentity::of(a.node())).collect();
    let captured = capture(inner, closed, mode).map_err(Down::untouched)?;
    let image_id = write_image(inner, &path, &agents, captured.as_ref(), report).map_err(Down::untouched)?;
    report.write_ms = milliseconds(started);
    let started = Instant::now();
    let incarnation =
        Incarnation::current().map_err(system("identify the process")).map_err(Down::untouched)?;
    let device =
        inner.take_device(closed, Instant::now() + RECLAIM).map_err(|error| Down::untouched(taken(error)))?;
    let transport = Arc::clone(device.transport());
    let preempted = captured.is_some();
    let mut parked =
        Box::new(Parked { image: path, image_id, incarnation, keeper: None, transport, agents, captured });
    let (evacuated, renders, transport) = part_with(inner, device, closed, preempted);
    match keep(renders) {
        Ok(keeper) => parked.keeper = Some(keeper),
        Err(error) => return Err(Down::parked(error, parked)),
    }
    if let Err(error) = evacuated.and_then(|()| disconnect(&*transport)) {
        return Err(Down::parked(error, parked));
    }
    match audit::audit() {
        Err(error) => return Err(Down::parked(system("read /proc/self")(error), parked)),
        Ok(culprits) if !culprits.is_empty() => {
            return Err(Down::parked(CheckpointError::Audit { culprits }, parked));
        }
        Ok(_) => {}
    }
    report.close_ms = milliseconds(started);
    Ok(*parked)
}

fn write_image(
    inner: &Arc<Inner>,
    path: &Path,
    agents: &[AgentIdentity],
    captured: Option<&Captured>,
    report: &mut CheckpointReport,
) -> Result<String, CheckpointError> {
    let registry = inner.registry.lock();
    if registry.exports.iter().next().is_some() {
        return Err(CheckpointError::Exports { count: registry.exports.iter().count() });
    }
    let (keys, extents) = match captured {
        Some(captured) => (captured.keys().collect(), captured.extents(&registry)),
        None => {
            let keys = evacuate::saved(&registry)?;
            let extents = evacuate::extents(&registry, &keys);
            (keys, extents)
        }
    };
    let mut random = [0u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| system("draw an image id")(e.into()))?;
    let image_id = format!("{:032x}", u128::from_ne_bytes(random));
    let metadata = Metadata {
        image_id: image_id.clone(),
        written_unix_ms: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_millis() as u64),
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        transport: inner.transport_name.clone(),
        agents: agents.to_vec(),
        preempted: captured.is_some(),
        extents: keys.iter().map(ToString::to_string).collect(),
        registry: registry.save(),
    };
    let mut writer = ImageWriter::create(path)?;
    writer.write_contents(&extents)?;
    report.add_written(writer.finish(&metadata)?);
    Ok(image_id)
}

fn keep(renders: RenderFiles) -> Result<Keeper, CheckpointError> {
    let act = "leave the render files with a keeper";
    let duplicates: Result<Vec<_>, _> =
        renders.files.iter().map(|file| file.as_fd().try_clone_to_owned()).collect();
    drop(renders);
    Keeper::hold(duplicates.map_err(system(act))?).map_err(system(act))
}

/// Has the transport give up its sockets.
fn disconnect(transport: &dyn Transport) -> Result<(), CheckpointError> {
    let deadline = Instant::now() + RECLAIM;
    while let Err(error) = transport.close() {
        if Instant::now() >= deadline {
            tracing::warn!(target: "checkpoint", %error, "the transport is still in use");
            return Err(CheckpointError::Busy { waited: RECLAIM });
        }
        // TIMEOUT: a call on its way out needs microseconds.
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

fn bring_back(
    inner: &Arc<Inner>,
    closed: &mut Closed,
    parked: &mut Parked,
    directory: Option<&Path>,
) -> Result<RestoreReport, CheckpointError> {
    let mut report = RestoreReport::default();
    let started = Instant::now();
    let path = directory.map_or_else(|| parked.image.clone(), |d| d.join(IMAGE_FILE));
    let image = Image::open(&path)?;
    let metadata: Metadata = image.metadata()?;
    if metadata.image_id != parked.image_id {
        let (found, wanted) = (metadata.image_id, parked.image_id.clone());
        return Err(CheckpointError::OtherImage { path, found, wanted });
    }
    let same_process = Incarnation::current().map_err(system("identify the process"))? == parked.incarnation;
    admit(inner, parked)?;
    let device = open_device(inner, parked, same_process)?;
    report.open_ms = milliseconds(started);
    let made = match &parked.captured {
        Some(captured) => go_back_to(inner, closed, &device, captured, &image, same_process, &mut report),
        None => make_again(inner, closed, &device, &image, same_process, &mut report),
    };
    if let Err(error) = made {
        give_up(inner, closed, device, parked);
        return Err(error);
    }
    inner.put_device(closed, Arc::new(device)).map_err(taken)?;
    Ok(report)
}

/// Whether the buffers' addresses are still theirs.
fn check_window(inner: &Inner) -> Result<(), CheckpointError> {
    let registry = inner.registry.lock();
    let in_driver = registry.bos.iter().filter(|(_, bo)| bo.kernel.is_some());
    let kept: Vec<_> = in_driver.map(|(_, bo)| bo.state.va..bo.state.va + bo.state.bytes).collect();
    let checked = window::check(registry.arena.window(), &kept);
    Ok(checked.map_err(system("read /proc/self/maps"))??)
}

/// Compares the agents here with those of the process; nothing is changed unless all fit.
fn admit(inner: &Arc<Inner>, parked: &Parked) -> Result<(), CheckpointError> {
    let transport = &parked.transport;
    let topology = Topology::read(transport.sysfs()).map_err(|source| {
        CheckpointError::Open(OpenError::Topology { transport: transport.name().to_owned(), source })
    })?;
    let nodes: Vec<_> = topology.gpus().collect();
    // The same GPU if it is here, else the one in its place.
    let node_of = |agent: &AgentIdentity, index: usize| {
        nodes.iter().find(|n| n.properties.unique_id == agent.unique_id).or_else(|| nodes.get(index)).copied()
    };
    let found: Vec<_> = parked.agents.iter().enumerate().map(|(n, agent)| node_of(agent, n)).collect();
    let differences: Vec<_> = parked
        .agents
        .iter()
        .zip(&found)
        .enumerate()
        .flat_map(|(n, (agent, node))| agent.differences(n, *node))
        .collect();
    if !differences.is_empty() {
        return Err(CheckpointError::Agents { differences });
    }
    if let Some(captured) = &parked.captured {
        captured.check_gpus(&nodes.iter().map(|node| node.gpu_id).collect::<Vec<_>>())?;
    }
    for (agent, node) in inner.agents.iter().zip(found) {
        if let Some(node) = node {
            agent.set_gpu(node.gpu_id);
        }
    }
    Ok(())
}

fn open_device(
    inner: &Arc<Inner>,
    parked: &mut Parked,
    same_process: bool,
) -> Result<Device, CheckpointError> {
    let mut renders = None;
    if same_process {
        if let Some(keeper) = parked.keeper.take() {
            let fds = keeper.fetch().map_err(system("take the render files back from their keeper"))?;
            let paths =
                inner.agents.iter().map(|agent| render_node_path(agent.node().properties.drm_render_minor));
            let files: Result<_, _> =
                paths.zip(fds).map(|(path, fd)| parked.transport.adopt(&path, fd)).collect();
            let files = files.map_err(|e| CheckpointError::Open(OpenError::Transport(e)))?;
            renders = Some(RenderFiles { files });
        }
    } else {
        // The kernel's handles were another process's; so was the keeper.
        parked.keeper = None;
        for (_, bo) in inner.registry.lock().bos.iter_mut() {
            bo.kernel = None;
        }
        if let Some(captured) = &mut parked.captured {
            return Device::restore(Arc::clone(&parked.transport), &inner.agents, captured)
                .map_err(CheckpointError::Open);
        }
    }
    Device::open(Arc::clone(&parked.transport), &inner.agents, renders).map_err(CheckpointError::Open)
}

fn make_again(
    inner: &Arc<Inner>,
    closed: &mut Closed,
    on: &Device,
    image: &Image,
    same_process: bool,
    report: &mut RestoreReport,
) -> Result<(), CheckpointError> {
    let started = Instant::now();
    let mut registry = inner.registry.lock();
    rebuild::buffers(&mut registry, on)?;
    rebuild::events(&mut registry, on, same_process)?;
    report.rebuild_ms = milliseconds(started);
    let started = Instant::now();
    let keys = evacuate::saved(&registry)?;
    // New memory of a driver is cleared (VRAM_CLEARED, zeroed system pages).
    report.add_read(image.fill(&evacuate::extents(&registry, &keys), true)?);
    report.fill_ms = milliseconds(started);
    let started = Instant::now();
    rebuild::queues(&mut registry, on, closed)?;
    report.rebuild_ms += milliseconds(started);
    Ok(())
}

/// Goes back to what is in the driver: this process's own, or a copy's that was just put there.
fn go_back_to(
    inner: &Arc<Inner>,
    closed: &mut Closed,
    on: &Device,
    captured: &Captured,
    image: &Image,
    same_process: bool,
    report: &mut RestoreReport,
) -> Result<(), CheckpointError> {
    let started = Instant::now();
    let mut registry = inner.registry.lock();
    if !same_process {
        captured.adopt(&mut registry)?;
    }
    preempt::take_back(&mut registry, on)?;
    report.rebuild_ms = milliseconds(started);
    if !same_process {
        let started = Instant::now();
        report.add_read(image.fill(&captured.extents(&registry), true)?);
        report.fill_ms = milliseconds(started);
    }
    let started = Instant::now();
    preempt::ring_again(&mut registry, on, closed)?;
    if !same_process {
        on.resume_restored().map_err(super::device("to let restored queues run"))?;
    }
    report.rebuild_ms += milliseconds(started);
    Ok(())
}

/// Undoes a restore that failed half way: the process is as it was before it, and the restore can be tried again.
fn give_up(inner: &Arc<Inner>, closed: &mut Closed, from: Device, parked: &mut Parked) {
    let preempted = parked.captured.is_some();
    let (undone, renders, transport) = part_with(inner, from, closed, preempted);
    if let Err(error) = undone {
        tracing::warn!(target: "checkpoint", %error, "a failed restore was not undone completely");
    }
    match keep(renders) {
        Ok(keeper) => parked.keeper = Some(keeper),
        Err(error) => tracing::error!(target: "checkpoint", %error, "the device of this process is lost"),
    }
    match Incarnation::current() {
        Ok(incarnation) => parked.incarnation = incarnation,
        Err(error) => tracing::error!(target: "checkpoint", %error, "the process cannot be identified"),
    }
    if let Err(error) = disconnect(&*transport) {
        tracing::warn!(target: "checkpoint", %error, "the transport stays connected");
    }
}
