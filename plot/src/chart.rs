// SPDX-License-Identifier: MIT OR Apache-2.0
//! A chart: two axes, shaded spans under points and lines, and what each colour means.

use crate::axis::{Axis, tick_text};
use crate::canvas::{Canvas, Colour, INK};

const GRID: Colour = [226, 226, 226];
const MARGIN: u32 = 16;
/// Pixels from a tick to its text.
const GAP: u32 = 8;
const DOT: u32 = 2;
/// Ticks of the horizontal axis.
const TICKS: u32 = 12;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A square for each point.
    Points {
        /// Pixels from its middle to its edge.
        radius: u32,
    },
    /// Lines from point to point.
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

/// Where in the picture the axes' rectangle is.
struct Frame {
    left: u32,
    top: u32,
    width: u32,
    height: u32,
}

impl Frame {
    /// CAST: places are between 0 and 1.
    fn x(&self, place: f64) -> u32 {
        self.left + (place * f64::from(self.width)).round() as u32
    }

    /// CAST: the same; the vertical axis grows upwards.
    fn y(&self, place: f64) -> u32 {
        self.top + ((1.0 - place) * f64::from(self.height)).round() as u32
    }
}

impl Chart {
    /// Draws it, `width` by `height` pixels.
    #[must_use]
    pub fn draw(&self, width: u32, height: u32) -> Canvas {
        let mut on = Canvas::new(width, height, DOT);
        let mut top = MARGIN;
        for line in std::iter::once(&self.title).chain(&self.notes) {
            on.text((MARGIN, top), line, INK);
            top += on.text_height() + GAP;
        }
        self.legend(&mut on, top);
        let row = on.text_height() + GAP;
        top += row;
        // The vertical axis's label has a row above the axis, for letters do not turn.
        on.text((MARGIN, top), self.y.label(), INK);
        top += row;
        let ticks: Vec<_> = self.y.ticks(TICKS).into_iter().map(|tick| (tick, tick_text(tick))).collect();
        let widest = ticks.iter().map(|(_, text)| on.text_width(text)).max().unwrap_or(0);
        let left = MARGIN + widest + GAP;
        let frame = Frame {
            left,
            top,
            width: width.saturating_sub(left + 2 * MARGIN),
            height: height.saturating_sub(top + MARGIN + 2 * row + GAP),
        };
        self.spans(&mut on, &frame);
        self.axes(&mut on, &frame, &ticks);
        for series in &self.series {
            self.points(&mut on, &frame, series);
        }
        on
    }

    fn legend(&self, on: &mut Canvas, top: u32) {
        let spans = self.spans.iter().map(|span| (&span.name, span.colour));
        let series = self.series.iter().map(|series| (&series.name, series.colour));
        let side = on.text_height();
        let mut x = MARGIN;
        for (name, colour) in series.chain(spans) {
            on.rectangle((x, top), (side, side), colour);
            on.text((x + side + GAP, top), name, INK);
            x += side + GAP + on.text_width(name) + 2 * MARGIN;
        }
    }

    fn spans(&self, on: &mut Canvas, frame: &Frame) {
        for span in &self.spans {
            let (from, to) = (frame.x(self.x.clamped(span.from)), frame.x(self.x.clamped(span.to)));
            // However short it was, it can be seen.
            let width = to.saturating_sub(from).max(1);
            on.rectangle((from, frame.top), (width, frame.height), span.colour);
        }
    }

    fn axes(&self, on: &mut Canvas, frame: &Frame, vertical: &[(f64, String)]) {
        let (right, bottom) = (frame.left + frame.width, frame.top + frame.height);
        let half = on.text_height() / 2;
        for (tick, text) in vertical {
            let y = frame.y(self.y.clamped(*tick));
            on.line((frame.left, y), (right, y), GRID);
            let start = frame.left.saturating_sub(GAP + on.text_width(text));
            on.text((start, y.saturating_sub(half)), text, INK);
        }
        for tick in self.x.ticks(TICKS) {
            let (x, text) = (frame.x(self.x.clamped(tick)), tick_text(tick));
            on.line((x, frame.top), (x, bottom), GRID);
            on.line((x, bottom), (x, bottom + GAP / 2), INK);
            on.text((x.saturating_sub(on.text_width(&text) / 2), bottom + GAP), &text, INK);
        }
        on.line((frame.left, frame.top), (frame.left, bottom), INK);
        on.line((frame.left, bottom), (right, bottom), INK);
        let start = right.saturating_sub(on.text_width(self.x.label()));
        on.text((start, bottom + 2 * GAP + on.text_height()), self.x.label(), INK);
    }

    fn points(&self, on: &mut Canvas, frame: &Frame, series: &Series) {
        let place = |&(x, y): &(f64, f64)| Some((frame.x(self.x.place(x)?), frame.y(self.y.place(y)?)));
        match series.mark {
            Mark::Points { radius } => {
                for at in series.points.iter().filter_map(place) {
                    on.square(at, radius, series.colour);
                }
            }
            Mark::Line => {
                for pair in series.points.windows(2) {
                    if let [Some(from), Some(to)] = [place(&pair[0]), place(&pair[1])] {
                        on.line(from, to, series.colour);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canvas::PAPER;

    const BLUE: Colour = [0, 0, 255];
    const RED: Colour = [255, 0, 0];
    const SHADE: Colour = [255, 230, 230];

    fn chart(series: Vec<Series>) -> Chart {
        Chart {
            title: "TITLE".into(),
            notes: Vec::new(),
            x: Axis::linear("S", 0.0, 10.0),
            y: Axis::log("MS", 1.0, 100.0),
            spans: vec![Span { name: String::new(), colour: SHADE, from: 2.0, to: 4.0 }],
            series,
        }
    }

    fn series(colour: Colour, mark: Mark, points: &[(f64, f64)]) -> Series {
        Series { name: String::new(), colour, mark, points: points.to_vec() }
    }

    /// Pixels of a colour below the legend.
    fn drawn(on: &Canvas, colour: Colour) -> Vec<(u32, u32)> {
        let below = MARGIN + 2 * (on.text_height() + GAP);
        let all = (below..on.height()).flat_map(|y| (0..on.width()).map(move |x| (x, y)));
        all.filter(|&(x, y)| on.at(x, y) == colour).collect()
    }

    #[test]
    fn greater_numbers_are_further_right_and_higher_and_those_outside_left_out() {
        let mark = Mark::Points { radius: 0 };
        let low = series(BLUE, mark, &[(1.0, 1.0), (11.0, 1.0), (1.0, 0.5), (f64::NAN, 1.0)]);
        let high = series(RED, mark, &[(9.0, 100.0)]);
        let on = chart(vec![low, high]).draw(400, 300);

        let (low, high) = (drawn(&on, BLUE), drawn(&on, RED));
        assert_eq!((low.len(), high.len()), (1, 1));
        assert!(high[0].0 > low[0].0 && high[0].1 < low[0].1, "{low:?} {high:?}");
    }

    #[test]
    fn span_is_shaded_where_it_was_and_points_are_seen_on_it() {
        let mark = Mark::Points { radius: 1 };
        let on = chart(vec![series(BLUE, mark, &[(3.0, 10.0)])]).draw(400, 300);

        let shaded: Vec<u32> = drawn(&on, SHADE).iter().map(|at| at.0).collect();
        let (from, to) = (*shaded.iter().min().unwrap(), *shaded.iter().max().unwrap());
        let point = drawn(&on, BLUE);
        assert_eq!(point.len(), 9);
        assert!(point.iter().all(|at| (from..=to).contains(&at.0)));
        assert_eq!(drawn(&chart(Vec::new()).draw(400, 300), BLUE), []);
    }

    #[test]
    fn line_joins_its_points() {
        let on = chart(vec![series(RED, Mark::Line, &[(1.0, 1.0), (9.0, 1.0)])]).draw(400, 300);
        let line = drawn(&on, RED);
        let across = line.iter().map(|at| at.0).max().unwrap() - line.iter().map(|at| at.0).min().unwrap();

        // CAST: a width in pixels.
        assert_eq!(line.len(), across as usize + 1);
        assert!(across > 200);
    }

    #[test]
    fn too_small_a_picture_is_drawn_without_fault() {
        let on = chart(vec![series(RED, Mark::Line, &[(1.0, 1.0), (9.0, 1.0)])]).draw(3, 3);

        assert_eq!((on.width(), on.height()), (3, 3));
        assert_ne!(on.at(9, 9), RED);
        assert_eq!(on.at(9, 9), PAPER);
    }
}
