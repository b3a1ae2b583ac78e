// SPDX-License-Identifier: MIT OR Apache-2.0
//! One side of a figure: its label, its range, and which numbers are written beside it.
//!
//! INVARIANT: an axis's range is finite, ascending and neither so short nor so far from 0 that plotters' search for ticks
//! would not end.

use std::ops::Range;

use plotters::coord::ranged1d::{BoldPoints, KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{IntoLogRange, LogCoord};

/// The greatest distance of a number of a linear axis from 0.
const LARGEST: f64 = 1e15;
/// The shortest linear axis, in proportion to its number farthest from 0, and absolutely.
const SHORTEST: f64 = 1e-9;
/// The powers of 10 between which a logarithmic axis is.
const POWERS: Range<f64> = -12.0..15.0;

/// How places follow numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// In proportion.
    Linear,
    /// In proportion to the logarithm.
    Log,
}

/// One side of a figure.
#[derive(Clone, Debug)]
pub struct Axis {
    label: String,
    scale: Scale,
    range: Range<f64>,
}

impl Axis {
    /// An axis in proportion to numbers. A number beyond 10^15 is taken for 10^15. An empty or undefined range becomes one
    /// of length 1, or of a length that is seen beside its numbers.
    #[must_use]
    pub fn linear(label: impl Into<String>, from: f64, to: f64) -> Self {
        let from = if from.is_nan() { 0.0 } else { from.clamp(-LARGEST, LARGEST) };
        let shortest = SHORTEST.max(from.abs() * SHORTEST);
        let to = if to.is_nan() { from } else { to.clamp(-LARGEST, LARGEST) };
        let to = if to - from < shortest { from + shortest.max(1.0) } else { to };
        Self { label: label.into(), scale: Scale::Linear, range: from..to }
    }

    /// An axis in proportion to logarithms, widened to whole powers of 10. What is not above 0 is taken for 1.
    #[must_use]
    pub fn log(label: impl Into<String>, from: f64, to: f64) -> Self {
        let power = |number: f64| {
            let power = if number.is_finite() && number > 0.0 { number.log10() } else { 0.0 };
            power.clamp(POWERS.start, POWERS.end)
        };
        let from = power(from).floor();
        let to = power(to).ceil().max(from + 1.0);
        Self { label: label.into(), scale: Scale::Log, range: 10f64.powf(from)..10f64.powf(to) }
    }

    /// What it shows, with its unit.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The first and the last number.
    #[must_use]
    pub fn range(&self) -> Range<f64> {
        self.range.clone()
    }

    /// Whether a number is within the range; NaN is not.
    pub(crate) fn holds(&self, number: f64) -> bool {
        (self.range.start..=self.range.end).contains(&number)
    }

    /// The nearest number within the range; the first one for NaN.
    pub(crate) fn nearest(&self, number: f64) -> f64 {
        number.max(self.range.start).min(self.range.end)
    }

    /// The range as plotters has it.
    pub(crate) fn coordinate(&self) -> Coordinate {
        let Range { start, end } = self.range;
        match self.scale {
            Scale::Linear => Coordinate::Linear((start..end).into()),
            Scale::Log => {
                // Logarithms and products of tens are not exact: both ends are within the range all the same.
                Coordinate::Log((start * (1.0 - 1e-9)..end * (1.0 + 1e-9)).log_scale().into())
            }
        }
    }
}

/// Places of numbers, of either scale, or of rows.
pub(crate) enum Coordinate {
    Linear(RangedCoordf64),
    Log(LogCoord<f64>),
    /// Rows of height 1, counted from above, named in their middles.
    Rows(u32),
}

impl Coordinate {
    fn rows(count: u32) -> RangedCoordf64 {
        (f64::from(count)..0.0).into()
    }
}

impl Ranged for Coordinate {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self {
            Self::Linear(linear) => linear.map(value, limit),
            Self::Log(log) => log.map(value, limit),
            Self::Rows(count) => Self::rows(*count).map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self {
            Self::Linear(linear) => linear.key_points(hint),
            Self::Log(log) => {
                let Range { start, end } = log.range();
                // With no more points than these powers of 10, plotters divides none of them.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between 1 and 27"
                )]
                let powers = (end / start).log10().floor().max(1.0) as usize;
                log.key_points(BoldPoints(hint.max_num_points().min(powers)))
            }
            Self::Rows(count) => (0..*count).map(|row| f64::from(row) + 0.5).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        match self {
            Self::Linear(linear) => linear.range(),
            Self::Log(log) => log.range(),
            Self::Rows(count) => Self::rows(*count).range(),
        }
    }
}

impl ValueFormatter<f64> for Coordinate {
    fn format(value: &f64) -> String {
        tick_text(*value)
    }
}

/// A tick's text: no more digits than it needs, and a power of 10 where it would need many.
pub(crate) fn tick_text(number: f64) -> String {
    if number != 0.0 && !(1e-4..1e7).contains(&number.abs()) {
        // Rounded, since a tick is a sum of steps or a product of tens.
        return format!("{:e}", format!("{number:.6e}").parse().unwrap_or(number));
    }
    let digits = (0..6).find(|&digits: &u8| {
        let factor = 10f64.powi(digits.into());
        ((number * factor).round() / factor - number).abs() <= number.abs() * 1e-9
    });
    format!("{number:.*}", usize::from(digits.unwrap_or(6)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis, most: usize) -> Vec<f64> {
        axis.coordinate().key_points(BoldPoints(most))
    }

    #[test]
    fn linear_places_are_in_proportion_and_end_with_the_range() {
        let axis = Axis::linear("s", -1.0, 3.0);
        let place = |number| axis.coordinate().map(&number, (0, 400));

        assert_eq!((place(-1.0), place(0.0), place(3.0)), (0, 100, 400));
        assert!(axis.holds(3.0) && !axis.holds(3.1) && !axis.holds(f64::NAN));
        assert_eq!((axis.nearest(9.0), axis.nearest(-9.0), axis.nearest(f64::NAN)), (3.0, -1.0, -1.0));
    }

    #[test]
    fn log_range_becomes_whole_powers_of_ten() {
        let texts = |axis: Axis| ticks(&axis, 12).into_iter().map(tick_text).collect::<Vec<_>>();
        let axis = Axis::log("ms", 3.0, 1200.0);

        assert_eq!(axis.coordinate().map(&100.0, (0, 400)), 200);
        assert_eq!(texts(axis), ["1", "10", "100", "1000", "10000"]);
        assert_eq!(texts(Axis::log("", 10.0, 10.0)), ["10", "100"]);
        assert_eq!(texts(Axis::log("", 0.002, 0.5)), ["0.001", "0.01", "0.1", "1"]);
        assert_eq!(texts(Axis::log("", -4.0, f64::NAN)), ["1", "10"]);
    }

    #[test]
    fn linear_ticks_are_round_and_within_the_range() {
        assert_eq!(ticks(&Axis::linear("", 0.0, 12.0), 8), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!(ticks(&Axis::linear("", -7.0, 7.0), 3), [-5.0, 0.0, 5.0]);
        assert_eq!(ticks(&Axis::linear("", f64::NAN, f64::NAN), 3), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn every_range_has_few_ticks_and_all_of_them_within() {
        let numbers =
            [f64::NAN, f64::NEG_INFINITY, f64::MIN, -1e15, -1.0, -1e-300, 0.0, 1e-300, 1e-15, 1e-8, 0.3];
        let more = [1.0 + 1e-12, 7.0, 1e6 + 1e-5, 1e15, 1e15 + 1.0, 1e308, f64::MAX, f64::INFINITY];
        let numbers: Vec<f64> = numbers.into_iter().chain(more).collect();
        for (from, to) in numbers.iter().flat_map(|&from| numbers.iter().map(move |&to| (from, to))) {
            for axis in [Axis::linear("", from, to), Axis::log("", from, to)] {
                let Range { start, end } = axis.range();
                assert!(start.is_finite() && end.is_finite() && start < end, "{from} {to} {axis:?}");
                let ticks = ticks(&axis, 12);
                assert!((1..=28).contains(&ticks.len()), "{from} {to} {axis:?} {ticks:?}");
                let slack = (end - start) * 1e-6;
                assert!(
                    ticks.iter().all(|&tick| start - slack <= tick && tick <= end + slack),
                    "{axis:?} {ticks:?}"
                );
            }
        }
    }

    #[test]
    fn tick_texts_have_the_digits_they_need() {
        assert_eq!([0.0, 2.0, 0.5, 0.25, 1000.0].map(tick_text), ["0", "2", "0.5", "0.25", "1000"]);
        assert_eq!(
            [3.0 * 0.1, -2.5, 1e7, -2e15, 1e-9].map(tick_text),
            ["0.3", "-2.5", "1e7", "-2e15", "1e-9"]
        );
    }
}
