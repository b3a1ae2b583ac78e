// SPDX-License-Identifier: MIT OR Apache-2.0
//! The metadata note: a MessagePack map that describes every kernel and its arguments.
//!
//! Keys are those of LLVM's AMDGPU usage guide, "Code Object V4/V5 Metadata"; keys that are not used here are
//! skipped. Numbers are checked here as far as they stand alone, so that later arithmetic cannot overflow.

use super::error::CodeObjectError;
use serde::Deserialize;
use serde::Deserializer;

/// No compiler nests deeper than kernels, arguments, values.
const MAX_DEPTH: usize = 64;
/// Kernarg segments are a few hundred bytes; what is far above is damage.
const MAX_KERNARG_BYTES: u64 = 1 << 20;

/// The whole note.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Metadata {
    #[serde(rename = "amdhsa.version")]
    version: (u32, u32),
    #[serde(rename = "amdhsa.target", default)]
    pub target: Option<String>,
    #[serde(rename = "amdhsa.kernels", default)]
    pub kernels: Vec<KernelMetadata>,
}

/// What the compiler says about a kernel. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct KernelMetadata {
    /// The kernel's name.
    #[serde(rename = ".name")]
    pub name: String,
    /// The name of its descriptor's symbol.
    #[serde(rename = ".symbol")]
    pub symbol: String,
    /// Arguments, the hidden ones included, in order of their offset.
    #[serde(rename = ".args", default)]
    pub arguments: Vec<Argument>,
    /// Length of the kernarg segment.
    #[serde(rename = ".kernarg_segment_size")]
    pub kernarg_bytes: u32,
    /// What its address must be a multiple of.
    #[serde(rename = ".kernarg_segment_align")]
    pub kernarg_align: u32,
    /// LDS of a workgroup, without dynamic LDS.
    #[serde(rename = ".group_segment_fixed_size")]
    pub group_bytes: u32,
    /// Scratch of a work-item.
    #[serde(rename = ".private_segment_fixed_size")]
    pub private_bytes: u32,
    /// Lanes of a wave, 32 or 64.
    #[serde(rename = ".wavefront_size")]
    pub wavefront_size: u32,
    /// The most work-items of a workgroup.
    #[serde(rename = ".max_flat_workgroup_size")]
    pub max_flat_workgroup_size: u32,
    /// The only workgroup the kernel may be launched with.
    #[serde(rename = ".reqd_workgroup_size", default)]
    pub required_workgroup: Option<[u32; 3]>,
    /// Whether `private_bytes` is only a lower bound.
    #[serde(rename = ".uses_dynamic_stack", default)]
    pub uses_dynamic_stack: bool,
    /// Scalar registers of a wave.
    #[serde(rename = ".sgpr_count", default)]
    pub sgprs: u32,
    /// Vector registers of a wave.
    #[serde(rename = ".vgpr_count", default)]
    pub vgprs: u32,
    /// Accumulation registers of a wave.
    #[serde(rename = ".agpr_count", default)]
    pub agprs: u32,
}

/// One argument.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Argument {
    /// The name in the source, where the compiler kept it.
    #[serde(rename = ".name", default)]
    pub name: Option<String>,
    /// First byte in the kernarg segment.
    #[serde(rename = ".offset")]
    pub offset: u32,
    /// Size in bytes.
    #[serde(rename = ".size")]
    pub bytes: u32,
    /// What to put there.
    #[serde(rename = ".value_kind")]
    pub kind: ValueKind,
    /// `global`, `local`, `constant`, `generic`, `private` or `region`, for pointers.
    #[serde(rename = ".address_space", default)]
    pub address_space: Option<String>,
}

/// What an argument is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueKind {
    /// A value, copied.
    ByValue,
    /// An address of memory that the agent can access.
    GlobalBuffer,
    /// An LDS offset, chosen by who launches.
    DynamicSharedPointer,
    /// An address of a sampler, image, pipe or device queue.
    Opaque,
    /// Filled in by the runtime.
    Hidden(HiddenKind),
    /// A kind newer than this library.
    Unknown(String),
}

impl ValueKind {
    /// `.value_kind`; `opaque` for those that are not told apart here.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::ByValue => "by_value",
            Self::GlobalBuffer => "global_buffer",
            Self::DynamicSharedPointer => "dynamic_shared_pointer",
            Self::Opaque => "opaque",
            Self::Hidden(kind) => kind.name(),
            Self::Unknown(name) => name,
        }
    }
}

/// An argument that the runtime fills in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HiddenKind {
    /// Padding.
    None,
    /// First work-item id in a dimension.
    GlobalOffset(u8),
    /// Whole workgroups in a dimension.
    BlockCount(u8),
    /// Work-items of a workgroup in a dimension.
    GroupSize(u8),
    /// Work-items of the partial last workgroup in a dimension.
    Remainder(u8),
    /// Number of dimensions.
    GridDims,
    /// Dynamic LDS in bytes.
    DynamicLdsSize,
    /// High half of the private aperture's address.
    PrivateBase,
    /// High half of the shared aperture's address.
    SharedBase,
    /// Address of the queue's `amd_queue_t`.
    QueuePtr,
    /// Address of what the kernel calls the host through.
    Hostcall,
    /// Address of a service that this runtime does not offer; always 0.
    Service(&'static str),
}

impl HiddenKind {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::GroupSize(_) | Self::Remainder(_) | Self::GridDims => Some(2),
            Self::BlockCount(_) | Self::DynamicLdsSize | Self::PrivateBase | Self::SharedBase => Some(4),
            Self::GlobalOffset(_) | Self::QueuePtr | Self::Hostcall | Self::Service(_) => Some(8),
        }
    }

    /// `.value_kind`.
    #[must_use]
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == ValueKind::Hidden(self)).map_or("hidden", |(name, _)| *name)
    }
}

const fn hidden(kind: HiddenKind) -> ValueKind {
    ValueKind::Hidden(kind)
}

const fn service(name: &'static str) -> ValueKind {
    ValueKind::Hidden(HiddenKind::Service(name))
}

const KINDS: [(&str, ValueKind); 31] = [
    ("by_value", ValueKind::ByValue),
    ("global_buffer", ValueKind::GlobalBuffer),
    ("dynamic_shared_pointer", ValueKind::DynamicSharedPointer),
    ("sampler", ValueKind::Opaque),
    ("image", ValueKind::Opaque),
    ("pipe", ValueKind::Opaque),
    ("queue", ValueKind::Opaque),
    ("hidden_none", hidden(HiddenKind::None)),
    ("hidden_global_offset_x", hidden(HiddenKind::GlobalOffset(0))),
    ("hidden_global_offset_y", hidden(HiddenKind::GlobalOffset(1))),
    ("hidden_global_offset_z", hidden(HiddenKind::GlobalOffset(2))),
    ("hidden_block_count_x", hidden(HiddenKind::BlockCount(0))),
    ("hidden_block_count_y", hidden(HiddenKind::BlockCount(1))),
    ("hidden_block_count_z", hidden(HiddenKind::BlockCount(2))),
    ("hidden_group_size_x", hidden(HiddenKind::GroupSize(0))),
    ("hidden_group_size_y", hidden(HiddenKind::GroupSize(1))),
    ("hidden_group_size_z", hidden(HiddenKind::GroupSize(2))),
    ("hidden_remainder_x", hidden(HiddenKind::Remainder(0))),
    ("hidden_remainder_y", hidden(HiddenKind::Remainder(1))),
    ("hidden_remainder_z", hidden(HiddenKind::Remainder(2))),
    ("hidden_grid_dims", hidden(HiddenKind::GridDims)),
    ("hidden_dynamic_lds_size", hidden(HiddenKind::DynamicLdsSize)),
    ("hidden_private_base", hidden(HiddenKind::PrivateBase)),
    ("hidden_shared_base", hidden(HiddenKind::SharedBase)),
    ("hidden_queue_ptr", hidden(HiddenKind::QueuePtr)),
    ("hidden_printf_buffer", service("hidden_printf_buffer")),
    ("hidden_hostcall_buffer", hidden(HiddenKind::Hostcall)),
    ("hidden_heap_v1", service("hidden_heap_v1")),
    ("hidden_default_queue", service("hidden_default_queue")),
    ("hidden_completion_action", service("hidden_completion_action")),
    ("hidden_multigrid_sync_arg", service("hidden_multigrid_sync_arg")),
];

impl<'de> Deserialize<'de> for ValueKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = KINDS.iter().find(|(name, _)| *name == text).map(|(_, kind)| kind.clone());
        Ok(known.unwrap_or(Self::Unknown(text)))
    }
}

/// Decodes and checks the note.
pub(super) fn parse(note: &[u8]) -> Result<Metadata, CodeObjectError> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(note);
    decoder.set_max_depth(MAX_DEPTH);
    let metadata = Metadata::deserialize(&mut decoder)
        .map_err(|error| CodeObjectError::Metadata { bytes: note.len(), why: error.to_string() })?;
    let (major, minor) = metadata.version;
    if (major, minor) != (1, 1) && (major, minor) != (1, 2) {
        return Err(CodeObjectError::MetadataVersion { major, minor });
    }
    for kernel in &metadata.kernels {
        kernel.check()?;
    }
    Ok(metadata)
}

impl KernelMetadata {
    /// What the kernel may want of a host and this runtime does not offer, by `.value_kind`: `hidden_heap_v1` and the like. The kernel finds 0 where their addresses should be.
    pub fn services(&self) -> impl Iterator<Item = &'static str> {
        self.arguments.iter().filter_map(|argument| match argument.kind {
            ValueKind::Hidden(HiddenKind::Service(name)) => Some(name),
            _ => None,
        })
    }

    fn check(&self) -> Result<(), CodeObjectError> {
        let segment = u64::from(self.kernarg_bytes);
        let align = self.kernarg_align;
        let threads = self.max_flat_workgroup_size;
        let checks = [
            (".kernarg_segment_size", segment, segment <= MAX_KERNARG_BYTES, "at most 1 MiB"),
            (
                ".kernarg_segment_align",
                align.into(),
                align.is_power_of_two() && align <= 4096,
                "a power of two up to 4096",
            ),
            (
                ".wavefront_size",
                self.wavefront_size.into(),
                matches!(self.wavefront_size, 32 | 64),
                "32 or 64",
            ),
            (".max_flat_workgroup_size", threads.into(), (1..=1024).contains(&threads), "1 to 1024"),
        ];
        for (field, found, valid, wanted) in checks {
            if !valid {
                return Err(CodeObjectError::KernelField { kernel: self.name.clone(), field, found, wanted });
            }
        }
        for (index, argument) in self.arguments.iter().enumerate() {
            let offset = u64::from(argument.offset);
            let end = offset + u64::from(argument.bytes);
            if end > segment {
                return Err(CodeObjectError::ArgumentRange {
                    kernel: self.name.clone(),
                    index,
                    offset,
                    end,
                    segment,
                });
            }
        }
        Ok(())
    }
}
