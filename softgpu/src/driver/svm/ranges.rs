// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranges of shared virtual memory, by address.
//!
//! INVARIANT: ranges never overlap, and each has one set of attributes and at most one piece of one file. So a range is
//! cut wherever attributes, memory or a queue's save area begin or end.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kfd::sys::KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED;

use super::attributes::Attributes;
use crate::driver::bo::Run;
use crate::hardware::PageAccess;

/// The client's pages of a range.
#[derive(Clone, Debug)]
pub(in crate::driver) struct SvmMemory {
    pub(in crate::driver) fd: Arc<OwnedFd>,
    pub(in crate::driver) offset: u64,
    /// Whether the client itself may write them.
    pub(in crate::driver) writable: bool,
}

/// A range (`struct svm_range`).
#[derive(Clone, Debug, Default)]
pub(in crate::driver) struct SvmRange {
    pub(in crate::driver) end: u64,
    pub(in crate::driver) attributes: Attributes,
    /// None while no GPU may access the range: the pages are the client's alone then.
    pub(in crate::driver) memory: Option<SvmMemory>,
    /// The GPUs that have it mapped, a bit each, and how.
    pub(in crate::driver) mapped: u32,
    pub(in crate::driver) access: Option<PageAccess>,
    /// Queues whose save areas it is part of (`queue_refcount`).
    pub(in crate::driver) queues: u32,
}

impl SvmRange {
    /// Whether it can be part of the save area of a queue of this GPU (`kfd_queue_buffer_svm_get`).
    fn holds_save_area(&self, gpu: usize) -> bool {
        let is_mapped = self.mapped & self.attributes.users() & 1 << gpu != 0;
        is_mapped && self.attributes.flags & KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED != 0
    }
}

/// All ranges of a process.
#[derive(Debug, Default)]
pub(in crate::driver) struct SvmRanges {
    by_start: BTreeMap<u64, SvmRange>,
}

impl SvmRanges {
    pub(in crate::driver) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Whether any range overlaps `bytes` bytes at `va`.
    pub(in crate::driver) fn overlaps(&self, va: u64, bytes: u64) -> bool {
        self.over(&(va..va.saturating_add(bytes))).next().is_some()
    }

    /// The ranges that overlap a span, by address.
    pub(super) fn over(&self, span: &Range<u64>) -> impl Iterator<Item = (u64, &SvmRange)> {
        let before =
            self.by_start.range(..span.start).next_back().filter(|(_, range)| range.end > span.start);
        // An empty span has no range inside, and the map accepts no span that ends before it starts.
        let inside = self.by_start.range(span.start..span.end.max(span.start));
        before.into_iter().chain(inside).map(|(start, range)| (*start, range))
    }

    /// What of a span is in no range.
    pub(super) fn gaps(&self, span: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = span.start;
        for (start, range) in self.over(span) {
            if at < start {
                gaps.push(at..start);
            }
            at = range.end;
        }
        if at < span.end {
            gaps.push(at..span.end);
        }
        gaps
    }

    /// Makes a boundary at `at`, if it lies inside a range.
    pub(super) fn cut(&mut self, at: u64) {
        let Some((&start, range)) = self.by_start.range_mut(..at).next_back() else { return };
        if range.end <= at {
            return;
        }
        let mut behind = range.clone();
        range.end = at;
        if let Some(memory) = &mut behind.memory {
            memory.offset += at - start;
        }
        self.by_start.insert(at, behind);
    }

    /// Makes boundaries at both ends of a span; the starts of the ranges inside.
    pub(super) fn cut_out(&mut self, span: &Range<u64>) -> Vec<u64> {
        self.cut(span.start);
        self.cut(span.end);
        self.over(span).map(|(start, _)| start).collect()
    }

    /// Adds ranges with the default attributes where a span has none.
    pub(super) fn fill(&mut self, span: &Range<u64>) {
        for gap in self.gaps(span) {
            self.by_start.insert(gap.start, SvmRange { end: gap.end, ..SvmRange::default() });
        }
    }

    /// All ranges, by address.
    pub(in crate::driver) fn iter(&self) -> impl Iterator<Item = (u64, &SvmRange)> {
        self.by_start.iter().map(|(start, range)| (*start, range))
    }

    /// Adds a range that overlaps no other one.
    pub(super) fn insert(&mut self, start: u64, range: SvmRange) {
        self.by_start.insert(start, range);
    }

    pub(super) fn get_mut(&mut self, start: u64) -> Option<&mut SvmRange> {
        self.by_start.get_mut(&start)
    }

    pub(super) fn remove(&mut self, start: u64) -> Option<SvmRange> {
        self.by_start.remove(&start)
    }

    /// Whether the ranges of a span can be the save area of a queue of this GPU.
    pub(in crate::driver) fn hold_save_area(&self, gpu: usize, span: &Range<u64>) -> bool {
        self.gaps(span).is_empty() && self.over(span).all(|(_, range)| range.holds_save_area(gpu))
    }

    /// Counts a queue that has its save area here.
    pub(in crate::driver) fn hold(&mut self, span: &Range<u64>) {
        for start in self.cut_out(span) {
            if let Some(range) = self.get_mut(start) {
                range.queues += 1;
            }
        }
    }

    /// Undoes `hold`. The client may have unmapped ranges meanwhile, and made others there.
    pub(in crate::driver) fn release(&mut self, span: &Range<u64>) {
        for start in self.cut_out(span) {
            if let Some(range) = self.get_mut(start) {
                range.queues = range.queues.saturating_sub(1);
            }
        }
    }

    /// What is behind `bytes` bytes at `va`, if a GPU has all of them mapped.
    pub(super) fn runs(&self, gpu: usize, va: u64, bytes: u64) -> Option<Vec<Run>> {
        let span = va..va.checked_add(bytes)?;
        let (mut at, mut runs) = (va, Vec::new());
        for (start, range) in self.over(&span) {
            let memory = range.memory.as_ref().filter(|_| range.mapped & 1 << gpu != 0)?;
            let (inside, end) = (at.checked_sub(start)?, range.end.min(span.end));
            runs.push(Run { fd: Arc::clone(&memory.fd), offset: memory.offset + inside, bytes: end - at });
            at = end;
        }
        (at == span.end).then_some(runs)
    }
}
