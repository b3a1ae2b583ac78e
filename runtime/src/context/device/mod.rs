// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live side of a runtime: open device files and what is done through them.
//!
//! INVARIANT: everything here can be torn down and made again under the registry's entries. Every function takes an
//! entry, asks the driver, and fills the entry's kernel-side fields; the public API and checkpoint/restore call the
//! same functions, there is no second way to make an object.
//!
//! A call borrows the device under a pass ([`crate::context::Context::device`]). A thread that sleeps in the driver holds a clone of
//! the `Arc` until it wakes; [`Device::reclaim`] wakes all of them.

mod bo;
mod event;
pub mod hdp;
mod queue;
mod share;
pub mod svm;
mod vm;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kfd::ioctl::{ClockCounters, MemoryPolicy};
use kfd::transport::render_node_path;
use kfd::{DoorbellSlice, Errno, File, GpuId, IoctlError, Kfd, Render, Topology, Transport};
use parking_lot::Mutex;
use queues::words::count;

use crate::context::agent::info::AgentInfo;
pub use crate::context::device::bo::flags;
pub use crate::context::device::event::DeviceEvents;
pub use crate::context::device::share::{Dmabuf, identify};
use crate::context::error::{DeviceError, OpenError};
use crate::context::registry::state::AgentIndex;

/// Oldest KFD interface that will do: event ages in WAIT_EVENTS came with 1.14.
pub const MIN_KFD_MINOR: u32 = 14;

/// One agent's open files and numbers.
#[derive(Debug)]
pub struct DeviceNode {
    /// KFD's id of the GPU; may differ after a restore.
    pub gpu: GpuId,
    /// Its render node, whose VM was acquired.
    pub render: Arc<dyn File>,
    /// High half of the LDS aperture.
    pub lds_aperture_hi: u32,
    /// High half of the scratch aperture.
    pub scratch_aperture_hi: u32,
    /// What is known of the agent.
    pub info: Arc<AgentInfo>,
    /// Whether the driver has its trap handler.
    trap_handler: AtomicBool,
    /// Ticks of its counter in a second, once the driver has said it.
    counter_frequency: OnceLock<u64>,
}

impl DeviceNode {
    /// Whether the driver has its trap handler.
    pub fn has_trap_handler(&self) -> bool {
        self.trap_handler.load(Ordering::Relaxed)
    }
}

/// The open device.
pub struct Device {
    transport: Arc<dyn Transport>,
    kfd: Kfd,
    nodes: Vec<DeviceNode>,
    /// Doorbell slices by agent, mapped with the first queue.
    doorbells: Mutex<Vec<Option<DoorbellSlice>>>,
    /// Whether RUNTIME_ENABLE was granted.
    exceptions: bool,
    xnack: bool,
    /// Minor number of the driver's interface, 1.x.
    minor: u32,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("transport", &self.transport.name())
            .field("nodes", &self.nodes.len())
            .finish()
    }
}

/// The open files of a device, kept while the rest of it is gone: a VM stays tied to its render file for as long as
/// the process's memory lives (`ACQUIRE_VM` with another one is EBUSY).
#[derive(Debug)]
pub struct RenderFiles {
    /// In the order of the agents.
    pub files: Vec<Arc<dyn File>>,
}

pub fn ioctl(what: &'static str) -> impl FnOnce(IoctlError) -> DeviceError {
    move |source| DeviceError::Ioctl { what, source }
}

impl Device {
    /// Opens the device for `agents` and takes it up to where objects can be made: version, render
    /// nodes, apertures, VMs, memory policy, exceptions. `renders` are files kept from before in the same process.
    ///
    /// # Errors
    /// [`OpenError::Version`], [`OpenError::Bringup`]. Nothing stays open.
    pub fn open(
        transport: Arc<dyn Transport>,
        agents: &[Arc<AgentInfo>],
        renders: Option<RenderFiles>,
    ) -> Result<Self, OpenError> {
        let (kfd, minor) = open_kfd(&*transport)?;
        let files = match renders {
            Some(renders) => renders.files,
            None => open_renders(&*transport, agents)?,
        };
        for (info, render) in agents.iter().zip(&files) {
            kfd.acquire_vm(info.gpu(), render.as_fd()).map_err(ioctl("a GPU address space"))?;
        }
        let exceptions = enable_exceptions(&kfd, agents)?;
        Self::with_spaces(transport, kfd, minor, agents, files, exceptions)
    }

    /// Whether the driver has buffers of this process, from before it closed the device with its queues preempted.
    /// [`Device::restore`] must not be tried then: the driver evicts the queues before it looks and refuses, and nothing
    /// takes that back.
    ///
    /// # Errors
    /// [`OpenError::Version`], [`OpenError::Bringup`]. Nothing stays open.
    pub fn knows_us(transport: &dyn Transport) -> Result<bool, OpenError> {
        let (kfd, _) = open_kfd(transport)?;
        // One that the driver has not seen yet may have nothing to be asked for.
        let Ok(info) = kfd.criu_process_info() else { return Ok(false) };
        kfd.criu_unpause().map_err(ioctl("the end of a question"))?;
        Ok(info.bos > 0)
    }

    /// Opens the device for a copy of a process with preempted queues, and puts the driver's state of that process into
    /// it with `put`, which has the open render files of all GPUs: address spaces, buffers, events and queues come back
    /// under their numbers, the queues stopped until [`Device::resume_restored`].
    ///
    /// # Errors
    /// [`OpenError::Version`], [`OpenError::Bringup`]. After a refusal of the state itself this process cannot be
    /// restored any more; another copy can.
    pub fn restore(
        transport: Arc<dyn Transport>,
        agents: &[Arc<AgentInfo>],
        put: impl FnOnce(&Kfd, &BTreeMap<GpuId, Arc<dyn File>>) -> Result<(), IoctlError>,
    ) -> Result<Self, OpenError> {
        let (kfd, minor) = open_kfd(&*transport)?;
        let topology = Topology::read(transport.sysfs())
            .map_err(|source| OpenError::Topology { transport: transport.name().to_owned(), source })?;
        // Of every GPU, in use or not: the driver counts them all.
        let mut files = BTreeMap::new();
        for node in topology.gpus() {
            let path = render_node_path(node.properties.drm_render_minor);
            files.insert(node.gpu_id, transport.open(&path).map_err(DeviceError::Open)?);
        }
        // Before there are queues: it is refused afterwards.
        let exceptions = enable_exceptions(&kfd, agents)?;
        put(&kfd, &files).map_err(ioctl("the state of a checkpointed process"))?;
        let file = |info: &Arc<AgentInfo>| files.get(&info.gpu()).cloned();
        let own: Option<Vec<_>> = agents.iter().map(file).collect();
        let own = own.ok_or(DeviceError::Absent { what: "an agent's render node" })?;
        Self::with_spaces(transport, kfd, minor, agents, own, exceptions)
    }

    fn with_spaces(
        transport: Arc<dyn Transport>,
        kfd: Kfd,
        minor: u32,
        agents: &[Arc<AgentInfo>],
        files: Vec<Arc<dyn File>>,
        exceptions: bool,
    ) -> Result<Self, OpenError> {
        let apertures = kfd.get_process_apertures_new().map_err(ioctl("the apertures"))?;
        let mut nodes = Vec::with_capacity(agents.len());
        for (info, render) in agents.iter().zip(files) {
            let gpu = info.gpu();
            // Everything is coherent by default, what need not be says so in its allocation flags.
            kfd.set_memory_policy(gpu, MemoryPolicy::default()).map_err(ioctl("the memory policy"))?;
            let aperture = apertures.iter().find(|aperture| aperture.gpu_id == gpu.0);
            // CAST: the high half of 64 bits.
            let high = |base: Option<u64>| (base.unwrap_or(0) >> 32) as u32;
            nodes.push(DeviceNode {
                gpu,
                render,
                lds_aperture_hi: high(aperture.map(|a| a.lds_base)),
                scratch_aperture_hi: high(aperture.map(|a| a.scratch_base)),
                info: Arc::clone(info),
                trap_handler: AtomicBool::new(false),
                counter_frequency: OnceLock::new(),
            });
        }
        let doorbells = Mutex::new(vec![None; nodes.len()]);
        // A driver that cannot say has it off.
        let xnack = kfd.xnack_mode().unwrap_or(false);
        Ok(Device { transport, kfd, nodes, doorbells, exceptions, xnack, minor })
    }

    /// Lets the queues of a restored process run, each by its percentage.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn resume_restored(&self) -> Result<(), DeviceError> {
        let pid = nix::unistd::getpid().as_raw().cast_unsigned();
        self.kfd.criu_resume(pid).map_err(ioctl("the end of a restore"))
    }

    /// The way to the driver that answers the ioctls.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// The open `/dev/kfd`.
    pub fn kfd(&self) -> &Kfd {
        &self.kfd
    }

    /// All agents' files and numbers.
    pub fn nodes(&self) -> &[DeviceNode] {
        &self.nodes
    }

    /// Minor number of the driver's interface, 1.x.
    pub fn interface_minor(&self) -> u32 {
        self.minor
    }

    /// Whether page faults of the agents are retried.
    pub fn xnack(&self) -> bool {
        self.xnack
    }

    /// An agent's files and numbers.
    ///
    /// # Errors
    /// [`DeviceError::Absent`] if it is not open.
    pub fn node(&self, agent: AgentIndex) -> Result<&DeviceNode, DeviceError> {
        self.nodes.get(agent.at()).ok_or(DeviceError::Absent { what: "the agent" })
    }

    /// Picoseconds that a software device asks for a byte read through an agent's aperture.
    pub fn aperture_read_cost(&self, agent: AgentIndex) -> u64 {
        self.node(agent).map_or(0, |node| self.transport.aperture_read_cost(node.gpu))
    }

    /// The agent of a GPU id.
    pub fn agent_of(&self, gpu: GpuId) -> Option<AgentIndex> {
        // There are at most 64 agents.
        self.nodes.iter().position(|node| node.gpu == gpu).map(|at| AgentIndex(count(at)))
    }

    fn gpus(&self, agents: &[AgentIndex]) -> Result<Vec<GpuId>, DeviceError> {
        agents.iter().map(|&agent| self.node(agent).map(|node| node.gpu)).collect()
    }

    /// Has waves of an agent that trap go to the code at `va`.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn set_trap_handler(&self, agent: AgentIndex, va: u64) -> Result<(), DeviceError> {
        let node = self.node(agent)?;
        self.kfd.set_trap_handler(node.gpu, va, 0).map_err(ioctl("a trap handler"))?;
        node.trap_handler.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes that can still be allocated on an agent.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn available(&self, agent: AgentIndex) -> Result<u64, DeviceError> {
        self.kfd.available_memory(self.node(agent)?.gpu).map_err(ioctl("the memory available"))
    }

    /// The clocks of an agent and the host.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn clocks(&self, agent: AgentIndex) -> Result<ClockCounters, DeviceError> {
        self.kfd.get_clock_counters(self.node(agent)?.gpu).map_err(ioctl("the clocks"))
    }

    /// Ticks of an agent's counter in a second, if the driver says it.
    pub fn counter_frequency(&self, agent: AgentIndex) -> Option<u64> {
        let node = self.node(agent).ok()?;
        if let Some(told) = node.counter_frequency.get() {
            return Some(*told);
        }
        let told = Render::new(Arc::clone(&node.render)).counter_frequency().ok().flatten()?;
        Some(*node.counter_frequency.get_or_init(|| told))
    }

    /// Gets everyone out of the device who sleeps in it and returns it alone. The gate must be closed and the event
    /// thread stopped; `wake` is the id of the wake event, which stays set. The time in which the device does not answer
    /// comes on top of the deadline, as far as the thread's [`kfd::transport::CallLimit`] goes.
    ///
    /// # Errors
    /// The device as it was if someone is still in it at the deadline, or, with the reason, the limit is over.
    pub fn reclaim(
        mut device: Arc<Device>,
        wake: u32,
        mut deadline: Instant,
    ) -> Result<Device, (Arc<Device>, Option<DeviceError>)> {
        loop {
            device = match Arc::try_unwrap(device) {
                Ok(device) => return Ok(device),
                Err(shared) => shared,
            };
            if Instant::now() >= deadline {
                return Err((device, None));
            }
            let asked = Instant::now();
            if let Err(error) = device.set_event(wake) {
                tracing::debug!(target: "device", %error, "the wake event could not be set");
                if matches!(&error, DeviceError::Ioctl { source, .. } if source.errno == Errno::ETIMEDOUT) {
                    return Err((device, Some(error)));
                }
            }
            deadline += asked.elapsed();
            // TIMEOUT: a woken thread needs microseconds to let go.
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Closes the files; the render nodes are given back for whoever must keep them. Objects of the driver are the
    /// caller's to destroy before.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`] if the driver would not end the exception reporting; all is closed nevertheless.
    pub fn close(self) -> (RenderFiles, Arc<dyn Transport>, Result<(), DeviceError>) {
        let disabled = match self.exceptions {
            true => self.kfd.runtime_disable().map_err(ioctl("the end of exception reporting")),
            false => Ok(()),
        };
        let (renders, transport) = self.leave();
        (renders, transport, disabled)
    }

    /// Closes the files and leaves everything in the driver, whose state belongs to the process and not to its files;
    /// the render nodes are given back for whoever must keep them.
    pub fn leave(self) -> (RenderFiles, Arc<dyn Transport>) {
        let files = self.nodes.into_iter().map(|node| node.render).collect();
        (RenderFiles { files }, self.transport)
    }
}

/// Opens `/dev/kfd`; answers the interface's minor number too.
fn open_kfd(transport: &dyn Transport) -> Result<(Kfd, u32), OpenError> {
    let kfd = Kfd::open(transport).map_err(DeviceError::Open)?;
    let version = kfd.get_version().map_err(ioctl("the interface version"))?;
    if version.major != 1 || version.minor < MIN_KFD_MINOR {
        let (major, minor) = (version.major, version.minor);
        return Err(OpenError::Version { major, minor, wanted: MIN_KFD_MINOR });
    }
    Ok((kfd, version.minor))
}

fn open_renders(
    transport: &dyn Transport,
    agents: &[Arc<AgentInfo>],
) -> Result<Vec<Arc<dyn File>>, DeviceError> {
    let open = |info: &Arc<AgentInfo>| {
        transport.open(&render_node_path(info.render_minor())).map_err(DeviceError::Open)
    };
    agents.iter().map(open).collect()
}

/// RUNTIME_ENABLE, where every agent's firmware can report exceptions (capability bit 29).
fn enable_exceptions(kfd: &Kfd, agents: &[Arc<AgentInfo>]) -> Result<bool, DeviceError> {
    const DEBUG_FIRMWARE: u32 = 1 << 29;
    if !agents.iter().all(|info| info.node().properties.capability & DEBUG_FIRMWARE != 0) {
        return Ok(false);
    }
    match kfd.runtime_enable(0, true) {
        Ok(()) => Ok(true),
        // Enabled by an earlier life of this process whose close was cut short.
        Err(error) if error.errno == Errno::EBUSY => Ok(true),
        Err(error) => Err(ioctl("exception reporting")(error)),
    }
}
