// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel with its grid and arguments, and the judgement of what it left in its buffers.
//!
//! INVARIANT: a problem is plain data; engines work on copies, so the same problem can be run any number of times anywhere.

use std::fmt;

use bytemuck::{NoUninit, Zeroable};

use crate::arguments::Arguments;

/// How a buffer's end state is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Check {
    /// Bit by bit; inputs too.
    Exact,
    /// f16, f32 or f64 of `bytes` each, bit by bit except that any NaN is any other.
    Float {
        /// 2, 4 or 8.
        bytes: usize,
    },
    /// f16, f32 or f64 of `bytes` each, to within `relative` of the wanted value plus `absolute`.
    Near {
        /// 2, 4 or 8.
        bytes: usize,
        /// Share of the wanted value's magnitude.
        relative: f64,
        /// Added to it.
        absolute: f64,
    },
    /// u32 in any order.
    Unordered,
}

/// Memory of a problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// What it holds at the start.
    pub bytes: Vec<u8>,
    /// How its end is judged.
    pub check: Check,
}

/// One field of a kernel's argument block.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A pointer to memory.
    Buffer(Buffer),
    /// A number.
    U32(u32),
}

/// A kernel, its grid and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Name in the code object.
    pub kernel: &'static str,
    /// Work-items of the grid.
    pub grid: [u32; 3],
    /// Work-items of a workgroup.
    pub workgroup: [u16; 3],
    /// LDS that the launch adds to the kernel's own.
    pub dynamic_lds: u32,
    /// In the order of the kernel's argument block.
    pub arguments: Vec<Argument>,
}

/// Where two results differ.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// An element of a buffer.
    #[error(
        "{kernel}: buffer {buffer}, element {element}: expected {want}, found {got} ({differing} differ)"
    )]
    Element {
        /// The kernel.
        kernel: &'static str,
        /// Which buffer argument.
        buffer: usize,
        /// Index of the first differing element.
        element: usize,
        /// What was computed.
        got: Value,
        /// What should have been.
        want: Value,
        /// How many elements of the buffer differ.
        differing: usize,
    },
    /// Results of unlike shapes, which no run of this problem leaves.
    #[error("{kernel}: the results do not have the problem's buffers")]
    Shape {
        /// The kernel.
        kernel: &'static str,
    },
    /// All buffers are as they were.
    #[error("{kernel}: the reference changed no buffer, so nothing was compared")]
    Nothing {
        /// The kernel.
        kernel: &'static str,
    },
}

/// An element's bits, shown as what they stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The bits, zero-extended.
    pub bits: u64,
    /// Size of the element in bytes.
    pub bytes: usize,
    /// Whether it is floating point.
    pub float: bool,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#0width$x}", self.bits, width = 2 * self.bytes + 2)?;
        if self.float { write!(f, " = {:e}", to_f64(self.bits, self.bytes)) } else { Ok(()) }
    }
}

impl Problem {
    /// A one-dimensional problem without arguments yet: `items` work-items in groups of `workgroup`.
    pub fn line(kernel: &'static str, items: u32, workgroup: u16) -> Problem {
        Problem::grid(kernel, [items, 1, 1], [workgroup, 1, 1])
    }

    /// A problem without arguments yet.
    pub fn grid(kernel: &'static str, grid: [u32; 3], workgroup: [u16; 3]) -> Problem {
        Problem { kernel, grid, workgroup, dynamic_lds: 0, arguments: Vec::new() }
    }

    /// With `bytes` of LDS beside the kernel's own.
    pub fn dynamic_lds(mut self, bytes: u32) -> Problem {
        self.dynamic_lds = bytes;
        self
    }

    /// Adds a buffer that is compared bit by bit.
    pub fn with<T: NoUninit>(self, values: &[T]) -> Problem {
        self.checked(values, Check::Exact)
    }

    /// Adds a buffer that is judged by `check`.
    pub fn checked<T: NoUninit>(mut self, values: &[T], check: Check) -> Problem {
        let bytes = bytemuck::cast_slice(values).to_vec();
        self.arguments.push(Argument::Buffer(Buffer { bytes, check }));
        self
    }

    /// Adds a buffer of `count` zeroes of type `T`.
    pub fn zeroes<T: NoUninit + Zeroable>(self, count: usize, check: Check) -> Problem {
        self.checked(&vec![T::zeroed(); count], check)
    }

    /// Adds a number.
    pub fn number(mut self, value: u32) -> Problem {
        self.arguments.push(Argument::U32(value));
        self
    }

    /// The argument block as C lays the structure out, with the buffers at `addresses`, padded to 8 bytes.
    pub fn argument_block(&self, addresses: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let mut addresses = addresses.into_iter();
        let arguments = self.arguments.iter().fold(Arguments::new(), |block, argument| match argument {
            Argument::Buffer(_) => block.u64(addresses.next().unwrap_or(0)),
            Argument::U32(value) => block.u32(*value),
        });
        arguments.padded()
    }

    /// The buffers among the arguments.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Buffer(buffer) => Some(buffer),
            Argument::U32(_) => None,
        })
    }

    /// Judges `got` by `want`, both what [`crate::Engine::run`] returned.
    ///
    /// # Errors
    /// [`Mismatch`] at the first element that differs by more than its check allows, or if `want` shows no work.
    pub fn compare(&self, got: &[Vec<u8>], want: &[Vec<u8>]) -> Result<(), Mismatch> {
        let kernel = self.kernel;
        let mut changed = false;
        let buffers: Vec<&Buffer> = self.buffers().collect();
        let shape = |list: &[Vec<u8>]| list.iter().map(Vec::len).eq(buffers.iter().map(|b| b.bytes.len()));
        if !shape(got) || !shape(want) {
            return Err(Mismatch::Shape { kernel });
        }
        for (k, ((buffer, got), want)) in buffers.iter().zip(got).zip(want).enumerate() {
            changed |= *want != buffer.bytes;
            compare_buffer(kernel, k, buffer.check, got, want)?;
        }
        if changed { Ok(()) } else { Err(Mismatch::Nothing { kernel }) }
    }
}

fn compare_buffer(
    kernel: &'static str,
    buffer: usize,
    check: Check,
    got: &[u8],
    want: &[u8],
) -> Result<(), Mismatch> {
    let (bytes, float) = match check {
        Check::Exact | Check::Unordered => (4, false),
        Check::Float { bytes } | Check::Near { bytes, .. } => (bytes, true),
    };
    let (mut got, mut want) = (elements(got, bytes), elements(want, bytes));
    if check == Check::Unordered {
        got.sort_unstable();
        want.sort_unstable();
    }
    let differs = |&k: &usize| !agrees(check, got[k], want[k]);
    let value = |bits| Value { bits, bytes, float };
    match (0..want.len()).find(differs) {
        None => Ok(()),
        Some(element) => Err(Mismatch::Element {
            kernel,
            buffer,
            element,
            got: value(got[element]),
            want: value(want[element]),
            differing: (0..want.len()).filter(differs).count(),
        }),
    }
}

fn agrees(check: Check, got: u64, want: u64) -> bool {
    if got == want {
        return true;
    }
    match check {
        Check::Exact | Check::Unordered => false,
        Check::Float { bytes } => to_f64(got, bytes).is_nan() && to_f64(want, bytes).is_nan(),
        Check::Near { bytes, relative, absolute } => {
            let (got, want) = (to_f64(got, bytes), to_f64(want, bytes));
            // Infinities agree with themselves only, which the bits have shown.
            (got.is_nan() && want.is_nan())
                || (got.is_finite() && (got - want).abs() <= relative * want.abs() + absolute)
        }
    }
}

/// Little-endian elements; a shorter last one is zero-extended.
fn elements(bytes: &[u8], size: usize) -> Vec<u64> {
    bytes.chunks(size).map(|c| c.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))).collect()
}

/// The value of float bits of 2, 4 or 8 bytes.
fn to_f64(bits: u64, bytes: usize) -> f64 {
    match bytes {
        // CAST: the element has 16 bits, or 32.
        2 => half_to_f64(bits as u16),
        4 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

/// The value of IEEE binary16 bits.
fn half_to_f64(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3FF) / 1024.0);
    let magnitude = match exponent {
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        0 => fraction * 2f64.powi(-14),
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    };
    if bits >> 15 != 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<Vec<u8>> {
        vec![values.iter().flat_map(|v| v.to_le_bytes()).collect()]
    }

    fn problem(check: Check) -> Problem {
        Problem::line("k", 1, 1).zeroes::<f32>(3, check)
    }

    #[test]
    fn exact_names_the_first_difference() {
        let found = problem(Check::Exact).compare(&bytes(&[1.0, 2.0, 5.0]), &bytes(&[1.0, 3.0, 4.0]));
        let Err(Mismatch::Element { element, differing, .. }) = found else { panic!("{found:?}") };
        assert_eq!((element, differing), (1, 2));
    }

    #[test]
    fn near_allows_the_tolerance_and_no_more() {
        let p = problem(Check::Near { bytes: 4, relative: 0.01, absolute: 0.0 });
        assert_eq!(p.compare(&bytes(&[1.0, 2.015, -4.0]), &bytes(&[1.0, 2.0, -4.03])), Ok(()));
        assert!(p.compare(&bytes(&[1.0, 2.03, 4.0]), &bytes(&[1.0, 2.0, 4.0])).is_err());
        assert!(p.compare(&bytes(&[f32::NAN, 2.0, 4.0]), &bytes(&[1.0, 2.0, 4.0])).is_err());
        assert!(p.compare(&bytes(&[f32::INFINITY, 0.0, 0.0]), &bytes(&[1e38, 0.0, 0.0])).is_err());
    }

    #[test]
    fn float_tells_zeroes_apart_but_not_nans() {
        let p = problem(Check::Float { bytes: 4 });
        let other_nan = f32::from_bits(0xFFC0_0001);
        assert_eq!(p.compare(&bytes(&[other_nan, 1.0, 0.0]), &bytes(&[f32::NAN, 1.0, 0.0])), Ok(()));
        assert!(p.compare(&bytes(&[1.0, 1.0, -0.0]), &bytes(&[1.0, 1.0, 0.0])).is_err());
    }

    #[test]
    fn unordered_compares_the_multiset() {
        let p = problem(Check::Unordered);
        assert_eq!(p.compare(&bytes(&[1.0, 2.0, 2.0]), &bytes(&[2.0, 1.0, 2.0])), Ok(()));
        assert!(p.compare(&bytes(&[1.0, 1.0, 2.0]), &bytes(&[2.0, 1.0, 2.0])).is_err());
    }

    #[test]
    fn a_reference_that_did_nothing_is_refused() {
        let untouched = bytes(&[0.0; 3]);
        assert_eq!(
            problem(Check::Exact).compare(&untouched, &untouched),
            Err(Mismatch::Nothing { kernel: "k" })
        );
    }

    #[test]
    fn halves_are_read_as_ieee() {
        let cases = [
            (0x3C00, 1.0),
            (0xC000, -2.0),
            (0x7BFF, 65504.0),
            (0x0001, 2f64.powi(-24)),
            (0x7C00, f64::INFINITY),
        ];
        for (bits, value) in cases {
            assert_eq!(half_to_f64(bits), value);
        }
        assert!(half_to_f64(0x7E00).is_nan());
    }

    #[test]
    fn arguments_lie_at_their_natural_alignment() {
        let p = Problem::line("k", 1, 1).number(7).with(&[1u8]).number(9);
        let want: Vec<u8> = [7u64, 0x1122, 9].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(p.argument_block([0x1122]), want);
    }
}
