// SPDX-License-Identifier: MIT OR Apache-2.0
//! A figure, drawn as PNG or SVG, in memory or to a file.

use std::io::Cursor;
use std::path::Path;

use image::{ImageFormat, RgbImage};
use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::drawing::IntoDrawingArea;

use crate::bars::Bars;
use crate::chart::Chart;
use crate::error::PlotError;
use crate::size::Size;
use crate::text::{self, PAPER};

/// Something that can be drawn.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Figure {
    /// Points, lines and spans over two axes.
    Chart(Chart),
    /// Stacked bars.
    Bars(Bars),
}

impl From<Chart> for Figure {
    fn from(chart: Chart) -> Self {
        Self::Chart(chart)
    }
}

impl From<Bars> for Figure {
    fn from(bars: Bars) -> Self {
        Self::Bars(bars)
    }
}

impl Figure {
    /// The bytes of a PNG file.
    ///
    /// # Errors
    /// [`PlotError::Size`], [`PlotError::Length`] or [`PlotError::Parts`] for what cannot be drawn.
    pub fn png(&self, size: Size) -> Result<Vec<u8>, PlotError> {
        let mut png = Vec::new();
        self.pixels(size)?
            .write_to(&mut Cursor::new(&mut png), ImageFormat::Png)
            .map_err(PlotError::Encode)?;
        Ok(png)
    }

    /// The text of an SVG file. Text in it stays text.
    ///
    /// # Errors
    /// As [`Figure::png`].
    pub fn svg(&self, size: Size) -> Result<String, PlotError> {
        let size = size.check()?;
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, size))?;
        Ok(svg)
    }

    /// Writes it as PNG or SVG, as the name ends, and makes the directory it belongs in.
    ///
    /// # Errors
    /// As [`Figure::png`]; [`PlotError::Ending`], [`PlotError::Directory`] and [`PlotError::Write`] name the path.
    pub fn save(&self, path: &Path, size: Size) -> Result<(), PlotError> {
        let bytes = match path.extension().and_then(|ending| ending.to_str()) {
            Some("png") => self.png(size)?,
            Some("svg") => self.svg(size)?.into_bytes(),
            _ => return Err(PlotError::Ending { path: path.to_path_buf() }),
        };
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)
                .map_err(|source| PlotError::Directory { path: directory.to_path_buf(), source })?;
        }
        std::fs::write(path, bytes).map_err(|source| PlotError::Write { path: path.to_path_buf(), source })
    }

    fn pixels(&self, size: Size) -> Result<RgbImage, PlotError> {
        let (width, height) = size.check()?;
        let mut image = RgbImage::new(width, height);
        self.draw(BitMapBackend::with_buffer(&mut image, (width, height)))?;
        Ok(image)
    }

    fn draw<DB: DrawingBackend>(&self, backend: DB) -> Result<(), PlotError>
    where
        DB::ErrorType: 'static,
    {
        if let Self::Bars(bars) = self {
            bars.check()?;
        }
        text::register()?;
        let on = backend.into_drawing_area();
        let drawn = on.fill(&PAPER).and_then(|()| match self {
            Self::Chart(chart) => chart.draw(&on),
            Self::Bars(bars) => bars.draw(&on),
        });
        drawn.and_then(|()| on.present()).map_err(|error| PlotError::Draw(Box::new(error)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Axis, Colour, Mark, Series};

    pub(crate) const SIZE: Size = Size { width: 640, height: 480 };

    /// Where a figure has a colour.
    pub(crate) fn pixels_of(figure: &Figure, colour: Colour) -> Vec<(u32, u32)> {
        let size = match figure {
            Figure::Chart(_) => SIZE,
            Figure::Bars(bars) => bars.size(),
        };
        let image = figure.pixels(size).unwrap();
        image.enumerate_pixels().filter(|(_, _, pixel)| pixel.0 == colour).map(|(x, y, _)| (x, y)).collect()
    }

    fn figure() -> Figure {
        let points = (0..50).map(|n| (f64::from(n), f64::from(n * n))).collect();
        let series = Series { name: "squares".into(), colour: [0, 0, 255], mark: Mark::Line, points };
        Figure::from(Chart {
            title: "Squares".into(),
            notes: Vec::new(),
            x: Axis::linear("n", 0.0, 50.0),
            y: Axis::linear("n * n", 0.0, 2500.0),
            spans: Vec::new(),
            series: vec![series],
        })
    }

    #[test]
    fn saved_png_has_the_size_asked_for_and_is_not_empty() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/figure.png");
        figure().save(&path, SIZE).unwrap();

        let read = image::open(&path).unwrap().to_rgb8();
        assert_eq!(read.dimensions(), (SIZE.width, SIZE.height));
        assert_eq!(read.get_pixel(0, 0).0, [255, 255, 255]);
        let bluish = read.pixels().filter(|pixel| pixel.0[2] > pixel.0[0].saturating_add(50)).count();
        assert!(bluish > 300, "{bluish} pixels");
    }

    #[test]
    fn saved_svg_has_the_size_asked_for_and_ends_as_it_must() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("figure.svg");
        figure().save(&path, SIZE).unwrap();

        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.starts_with("<svg width=\"640\" height=\"480\""), "{svg}");
        assert!(svg.trim_end().ends_with("</svg>") && svg.contains("Squares"), "{svg}");
    }

    #[test]
    fn path_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("figure.svg");
        figure().save(&file, SIZE).unwrap();

        let below = figure().save(&file.join("figure.png"), SIZE).unwrap_err();
        assert!(matches!(below, PlotError::Directory { .. }), "{below}");
        let ending = figure().save(&directory.path().join("figure.gif"), SIZE).unwrap_err();
        assert!(matches!(ending, PlotError::Ending { .. }), "{ending}");
        let occupied = directory.path().join("directory.png");
        std::fs::create_dir(&occupied).unwrap();
        assert!(matches!(figure().save(&occupied, SIZE), Err(PlotError::Write { .. })));
    }
}
