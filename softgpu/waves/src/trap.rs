// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a wave does that traps: the driver's own handler, of which the effect is modelled, and the client's, whose code is
//! executed (`cwsr_trap_handler_gfx10.asm`; RDNA3 ISA, "Trap and Exception Registers").
//!
//! ```text
//!                    no handler of the client: an s_trap is skipped, any other wave is halted, its PC 8 bytes back
//!   exception ──►
//!                    else: TTMPs, STATUS.PRIV, the handler's code ──s_rfe──► halted, or goes on
//! ```
//!
//! INVARIANT: a handler runs to its end at once: a wave in one is neither saved nor paused (SAVECTX waits on hardware, too),
//! and one that does not end is halted.

use queues::words::words;

use crate::code::{Code, WaveStop, Waves};
use crate::control::Control;
use crate::env::Env;
use crate::exception::{AccessKind, Cause};
use crate::interp::run_waves;
use crate::wave::{TTMP, Wave, status};

/// Bytes that the driver's handler puts the PC back by before it halts a wave: at `s_endpgm` it could not be saved.
const REWIND: u64 = 8;
/// Steps in which a handler has to end. One that waits for a message of the hardware needs some tens.
const STEPS: u32 = 1 << 20;
/// An address on the GPU.
const ADDRESS: u64 = (1 << 48) - 4;

/// `TRAPSTS` bits.
mod trapsts {
    pub const MEMORY_VIOLATION: u32 = 1 << 8;
    pub const ILLEGAL_INSTRUCTION: u32 = 1 << 11;
    /// Of the page tables; without it a memory violation is one of an aperture.
    pub const UTC_ERROR: u32 = 1 << 28;
}

/// The trap handler of a process on a GPU (`SET_TRAP_HANDLER`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrapHandler {
    /// GPU address of its first instruction (TBA); 0 for none.
    pub code: u64,
    /// GPU address of its memory (TMA), which it finds in `ttmp14` and `ttmp15`.
    pub data: u64,
}

/// Receives what the host is told while waves run: their messages, and the faults of their accesses.
pub trait Messages: std::fmt::Debug + Send + Sync {
    /// An access that the page tables do not allow; before the wave enters its trap handler.
    fn memory_fault(&self, address: u64, access: AccessKind, not_present: bool);

    /// `s_sendmsg INTERRUPT` with this M0; `privileged`: of a wave with `STATUS.PRIV`.
    fn interrupt(&self, m0: u32, privileged: bool);

    /// The GPU clock counter, which `s_sendmsg_rtn GET_REALTIME` answers with.
    fn counter(&self) -> u64;
}

/// Deals with the exception in which `w` stopped. `None`: the wave goes on at its PC, or has ended. Otherwise it is halted,
/// because of what is returned.
pub(crate) fn handle(w: &mut Wave, env: &mut Env<'_>, code: &mut Code<'_>) -> Option<Cause> {
    // What stopped the wave without a cause is a halt of its own.
    let Some(cause) = w.cause.take() else {
        w.pc = w.leave.take().unwrap_or(w.pc);
        return Some(Cause::Halted);
    };
    w.trapsts |= match cause {
        Cause::IllegalInstruction { .. } => trapsts::ILLEGAL_INSTRUCTION,
        Cause::MemoryViolation { address, access, not_present } => {
            if let Some(messages) = &env.map.messages {
                messages.memory_fault(address, access, not_present);
            }
            trapsts::MEMORY_VIOLATION | trapsts::UTC_ERROR
        }
        _ => 0,
    };
    let handler = env.map.trap;
    if handler.code == 0 {
        if let Cause::Trap(_) = cause {
            w.pc = w.pc.wrapping_add(4);
            return None;
        }
        w.status |= status::HALT;
        w.pc = w.pc.wrapping_sub(REWIND);
        return Some(cause);
    }
    let privileged = w.status & status::PRIV;
    enter(w, handler, if let Cause::Trap(id) = cause { id } else { 0 });
    let is_over = run(w, env, code);
    w.in_handler = false;
    w.status = w.status & !status::PRIV | privileged;
    if !is_over {
        tracing::debug!(target: "waves", pc = w.pc, ?handler, "the trap handler did not end");
        w.status |= status::HALT;
    }
    (w.status & status::HALT != 0).then_some(cause)
}

/// What hardware and the driver's handler do before the client's handler.
fn enter(w: &mut Wave, handler: TrapHandler, id: u8) {
    let [pc_low, pc_high] = words(w.pc);
    let state = w.status_word();
    w.s[TTMP..TTMP + 2].copy_from_slice(&[pc_low, pc_high & 0xFFFF | u32::from(id) << 16]);
    w.s[TTMP + 2..TTMP + 4].copy_from_slice(&words(handler.code));
    // No debugger.
    w.s[TTMP + 11] &= !(1 << 23);
    w.s[TTMP + 12] = state;
    w.s[TTMP + 14..TTMP + 16].copy_from_slice(&words(handler.data));
    w.status |= status::PRIV;
    w.in_handler = true;
    w.items = None;
    w.pc = handler.code & ADDRESS;
}

/// Runs the handler. Whether it has ended by `s_rfe`, or the wave with it.
fn run(w: &mut Wave, env: &mut Env<'_>, code: &mut Code<'_>) -> bool {
    let control = Control::uninterruptible();
    let limit = env.executed + u64::from(STEPS);
    while env.executed < limit {
        match run_waves(&mut Waves::alone(w), env, code, &control, STEPS) {
            WaveStop::Ended => return true,
            WaveStop::Quantum => {}
            WaveStop::Exception if w.cause.is_none() => {
                let Some(pc) = w.leave.take() else { return false };
                w.pc = pc & ADDRESS;
                return true;
            }
            WaveStop::Exception
            | WaveStop::Barrier
            | WaveStop::Interrupted
            | WaveStop::Round
            | WaveStop::Switched => {
                w.cause = None;
                w.state = crate::wave::WaveStatus::Ready;
                return false;
            }
        }
    }
    false
}
