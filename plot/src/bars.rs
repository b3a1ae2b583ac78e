// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stacked bars: one a case, one colour a part, the sum written at each bar's end.

use plotters::backend::DrawingBackend;
use plotters::chart::ChartBuilder;
use plotters::element::Rectangle;

use crate::Colour;
use crate::axis::{Axis, Coordinate};
use crate::error::{Area, DrawError, PlotError};
use crate::header::{GAP, Header, MARGIN, pixels};
use crate::size::Size;
use crate::text::{BODY, GRID, INK, TITLE, filled, style};

/// Pixels from a bar's upper edge to the next one's.
const ROW: u32 = 30;
/// The part of a row that its bar fills.
const THICKNESS: f64 = 0.7;
const TICKS: usize = 10;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it is for.
    pub name: String,
    /// The length of each of [`Bars::parts`], in their order.
    pub lengths: Vec<f64>,
}

/// Bars on one scale.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What they show.
    pub title: String,
    /// What the horizontal axis shows, with its unit.
    pub label: String,
    /// The unit of the sums.
    pub unit: String,
    /// What a bar consists of, and the colours.
    pub parts: Vec<(String, Colour)>,
    /// From the upper one to the lower one.
    pub bars: Vec<Bar>,
}

impl Bars {
    /// A size in which each bar is well seen.
    #[must_use]
    pub fn size(&self) -> Size {
        let rows = u32::try_from(self.bars.len()).unwrap_or(u32::MAX).max(1);
        let around = TITLE + 4 * BODY + 8 * GAP + 2 * MARGIN;
        Size { width: 1080, height: rows.saturating_mul(ROW).saturating_add(around) }
    }

    /// Refuses lengths that are none.
    pub(crate) fn check(&self) -> Result<(), PlotError> {
        for bar in &self.bars {
            if bar.lengths.len() != self.parts.len() {
                let (wanted, found) = (self.parts.len(), bar.lengths.len());
                return Err(PlotError::Parts { bar: bar.name.clone(), wanted, found });
            }
            if let Some(&length) = bar.lengths.iter().find(|length| !length.is_finite() || **length < 0.0) {
                return Err(PlotError::Length { bar: bar.name.clone(), length });
            }
        }
        Ok(())
    }

    /// Draws them.
    pub(crate) fn draw<DB: DrawingBackend>(&self, on: &Area<DB>) -> Result<(), DrawError<DB>> {
        let legend = self.parts.iter().map(|(name, colour)| (name.as_str(), *colour)).collect();
        let below = Header { title: &self.title, notes: &[], legend }.draw(on)?;
        let body = style(BODY);
        let sums: Vec<f64> = self.bars.iter().map(|bar| bar.lengths.iter().sum()).collect();
        let width = |text: &str| Ok::<_, DrawError<DB>>(on.estimate_text_size(text, &body)?.0);
        let mut names = 0;
        let mut totals = 0;
        for (bar, sum) in self.bars.iter().zip(&sums) {
            names = names.max(width(&bar.name)?);
            totals = totals.max(width(&self.total(*sum))?);
        }
        let axis = Axis::linear(&self.label, 0.0, sums.iter().copied().fold(0.0, f64::max));
        let rows = u32::try_from(self.bars.len()).unwrap_or(u32::MAX);
        let mut axes = ChartBuilder::on(&below)
            .margin(MARGIN)
            .margin_right(MARGIN + GAP + totals)
            .x_label_area_size(2 * BODY + 2 * GAP)
            .y_label_area_size(names + 2 * GAP)
            .build_cartesian_2d(axis.coordinate(), Coordinate::Rows(rows.max(1)))?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the middle of a row, of which there are as many as bars"
        )]
        let name =
            |middle: &f64| self.bars.get(*middle as usize).map(|bar| bar.name.clone()).unwrap_or_default();
        axes.configure_mesh()
            .disable_y_mesh()
            .x_labels(TICKS)
            .x_desc(axis.label())
            .y_label_formatter(&name)
            .label_style(body.clone())
            .axis_style(INK)
            .bold_line_style(GRID)
            .max_light_lines(0)
            .set_all_tick_mark_size(GAP / 2)
            .draw()?;
        for (row, (bar, sum)) in (0u32..).zip(self.bars.iter().zip(sums)) {
            let middle = f64::from(row) + 0.5;
            let mut until = 0.0;
            for (length, (_, colour)) in bar.lengths.iter().zip(&self.parts) {
                let from = axes.backend_coord(&(axis.nearest(until), middle - THICKNESS / 2.0));
                until += length;
                let to = axes.backend_coord(&(axis.nearest(until), middle + THICKNESS / 2.0));
                on.draw(&Rectangle::new([from, to], filled(*colour)))?;
            }
            let (end, y) = axes.backend_coord(&(axis.nearest(until), middle));
            on.draw_text(&self.total(sum), &body, (end + pixels(GAP), y))?;
        }
        Ok(())
    }

    fn total(&self, sum: f64) -> String {
        format!("{sum:.0} {}", self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figure;
    use crate::figure::tests::pixels_of;

    const BLUE: Colour = [0, 0, 255];
    const RED: Colour = [255, 0, 0];

    fn bars(bars: &[(&str, &[f64])]) -> Bars {
        Bars {
            title: "How long it takes".into(),
            label: "time (ms)".into(),
            unit: "ms".into(),
            parts: vec![("write".into(), BLUE), ("fill".into(), RED)],
            bars: bars
                .iter()
                .map(|(name, lengths)| Bar { name: (*name).into(), lengths: lengths.to_vec() })
                .collect(),
        }
    }

    fn figure(bars: Bars) -> (Figure, Size) {
        let size = bars.size();
        (bars.into(), size)
    }

    #[test]
    fn longest_bar_is_twice_the_half_as_long_one_and_parts_follow_each_other() {
        let (figure, size) = figure(bars(&[("large", &[10.0, 10.0]), ("small", &[5.0, 5.0])]));
        let below_legend = |colour| {
            let mut pixels = pixels_of(&figure, colour);
            pixels.retain(|&(_, y)| y > size.height / 3);
            pixels
        };
        let (blue, red) = (below_legend(BLUE), below_legend(RED));
        let rows = |pixels: &[(u32, u32)]| {
            let mut lengths = std::collections::BTreeMap::new();
            pixels.iter().for_each(|&(_, y)| *lengths.entry(y).or_insert(0u32) += 1);
            (*lengths.values().next().unwrap(), *lengths.values().last().unwrap())
        };

        let ((large, small), (large_fill, small_fill)) = (rows(&blue), rows(&red));
        assert!(large > 200 && large.abs_diff(2 * small) <= 2, "{large} {small}");
        assert!(large.abs_diff(large_fill) <= 1 && small.abs_diff(small_fill) <= 1);
        let end = blue.iter().map(|at| at.0).max().unwrap();
        assert!(red.iter().map(|at| at.0).max().unwrap() > end);
    }

    #[test]
    fn svg_says_title_axis_parts_names_and_sums() {
        let (figure, size) = figure(bars(&[("4 x 256 MiB", &[12.4, 8.0])]));
        let svg = figure.svg(size).unwrap();

        for text in ["How long it takes", "time (ms)", "write", "fill", "4 x 256 MiB", "20 ms", "10"] {
            assert!(svg.lines().any(|line| line.trim() == text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn lengths_that_are_none_are_errors_and_none_at_all_is_an_empty_figure() {
        for length in [f64::NAN, f64::INFINITY, -1.0] {
            let (figure, size) = figure(bars(&[("bad", &[1.0, length])]));
            assert!(matches!(figure.png(size), Err(PlotError::Length { .. })));
        }
        let (missing, size) = figure(bars(&[("short", &[1.0])]));
        assert!(matches!(missing.svg(size), Err(PlotError::Parts { wanted: 2, found: 1, .. })));

        for rows in [&[][..], &[("nothing", &[0.0, 0.0][..])], &[("huge", &[f64::MAX, 1e-300])]] {
            let (figure, size) = figure(bars(rows));
            assert!(figure.png(size).is_ok() && figure.svg(size).unwrap().contains("time (ms)"));
        }
    }
}
