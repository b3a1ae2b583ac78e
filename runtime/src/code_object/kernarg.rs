// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernarg block: explicit arguments checked against the metadata, hidden ones filled in.
//!
//! [`KernargLayout`] is made once for a kernel; filling a block from it neither allocates nor can it go wrong for
//! another reason than the caller's arguments. The hidden arguments' meaning is that of LLVM's AMDGPU usage guide:
//! v5's are found at fixed distances, v4's are a few 64-bit words, and the metadata lists both with their offsets.

use super::error::KernargError;
use super::kernel::Kernel;
use super::metadata::{HiddenKind, KernelMetadata, ValueKind};

/// The shape of a launch, and what else hidden arguments can tell a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Work-items in each dimension, 1 in those not used.
    pub grid: [u32; 3],
    /// Work-items of a workgroup in each dimension, 1 in those not used.
    pub workgroup: [u16; 3],
    /// 1, 2 or 3.
    pub dimensions: u8,
    /// The first work-item's id.
    pub global_offset: [u64; 3],
    /// LDS beyond what the kernel has compiled in, in bytes.
    pub dynamic_lds_bytes: u32,
    /// Address of the queue's `amd_queue_t`.
    pub queue: u64,
    /// High half of the private aperture's address.
    pub private_base_hi: u32,
    /// High half of the shared aperture's address.
    pub shared_base_hi: u32,
    /// Address of what kernels of the queue call the host through, 0 without any.
    pub hostcall: u64,
}

impl Geometry {
    /// A launch of that grid, with no offset and no dynamic LDS.
    ///
    /// The number of dimensions is that up to the last one with more than one work-item.
    #[inline]
    #[must_use]
    pub fn new(grid: [u32; 3], workgroup: [u16; 3]) -> Self {
        Self {
            grid,
            workgroup,
            dimensions: axes(&grid).max(axes(&workgroup)),
            global_offset: [0; 3],
            dynamic_lds_bytes: 0,
            queue: 0,
            private_base_hi: 0,
            shared_base_hi: 0,
            hostcall: 0,
        }
    }

    /// The value of a hidden argument; an empty dimension counts as none.
    fn value(&self, kind: HiddenKind) -> u64 {
        let axis = |dimension: u8| usize::from(dimension.min(2));
        let size = |dimension| u32::from(self.workgroup[axis(dimension)]);
        match kind {
            HiddenKind::None | HiddenKind::Service(_) => 0,
            HiddenKind::GlobalOffset(dimension) => self.global_offset[axis(dimension)],
            HiddenKind::BlockCount(dimension) => {
                self.grid[axis(dimension)].checked_div(size(dimension)).unwrap_or(0).into()
            }
            HiddenKind::GroupSize(dimension) => size(dimension).into(),
            HiddenKind::Remainder(dimension) => {
                self.grid[axis(dimension)].checked_rem(size(dimension)).unwrap_or(0).into()
            }
            HiddenKind::GridDims => self.dimensions.into(),
            HiddenKind::DynamicLdsSize => self.dynamic_lds_bytes.into(),
            HiddenKind::PrivateBase => self.private_base_hi.into(),
            HiddenKind::SharedBase => self.shared_base_hi.into(),
            HiddenKind::QueuePtr => self.queue,
            HiddenKind::Hostcall => self.hostcall,
        }
    }
}

/// The number of axes up to the last one with more than one work-item.
#[inline]
pub(crate) fn axes<T: Copy + Into<u32>>(size: &[T; 3]) -> u8 {
    match size.map(Into::into) {
        [_, _, z] if z > 1 => 3,
        [_, y, _] if y > 1 => 2,
        _ => 1,
    }
}

/// An argument that the caller gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplicitArgument {
    /// Its name, if the compiler kept it.
    pub name: Option<String>,
    /// First byte in the block.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// What it is.
    pub kind: ValueKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hidden {
    offset: usize,
    bytes: usize,
    kind: HiddenKind,
}

/// Where a kernel's arguments lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernargLayout {
    kernel: String,
    bytes: usize,
    align: usize,
    explicit: Vec<ExplicitArgument>,
    hidden: Vec<Hidden>,
    unknown: Option<(usize, String)>,
    /// Whether arguments can be given one by one: all are known, and they are described if there are any.
    is_callable: bool,
    /// Whether the kernel may call the host.
    calls_host: bool,
}

impl KernargLayout {
    /// The layout that the metadata describes.
    ///
    /// # Errors
    /// [`KernargError::HiddenSize`] if a hidden argument has not the size of its kind.
    pub fn new(metadata: &KernelMetadata) -> Result<Self, KernargError> {
        let mut layout = Self {
            kernel: metadata.name.clone(),
            bytes: metadata.kernarg_bytes as usize,
            align: metadata.kernarg_align as usize,
            explicit: Vec::new(),
            hidden: Vec::new(),
            unknown: None,
            is_callable: false,
            calls_host: false,
        };
        for (index, argument) in metadata.arguments.iter().enumerate() {
            let (offset, bytes) = (argument.offset as usize, argument.bytes as usize);
            match &argument.kind {
                ValueKind::Hidden(kind) => {
                    if let Some(expected) = kind.bytes().filter(|expected| *expected != bytes) {
                        return Err(KernargError::HiddenSize {
                            kernel: layout.kernel,
                            kind: kind.name(),
                            expected,
                            found: bytes,
                        });
                    }
                    layout.hidden.push(Hidden { offset, bytes, kind: *kind });
                }
                ValueKind::Unknown(kind) => {
                    layout.unknown.get_or_insert((index, kind.clone()));
                }
                kind => layout.explicit.push(ExplicitArgument {
                    name: argument.name.clone(),
                    offset,
                    bytes,
                    kind: kind.clone(),
                }),
            }
        }
        let undeclared = layout.bytes > 0 && layout.explicit.is_empty() && layout.hidden.is_empty();
        layout.calls_host = layout.hidden.iter().any(|hidden| hidden.kind == HiddenKind::Hostcall);
        layout.is_callable = layout.unknown.is_none() && !undeclared;
        Ok(layout)
    }

    /// Length of the block in bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the kernel may call the host.
    #[inline]
    #[must_use]
    pub fn calls_host(&self) -> bool {
        self.calls_host
    }

    /// What the block's address must be a multiple of.
    #[must_use]
    pub fn align(&self) -> usize {
        self.align
    }

    /// The arguments that the caller gives, in order.
    #[inline]
    #[must_use]
    pub fn explicit(&self) -> &[ExplicitArgument] {
        &self.explicit
    }

    /// The arguments that the caller gives, if the block has nothing else.
    #[inline]
    pub(crate) fn all_explicit(&self) -> Option<&[ExplicitArgument]> {
        (self.is_callable && self.hidden.is_empty()).then_some(&self.explicit)
    }

    /// Length of the block's part before the hidden arguments.
    #[must_use]
    pub fn explicit_bytes(&self) -> usize {
        if self.hidden.is_empty() && self.explicit.is_empty() {
            return self.bytes;
        }
        self.explicit.iter().map(|argument| argument.offset + argument.bytes).max().unwrap_or(0)
    }

    /// Writes the block into `out`, which may be longer: explicit arguments, hidden ones, zeros between them.
    ///
    /// # Errors
    /// [`KernargError::Memory`], [`KernargError::Count`], [`KernargError::Size`], [`KernargError::Undeclared`] or
    /// [`KernargError::UnknownKind`]; `out` is then unchanged.
    pub fn fill<A: AsRef<[u8]>>(
        &self,
        arguments: &[A],
        geometry: &Geometry,
        out: &mut [u8],
    ) -> Result<(), KernargError> {
        self.check(arguments)?;
        let block = self.block(out)?;
        block.fill(0);
        self.fill_checked(arguments, geometry, block);
        Ok(())
    }

    /// As [`KernargLayout::fill`] with arguments that [`KernargLayout::check`] has found right, into a block of zeros that is
    /// long enough.
    #[inline]
    pub(crate) fn fill_checked<A: AsRef<[u8]>>(
        &self,
        arguments: &[A],
        geometry: &Geometry,
        block: &mut [u8],
    ) {
        for (argument, value) in self.explicit.iter().zip(arguments) {
            put(block, argument.offset, value.as_ref());
        }
        if !self.hidden.is_empty() {
            self.fill_hidden(geometry, block);
        }
    }

    /// Writes a block that the caller has laid out: the whole one verbatim, or the part before the hidden arguments,
    /// which are then filled in.
    ///
    /// # Errors
    /// [`KernargError::RawLength`] or [`KernargError::Memory`]; `out` is then unchanged.
    pub fn fill_raw(&self, raw: &[u8], geometry: &Geometry, out: &mut [u8]) -> Result<(), KernargError> {
        self.check_raw(raw)?;
        let block = self.block(out)?;
        block.fill(0);
        self.fill_raw_checked(raw, geometry, block);
        Ok(())
    }

    /// As [`KernargLayout::fill_raw`] with bytes that [`KernargLayout::check_raw`] has found right, into a block of zeros
    /// that is long enough.
    #[inline]
    pub(crate) fn fill_raw_checked(&self, raw: &[u8], geometry: &Geometry, block: &mut [u8]) {
        put(block, 0, raw);
        if raw.len() != self.bytes {
            self.fill_hidden(geometry, block);
        }
    }

    /// Checks the length of a block that the caller has laid out.
    pub(crate) fn check_raw(&self, raw: &[u8]) -> Result<(), KernargError> {
        let explicit = self.explicit_bytes();
        // The gap up to the first hidden argument is padding that a C struct would have.
        let hidden = self.hidden.iter().map(|hidden| hidden.offset).min().unwrap_or(explicit);
        let length = raw.len();
        if length != self.bytes && !(explicit..=hidden).contains(&length) {
            return Err(KernargError::RawLength {
                kernel: self.kernel.clone(),
                whole: self.bytes,
                explicit,
                found: length,
            });
        }
        Ok(())
    }

    /// Checks the number and the sizes of a kernel's arguments.
    #[inline]
    pub(crate) fn check<A: AsRef<[u8]>>(&self, arguments: &[A]) -> Result<(), KernargError> {
        if !self.is_callable || arguments.len() != self.explicit.len() {
            return Err(self.refuse(arguments.len()));
        }
        for (index, (argument, value)) in self.explicit.iter().zip(arguments).enumerate() {
            let found = value.as_ref().len();
            if found != argument.bytes {
                return Err(self.refuse_size(index, found));
            }
        }
        Ok(())
    }

    /// Why this many arguments cannot be given.
    #[cold]
    fn refuse(&self, found: usize) -> KernargError {
        let kernel = self.kernel.clone();
        match &self.unknown {
            Some((index, kind)) => KernargError::UnknownKind { kernel, index: *index, kind: kind.clone() },
            None if !self.is_callable => KernargError::Undeclared { kernel, bytes: self.bytes },
            None => KernargError::Count { kernel, expected: self.explicit.len(), found },
        }
    }

    /// Says that an argument has `found` bytes. It must be one that the kernel takes.
    #[cold]
    pub(crate) fn refuse_size(&self, index: usize, found: usize) -> KernargError {
        let argument = self.explicit.get(index);
        KernargError::Size {
            kernel: self.kernel.clone(),
            index,
            name: argument.map_or("a value", ExplicitArgument::label).to_owned(),
            expected: argument.map_or(0, |argument| argument.bytes),
            found,
        }
    }

    fn block<'out>(&self, out: &'out mut [u8]) -> Result<&'out mut [u8], KernargError> {
        let found = out.len();
        out.get_mut(..self.bytes).ok_or_else(|| KernargError::Memory {
            kernel: self.kernel.clone(),
            needed: self.bytes,
            found,
        })
    }

    fn fill_hidden(&self, geometry: &Geometry, block: &mut [u8]) {
        for hidden in &self.hidden {
            let value = geometry.value(hidden.kind).to_le_bytes();
            // Padding may be longer than a word and is zero already.
            put(block, hidden.offset, &value[..hidden.bytes.min(value.len())]);
        }
    }
}

impl ExplicitArgument {
    fn label(&self) -> &str {
        match (&self.name, &self.kind) {
            (Some(name), _) => name,
            (None, ValueKind::GlobalBuffer) => "a buffer's address",
            (None, ValueKind::DynamicSharedPointer) => "an LDS offset",
            (None, _) => "a value",
        }
    }
}

/// Offsets were checked against the segment's length with the metadata.
#[inline]
pub(crate) fn put(block: &mut [u8], offset: usize, value: &[u8]) {
    let Some(place) = block.get_mut(offset..).and_then(|rest| rest.get_mut(..value.len())) else { return };
    // A length that is known is copied without a call.
    match value.len() {
        8 => place[..8].copy_from_slice(&value[..8]),
        4 => place[..4].copy_from_slice(&value[..4]),
        _ => place.copy_from_slice(value),
    }
}

/// Collects arguments one by one; the comfortable way where a launch may allocate.
#[derive(Debug, Clone)]
pub struct KernargBuilder {
    layout: KernargLayout,
    arguments: Vec<Vec<u8>>,
}

impl KernargBuilder {
    /// A builder without arguments.
    ///
    /// # Errors
    /// As [`KernargLayout::new`].
    pub fn new(kernel: &Kernel) -> Result<Self, KernargError> {
        Ok(Self { layout: KernargLayout::new(&kernel.metadata)?, arguments: Vec::new() })
    }

    /// Adds the next argument as its bytes, little endian.
    #[must_use]
    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.arguments.push(value.to_vec());
        self
    }

    /// Adds the address of memory that the agent can access.
    #[must_use]
    pub fn address(self, address: u64) -> Self {
        self.bytes(&address.to_le_bytes())
    }

    /// The finished block.
    ///
    /// # Errors
    /// As [`KernargLayout::fill`].
    pub fn build(&self, geometry: &Geometry) -> Result<Vec<u8>, KernargError> {
        let mut block = vec![0; self.layout.bytes];
        self.layout.fill(&self.arguments, geometry, &mut block)?;
        Ok(block)
    }
}
