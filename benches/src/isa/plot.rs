// SPDX-License-Identifier: MIT OR Apache-2.0
//! A figure of how near the software GPU comes to native code, one bar a kernel and level.

use std::path::{Path, PathBuf};

use anyhow::Result;
use stasis_plot::{Bar, Bars, Figure as Drawing};

use crate::figure::{Figure, OUT};

/// The bars: per cent of native code's rate.
fn bars(figures: &[Figure]) -> Bars {
    let against_native = figures.iter().filter(|figure| figure.versus.as_deref() == Some("native"));
    let bar = |figure: &Figure| {
        let level = figure.bench.strip_prefix("isa-").unwrap_or(&figure.bench);
        Some(Bar { name: format!("{} {level}", figure.case), lengths: vec![figure.ratio? * 100.0] })
    };
    let mut bars: Vec<Bar> = against_native.filter_map(bar).collect();
    bars.sort_by(|a, b| a.name.cmp(&b.name));
    Bars {
        title: "Rate of gfx1100 kernels on one core, of native code with the same vectors".to_owned(),
        label: "per cent of native".to_owned(),
        unit: "%".to_owned(),
        parts: vec![("of native".to_owned(), [31, 119, 180])],
        bars,
    }
}

/// Draws the figures that have native code for a peer as PNG and as SVG, and returns where.
pub fn save(figures: &[Figure]) -> Result<[PathBuf; 2]> {
    let bars = bars(figures);
    let size = bars.size();
    let drawing = Drawing::from(bars);
    let paths = ["png", "svg"].map(|ending| Path::new(OUT).join("isa-ratios").with_extension(ending));
    for path in &paths {
        drawing.save(path, size)?;
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_the_ratios_to_native_code_by_kernel_and_level() {
        let figure = |bench: &str, versus: &str, ratio| Figure {
            bench: bench.to_owned(),
            case: "hash".to_owned(),
            metric: "integer_arithmetic".to_owned(),
            value: Some(1.0),
            unit: "GIOP/s".to_owned(),
            versus: Some(versus.to_owned()),
            ratio: Some(ratio),
        };
        let figures = [
            figure("isa-avx512", "native", 0.5),
            figure("isa-avx2", "native", 0.25),
            figure("isa-avx2", "pocl", 9.0),
        ];
        let bars = bars(&figures);
        let shown: Vec<_> = bars.bars.iter().map(|bar| (bar.name.as_str(), bar.lengths[0])).collect();
        assert_eq!(shown, [("hash avx2", 25.0), ("hash avx512", 50.0)]);
    }
}
