// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pictures of measurements: a canvas with letters made of dots, and charts on it.
//!
//! INVARIANT: what lies outside of a canvas is cut off, and no number, however large or undefined, makes drawing fail; only
//! writing the file can.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod axis;
mod canvas;
mod chart;
mod letters;

pub use self::axis::{Axis, Scale};
pub use self::canvas::{Canvas, Colour, INK, PAPER, PlotError};
pub use self::chart::{Chart, Mark, Series, Span};
