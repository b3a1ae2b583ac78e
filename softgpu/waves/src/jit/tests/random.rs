// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs: valid words of any vector or scalar operation, in a loop.

use softgpu_isa::{Class, Flags, Fmt, Op, decode, info, rows};

/// A small generator with a printable state.
#[derive(Clone, Debug)]
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub(super) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 20) % n.max(1)
    }
    pub(super) fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
    /// An f32 with an exponent at the end of some range and a mantissa of few bits: ties, and results just out of
    /// range.
    pub(super) fn near_a_limit(&mut self) -> u32 {
        const EXPONENTS: [u32; 8] = [0, 23, 63, 95, 127, 150, 190, 252];
        let exponent = EXPONENTS[self.below(8) as usize] + self.below(4) as u32;
        let mantissa = (0..self.below(4)).fold(0, |m, _| m ^ 1 << self.below(23));
        (self.next() as u32 & 1) << 31 | exponent << 23 | mantissa
    }
    /// Bits that are interesting as an integer, a float or a half.
    pub(super) fn bits(&mut self) -> u32 {
        const CORNERS: [u32; 16] = [
            0,
            1,
            2,
            31,
            32,
            0x7FFF_FFFF,
            0x8000_0000,
            0xFFFF_FFFF,
            0x3F80_0000,
            0xBF80_0000,
            0x7F80_0000,
            0xFF80_0000,
            0x7FC0_1234,
            0x7F80_0001,
            0x0000_FFFF,
            0x3C00_BC00,
        ];
        match self.below(6) {
            0 => CORNERS[self.below(16) as usize],
            1 => self.below(64) as u32,
            2 => (self.below(2000) as f32 / 64.0 - 15.0).to_bits(),
            _ => self.next() as u32,
        }
    }
}

/// VGPRs that programs use.
pub(super) const VGPRS: u64 = 12;
/// SGPRs that programs use.
const SGPRS: u64 = 16;
/// s_endpgm.
pub(super) const END: u32 = 0xBFB0_0000;

/// Below `n`.
pub(super) fn below(r: &mut Random, n: u32) -> u32 {
    r.below(n.into()) as u32
}

/// The loop's counter, which no random instruction uses.
const COUNTER: u32 = 30;

fn vgpr(r: &mut Random) -> u32 {
    r.below(VGPRS) as u32
}

fn scalar_source(r: &mut Random) -> u32 {
    match r.below(8) {
        0 => 106,
        1 => 128 + r.below(65) as u32,
        2 => 193 + r.below(16) as u32,
        3 => 240 + r.below(9) as u32,
        4 => [125, 126, 253, 124][r.below(4) as usize],
        _ => r.below(SGPRS) as u32 & !1,
    }
}

fn source(r: &mut Random) -> u32 {
    if r.below(3) == 0 { scalar_source(r) } else { 256 + vgpr(r) }
}

fn scalar_destination(r: &mut Random) -> u32 {
    match r.below(12) {
        0 => 126,
        1..=3 => 106,
        4 => 124,
        _ => r.below(SGPRS) as u32 & !1,
    }
}

/// Whether an instruction can be anywhere in a straight run.
fn is_plain(op: Op) -> bool {
    use Op::*;
    let row = info(op);
    let control =
        Flags::BRANCH | Flags::END | Flags::BARRIER | Flags::HINT | Flags::CACHE | Flags::WRITES_MODE;
    let moves = row.any(Flags::READS_M0) && !row.name.contains("interp");
    !row.any(control)
        && !moves
        && !row.name.starts_with("v_wmma")
        && !matches!(
            op,
            S_SLEEP
                | S_WAKEUP
                | S_TRAP
                | S_SETHALT
                | S_SENDMSG
                | S_SENDMSGHALT
                | S_SENDMSG_RTN_B32
                | S_SENDMSG_RTN_B64
                | S_RFE_B64
                | S_GETREG_B32
                | S_CODE_END
                | S_GETPC_B64
        )
}

/// A DPP operand and its dword.
fn permutation(r: &mut Random) -> (u32, u32) {
    if r.chance(4) {
        return (233 + r.below(2) as u32, r.next() as u32 & !0xFF | vgpr(r));
    }
    let n = 1 + r.below(15) as u32;
    let control = match r.below(8) {
        0 | 1 => r.below(256) as u32,
        2 => 0x100 + n,
        3 => 0x110 + n,
        4 => 0x120 + n,
        5 => 0x140 + r.below(2) as u32,
        6 => 0x150 + n,
        _ => 0x160 + n,
    };
    let masks = if r.chance(3) { r.next() as u32 & 0xFF } else { 0xFF };
    let signs = if r.chance(4) { r.next() as u32 & 0xF } else { 0 };
    let bits = r.below(4) as u32;
    (250, masks << 24 | signs << 20 | bits << 18 | control << 8 | vgpr(r))
}

fn words(r: &mut Random, fmt: Fmt, opcode: u32) -> Option<Vec<u32>> {
    let literal = |mut w: Vec<u32>, r: &mut Random, uses: bool| {
        if uses {
            w.push(r.bits());
        }
        w
    };
    let modifiers = if r.chance(4) { r.next() as u32 } else { 0 };
    Some(match fmt {
        Fmt::Sop1 => vec![0xBE80_0000 | scalar_destination(r) << 16 | opcode << 8 | scalar_source(r)],
        Fmt::Sop2 => {
            let (d, a, b) = (scalar_destination(r), scalar_source(r), scalar_source(r));
            vec![0x8000_0000 | opcode << 23 | d << 16 | b << 8 | a]
        }
        Fmt::Sopc => vec![0xBF00_0000 | opcode << 16 | scalar_source(r) << 8 | scalar_source(r)],
        Fmt::Sopk => {
            vec![0xB000_0000 | opcode << 23 | scalar_destination(r) << 16 | r.next() as u32 & 0xFFFF]
        }
        Fmt::Vop1 | Fmt::Vop2 | Fmt::Vopc if r.chance(6) => {
            let (marker, permutation) = permutation(r);
            let low = match fmt {
                Fmt::Vop1 => 0x7E00_0000 | vgpr(r) << 17 | opcode << 9,
                Fmt::Vop2 => opcode << 25 | vgpr(r) << 17 | vgpr(r) << 9,
                _ => 0x7C00_0000 | opcode << 17 | vgpr(r) << 9,
            };
            vec![low | marker, permutation]
        }
        Fmt::Vop1 => {
            let s = if r.chance(16) { 255 } else { source(r) };
            literal(vec![0x7E00_0000 | vgpr(r) << 17 | opcode << 9 | s], r, s == 255)
        }
        Fmt::Vop2 => {
            let s = if r.chance(16) { 255 } else { source(r) };
            let fixed = matches!(opcode, 44 | 45 | 55 | 56);
            literal(vec![opcode << 25 | vgpr(r) << 17 | vgpr(r) << 9 | s], r, s == 255 || fixed)
        }
        Fmt::Vopc => vec![0x7C00_0000 | opcode << 17 | vgpr(r) << 9 | source(r)],
        Fmt::Vop3 | Fmt::Vop3p => {
            let top = if fmt == Fmt::Vop3 { 0xD400_0000 } else { 0xCC00_0000 };
            let compare = fmt == Fmt::Vop3 && opcode < 256;
            let d = if compare { scalar_destination(r) } else { vgpr(r) };
            let mut low = top | opcode << 16 | d | modifiers & 0xFF00;
            if fmt == Fmt::Vop3p {
                low |= 0x4000;
            }
            let high = source(r) | source(r) << 9 | source(r) << 18 | modifiers & 0xF800_0000;
            vec![low, high | if fmt == Fmt::Vop3p { 0x1800_0000 } else { 0 }]
        }
        Fmt::Vinterp => {
            let registers = vgpr(r) | vgpr(r) << 9 | vgpr(r) << 18 | 0x0402_0100;
            vec![
                0xCD00_0000 | opcode << 16 | vgpr(r) | modifiers & 0xF800,
                registers | modifiers & 0xE000_0000,
            ]
        }
        Fmt::Vop3sd => {
            let low = 0xD400_0000 | opcode << 16 | scalar_destination(r) << 8 | vgpr(r);
            vec![low, source(r) | source(r) << 9 | source(r) << 18]
        }
        _ => return None,
    })
}

/// A VOPD of two random halves.
fn dual(r: &mut Random) -> Vec<u32> {
    let (x, y) = (r.below(14) as u32, r.below(19) as u32);
    let d = vgpr(r);
    let other = (vgpr(r) >> 1) << 17;
    let low = 0xC800_0000 | x << 22 | y << 17 | vgpr(r) << 9 | source(r);
    // vdsty has one bit less: its lowest bit is the inverse of vdstx's.
    let high = d << 24 | (other >> 17) << 17 | vgpr(r) << 9 | source(r);
    let mut words = vec![low, high];
    if matches!(x, 1 | 2) || matches!(y, 1 | 2) {
        words.push(r.bits());
    }
    words
}

/// One random instruction, `wanted` or any.
pub(super) fn instruction(r: &mut Random, wanted: Option<Op>) -> Vec<u32> {
    let all = rows();
    loop {
        if wanted.is_none() && r.chance(12) {
            let w = dual(r);
            if decode(&w).is_ok_and(|i| i.size as usize == w.len() * 4) {
                return w;
            }
            continue;
        }
        let row = match wanted {
            Some(op) => info(op),
            None => &all[r.below(all.len() as u64) as usize],
        };
        if !is_plain(row.op) {
            continue;
        }
        let codes: Vec<_> = row
            .columns
            .iter()
            .filter(|c| c.family == softgpu_isa::EncodingFamily::Gfx11)
            .flat_map(|c| c.codes.iter())
            .collect();
        if codes.is_empty() {
            continue;
        }
        let code = codes[r.below(codes.len() as u64) as usize];
        let Some(w) = words(r, code.fmt, u32::from(code.opcode)) else { continue };
        // A source that names a literal makes such words too short.
        let Ok(inst) = decode(&w) else { continue };
        if inst.size as usize != w.len() * 4 || inst.op != row.op {
            continue;
        }
        let wide_scalar = row.dst.first().is_some_and(|s| s.class != Class::V && s.ty.dwords() > 2);
        if !wide_scalar {
            return w;
        }
    }
}

/// `body` instructions, `turns` times over, then the end.
pub(super) fn program(r: &mut Random, body: usize, turns: u32, ops: &[Op]) -> Vec<u32> {
    let mut words = vec![0xBE80_0000 | COUNTER << 16 | (128 + turns)];
    let start = words.len();
    for _ in 0..body {
        if r.chance(10) {
            words.extend(accesses(r));
            continue;
        }
        let wanted = (!ops.is_empty() && !r.chance(5)).then(|| ops[r.below(ops.len() as u64) as usize]);
        words.extend(instruction(r, wanted));
    }
    // s_sub_u32 s30, s30, 1; s_cmp_lg_u32 s30, 0; s_cbranch_scc1 start; s_endpgm
    words.push(0x8080_0000 | COUNTER << 16 | 129 << 8 | COUNTER);
    words.push(0xBF07_0000 | 128 << 8 | COUNTER);
    let distance = start as i64 - (words.len() as i64 + 1);
    words.push(0xBFA2_0000 | distance as u32 & 0xFFFF);
    words.push(END);
    words
}

/// The register with the address of a program's data, and the number of its bytes.
pub(super) const DATA: u32 = 20;
pub(super) const DATA_BYTES: u64 = 1 << 14;

/// Scalar loads from the data, some of them past its end.
fn scalar_loads(r: &mut Random) -> Vec<u32> {
    let mut words = Vec::new();
    for _ in 0..1 + r.below(3) {
        let size = r.below(5) as u32;
        let last = if size > 2 { 0 } else { 12 };
        let to = r.below(last + 1) as u32 & !((1 << size.min(2)) - 1);
        let offset = if r.chance(30) { 0x7_0000 } else { r.below(DATA_BYTES - 64) as u32 };
        words.push(0xF400_0000 | size << 18 | to << 6 | (DATA / 2));
        words.push(124 << 25 | offset);
    }
    words
}

fn vop3(op: Op, to: u32, sources: [u32; 3]) -> Vec<u32> {
    let family = softgpu_isa::EncodingFamily::Gfx11;
    let code = info(op).opcode(family, Fmt::Vop3).or_else(|| info(op).opcode(family, Fmt::Vop3sd));
    let code = u32::from(code.expect("an opcode"));
    vec![0xD400_0000 | code << 16 | to, sources[0] | sources[1] << 9 | sources[2] << 18]
}

/// A number that kernels compute from the first register, which has the work-item's.
pub(super) fn index(r: &mut Random, to: u32) -> Vec<u32> {
    use Op::*;
    let mut words = vec![0x7E00_0300 | to << 17];
    let own = 256 + to;
    for _ in 0..r.below(5) {
        let n = 128 + r.below(6) as u32;
        let other = if r.chance(2) { 256 } else { r.below(SGPRS) as u32 };
        let two = to << 17 | to << 9;
        match r.below(10) {
            0 | 1 => words.push(0x3000_0000 | two | n),
            2 => words.push(0x3200_0000 | two | n),
            3 => {
                let k = r.below(12);
                let mask = [(1 << k) - 1, !((1 << k) - 1), 0x1F0, 0x3FF][r.below(4) as usize];
                words.extend([0x3600_0000 | two | 255, mask]);
            }
            4 => words.push(0x4A00_0000 | two | other),
            5 => words.extend([0x4A00_0000 | two | 255, r.below(4096) as u32]),
            6 => words.extend(vop3(V_LSHL_ADD_U32, to, [own, n, other])),
            7 => words.extend(vop3(V_BFE_U32, to, [own, n, 128 + r.below(12) as u32])),
            8 => words.extend(vop3(V_MUL_LO_U32, to, [own, if r.chance(2) { n } else { other }, 0])),
            _ => words.extend(vop3(V_LSHL_OR_B32, to, [own, n, other])),
        }
    }
    words
}

/// The data's address plus the number in `at`, as 64 bits in it and the next register.
pub(super) fn long_address(r: &mut Random, at: u32) -> Vec<u32> {
    let scale = r.below(5) as u32;
    let mut words = vec![0x3600_0000 | at << 17 | at << 9 | 255, (DATA_BYTES as u32 >> scale) - 1];
    words.push(0x7E00_0280 | (at + 1) << 17);
    words.extend(vop3(Op::V_LSHLREV_B64, at, [128 + scale, 256 + at, 0]));
    let mut sum = vop3(Op::V_ADD_CO_U32, at, [DATA, 256 + at, 0]);
    sum[0] |= 106 << 8;
    words.extend(sum);
    words.push(0x4000_0000 | (at + 1) << 17 | (at + 1) << 9 | (DATA + 1));
    words
}

/// Loads and stores at addresses that form a pattern: equal, adjacent, at a distance; all within bounds or some
/// outside.
pub(super) fn accesses(r: &mut Random) -> Vec<u32> {
    use Op::*;
    const LDS: [Op; 17] = [
        DS_LOAD_B32,
        DS_LOAD_B64,
        DS_LOAD_B96,
        DS_LOAD_B128,
        DS_STORE_B32,
        DS_STORE_B64,
        DS_STORE_B128,
        DS_LOAD_2ADDR_B32,
        DS_LOAD_2ADDR_B64,
        DS_LOAD_2ADDR_STRIDE64_B32,
        DS_STORE_2ADDR_B32,
        DS_LOAD_U8,
        DS_ADD_U32,
        DS_LOAD_2ADDR_STRIDE64_B64,
        DS_STORE_2ADDR_B64,
        DS_STORE_2ADDR_STRIDE64_B32,
        DS_STORE_2ADDR_STRIDE64_B64,
    ];
    const GLOBAL: [Op; 10] = [
        GLOBAL_LOAD_B32,
        GLOBAL_LOAD_B64,
        GLOBAL_LOAD_B96,
        GLOBAL_LOAD_B128,
        GLOBAL_STORE_B32,
        GLOBAL_STORE_B64,
        GLOBAL_STORE_B128,
        GLOBAL_LOAD_U16,
        GLOBAL_STORE_B8,
        GLOBAL_ATOMIC_ADD_U32,
    ];
    let address = (VGPRS - 2) as u32 & !1;
    // Lane number times a power of two, plus an offset.
    let mut words = vec![0xD71F_0000 | address, 193 | 128 << 9];
    let scale = if r.chance(4) { 31 } else { r.below(7) as u32 };
    words.push(0x3000_0000 | address << 17 | address << 9 | (128 + scale));
    words.extend([
        0x4A00_0000 | address << 17 | address << 9 | 255,
        4 * r.below(600) as u32 + r.below(64) as u32 / 60,
    ]);
    if r.chance(2) {
        words = index(r, address);
    } else if r.chance(6) {
        // One of the registers instead: any pattern.
        words = vec![0x7E00_0300 | address << 17 | vgpr(r)];
    }
    if r.chance(4) {
        return scalar_loads(r);
    }
    let local = r.chance(2);
    if !local {
        words.extend([0x3600_0000 | address << 17 | address << 9 | 255, DATA_BYTES as u32 - 1]);
    }
    let base = !local && r.chance(2);
    if !local && !base && r.chance(2) {
        words.extend(long_address(r, address));
    } else if !local && !base {
        words.push(0x7E00_0200 | (address + 1) << 17 | (DATA + 1));
        words.push(0x4A00_0000 | address << 17 | address << 9 | DATA);
    }
    for _ in 0..1 + r.below(4) {
        let ops: &[Op] = if local { &LDS } else { &GLOBAL };
        let op = ops[r.below(ops.len() as u64) as usize];
        let fmt = if local { Fmt::Ds } else { Fmt::Global };
        let code = u32::from(info(op).opcode(softgpu_isa::EncodingFamily::Gfx11, fmt).expect("an opcode"));
        // Registers of four dwords, which sometimes overlap the address.
        let data = r.below(VGPRS - 6) as u32;
        let result = if r.chance(4) { address } else { r.below(VGPRS - 6) as u32 };
        let result = if info(op).dst.first().is_some_and(|s| s.ty.dwords() > 1) {
            result.min(VGPRS as u32 - 4)
        } else {
            result
        };
        if local {
            words.push(0xD800_0000 | code << 18 | r.below(64) as u32 | (r.below(4) as u32) << 8);
            let second = r.below(VGPRS - 6) as u32;
            words.push(result << 24 | second << 16 | data << 8 | address);
        } else {
            words.push(0xDC02_0000 | code << 18 | (r.below(16) as u32 * 4));
            words.push(result << 24 | if base { DATA } else { 124 } << 16 | data << 8 | address);
        }
    }
    words
}
