// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why there is no figure.

use std::error::Error;
use std::path::PathBuf;

use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};

/// The shortest side of a figure.
pub(crate) const LEAST_PIXELS: u32 = 200;
/// The longest side of a figure.
pub(crate) const MOST_PIXELS: u32 = 16_384;

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
    #[error("A figure is {} to {} pixels wide and high, not {width} by {height}", LEAST_PIXELS, MOST_PIXELS)]
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
