// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared virtual memory: plain memory of the process that GPUs access at the process's own addresses (`kfd_svm.c`).

use serde::{Deserialize, Serialize};

use super::call::Issue;
use super::error::IoctlError;
use super::file::Kfd;
use crate::GpuId;
use crate::sys;

/// Where the memory of a range is to be; `G` names GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SvmPlace<G> {
    /// None was chosen.
    Undefined,
    /// In the host's memory.
    Host,
    /// In this GPU's memory.
    Gpu(G),
}

/// How a GPU may use a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SvmUse {
    /// Not at all.
    No,
    /// Wherever the memory is.
    InPlace,
    /// The memory may come to the GPU.
    Migrating,
}

/// Something that is set for a range; `G` names GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SvmAttribute<G> {
    /// Where its memory is best.
    Preferred(SvmPlace<G>),
    /// Where its memory goes now.
    Prefetch(SvmPlace<G>),
    /// How a GPU may use it.
    Access(G, SvmUse),
    /// `KFD_IOCTL_SVM_FLAG_*` to be set.
    SetFlags(u32),
    /// `KFD_IOCTL_SVM_FLAG_*` to be cleared.
    ClearFlags(u32),
    /// Pages that move together, as a power of two.
    Granularity(u32),
}

/// What is set for all of a range; `G` names GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SvmAnswer<G> {
    /// Where its memory is best; undefined if parts differ.
    pub preferred: SvmPlace<G>,
    /// Where its memory went last; undefined if parts differ.
    pub prefetch: SvmPlace<G>,
    /// Flags that are set everywhere.
    pub set: u32,
    /// Flags that are set nowhere.
    pub clear: u32,
    /// The smallest granularity.
    pub granularity: u32,
    /// How each GPU that was asked for may use it.
    pub uses: Vec<SvmUse>,
}

impl<G> SvmPlace<G> {
    /// The same place with the GPU by another name.
    ///
    /// # Errors
    /// Those of `name`.
    pub fn try_map<H, E>(self, name: impl FnOnce(G) -> Result<H, E>) -> Result<SvmPlace<H>, E> {
        Ok(match self {
            SvmPlace::Undefined => SvmPlace::Undefined,
            SvmPlace::Host => SvmPlace::Host,
            SvmPlace::Gpu(gpu) => SvmPlace::Gpu(name(gpu)?),
        })
    }
}

impl<G> SvmAttribute<G> {
    /// The same attribute with the GPU by another name.
    ///
    /// # Errors
    /// Those of `name`.
    pub fn try_map<H, E>(self, name: impl FnOnce(G) -> Result<H, E>) -> Result<SvmAttribute<H>, E> {
        Ok(match self {
            Self::Preferred(place) => SvmAttribute::Preferred(place.try_map(name)?),
            Self::Prefetch(place) => SvmAttribute::Prefetch(place.try_map(name)?),
            Self::Access(gpu, how) => SvmAttribute::Access(name(gpu)?, how),
            Self::SetFlags(flags) => SvmAttribute::SetFlags(flags),
            Self::ClearFlags(flags) => SvmAttribute::ClearFlags(flags),
            Self::Granularity(pages) => SvmAttribute::Granularity(pages),
        })
    }
}

impl SvmPlace<GpuId> {
    fn code(self) -> u32 {
        match self {
            SvmPlace::Undefined => sys::KFD_IOCTL_SVM_LOCATION_UNDEFINED,
            SvmPlace::Host => sys::KFD_IOCTL_SVM_LOCATION_SYSMEM,
            SvmPlace::Gpu(gpu) => gpu.0,
        }
    }

    fn of(code: u32) -> Self {
        match code {
            sys::KFD_IOCTL_SVM_LOCATION_UNDEFINED => SvmPlace::Undefined,
            sys::KFD_IOCTL_SVM_LOCATION_SYSMEM => SvmPlace::Host,
            gpu => SvmPlace::Gpu(GpuId(gpu)),
        }
    }
}

impl SvmAttribute<GpuId> {
    fn code(self) -> sys::kfd_ioctl_svm_attribute {
        let (type_, value) = match self {
            Self::Preferred(place) => (sys::KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, place.code()),
            Self::Prefetch(place) => (sys::KFD_IOCTL_SVM_ATTR_PREFETCH_LOC, place.code()),
            Self::Access(gpu, SvmUse::No) => (sys::KFD_IOCTL_SVM_ATTR_NO_ACCESS, gpu.0),
            Self::Access(gpu, SvmUse::InPlace) => (sys::KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE, gpu.0),
            Self::Access(gpu, SvmUse::Migrating) => (sys::KFD_IOCTL_SVM_ATTR_ACCESS, gpu.0),
            Self::SetFlags(flags) => (sys::KFD_IOCTL_SVM_ATTR_SET_FLAGS, flags),
            Self::ClearFlags(flags) => (sys::KFD_IOCTL_SVM_ATTR_CLR_FLAGS, flags),
            Self::Granularity(pages) => (sys::KFD_IOCTL_SVM_ATTR_GRANULARITY, pages),
        };
        sys::kfd_ioctl_svm_attribute { type_, value }
    }
}

impl Kfd {
    /// SVM with SET_ATTR: sets attributes of whole pages, in their order.
    ///
    /// # Errors
    /// [`IoctlError`]: EPERM from a kernel without HSA_AMD_SVM, EFAULT where nothing is mapped, EADDRINUSE where a buffer is.
    pub fn svm_set(
        &self,
        start: u64,
        bytes: u64,
        attributes: &[SvmAttribute<GpuId>],
    ) -> Result<(), IoctlError> {
        let mut codes: Vec<_> = attributes.iter().map(|attribute| attribute.code()).collect();
        let op = sys::KFD_IOCTL_SVM_OP_SET_ATTR;
        self.call_svm(sys::kfd_ioctl_svm_args { start_addr: start, size: bytes, op, nattr: 0 }, &mut codes)
    }

    /// SVM with GET_ATTR: what is set for all of these pages, and how each of `gpus` may use them.
    ///
    /// # Errors
    /// As for [`Kfd::svm_set`].
    pub fn svm_get(&self, start: u64, bytes: u64, gpus: &[GpuId]) -> Result<SvmAnswer<GpuId>, IoctlError> {
        let ask = |type_| sys::kfd_ioctl_svm_attribute { type_, value: 0 };
        let mut codes = vec![
            ask(sys::KFD_IOCTL_SVM_ATTR_PREFERRED_LOC),
            ask(sys::KFD_IOCTL_SVM_ATTR_PREFETCH_LOC),
            ask(sys::KFD_IOCTL_SVM_ATTR_SET_FLAGS),
            ask(sys::KFD_IOCTL_SVM_ATTR_CLR_FLAGS),
            ask(sys::KFD_IOCTL_SVM_ATTR_GRANULARITY),
        ];
        let common = codes.len();
        codes.extend(
            gpus.iter().map(|gpu| sys::kfd_ioctl_svm_attribute {
                type_: sys::KFD_IOCTL_SVM_ATTR_ACCESS,
                value: gpu.0,
            }),
        );
        let op = sys::KFD_IOCTL_SVM_OP_GET_ATTR;
        self.call_svm(sys::kfd_ioctl_svm_args { start_addr: start, size: bytes, op, nattr: 0 }, &mut codes)?;
        // The answer about a GPU is the type.
        let answer = |attribute: &sys::kfd_ioctl_svm_attribute| match attribute.type_ {
            sys::KFD_IOCTL_SVM_ATTR_ACCESS => SvmUse::Migrating,
            sys::KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE => SvmUse::InPlace,
            _ => SvmUse::No,
        };
        Ok(SvmAnswer {
            preferred: SvmPlace::of(codes[0].value),
            prefetch: SvmPlace::of(codes[1].value),
            set: codes[2].value,
            clear: codes[3].value,
            granularity: codes[4].value,
            uses: codes[common..].iter().map(answer).collect(),
        })
    }
}
