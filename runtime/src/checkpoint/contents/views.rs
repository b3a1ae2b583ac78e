// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings of large objects beside the program's, for copies that are made while it runs.
//!
//! INVARIANT: a view is of the object that had the key when it was made, and its memory is there as long as the view is, whoever frees the
//! object.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use queues::words::size;

use crate::context::device::Device;
use crate::context::registry::Bo;
use crate::context::registry::state::BoKey;
use crate::image::CHUNK_BYTES;

/// So many objects have a view at a time: copies go from one object to the next.
const MOST: usize = 4;

/// A mapping.
#[derive(Debug)]
pub(super) struct View(MmapRaw);

impl View {
    /// Where it begins.
    pub(super) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
}

/// The last ones that were made.
#[derive(Debug)]
pub(super) struct Views<'c> {
    on: &'c Device,
    are_used: AtomicBool,
    last: Mutex<VecDeque<(BoKey, Option<Arc<View>>)>>,
}

impl<'c> Views<'c> {
    /// None, and none are made before [`Views::use_them`].
    pub(super) fn new(on: &'c Device) -> Self {
        Self { on, are_used: AtomicBool::new(false), last: Mutex::default() }
    }

    /// Whether views are made from now on.
    pub(super) fn use_them(&self, used: bool) {
        self.are_used.store(used, Ordering::Relaxed);
    }

    /// That of the object with this key; none of a small one, or if the driver makes none.
    pub(super) fn of(&self, key: BoKey, bo: &Bo) -> Option<Arc<View>> {
        if !self.are_used.load(Ordering::Relaxed) || bo.state.bytes < CHUNK_BYTES {
            return None;
        }
        let mut last = self.last.lock();
        if let Some((_, view)) = last.iter().find(|(known, _)| *known == key) {
            return view.clone();
        }
        let made = self.make(bo);
        if last.len() == MOST {
            last.pop_front();
        }
        last.push_back((key, made.clone()));
        made
    }

    fn make(&self, bo: &Bo) -> Option<Arc<View>> {
        let reserved = MmapOptions::new().len(size(bo.state.bytes)).no_reserve_swap().map_anon();
        let view = MmapRaw::from(reserved.ok()?);
        // SAFETY: the pages are this view's, of as many bytes, and nobody has used them.
        unsafe { self.on.map_beside(bo, view.as_mut_ptr()) }.ok()?;
        Some(Arc::new(View(view)))
    }
}
