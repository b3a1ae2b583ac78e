// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code object that is meant: the file, or of an offload bundle the entry for the agent that is to run it. Where nothing
//! is run no device is asked, and it is the first entry for an AMD GPU.

use std::borrow::Cow;

use anyhow::Result;
use serde::Serialize;
use stasis::code_object::Bundle;
use stasis::code_object::bundle::Entry;

/// A bundle's entries, and the one that is looked at.
#[derive(Debug, Serialize)]
pub struct Chosen {
    /// The one.
    pub entry: String,
    /// All.
    pub entries: Vec<String>,
}

/// The code object to look at without a device; `disassemble` says that its instructions are to be known.
pub fn to_look_at(file: &[u8], disassemble: bool) -> Result<(Cow<'_, [u8]>, Option<Chosen>)> {
    if !Bundle::is_bundle(file) {
        return Ok((Cow::Borrowed(file), None));
    }
    let bundle = Bundle::open(file)?;
    let is_known = |entry: &&Entry| disassemble && entry.is_device() && entry.id().contains("-gfx11");
    let entry = match bundle.entries().iter().find(is_known) {
        Some(entry) => entry,
        None => bundle.first_device()?,
    };
    let entries = bundle.entries().iter().map(|entry| entry.id().to_owned()).collect();
    Ok((bundle.code(entry)?, Some(Chosen { entry: entry.id().to_owned(), entries })))
}
