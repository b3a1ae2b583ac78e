// SPDX-License-Identifier: MIT OR Apache-2.0
//! Floating point by definition: exact values as integers times powers of two, rounded once.

use std::cmp::Ordering;

/// A binary format: bits of fraction and of exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub fraction: u32,
    pub exponent: u32,
}

pub(crate) const F16: Format = Format { fraction: 10, exponent: 5 };
pub(crate) const F32: Format = Format { fraction: 23, exponent: 8 };
pub(crate) const F64: Format = Format { fraction: 52, exponent: 11 };

impl Format {
    fn bias(self) -> i64 {
        (1 << (self.exponent - 1)) - 1
    }
    pub(crate) fn sign(self) -> u64 {
        1 << (self.fraction + self.exponent)
    }
    pub(crate) fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }
    pub(crate) fn quiet(self) -> u64 {
        1 << (self.fraction - 1)
    }
    pub(crate) fn is_nan(self, x: u64) -> bool {
        x & (self.sign() - 1) > self.infinity()
    }
    pub(crate) fn is_infinite(self, x: u64) -> bool {
        x & (self.sign() - 1) == self.infinity()
    }
    pub(crate) fn is_zero(self, x: u64) -> bool {
        x & (self.sign() - 1) == 0
    }
    pub(crate) fn is_denormal(self, x: u64) -> bool {
        !self.is_zero(x) && x & self.infinity() == 0
    }
    /// The result of an invalid operation.
    pub(crate) fn default_nan(self) -> u64 {
        self.sign() | self.infinity() | self.quiet()
    }
    /// A denormal as a zero of its sign.
    pub(crate) fn flush(self, x: u64) -> u64 {
        if self.is_denormal(x) { x & self.sign() } else { x }
    }
}

/// Rounding (0 nearest even, 1 up, 2 down, 3 toward zero) and flushing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    pub round: u32,
    pub flush_in: bool,
    pub flush_out: bool,
}

/// To nearest, denormals kept.
pub(crate) const NEAREST: Mode = Mode { round: 0, flush_in: false, flush_out: false };

/// A non-negative integer of any size, least significant word first.
#[derive(Clone, Debug)]
struct Big(Vec<u32>);

impl Big {
    fn from(x: u128) -> Big {
        Big((0..4).map(|k| (x >> (32 * k)) as u32).collect())
    }
    fn shifted(&self, by: usize) -> Big {
        let mut words = vec![0; by / 32];
        let mut carry = 0u64;
        for &x in &self.0 {
            let x = u64::from(x) << (by % 32) | carry;
            words.push(x as u32);
            carry = x >> 32;
        }
        words.push(carry as u32);
        Big(words)
    }
    fn word(&self, k: usize) -> u32 {
        self.0.get(k).copied().unwrap_or(0)
    }
    fn plus(&self, other: &Big) -> Big {
        let mut carry = 0u64;
        let n = self.0.len().max(other.0.len()) + 1;
        Big((0..n)
            .map(|k| {
                let x = u64::from(self.word(k)) + u64::from(other.word(k)) + carry;
                carry = x >> 32;
                x as u32
            })
            .collect())
    }
    /// `self - other`, which must not be negative.
    fn minus(&self, other: &Big) -> Big {
        let mut borrow = 0i64;
        let n = self.0.len().max(other.0.len());
        Big((0..n)
            .map(|k| {
                let x = i64::from(self.word(k)) - i64::from(other.word(k)) + borrow;
                borrow = x >> 32;
                x as u32
            })
            .collect())
    }
    fn compare(&self, other: &Big) -> Ordering {
        let n = self.0.len().max(other.0.len());
        (0..n).rev().map(|k| self.word(k).cmp(&other.word(k))).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    }
    fn length(&self) -> usize {
        (0..self.0.len())
            .rev()
            .find(|&k| self.0[k] != 0)
            .map_or(0, |k| 32 * k + 32 - self.0[k].leading_zeros() as usize)
    }
    fn bit(&self, k: usize) -> bool {
        self.word(k / 32) >> (k % 32) & 1 != 0
    }
}

/// A finite value: sign, integer, power of two.
struct Exact {
    negative: bool,
    integer: Big,
    power: i64,
}

fn open(f: Format, x: u64) -> Exact {
    let field = (x & f.infinity()) >> f.fraction;
    let fraction = x & ((1 << f.fraction) - 1);
    let (integer, exponent) =
        if field == 0 { (fraction, 1) } else { (fraction | 1 << f.fraction, field as i64) };
    Exact {
        negative: x & f.sign() != 0,
        integer: Big::from(u128::from(integer)),
        power: exponent - f.bias() - i64::from(f.fraction),
    }
}

/// The value of `f` that `negative, integer * 2^power` (not zero) rounds to.
fn round(f: Format, negative: bool, integer: &Big, power: i64, mode: Mode) -> u64 {
    let sign = if negative { f.sign() } else { 0 };
    let away = match mode.round {
        1 => !negative,
        2 => negative,
        _ => false,
    };
    let overflow = if mode.round == 0 || away { f.infinity() } else { f.infinity() - 1 };
    let top = power + integer.length() as i64 - 1;
    if top > f.bias() {
        return sign | overflow;
    }
    // The weight of the last place.
    let last = top.max(1 - f.bias()) - i64::from(f.fraction);
    let drop = last - power;
    let mut kept = 0u64;
    for k in 0..64 {
        let from = k + drop;
        if from >= 0 && integer.bit(from as usize) {
            kept |= 1 << k;
        }
    }
    let half = drop > 0 && integer.bit(drop as usize - 1);
    let rest = drop > 1 && (0..drop as usize - 1).any(|k| integer.bit(k));
    let up = match mode.round {
        0 => half && (rest || kept & 1 != 0),
        _ => away && (half || rest),
    };
    let units = kept + u64::from(up);
    // Each step of the exponent field is worth 2^fraction units of the encoding.
    let field = (last + i64::from(f.fraction) + f.bias() - 1) as u64;
    let bits = (field << f.fraction) + units;
    if bits >= f.infinity() {
        return sign | overflow;
    }
    if mode.flush_out && bits >> f.fraction == 0 { sign } else { sign | bits }
}

/// The first NaN, quieted.
pub(crate) fn first_nan(f: Format, operands: &[u64]) -> Option<u64> {
    operands.iter().find(|&&x| f.is_nan(x)).map(|x| x | f.quiet())
}

/// `a * b + c`: exactly, or in `f` if it is a zero or not finite.
fn sum(f: Format, operands: [u64; 3], mode: Mode) -> Result<(bool, Big, i64), u64> {
    if let Some(nan) = first_nan(f, &operands) {
        return Err(nan);
    }
    let [a, b, c] = operands.map(|x| if mode.flush_in { f.flush(x) } else { x });
    let negative = (a ^ b) & f.sign();
    if f.is_infinite(a) || f.is_infinite(b) {
        let invalid = f.is_zero(a) || f.is_zero(b) || (f.is_infinite(c) && c & f.sign() != negative);
        return Err(if invalid { f.default_nan() } else { negative | f.infinity() });
    }
    if f.is_infinite(c) {
        return Err(c);
    }
    let (x, y, z) = (open(f, a), open(f, b), open(f, c));
    let product = {
        let word = |e: &Exact| u128::from(e.integer.word(0)) | u128::from(e.integer.word(1)) << 32;
        Big::from(word(&x) * word(&y))
    };
    let product_power = x.power + y.power;
    let power = product_power.min(z.power);
    let p = product.shifted((product_power - power) as usize);
    let q = z.integer.shifted((z.power - power) as usize);
    let product_negative = negative != 0;
    let (negative, sum) = if product_negative == z.negative {
        (z.negative, p.plus(&q))
    } else {
        match p.compare(&q) {
            Ordering::Greater => (product_negative, p.minus(&q)),
            Ordering::Less => (z.negative, q.minus(&p)),
            Ordering::Equal => {
                // An exact zero of two signs is +0, or -0 when rounding down.
                return Err(if mode.round == 2 { f.sign() } else { 0 });
            }
        }
    };
    if sum.length() == 0 {
        return Err(if negative { f.sign() } else { 0 });
    }
    Ok((negative, sum, power))
}

/// `(a * b + c) * 2^scale`, rounded once.
pub(crate) fn fma_scaled(f: Format, operands: [u64; 3], scale: i64, mode: Mode) -> u64 {
    match sum(f, operands, mode) {
        Ok((negative, integer, power)) => round(f, negative, &integer, power + scale, mode),
        Err(special) => special,
    }
}

/// `a * b + c` of operands in `f`, rounded once to `to`.
pub(crate) fn fma_into(f: Format, to: Format, operands: [u64; 3], mode: Mode) -> u64 {
    match sum(f, operands, mode) {
        Ok((negative, integer, power)) => round(to, negative, &integer, power, mode),
        Err(special) => convert(f, to, special, NEAREST),
    }
}

/// `a * b + c`.
pub(crate) fn fma(f: Format, a: u64, b: u64, c: u64, mode: Mode) -> u64 {
    fma_scaled(f, [a, b, c], 0, mode)
}

/// 1.0.
pub(crate) fn one(f: Format) -> u64 {
    (f.bias() as u64) << f.fraction
}

/// `a + b`.
pub(crate) fn add(f: Format, a: u64, b: u64, mode: Mode) -> u64 {
    first_nan(f, &[a, b]).unwrap_or_else(|| fma(f, a, one(f), b, mode))
}

/// `a - b`.
pub(crate) fn sub(f: Format, a: u64, b: u64, mode: Mode) -> u64 {
    first_nan(f, &[a, b]).unwrap_or_else(|| fma(f, a, one(f), b ^ f.sign(), mode))
}

/// `a * b`.
pub(crate) fn mul(f: Format, a: u64, b: u64, mode: Mode) -> u64 {
    // Adding a zero of the product's sign changes nothing.
    first_nan(f, &[a, b]).unwrap_or_else(|| fma(f, a, b, (a ^ b) & f.sign(), mode))
}

/// `x * 2^e`.
pub(crate) fn ldexp(f: Format, x: u64, e: i64, mode: Mode) -> u64 {
    fma_scaled(f, [x, one(f), x & f.sign()], e, mode)
}

/// `x` of `from` in `to`.
pub(crate) fn convert(from: Format, to: Format, x: u64, mode: Mode) -> u64 {
    let sign = if x & from.sign() != 0 { to.sign() } else { 0 };
    if from.is_nan(x) {
        let fraction = x & ((1 << from.fraction) - 1);
        let moved = if from.fraction > to.fraction {
            fraction >> (from.fraction - to.fraction)
        } else {
            fraction << (to.fraction - from.fraction)
        };
        return sign | to.infinity() | to.quiet() | moved;
    }
    let x = if mode.flush_in { from.flush(x) } else { x };
    if from.is_infinite(x) {
        return sign | to.infinity();
    }
    if from.is_zero(x) {
        return sign;
    }
    let e = open(from, x);
    round(to, e.negative, &e.integer, e.power, mode)
}

/// An integer in `to`.
pub(crate) fn from_integer(to: Format, x: i64, mode: Mode) -> u64 {
    if x == 0 {
        return 0;
    }
    round(to, x < 0, &Big::from(u128::from(x.unsigned_abs())), 0, mode)
}

/// `x * 2^power` (not zero) in `to`, to nearest.
pub(crate) fn from_fixed(to: Format, x: i128, power: i64) -> u64 {
    round(to, x < 0, &Big::from(x.unsigned_abs()), power, NEAREST)
}

/// The f16 as an f64.
pub(crate) fn wide16(x: u64) -> f64 {
    f64::from_bits(convert(F16, F64, x & 0xFFFF, NEAREST))
}

#[test]
fn exact_arithmetic_agrees_with_the_host_to_nearest() {
    let mut r = super::random::Random(5);
    for _ in 0..3000 {
        let [a, b, c] = [0; 3].map(|_| r.value(softgpu_isa::Ty::F64));
        let want = f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c));
        let got = fma(F64, a, b, c, NEAREST);
        assert!(got == want.to_bits() || (F64.is_nan(got) && want.is_nan()), "{a:x} {b:x} {c:x}: {got:x}");
        let narrow = convert(F64, F32, a, NEAREST);
        let want = f64::from_bits(a) as f32;
        assert!(narrow == u64::from(want.to_bits()) || (F32.is_nan(narrow) && want.is_nan()));
    }
}
