// SPDX-License-Identifier: MIT OR Apache-2.0
//! A figure, drawn as PNG or SVG, in memory or to a file.

use std::error::Error;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::{ImageFormat, RgbImage};
use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};

use crate::bars::Bars;
use crate::chart::Chart;
use crate::text::{self, PAPER};

/// Where something is drawn.
pub(crate) type Area<DB> = DrawingArea<DB, Shift>;
/// Why something could not be drawn.
pub(crate) type DrawError<DB> = DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>;

/// Why there is no figure.
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
    #[error("The figure {} could not be written", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file's name does not say how to draw it.
    #[error("The figure {} has a name that ends neither in .png nor in .svg", .path.display())]
    Ending {
        /// The file.
        path: PathBuf,
    },
    /// It would be too small to read or too large to hold.
    #[error("A figure is {} to {} pixels wide and high, not {width} by {height}", Size::LEAST, Size::MOST)]
    Size {
        /// What was asked for.
        width: u32,
        /// What was asked for.
        height: u32,
    },
    /// A part of a bar has no length.
    #[error("Bar {bar} has a part of length {length}: it must be finite and not below 0")]
    Length {
        /// The bar.
        bar: String,
        /// Its part.
        length: f64,
    },
    /// A bar has not as many parts as there are colours.
    #[error("Bar {bar} has {found} parts instead of {wanted}")]
    Parts {
        /// The bar.
        bar: String,
        /// How many there are names and colours for.
        wanted: usize,
        /// How many it has.
        found: usize,
    },
    /// The font that is part of this crate.
    #[error("The font could not be read")]
    Font,
    /// The drawing.
    #[error("The figure could not be drawn")]
    Draw(#[source] Box<dyn Error + Send + Sync>),
    /// The pixels.
    #[error("The figure could not be encoded as PNG")]
    Encode(#[source] image::ImageError),
}

/// A figure's width and height, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// From left to right.
    pub width: u32,
    /// From top to bottom.
    pub height: u32,
}

impl Size {
    /// The shortest side of a figure.
    pub const LEAST: u32 = 200;
    /// The longest side of a figure.
    pub const MOST: u32 = 16384;

    fn check(self) -> Result<(u32, u32), PlotError> {
        let Self { width, height } = self;
        let fits = |side| (Self::LEAST..=Self::MOST).contains(&side);
        if fits(width) && fits(height) { Ok((width, height)) } else { Err(PlotError::Size { width, height }) }
    }
}

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
