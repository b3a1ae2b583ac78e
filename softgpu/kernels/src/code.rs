// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads a code object: segments, the relocations that linked kernels have, and the kernels' descriptors.
//!
//! INVARIANT: a file with a relocation that is not applied is refused, never run half linked.

use std::collections::HashMap;
use std::sync::Arc;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSegment, ObjectSymbol, RelocationFlags, RelocationTarget};
use softgpu_waves::{Access, Vm};

use crate::memory::{Allocation, OutOfMemory};

/// Base plus addend (LLVM AMDGPUUsage, "Relocation Records").
const R_AMDGPU_RELATIVE64: u32 = 13;
/// Symbol plus addend.
const R_AMDGPU_ABS64: u32 = 3;

/// A code object that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// Not an ELF file that can be read.
    #[error("Code object is not a readable ELF file")]
    Elf(#[from] object::Error),
    /// A relocation that the loader does not know.
    #[error("Code object needs relocation {flags:?} at {offset:#x}: link it with ld.lld -shared")]
    Relocation {
        /// Place in the image.
        offset: u64,
        /// Its kind.
        flags: RelocationFlags,
    },
    /// No room for the image.
    #[error("Code object has no place in memory")]
    Memory(#[from] OutOfMemory),
}

/// A loaded code object.
#[derive(Debug)]
pub(crate) struct Code {
    /// Descriptor addresses of the kernels, by kernel name.
    pub kernels: HashMap<String, u64>,
    _image: Allocation,
}

impl Code {
    /// Loads `file` into `vm`.
    pub fn load(vm: &Arc<Vm>, file: &[u8]) -> Result<Code, CodeError> {
        let elf: ElfFile64 = ElfFile64::parse(file)?;
        let end = elf.segments().map(|s| s.address() + s.size()).max().unwrap_or(0);
        let image = Allocation::new(vm, end as usize, Access::ALL)?;
        let base = image.address();
        for segment in elf.segments() {
            image.write(segment.address() as usize, segment.data()?);
        }
        for (offset, relocation) in elf.dynamic_relocations().into_iter().flatten() {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let addend = relocation.addend() as u64;
            let symbol = match relocation.target() {
                RelocationTarget::Symbol(index) => elf
                    .dynamic_symbol_table()
                    .map(|table| object::ObjectSymbolTable::symbol_by_index(&table, index))
                    .transpose()?
                    .map_or(0, |symbol| symbol.address()),
                _ => 0,
            };
            let value = match r_type {
                R_AMDGPU_RELATIVE64 => base.wrapping_add(addend),
                R_AMDGPU_ABS64 => base.wrapping_add(symbol).wrapping_add(addend),
                _ => return Err(CodeError::Relocation { offset, flags: relocation.flags() }),
            };
            image.write(offset as usize, &value.to_le_bytes());
        }
        // The host may have given the memory of a code object that is gone.
        vm.invalidate_instructions();
        let mut kernels = HashMap::new();
        for symbol in elf.dynamic_symbols() {
            if let Some(name) = symbol.name()?.strip_suffix(".kd") {
                kernels.insert(name.to_owned(), base + symbol.address());
            }
        }
        Ok(Code { kernels, _image: image })
    }
}
