// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drawings of the simulation.

use std::path::{Path, PathBuf};

use anyhow::Result;
use stasis_plot::{Axis, Chart, Colour, Figure, Mark, Series, Size};

use crate::figure::OUT;

const COLOURS: [Colour; 4] = [[120, 120, 120], [31, 119, 180], [44, 160, 44], [214, 39, 40]];
const SIZE: Size = Size { width: 900, height: 560 };

fn series(lines: &[(String, Vec<(f64, f64)>)]) -> Vec<Series> {
    let series = lines.iter().zip(COLOURS).map(|((name, points), colour)| Series {
        name: name.clone(),
        colour,
        mark: Mark::Line,
        points: points.clone(),
    });
    series.collect()
}

fn save(name: &str, chart: Chart) -> Result<[PathBuf; 2]> {
    let figure = Figure::from(chart);
    let paths = ["png", "svg"].map(|ending| Path::new(OUT).join(name).with_extension(ending));
    for path in &paths {
        figure.save(path, SIZE)?;
    }
    Ok(paths)
}

/// The time that computes, by the minutes between checkpoints.
pub fn goodput(lines: &[(String, Vec<(f64, f64)>)]) -> Result<[PathBuf; 2]> {
    let percent = |(name, points): &(String, Vec<(f64, f64)>)| {
        (name.clone(), points.iter().map(|(minutes, share)| (*minutes, 100.0 * share)).collect())
    };
    let lines: Vec<_> = lines.iter().map(percent).collect();
    save(
        "fleet-goodput",
        Chart {
            title: "Simulated: time that one job on 1,000 nodes computes, by interval".to_owned(),
            notes: Vec::new(),
            x: Axis::log("minutes between checkpoints", 1.0, 360.0),
            y: Axis::linear("time that computes (%)", 0.0, 100.0),
            spans: Vec::new(),
            series: series(&lines),
        },
    )
}

/// How many nodes are at work, by the time since all were gone.
pub fn storms(storms: &[(String, Vec<f64>)]) -> Result<[PathBuf; 2]> {
    let last = storms.iter().filter_map(|(_, ready)| ready.last()).copied().fold(1.0, f64::max);
    let steps = |(name, ready): &(String, Vec<f64>)| {
        let all = ready.len().max(1) as f64;
        // A step each: how many there were before, and how many after.
        let points = ready.iter().enumerate().flat_map(|(before, at)| {
            let share = |count: usize| 100.0 * count as f64 / all;
            [(*at, share(before)), (*at, share(before + 1))]
        });
        (name.clone(), std::iter::once((0.0, 0.0)).chain(points).chain([(last, 100.0)]).collect())
    };
    let lines: Vec<_> = storms.iter().map(steps).collect();
    save(
        "fleet-storm",
        Chart {
            title: "Simulated: nodes at work after all 1,000 were gone".to_owned(),
            notes: Vec::new(),
            x: Axis::linear("time since then (s)", 0.0, last),
            y: Axis::linear("nodes at work (%)", 0.0, 100.0),
            spans: Vec::new(),
            series: series(&lines),
        },
    )
}
