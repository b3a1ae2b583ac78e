// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stopped a queue, as its users are told.
//!
//! INVARIANT: a fault never changes once it is known; a queue keeps its first one.

use std::fmt;
use std::sync::Arc;

use kfd::Errno;
use kfd::sys::kfd_hsa_memory_exception_data;
use queues::aql::ExceptionCode;
use queues::save_area::SaveAreaError;

use crate::context::queue::lost_agent::AgentLost;
use crate::context::registry::state::QueueKey;

/// What the driver's address of a fault is rounded down to.
const PAGE_BYTES: u64 = 4096;

/// A memory access that was refused. No flag at all is an access that its mapping does not allow, mostly an instruction
/// fetch from memory that is not code: kernels up to 7.x never say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryViolation {
    /// Its address; the driver reports the page.
    pub address: u64,
    /// Nothing is mapped there for the agent. Whether it would have been a read or a write is not told.
    pub not_present: bool,
    /// It was a write to read-only memory.
    pub read_only: bool,
    /// It was an instruction fetch from memory that is not code.
    pub no_execute: bool,
}

impl From<kfd_hsa_memory_exception_data> for MemoryViolation {
    /// KFD copies the interrupt's bits on gfx9 to gfx12 alike (`kfd_int_process_v9.c`, `_v10.c`, `_v11.c`): `ReadOnly`
    /// is set for every write that no page table entry allows, so it says something of the memory only where there is
    /// an entry.
    fn from(data: kfd_hsa_memory_exception_data) -> Self {
        let not_present = data.failure.NotPresent != 0;
        MemoryViolation {
            address: data.va,
            not_present,
            read_only: data.failure.ReadOnly != 0 && !not_present,
            no_execute: data.failure.NoExecute != 0,
        }
    }
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

/// Scratch memory that a dispatch needed and could not be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScratchFault {
    /// The kernel, if it is one of ours.
    pub kernel: Option<String>,
    /// Bytes that each of its lanes needs.
    pub lane_bytes: u32,
    /// Bytes that the lanes of all waves the agent can hold need.
    pub wanted: u64,
    /// Why not.
    pub refusal: ScratchRefusal,
}

/// Why scratch memory could not be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScratchRefusal {
    /// The agent's memory has not that much left.
    OutOfMemory {
        /// Bytes that could be had.
        available: u64,
    },
    /// The hardware's field cannot say it.
    Limit {
        /// Most bytes of a lane of such a wave.
        most: u32,
    },
    /// The packet at the read index is no dispatch that needs more than the queue has, so another answer would not help.
    Unexplained,
    /// The driver refused, or there are no addresses.
    Refused {
        /// With this, if it was the driver.
        errno: Option<Errno>,
    },
}

impl fmt::Display for ScratchFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, lane_bytes, wanted, refusal } = self;
        let kernel = kernel.as_deref().unwrap_or("of the caller's own");
        write!(
            f,
            " kernel {kernel} needs {lane_bytes} bytes of scratch a lane, {wanted} bytes for all lanes: "
        )?;
        match refusal {
            ScratchRefusal::OutOfMemory { available } => {
                write!(f, "{available} bytes are available, free buffers or use less")
            }
            ScratchRefusal::Limit { most } => write!(f, "a lane can have at most {most} bytes"),
            ScratchRefusal::Unexplained => write!(f, "the queue has that much, and asks for more"),
            ScratchRefusal::Refused { errno: Some(errno) } => write!(f, "the driver refused it ({errno})"),
            ScratchRefusal::Refused { errno: None } => write!(f, "it could not be allocated"),
        }
    }
}

/// Why it is not known where the waves of a queue stood, or the one at fault. Nothing is guessed then: a report has the address, if there is
/// one, and neither kernel nor program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WavesUnread {
    /// The queue could not be taken off the hardware, or the driver did not say where its waves are.
    Refused {
        /// With this, if it was an ioctl.
        errno: Option<Errno>,
    },
    /// The save area is not mapped for the CPU.
    NotMapped,
    /// The header of XCC 0 does not have the sizes that the driver says.
    Header {
        /// Bytes of control stack and of wave state in the header.
        found: [u32; 2],
        /// The driver's.
        told: [u32; 2],
    },
    /// The waves of an XCC are not in the layout of the chip, or that layout is not known.
    Area {
        /// Which XCC.
        xcc: u32,
        /// What is wrong.
        reason: SaveAreaError,
    },
    /// The wave at fault was halted by the driver's own trap handler, which may have moved its program counter: some kernels
    /// set it 8 bytes back (`cwsr_trap_handler_gfx9.asm`, `L_HALT_WAVE`; `_gfx12.asm`, `L_NO_NEXT_TRAP`).
    Moved,
}

impl fmt::Display for WavesUnread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { errno: Some(errno) } => write!(f, "the driver did not save them ({errno})"),
            Self::Refused { errno: None } => write!(f, "the driver did not save them"),
            Self::NotMapped => write!(f, "the save area is not mapped for the CPU"),
            Self::Header { found: [stack, waves], told: [told_stack, told_waves] } => write!(
                f,
                "the save area's header says {stack} B of control stack and {waves} B of waves, the driver \
                 {told_stack} B and {told_waves} B"
            ),
            Self::Area { xcc, reason } => write!(f, "save area of XCC {xcc}: {reason}"),
            Self::Moved => write!(f, "no trap handler of this runtime stopped the one at fault"),
        }
    }
}

/// A queue stopped with an exception. Its packets in flight are lost; destroy it and make another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct QueueFault {
    /// Which queue.
    pub queue: QueueKey,
    /// The agent it is on.
    pub agent: String,
    /// Why; none where the processor gave a code that is not known, or it was `scratch`.
    pub codes: Vec<ExceptionCode>,
    /// The access, if it was one.
    pub memory: Option<MemoryViolation>,
    /// The scratch memory it could not be given, if it was that.
    pub scratch: Option<ScratchFault>,
    /// What of the host its kernel called, which is not offered, if that is why.
    pub service: Option<u32>,
    /// The wave that did it, if one was found.
    pub wave: Option<FaultingWave>,
    /// Why its waves are not known, if they are not.
    pub unread: Option<WavesUnread>,
    /// The packet at the read index, printed, where no wave was at fault.
    pub packet: Option<String>,
    /// Whether the driver took queues of this process off the agent together with it.
    pub evicted: bool,
    /// The fault of another queue for which the driver took this one off the agent.
    pub lost: Option<Arc<AgentLost>>,
}

impl fmt::Display for QueueFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(lost) = &self.lost {
            return write!(f, "Queue {} on {} stopped: {lost}", self.queue, self.agent);
        }
        write!(f, "{}", self.without_advice())?;
        match self.evicted {
            false => write!(f, "; destroy the queue and make another"),
            true => write!(
                f,
                "; the driver took this process's queues off the agent: if it does not run new ones, start a new process, \
                 or restore a checkpoint in one"
            ),
        }
    }
}

/// What stopped a queue, without what to do about it.
pub(super) struct WithoutAdvice<'a>(&'a QueueFault);

impl fmt::Display for WithoutAdvice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe(f)
    }
}

impl QueueFault {
    pub(super) fn without_advice(&self) -> WithoutAdvice<'_> {
        WithoutAdvice(self)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue {} on {} stopped:", self.queue, self.agent)?;
        for (i, code) in self.codes.iter().enumerate() {
            write!(f, "{} {code}", if i == 0 { "" } else { "," })?;
        }
        match &self.scratch {
            Some(scratch) => write!(f, "{scratch}")?,
            None if self.service.is_some() => {}
            None if self.codes.is_empty() => write!(f, " its processor gave a code that is not known")?,
            None => {}
        }
        if let Some(service) = self.service {
            let name = service_name(service);
            write!(
                f,
                " its kernel called the host for {name} (service {service}), which the runtime does not offer"
            )?;
        }
        if let Some(memory) = &self.memory {
            write!(f, " ({} at {:#x})", self.why_refused(memory), memory.address)?;
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
        if let Some(unread) = &self.unread {
            write!(f, ", where its waves stood is not known: {unread}")?;
        }
        if let Some(packet) = &self.packet {
            write!(f, ", packet {packet}")?;
        }
        Ok(())
    }

    /// What the driver's flags say of an access or, where they say nothing, the wave.
    fn why_refused(&self, memory: &MemoryViolation) -> &'static str {
        let page = |address: u64| address & !(PAGE_BYTES - 1);
        let fetched = self.wave.as_ref().is_some_and(|wave| page(wave.pc) == page(memory.address));
        match memory {
            MemoryViolation { not_present: true, .. } => "access to memory that is not mapped",
            MemoryViolation { read_only: true, .. } => "write to read-only memory",
            MemoryViolation { no_execute, .. } if *no_execute || fetched => {
                "instruction fetch from memory that is not executable"
            }
            _ => "access that the mapping does not allow",
        }
    }
}

/// What a service of the host is for (the ids of ROCm's device library, `ockl/inc/hostcall.h`).
const fn service_name(service: u32) -> &'static str {
    match service {
        1 => "a function of its",
        3 => "memory",
        4 => "a sanitizer's report",
        _ => "something unknown",
    }
}

/// Why a queue cannot go on.
#[derive(Debug, Default)]
pub struct Cause {
    /// Its exceptions, as an exception mask.
    pub bits: u64,
    /// The memory access that was refused, if that is why.
    pub memory: Option<MemoryViolation>,
    /// The scratch memory that could not be given, if that is why.
    pub scratch: Option<ScratchFault>,
    /// What of the host its kernel called, which is not offered, if that is why.
    pub service: Option<u32>,
    /// Whether the driver took queues of this process off the agent together with it.
    pub evicted: bool,
    /// The fault of another queue, if the driver took this one off the agent for it.
    pub lost: Option<Arc<AgentLost>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::registry::Key;

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
            scratch: None,
            service: None,
            wave: Some(FaultingWave {
                pc: 0x1000_0000_0140,
                kernel: Some(("axpy".into(), 0x40)),
                bytes: vec![0x00, 0x80, 0xfe],
                workgroup: [3, 0, 0],
            }),
            unread: None,
            packet: None,
            evicted: false,
            lost: None,
        };
        let text = fault.to_string();
        assert!(
            text.contains("0x1000)") && text.contains("axpy+0x40") && text.contains("00 80 fe"),
            "{text}"
        );
    }

    #[test]
    fn flags_are_read_as_the_driver_sets_them() {
        use kfd::sys::kfd_memory_exception_failure;
        let wave = |pc| Some(FaultingWave { pc, kernel: None, bytes: Vec::new(), workgroup: [0; 3] });
        // Flags `NotPresent`, `ReadOnly` and `NoExecute`; the wave's place; what is said.
        for (flags, pc, not_present, read_only, text) in [
            ([1, 0, 0], 0x9000, true, false, "access to memory that is not mapped"),
            // A store to memory that is not mapped.
            ([1, 1, 0], 0x9000, true, false, "access to memory that is not mapped"),
            ([0, 1, 0], 0x9000, false, true, "write to read-only memory"),
            ([0, 0, 0], 0x9000, false, false, "access that the mapping does not allow"),
            // The wave stands where it could not read.
            ([0, 0, 0], 0x1008, false, false, "instruction fetch from memory that is not executable"),
            ([1, 0, 0], 0x1008, true, false, "access to memory that is not mapped"),
            ([0, 0, 1], 0x9000, false, false, "instruction fetch from memory that is not executable"),
        ] {
            let [not, read, execute] = flags;
            let failure = kfd_memory_exception_failure {
                NotPresent: not,
                ReadOnly: read,
                NoExecute: execute,
                imprecise: 0,
            };
            let data = kfd_hsa_memory_exception_data { failure, va: 0x1000, ..Default::default() };
            let memory = MemoryViolation::from(data);
            assert_eq!((memory.not_present, memory.read_only), (not_present, read_only), "{flags:?}");
            let fault = QueueFault {
                queue: Key::from_raw(1, 0),
                agent: "gfx1100".into(),
                codes: vec![ExceptionCode::WaveMemoryViolation],
                memory: Some(memory),
                scratch: None,
                service: None,
                wave: wave(pc),
                unread: None,
                packet: None,
                evicted: false,
                lost: None,
            };
            assert!(fault.to_string().contains(&format!("({text} at 0x1000)")), "{flags:?}: {fault}");
        }
    }

    #[test]
    fn display_names_kernel_and_bytes_of_missing_scratch() {
        let scratch = ScratchFault {
            kernel: Some("deep".into()),
            lane_bytes: 4096,
            wanted: 402_653_184,
            refusal: ScratchRefusal::OutOfMemory { available: 65_536 },
        };
        let fault = QueueFault {
            queue: Key::from_raw(1, 0),
            agent: "gfx1100".into(),
            codes: Vec::new(),
            memory: None,
            scratch: Some(scratch),
            service: None,
            wave: None,
            unread: None,
            packet: None,
            evicted: false,
            lost: None,
        };
        let text = fault.to_string();
        for part in ["deep", "4096 bytes of scratch a lane", "402653184 bytes", "65536 bytes are available"] {
            assert!(text.contains(part), "{text}");
        }
        let unknown = QueueFault { scratch: None, ..fault.clone() }.to_string();
        assert!(unknown.contains("not known"), "{unknown}");
        let called = QueueFault { scratch: None, service: Some(1), ..fault }.to_string();
        assert!(called.contains("(service 1), which the runtime does not offer; destroy"), "{called}");
    }
}
