// SPDX-License-Identifier: MIT OR Apache-2.0
//! Software floating point: one fused multiply-add and one conversion for every format, rounding and denormal mode.
//!
//! INVARIANT: results are exact. The native handlers cover the default MODE; this module does all other MODEs, and
//! tests compare the two.

/// A binary floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    F16,
    F32,
    F64,
}

impl Format {
    const fn mantissa(self) -> u32 {
        match self {
            Format::F16 => 10,
            Format::F32 => 23,
            Format::F64 => 52,
        }
    }
    const fn exponent_max(self) -> i32 {
        match self {
            Format::F16 => 31,
            Format::F32 => 255,
            Format::F64 => 2047,
        }
    }
    const fn bias(self) -> i32 {
        self.exponent_max() >> 1
    }
    const fn sign_shift(self) -> u32 {
        match self {
            Format::F16 => 15,
            Format::F32 => 31,
            Format::F64 => 63,
        }
    }
    const fn infinity(self) -> u64 {
        (self.exponent_max() as u64) << self.mantissa()
    }
    /// 1.0.
    const fn one(self) -> u64 {
        (self.bias() as u64) << self.mantissa()
    }
    const fn quiet(self) -> u64 {
        1 << (self.mantissa() - 1)
    }
}

/// Rounding and flushing of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Env {
    /// 0 nearest even, 1 up, 2 down, 3 toward zero.
    pub round: u32,
    pub flush_in: bool,
    pub flush_out: bool,
}

impl Env {
    /// Keeps denormals, rounds to nearest even.
    #[cfg(test)]
    pub const DEFAULT: Env = Env { round: 0, flush_in: false, flush_out: false };

    /// The f32 fields of MODE.
    pub fn f32(mode: u32) -> Env {
        Env { round: mode & 3, flush_in: mode & 0x10 == 0, flush_out: mode & 0x20 == 0 }
    }
    /// The f16/f64 fields of MODE.
    pub fn f16_64(mode: u32) -> Env {
        Env { round: mode >> 2 & 3, flush_in: mode & 0x40 == 0, flush_out: mode & 0x80 == 0 }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Zero,
    Finite,
    Infinite,
    Nan,
}

/// A finite value is `mantissa * 2^exponent`, the mantissa's top bit being bit 60.
#[derive(Clone, Copy)]
struct Parts {
    class: Class,
    negative: bool,
    exponent: i32,
    mantissa: u64,
}

fn unpack(f: Format, x: u64, flush: bool) -> Parts {
    let negative = x >> f.sign_shift() & 1 != 0;
    let field = (x >> f.mantissa()) as i32 & f.exponent_max();
    let fraction = x & ((1 << f.mantissa()) - 1);
    let make = |class, exponent, mantissa| Parts { class, negative, exponent, mantissa };
    if field == f.exponent_max() {
        return make(if fraction == 0 { Class::Infinite } else { Class::Nan }, 0, 0);
    }
    if field == 0 && (fraction == 0 || flush) {
        return make(Class::Zero, 0, 0);
    }
    let (raw, base) = if field == 0 { (fraction, 1) } else { (fraction | 1 << f.mantissa(), field) };
    let up = raw.leading_zeros() as i32 - 3;
    make(Class::Finite, base - f.bias() - f.mantissa() as i32 - up, raw << up)
}

/// Rounds `mantissa * 2^exponent` (mantissa not 0) into `f`. Bit 0 of the mantissa may be sticky.
fn round_pack(f: Format, negative: bool, mantissa: u128, exponent: i32, env: Env) -> u64 {
    let sign = u64::from(negative) << f.sign_shift();
    let top = 127 - mantissa.leading_zeros() as i32;
    let e = exponent + top;
    let least = 1 - f.bias();
    let lsb = e.max(least) - f.mantissa() as i32;
    let shift = lsb - exponent;
    let (kept, rest, half) = if shift <= 0 {
        (mantissa << (-shift).min(127), 0, 1)
    } else if shift > 126 {
        (0, 1, 2)
    } else {
        (mantissa >> shift, mantissa & ((1 << shift) - 1), 1u128 << (shift - 1))
    };
    let up = match env.round {
        0 => rest > half || (rest == half && kept & 1 != 0),
        1 => rest != 0 && !negative,
        2 => rest != 0 && negative,
        _ => false,
    };
    let field = if e < least { 0 } else { (e + f.bias() - 1) as u64 };
    if e > f.bias() {
        return sign | overflow(f, negative, env);
    }
    let packed = (field << f.mantissa()) + kept as u64 + u64::from(up);
    if packed >= f.infinity() {
        return sign | overflow(f, negative, env);
    }
    if env.flush_out && packed >> f.mantissa() == 0 {
        return sign;
    }
    sign | packed
}

fn overflow(f: Format, negative: bool, env: Env) -> u64 {
    let to_infinity = match env.round {
        0 => true,
        1 => !negative,
        2 => negative,
        _ => false,
    };
    if to_infinity { f.infinity() } else { f.infinity() - 1 }
}

fn shift_right_sticky(x: u128, by: i32) -> u128 {
    if by >= 128 { u128::from(x != 0) } else { x >> by | u128::from(x & ((1 << by) - 1) != 0) }
}

/// `(a * b + c) * 2^scale` with one rounding.
pub(crate) fn fma(f: Format, a: u64, b: u64, c: u64, scale: i32, env: Env) -> u64 {
    let (x, y, z) = (unpack(f, a, env.flush_in), unpack(f, b, env.flush_in), unpack(f, c, env.flush_in));
    for (parts, bits) in [(x, a), (y, b), (z, c)] {
        if parts.class == Class::Nan {
            return bits | f.quiet();
        }
    }
    let negative = x.negative != y.negative;
    let sign = |n: bool| u64::from(n) << f.sign_shift();
    let default_nan = sign(true) | f.infinity() | f.quiet();
    if x.class == Class::Infinite || y.class == Class::Infinite {
        let invalid = x.class == Class::Zero
            || y.class == Class::Zero
            || (z.class == Class::Infinite && z.negative != negative);
        return if invalid { default_nan } else { sign(negative) | f.infinity() };
    }
    if z.class == Class::Infinite {
        return sign(z.negative) | f.infinity();
    }
    let product_zero = x.class == Class::Zero || y.class == Class::Zero;
    if product_zero && z.class == Class::Zero {
        return if negative == z.negative { sign(negative) } else { sign(env.round == 2) };
    }
    if product_zero {
        return round_pack(f, z.negative, u128::from(z.mantissa), z.exponent + scale, env);
    }
    let product = u128::from(x.mantissa) * u128::from(y.mantissa);
    let product_exponent = x.exponent + y.exponent;
    if z.class == Class::Zero {
        return round_pack(f, negative, product, product_exponent + scale, env);
    }
    let addend = u128::from(z.mantissa) << 61;
    let addend_exponent = z.exponent - 61;
    let apart = product_exponent - addend_exponent;
    let (p, q, exponent) = if apart >= 0 {
        (product, shift_right_sticky(addend, apart), product_exponent)
    } else {
        (shift_right_sticky(product, -apart), addend, addend_exponent)
    };
    let (sum_negative, sum) = if negative == z.negative {
        (negative, p + q)
    } else if p >= q {
        (negative, p - q)
    } else {
        (z.negative, q - p)
    };
    if sum == 0 {
        return sign(env.round == 2);
    }
    round_pack(f, sum_negative, sum, exponent + scale, env)
}

/// The first NaN of two operands, quieted.
fn first_nan(f: Format, a: u64, b: u64) -> Option<u64> {
    let is_nan = |x: u64| x & !(1 << f.sign_shift()) > f.infinity();
    [a, b].into_iter().find(|&x| is_nan(x)).map(|x| x | f.quiet())
}

/// `a + b` with one rounding.
pub(crate) fn add(f: Format, a: u64, b: u64, env: Env) -> u64 {
    first_nan(f, a, b).unwrap_or_else(|| fma(f, a, f.one(), b, 0, env))
}

/// `a - b` with one rounding.
pub(crate) fn sub(f: Format, a: u64, b: u64, env: Env) -> u64 {
    first_nan(f, a, b).unwrap_or_else(|| fma(f, a, f.one(), b ^ 1 << f.sign_shift(), 0, env))
}

/// `a * b` with one rounding: the addend is a zero of the product's sign, which changes no product.
pub(crate) fn mul(f: Format, a: u64, b: u64, env: Env) -> u64 {
    first_nan(f, a, b).unwrap_or_else(|| fma(f, a, b, (a ^ b) & 1 << f.sign_shift(), 0, env))
}

/// Converts between formats with one rounding.
pub(crate) fn convert(from: Format, to: Format, x: u64, flush_in: bool, env: Env) -> u64 {
    let p = unpack(from, x, flush_in);
    let sign = u64::from(p.negative) << to.sign_shift();
    match p.class {
        Class::Zero => sign,
        Class::Infinite => sign | to.infinity(),
        Class::Nan => {
            let fraction = x & ((1 << from.mantissa()) - 1);
            let (m, n) = (from.mantissa(), to.mantissa());
            let fraction = if m > n { fraction >> (m - n) } else { fraction << (n - m) };
            sign | to.infinity() | to.quiet() | fraction
        }
        Class::Finite => round_pack(to, p.negative, u128::from(p.mantissa), p.exponent, env),
    }
}

/// `x * 2^e` with one rounding.
pub(crate) fn ldexp(f: Format, x: u64, e: i32, env: Env) -> u64 {
    // Beyond this exponent every finite value has overflowed or become zero.
    let e = e.clamp(-4400, 4400);
    let zero = x & 1 << f.sign_shift();
    fma(f, x, f.one(), zero, e, env)
}

/// Converts an integer with one rounding.
pub(crate) fn from_integer(to: Format, value: i64, env: Env) -> u64 {
    if value == 0 {
        return 0;
    }
    round_pack(to, value < 0, u128::from(value.unsigned_abs()), 0, env)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same(f: Format, got: u64, want: u64) -> bool {
        let nan = |x: u64| x & f.infinity() == f.infinity() && x & (f.infinity() - 1) & !f.infinity() != 0;
        let nan = |x: u64| nan(x) || (x & !(1 << f.sign_shift())) > f.infinity();
        got == want || (nan(got) && nan(want))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn soft_fma_f32_equals_native(a: u32, b: u32, c: u32) {
            let native = f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)).to_bits();
            let soft = fma(Format::F32, a.into(), b.into(), c.into(), 0, Env::DEFAULT);
            prop_assert!(same(Format::F32, soft, native.into()), "{soft:x} {native:x}");
        }
        #[test]
        fn soft_fma_f32_near_cancellation_equals_native(a in 0x3f00_0000u32..0x4000_0000, b in 0x3f00_0000u32..0x4000_0000, d in -40i32..40) {
            let p = f32::from_bits(a) * f32::from_bits(b);
            let c = -f32::from_bits(p.to_bits().wrapping_add_signed(d));
            let native = f32::from_bits(a).mul_add(f32::from_bits(b), c).to_bits();
            let soft = fma(Format::F32, a.into(), b.into(), c.to_bits().into(), 0, Env::DEFAULT);
            prop_assert_eq!(soft, u64::from(native));
        }
        #[test]
        fn soft_fma_f64_equals_native(a: u64, b: u64, c: u64) {
            let native = f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits();
            let soft = fma(Format::F64, a, b, c, 0, Env::DEFAULT);
            prop_assert!(same(Format::F64, soft, native), "{soft:x} {native:x}");
        }
        #[test]
        fn soft_add_f64_equals_native(a: u64, e in -70i64..70, m: u32) {
            let b = a.wrapping_add_signed(e << 52) ^ u64::from(m) << 20;
            let native = (f64::from_bits(a) + f64::from_bits(b)).to_bits();
            let soft = fma(Format::F64, a, 1f64.to_bits(), b, 0, Env::DEFAULT);
            prop_assert!(same(Format::F64, soft, native), "{soft:x} {native:x}");
        }
        #[test]
        fn soft_narrowing_equals_native(a: u64) {
            let native = (f64::from_bits(a) as f32).to_bits();
            let soft = convert(Format::F64, Format::F32, a, false, Env::DEFAULT);
            prop_assert!(same(Format::F32, soft, native.into()));
        }
        #[test]
        fn soft_integer_equals_native(a: i64) {
            prop_assert_eq!(from_integer(Format::F32, a, Env::DEFAULT), u64::from((a as f32).to_bits()));
            prop_assert_eq!(from_integer(Format::F64, a, Env::DEFAULT), (a as f64).to_bits());
        }
    }

    #[test]
    fn directed_rounding_brackets_one_third() {
        let third = |round| {
            let env = Env { round, ..Env::DEFAULT };
            fma(Format::F32, f32::to_bits(1.0 / 3.0).into(), 0x3f80_0001, 0, 0, env) as u32
        };
        assert_eq!(third(1), third(3) + 1);
        assert_eq!(third(2), third(3));
    }
}
