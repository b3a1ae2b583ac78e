// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scalar loads: base pair, immediate and register offset; the low two address bits are ignored.
#![allow(unsafe_code)]

use softgpu_isa::Op;

use super::raw;
use crate::env::Env;
use crate::exception::AccessKind;
use crate::step::{Flow, Handler, Step, stop};
use crate::valu::shapes::scalar;
use crate::wave::Wave;

/// Handlers of scalar memory operations.
pub(crate) fn table(op: Op) -> Option<Handler> {
    Some(match op {
        Op::S_LOAD_B32 => load::<1> as Handler,
        Op::S_LOAD_B64 => load::<2> as Handler,
        Op::S_LOAD_B128 => load::<4> as Handler,
        Op::S_LOAD_B256 => load::<8> as Handler,
        Op::S_LOAD_B512 => load::<16> as Handler,
        Op::S_BUFFER_LOAD_B32 => buffer_load::<1> as Handler,
        Op::S_BUFFER_LOAD_B64 => buffer_load::<2> as Handler,
        Op::S_BUFFER_LOAD_B128 => buffer_load::<4> as Handler,
        Op::S_BUFFER_LOAD_B256 => buffer_load::<8> as Handler,
        Op::S_BUFFER_LOAD_B512 => buffer_load::<16> as Handler,
        _ => return None,
    })
}

fn load<const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let offset = i64::from(s.imm) + i64::from(scalar(w, &s.src[1]));
    let address = w.s64(s.src[0].index as usize).wrapping_add(offset as u64) & !3;
    let end = address.wrapping_add(4 * N as u64);
    if !env.allows(address, end, AccessKind::Read) {
        let fault = env.fault(address, 4 * N as u64, AccessKind::Read);
        return stop(w, fault);
    }
    // SAFETY: `allows` said that these bytes are readable; `env` holds the map's lock.
    let data: [u32; N] = unsafe { raw::read_dwords(address) };
    w.s[s.dst as usize..s.dst as usize + N].copy_from_slice(&data);
    Flow::Next
}

fn buffer_load<const N: usize>(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Flow {
    let r = s.src[0].index as usize;
    let base = u64::from(w.s[r]) | u64::from(w.s[r + 1] & 0xFFFF) << 32;
    let stride = u64::from(w.s[r + 1] >> 16 & 0x3FFF);
    let bytes = u64::from(w.s[r + 2]) * stride.max(1);
    let offset = (i64::from(s.imm) + i64::from(scalar(w, &s.src[1]))) as u64 & !3;
    for k in 0..N {
        let at = offset.wrapping_add(4 * k as u64);
        let value = if at >= bytes || at + 4 > bytes {
            0
        } else {
            let address = base.wrapping_add(at) & !3;
            if !env.allows(address, address.wrapping_add(4), AccessKind::Read) {
                let fault = env.fault(address, 4, AccessKind::Read);
                return stop(w, fault);
            }
            // SAFETY: `allows` said that these bytes are readable; `env` holds the map's lock.
            unsafe { raw::read_dwords::<1>(address)[0] }
        };
        w.s[s.dst as usize + k] = value;
    }
    Flow::Next
}
