// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures of measurements, as PNG and as SVG: charts over two axes, and stacked bars.
//!
//! INVARIANT: a figure never depends on the fonts of the machine that draws it; the font is part of this crate.
//!
//! ```text
//! Chart ─┐                 ┌─ PNG (plotters' bitmap backend, encoded by `image`)
//!        ├─ Figure ─ draw ─┤
//! Bars ──┘                 └─ SVG (plotters' SVG backend)
//! ```
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod axis;
mod bars;
mod chart;
mod error;
mod figure;
mod header;
mod size;
mod text;

pub use axis::Axis;
pub use bars::{Bar, Bars};
pub use chart::{Chart, Mark, Series, Span};
pub use error::PlotError;
pub use figure::Figure;
pub use size::Size;

/// Red, green, blue.
pub type Colour = [u8; 3];
