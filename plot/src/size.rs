// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes of figures.

use crate::error::{LEAST_PIXELS, MOST_PIXELS, PlotError};

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
    pub const LEAST: u32 = LEAST_PIXELS;
    /// The longest side of a figure.
    pub const MOST: u32 = MOST_PIXELS;

    pub(crate) fn check(self) -> Result<(u32, u32), PlotError> {
        let Self { width, height } = self;
        let fits = |side| (Self::LEAST..=Self::MOST).contains(&side);
        if fits(width) && fits(height) { Ok((width, height)) } else { Err(PlotError::Size { width, height }) }
    }
}
