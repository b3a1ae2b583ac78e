// SPDX-License-Identifier: MIT OR Apache-2.0
//! Branches, calls, barriers, messages, traps, and the end of a wave.

use softgpu_isa::Op;

use crate::env::Env;
use crate::exception::Cause;
use crate::step::{Flow, Handler, Step, stop};
use crate::valu::shapes::scalar64;
use crate::wave::status::{HALT, NO_VGPRS, PRIV};
use crate::wave::{EXEC, M0, Wave, WaveStatus};

/// The message that interrupts the host.
const INTERRUPT: i32 = 1;
/// The message that gives the wave's VGPRs back.
pub(crate) const DEALLOC_VGPRS: i32 = 3;

/// Handlers of program control.
pub(crate) fn table(op: Op) -> Option<Handler> {
    Some(match op {
        Op::S_BRANCH => branch as Handler,
        Op::S_CBRANCH_SCC0 => scc0 as Handler,
        Op::S_CBRANCH_SCC1 => scc1 as Handler,
        Op::S_CBRANCH_VCCZ => vccz as Handler,
        Op::S_CBRANCH_VCCNZ => vccnz as Handler,
        Op::S_CBRANCH_EXECZ => execz as Handler,
        Op::S_CBRANCH_EXECNZ => execnz as Handler,
        // No debugger is attached: never taken.
        Op::S_CBRANCH_CDBGSYS
        | Op::S_CBRANCH_CDBGUSER
        | Op::S_CBRANCH_CDBGSYS_OR_USER
        | Op::S_CBRANCH_CDBGSYS_AND_USER => nothing as Handler,
        Op::S_GETPC_B64 => getpc as Handler,
        Op::S_SETPC_B64 => setpc as Handler,
        Op::S_SWAPPC_B64 => swappc as Handler,
        Op::S_CALL_B64 => call as Handler,
        Op::S_RFE_B64 => return_from_trap as Handler,
        Op::S_SUBVECTOR_LOOP_BEGIN => subvector_begin as Handler,
        Op::S_SUBVECTOR_LOOP_END => subvector_end as Handler,
        Op::S_ENDPGM | Op::S_ENDPGM_SAVED => end as Handler,
        Op::S_BARRIER => barrier as Handler,
        Op::S_SLEEP | Op::S_WAKEUP => give_way as Handler,
        Op::S_SETHALT => sethalt as Handler,
        Op::S_TRAP => trap as Handler,
        Op::S_SENDMSG => message as Handler,
        Op::S_SENDMSGHALT => message_halt as Handler,
        Op::S_SENDMSG_RTN_B32 => ask as Handler,
        Op::S_SENDMSG_RTN_B64 => ask64 as Handler,
        _ => return None,
    })
}

fn nothing(_: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    Flow::Next
}

fn branch(_: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    Flow::Jump
}

fn jump_if(taken: bool) -> Flow {
    if taken { Flow::Jump } else { Flow::Next }
}

fn scc0(w: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    jump_if(w.scc == 0)
}

fn scc1(w: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    jump_if(w.scc != 0)
}

fn vccz(w: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    jump_if(w.vccz())
}

fn vccnz(w: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    jump_if(!w.vccz())
}

fn execz(w: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    jump_if(w.execz())
}

fn execnz(w: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    jump_if(!w.execz())
}

fn getpc(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    w.set_s64(s.dst as usize, s.next_pc());
    Flow::Next
}

fn setpc(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    w.pc = scalar64(w, &s.src[0]) & !3;
    Flow::Indirect
}

fn swappc(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    w.pc = scalar64(w, &s.src[0]) & !3;
    w.set_s64(s.dst as usize, s.next_pc());
    Flow::Indirect
}

fn call(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    w.set_s64(s.dst as usize, s.next_pc());
    Flow::Jump
}

/// s_rfe_b64 ends a trap handler; a wave outside a trap handler must not execute it.
fn return_from_trap(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    if w.status & PRIV == 0 {
        let words = env.map.fetch(s.pc).into_iter().collect();
        return stop(w, Cause::IllegalInstruction { words });
    }
    let pc = scalar64(w, &s.src[0]) & !3;
    if w.in_handler {
        w.leave = Some(pc);
        return Flow::Stop;
    }
    w.status &= !PRIV;
    w.pc = pc;
    Flow::Indirect
}

/// s_subvector_loop_begin: a body that runs for the low half of the lanes and then for the high half. If both halves
/// are active the destination keeps the high half's EXEC; if only one half is active the destination keeps the other
/// half's EXEC, which is zero.
fn subvector_begin(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let (lo, hi) = (w.s[EXEC], w.s[EXEC + 1]);
    if lo == 0 && hi == 0 {
        return Flow::Jump;
    }
    w.s[s.dst as usize] = if lo == 0 { lo } else { hi };
    if lo != 0 {
        w.s[EXEC + 1] = 0;
    }
    Flow::Next
}

/// s_subvector_loop_end: jumps back for the high half, or restores EXEC.
fn subvector_end(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    let kept = w.s[s.dst as usize];
    if w.s[EXEC + 1] != 0 {
        w.s[EXEC] = kept;
    } else if kept == 0 {
        w.s[EXEC + 1] = kept;
    } else {
        w.s[EXEC + 1] = kept;
        w.s[s.dst as usize] = w.s[EXEC];
        w.s[EXEC] = 0;
        return Flow::Jump;
    }
    Flow::Next
}

fn end(w: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    w.state = WaveStatus::Ended;
    Flow::End
}

fn barrier(w: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    w.state = WaveStatus::AtBarrier;
    Flow::Barrier
}

fn give_way(_: &mut Wave, _: &mut Env<'_>, _: &Step) -> Flow {
    Flow::Yield
}

fn sethalt(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    if s.imm & 1 != 0 {
        return halt(w, s);
    }
    w.status &= !HALT;
    Flow::Next
}

/// A halted wave waits for a debugger; only the owner of the queue can end it.
fn halt(w: &mut Wave, s: &Step) -> Flow {
    w.status |= HALT;
    if w.in_handler {
        return Flow::Next;
    }
    w.leave = Some(s.next_pc());
    Flow::Stop
}

/// s_trap, which gfx11 does not execute in a privileged wave (LLVM, `FeaturePrivEnabledTrap2NopBug`): compilers put a
/// message and a halt behind it.
fn trap(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Flow {
    if w.status & PRIV != 0 {
        return Flow::Next;
    }
    stop(w, Cause::Trap(s.imm as u8))
}

fn message(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    match s.imm & 0xFF {
        INTERRUPT => {
            env.interrupt(w.s[M0], w.status & PRIV != 0);
            Flow::Next
        }
        DEALLOC_VGPRS => {
            w.status |= NO_VGPRS;
            Flow::Next
        }
        _ => Flow::Next,
    }
}

fn message_halt(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    match message(w, env, s) {
        Flow::Next => halt(w, s),
        flow => flow,
    }
}

/// The 64-bit answer to a message: doorbell, dispatch id, trap memory, 100 MHz clock.
fn answer(env: &Env<'_>, s: &Step) -> u64 {
    match s.imm & 0xFF {
        128 => u64::from(env.identity.doorbell),
        129 => env.identity.dispatch_id,
        130 => env.identity.trap_memory,
        131 => env.map.messages.as_ref().map_or(0, |messages| messages.counter()),
        _ => 0,
    }
}

fn ask(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    w.s[s.dst as usize] = answer(env, s) as u32;
    Flow::Next
}

fn ask64(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let value = answer(env, s);
    w.set_s64(s.dst as usize, value);
    Flow::Next
}
