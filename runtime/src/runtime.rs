// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime: opened once a process, holding the gate, the registry, the device and the event thread.
//!
//! INVARIANT: a process has one context, as it has one in the driver (KFD keeps it until the process's memory goes),
//! so opening again gives the same one, and it is closed by a checkpoint or the end of the process, not by dropping
//! handles.
//!
//! Lock order, outermost first: staged copies, an agent's copy engines, the gate, a raw queue's producer, the event thread's slot, the
//! registry, the list of deferred frees.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kfd::transport::CallLimit;
use kfd::{DeviceSpec, Topology, Transport};
use parking_lot::Mutex;

use crate::agent;
use crate::agent::{Agent, AgentInfo, Claims, LeftOut, Selection};
use crate::checkpoint::{Session, agent_thread};
use crate::copy::{Engines, Staging};
use crate::device::Device;
use crate::error::{AllocError, DeviceError, OpenError};
use crate::exception::Watch;
use crate::gate::{Closed, Gate, GatedCell, Pass};
use crate::pool::{Pool, PoolKind, Request, window};
use crate::registry::state::{AgentIndex, BoKey, BoRole, EventKey, EventKind, EventState};
use crate::registry::{Event, EventLive, Registry};
use crate::share::Leader;

/// The process's runtime, once it was opened.
static PROCESS: Mutex<Option<Arc<Inner>>> = Mutex::new(None);

/// What to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Who answers; `None` reads `STASIS_DEVICE`.
    pub device: Option<DeviceSpec>,
    /// Which agents, such as `0` or `GPU-a1b2c3d4e5f60718,1` or `stasis://0,1`; `None` reads `ROCR_VISIBLE_DEVICES`, and
    /// takes all that can be used without it ([`Runtime::left_out`] says which cannot), as `stasis://` does.
    pub agents: Option<String>,
}

/// A handle on the process's runtime. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("transport", &self.inner.transport_name())
            .field("agents", &self.agents())
            .finish()
    }
}

/// The runtime's one inner part.
pub(crate) struct Inner {
    /// Every call that touches the device passes it.
    pub gate: Arc<Gate>,
    /// Everything handed out.
    pub registry: Mutex<Registry>,
    /// The selected agents.
    pub agents: Vec<Arc<AgentInfo>>,
    /// The uuids of all GPUs, selected or not: what indices in an agent list count.
    pub uuids: Vec<String>,
    /// The GPUs that are none of the agents.
    pub left_out: Vec<LeftOut>,
    /// Which agents logical devices hold.
    pub claims: Mutex<Claims>,
    /// `kfd`, `soft:gfx1100`: whose device it is, or was until the checkpoint.
    transport_name: Mutex<Arc<str>>,
    /// Address of the event page, for signals' mailboxes.
    pub event_page_va: u64,
    /// The wake event: set, it ends every sleep in the device.
    pub wake: Arc<EventLive>,
    /// Buffers dropped while packets might still use them, with the queues that might.
    pub deferred: Mutex<Vec<(BoKey, u64)>>,
    pub(crate) engines: Vec<Mutex<Engines>>,
    /// The meeting of a session that this process leads.
    pub(crate) leader: Mutex<Option<Leader>>,
    /// Staged copies; taken before any agent's copy engines.
    pub(crate) staging: Mutex<Staging>,
    session: Session,
    device: GatedCell<Option<Arc<Device>>>,
    watch: Mutex<Option<Watch>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("transport", &self.transport_name()).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Opens the process's runtime with the defaults of [`Options`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_default() -> Result<Self, OpenError> {
        Runtime::open(Options::default())
    }

    /// Opens the process's runtime, or gives another handle on it if it is open on the same agents.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left open then.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let mut process = PROCESS.lock();
        let list = match options.agents {
            Some(list) => Some(list),
            None => agent::spec::from_env()?,
        };
        let list = list.filter(|list| !agent::spec::is_all(list));
        if let Some(inner) = &*process {
            if let Some(lost) = inner.gate.lost() {
                return Err(lost.into());
            }
            inner.check_same(list.as_deref())?;
            return Ok(Runtime { inner: Arc::clone(inner) });
        }
        // Not before: a copy on another machine may have an environment that names nothing there.
        let spec = match options.device {
            Some(spec) => spec,
            None => DeviceSpec::from_env().map_err(OpenError::Device)?,
        };
        let transport = kfd::open_default(spec).map_err(OpenError::Transport)?;
        let inner = Inner::open(transport, list.as_deref())?;
        agent_thread::start(&inner).map_err(OpenError::Agent)?;
        *process = Some(Arc::clone(&inner));
        Ok(Runtime { inner })
    }

    /// The process's runtime if it was opened.
    pub fn current() -> Option<Self> {
        PROCESS.lock().as_ref().map(|inner| Runtime { inner: Arc::clone(inner) })
    }

    pub(crate) fn from_inner(inner: &Arc<Inner>) -> Self {
        Runtime { inner: Arc::clone(inner) }
    }

    /// Its inner part.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// `kfd` or `soft:` and the targets. A copy that was restored on another device has that one's name.
    pub fn transport_name(&self) -> Arc<str> {
        self.inner.transport_name()
    }

    /// What executes waves on a software device, as `key value` lines: `engine`, `cpu` (the vector extension in use), `cpu_best`
    /// and `workers`; `None` on hardware.
    ///
    /// # Errors
    /// [`AllocError::Lost`].
    pub fn engine(&self) -> Result<Option<String>, AllocError> {
        let pass = self.inner.gate.enter()?;
        Ok(self.inner.device_or_lost(&pass)?.transport().engine())
    }

    /// The agents, in the order of the list that selected them.
    pub fn agents(&self) -> Vec<Agent> {
        let agent = |info: &Arc<AgentInfo>| Agent { inner: Arc::clone(&self.inner), info: Arc::clone(info) };
        self.inner.agents.iter().map(agent).collect()
    }

    /// The agent at `index`.
    pub fn agent(&self, index: usize) -> Option<Agent> {
        let info = self.inner.agents.get(index)?;
        Some(Agent { inner: Arc::clone(&self.inner), info: Arc::clone(info) })
    }

    /// The GPUs that were here when the runtime was opened and are none of its agents, with the reason.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.inner.left_out
    }

    /// System memory that all agents map.
    pub fn gtt(&self) -> Pool {
        Pool::new(&self.inner, PoolKind::Gtt, AgentIndex(0))
    }

    /// System memory for kernel arguments.
    pub fn kernarg(&self) -> Pool {
        Pool::new(&self.inner, PoolKind::Kernarg, AgentIndex(0))
    }
}

fn uuids(agents: &[Arc<AgentInfo>]) -> String {
    agents.iter().map(|info| info.uuid()).collect::<Vec<_>>().join(",")
}

impl Inner {
    pub(crate) fn open(transport: Arc<dyn Transport>, list: Option<&str>) -> Result<Arc<Self>, OpenError> {
        let transport_name = transport.name().to_owned();
        let topology = Topology::read(transport.sysfs())
            .map_err(|source| OpenError::Topology { transport: transport_name.clone(), source })?;
        let selection = agent::select(&topology, list, &transport_name)?;
        let uuids = topology.gpus().map(|node| agent::spec::uuid(node.properties.unique_id)).collect();
        let window = window::reserve_any()?;
        let made = Self::with_window(transport, transport_name, selection, uuids, window);
        if made.is_err() {
            window::release(window);
        }
        made
    }

    fn with_window(
        transport: Arc<dyn Transport>,
        transport_name: String,
        selection: Selection,
        uuids: Vec<String>,
        window: crate::pool::arena::Window,
    ) -> Result<Arc<Self>, OpenError> {
        let Selection { agents, left_out } = selection;
        let gate = Arc::new(Gate::new());
        let device = Arc::new(Device::open(transport, &agents, None)?);
        let mut registry = Registry::new(window);
        make_fixtures(&mut registry, &device, agents.len())?;
        let fixture = |what| OpenError::Bringup(DeviceError::Absent { what });
        let page = registry.fixtures.event_page.and_then(|page| registry.bos.get(page));
        let event_page_va = page.ok_or_else(|| fixture("the event page"))?.state.va;
        let wake = registry.fixtures.wake.and_then(|wake| registry.events.get(wake));
        let wake = Arc::clone(&wake.ok_or_else(|| fixture("the wake event"))?.live);
        let inner = Arc::new(Inner {
            device: GatedCell::new(&gate, Some(Arc::clone(&device))),
            gate,
            registry: Mutex::new(registry),
            engines: agents.iter().map(|_| Mutex::new(Engines::default())).collect(),
            staging: Mutex::default(),
            agents,
            uuids,
            left_out,
            claims: Mutex::default(),
            transport_name: Mutex::new(transport_name.into()),
            event_page_va,
            wake,
            deferred: Mutex::new(Vec::new()),
            leader: Mutex::new(None),
            session: Session::default(),
            watch: Mutex::new(None),
        });
        inner.start_watch(&device).map_err(OpenError::Thread)?;
        Ok(inner)
    }

    /// Whose device it is, or was until the checkpoint.
    pub(crate) fn transport_name(&self) -> Arc<str> {
        Arc::clone(&self.transport_name.lock())
    }

    /// It is this one's now.
    pub(crate) fn set_transport_name(&self, name: &str) {
        *self.transport_name.lock() = name.into();
    }

    /// Whether `list` selects the agents that are open; no list takes what is open.
    fn check_same(&self, list: Option<&str>) -> Result<(), OpenError> {
        let Some(list) = list else { return Ok(()) };
        let chosen = agent::spec::select(list, &self.uuids)?;
        let open = self.agents.iter().map(|info| info.uuid());
        if chosen.iter().map(|&at| self.uuids[at].as_str()).eq(open) {
            return Ok(());
        }
        Err(OpenError::AlreadyOpen { open: uuids(&self.agents), wanted: list.to_owned() })
    }

    /// The checkpoint side.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// The device, under a pass; `None` only while a checkpoint holds the gate.
    #[inline]
    pub fn device<'p>(&'p self, pass: &'p Pass<'_>) -> Option<&'p Arc<Device>> {
        self.device.get(pass).as_ref()
    }

    /// The id of the wake event.
    pub(crate) fn wake_event(&self, _pass: &Pass<'_>) -> u32 {
        self.wake.id.load(Ordering::Relaxed)
    }

    fn start_watch(self: &Arc<Self>, device: &Arc<Device>) -> std::io::Result<()> {
        let watch = Watch::start(self, Arc::clone(device))?;
        *self.watch.lock() = Some(watch);
        Ok(())
    }

    /// Stops the event thread, gets every sleeper out of the device and takes the device away from all calls. The
    /// wake event stays set.
    ///
    /// # Errors
    /// [`TakeError`]; the device is as before, and in use again.
    pub fn take_device(
        self: &Arc<Self>,
        closed: &mut Closed,
        deadline: Instant,
    ) -> Result<Device, TakeError> {
        let device = {
            let pass = closed.pass();
            self.device(&pass).map(Arc::clone)
        };
        let device = device.ok_or(TakeError::Gone)?;
        let watch = self.watch.lock().take();
        if let Some(watch) = watch {
            watch.stop(&device).map_err(|(watch, error)| {
                *self.watch.lock() = Some(watch);
                error
            })?;
        }
        self.device.set(closed, None);
        match Device::reclaim(device, self.wake.id.load(Ordering::Relaxed), deadline) {
            Ok(device) => Ok(device),
            Err((device, stalled)) => {
                let sleepers = Arc::strong_count(&device) - 1;
                // However long it takes: calls need a device whose events are listened to.
                CallLimit::none().hold(|| self.put_device(closed, device))?;
                Err(stalled.map_or(TakeError::Busy { sleepers }, TakeError::Device))
            }
        }
    }

    /// The same as [`Inner::put_device`], but gives the device back if it cannot be put to use.
    ///
    /// # Errors
    /// [`TakeError`] with the device; calls have none then.
    pub fn try_put_device(
        self: &Arc<Self>,
        closed: &mut Closed,
        device: Device,
    ) -> Result<(), (Option<Box<Device>>, TakeError)> {
        let device = Arc::new(device);
        self.put_device(closed, Arc::clone(&device)).map_err(|error| {
            self.device.set(closed, None);
            (Arc::into_inner(device).map(Box::new), error)
        })
    }

    /// Gives calls a device, lowers the wake event and starts the event thread.
    ///
    /// # Errors
    /// [`TakeError`]; the device is in use nevertheless.
    pub fn put_device(self: &Arc<Self>, closed: &mut Closed, device: Arc<Device>) -> Result<(), TakeError> {
        self.device.set(closed, Some(Arc::clone(&device)));
        device.reset_event(self.wake.id.load(Ordering::Relaxed))?;
        self.start_watch(&device).map_err(TakeError::Thread)
    }
}

/// The device could not be taken from, or given to, the calls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TakeError {
    /// It was taken already.
    #[error("The device was closed already")]
    Gone,
    /// A thread did not come out of the driver in time.
    #[error("{sleepers} threads are still asleep in the driver: retry with a later deadline")]
    Busy {
        /// How many.
        sleepers: usize,
    },
    /// The event thread could not be stopped or the wake event not changed.
    #[error("The driver refused")]
    Device(#[from] DeviceError),
    /// The event thread could not be started.
    #[error("The event thread could not be started")]
    Thread(#[source] std::io::Error),
}

/// The event page and the runtime's own events: the page with the first event, the wake event.
///
/// # Errors
/// [`OpenError::Fixture`], [`OpenError::Bringup`].
fn make_fixtures(registry: &mut Registry, device: &Device, agents: usize) -> Result<(), OpenError> {
    let request = Request::shared(BoRole::EventPage, kfd::sys::EVENT_PAGE_BYTES as u64, agents);
    let state = request.into_state();
    let fixture = |source: AllocError| OpenError::Fixture { what: "event page", source };
    let page = registry.add_bo(state).map_err(|error| fixture(error.into()))?;
    let bo = registry.bos.get_mut(page).ok_or(DeviceError::Absent { what: "the event page" })?;
    device.create_bo(bo).map_err(|error| fixture(error.into()))?;
    registry.fixtures.event_page = Some(page);
    let event = |registry: &mut Registry, kind, auto_reset, first: bool| -> Result<EventKey, DeviceError> {
        let mut event = Event::new(EventState { kind, auto_reset, id: 0 });
        let page = if first { registry.bos.get(page) } else { None };
        device.create_event(&mut event, page)?;
        Ok(registry.events.insert(event))
    };
    // All but the wake event are consumed by the event thread's wait: KFD can lower no other kind by hand.
    registry.fixtures.wake = Some(event(registry, EventKind::Signal, false, true)?);
    registry.fixtures.queue_exception = Some(event(registry, EventKind::Signal, true, false)?);
    registry.fixtures.memory = Some(event(registry, EventKind::Memory, true, false)?);
    registry.fixtures.hw_exception = Some(event(registry, EventKind::HwException, true, false)?);
    Ok(())
}
