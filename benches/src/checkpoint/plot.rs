// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures of how long a process stands still: for what, one bar a case and one colour a phase; and with how much memory.

use std::path::{Path, PathBuf};

use anyhow::Result;
use stasis_plot::{Axis, Bar, Bars, Chart, Colour, Figure, Mark, Series, Size};

use crate::figure::OUT;

/// The phases in their order, and their colours.
const PHASES: [(&str, Colour); 6] = [
    ("lock", [120, 120, 120]),
    ("write", [31, 119, 180]),
    ("close", [174, 199, 232]),
    ("open", [255, 187, 120]),
    ("rebuild", [214, 39, 40]),
    ("fill", [44, 160, 44]),
];
/// The bars, whose lengths are milliseconds of each of [`PHASES`].
fn figure(bars: Vec<Bar>) -> Bars {
    Bars {
        title: "How long a process stands still, by phase".to_owned(),
        label: "time (ms)".to_owned(),
        unit: "ms".to_owned(),
        parts: PHASES.map(|(name, colour)| (name.to_owned(), colour)).to_vec(),
        bars,
    }
}

/// Draws the bars as PNG and as SVG, and returns where.
pub fn save(bars: Vec<Bar>) -> Result<[PathBuf; 2]> {
    let bars = figure(bars);
    let size = bars.size();
    draw("checkpoint-phases", &Figure::from(bars), size)
}

fn draw(name: &str, figure: &Figure, size: Size) -> Result<[PathBuf; 2]> {
    let paths = ["png", "svg"].map(|ending| Path::new(OUT).join(name).with_extension(ending));
    for path in &paths {
        figure.save(path, size)?;
    }
    Ok(paths)
}

/// Lines, each with points of bytes and milliseconds, by their names.
type Lines = [(String, Vec<(u64, f64)>)];

const LINES: [Colour; 4] = [[31, 119, 180], [174, 199, 232], [214, 39, 40], [255, 152, 150]];
const BY_MEMORY: Size = Size { width: 900, height: 560 };

fn by_memory(title: &str, lines: &Lines) -> Chart {
    let gibibytes = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let all = lines.iter().flat_map(|(_, points)| points);
    let (right, top) =
        all.fold((0.0, 0.0), |(x, y): (f64, f64), (bytes, ms)| (x.max(gibibytes(*bytes)), y.max(*ms)));
    let series = lines.iter().zip(LINES.iter().cycle()).map(|((name, points), colour)| Series {
        name: name.clone(),
        colour: *colour,
        mark: Mark::Line,
        points: points.iter().map(|(bytes, ms)| (gibibytes(*bytes), *ms)).collect(),
    });
    Chart {
        title: title.to_owned(),
        notes: Vec::new(),
        x: Axis::linear("buffers (GiB)", 0.0, right.max(f64::MIN_POSITIVE)),
        y: Axis::linear("time (ms)", 0.0, top.max(f64::MIN_POSITIVE)),
        spans: Vec::new(),
        series: series.collect(),
    }
}

/// Milliseconds for each GiB, by the first and the last point.
pub fn slope(points: &[(u64, f64)]) -> f64 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return f64::NAN };
    (last.1 - first.1) / ((last.0 - first.0) as f64 / f64::from(1 << 30))
}

/// Draws milliseconds by memory as PNG and as SVG of this name, and returns where.
pub fn save_by_memory(name: &str, title: &str, lines: &Lines) -> Result<[PathBuf; 2]> {
    draw(name, &Figure::from(by_memory(title, lines)), BY_MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_is_of_a_gibibyte() {
        assert_eq!(slope(&[(1 << 30, 10.0), (2 << 30, 30.0), (3 << 30, 40.0)]), 15.0);
    }

    #[test]
    fn lines_of_stops_have_their_names() {
        let lines = [("whole, disk".to_owned(), vec![(1 << 28, 30.0), (1 << 30, 120.0)])];
        let svg = Figure::from(by_memory("a title", &lines)).svg(BY_MEMORY).unwrap();
        for text in ["whole, disk", "buffers (GiB)"] {
            assert!(svg.lines().any(|line| line.trim() == text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn figure_names_every_phase_and_case() {
        let bar = Bar { name: "1 x 256 MiB".to_owned(), lengths: vec![1.0, 20.0, 3.0, 4.0, 5.0, 60.0] };
        let bars = figure(vec![bar]);
        let size = bars.size();
        let svg = Figure::from(bars).svg(size).unwrap();

        for text in PHASES.map(|(name, _)| name).iter().chain(&["1 x 256 MiB", "93 ms", "time (ms)"]) {
            assert!(svg.lines().any(|line| line.trim() == *text), "{text} is not in {svg}");
        }
    }
}
