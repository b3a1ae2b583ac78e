// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random operands with corner cases, by operand type.

use softgpu_isa::Ty;

/// A small deterministic generator.
pub(crate) struct Random(pub u64);

const F32: [u32; 28] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007F_FFFF,
    0x807F_FFFF,
    0x0080_0000,
    0x8080_0000,
    0x3F80_0000,
    0xBF80_0000,
    0x3F00_0000,
    0x3FC0_0000,
    0x4020_0000,
    0xC060_0000,
    0x4B80_0000,
    0x4F00_0000,
    0xCF00_0000,
    0x4F80_0000,
    0x7F7F_FFFF,
    0xFF7F_FFFF,
    0x7F80_0000,
    0xFF80_0000,
    0x7FC0_0000,
    0xFFC0_1234,
    0x7F80_0001,
    0xFFA0_0007,
    0x3380_0000,
    0x477F_E000,
];
const F16: [u32; 20] = [
    0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x400, 0x8400, 0x3C00, 0xBC00, 0x3800, 0x3E00, 0x7BFF, 0xFBFF,
    0x7C00, 0xFC00, 0x7E00, 0xFE12, 0x7C01, 0xFD55,
];
const F64: [u64; 20] = [
    0,
    1 << 63,
    1,
    0x800F_FFFF_FFFF_FFFF,
    0x0010_0000_0000_0000,
    0x3FF0_0000_0000_0000,
    0xBFF0_0000_0000_0000,
    0x3FE0_0000_0000_0000,
    0x4004_0000_0000_0000,
    0x41E0_0000_0000_0000,
    0xC1E0_0000_0020_0000,
    0x41F0_0000_0000_0000,
    0x7FEF_FFFF_FFFF_FFFF,
    0x7FF0_0000_0000_0000,
    0xFFF0_0000_0000_0000,
    0x7FF8_0000_0000_0001,
    0xFFF8_1234_0000_0000,
    0x7FF0_0000_0000_0001,
    0x3690_0000_0000_0000,
    0x47EF_FFFF_F000_0000,
];
const INT: [u32; 16] =
    [0, 1, 2, 3, 7, 15, 16, 31, 32, 63, 0xFF, 0x7FFF, 0x8000, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];

impl Random {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (self.0 >> 33) as u32 ^ (self.0 >> 15) as u32;
        x.wrapping_mul(0x9E37_79B1) ^ x >> 13
    }

    pub(crate) fn next64(&mut self) -> u64 {
        u64::from(self.next()) | u64::from(self.next()) << 32
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n.max(1)
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn f32(&mut self) -> u32 {
        match self.below(5) {
            0 | 1 => self.pick(&F32),
            2 => self.next(),
            3 => (self.next() & 0x80FF_FFFF) | 0x3E00_0000 | (self.next() & 7) << 24,
            // Small integers and halves.
            _ => ((self.next() % 512) as f32 * 0.5 - 128.0).to_bits(),
        }
    }

    fn f16(&mut self) -> u32 {
        match self.below(4) {
            0 | 1 => self.pick(&F16),
            2 => self.next() & 0xFFFF,
            _ => (self.next() & 0x83FF) | 0x3000 | (self.next() & 15) << 10 & 0x3C00,
        }
    }

    fn f64(&mut self) -> u64 {
        match self.below(6) {
            0 | 1 => self.pick(&F64),
            2 => self.next64(),
            3 => {
                (self.next64() & 0x800F_FFFF_FFFF_FFFF)
                    | 0x3FE0_0000_0000_0000
                    | u64::from(self.next() & 3) << 52
            }
            4 => f64::from(f32::from_bits(self.f32())).to_bits(),
            _ => (f64::from(self.next() % 4096) * 0.25 - 512.0).to_bits(),
        }
    }

    fn int(&mut self) -> u32 {
        match self.below(4) {
            0 => self.pick(&INT),
            1 => self.next() & 0x3F,
            2 => (self.next() % 32) << self.below(28),
            _ => self.next(),
        }
    }

    /// A value of type `ty`; halves have random bits in the other half.
    pub(crate) fn value(&mut self, ty: Ty) -> u64 {
        match ty {
            Ty::F32 => self.f32().into(),
            Ty::F64 => self.f64(),
            Ty::F16 | Ty::P16 => (self.f16() | self.f16() << 16).into(),
            Ty::BF16 => (self.f32() >> 16 | self.f32() & 0xFFFF_0000).into(),
            Ty::MIX => if self.one_in(2) { self.f32() } else { self.f16() | self.f16() << 16 }.into(),
            Ty::U16 | Ty::I16 | Ty::B16 => (self.int() & 0xFFFF | self.int() << 16).into(),
            Ty::B64 | Ty::U64 | Ty::I64 => match self.below(4) {
                0 => self.next64(),
                1 => self.int() as i32 as i64 as u64,
                2 => u64::from(self.int()),
                _ => u64::from(self.int()) | u64::from(self.int()) << 32,
            },
            _ => self.int().into(),
        }
    }

    /// A dword of any kind.
    pub(crate) fn dword(&mut self) -> u32 {
        match self.below(3) {
            0 => self.f32(),
            1 => self.int(),
            _ => self.next(),
        }
    }
}
