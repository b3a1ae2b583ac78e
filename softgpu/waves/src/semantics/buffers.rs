// SPDX-License-Identifier: MIT OR Apache-2.0
//! Untyped buffer loads and stores, and buffer loads into LDS.

use softgpu_isa::{Op, OpInfo};

use super::entry::{Check, Entry};
use super::lab::Lab;
use super::memory::{Transfer, World, active, transfer};
use super::place::{Access, Cell};
use crate::step::Flow;
use crate::wave::M0;

macro_rules! entries {
    ($($check:ident: $($op:ident)*;)*) => {
        &[$($(Entry { op: Op::$op, check: Check::Own($check) }),*),*]
    };
}

pub(crate) const ENTRIES: &[Entry] = entries! {
    transfer:
        BUFFER_LOAD_U8 BUFFER_LOAD_I8 BUFFER_LOAD_U16 BUFFER_LOAD_I16 BUFFER_LOAD_B32 BUFFER_LOAD_B64 BUFFER_LOAD_B96
        BUFFER_LOAD_B128 BUFFER_STORE_B8 BUFFER_STORE_B16 BUFFER_STORE_B32 BUFFER_STORE_B64 BUFFER_STORE_B96
        BUFFER_STORE_B128 BUFFER_LOAD_D16_U8 BUFFER_LOAD_D16_I8 BUFFER_LOAD_D16_B16 BUFFER_LOAD_D16_HI_U8
        BUFFER_LOAD_D16_HI_I8 BUFFER_LOAD_D16_HI_B16 BUFFER_STORE_D16_HI_B8 BUFFER_STORE_D16_HI_B16;
    to_lds: BUFFER_LOAD_LDS_U8 BUFFER_LOAD_LDS_I8 BUFFER_LOAD_LDS_U16 BUFFER_LOAD_LDS_I16 BUFFER_LOAD_LDS_B32;
};

/// Each active lane's dword goes to LDS at M0 + immediate + 4 bytes a lane.
fn to_lds(lab: &mut Lab, row: &'static OpInfo) {
    let t = Transfer::of(row);
    for _ in 0..30 {
        let mut w = lab.any_wave();
        lab.fill();
        w.s[M0] = lab.r.next() & 0xFFFF_0FFC;
        let access = Access::random(lab, &mut w, row, t.bytes, false);
        let imm = access.words[0] & 0xFFF;
        let mut world = World::of(lab);
        for lane in active(&w) {
            let mut x = world.number(&access.cells[lane]) as u32;
            if t.signed {
                let shift = 32 - 8 * t.bytes;
                x = ((x << shift) as i32 >> shift) as u32;
            }
            let at = (w.s[M0] & 0xFFFF) as usize + imm as usize + 4 * lane;
            for (j, byte) in x.to_le_bytes().into_iter().enumerate() {
                let inside = at + j < super::lab::LDS as usize;
                world.write(if inside { Cell::Lds(at + j) } else { Cell::Nowhere }, byte);
            }
        }
        let mut got = w.clone();
        assert_eq!(lab.run(&mut got, &access.words), Flow::Next, "{:?}", got.cause);
        lab.same(&w, &got, &"");
        world.same(lab, row, &format!("{:08x?}", access.words));
    }
}
