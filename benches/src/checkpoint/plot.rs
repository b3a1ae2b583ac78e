// SPDX-License-Identifier: MIT OR Apache-2.0
//! A picture of how long a process stands still, and for what: one bar a case, one colour a phase.

use std::path::{Path, PathBuf};

use anyhow::Result;
use stasis_plot::{Canvas, Colour, INK};

/// The phases in their order, and their colours.
const PHASES: [(&str, Colour); 6] = [
    ("LOCK", [120, 120, 120]),
    ("WRITE", [31, 119, 180]),
    ("CLOSE", [174, 199, 232]),
    ("OPEN", [255, 187, 120]),
    ("REBUILD", [214, 39, 40]),
    ("FILL", [44, 160, 44]),
];
/// Pixels of a dot of a letter.
const DOT: u32 = 2;
const ROW: u32 = 26;
const MARGIN: u32 = 12;
const BARS: u32 = 560;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What was frozen and thawed.
    pub case: String,
    /// Milliseconds of each phase of [`PHASES`].
    pub phases: [f64; 6],
}

/// Where pictures are put: `out` in the repository, which git ignores.
pub fn place() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../out")).join("checkpoint-phases.png")
}

/// Draws the bars, all on one scale.
fn draw(bars: &[Bar]) -> Canvas {
    let rows = u32::try_from(bars.len()).unwrap_or(0) + 2;
    let measure = Canvas::new(0, 0, DOT);
    let names = bars.iter().map(|bar| measure.text_width(&bar.case)).max().unwrap_or(0) + MARGIN;
    let most = bars.iter().map(|bar| bar.phases.iter().sum::<f64>()).fold(1.0, f64::max);
    let width = names + BARS + 3 * MARGIN + measure.text_width("00000 MS");
    let mut on = Canvas::new(width, rows * ROW + 2 * MARGIN, DOT);
    on.text((MARGIN, MARGIN), "HOW LONG A PROCESS STANDS STILL, BY PHASE", INK);
    let mut x = MARGIN;
    for (name, colour) in PHASES {
        on.rectangle((x, MARGIN + ROW), (ROW / 2, ROW / 2), colour);
        on.text((x + ROW / 2 + 2 * DOT, MARGIN + ROW), name, INK);
        x += ROW / 2 + on.text_width(name) + 2 * MARGIN;
    }
    for (n, bar) in (2u32..).zip(bars) {
        let y = MARGIN + n * ROW;
        on.text((MARGIN, y + 2 * DOT), &bar.case, INK);
        let mut until = 0.0;
        let place = |ms: f64| (ms / most * f64::from(BARS)).round() as u32;
        for (ms, (_, colour)) in bar.phases.iter().zip(PHASES) {
            let start = place(until);
            until += ms;
            on.rectangle((MARGIN + names + start, y), (place(until) - start, ROW - 8), colour);
        }
        let end = MARGIN + names + place(until) + MARGIN / 2;
        on.text((end, y + 2 * DOT), &format!("{until:.0} ms"), INK);
    }
    on
}

/// Writes the picture.
pub fn save(bars: &[Bar], path: &Path) -> Result<()> {
    Ok(draw(bars).save(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_bar_fills_the_width_and_phases_follow_each_other() {
        let bar = |ms| Bar { case: "x".into(), phases: [0.0, ms, 0.0, 0.0, 0.0, ms] };
        let picture = draw(&[bar(10.0), bar(5.0)]);
        let count = |row: u32, colour| {
            let y = MARGIN + row * ROW + 1;
            (0..picture.width()).filter(|x| picture.at(*x, y) == colour).count()
        };
        let (write, fill) = (PHASES[1].1, PHASES[5].1);
        assert_eq!((count(2, write), count(2, fill)), (280, 280));
        assert_eq!((count(3, write), count(3, fill)), (140, 140));
    }
}
