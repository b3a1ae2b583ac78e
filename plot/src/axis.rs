// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a number is on an axis, and which numbers are written beside it.
//!
//! INVARIANT: a number within the range has a place between 0 and 1, another one or NaN has none; ticks are within the range.

/// How places follow numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In proportion.
    Linear,
    /// In proportion to the logarithm; numbers below the range's beginning have no place.
    Log,
}

/// One side of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    label: String,
    scale: Scale,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis in proportion to numbers. An empty or undefined range becomes one of length 1.
    #[must_use]
    pub fn linear(label: impl Into<String>, from: f64, to: f64) -> Self {
        let from = if from.is_finite() { from } else { 0.0 };
        let to = if to.is_finite() && to > from { to } else { from + 1.0 };
        Self { label: label.into(), scale: Scale::Linear, from, to }
    }

    /// An axis in proportion to logarithms, widened to whole powers of 10. What is not above 0 is taken for 1.
    #[must_use]
    pub fn log(label: impl Into<String>, from: f64, to: f64) -> Self {
        let power = |number: f64| if number.is_finite() && number > 0.0 { number.log10() } else { 0.0 };
        let from = power(from).floor();
        let to = power(to).ceil().max(from + 1.0);
        Self { label: label.into(), scale: Scale::Log, from: 10f64.powf(from), to: 10f64.powf(to) }
    }

    /// What it shows, with its unit.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Its place between 0, the beginning, and 1, the end.
    #[must_use]
    pub fn place(&self, number: f64) -> Option<f64> {
        if !(self.from..=self.to).contains(&number) {
            return None;
        }
        Some(match self.scale {
            Scale::Linear => (number - self.from) / (self.to - self.from),
            Scale::Log => (number / self.from).log10() / (self.to / self.from).log10(),
        })
    }

    /// The place of the nearest number within the range; 0 for NaN.
    #[must_use]
    pub fn clamped(&self, number: f64) -> f64 {
        self.place(number.max(self.from).min(self.to)).unwrap_or(0.0)
    }

    /// At most about `most` numbers that are round, ascending: multiples of 1, 2 or 5 and a power of 10, or the powers.
    #[must_use]
    pub fn ticks(&self, most: u32) -> Vec<f64> {
        match self.scale {
            Scale::Log => {
                // CAST: exponents of f64 are within a few hundreds.
                let (from, to) = (self.from.log10().round() as i32, self.to.log10().round() as i32);
                (from..=to).map(|power| 10f64.powi(power)).collect()
            }
            Scale::Linear => {
                let step = round_up((self.to - self.from) / f64::from(most.max(1)));
                let first = (self.from / step).ceil();
                let last = (self.to / step).floor();
                // CAST: there are few, by the choice of the step.
                (0..=(last - first) as u32).map(|n| (first + f64::from(n)) * step).collect()
            }
        }
    }
}

/// The next 1, 2 or 5 times a power of 10.
fn round_up(number: f64) -> f64 {
    let power = 10f64.powf(number.log10().floor());
    let fit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= number * (1.0 - 1e-9));
    fit.unwrap_or(10.0) * power
}

/// A tick's text: no more digits than it needs.
pub(crate) fn tick_text(number: f64) -> String {
    let digits = (0..6).find(|&digits| {
        let factor = 10f64.powi(digits);
        ((number * factor).round() / factor - number).abs() <= number.abs() * 1e-9
    });
    // CAST: below 6.
    format!("{number:.*}", digits.unwrap_or(6) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_places_are_in_proportion_and_end_with_the_range() {
        let axis = Axis::linear("s", -1.0, 3.0);

        assert_eq!((axis.place(-1.0), axis.place(0.0), axis.place(3.0)), (Some(0.0), Some(0.25), Some(1.0)));
        assert_eq!((axis.place(3.1), axis.place(f64::NAN)), (None, None));
        assert_eq!((axis.clamped(9.0), axis.clamped(-9.0)), (1.0, 0.0));
    }

    #[test]
    fn log_range_becomes_whole_powers_of_ten() {
        let axis = Axis::log("ms", 3.0, 1200.0);

        assert_eq!(axis.ticks(9), [1.0, 10.0, 100.0, 1000.0, 10000.0]);
        assert!((axis.place(100.0).unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(Axis::log("", 10.0, 10.0).ticks(9), [10.0, 100.0]);
        assert_eq!(Axis::log("", -4.0, f64::NAN).ticks(9), [1.0, 10.0]);
    }

    #[test]
    fn linear_ticks_are_round_and_within_the_range() {
        assert_eq!(Axis::linear("", 0.0, 12.0).ticks(8), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!(Axis::linear("", 0.3, 1.1).ticks(4).len(), 4);
        assert_eq!(Axis::linear("", -7.0, 7.0).ticks(3), [-5.0, 0.0, 5.0]);
        assert_eq!(Axis::linear("", f64::NAN, f64::INFINITY).ticks(2), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn tick_texts_have_the_digits_they_need() {
        assert_eq!([0.0, 2.0, 0.5, 0.25, 1000.0].map(tick_text), ["0", "2", "0.5", "0.25", "1000"]);
        assert_eq!(tick_text(3.0 * 0.1), "0.3");
    }
}
