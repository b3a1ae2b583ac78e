// SPDX-License-Identifier: MIT OR Apache-2.0
//! A picture of how long a process stands still, and for what: one bar a case, one colour a phase.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use image::{Rgb, RgbImage};

/// The phases in their order, and their colours.
const PHASES: [(&str, [u8; 3]); 6] = [
    ("LOCK", [120, 120, 120]),
    ("WRITE", [31, 119, 180]),
    ("CLOSE", [174, 199, 232]),
    ("OPEN", [255, 187, 120]),
    ("REBUILD", [214, 39, 40]),
    ("FILL", [44, 160, 44]),
];
const INK: [u8; 3] = [20, 20, 20];
const PAPER: [u8; 3] = [255, 255, 255];
/// Pixels of a dot of a letter, which is three dots wide and five high.
const DOT: u32 = 2;
const LETTER: u32 = 4 * DOT;
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

/// Three bits a row, the leftmost dot the highest.
fn letter(of: char) -> [u8; 5] {
    match of.to_ascii_uppercase() {
        'A' => [2, 5, 7, 5, 5],
        'B' => [6, 5, 6, 5, 6],
        'C' => [3, 4, 4, 4, 3],
        'D' => [6, 5, 5, 5, 6],
        'E' => [7, 4, 6, 4, 7],
        'F' => [7, 4, 6, 4, 4],
        'G' => [3, 4, 5, 5, 3],
        'H' => [5, 5, 7, 5, 5],
        'I' => [7, 2, 2, 2, 7],
        'J' => [1, 1, 1, 5, 2],
        'K' => [5, 5, 6, 5, 5],
        'L' => [4, 4, 4, 4, 7],
        'M' => [5, 7, 7, 5, 5],
        'N' => [6, 5, 5, 5, 5],
        'O' => [2, 5, 5, 5, 2],
        'P' => [6, 5, 6, 4, 4],
        'Q' => [2, 5, 5, 6, 3],
        'R' => [6, 5, 6, 5, 5],
        'S' => [3, 4, 2, 1, 6],
        'T' => [7, 2, 2, 2, 2],
        'U' => [5, 5, 5, 5, 7],
        'V' => [5, 5, 5, 5, 2],
        'W' => [5, 5, 7, 7, 5],
        'X' => [5, 5, 2, 5, 5],
        'Y' => [5, 5, 2, 2, 2],
        'Z' => [7, 1, 2, 4, 7],
        '0' => [7, 5, 5, 5, 7],
        '1' => [2, 6, 2, 2, 7],
        '2' => [6, 1, 2, 4, 7],
        '3' => [6, 1, 2, 1, 6],
        '4' => [5, 5, 7, 1, 1],
        '5' => [7, 4, 6, 1, 6],
        '6' => [3, 4, 6, 5, 2],
        '7' => [7, 1, 2, 2, 2],
        '8' => [2, 5, 2, 5, 2],
        '9' => [2, 5, 3, 1, 6],
        '.' => [0, 0, 0, 0, 2],
        ',' => [0, 0, 0, 2, 4],
        '-' => [0, 0, 7, 0, 0],
        _ => [0; 5],
    }
}

fn rectangle(on: &mut RgbImage, at: (u32, u32), size: (u32, u32), colour: [u8; 3]) {
    for y in at.1..(at.1 + size.1).min(on.height()) {
        for x in at.0..(at.0 + size.0).min(on.width()) {
            on.put_pixel(x, y, Rgb(colour));
        }
    }
}

fn write(on: &mut RgbImage, at: (u32, u32), text: &str) {
    for (n, of) in (0u32..).zip(text.chars()) {
        for (y, row) in (0u32..).zip(letter(of)) {
            for x in (0..3).filter(|x| row & 4 >> x != 0) {
                rectangle(on, (at.0 + n * LETTER + x * DOT, at.1 + y * DOT), (DOT, DOT), INK);
            }
        }
    }
}

fn width_of(text: &str) -> u32 {
    LETTER * u32::try_from(text.chars().count()).unwrap_or(0)
}

/// Draws the bars, all on one scale.
fn draw(bars: &[Bar]) -> RgbImage {
    let rows = u32::try_from(bars.len()).unwrap_or(0) + 2;
    let names = bars.iter().map(|bar| width_of(&bar.case)).max().unwrap_or(0) + MARGIN;
    let most = bars.iter().map(|bar| bar.phases.iter().sum::<f64>()).fold(1.0, f64::max);
    let size = (names + BARS + 3 * MARGIN + width_of("00000 MS"), rows * ROW + 2 * MARGIN);
    let mut on = RgbImage::from_pixel(size.0, size.1, Rgb(PAPER));
    write(&mut on, (MARGIN, MARGIN), "HOW LONG A PROCESS STANDS STILL, BY PHASE");
    let mut x = MARGIN;
    for (name, colour) in PHASES {
        rectangle(&mut on, (x, MARGIN + ROW), (ROW / 2, ROW / 2), colour);
        write(&mut on, (x + ROW / 2 + 2 * DOT, MARGIN + ROW), name);
        x += ROW / 2 + width_of(name) + 2 * MARGIN;
    }
    for (n, bar) in (2u32..).zip(bars) {
        let y = MARGIN + n * ROW;
        write(&mut on, (MARGIN, y + 2 * DOT), &bar.case);
        let mut until = 0.0;
        let place = |ms: f64| (ms / most * f64::from(BARS)).round() as u32;
        for (ms, (_, colour)) in bar.phases.iter().zip(PHASES) {
            let start = place(until);
            until += ms;
            rectangle(&mut on, (MARGIN + names + start, y), (place(until) - start, ROW - 8), colour);
        }
        write(&mut on, (MARGIN + names + place(until) + MARGIN / 2, y + 2 * DOT), &format!("{until:.0} ms"));
    }
    on
}

/// Writes the picture.
pub fn save(bars: &[Bar], path: &Path) -> Result<()> {
    let act = || format!("Cannot write {}", path.display());
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(act)?;
    }
    draw(bars).save(path).with_context(act)
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
            (0..picture.width()).filter(|x| picture.get_pixel(*x, y).0 == colour).count()
        };
        let (write, fill) = (PHASES[1].1, PHASES[5].1);
        assert_eq!((count(2, write), count(2, fill)), (280, 280));
        assert_eq!((count(3, write), count(3, fill)), (140, 140));
    }
}
