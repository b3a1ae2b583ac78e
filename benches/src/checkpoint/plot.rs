// SPDX-License-Identifier: MIT OR Apache-2.0
//! A figure of how long a process stands still, and for what: one bar a case, one colour a phase.

use std::path::{Path, PathBuf};

use anyhow::Result;
use stasis_plot::{Bar, Bars, Colour, Figure};

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
    let figure = Figure::from(bars);
    let paths = ["png", "svg"].map(|ending| Path::new(OUT).join("checkpoint-phases").with_extension(ending));
    for path in &paths {
        figure.save(path, size)?;
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

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
