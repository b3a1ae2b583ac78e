// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of each PM4 packet.
//!
//! Dispatches run to their end before the next packet begins, and memory is coherent: partial flushes have nothing left to
//! do. Of the cache packets only the invalidation of the instruction caches matters, which are not coherent here either.
//!
//! INVARIANT: what a packet that ends in an error has done is harmless to do again when the packet begins anew.

use queues::aql::ExceptionCode;
use queues::pm4::{
    self, AcquireCaches, AcquireMem, CopyData, CopySource, DataSel, Destination, EventWrite, IndirectBuffer,
    Initiator, Packet, PredExec, ReleaseMem, WaitRegMem, WaitTarget, WriteData, coher, gcr, reg,
};
use queues::words::{count, words};
use softgpu_waves::{AccessKind, MemoryFault};

use super::launch;
use super::machine::{DEPTH, Machine, Step, append};
use super::registers::Registers;
use crate::client_gpus::backoff::Backoff;
use crate::client_gpus::core::{Core, Exit};
use crate::client_gpus::dispatch::Job;
use crate::client_gpus::raised::Raised;
use crate::misbehaviour::Misbehaviour;

/// Longest `WRITE_DATA` of which each dword is an atomic store, because the client may poll it.
const POLLED_DWORDS: usize = 16;

fn unsupported() -> Exit {
    Exit::from(Raised::packet(ExceptionCode::PacketUnsupported))
}

fn reserved() -> Exit {
    Exit::from(Raised::packet(ExceptionCode::PacketReserved))
}

impl Machine {
    /// Executes the packet that these dwords begin with.
    ///
    /// # Errors
    /// [`Exit::Left`] when the queue has to leave during a wait, [`Exit::Raised`] when it halts.
    pub(super) fn execute(&mut self, core: &Core, words: &[u32]) -> Result<Step, Exit> {
        let (packet, dwords) = pm4::decode(words)?;
        tracing::trace!(target: "processor", queue = core.config.id, %packet);
        core.gpu.hdp.settle(&core.gpu.vm);
        let mut step = Step { dwords: count(dwords), buffer: None };
        match packet {
            Packet::Nop(_)
            | Packet::SetUconfigReg { .. }
            | Packet::EventWrite(EventWrite { address: None, .. }) => {}
            Packet::AcquireMem(AcquireMem { caches, .. }) => {
                if invalidates_code(caches) && !Misbehaviour::NewCode.is_on() {
                    core.gpu.vm.invalidate_instructions();
                }
            }
            Packet::SetShReg { register, values } => self.set_registers(register, values)?,
            Packet::DispatchDirect { groups, initiator } => self.dispatch(core, initiator, groups)?,
            Packet::DispatchIndirect { address, initiator } => {
                let mut sizes = Vec::with_capacity(3);
                append(&core.gpu.vm, address, 3, &mut sizes)?;
                let &[x, y, z] = sizes.as_slice() else { return Err(reserved()) };
                self.dispatch(core, initiator, [x, y, z])?;
            }
            Packet::PredExec(PredExec { dwords, xccs }) => {
                // A bit for each XCC that executes them (ROCr: `VIRTUALXCCID_SELECT`).
                if u32::from(xccs) >> self.xcc & 1 == 0 {
                    step.dwords += u32::from(dwords);
                }
            }
            Packet::IndirectBuffer(buffer) => {
                self.check_buffer(&buffer)?;
                step.buffer = Some(buffer);
            }
            Packet::WriteData(write) => self.write(core, &write)?,
            Packet::CopyData(copy) => self.copy(core, &copy)?,
            Packet::ReleaseMem(release) => release_mem(core, &release)?,
            Packet::WaitRegMem(wait) if self.shared && !self.is_satisfied(core, &wait)? => step.dwords = 0,
            Packet::WaitRegMem(wait) => self.wait(core, &wait)?,
            // Events that write a result, and what later versions of the decoder know.
            _ => return Err(unsupported()),
        }
        Ok(step)
    }

    /// Sets shader registers; a compute queue cannot change those of graphics stages.
    fn set_registers(&mut self, first: u32, values: &[u32]) -> Result<(), Exit> {
        // The decoder has checked that they end within the shader registers.
        if first < reg::COMPUTE_RANGE.start {
            return Err(unsupported());
        }
        self.registers.set_all(first, values);
        Ok(())
    }

    /// Begins a dispatch; [`Machine::run`] runs it. How several XCCs share one that each of them begins is not modelled.
    fn dispatch(&mut self, core: &Core, initiator: Initiator, sizes: [u32; 3]) -> Result<(), Exit> {
        if self.shared {
            tracing::error!(target: "processor", queue = core.config.id, "PM4 dispatch in an AQL queue of several XCCs");
            return Err(unsupported());
        }
        let [x, y, z] = sizes;
        self.registers.set_all(reg::COMPUTE_DISPATCH_INITIATOR, &[initiator.0, x, y, z]);
        let launch = launch::launch(&core.gpu.chip, &core.config, &self.registers, initiator, sizes)?;
        if let Some(launch) = launch {
            self.job = Some(Box::new(Job::new(&core.gpu, core.config.kind, launch)?));
        }
        Ok(())
    }

    fn check_buffer(&self, buffer: &IndirectBuffer) -> Result<(), Exit> {
        // Only a buffer can be left for good.
        if !buffer.valid || buffer.chain && self.frames.is_empty() {
            return Err(reserved());
        }
        if !buffer.chain && self.frames.len() >= DEPTH {
            return Err(unsupported());
        }
        Ok(())
    }

    fn write(&mut self, core: &Core, write: &WriteData<'_>) -> Result<(), Exit> {
        match write.destination {
            Destination::Memory { address } | Destination::L2 { address } => {
                write_words(core, address, write)?;
                core.gpu.waiters.wake();
            }
            Destination::Register { register } | Destination::PerfCounter { register } => {
                if write.increment {
                    self.registers.set_all(register, write.data);
                } else {
                    write.data.iter().for_each(|&word| self.registers.set(register, word));
                }
            }
        }
        Ok(())
    }

    fn copy(&mut self, core: &Core, copy: &CopyData) -> Result<(), Exit> {
        let vm = &core.gpu.vm;
        let value = match copy.source {
            CopySource::Memory { address } | CopySource::L2 { address } if copy.wide => {
                vm.read_u64(address)?
            }
            CopySource::Memory { address } | CopySource::L2 { address } => u64::from(vm.read_u32(address)?),
            CopySource::Register { register } | CopySource::PerfCounter { register } => {
                let high = self.registers.get(register.wrapping_add(1));
                u64::from(high) << 32 | u64::from(self.registers.get(register))
            }
            CopySource::Immediate { value } => value,
            CopySource::GpuClock => core.gpu.counter.ticks(),
            CopySource::AtomicReturn | CopySource::SystemClock => return Err(unsupported()),
        };
        let [low, high] = words(value);
        match copy.destination {
            Destination::Memory { address } | Destination::L2 { address } => {
                if copy.wide {
                    vm.write_u64(address, value)?;
                } else {
                    vm.write_u32(address, low)?;
                }
                core.gpu.waiters.wake();
            }
            Destination::Register { register } | Destination::PerfCounter { register } => {
                self.registers.set(register, low);
                if copy.wide {
                    self.registers.set(register.wrapping_add(1), high);
                }
            }
        }
        Ok(())
    }

    /// Whether a wait is over at once.
    fn is_satisfied(&self, core: &Core, wait: &WaitRegMem) -> Result<bool, MemoryFault> {
        Ok(match wait.target {
            WaitTarget::Memory { address } | WaitTarget::PreemptibleMemory { address } => {
                wait.holds(core.gpu.vm.read_u32(address)?)
            }
            WaitTarget::Register { register } => wait.holds(self.registers.get(register)),
            // It is over by what it does itself.
            WaitTarget::Request { .. } => true,
        })
    }

    fn wait(&mut self, core: &Core, wait: &WaitRegMem) -> Result<(), Exit> {
        match wait.target {
            WaitTarget::Memory { address } | WaitTarget::PreemptibleMemory { address } => {
                let vm = &core.gpu.vm;
                poll(core, || Ok(wait.holds(vm.read_u32(address)?)))
            }
            WaitTarget::Register { register } => self.wait_register(core, wait, register),
            WaitTarget::Request { request, done } if (request, done) == HDP_FLUSH => {
                core.gpu.hdp.flush();
                core.gpu.hdp.settle(&core.gpu.vm);
                Ok(())
            }
            // What else a compute queue could request outside its own registers is done at once.
            WaitTarget::Request { request, done }
                if !Registers::holds(request) && !Registers::holds(done) =>
            {
                Ok(())
            }
            WaitTarget::Request { request, done } => {
                self.registers.set(request, wait.reference);
                self.wait_register(core, wait, done)
            }
        }
    }

    /// Registers change by packets of this queue alone: this wait is over at once, or when the queue leaves.
    fn wait_register(&self, core: &Core, wait: &WaitRegMem, register: u32) -> Result<(), Exit> {
        let holds = wait.holds(self.registers.get(register));
        poll(core, || Ok(holds))
    }
}

/// The registers that flush the host data path and tell that it is done: `BIF_BX_PF_GPU_HDP_FLUSH_REQ` and `_DONE` at 0x106
/// and 0x107 of the third segment of NBIO, which begins at 0xd20 (`nbio_v4_3.c`, `nbio_4_3_0_offset.h`; earlier NBIO have
/// them there, too). Clients that write their own packets flush by them.
const HDP_FLUSH: (u32, u32) = (0xe26, 0xe27);

/// Whether an `ACQUIRE_MEM` invalidates the instruction caches. Nothing else does: not a fence of an AQL packet, not a
/// `RELEASE_MEM`, whose cache controls have no such bit (`soc15d.h`, `nvd.h`).
const fn invalidates_code(caches: AcquireCaches) -> bool {
    match caches {
        // A two-bit field (`nvd.h`, PACKET3_ACQUIRE_MEM_GCR_CNTL_GLI_INV): all, a range, or its ends. All of it is done.
        AcquireCaches::Gcr(bits) => bits & (3 * gcr::GLI_INV) != 0,
        AcquireCaches::Coherency(bits) => bits & coher::SH_ICACHE_ACTION_ENA != 0,
    }
}

/// Polls until `satisfied` holds. When the queue has to leave meanwhile, the packet begins anew later.
fn poll(core: &Core, mut satisfied: impl FnMut() -> Result<bool, MemoryFault>) -> Result<(), Exit> {
    let mut backoff = Backoff::new(&core.gpu.waiters);
    while !satisfied()? {
        if core.must_leave() {
            return Err(Exit::Left);
        }
        backoff.wait(|| core.must_leave() || !matches!(satisfied(), Ok(false)));
    }
    Ok(())
}

/// Writes a packet's words to memory, all or none.
fn write_words(core: &Core, address: u64, write: &WriteData<'_>) -> Result<(), MemoryFault> {
    let vm = &core.gpu.vm;
    let data = write.data;
    if !write.increment {
        return data.iter().try_for_each(|&word| vm.write_u32(address, word));
    }
    if data.len() > POLLED_DWORDS {
        let bytes: Vec<u8> = data.iter().flat_map(|word| word.to_le_bytes()).collect();
        return vm.write_bytes(address, &bytes);
    }
    // CAST: at most 64.
    vm.check(address, data.len() as u64 * 4, AccessKind::Write)?;
    (0..).zip(data).try_for_each(|(at, &word)| vm.write_u32(address.wrapping_add(at * 4), word))
}

/// Writes, then interrupts. Earlier work is done by now.
fn release_mem(core: &Core, release: &ReleaseMem) -> Result<(), Exit> {
    let vm = &core.gpu.vm;
    match release.data_sel {
        DataSel::None => {}
        // CAST: the low half is asked for.
        DataSel::Low32 => vm.write_u32(release.address, words(release.value)[0])?,
        DataSel::All64 => vm.write_u64(release.address, release.value)?,
        DataSel::GpuClock => vm.write_u64(release.address, core.gpu.counter.ticks())?,
    }
    core.gpu.waiters.wake();
    if release.int_sel.interrupts() {
        core.gpu.interrupt(release.context_id);
    }
    Ok(())
}
