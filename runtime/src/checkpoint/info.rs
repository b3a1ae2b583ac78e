// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a checkpoint of this process would move and what it would be refused for: KFD-CRIU's "process info" phase.
//!
//! INVARIANT: looking changes nothing and waits for nobody: the gate is passed only if it is open, the registry is
//! looked at only if it is free, and the driver is asked nothing that would take a queue off the hardware.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stasis_protocol::State;
use stasis_protocol::gate::Pass;

use super::preempt;
use crate::checkpoint::machine::CheckpointMachine;
use crate::context::Context;
use crate::context::device::Device;
use crate::context::error::explain;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKind, BoState, QueueKind};
use crate::image::CHUNK_BYTES;

/// TIMEOUT: how long the registry may be in somebody else's hands: a call holds it for microseconds, a verb that
/// writes an image for seconds.
const REGISTRY: Duration = Duration::from_millis(50);
/// Most queues and buffers that are named one by one: an answer is one datagram.
const NAMED: usize = 64;
/// What an image's metadata spends on an object, with room to spare: a queue's entry has some 600 characters.
const OBJECT_BYTES: u64 = 1024;
/// What an image's chunk table spends on a chunk (`image::format`).
const CHUNK_ENTRY_BYTES: u64 = 64;

/// A runtime as a checkpoint would find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// The transport to its device: `kfd`, `soft:gfx1100`.
    pub transport: String,
    /// Where it is between running and frozen.
    pub state: State,
    /// Calls inside the runtime at this moment; a lock waits for their end.
    pub calls_in_flight: u64,
    /// Why every call fails, if the device is lost.
    pub lost: Option<String>,
    /// Its agents, in its order.
    pub agents: Vec<AgentInfo>,
    /// What it has; `None` while a verb at work holds the registry.
    pub objects: Option<Objects>,
    /// Bytes of buffers that are still to come after a lazy restore, from image files that the process has open until then. A
    /// checkpoint waits for them. Older agents do not say.
    #[serde(default)]
    pub lazy_bytes: u64,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// Its instruction set.
    pub name: String,
    /// `GPU-` and its unique id.
    pub uuid: String,
    /// KFD's id of it.
    pub gpu_id: u32,
}

/// The objects of a runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objects {
    /// Buffers by what lies behind them: `vram`, `gtt`, `userptr`, `doorbell`. The runtime's own are among them.
    pub buffers: BTreeMap<String, Amount>,
    /// Bytes a drained checkpoint saves; CRIU carries those of a userptr.
    pub saved_bytes: u64,
    /// Bytes of the image file if none of them were zero.
    pub image_bytes: u64,
    /// Buffers whose bytes neither the CPU nor a copy engine can reach, which a checkpoint refuses
    /// ([`super::CheckpointError::Hidden`]); the first ones by name.
    pub hidden: Vec<String>,
    /// How many they are.
    pub hidden_count: u64,
    /// The queues; the first ones.
    pub queues: Vec<QueueInfo>,
    /// How many they are.
    pub queue_count: u64,
    /// Signals.
    pub signals: u64,
    /// Events.
    pub events: u64,
    /// Loaded code objects.
    pub executables: u64,
    /// Buffers whose memory others may hold: exported or imported as DMABufs.
    #[serde(default)]
    pub shared: u64,
    /// Whether kernels could be stopped in the middle.
    pub preempt: Preempt,
}

/// Some buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInfo {
    /// Its key, as errors name it.
    pub queue: String,
    /// Index of its agent.
    pub agent: u32,
    /// `aql`, `pm4`, `sdma`.
    pub kind: String,
    /// What is written and not yet consumed, in `unit`; `None` while locked.
    pub pending: Option<u64>,
    /// `packets`, `dwords`, `bytes`.
    pub unit: String,
    /// Whether it was taken off the hardware.
    #[serde(rename = "parked")]
    pub suspended: bool,
    /// The runtime's own, for copies.
    pub internal: bool,
    /// Why it failed, if it did.
    pub fault: Option<String>,
}

/// Whether `Mode::Preempt` is to be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preempt {
    /// As far as can be told without stopping a queue.
    Available {
        /// Bytes it saves at most: save areas count whole.
        saved_bytes: u64,
    },
    /// No.
    Unavailable {
        /// Why, and what to do.
        reason: String,
    },
    /// Unknown while locked: the device would have to be asked.
    Unknown,
}

impl ProcessInfo {
    /// Looks at a runtime.
    pub(super) fn of(context: &Arc<Context>) -> Self {
        let calls_in_flight = context.gate.passes();
        let (pass, lost) = match context.gate.try_enter() {
            Ok(pass) => (pass, None),
            Err(lost) => (None, Some(explain(&lost))),
        };
        let on = pass.as_ref().and_then(|pass| context.device(pass));
        let registry = context.registry.try_lock_for(REGISTRY);
        let agent = |info: &Arc<crate::context::agent::info::AgentInfo>| AgentInfo {
            name: info.target().name.to_owned(),
            uuid: info.uuid().to_owned(),
            gpu_id: info.gpu().0,
        };
        Self {
            transport: context.transport_name().to_string(),
            state: CheckpointMachine::of(context).state(),
            calls_in_flight,
            lost,
            agents: context.agents.iter().map(agent).collect(),
            objects: registry
                .map(|registry| Objects::of(context, &registry, on.map(|on| &**on), pass.as_ref())),
            lazy_bytes: context.arriving.left_bytes(),
        }
    }
}

impl Objects {
    fn of(context: &Context, registry: &Registry, on: Option<&Device>, pass: Option<&Pass<'_>>) -> Self {
        let mut buffers = BTreeMap::<String, Amount>::new();
        let (mut saved_bytes, mut chunks, mut hidden, mut hidden_count) = (0, 0, Vec::new(), 0);
        for (key, bo) in registry.bos.iter() {
            let amount = buffers.entry(kind_name(&bo.state).to_owned()).or_default();
            amount.count += 1;
            amount.bytes += bo.state.bytes;
            let carried = matches!(bo.state.kind, BoKind::Vram | BoKind::Gtt);
            if !carried || !bo.state.role.has_contents() {
                continue;
            }
            saved_bytes += bo.state.bytes;
            chunks += bo.state.bytes.div_ceil(CHUNK_BYTES);
            let agent = context.agents.get(bo.state.agent.at());
            let has_engine = agent.is_some_and(|agent| agent.copy_engines() > 0);
            if !bo.state.cpu_mapped && !has_engine {
                hidden_count += 1;
                hidden.extend((hidden.len() < NAMED).then(|| key.to_string()));
            }
        }
        let counts = [registry.bos.len(), registry.events.len(), registry.signals.len()];
        let objects = counts.map(|count| count as u64).iter().sum::<u64>() + registry.queues.len() as u64;
        // A code object is in the metadata as hex digits.
        let code: u64 =
            registry.executables.iter().map(|(_, loaded)| 2 * loaded.code_object.len() as u64).sum();
        Self {
            buffers,
            saved_bytes,
            image_bytes: saved_bytes + chunks * CHUNK_ENTRY_BYTES + code + objects * OBJECT_BYTES,
            hidden,
            hidden_count,
            queues: queues(registry, pass),
            queue_count: registry.queues.len() as u64,
            signals: registry.signals.len() as u64,
            events: registry.events.len() as u64,
            executables: registry.executables.len() as u64,
            shared: registry.bos.iter().filter(|(_, bo)| bo.state.sharing.is_some()).count() as u64,
            preempt: match on.map(|on| preempt::predict(registry, on)) {
                None => Preempt::Unknown,
                Some(Ok(saved_bytes)) => Preempt::Available { saved_bytes },
                Some(Err(error)) => Preempt::Unavailable { reason: explain(&error) },
            },
        }
    }
}

fn kind_name(state: &BoState) -> &'static str {
    match state.kind {
        BoKind::Vram => "vram",
        BoKind::Gtt => "gtt",
        BoKind::Userptr { .. } => "userptr",
        BoKind::Doorbell => "doorbell",
        BoKind::Imported => "imported",
        BoKind::Reserved => "reserved",
    }
}

/// The first queues. Their pages are mapped only while the gate is open, which the pass proves.
fn queues(registry: &Registry, pass: Option<&Pass<'_>>) -> Vec<QueueInfo> {
    let info =
        |(key, queue): (crate::context::registry::state::QueueKey, &crate::context::registry::Queue)| {
            let live = queue.live.as_ref().filter(|live| !live.is_destroyed());
            QueueInfo {
                queue: key.to_string(),
                agent: queue.state.agent.0,
                kind: match queue.state.kind {
                    QueueKind::Aql => "aql",
                    QueueKind::Pm4 => "pm4",
                    QueueKind::Sdma { .. } => "sdma",
                }
                .to_owned(),
                pending: pass.and(live).filter(|_| queue.created).map(|live| live.pending()),
                unit: queue.state.kind.unit().to_owned(),
                suspended: queue.state.suspended,
                internal: queue.state.internal,
                fault: live.and_then(|live| live.fault()).map(|fault| explain(&**fault)),
            }
        };
    registry.queues.iter().take(NAMED).map(info).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;
    use crate::testing::runtime;
    use crate::{Queue, QueueOptions, Signal};

    #[test]
    fn info_counts_what_was_made() {
        let (runtime, _) = runtime(2);
        let agent = runtime.agent(0).unwrap();
        let before = ProcessInfo::of(runtime.context()).objects.unwrap();
        let _vram = agent.vram().alloc(3 << 20).unwrap();
        let _gtt = runtime.gtt().alloc(5000).unwrap();
        let _queue = Queue::create(&agent, QueueOptions::default()).unwrap();
        let _signal = Signal::new(&runtime, 0).unwrap();
        let info = ProcessInfo::of(runtime.context());
        assert_eq!(
            (info.state, info.transport.as_str(), info.agents.len()),
            (State::Running, "soft:in-process", 2)
        );
        assert_eq!(info.agents[1].uuid, "GPU-a1b2000000000002");
        let after = info.objects.unwrap();
        assert!(after.buffers["vram"].bytes >= (3 << 20), "{after:?}");
        assert!(after.buffers["gtt"].count > before.buffers["gtt"].count, "{after:?}");
        assert!(after.saved_bytes >= before.saved_bytes + (3 << 20) + 8192, "{after:?}");
        assert!(after.image_bytes > after.saved_bytes && after.hidden.is_empty());
        assert_eq!((after.queue_count, after.queues.len(), before.queue_count), (1, 1, 0));
        assert_eq!((after.queues[0].kind.as_str(), after.queues[0].pending), ("aql", Some(0)));
        assert!(after.signals > before.signals);
    }

    #[test]
    fn what_needs_the_device_is_unknown_while_locked_and_nothing_waits() {
        let (runtime, _) = runtime(1);
        let agent = runtime.agent(0).unwrap();
        let _queue = Queue::create(&agent, QueueOptions::default()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let closed = runtime.context().gate.close(deadline, &AtomicBool::new(false)).unwrap();
        let objects = ProcessInfo::of(runtime.context()).objects.unwrap();
        assert_eq!((objects.preempt, objects.queues[0].pending), (Preempt::Unknown, None));
        closed.open();
        let objects = ProcessInfo::of(runtime.context()).objects.unwrap();
        assert_ne!(objects.preempt, Preempt::Unknown);
    }

    #[test]
    fn registry_in_other_hands_is_not_waited_for() {
        let (runtime, _) = runtime(1);
        let held = runtime.context().registry.lock();
        assert_eq!(ProcessInfo::of(runtime.context()).objects, None);
        drop(held);
        assert!(ProcessInfo::of(runtime.context()).objects.is_some());
    }

    #[test]
    fn answer_about_many_queues_fits_its_datagram() {
        let (runtime, _) = runtime(1);
        let mut info = ProcessInfo::of(runtime.context());
        let queue = QueueInfo {
            queue: "#4294967295.4294967295".into(),
            agent: u32::MAX,
            kind: "sdma".into(),
            pending: Some(u64::MAX),
            unit: "packets".into(),
            suspended: false,
            internal: false,
            fault: Some("x".repeat(300)),
        };
        let objects = info.objects.as_mut().unwrap();
        objects.queues = vec![queue; NAMED];
        objects.hidden = vec!["#4294967295.4294967295".into(); NAMED];
        assert!(serde_json::to_vec(&info).unwrap().len() < super::super::protocol::MAX_MESSAGE);
    }
}
