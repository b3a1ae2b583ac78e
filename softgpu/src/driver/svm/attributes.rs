// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is set for a range of shared virtual memory (`struct svm_range`), and what GET_ATTR says of several ranges
//! (`kfd_svm.c`: `svm_range_apply_attrs`, `svm_range_get_attr`).

use kfd::sys::*;
use serde::{Deserialize, Serialize};

/// `DEFAULT_GRANULARITY` of older kernels and of `amdgpu.svm_default_granularity`: 2^9 pages.
const DEFAULT_GRANULARITY: u32 = 9;
/// The most that is stored.
const MAX_GRANULARITY: u32 = 0x3f;

/// The attributes of a range. GPUs are bits, by their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::driver) struct Attributes {
    pub(super) preferred: u32,
    pub(super) prefetch: u32,
    pub(super) granularity: u32,
    /// `KFD_IOCTL_SVM_FLAG_*`.
    pub(super) flags: u32,
    /// GPUs with ACCESS.
    pub(super) access: u32,
    /// GPUs with ACCESS_IN_PLACE.
    pub(super) in_place: u32,
}

impl Default for Attributes {
    /// Those of a range for which nothing was set (`svm_range_set_default_attributes`), while no GPU retries faults.
    fn default() -> Self {
        Self {
            preferred: KFD_IOCTL_SVM_LOCATION_UNDEFINED,
            prefetch: KFD_IOCTL_SVM_LOCATION_UNDEFINED,
            granularity: DEFAULT_GRANULARITY,
            flags: KFD_IOCTL_SVM_FLAG_HOST_ACCESS | KFD_IOCTL_SVM_FLAG_COHERENT,
            access: 0,
            in_place: 0,
        }
    }
}

/// One attribute of SET_ATTR, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Preferred(u32),
    Prefetch(u32),
    Access(usize),
    AccessInPlace(usize),
    NoAccess(usize),
    SetFlags(u32),
    ClearFlags(u32),
    Granularity(u32),
}

impl Change {
    /// The GPU that may access the range after this.
    pub(super) fn new_user(self) -> Option<usize> {
        match self {
            Self::Access(gpu) | Self::AccessInPlace(gpu) => Some(gpu),
            _ => None,
        }
    }
}

impl Attributes {
    /// Whether SET_ATTR can have set them, where these GPUs can have access and memory can be at such locations.
    pub(in crate::driver) fn are_possible(&self, gpus: u32, is_location: impl Fn(u32) -> bool) -> bool {
        let is_known = |location| {
            matches!(location, KFD_IOCTL_SVM_LOCATION_SYSMEM | KFD_IOCTL_SVM_LOCATION_UNDEFINED)
                || is_location(location)
        };
        is_known(self.preferred)
            && is_known(self.prefetch)
            && self.granularity <= MAX_GRANULARITY
            && self.access & self.in_place == 0
            && self.users() & !gpus == 0
    }

    /// The GPUs that may access the range.
    pub(in crate::driver) fn users(&self) -> u32 {
        self.access | self.in_place
    }

    /// The attributes after these changes, in their order.
    pub(super) fn after(mut self, changes: &[Change]) -> Self {
        for change in changes {
            match *change {
                Change::Preferred(location) => self.preferred = location,
                Change::Prefetch(location) => self.prefetch = location,
                Change::Access(gpu) => {
                    self.access |= 1 << gpu;
                    self.in_place &= !(1 << gpu);
                }
                Change::AccessInPlace(gpu) => {
                    self.access &= !(1 << gpu);
                    self.in_place |= 1 << gpu;
                }
                Change::NoAccess(gpu) => {
                    self.access &= !(1 << gpu);
                    self.in_place &= !(1 << gpu);
                }
                Change::SetFlags(flags) => self.flags |= flags,
                Change::ClearFlags(flags) => self.flags &= !flags,
                Change::Granularity(pages) => self.granularity = pages.min(MAX_GRANULARITY),
            }
        }
        self
    }
}

/// What several ranges have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Common {
    pub(super) preferred: u32,
    pub(super) prefetch: u32,
    /// The smallest one.
    pub(super) granularity: u32,
    /// The flags that all of them have.
    pub(super) set: u32,
    /// The flags that none of them has.
    pub(super) clear: u32,
    /// The GPUs with ACCESS to all of them.
    pub(super) access: u32,
    /// The GPUs with ACCESS_IN_PLACE to all of them.
    pub(super) in_place: u32,
}

impl Common {
    /// Of these ranges; without any, the defaults.
    pub(super) fn of(ranges: impl IntoIterator<Item = Attributes>) -> Self {
        let alone = |it: Attributes| Self {
            preferred: it.preferred,
            prefetch: it.prefetch,
            granularity: it.granularity,
            set: it.flags,
            clear: !it.flags,
            access: it.access,
            in_place: it.in_place,
        };
        let same = |a, b| if a == b { a } else { KFD_IOCTL_SVM_LOCATION_UNDEFINED };
        let both = |a: Self, b: Self| Self {
            preferred: same(a.preferred, b.preferred),
            prefetch: same(a.prefetch, b.prefetch),
            granularity: a.granularity.min(b.granularity),
            set: a.set & b.set,
            clear: a.clear & b.clear,
            access: a.access & b.access,
            in_place: a.in_place & b.in_place,
        };
        ranges.into_iter().map(alone).reduce(both).unwrap_or_else(|| alone(Attributes::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_apply_in_their_order() {
        let changes = [
            Change::Access(1),
            Change::AccessInPlace(0),
            Change::NoAccess(1),
            Change::SetFlags(KFD_IOCTL_SVM_FLAG_GPU_RO | KFD_IOCTL_SVM_FLAG_GPU_EXEC),
            Change::ClearFlags(KFD_IOCTL_SVM_FLAG_GPU_RO | KFD_IOCTL_SVM_FLAG_COHERENT),
            Change::Granularity(0xff),
        ];
        let after = Attributes::default().after(&changes);
        assert_eq!((after.access, after.in_place, after.users()), (0, 1, 1));
        assert_eq!(after.flags, KFD_IOCTL_SVM_FLAG_HOST_ACCESS | KFD_IOCTL_SVM_FLAG_GPU_EXEC);
        assert_eq!(after.granularity, 0x3f);
        assert_eq!(after.after(&[Change::Access(0)]).in_place, 0, "one of the two at a time");
    }

    #[test]
    fn locations_that_differ_are_undefined_and_stay_so() {
        let at = |preferred| Attributes { preferred, ..Attributes::default() };
        assert_eq!(Common::of([at(7), at(7)]).preferred, 7);
        assert_eq!(Common::of([at(7), at(8), at(7)]).preferred, KFD_IOCTL_SVM_LOCATION_UNDEFINED);
    }
}
