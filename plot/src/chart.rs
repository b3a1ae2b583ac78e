// SPDX-License-Identifier: MIT OR Apache-2.0
//! A chart: two axes, shaded spans under points and lines, and what each colour means.

use plotters::backend::DrawingBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::cartesian::Cartesian2d;
use plotters::element::{Circle, PathElement, Rectangle};

use crate::Colour;
use crate::axis::{Axis, Coordinate};
use crate::error::{Area, DrawError};
use crate::header::{GAP, Header, MARGIN};
use crate::text::{BODY, GRID, INK, colour, filled, style};

/// Ticks of each axis, at most about so many.
const TICKS: usize = 12;

/// A chart's axes as plotters has them.
type Context<'a, DB> = ChartContext<'a, DB, Cartesian2d<Coordinate, Coordinate>>;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A disc for each point.
    Points {
        /// In pixels.
        radius: u32,
    },
    /// Lines from point to point. A point outside of the axes, such as one of NaN, ends a line.
    Line,
}

/// Points of one meaning.
#[derive(Clone, Debug)]
pub struct Series {
    /// What they are, for the legend.
    pub name: String,
    /// Their colour.
    pub colour: Colour,
    /// How they are drawn.
    pub mark: Mark,
    /// Where they are, in the axes' units; those outside of the axes are left out.
    pub points: Vec<(f64, f64)>,
}

/// A part of the horizontal axis that something was the case in.
#[derive(Clone, Debug)]
pub struct Span {
    /// What was the case, for the legend.
    pub name: String,
    /// Its colour, light enough for points to be seen on.
    pub colour: Colour,
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Lines under the title.
    pub notes: Vec<String>,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Under everything.
    pub spans: Vec<Span>,
    /// In the order in which they are drawn.
    pub series: Vec<Series>,
}

impl Chart {
    /// Draws it.
    pub(crate) fn draw<DB: DrawingBackend>(&self, on: &Area<DB>) -> Result<(), DrawError<DB>> {
        let spans = self.spans.iter().map(|span| (span.name.as_str(), span.colour));
        let series = self.series.iter().map(|series| (series.name.as_str(), series.colour));
        let header = Header { title: &self.title, notes: &self.notes, legend: series.chain(spans).collect() };
        let below = header.draw(on)?;
        let mut axes = ChartBuilder::on(&below)
            .margin(MARGIN)
            .x_label_area_size(2 * BODY + 2 * GAP)
            .y_label_area_size(5 * BODY)
            .build_cartesian_2d(self.x.coordinate(), self.y.coordinate())?;
        self.spans(on, &axes)?;
        axes.configure_mesh()
            .x_labels(TICKS)
            .y_labels(TICKS)
            .x_desc(self.x.label())
            .y_desc(self.y.label())
            .label_style(style(BODY))
            .axis_style(INK)
            .bold_line_style(GRID)
            .max_light_lines(0)
            .set_all_tick_mark_size(GAP / 2)
            .draw()?;
        for series in &self.series {
            self.points(&mut axes, series)?;
        }
        Ok(())
    }

    fn spans<DB: DrawingBackend>(&self, on: &Area<DB>, axes: &Context<'_, DB>) -> Result<(), DrawError<DB>> {
        let height = self.y.range();
        for span in &self.spans {
            let (left, top) = axes.backend_coord(&(self.x.nearest(span.from), height.end));
            let (right, bottom) = axes.backend_coord(&(self.x.nearest(span.to), height.start));
            // However short it was, it is wider than the line of a tick that it may lie under.
            let corners = [(left, top), (right.max(left + 2), bottom)];
            on.draw(&Rectangle::new(corners, filled(span.colour)))?;
        }
        Ok(())
    }

    fn points<DB: DrawingBackend>(
        &self,
        axes: &mut Context<'_, DB>,
        series: &Series,
    ) -> Result<(), DrawError<DB>> {
        let within = |&(x, y): &(f64, f64)| self.x.holds(x) && self.y.holds(y);
        match series.mark {
            Mark::Points { radius } => {
                let points = series.points.iter().filter(|point| within(point));
                axes.draw_series(points.map(|&point| Circle::new(point, radius, filled(series.colour))))?;
            }
            Mark::Line => {
                let lines = series.points.split(|point| !within(point)).filter(|line| line.len() > 1);
                axes.draw_series(lines.map(|line| PathElement::new(line.to_vec(), colour(series.colour))))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::PlotError;
    use crate::figure::Figure;
    use crate::figure::tests::{SIZE, pixels_of};

    const BLUE: Colour = [0, 0, 255];
    const RED: Colour = [255, 0, 0];
    const SHADE: Colour = [255, 230, 230];

    fn chart(series: Vec<Series>) -> Chart {
        Chart {
            title: "Title & more".into(),
            notes: vec!["A note".into()],
            x: Axis::linear("begun at (s)", 0.0, 10.0),
            y: Axis::log("latency (ms)", 1.0, 100.0),
            spans: vec![Span { name: "outage".into(), colour: SHADE, from: 2.0, to: 4.0 }],
            series,
        }
    }

    fn series(colour: Colour, mark: Mark, points: &[(f64, f64)]) -> Series {
        Series { name: "answered".into(), colour, mark, points: points.to_vec() }
    }

    /// Pixels of a colour below the legend.
    fn drawn(chart: Chart, colour: Colour) -> Vec<(u32, u32)> {
        let mut pixels = pixels_of(&chart.into(), colour);
        pixels.retain(|&(_, y)| y > MARGIN + 100);
        pixels
    }

    fn extent(pixels: &[(u32, u32)], of: fn(&(u32, u32)) -> u32) -> (u32, u32) {
        let numbers = || pixels.iter().map(of);
        (numbers().min().unwrap(), numbers().max().unwrap())
    }

    #[test]
    fn svg_says_title_notes_axes_legend_and_ticks() {
        let svg =
            Figure::from(chart(vec![series(BLUE, Mark::Line, &[(1.0, 1.0), (2.0, 9.0)])])).svg(SIZE).unwrap();

        let texts = [
            "Title &amp; more",
            "A note",
            "begun at (s)",
            "latency (ms)",
            "answered",
            "outage",
            "100",
            "10",
            "4",
        ];
        for text in texts {
            assert!(svg.lines().any(|line| line.trim() == text), "{text} is not in {svg}");
        }
        assert!(svg.contains("<polyline") && svg.contains("#0000FF"), "{svg}");
    }

    #[test]
    fn greater_numbers_are_further_right_and_higher_and_those_outside_left_out() {
        let mark = Mark::Points { radius: 2 };
        let low =
            series(BLUE, mark, &[(1.0, 2.0), (11.0, 1.0), (1.0, 0.5), (f64::NAN, 1.0), (1.0, f64::INFINITY)]);
        let high = series(RED, mark, &[(9.0, 50.0)]);
        let chart = chart(vec![low, high]);

        let (low, high) = (drawn(chart.clone(), BLUE), drawn(chart, RED));
        assert_eq!(low.len(), high.len());
        assert!((5..=25).contains(&low.len()), "{low:?}");
        assert!(high[0].0 > low[0].0 && high[0].1 < low[0].1, "{low:?} {high:?}");
    }

    #[test]
    fn span_is_shaded_where_it_was_and_points_are_seen_on_it() {
        let chart_with =
            |points: &[(f64, f64)]| chart(vec![series(BLUE, Mark::Points { radius: 1 }, points)]);
        let shaded = extent(&drawn(chart_with(&[]), SHADE), |at| at.0);
        let point = drawn(chart_with(&[(3.0, 10.0)]), BLUE);

        assert!(!point.is_empty());
        assert!(point.iter().all(|at| (shaded.0..=shaded.1).contains(&at.0)), "{point:?} {shaded:?}");
        assert_eq!(drawn(chart_with(&[]), BLUE), []);
    }

    #[test]
    fn span_of_no_length_is_seen() {
        let mut chart = chart(Vec::new());
        chart.spans[0].to = chart.spans[0].from;

        assert!(drawn(chart, SHADE).len() > 100);
    }

    #[test]
    fn line_joins_its_points_and_is_interrupted_by_one_that_is_nowhere() {
        let line = |points: &[(f64, f64)]| drawn(chart(vec![series(RED, Mark::Line, points)]), RED);
        let whole = line(&[(1.0, 2.0), (5.0, 2.0), (9.0, 2.0)]);
        let halves = line(&[(1.0, 2.0), (5.0, 2.0), (f64::NAN, 2.0), (6.0, 2.0), (9.0, 2.0)]);

        let (left, right) = extent(&whole, |at| at.0);
        // CAST: a width in pixels.
        assert_eq!(whole.len(), (right - left) as usize + 1);
        assert!(right - left > 200);
        assert!(halves.len() < whole.len() && extent(&halves, |at| at.0) == (left, right));
    }

    #[test]
    fn chart_without_series_has_its_axes() {
        let mut empty = chart(Vec::new());
        empty.spans.clear();
        empty.x = Axis::linear("nothing", f64::INFINITY, f64::NEG_INFINITY);
        empty.y = Axis::log("no unit", f64::NAN, f64::MAX);

        let figure = Figure::from(empty);
        assert!(figure.svg(SIZE).unwrap().contains("no unit"));
        assert!(pixels_of(&figure, [20, 20, 20]).len() > 500);
    }

    #[test]
    fn points_of_any_number_are_drawn_without_fault() {
        let numbers = [f64::NAN, f64::NEG_INFINITY, f64::MIN, -0.0, 5e-324, 1.0, f64::MAX, f64::INFINITY];
        let points: Vec<_> = numbers.iter().flat_map(|&x| numbers.iter().map(move |&y| (x, y))).collect();
        for (from, to) in &points {
            let mut chart = chart(vec![
                series(RED, Mark::Line, &points),
                series(BLUE, Mark::Points { radius: 3 }, &points),
            ]);
            (chart.x, chart.y) = (Axis::linear("", *from, *to), Axis::log("", *from, *to));
            (chart.spans[0].from, chart.spans[0].to) = (*from, *to);
            assert!(Figure::from(chart).svg(SIZE).is_ok(), "{from} {to}");
        }
    }

    #[test]
    fn figure_too_small_or_too_large_is_an_error() {
        let figure = Figure::from(chart(Vec::new()));

        for (width, height) in [(0, 0), (3, 3), (640, 10), (u32::MAX, u32::MAX)] {
            let error = figure.svg(crate::Size { width, height }).unwrap_err();
            assert!(matches!(error, PlotError::Size { .. }), "{error}");
            assert!(figure.png(crate::Size { width, height }).is_err());
        }
    }
}
