// SPDX-License-Identifier: MIT OR Apache-2.0
//! Phases as bars: what a person wants to see of a list of times.

use std::fmt::Write;

/// Columns of the longest bar.
const WIDTH: f64 = 40.0;

/// One line a phase: its name, its milliseconds, and a bar in proportion to the longest.
pub fn bars(phases: &[(&str, f64)]) -> String {
    let longest = phases.iter().map(|(_, ms)| *ms).fold(f64::MIN_POSITIVE, f64::max);
    let names = phases.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    phases.iter().fold(String::new(), |mut text, (name, ms)| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and WIDTH")]
        let columns = (ms.max(0.0) / longest * WIDTH).round() as usize;
        let _ = writeln!(text, "  {name:names$}  {ms:9.2} ms  {}", "█".repeat(columns));
        text
    })
}

#[cfg(test)]
mod tests {
    use super::bars;

    #[test]
    fn longest_phase_has_the_longest_bar_and_none_breaks_it() {
        let text = bars(&[("a", 10.0), ("bcd", 5.0), ("e", 0.0)]);
        let bar = |n: usize| text.lines().nth(n).map_or(0, |line| line.matches('█').count());
        assert_eq!([bar(0), bar(1), bar(2)], [40, 20, 0]);
        assert_eq!(bars(&[]), "");
        assert!(bars(&[("x", 0.0)]).contains("0.00 ms"));
    }
}
