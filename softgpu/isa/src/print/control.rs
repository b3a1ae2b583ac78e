// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text of the scalar formats, with the names LLVM gives to fields of their immediates.
//!
//! INVARIANT: an immediate that the names cannot express exactly prints as a number.

use std::fmt;

use super::List;
use super::operand::{hex16, operand};
use crate::info::{Class, Ty};
use crate::inst::{Enc, Inst};
use crate::table::{Op, info};

pub(super) fn salu(f: &mut fmt::Formatter<'_>, inst: &Inst) -> fmt::Result {
    let row = info(inst.op);
    f.write_str(row.name)?;
    let mut list = List::new();
    if let Some(slot) = row.dst.first() {
        list.next(f)?;
        operand(f, inst.dst, slot.ty, slot.ty.dwords())?;
    }
    for (slot, &source) in row.src.iter().zip(&inst.src) {
        list.next(f)?;
        match slot.class {
            Class::MSG => message(f, inst.imm)?,
            // Scalar operations read whole registers, so constants print as 32 bits wide even where 16 count.
            _ if slot.ty.dwords() == 1 => operand(f, source, Ty::B32, 1)?,
            _ => operand(f, source, slot.ty, slot.ty.dwords())?,
        }
    }
    Ok(())
}

pub(super) fn sopk(f: &mut fmt::Formatter<'_>, inst: &Inst) -> fmt::Result {
    let row = info(inst.op);
    f.write_str(row.name)?;
    let mut list = List::new();
    if let Some(slot) = row.dst.first() {
        list.next(f)?;
        operand(f, inst.dst, slot.ty, slot.ty.dwords())?;
    }
    if matches!(inst.op, Op::S_SETREG_B32 | Op::S_SETREG_IMM32_B32) {
        list.next(f)?;
        hwreg(f, inst.imm)?;
        list.next(f)?;
        return operand(f, inst.src[0], row.src[0].ty, 1);
    }
    for (slot, &source) in row.src.iter().zip(&inst.src) {
        list.next(f)?;
        match slot.class {
            Class::REL => write!(f, "{}", inst.imm & 0xffff)?,
            Class::K if inst.op == Op::S_VERSION => version(f, inst.imm & 0xffff)?,
            Class::K => hex16(f, inst.imm)?,
            Class::HWREG => hwreg(f, inst.imm)?,
            _ => operand(f, source, slot.ty, 1)?,
        }
    }
    Ok(())
}

pub(super) fn sopp(f: &mut fmt::Formatter<'_>, inst: &Inst) -> fmt::Result {
    debug_assert!(inst.enc == Enc::Sopp);
    let imm = inst.imm & 0xffff;
    let name = info(inst.op).name;
    f.write_str(name)?;
    match inst.op {
        Op::S_ENDPGM if imm == 0 => Ok(()),
        Op::S_ENDPGM => write!(f, " {imm}"),
        _ if info(inst.op).src.is_empty() => Ok(()),
        Op::S_WAITCNT => waitcnt(f, imm),
        Op::S_DELAY_ALU => delay_alu(f, imm),
        Op::S_WAITCNT_DEPCTR => depctr(f, imm),
        Op::S_SENDMSG | Op::S_SENDMSGHALT => {
            f.write_str(" ")?;
            message(f, imm)
        }
        Op::S_SET_INST_PREFETCH_DISTANCE
        | Op::S_CLAUSE
        | Op::S_WAIT_EVENT
        | Op::S_ROUND_MODE
        | Op::S_TTRACEDATA_IMM => write!(f, " {imm:#x}"),
        _ if info(inst.op).src[0].class == Class::REL => write!(f, " {imm}"),
        _ if imm <= 64 => write!(f, " {imm}"),
        _ => write!(f, " {imm:#x}"),
    }
}

fn waitcnt(f: &mut fmt::Formatter<'_>, imm: i32) -> fmt::Result {
    let counters = [("vmcnt", imm >> 10 & 63, 63), ("expcnt", imm & 7, 7), ("lgkmcnt", imm >> 4 & 63, 63)];
    let all_free = counters.iter().all(|&(_, value, max)| value == max);
    for (name, value, max) in counters {
        if all_free || value != max {
            write!(f, " {name}({value})")?;
        }
    }
    Ok(())
}

fn delay_alu(f: &mut fmt::Formatter<'_>, imm: i32) -> fmt::Result {
    const IDS: [&str; 12] = [
        "NO_DEP",
        "VALU_DEP_1",
        "VALU_DEP_2",
        "VALU_DEP_3",
        "VALU_DEP_4",
        "TRANS32_DEP_1",
        "TRANS32_DEP_2",
        "TRANS32_DEP_3",
        "FMA_ACCUM_CYCLE_1",
        "SALU_CYCLE_1",
        "SALU_CYCLE_2",
        "SALU_CYCLE_3",
    ];
    const INVALID: [&str; 2] = ["/* invalid instid value */", "/* invalid instskip value */"];
    const SKIPS: [&str; 6] = ["SAME", "NEXT", "SKIP_1", "SKIP_2", "SKIP_3", "SKIP_4"];
    let fields = [
        ("instid0", imm & 15, &IDS[..]),
        ("instskip", imm >> 4 & 7, &SKIPS),
        ("instid1", imm >> 7 & 15, &IDS),
    ];
    let mut separator = " ";
    for (name, value, values) in fields {
        if value != 0 {
            let text = usize::try_from(value)
                .ok()
                .and_then(|value| values.get(value))
                .unwrap_or(&INVALID[usize::from(name == "instskip")]);
            write!(f, "{separator}{name}({text})")?;
            separator = " | ";
        }
    }
    if separator == " " { f.write_str(" 0") } else { Ok(()) }
}

fn depctr(f: &mut fmt::Formatter<'_>, imm: i32) -> fmt::Result {
    // (name, shift, width), in LLVM's order.
    const FIELDS: [(&str, i32, i32); 7] = [
        ("depctr_hold_cnt", 7, 1),
        ("depctr_sa_sdst", 0, 1),
        ("depctr_va_vdst", 12, 4),
        ("depctr_va_sdst", 9, 3),
        ("depctr_va_ssrc", 8, 1),
        ("depctr_va_vcc", 1, 1),
        ("depctr_vm_vsrc", 2, 3),
    ];
    let mask = |width: i32| (1 << width) - 1;
    let covered = FIELDS.iter().fold(0, |bits, &(_, shift, width)| bits | mask(width) << shift);
    if imm & !covered != 0 {
        return write!(f, " {imm:#x}");
    }
    for (name, shift, width) in FIELDS {
        let value = imm >> shift & mask(width);
        if value != mask(width) || imm == covered {
            write!(f, " {name}({value})")?;
        }
    }
    Ok(())
}

fn version(f: &mut fmt::Formatter<'_>, imm: i32) -> fmt::Result {
    if imm & 0x1f00 != 0 {
        return hex16(f, imm);
    }
    const FLAGS: [(i32, &str); 3] =
        [(13, "|UC_VERSION_W64_BIT"), (14, "|UC_VERSION_W32_BIT"), (15, "|UC_VERSION_MDP_BIT")];
    let flags = (imm >> 13).count_ones() as usize;
    f.write_str(&"(("[..flags.saturating_sub(1)])?;
    match imm & 0xff {
        0 => f.write_str("UC_VERSION_GFX7")?,
        4 => f.write_str("UC_VERSION_GFX10")?,
        6 => f.write_str("UC_VERSION_GFX11")?,
        9 => f.write_str("UC_VERSION_GFX12")?,
        other => write!(f, "{other}")?,
    }
    let mut open = flags.saturating_sub(1);
    for (bit, name) in FLAGS {
        if imm >> bit & 1 != 0 {
            f.write_str(name)?;
            f.write_str(if open > 0 { ")" } else { "" })?;
            open = open.saturating_sub(1);
        }
    }
    Ok(())
}

fn hwreg(f: &mut fmt::Formatter<'_>, imm: i32) -> fmt::Result {
    let (id, offset, size) = (imm & 63, imm >> 6 & 31, (imm >> 11 & 31) + 1);
    let name = match id {
        1 => "HW_REG_MODE",
        2 => "HW_REG_STATUS",
        3 => "HW_REG_TRAPSTS",
        5 => "HW_REG_GPR_ALLOC",
        6 => "HW_REG_LDS_ALLOC",
        7 => "HW_REG_IB_STS",
        15 => "HW_REG_SH_MEM_BASES",
        18 => "HW_REG_PERF_SNAPSHOT_PC_LO",
        19 => "HW_REG_PERF_SNAPSHOT_PC_HI",
        20 => "HW_REG_FLAT_SCR_LO",
        21 => "HW_REG_FLAT_SCR_HI",
        23 => "HW_REG_HW_ID1",
        24 => "HW_REG_HW_ID2",
        27 => "HW_REG_PERF_SNAPSHOT_DATA",
        29 => "HW_REG_SHADER_CYCLES",
        _ => "",
    };
    f.write_str("hwreg(")?;
    match name {
        "" => write!(f, "{id}")?,
        _ => f.write_str(name)?,
    }
    if offset != 0 || size != 32 {
        write!(f, ", {offset}, {size}")?;
    }
    f.write_str(")")
}

fn message(f: &mut fmt::Formatter<'_>, imm: i32) -> fmt::Result {
    // The bits above the number have no meaning on gfx11.
    let name = match imm & 0xff {
        1 => "MSG_INTERRUPT",
        2 => "MSG_HS_TESSFACTOR",
        3 => "MSG_DEALLOC_VGPRS",
        5 => "MSG_STALL_WAVE_GEN",
        6 => "MSG_HALT_WAVES",
        9 => "MSG_GS_ALLOC_REQ",
        128 => "MSG_RTN_GET_DOORBELL",
        129 => "MSG_RTN_GET_DDID",
        130 => "MSG_RTN_GET_TMA",
        131 => "MSG_RTN_GET_REALTIME",
        132 => "MSG_RTN_SAVE_WAVE",
        133 => "MSG_RTN_GET_TBA",
        134 => "MSG_RTN_GET_TBA_TO_PC",
        _ => "",
    };
    match name {
        "" if imm < 256 => write!(f, "sendmsg({imm}, 0, 0)"),
        "" => write!(f, "{imm}"),
        _ => write!(f, "sendmsg({name})"),
    }
}
