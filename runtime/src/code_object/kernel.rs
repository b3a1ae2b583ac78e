// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel: its metadata joined with its descriptor in the image.
//!
//! INVARIANT: the descriptor's 64 bytes lie in the file, aligned to 64, and its entry point is an address of
//! executable memory aligned to 256, as the command processor needs it.

use super::elf::Symbol;
use super::error::{CodeObjectError, LaunchError};
use super::kernarg::Geometry;
use super::loader::LoadPlan;
use super::metadata::KernelMetadata;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

/// Size of a kernel descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 64;
/// Where the descriptor has the distance from itself to the code.
const ENTRY_FIELD: usize = 16;
const CODE_ALIGNMENT: u64 = 256;

/// A kernel that can be launched once the image is placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The kernel's name.
    pub name: String,
    /// The descriptor's distance from the image's start; `kernel_object` of a dispatch is image address plus this.
    pub descriptor_offset: u64,
    /// The code's distance from the image's start.
    pub entry_offset: u64,
    /// The descriptor as in the file.
    pub descriptor: [u8; DESCRIPTOR_BYTES],
    /// What the compiler says about it.
    pub metadata: KernelMetadata,
}

impl Kernel {
    /// Checks a launch against what the kernel was compiled for.
    ///
    /// `lds_limit` is what the agent gives a workgroup, in bytes.
    ///
    /// # Errors
    /// A variant of [`LaunchError`] with the numbers.
    pub fn check_launch(&self, geometry: &Geometry, lds_limit: u32) -> Result<(), LaunchError> {
        let kernel = || self.name.clone();
        for dimension in 0..3 {
            let (grid, workgroup) = (geometry.grid[dimension], geometry.workgroup[dimension]);
            if grid == 0 || workgroup == 0 {
                return Err(LaunchError::Empty { kernel: kernel(), dimension, grid, workgroup });
            }
        }
        let workgroup = geometry.workgroup;
        let found = workgroup.iter().map(|size| u64::from(*size)).product();
        let limit = self.metadata.max_flat_workgroup_size;
        if found > u64::from(limit) {
            return Err(LaunchError::WorkgroupTooLarge { kernel: kernel(), workgroup, found, limit });
        }
        if let Some(required) = self.metadata.required_workgroup
            && required != workgroup.map(u32::from)
        {
            return Err(LaunchError::WorkgroupRequired { kernel: kernel(), found: workgroup, required });
        }
        let (fixed, dynamic) = (self.metadata.group_bytes, geometry.dynamic_lds_bytes);
        if fixed.checked_add(dynamic).is_none_or(|total| total > lds_limit) {
            return Err(LaunchError::Lds { kernel: kernel(), fixed, dynamic, limit: lds_limit });
        }
        Ok(())
    }
}

/// Finds every kernel's descriptor and code.
pub(super) fn collect(
    described: Vec<KernelMetadata>,
    symbols: &BTreeMap<String, Symbol>,
    plan: &LoadPlan,
) -> Result<Vec<Kernel>, CodeObjectError> {
    let mut names = BTreeSet::new();
    let mut kernels = Vec::with_capacity(described.len());
    for metadata in described {
        if !names.insert(metadata.name.clone()) {
            return Err(CodeObjectError::DuplicateKernel { kernel: metadata.name });
        }
        kernels.push(join(metadata, symbols, plan)?);
    }
    Ok(kernels)
}

fn join(
    metadata: KernelMetadata,
    symbols: &BTreeMap<String, Symbol>,
    plan: &LoadPlan,
) -> Result<Kernel, CodeObjectError> {
    let symbol = symbols
        .get(&metadata.symbol)
        .filter(|symbol| symbol.object && symbol.size == DESCRIPTOR_BYTES as u64)
        .ok_or_else(|| CodeObjectError::NoDescriptor {
            kernel: metadata.name.clone(),
            symbol: metadata.symbol.clone(),
        })?;
    let invalid = |what, address, why| CodeObjectError::Descriptor {
        kernel: metadata.name.clone(),
        what,
        address,
        why,
    };
    let address = symbol.value;
    let placed = plan.offset_of(address, symbol.size).and_then(|offset| {
        let bytes = plan.contents(offset, symbol.size)?;
        Some((offset, <[u8; DESCRIPTOR_BYTES]>::try_from(bytes).ok()?))
    });
    let Some((descriptor_offset, descriptor)) = placed else {
        return Err(invalid("descriptor", address, "outside the file's segments"));
    };
    if !descriptor_offset.is_multiple_of(DESCRIPTOR_BYTES as u64) {
        return Err(invalid("descriptor", address, "not aligned to 64 bytes"));
    }
    let mut distance = [0; 8];
    distance.copy_from_slice(&descriptor[ENTRY_FIELD..ENTRY_FIELD + 8]);
    let distance = i64::from_le_bytes(distance);
    let code = address.wrapping_add_signed(distance);
    let Some(entry_offset) = descriptor_offset.checked_add_signed(distance) else {
        return Err(invalid("code", code, "outside the image"));
    };
    if !plan.executable(entry_offset) {
        return Err(invalid("code", code, "outside every executable segment"));
    }
    if !entry_offset.is_multiple_of(CODE_ALIGNMENT) {
        return Err(invalid("code", code, "not aligned to 256 bytes"));
    }
    Ok(Kernel { name: metadata.name.clone(), descriptor_offset, entry_offset, descriptor, metadata })
}
