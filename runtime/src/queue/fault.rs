// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stopped a queue, as its users are told.
//!
//! INVARIANT: a fault never changes once it is known; a queue keeps its first one.

use std::fmt;

use queues::aql::ExceptionCode;

use crate::registry::state::QueueKey;

/// A memory access that was refused (`kfd_hsa_memory_exception_data`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryViolation {
    /// Its address; the driver reports the page.
    pub address: u64,
    /// Nothing is mapped there for the agent.
    pub not_present: bool,
    /// It was a write to read-only memory.
    pub read_only: bool,
    /// It was an instruction fetch from memory that is not code.
    pub no_execute: bool,
}

/// Where a wave stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultingWave {
    /// Its program counter.
    pub pc: u64,
    /// The kernel that lies there and the offset in it, if it is one of ours.
    pub kernel: Option<(String, u64)>,
    /// The bytes of the instruction there, if they could be read.
    pub bytes: Vec<u8>,
    /// Its work-group.
    pub workgroup: [u32; 3],
}

/// A queue stopped with an exception. Its packets in flight are lost; destroy it and make another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct QueueFault {
    /// Which queue.
    pub queue: QueueKey,
    /// The agent it is on.
    pub agent: String,
    /// Why.
    pub codes: Vec<ExceptionCode>,
    /// The access, if it was one.
    pub memory: Option<MemoryViolation>,
    /// The wave that did it, if one was found.
    pub wave: Option<FaultingWave>,
    /// The packet at the read index, printed, where no wave was at fault.
    pub packet: Option<String>,
}

impl fmt::Display for QueueFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue {} on {} stopped:", self.queue, self.agent)?;
        for (i, code) in self.codes.iter().enumerate() {
            write!(f, "{} {code}", if i == 0 { "" } else { "," })?;
        }
        if let Some(memory) = &self.memory {
            let why = match memory {
                MemoryViolation { no_execute: true, .. } => {
                    "instruction fetch from memory that is not executable"
                }
                MemoryViolation { read_only: true, .. } => "write to read-only memory",
                _ => "access to memory that is not mapped",
            };
            write!(f, " ({why} at {:#x})", memory.address)?;
        }
        if let Some(wave) = &self.wave {
            match &wave.kernel {
                Some((kernel, offset)) => write!(f, " in kernel {kernel}+{offset:#x}")?,
                None => write!(f, " outside every loaded kernel")?,
            }
            let [x, y, z] = wave.workgroup;
            write!(f, ", pc {:#x}, work-group ({x}, {y}, {z})", wave.pc)?;
            if !wave.bytes.is_empty() {
                write!(f, ", instruction bytes")?;
                wave.bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
            }
        }
        if let Some(packet) = &self.packet {
            write!(f, ", packet {packet}")?;
        }
        write!(f, "; destroy the queue and make another")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Key;

    #[test]
    fn display_names_address_kernel_and_bytes() {
        let fault = QueueFault {
            queue: Key::from_raw(1, 0),
            agent: "gfx1100".into(),
            codes: vec![ExceptionCode::WaveMemoryViolation],
            memory: Some(MemoryViolation {
                address: 0x1000,
                not_present: true,
                read_only: false,
                no_execute: false,
            }),
            wave: Some(FaultingWave {
                pc: 0x1000_0000_0140,
                kernel: Some(("axpy".into(), 0x40)),
                bytes: vec![0x00, 0x80, 0xfe],
                workgroup: [3, 0, 0],
            }),
            packet: None,
        };
        let text = fault.to_string();
        assert!(
            text.contains("0x1000)") && text.contains("axpy+0x40") && text.contains("00 80 fe"),
            "{text}"
        );
    }
}
