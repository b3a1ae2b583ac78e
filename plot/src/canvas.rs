// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pixels: rectangles, lines, dots and text.
//!
//! INVARIANT: drawing over an edge draws what is inside.

use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};

use crate::letters::{HEIGHT, WIDTH, letter};

/// Red, green, blue.
pub type Colour = [u8; 3];
/// What text and axes are drawn with.
pub const INK: Colour = [20, 20, 20];
/// What is there before anything is drawn.
pub const PAPER: Colour = [255, 255, 255];

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// Its directory could not be made.
    #[error("The directory {} could not be made", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its file could not be written.
    #[error("The picture {} could not be written", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: image::ImageError,
    },
}

/// A picture being drawn. Coordinates are pixels from the upper left corner.
#[derive(Clone, Debug)]
pub struct Canvas {
    pixels: RgbImage,
    dot: u32,
}

impl Canvas {
    /// An empty picture, whose letters' dots are `dot` pixels wide and high.
    #[must_use]
    pub fn new(width: u32, height: u32, dot: u32) -> Self {
        Self { pixels: RgbImage::from_pixel(width, height, Rgb(PAPER)), dot }
    }

    /// Its width.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.pixels.width()
    }

    /// Its height.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.pixels.height()
    }

    /// A pixel, [`PAPER`] outside.
    #[must_use]
    pub fn at(&self, x: u32, y: u32) -> Colour {
        self.pixels.get_pixel_checked(x, y).map_or(PAPER, |pixel| pixel.0)
    }

    /// Fills a rectangle from its upper left corner on.
    pub fn rectangle(&mut self, at: (u32, u32), size: (u32, u32), colour: Colour) {
        let end = (at.0.saturating_add(size.0), at.1.saturating_add(size.1));
        for y in at.1..end.1.min(self.height()) {
            for x in at.0..end.0.min(self.width()) {
                self.pixels.put_pixel(x, y, Rgb(colour));
            }
        }
    }

    /// Fills a square of `2 * radius + 1` pixels around a point.
    pub fn square(&mut self, centre: (u32, u32), radius: u32, colour: Colour) {
        let begin = |at: u32| at.saturating_sub(radius);
        let length = |at: u32| at.saturating_add(radius).saturating_add(1) - begin(at);
        let (x, y) = centre;
        self.rectangle((begin(x), begin(y)), (length(x), length(y)), colour);
    }

    /// Draws a line a pixel wide, both ends included (Bresenham).
    pub fn line(&mut self, from: (u32, u32), to: (u32, u32), colour: Colour) {
        let step = |from: u32, to: u32| if from < to { 1 } else { -1 };
        let (dx, dy) = (i64::from(from.0.abs_diff(to.0)), -i64::from(from.1.abs_diff(to.1)));
        let (mut x, mut y) = from;
        let mut error = dx + dy;
        loop {
            self.square((x, y), 0, colour);
            if (x, y) == to {
                return;
            }
            let twice = 2 * error;
            if twice >= dy {
                error += dy;
                x = x.wrapping_add_signed(step(from.0, to.0));
            }
            if twice <= dx {
                error += dx;
                y = y.wrapping_add_signed(step(from.1, to.1));
            }
        }
    }

    /// Writes text, of which `at` is the upper left corner.
    pub fn text(&mut self, at: (u32, u32), text: &str, colour: Colour) {
        let dot = self.dot;
        for (n, of) in (0u32..).zip(text.chars()) {
            for (y, row) in (0u32..).zip(letter(of)) {
                for x in (0..3).filter(|x| row & 4 >> x != 0) {
                    let corner = (at.0 + (n * WIDTH + x) * dot, at.1 + y * dot);
                    self.rectangle(corner, (dot, dot), colour);
                }
            }
        }
    }

    /// How wide a text is, with the gap behind its last letter.
    #[must_use]
    pub fn text_width(&self, text: &str) -> u32 {
        WIDTH * self.dot * u32::try_from(text.chars().count()).unwrap_or(0)
    }

    /// How high a text is.
    #[must_use]
    pub fn text_height(&self) -> u32 {
        HEIGHT * self.dot
    }

    /// Writes the picture, and makes the directory it belongs in.
    ///
    /// # Errors
    /// [`PlotError`] names what could not be written.
    pub fn save(&self, path: &Path) -> Result<(), PlotError> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)
                .map_err(|source| PlotError::Directory { path: directory.to_path_buf(), source })?;
        }
        self.pixels
            .save_with_format(path, image::ImageFormat::Png)
            .map_err(|source| PlotError::Write { path: path.to_path_buf(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Colour = [255, 0, 0];

    fn drawn(canvas: &Canvas) -> Vec<(u32, u32)> {
        let all = (0..canvas.height()).flat_map(|y| (0..canvas.width()).map(move |x| (x, y)));
        all.filter(|&(x, y)| canvas.at(x, y) == RED).collect()
    }

    #[test]
    fn shapes_over_an_edge_are_cut_off() {
        let mut canvas = Canvas::new(4, 4, 1);
        canvas.rectangle((3, 3), (u32::MAX, u32::MAX), RED);
        canvas.square((0, 0), 1, RED);
        canvas.square((u32::MAX, 2), 1, RED);

        assert_eq!(drawn(&canvas), [(0, 0), (1, 0), (0, 1), (1, 1), (3, 3)]);
    }

    #[test]
    fn line_has_both_ends_in_every_direction() {
        for (from, to) in
            [((0, 0), (3, 1)), ((3, 1), (0, 0)), ((0, 3), (0, 0)), ((3, 0), (0, 3)), ((2, 2), (2, 2))]
        {
            let mut canvas = Canvas::new(4, 4, 1);
            canvas.line(from, to, RED);
            let drawn = drawn(&canvas);
            let longest = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1)) as usize;

            assert_eq!(drawn.len(), longest + 1, "{from:?} {to:?}");
            assert!(drawn.contains(&from) && drawn.contains(&to));
        }
    }

    #[test]
    fn text_is_dots_of_the_size_asked_for() {
        let mut canvas = Canvas::new(16, 12, 2);
        canvas.text((0, 0), "-", RED);

        let expected: Vec<_> = [4, 5].into_iter().flat_map(|y| (0..6).map(move |x| (x, y))).collect();
        assert_eq!(drawn(&canvas), expected);
        assert_eq!((canvas.text_width("ab"), canvas.text_height()), (16, 10));
    }

    #[test]
    fn saved_picture_is_a_png_with_the_same_pixels() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/picture.png");
        let mut canvas = Canvas::new(3, 2, 1);
        canvas.square((1, 1), 0, RED);
        canvas.save(&path).unwrap();

        let read = image::open(&path).unwrap().to_rgb8();
        assert_eq!((read.dimensions(), read.get_pixel(1, 1).0, read.get_pixel(0, 0).0), ((3, 2), RED, PAPER));
        let error = canvas.save(&path.join("below-a-file.png")).unwrap_err();
        assert!(matches!(error, PlotError::Directory { .. }), "{error}");
    }
}
