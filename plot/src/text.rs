// SPDX-License-Identifier: MIT OR Apache-2.0
//! The font, which is part of the program, and the colours of text and axes.

use std::sync::OnceLock;

use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBColor, TextStyle, register_font};

use crate::Colour;
use crate::error::PlotError;

static ROBOTO: &[u8] = include_bytes!("../fonts/Roboto-Regular.ttf");
/// The name the font is registered by. An SVG viewer that has no Roboto takes the second family.
const FAMILY: &str = "Roboto, sans-serif";

/// Heights of text, in pixels.
pub(crate) const TITLE: u32 = 24;
pub(crate) const BODY: u32 = 17;

/// Colour of text and axes.
pub(crate) const INK: RGBColor = RGBColor(20, 20, 20);
/// Colour of the lines behind the points.
pub(crate) const GRID: RGBColor = RGBColor(226, 226, 226);
/// Colour of the background.
pub(crate) const PAPER: RGBColor = RGBColor(255, 255, 255);

/// Makes the font known to plotters, once.
pub(crate) fn register() -> Result<(), PlotError> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let registered = REGISTERED.get_or_init(|| register_font(FAMILY, FontStyle::Normal, ROBOTO).is_ok());
    if *registered { Ok(()) } else { Err(PlotError::Font) }
}

/// Text of a height, placed by its left edge and its middle.
pub(crate) fn style(height: u32) -> TextStyle<'static> {
    let style = (FAMILY, f64::from(height)).into_font().color(&INK);
    style.pos(Pos::new(HPos::Left, VPos::Center))
}

/// A colour as plotters has it.
pub(crate) fn colour([red, green, blue]: Colour) -> RGBColor {
    RGBColor(red, green, blue)
}

/// A filled shape's style.
pub(crate) fn filled(of: Colour) -> plotters::style::ShapeStyle {
    colour(of).filled()
}
