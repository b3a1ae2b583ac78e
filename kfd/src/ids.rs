// SPDX-License-Identifier: MIT OR Apache-2.0
//! Newtypes for the numbers that KFD gives out, so that no number can be passed in place of another kind.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
        #[derive(bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

number!(
    /// KFD's name for a GPU: a 16-bit hash of slot and memory size, 0 for a CPU node.
    GpuId(u32),
    "{}"
);
number!(
    /// Index of a topology node (CPU or GPU), as in `nodes/<i>`.
    NodeId(u32),
    "{}"
);
number!(
    /// Handle of a buffer object: GPU id in the upper half, a small per-(process, GPU) index in the lower.
    MemoryHandle(u64),
    "{:#x}"
);
number!(
    /// Queue number, unique within one KFD process; the first is 0.
    QueueId(u32),
    "{}"
);
number!(
    /// Event number; signal events are 1 to 4095 and index the event page.
    EventId(u32),
    "{}"
);
number!(
    /// Handle of a buffer object on one open render node; the lowest free number from 1.
    GemHandle(u32),
    "{}"
);

impl MemoryHandle {
    /// The GPU on which the buffer object was allocated.
    pub fn gpu(self) -> GpuId {
        GpuId(u32::try_from(self.0 >> 32).unwrap_or(u32::MAX))
    }
}
