// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is saved of every registered object: names and numbers, no pointer, file descriptor or kernel handle.
//!
//! INVARIANT: an entry's state together with the contents of memory is enough to make the object again with the
//! functions of the `device` module, under the same public key and at the same addresses.

use std::collections::BTreeMap;
use std::fmt;

use queues::aql::RawPacket;
use queues::target::Target;
use serde::{Deserialize, Serialize};

pub use crate::context::registry::access::{Access, MapState};
use crate::context::registry::arena::Window;
use crate::context::registry::key::{Key, TableState};
pub use crate::context::registry::svm::{SvmPlace, SvmRangeState, SvmState, SvmUse};
use crate::context::registry::wire::RegistryWire;

/// Position of an agent among the selected ones; what `ROCR_VISIBLE_DEVICES` calls its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AgentIndex(pub u32);

impl AgentIndex {
    /// As an index into slices.
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// What lies behind a buffer object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BoKind {
    /// The owning agent's memory.
    Vram,
    /// System memory the GPUs map.
    Gtt,
    /// Memory the process had before, at this CPU address.
    Userptr {
        /// Its CPU address.
        address: u64,
    },
    /// The process's doorbell slice on the owning agent: mapped through `/dev/kfd`, no buffer object in the driver.
    Doorbell,
    /// Memory that came as a DMABuf, on the agent it was imported on. What lies behind it is in its flags.
    Imported,
    /// Nothing: addresses only, whose memory is that of the mappings ([`MapState`]) into them. No buffer object in the
    /// driver.
    Reserved,
}

/// What makes memory the same for everybody who holds it: the inode of its DMABuf. Means nothing after a reboot, or once
/// nobody holds the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DmabufId {
    /// Device of the file system the inode is on.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

impl fmt::Display for DmabufId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.device, self.inode)
    }
}

/// How a buffer object came to be memory that others may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// It was made here, and a DMABuf was made of it.
    Exported,
    /// It was made of a DMABuf of this driver.
    Imported,
    /// It was made of memory of somebody else: another driver's DMABuf, or a sealed memfd.
    Foreign,
}

/// That others may hold the memory of a buffer object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// Which memory it is.
    pub dmabuf: DmabufId,
    /// How it came to be shared.
    pub origin: Origin,
    /// The agent whose memory it is, or through which it was made, if it is one of the process's.
    pub home: Option<AgentIndex>,
}

/// What a buffer object is for; decides what of it is saved and who may free it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BoRole {
    /// A `Buffer` of the caller.
    User,
    /// A page of signal slots.
    Signals,
    /// A page with one signal, which other processes may have too.
    SharedSignal,
    /// The event page. The driver never lets go of it (`FREE_MEMORY_OF_GPU`: EPERM).
    EventPage,
    /// A doorbell slice.
    Doorbell,
    /// A queue's packets.
    Ring,
    /// The page of a queue's pointers, with the `amd_queue_t` of an AQL queue.
    QueuePage,
    /// A queue's end-of-pipe area.
    Eop,
    /// A queue's context save area.
    SaveArea,
    /// A queue's kernel arguments.
    Kernargs,
    /// A queue's scratch memory.
    Scratch,
    /// What a queue's kernels call the host through. Since format 1.6.
    Hostcall,
    /// A loaded code object.
    Image,
    /// The code of an agent's trap handler.
    TrapHandler,
    /// Addresses that the caller reserved.
    Range,
    /// System memory through which a copy engine moves contents during a checkpoint or a restore. Never in an image.
    Staging,
    /// Memory of the caller to be mapped into ranges. Agents reach it only there; its own address is its home, where
    /// the CPU alone sees it.
    Physical,
}

impl BoRole {
    /// Whether the bytes of a drained process mean anything: they do not where packets that have completed, or
    /// waves that are not there, were the only readers.
    pub const fn has_contents(self) -> bool {
        matches!(
            self,
            BoRole::User
                | BoRole::Signals
                | BoRole::SharedSignal
                | BoRole::QueuePage
                | BoRole::Hostcall
                | BoRole::Image
                | BoRole::Physical
        )
    }

    /// What such memory is called where it is counted.
    pub const fn name(self) -> &'static str {
        match self {
            BoRole::User => "buffers",
            BoRole::Signals => "signal pages",
            BoRole::SharedSignal => "shared signals",
            BoRole::EventPage => "event page",
            BoRole::Doorbell => "doorbells",
            BoRole::Ring => "rings",
            BoRole::QueuePage => "queue pages",
            BoRole::Eop => "end-of-pipe areas",
            BoRole::SaveArea => "save areas",
            BoRole::Kernargs => "kernel arguments",
            BoRole::Scratch => "scratch",
            BoRole::Hostcall => "host calls",
            BoRole::Image => "code objects",
            BoRole::TrapHandler => "trap handlers",
            BoRole::Range => "reserved ranges",
            BoRole::Staging => "staging buffers",
            BoRole::Physical => "physical memory",
        }
    }
}

/// A buffer object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoState {
    /// What lies behind it.
    pub kind: BoKind,
    /// What it is for.
    pub role: BoRole,
    /// Length in bytes, whole pages.
    pub bytes: u64,
    /// CPU and GPU address, in the window. (A userptr's CPU address is in its kind.)
    pub va: u64,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_*` it is allocated with.
    pub flags: u32,
    /// The agent it is allocated on (for GTT: through).
    pub agent: AgentIndex,
    /// Agents it is mapped to, in order of mapping.
    pub mapped: Vec<AgentIndex>,
    /// Those of `mapped` that nobody has let access it: the runtime's own copies needed it there. Since format 1.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub for_copies: Vec<AgentIndex>,
    /// Whether it is mapped for the CPU, at `va`.
    pub cpu_mapped: bool,
    /// Whether others may hold its memory. Since format 1.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// What the caller calls it. Since format 1.7.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
}

/// What the caller calls a buffer, by which another process can adopt it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Its name.
    pub text: String,
    /// What its elements are, in the caller's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layout: String,
    /// Its length as it was asked for, bytes.
    pub bytes: u64,
}

/// What an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// Signals; takes a slot of the event page.
    Signal,
    /// Memory faults.
    Memory,
    /// GPU resets.
    HwException,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventState {
    /// What it tells of.
    pub kind: EventKind,
    /// Whether a wait consumes it.
    pub auto_reset: bool,
}

/// A signal. Its value is memory: the slot `slot` of the page `page`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalState {
    /// The page its slot is in.
    pub page: Key<BoState>,
    /// Which 64-byte slot.
    pub slot: u32,
    /// The event its completion raises.
    pub event: Option<Key<EventState>>,
}

/// A user-mode queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueState {
    /// Where it runs.
    pub agent: AgentIndex,
    /// Its packet language.
    pub kind: QueueKind,
    /// Bytes of the ring, a power of two of at least a page.
    pub ring_bytes: u32,
    /// KFD priority, 0..=15.
    pub priority: u32,
    /// Share of the hardware in percent while it is not suspended, 1..=100.
    pub percentage: u32,
    /// Whether it was taken off the hardware with its packets and waves kept.
    #[serde(rename = "parked")]
    pub suspended: bool,
    /// Compute units it may use, a bit each as SET_CU_MASK takes them; empty for all.
    pub cu_mask: Vec<u32>,
    /// The buffer objects it lives in.
    pub bos: QueueBos,
    /// Bytes of one kernel-argument slot; there are two for every packet of the ring. 0 without any.
    pub kernarg_slot_bytes: u32,
    /// Scratch bytes a lane of a wave of 64 has now (lanes of a wave of 32: twice that); 0 = none.
    pub scratch_lane_bytes: u32,
    /// The signal its exceptions are or-ed into (`err_payload_addr`).
    pub exceptions: Key<SignalState>,
    /// The signal through which the processor of an AQL queue asks for scratch (`queue_inactive_signal`). Images from
    /// before there was one have none.
    #[serde(default)]
    pub inactive: Option<Key<SignalState>>,
    /// The signal that its kernels raise when they call the host, if they can. Since format 1.6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostcall_doorbell: Option<Key<SignalState>>,
    /// What the hardware's pointers lack: `logical = hardware + bias`, in units of the kind
    /// ([`QueueKind::unit_bytes`]).
    pub bias: u64,
    /// Logical index of the next unit to be written, as of the last [`super::Persist::save`] of a drained queue.
    pub write_index: u64,
    /// Packets from `write_index` on that were not begun: the queue was drained while its processor stood at one that waits for a
    /// signal. Since format 1.5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<RawPacket>,
    /// Made by the runtime for its own copies: not the caller's to destroy.
    pub internal: bool,
}

impl QueueState {
    /// Its own signals.
    pub fn signals(&self) -> impl Iterator<Item = Key<SignalState>> + use<> {
        [Some(self.exceptions), self.inactive, self.hostcall_doorbell].into_iter().flatten()
    }
}

/// A queue's packet language (`KFD_IOC_QUEUE_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueKind {
    /// HSA packets (type 2).
    Aql,
    /// PM4 packets of the compute engines (type 0).
    Pm4,
    /// Copy engine packets: type 1, or type 4 with an engine.
    Sdma {
        /// The engine, if it matters which.
        engine: Option<u32>,
    },
}

impl QueueKind {
    /// Bytes of what its pointers and doorbell count: packets, dwords, bytes.
    pub const fn unit_bytes(self) -> u64 {
        match self {
            Self::Aql => queues::aql::PACKET_BYTES as u64,
            Self::Pm4 => 4,
            Self::Sdma { .. } => 1,
        }
    }

    /// What its pointers and doorbell count.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Aql => "packets",
            Self::Pm4 => "dwords",
            Self::Sdma { .. } => "bytes",
        }
    }

    /// Whether it runs waves, and so has a save area and a CU mask.
    pub const fn is_compute(self) -> bool {
        !matches!(self, Self::Sdma { .. })
    }

    /// Whether it has an end-of-pipe area on a chip.
    pub const fn has_eop(self, target: &Target) -> bool {
        match self {
            Self::Aql => target.aql_eop,
            Self::Pm4 => true,
            Self::Sdma { .. } => false,
        }
    }
}

/// The buffer objects a queue lives in. Each is one exactly sized mapping, as `kfd_queue_acquire_buffers` demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueBos {
    /// The packets.
    pub ring: Key<BoState>,
    /// The 4096-byte page of both its pointers, laid out as an `amd_queue_t` for every kind.
    pub page: Key<BoState>,
    /// The end-of-pipe area of a compute queue.
    pub eop: Option<Key<BoState>>,
    /// The context save area of a compute queue.
    pub save_area: Option<Key<BoState>>,
    /// The kernel arguments, where the runtime places them.
    pub kernargs: Option<Key<BoState>>,
    /// Scratch, if it has any.
    pub scratch: Option<Key<BoState>>,
    /// What its kernels call the host through, if they can. Since format 1.6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostcall: Option<Key<BoState>>,
}

impl QueueBos {
    /// Those that every queue has.
    pub const fn new(ring: Key<BoState>, page: Key<BoState>) -> Self {
        Self { ring, page, eop: None, save_area: None, kernargs: None, scratch: None, hostcall: None }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Key<BoState>> + use<> {
        let others = [self.eop, self.save_area, self.kernargs, self.scratch, self.hostcall];
        [self.ring, self.page].into_iter().chain(others.into_iter().flatten())
    }
}

/// A loaded code object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutableState {
    /// The agent it is loaded on.
    pub agent: AgentIndex,
    /// The file as it was given.
    #[serde(with = "hex")]
    pub code_object: Vec<u8>,
    /// The buffer object holding its relocated image; the image's contents are saved with it.
    pub image: Key<BoState>,
}

/// The objects every runtime has exactly once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fixtures {
    /// The 32 KiB event page.
    pub event_page: Option<Key<BoState>>,
    /// Manual-reset event that ends every wait: set while the device is to be let go.
    pub wake: Option<Key<EventState>>,
    /// Memory faults.
    pub memory: Option<Key<EventState>>,
    /// GPU resets.
    pub hw_exception: Option<Key<EventState>>,
    /// Queue exceptions (`err_event_id` of every save area).
    pub queue_exception: Option<Key<EventState>>,
    /// Doorbell slice of each agent that has had a queue.
    pub doorbells: BTreeMap<AgentIndex, Key<BoState>>,
    /// Code of the trap handler of each agent that has had a queue; images from before format 1.3 have none.
    #[serde(default)]
    pub trap_handlers: BTreeMap<AgentIndex, Key<BoState>>,
}

/// What the driver called a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueNumbers {
    /// Its id.
    pub id: u32,
    /// Byte offset of its doorbell in the agent's slice.
    pub doorbell_offset: u32,
}

/// What the driver called the events and queues, beside their states: memory names these numbers (a signal's slot its
/// event, an `amd_queue_t` its queue), so a restore makes the objects in an order that gives the same ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverNumbers {
    /// Ids of events; for [`EventKind::Signal`] also their slots in the event page.
    pub events: BTreeMap<EventKey, u32>,
    /// Numbers of queues.
    pub queues: BTreeMap<QueueKey, QueueNumbers>,
}

/// Everything registered. An image's metadata has it in the form of the module `wire`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RegistryWire", into = "RegistryWire")]
pub struct RegistryState {
    /// The address window.
    pub window: Window,
    /// Buffer objects.
    pub bos: TableState<BoState>,
    /// Events, in order of creation where that decides their ids.
    pub events: TableState<EventState>,
    /// Signals.
    pub signals: TableState<SignalState>,
    /// Queues.
    pub queues: TableState<QueueState>,
    /// Executables.
    pub executables: TableState<ExecutableState>,
    /// Mappings of physical memory into reserved ranges.
    pub maps: TableState<MapState>,
    /// Ranges of shared virtual memory, in order.
    pub svm: Vec<SvmRangeState>,
    /// The singletons.
    pub fixtures: Fixtures,
    /// What the driver called events and queues.
    pub numbers: DriverNumbers,
}

/// Bytes as one string of hex digits: a list of numbers would take twice the room and a page a kernel.
mod hex {
    use serde::Deserialize;
    use serde::Deserializer;
    use serde::Serializer;
    use serde::de::Error;

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
        to.serialize_str(
            &bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect::<String>(),
        )
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        // A digit is below 16.
        let half = |digit: u8| char::from(digit).to_digit(16).map(|value| value.to_le_bytes()[0]);
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| Some(half(*high)? << 4 | half(*low)?)).collect();
        bytes.filter(|_| rest.is_empty()).ok_or_else(|| D::Error::custom("not a string of hex digits"))
    }
}

/// Key of a buffer object.
pub type BoKey = Key<BoState>;
/// Key of an event.
pub type EventKey = Key<EventState>;
/// Key of a signal.
pub type SignalKey = Key<SignalState>;
/// Key of a queue.
pub type QueueKey = Key<QueueState>;
/// Key of an executable.
pub type ExecutableKey = Key<ExecutableState>;
/// Key of a mapping.
pub type MapKey = Key<MapState>;

/// What holds a buffer object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoUse {
    /// A queue lives in it.
    Queue(QueueKey),
    /// A loaded executable's image is in it.
    Executable(ExecutableKey),
    /// It is a page of signals.
    Signals,
    /// It is one of the runtime's own.
    Fixture,
    /// This is mapped into it, or maps it.
    Mapping(MapKey),
}
