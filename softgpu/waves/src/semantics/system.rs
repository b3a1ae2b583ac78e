// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages, hardware registers, halts, traps, and what has no effect in an in-order device.

use std::sync::Arc;

use parking_lot::Mutex;
use softgpu_isa::{Class, Fmt, Op, OpInfo};

use super::encode::{self, Buffer};
use super::entry::{Check, Entry};
use super::lab::{IDENTITY, Lab, cause};
use crate::exception::{AccessKind, Cause};
use crate::step::Flow;
use crate::trap::Messages;
use crate::wave::status::{HALT, PRIV};
use crate::wave::{M0, WaveStatus};

const fn own(op: Op, check: fn(&mut Lab, &'static OpInfo)) -> Entry {
    Entry { op, check: Check::Own(check) }
}

macro_rules! all {
    ($($check:ident: $($op:ident)*;)*) => { &[$($(own(Op::$op, $check)),*),*] };
}

pub(crate) const ENTRIES: &[Entry] = all! {
    nothing:
        S_NOP S_SETKILL S_SET_INST_PREFETCH_DISTANCE S_CLAUSE S_DELAY_ALU S_WAITCNT_DEPCTR S_WAITCNT S_WAIT_IDLE
        S_WAIT_EVENT S_SETPRIO S_INCPERFLEVEL S_DECPERFLEVEL S_TTRACEDATA S_TTRACEDATA_IMM S_ICACHE_INV S_VERSION
        S_WAITCNT_VSCNT S_WAITCNT_VMCNT S_WAITCNT_EXPCNT S_WAITCNT_LGKMCNT S_GL1_INV S_DCACHE_INV S_ATC_PROBE
        S_ATC_PROBE_BUFFER BUFFER_GL0_INV BUFFER_GL1_INV DS_NOP;
    illegal:
        S_CODE_END DS_GWS_SEMA_RELEASE_ALL DS_GWS_INIT DS_GWS_SEMA_V DS_GWS_SEMA_BR DS_GWS_SEMA_P DS_GWS_BARRIER
        DS_ORDERED_COUNT DS_ADD_GS_REG_RTN DS_SUB_GS_REG_RTN;
    ends: S_ENDPGM S_ENDPGM_SAVED;
    waits: S_BARRIER;
    yields: S_SLEEP S_WAKEUP;
    halts: S_SETHALT;
    traps: S_TRAP;
    sends: S_SENDMSG S_SENDMSGHALT;
    asks: S_SENDMSG_RTN_B32 S_SENDMSG_RTN_B64;
    sets_mode: S_ROUND_MODE S_DENORM_MODE;
    reads_register: S_GETREG_B32;
    writes_register: S_SETREG_B32 S_SETREG_IMM32_B32;
};

fn words(row: &'static OpInfo, imm: u32) -> Vec<u32> {
    match row.columns[0].codes[0].fmt {
        Fmt::Smem => encode::smem(row, 0, 0, if row.src.is_empty() { 0 } else { encode::NULL }, 0),
        Fmt::Mubuf => Buffer {
            address: 0,
            data: 0,
            resource: 0,
            soffset: 0,
            offset: 0,
            glc: false,
            offen: false,
            idxen: false,
            tfe: false,
            format: 0,
        }
        .encode(row),
        Fmt::Ds => encode::ds(row, [0; 4], 0),
        _ => {
            let imm = if row.src.is_empty() { 0 } else { imm };
            let is_register = row.src.first().is_some_and(|slot| slot.class == Class::R);
            encode::scalar(row, if is_register { encode::NULL } else { 0 }, [0; 2], imm)
        }
    }
}

fn nothing(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..4 {
        let w = lab.any_wave();
        let mut got = w.clone();
        let imm = lab.r.next() & 0x3F;
        assert_eq!(lab.run(&mut got, &words(row, imm)), Flow::Next, "{}", row.name);
        lab.same(&w, &got, &"");
    }
}

/// There is no GDS, and padding is not an instruction.
fn illegal(lab: &mut Lab, row: &'static OpInfo) {
    let mut w = lab.any_wave();
    let mut words = words(row, 0);
    if row.op != Op::S_CODE_END {
        words[0] |= 1 << 17;
    }
    assert!(lab.try_run(&mut w, &words).is_none(), "{} ran", row.name);
}

fn ends(lab: &mut Lab, row: &'static OpInfo) {
    let w = lab.any_wave();
    let mut got = w.clone();
    assert_eq!(lab.run(&mut got, &words(row, 0)), Flow::End);
    let mut want = w;
    want.state = WaveStatus::Ended;
    lab.same(&want, &got, &"");
}

fn waits(lab: &mut Lab, row: &'static OpInfo) {
    let w = lab.any_wave();
    let mut got = w.clone();
    assert_eq!(lab.run(&mut got, &words(row, 0)), Flow::Barrier);
    let mut want = w;
    want.state = WaveStatus::AtBarrier;
    lab.same(&want, &got, &"");
}

fn yields(lab: &mut Lab, row: &'static OpInfo) {
    let w = lab.any_wave();
    let mut got = w.clone();
    assert_eq!(lab.run(&mut got, &words(row, 3)), Flow::Yield);
    lab.same(&w, &got, &"");
}

fn halts(lab: &mut Lab, row: &'static OpInfo) {
    for imm in [0, 1] {
        let mut w = lab.any_wave();
        w.status = HALT;
        let mut got = w.clone();
        let flow = lab.run(&mut got, &words(row, imm));
        assert_eq!((flow, got.status), if imm == 1 { (Flow::Stop, HALT) } else { (Flow::Next, 0) });
        assert_eq!((got.leave, got.cause), ((imm == 1).then_some(w.pc + 4), None));
    }
}

fn traps(lab: &mut Lab, row: &'static OpInfo) {
    for imm in [2, 3, 0xFF] {
        let mut w = lab.any_wave();
        assert_eq!(lab.run(&mut w, &words(row, imm)), Flow::Stop);
        assert_eq!(*cause(&w), Cause::Trap(imm as u8));
        // A privileged wave does not trap.
        let mut w = lab.any_wave();
        w.status = PRIV;
        assert_eq!(lab.run(&mut w, &words(row, imm)), Flow::Next);
    }
}

/// What the GPU clock counter says.
const COUNTER: u64 = 0x9_8765_4321;

#[derive(Debug, Default)]
struct Received(Mutex<Vec<(u32, bool)>>);

impl Messages for Received {
    fn memory_fault(&self, _: u64, _: AccessKind, _: bool) {}

    fn interrupt(&self, m0: u32, privileged: bool) {
        self.0.lock().push((m0, privileged));
    }

    fn counter(&self) -> u64 {
        COUNTER
    }
}

/// INTERRUPT sends M0; DEALLOC_VGPRS marks the registers as gone; the others do nothing here.
fn sends(lab: &mut Lab, row: &'static OpInfo) {
    let halting = row.op == Op::S_SENDMSGHALT;
    for message in [1, 3, 5, 6, 15] {
        let mut w = lab.any_wave();
        let privileged = lab.r.one_in(2);
        w.status = if privileged { PRIV } else { 0 };
        let mut got = w.clone();
        let received = Arc::new(Received::default());
        lab.vm.set_messages(Arc::clone(&received) as Arc<dyn Messages>);
        let flow = lab.run(&mut got, &words(row, message));
        let sent = if message == 1 { vec![(w.s[M0], privileged)] } else { Vec::new() };
        assert_eq!(*received.0.lock(), sent);
        let mut want = w;
        want.status |= if message == 3 { 1 << 24 } else { 0 };
        want.status |= if halting { HALT } else { 0 };
        assert_eq!(flow, if halting { Flow::Stop } else { Flow::Next });
        lab.same(&want, &got, &message);
    }
}

fn asks(lab: &mut Lab, row: &'static OpInfo) {
    let wide = row.op == Op::S_SENDMSG_RTN_B64;
    lab.vm.set_messages(Arc::new(Received::default()));
    let answers = [
        (128, u64::from(IDENTITY.doorbell)),
        (129, IDENTITY.dispatch_id),
        (130, IDENTITY.trap_memory),
        (131, COUNTER),
    ];
    for (message, answer) in answers {
        let w = lab.any_wave();
        let mut got = w.clone();
        lab.run(&mut got, &encode::scalar(row, 10, [message, 0], 0));
        let mut want = w;
        want.s[10] = answer as u32;
        if wide {
            want.s[11] = (answer >> 32) as u32;
        }
        lab.same(&want, &got, &message);
    }
}

fn sets_mode(lab: &mut Lab, row: &'static OpInfo) {
    for imm in 0..16 {
        let w = lab.any_wave();
        let mut got = w.clone();
        lab.run(&mut got, &words(row, imm));
        let shift = if row.op == Op::S_DENORM_MODE { 4 } else { 0 };
        let mut want = w;
        want.mode = want.mode & !(0xF << shift) | imm << shift;
        lab.same(&want, &got, &imm);
    }
}

/// simm16 of a field: register, first bit, bits.
fn field(lab: &mut Lab, id: u32) -> (u32, u32, u32) {
    let offset = lab.r.below(32) as u32;
    let size = 1 + lab.r.below(32 - offset as usize) as u32;
    (id | offset << 6 | (size - 1) << 11, offset, size)
}

fn reads_register(lab: &mut Lab, row: &'static OpInfo) {
    for _ in 0..60 {
        let mut w = lab.any_wave();
        w.trapsts = lab.r.next();
        w.flat_scratch = lab.r.next64();
        w.status = lab.r.next();
        let exec_zero = w.exec() == 0;
        let vcc_zero = w.s[106] == 0 && (w.halves == 1 || w.s[107] == 0);
        let status = w.status & !0x601 | w.scc | u32::from(exec_zero) << 9 | u32::from(vcc_zero) << 10;
        let (id, value) = lab.r.pick(&[
            (1, w.mode),
            (2, status),
            (3, w.trapsts),
            (20, w.flat_scratch as u32),
            (21, (w.flat_scratch >> 32) as u32),
            (28, u32::from(w.halves == 2) << 11),
            // SH_MEM_BASES: the top 16 bits of the shared aperture's base over those of the private one's.
            (15, 1 << 16 | 2),
        ]);
        let (imm, offset, size) = field(lab, id);
        let mut want = w.clone();
        want.s[33] = (u64::from(value) >> offset & ((1u64 << size) - 1)) as u32;
        let mut got = w;
        lab.run(&mut got, &encode::scalar(row, 33, [0; 2], imm));
        lab.same(&want, &got, &format!("register {id} bits {offset} +{size}"));
    }
}

/// Only a trap handler writes STATUS: everything but the derived bits and that it is one.
fn writes_status(lab: &mut Lab, row: &'static OpInfo) {
    let literal = row.op == Op::S_SETREG_IMM32_B32;
    for in_handler in [false, true] {
        let mut w = lab.any_wave();
        (w.status, w.in_handler) = (PRIV | 1 << 16, in_handler);
        let value = w.s[33];
        let mut words = encode::scalar(row, if literal { 0 } else { 33 }, [0; 2], 2 | 31 << 11);
        if literal {
            words.push(value);
        }
        let mut want = w.clone();
        if in_handler {
            (want.status, want.scc) = (value | PRIV, value & 1);
        }
        lab.run(&mut w, &words);
        lab.same(&want, &w, &in_handler);
    }
}

fn writes_register(lab: &mut Lab, row: &'static OpInfo) {
    writes_status(lab, row);
    for _ in 0..60 {
        let mut w = lab.any_wave();
        w.trapsts = lab.r.next();
        w.flat_scratch = lab.r.next64();
        let id = lab.r.pick(&[1, 3, 20, 21, 28]);
        let (imm, offset, size) = field(lab, id);
        let mut want = w.clone();
        let value = w.s[33];
        let merged = |old: u32| {
            let mask = ((1u64 << size) - 1) << offset;
            (u64::from(old) & !mask | u64::from(value) << offset & mask) as u32
        };
        match id {
            1 => want.mode = merged(w.mode),
            3 => want.trapsts = merged(w.trapsts),
            20 => {
                want.flat_scratch = w.flat_scratch & !0xFFFF_FFFF | u64::from(merged(w.flat_scratch as u32))
            }
            21 => {
                let high = merged((w.flat_scratch >> 32) as u32);
                want.flat_scratch = w.flat_scratch & 0xFFFF_FFFF | u64::from(high) << 32;
            }
            _ => {}
        }
        let literal = row.op == Op::S_SETREG_IMM32_B32;
        let mut words = encode::scalar(row, if literal { 0 } else { 33 }, [0; 2], imm);
        if literal {
            words.push(value);
        }
        let mut got = w;
        lab.run(&mut got, &words);
        lab.same(&want, &got, &format!("register {id} bits {offset} +{size}"));
    }
}
