// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands above a figure's axes: the title, lines of notes, and what each colour means.

use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::element::Rectangle;

use crate::Colour;
use crate::error::{Area, DrawError};
use crate::text::{BODY, TITLE, filled, style};

/// Pixels between the figure's edge and what it shows.
pub(crate) const MARGIN: u32 = 16;
/// Pixels between neighbours.
pub(crate) const GAP: u32 = 8;

/// What is written above the axes.
pub(crate) struct Header<'a> {
    pub title: &'a str,
    pub notes: &'a [String],
    pub legend: Vec<(&'a str, Colour)>,
}

impl Header<'_> {
    /// Draws it and returns the area below it. A legend too long for a line goes on in the next one.
    pub fn draw<DB: DrawingBackend>(&self, on: &Area<DB>) -> Result<DrawingArea<DB, Shift>, DrawError<DB>> {
        let mut top = MARGIN;
        let lines =
            std::iter::once((self.title, TITLE)).chain(self.notes.iter().map(|note| (note.as_str(), BODY)));
        for (line, height) in lines.filter(|(line, _)| !line.is_empty()) {
            on.draw_text(line, &style(height), (pixels(MARGIN), pixels(top + height / 2)))?;
            top += height + GAP;
        }
        top = self.legend(on, top)?;
        Ok(on.split_vertically(pixels(top)).1)
    }

    /// Draws the legend from `top` on and returns where it ends.
    fn legend<DB: DrawingBackend>(&self, on: &Area<DB>, mut top: u32) -> Result<u32, DrawError<DB>> {
        let body = style(BODY);
        let (width, _) = on.dim_in_pixel();
        let side = BODY - 4;
        let mut x = MARGIN;
        for (name, colour) in &self.legend {
            let entry = side + GAP + on.estimate_text_size(name, &body)?.0;
            if x > MARGIN && x + entry + MARGIN > width {
                (x, top) = (MARGIN, top + BODY + GAP);
            }
            let middle = top + BODY / 2;
            let corners = [
                (pixels(x), pixels(middle - side / 2)),
                (pixels(x + side), pixels(middle - side / 2 + side)),
            ];
            on.draw(&Rectangle::new(corners, filled(*colour)))?;
            on.draw_text(name, &body, (pixels(x + side + GAP), pixels(middle)))?;
            x += entry + 2 * MARGIN;
        }
        Ok(if self.legend.is_empty() { top } else { top + BODY + GAP })
    }
}

/// A length as plotters has it. A figure's size is limited, so that every length within one fits.
pub(crate) fn pixels(length: u32) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}
