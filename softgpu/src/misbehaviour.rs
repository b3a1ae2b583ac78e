// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways in which the device is told to be wrong, so that it can be seen that `stasis doctor` notices.
//!
//! Each is named after the probe that it is for; more probes may fail by it. No test but the doctor's uses them.

use std::sync::LazyLock;

/// The variable that names one.
pub const VARIABLE: &str = "SOFTGPU_MISBEHAVE";

macro_rules! misbehaviours {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A way to be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Misbehaviour {
            $($(#[$doc])* $variant,)*
        }

        impl Misbehaviour {
            /// All of them, with their names.
            pub const ALL: &'static [(&'static str, Self)] = &[$(($name, Self::$variant)),*];
        }
    };
}

misbehaviours! {
    /// The interface has another major number.
    Interface = "interface",
    /// A node's number is none.
    Topology = "topology",
    /// The target is one that nobody knows.
    Agent = "agent",
    /// Ranges of GPU addresses are empty.
    Apertures = "apertures",
    /// The topology says a larger save area than there is.
    SaveArea = "save-area",
    /// The GPU's clock stands still.
    Clock = "clock",
    /// There is no system memory for the GPU.
    HostMemory = "host-memory",
    /// There is no memory of the GPU's own.
    DeviceMemory = "device-memory",
    /// Memory is not cleared.
    FreshMemory = "fresh-memory",
    /// Flushes of the host data path do nothing, but for code.
    HostWrites = "host-writes",
    /// AQL queues read no packet.
    Aql = "aql",
    /// Completions interrupt nobody.
    Interrupt = "interrupt",
    /// PM4 queues read no packet.
    Pm4 = "pm4",
    /// Copy engines leave the last four bytes out.
    Sdma = "sdma",
    /// A process has four queues at most.
    ManyQueues = "many-queues",
    /// Kernels complete without running.
    Kernel = "kernel",
    /// Work-groups have no LDS.
    LocalMemory = "local-memory",
    /// Private memory is somewhere else.
    PrivateMemory = "private-memory",
    /// The last work-item of a grid is missing.
    Atomics = "atomics",
    /// Instruction caches are never invalidated.
    NewCode = "new-code",
    /// Completion signals get no time stamps.
    Timestamps = "timestamps",
    /// The barrier bit is ignored.
    BarrierBit = "barrier-bit",
    /// Every packet has the barrier bit.
    Overlap = "overlap",
    /// Queues that wait for a place wait for ever.
    OverSubscribed = "over-subscribed",
    /// Messages of privileged waves are lost, and with them what the trap handler says.
    Trap = "trap",
    /// Illegal instructions are skipped without a word: as `Trap`, for the other probe.
    IllegalCode = "illegal-code",
    /// Faults are reported with another address.
    FaultAddress = "fault-address",
    /// No waves are saved of a queue that halts.
    FaultKernel = "fault-kernel",
    /// A queue that halts takes the GPU with it.
    OtherQueues = "other-queues",
    /// Who has acquired the address space before is somebody else, though the file is the same.
    Checkpoint = "checkpoint",
    /// Saved waves lose a bit of a register.
    Preempt = "preempt",
}

impl Misbehaviour {
    /// What a name means.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, found)| *found)
    }

    /// Whether the device was told to be wrong in this way.
    pub(crate) fn is_on(self) -> bool {
        static TOLD: LazyLock<Option<Misbehaviour>> =
            LazyLock::new(|| Misbehaviour::named(&std::env::var(VARIABLE).ok()?));
        *TOLD == Some(self)
    }
}
